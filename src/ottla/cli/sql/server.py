"""The process that keeps a Spark session for `ottla sql`; see warm.

    python -m ottla.cli.sql.server SOCKET IDLE LOG DESCRIPTOR < settings.json

It writes `ready`, or why it cannot be, to the descriptor. Then it answers until nobody has asked for
IDLE seconds, or somebody tells it to stop. Every query has a session of its own in the one Spark.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BufferedRWPair
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.failures import Failure
from ottla.cli.output import Cell
from ottla.cli.spark.sessions import silence_pyspark, spark_failures_reported
from ottla.cli.sql.following import print_as_they_come
from ottla.cli.sql.output import Form, tell_misfits, write_columns, write_rows
from ottla.cli.sql.warm import NotForServers, Question, can_answer, has_path, peer_user, send
from ottla.pipeline.sql.checking import check_syntax, check_topics, is_query_of_spark, named_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES_AT_ONCE = 1000


class Answer:
    """The output of a query, sent over a connection to the command that asked."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream
        self._lines: list[str] = []

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._send({"table": [list(columns), [list(row) for row in rows]]})

    def line(self, text: str) -> None:
        self._lines.append(text)
        if len(self._lines) >= _LINES_AT_ONCE:
            self.flush()

    def note(self, text: str) -> None:
        self._send({"note": text})

    def live(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._send({"live": [list(columns), [list(row) for row in rows]]})

    def end(self) -> None:
        """Does nothing: the command that asked keeps the last table on its terminal."""

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            send(self._stream, {"lines": lines})

    def _send(self, message: Mapping[str, Any]) -> None:
        self.flush()
        send(self._stream, message)


class Server:
    """Answers the queries that come in on a unix socket, with one Spark session."""

    def __init__(self, spark: SparkSession, path: Path, idle: float, log: Path) -> None:
        self._spark = spark
        self._path = path
        self._idle = idle
        self._log = log
        self._lock = threading.Lock()
        self._asking = 0  # connections that are being answered
        self._quiet_since = time.monotonic()
        self._stopped = False
        self._woken, self._wakes = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)  # of a server that was killed: whoever starts one holds a lock
        self._listener.bind(str(path))
        self._listener.listen()

    def serve(self) -> None:
        """Serve until a command stops it, or nobody has asked for `idle` seconds."""
        while not self._stopped:
            with self._lock:
                quiet = time.monotonic() - self._quiet_since
                left = self._idle if self._asking else self._idle - quiet
            if left <= 0:
                break
            ready, _, _ = select.select([self._listener, self._woken], [], [], left)
            if self._woken in ready:
                self._woken.recv(1)
            if self._listener in ready:
                self._accept()
        self._path.unlink(missing_ok=True)
        self._listener.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with self._lock:
            self._asking += 1
        threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rwb") as stream, suppress(OSError):
                if peer_user(connection) == os.getuid():
                    self._answer(connection, stream)
        finally:
            with self._lock:
                self._asking -= 1
                self._quiet_since = time.monotonic()
            self._wakes.send(b"x")

    def _answer(self, connection: socket.socket, stream: BufferedRWPair) -> None:
        request = json.loads(stream.readline() or b"{}")
        rows = 0
        if request.get("stop"):
            self._stopped = True
            self._path.unlink(missing_ok=True)
        elif request:
            try:
                with spark_failures_reported(self._log), self._session() as spark:
                    if "syntax" in request:
                        check_syntax(request["syntax"])
                    elif "columns" in request:
                        _tell_columns(spark, request, Answer(stream))
                    else:
                        with self._watched(connection) as gone:
                            rows = _run(spark, Question(**request), Answer(stream), gone)
            except Failure as failure:
                send(stream, {"failed": failure.message})
                return
            except NotForServers:
                send(stream, {"refused": True})
                return
        send(stream, {"done": os.getpid(), "rows": rows})

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """A session that nobody else has."""
        from ottla.pipeline.spark.session import use_in_this_thread

        spark = self._spark.newSession()
        use_in_this_thread(spark)
        yield spark

    @contextmanager
    def _watched(self, connection: socket.socket) -> Iterator[threading.Event]:
        """Set the event, and end Spark's jobs of this thread, when who asked has enough or goes away."""
        context = self._spark.sparkContext
        group = uuid.uuid4().hex
        context.setJobGroup(group, "ottla sql", interruptOnCancel=True)
        over, ends = socket.socketpair()
        gone = threading.Event()

        def watch() -> None:
            ready, _, _ = select.select([connection, over], [], [])
            if over not in ready:
                gone.set()
                context.cancelJobGroup(group)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield gone
        finally:
            ends.close()
            watching.join()
            over.close()


def _run(spark: SparkSession, question: Question, answer: Answer, gone: threading.Event) -> int:
    """Answer a question. Returns how many rows there were."""
    from ottla.pipeline.spark.session import register_source
    from ottla.pipeline.sql.tables import TopicTables, UnknownTable
    from ottla.pipeline.sql.targets import write_rows_to

    query = question.query
    if (
        question.unseen
        and not can_answer(query)
        and (has_path(query) or not is_query_of_spark(query))
    ):
        raise NotForServers
    bounds, form = question.bounds, Form(question.form)
    found = TopicTables(spark, question.options, lambda topic: bounds.get(topic, {}))
    with closing(found) as tables:
        topics = sorted(named_tables(query)) if question.unseen and question.only_topics else []
        try:
            rows = tables.query(query, follow=question.follow, topics=topics)
        except UnknownTable:
            check_topics(topics, (each.name for each in tables.topics()))  # which one may be meant
            raise
        for remark in tables.remarks():
            answer.note(remark)
        tell = partial(tell_misfits, tables, output=answer)
        count = 0
        if question.follow:
            print_as_they_come(
                rows, form, question.limit, room=question.room, output=answer, enough=gone
            )
        elif question.to is not None:
            limited = rows if question.limit is None else rows.limit(question.limit)
            register_source(spark)
            write_rows_to(limited, question.to, question.options)
            tell()
        elif rows.columns:
            count = write_rows(rows, form, question.limit, done=tell, output=answer)
        answer.flush()
        return count


def _tell_columns(spark: SparkSession, request: Mapping[str, Any], answer: Answer) -> None:
    from ottla.pipeline.sql.tables import TopicTables

    with closing(TopicTables(spark, request["options"])) as tables:
        write_columns(tables.columns(request["columns"]), answer)


def main(words: Sequence[str]) -> None:
    path, idle, log, tells = words
    settings = json.load(sys.stdin)
    with open(int(tells), "wb") as starter:
        silence_pyspark()
        try:
            with spark_failures_reported(Path(log)):
                from ottla.pipeline.spark.session import session

                spark = session(name="ottla sql", settings=settings, log=Path(log))
        except (Failure, OSError) as error:
            starter.write(str(error).encode())
            sys.exit(1)
        server = Server(spark, Path(path), float(idle), Path(log))
        starter.write(b"ready")
    try:
        server.serve()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
