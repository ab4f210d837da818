"""`ottla collect`: lines of files become records, each exactly once."""

from __future__ import annotations

import enum
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from ottla.cli.addresses import check_servers
from ottla.cli.cluster.failures import failures_reported
from ottla.cli.commands.records.produce import CodecName
from ottla.cli.failures import INTERRUPTED, Failure, Misuse
from ottla.cli.options import DEFAULT_SERVER, Server, complete_topic
from ottla.cli.output import note, plural
from ottla.cli.progress import Progress

STOP_PATIENCE = 5.0  # seconds for the transaction that is under way when a signal comes
ONCE_PATIENCE = 60.0  # seconds for a broker that goes away, with --once
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


class Key(enum.StrEnum):
    FILE = "file"
    HOST = "host"
    NONE = "none"


def collect(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…", help="Files, folders, or quoted globs ('/var/log/**/*.log')."
        ),
    ],
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Where the lines go; it has to exist.",
            autocompletion=complete_topic,
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Send what there is and stop; else files are followed.")
    ] = False,
    from_end: Annotated[
        bool,
        typer.Option(
            "--from-end/--from-start",
            help="At the very first start of this name: leave out what files hold already.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Whose positions these are: a collector goes on under its name.",
            show_default="the host's name",
        ),
    ] = None,
    key: Annotated[
        Key, typer.Option("--key", "-k", help="The key of each record; one key's lines keep order.")
    ] = Key.FILE,
    headers: Annotated[
        bool, typer.Option("--headers/--no-headers", help="Headers 'host' and 'file'.")
    ] = True,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", "-x", metavar="GLOB", help="Names in folders and globs to leave out."
        ),
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="With --once: also a last line that has no newline."),
    ] = False,
    codec: Annotated[
        CodecName, typer.Option("--codec", "-z", help="How batches are compressed.")
    ] = CodecName.LZ4,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Follow log files and send their lines to a topic, each exactly once.

    \b
    ottla collect /var/log/nginx/access.log --topic weblogs
    ottla collect '/srv/*/log/*.log' --topic logs --exclude '*.debug.log'

    Lines and positions are committed in one transaction: nothing is lost or doubled when the collector
    or a broker is killed. Files are followed across rotation, whether renamed or copied and emptied.
    """
    if name is not None and _NAME.fullmatch(name) is None:
        raise Misuse("--name takes up to 200 letters, digits, '.', '_' and '-'")
    if unfinished and not once:
        raise Misuse("--unfinished goes with --once: files that are followed may grow")
    from ottla.pipeline.collect import Collector, Incomplete, KeyChoice, NameTaken, Unreadable

    servers = check_servers(server)
    lines = 0
    incomplete: Incomplete | None = None
    with (
        failures_reported(servers, topic=topic),
        Progress(f"to {topic}", in_bytes=True) as progress,
    ):

        def sent(count: int, size: int) -> None:
            nonlocal lines
            lines += count
            progress.advance(size)

        collector = Collector(
            servers,
            topic,
            paths,
            name=name,
            exclude=exclude or (),
            from_end=from_end,
            unfinished=unfinished,
            key=KeyChoice(key.value),
            headers=headers,
            compression=codec.value,
            note=lambda text: note(f"ottla: {text}"),
            sent=sent,
        )
        with stopping() as stop:
            try:
                collector.run(stop.event, once=once, patience=ONCE_PATIENCE if once else None)
            except Unreadable as problem:
                raise Failure(str(problem)) from None
            except Incomplete as problem:
                incomplete = problem
            except NameTaken:
                raise Failure(
                    f"another collector took over as '{collector.name}'; "
                    "give each its own with --name"
                ) from None
            except StoppedHard:
                note(
                    "ottla: the broker did not answer; what was under way is sent at the next start"
                )
    note(f"{plural(lines, 'line')} sent to {topic}")
    if stop.number == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)
    if incomplete is not None:
        raise Failure(str(incomplete))


class StoppedHard(BaseException):
    """The time for an orderly end is over."""


class Stop:
    """A signal that came, and which."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.number: int | None = None


@contextmanager
def stopping() -> Iterator[Stop]:
    """SIGTERM and Ctrl-C set the event; a second one, or five more seconds, raise StoppedHard."""
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.event.is_set():
            raise StoppedHard
        stop.number = number
        stop.event.set()
        signal.setitimer(signal.ITIMER_REAL, STOP_PATIENCE)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
