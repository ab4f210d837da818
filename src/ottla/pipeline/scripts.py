"""Plain PySpark scripts, run as a pipeline.

The script runs in this process as `python FILE` would run it. What the command was told (the master,
settings, where Spark's log goes) is what `ottla.pipeline.session()` takes where the script does not say
otherwise. Streaming queries that still run when the script has come to its end are awaited.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ottla.pipeline.spark.progress import wait, watching
from ottla.pipeline.spark.session import (
    LOCAL,
    Defaults,
    defaults,
    open_sessions,
    prepare_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def run_script(
    file: Path,
    arguments: Sequence[str],
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> None:
    """Run a script to its end and to that of its queries; whatever it raises leaves here."""
    prepare_environment(master or LOCAL)
    former = open_sessions()

    def sessions() -> list[SparkSession]:
        """The Spark sessions that the script has made."""
        return [spark for spark in open_sessions() if spark not in former]

    def queries() -> list[StreamingQuery]:
        return [query for spark in sessions() for query in spark.streams.active]

    wanted = Defaults(master or LOCAL, dict(settings or {}), log)
    with _defaults(wanted), _as_program(file, arguments):
        try:
            with watching(sessions):
                try:
                    with _interrupted_by_terminate():
                        runpy.run_path(str(file), run_name="__main__")
                    wait(*queries())
                finally:
                    for query in queries():
                        query.stop()
        finally:
            for spark in sessions():
                spark.stop()


@contextmanager
def _defaults(wanted: Defaults) -> Iterator[None]:
    former = (defaults.master, defaults.settings, defaults.log)
    defaults.master, defaults.settings, defaults.log = wanted.master, wanted.settings, wanted.log
    try:
        yield
    finally:
        defaults.master, defaults.settings, defaults.log = former


@contextmanager
def _as_program(file: Path, arguments: Sequence[str]) -> Iterator[None]:
    """`sys.argv` and the path of modules as the script would find them."""
    former = sys.argv
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        yield
    finally:
        sys.argv = former
        sys.path.remove(str(file.resolve().parent))


@contextmanager
def _interrupted_by_terminate() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: the script is left, and its queries are stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
