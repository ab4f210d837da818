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
from ottla.cli.spark import silence_pyspark, telling_spark
from ottla.cli.sql.output import Form, tell_misfits, write_rows
from ottla.cli.sql.warm import peer_user, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES_AT_ONCE = 1000


class Answer:
    """What is printed at the other end of a connection."""

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

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            send(self._stream, {"lines": lines})

    def _send(self, message: Mapping[str, Any]) -> None:
        self.flush()
        send(self._stream, message)


class Server:
    """Answers on a socket with a session."""

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
        """Until it is told to stop, or nobody asks any more."""
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
        if request.get("stop"):
            self._stopped = True
            self._path.unlink(missing_ok=True)
        elif "query" in request:
            try:
                with telling_spark(self._log):
                    self._run(request, connection, stream)
            except Failure as failure:
                send(stream, {"failed": failure.message})
                return
        send(stream, {"done": os.getpid()})

    def _run(
        self, request: Mapping[str, Any], connection: socket.socket, stream: BufferedRWPair
    ) -> None:
        from ottla.pipeline.spark.session import register_source, use_in_this_thread
        from ottla.pipeline.sql.tables import TopicTables

        spark = self._spark.newSession()
        register_source(spark)
        use_in_this_thread(spark)
        bounds = request["bounds"]
        answer = Answer(stream)
        with (
            self._cancelling(connection),
            closing(
                TopicTables(spark, request["options"], lambda topic: bounds.get(topic, {}))
            ) as tables,
        ):
            rows = tables.query(request["query"])
            for remark in tables.remarks():
                answer.note(remark)
            if rows.columns:
                tell = partial(tell_misfits, tables, output=answer)
                write_rows(rows, Form(request["form"]), request["limit"], done=tell, output=answer)
            answer.flush()

    @contextmanager
    def _cancelling(self, connection: socket.socket) -> Iterator[None]:
        """End the jobs of this thread when whoever asked for them goes away."""
        context = self._spark.sparkContext
        group = uuid.uuid4().hex
        context.setJobGroup(group, "ottla sql", interruptOnCancel=True)
        over, ends = socket.socketpair()

        def watch() -> None:
            ready, _, _ = select.select([connection, over], [], [])
            if over not in ready:
                context.cancelJobGroup(group)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ends.close()
            watching.join()
            over.close()


def main(words: Sequence[str]) -> None:
    path, idle, log, tells = words
    settings = json.load(sys.stdin)
    with open(int(tells), "wb") as starter:
        silence_pyspark()
        try:
            with telling_spark(Path(log)):
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
