"""What the commands that run on Spark share: their options, their session, how its failures are told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.environment import MASTER_VARIABLE
from ottla.cli.failures import Failure
from ottla.cli.options import parse_assignments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        envvar=MASTER_VARIABLE,
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://…, sc://HOST:PORT.",
        show_default="local[*]",
    ),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; repeatable."),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        metavar="NAME=VALUE",
        help="An option of the source, such as kafka.security.protocol=SASL_SSL; repeatable.",
    ),
]


@contextmanager
def warming(work: Callable[[], object]) -> Iterator[None]:
    """Run `work`, which makes Spark ready, in a thread during the block. Its failures are ignored: the
    first query reports them."""
    from ottla.pipeline.spark.errors import is_of_spark

    def warm() -> None:
        try:
            work()
        except Failure:
            return
        except Exception as error:
            if not is_of_spark(error):
                raise

    thread = threading.Thread(target=warm, name="ottla-warming")
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def spark_session(
    command: str,
    master: str | None,
    settings: list[str] | None = None,
    preset: Mapping[str, str] | None = None,
    before: Callable[[], object] | None = None,
) -> Iterator[SparkSession]:
    """The session of a command; `settings` are what its user said, `preset` what it prefers itself.

    `before` is called when Spark's JVM is there, before the session is (see `session`).

    Spark's log goes to a file. Whatever fails inside leaves as a Failure of one sentence, which names
    that file where it may say more.
    """
    chosen = {**(preset or {}), **parse_assignments(settings or [], "--conf")}
    from ottla.pipeline.spark.session import (
        log_file,
        running_session,
        session,
        warehouse_settings,
    )

    with spark_failures_reported():
        running = running_session()
    silence_pyspark()
    if running is not None:  # somebody's who runs commands in a program
        with spark_failures_reported():
            yield running
        return
    log = log_file(command)
    with spark_failures_reported(log):
        with waiting("Spark starts"):
            chosen = {**warehouse_settings(), **chosen}
            spark = session(
                master, name=f"ottla {command}", settings=chosen, log=log, before=before
            )
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def starting_session(command: str, preset: Mapping[str, str]) -> Iterator[Future[SparkSession]]:
    """As `spark_session`, for a command that has other things to do while Spark starts.

    Raises what the start raises, if nobody has asked for it until the end.
    """
    from ottla.pipeline.spark.session import log_file, session, warehouse_settings

    silence_pyspark()
    log = log_file(command)
    with spark_failures_reported(log), ThreadPoolExecutor(1, "ottla-spark") as thread:
        chosen = {**warehouse_settings(), **preset}
        starting = thread.submit(session, name=f"ottla {command}", settings=chosen, log=log)
        try:
            yield starting
        finally:
            starting.result().stop()


def in_program() -> bool:
    """Whether this process has a session already: commands may be run by a program."""
    if "pyspark" not in sys.modules:
        return False
    from ottla.pipeline.spark.session import running_session

    with spark_failures_reported():
        return running_session() is not None


def check_source(options: Mapping[str, str], topic: str) -> None:
    """Failure for options that the source will refuse: before Spark starts."""
    with spark_failures_reported():
        from ottla.client.errors import OttlaError
        from ottla.pipeline.spark.session import SparkMissing

        try:
            from pyspark_ottla import OttlaDataSource
        except ImportError:
            raise SparkMissing("PySpark is not installed: `pip install 'ottla[spark]'`") from None
        try:
            OttlaDataSource({**options, "subscribe": topic}).schema()
        except OttlaError as error:
            raise Failure(f"--option: {error}") from None


@contextmanager
def spark_failures_reported(log: Path | None = None) -> Iterator[None]:
    """Whatever Spark, Java or the client raise inside leaves as a Failure of one sentence."""
    from ottla.client.errors import OttlaError
    from ottla.pipeline.spark.errors import error_sentence, is_of_spark
    from ottla.pipeline.spark.java import JavaMissing
    from ottla.pipeline.spark.progress import QueryFailed
    from ottla.pipeline.spark.session import SparkMissing

    try:
        yield
    except (SparkMissing, JavaMissing, OttlaError) as error:
        raise Failure(str(error)) from None
    except Exception as error:
        if not (isinstance(error, QueryFailed) or is_of_spark(error)):
            raise
        from pyspark.errors import AnalysisException

        # What is wrong with a query is told by the sentence; the log has nothing to add.
        understood = log is None or isinstance(error, AnalysisException)
        more = "" if understood else f" (Spark's log: {log})"
        raise Failure(error_sentence(error) + more) from error


def waiting(what: str) -> AbstractContextManager[object]:
    """Something that moves, on a terminal, while a user waits."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def silence_pyspark() -> None:
    """PySpark prints every error that it raises, too, with all of Java's stack."""
    from pyspark.accumulators import AccumulatorTCPServer
    from pyspark.logger import PySparkLogger

    # A session that is stopped in the middle of a task leaves a connection that ends early.
    AccumulatorTCPServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
