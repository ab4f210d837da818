"""Streaming queries on the terminal: how far they are, how they end.

`show` stays with a query until it ends: a line that is kept up to date on a terminal, a line now and
then elsewhere, both on standard error. Ctrl-C and SIGTERM stop the query, so that it leaves its
checkpoint and its output as at the end of a batch. A query that fails raises `QueryFailed`, whose
message is one sentence.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from ottla.client.errors import OttlaError
from ottla.pipeline.spark.errors import error_sentence, is_of_spark
from ottla.pipeline.spark.lag import lag_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY: Final = 0.1  # seconds between two looks at a query
WATCH_EVERY: Final = 0.25  # the same, where nobody waits for their end
LAST_WORDS: Final = 10.0  # seconds at most; what a query said last arrives a little after its end
BACKLOG_EVERY: Final = 2.0  # seconds; the brokers are asked for it
PLAIN_EVERY: Final = 10.0  # seconds between two lines where there is no terminal

Backlog = Callable[[], int]


class QueryFailed(RuntimeError):
    """A query ended by an error; the message is one sentence."""


def show(query: StreamingQuery, *, what: str, backlog: Backlog | None = None) -> bool:
    """Stay with a query until it ends; whether it did so by itself (and was not told to stop).

    `what` names it for people; `backlog` tells how many records are still to be read, where that is
    not what the query itself knew when it planned its last batch.
    """
    return show_all({what: query}, backlog=backlog)


def show_all(queries: Mapping[str, StreamingQuery], *, backlog: Backlog | None = None) -> bool:
    """Stay with several queries until all of them end; if one fails, the others are stopped."""
    followed = {FollowedQuery(what): query for what, query in queries.items()}
    with Display(list(followed), backlog) as display:
        return _stay(followed, display.update)


def wait(*queries: StreamingQuery, enough: threading.Event | None = None) -> bool:
    """As `show`, but nothing is shown, and the queries are stopped once there is enough."""
    return _stay({FollowedQuery(""): query for query in queries}, lambda: None, enough)


def _stay(
    followed: Mapping[FollowedQuery, StreamingQuery],
    update: Callable[[], None],
    enough: threading.Event | None = None,
) -> bool:
    with stop_signals(enough) as asked:
        try:
            while [query for each, query in followed.items() if runs(each, query)]:
                update()
                if asked.wait(LOOK_EVERY):
                    return False
        finally:
            for query in followed.values():
                query.stop()
            update()
    return True


def runs(followed: FollowedQuery, query: StreamingQuery) -> bool:
    """Whether a query still runs; takes its progress. QueryFailed if it ended by an error."""
    running = bool(query.isActive)
    last = query.lastProgress
    if last is not None and last["timestamp"] > followed.seen:
        for progress in query.recentProgress:
            if progress["timestamp"] > followed.seen:
                followed.take(progress)
    if not running:
        error = query.exception()
        if error is not None:
            raise QueryFailed(error_sentence(error)) from error
    return running


@contextmanager
def stop_signals(asked: threading.Event | None = None) -> Iterator[threading.Event]:
    """During the block Ctrl-C and SIGTERM set the event, and do nothing else; a second one interrupts.

    A signal that raised wherever the program is would raise in the middle of a talk with the JVM.
    """
    asked = asked or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    former = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@dataclass(eq=False)
class FollowedQuery:
    """What has been seen of a query."""

    what: str
    rows: int = 0
    batch: int | None = None  # the number of the last one that had rows
    rate: float = 0.0  # rows a second while the last batch was worked on; 0 if it had none
    backlog: int | None = None  # offsets that were there when it was planned, and are not read
    seen: str = ""  # the time of the last progress
    ended: threading.Event = field(default_factory=threading.Event)  # of those that are watched

    def take(self, progress: Mapping[str, Any]) -> None:
        """Count a batch, by what Spark says of it."""
        self.seen = progress["timestamp"]
        rows = progress["numInputRows"]
        self.rate = progress["processedRowsPerSecond"] if rows else 0.0
        if rows:
            self.rows += rows
            self.batch = progress["batchId"]
        behind = lag_in(progress)
        self.backlog = sum(behind.values()) if behind else None

    def describe(self) -> str:
        if self.batch is None:
            return f"{self.what}: no rows yet"
        text = f"{self.what}: {self.rows:,} rows, batch {self.batch}, {self.rate:,.0f} rows/s"
        return text if self.backlog is None else f"{text}, backlog {self.backlog:,}"


@contextmanager
def watching(sessions: Callable[[], list[SparkSession]]) -> Iterator[Display]:
    """During the block show all queries of these sessions, which somebody else starts and awaits."""
    # Imported here: the class stands on one of PySpark's.
    from ottla.pipeline.spark.listening import QueryListener

    followed: list[FollowedQuery] = []
    listener = QueryListener(followed)
    heard: list[SparkSession] = []
    done = threading.Event()
    with Display(followed) as display:

        def listen() -> None:
            for spark in sessions():
                if spark not in heard:
                    heard.append(spark)
                    with _stopped_meanwhile():
                        spark.streams.addListener(listener)

        def watch() -> None:
            while not done.wait(WATCH_EVERY):
                listen()
                display.update()

        listen()  # now: a query that begins at once may be over before the first look
        watcher = threading.Thread(target=watch, name="ottla-progress")
        watcher.start()
        try:
            yield display
        finally:
            done.set()
            watcher.join()
            for each in followed:
                each.ended.wait(LAST_WORDS)
            for spark in sessions():
                if spark in heard:
                    with _stopped_meanwhile():
                        spark.streams.removeListener(listener)


@contextmanager
def _stopped_meanwhile() -> Iterator[None]:
    """Ignore errors of Spark in the block: a session may be stopped at any time by who made it."""
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise


class Display:
    """What is shown of queries, on standard error."""

    def __init__(self, followed: list[FollowedQuery], backlog: Backlog | None = None) -> None:
        self._followed = followed
        self._backlog = backlog
        self._ask_at = 0.0
        self._screen: _Terminal | _Lines = _Terminal() if sys.stderr.isatty() else _Lines()

    def update(self) -> None:
        self._ask_backlog()
        self._screen.draw([each.describe() for each in self._followed])

    def say(self, text: str) -> None:
        """Print a line that stays above the progress."""
        self._screen.say(text)

    def _ask_backlog(self) -> None:
        now = time.monotonic()
        if self._backlog is None or now < self._ask_at:
            return
        self._ask_at = now + BACKLOG_EVERY
        try:
            self._followed[-1].backlog = self._backlog()
        except OttlaError:
            pass  # the query itself will tell if the brokers stay away

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._screen.close()
        _write_lines([each.describe() for each in self._followed])


class _Terminal:
    """Lines that are kept up to date."""

    def __init__(self) -> None:
        self._live: Any = None
        self._spinners: list[Any] = []

    def draw(self, lines: list[str]) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        if not lines:
            return
        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=8)
            self._live.start()
        self._spinners += [Spinner("dots") for _ in lines[len(self._spinners) :]]
        for spinner, line in zip(self._spinners, lines, strict=True):
            spinner.update(text=Text(line))
        self._live.update(Group(*self._spinners))

    def say(self, text: str) -> None:
        if self._live is None:
            _write_lines([text])
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class _Lines:
    """A line for each query, now and then, if there is something new."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._next = time.monotonic() + PLAIN_EVERY

    def draw(self, lines: list[str]) -> None:
        if time.monotonic() >= self._next and lines != self._shown:
            self._next = time.monotonic() + PLAIN_EVERY
            self._shown = lines
            _write_lines(lines)

    def say(self, text: str) -> None:
        _write_lines([text])

    def close(self) -> None:
        """Does nothing: lines need no end."""


def _write_lines(lines: list[str]) -> None:
    sys.stdout.flush()
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
