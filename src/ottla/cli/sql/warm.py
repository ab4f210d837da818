"""A Spark session that outlives a command, so that the next query does not wait for Spark to start.

The first `ottla sql` starts a server (ottla.cli.sql.server): a process with a session in it, which
answers on a socket in a folder that only its user may enter. It ends after ten minutes without a query,
or by `ottla spark stop`. The commands that ask it need nothing of PySpark themselves, which
alone would take longer to import than a small query to answer.

A server has the settings that it was started with: there is one for each choice of settings, Python
and environment. What could change a session for those who come later (anything but a query), depends on
the folder a command was started in, or is a job that goes on for days, is not asked of it
(docs/adr/0014-spark-between-queries.md).

On the socket each message is a line of JSON. A request is a Question, {"columns": topic, "options": …},
{"syntax": statement} or {"stop": true}. The answers are {"table": [columns, rows]}, {"lines": […]},
{"live": [columns, rows]} and {"note": text}, and at the end {"failed": sentence}, {"refused": true} or
{"done": pid, "rows": count}. The command that asks says by the end of its stream that it has enough.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Final

from ottla.cli.failures import Failure
from ottla.cli.output import note
from ottla.cli.sql.output import Form, Standard
from ottla.version import __version__

IDLE: Final = 600.0  # seconds
SWITCH: Final = "OTTLA_SPARK_SERVER"  # 0: none is started or asked
_IDLE_VARIABLE: Final = "OTTLA_SPARK_IDLE"  # seconds, in place of IDLE
# What Spark, Java and Python take from the environment: a server with another one is another server.
_ENVIRONMENT: Final = re.compile(
    r"(SPARK|PYSPARK|JAVA|JDK|HADOOP|YARN|AWS|AZURE|GOOGLE|PYTHON|KRB5|XDG_STATE)\w*|PATH|HOME|LANG|TZ"
    r"|OTTLA_CLIENT_CONFIG"  # whose credentials it connects with
)
_LONGEST_FOLDER: Final = 70  # bytes: the path of a socket has at most 107
# Paths in a query are relative to the folder of whoever asks.
_PATHS: Final = re.compile(
    r"\b(parquet|json|csv|orc|text|avro|delta|binaryFile)\s*\.\s*`", re.IGNORECASE
)


# A session for one user who waits: what starts soon, and little to set up for each query.
PRESET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Spark loads so many classes that the JVM would collect garbage on their account, again and again,
    # while the first queries wait.
    "spark.driver.extraJavaOptions": "-XX:MetaspaceSize=256m",
    # For each call on a column PySpark would tell the JVM, in some ten calls, from which line it comes:
    # of the lines of Ottla nobody wants to know.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


class NotForServers(Exception):
    """A server has been asked for something that it may not do."""


@dataclass(frozen=True)
class Question:
    """What is asked of a server."""

    query: str
    options: Mapping[str, str]  # of the source
    bounds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # more of them by topic
    form: str = Form.TABLE.value
    limit: int | None = None
    to: str | None = None  # a topic, or the absolute path of a folder, that the rows are written to
    follow: bool = False
    room: int | None = None  # rows that the terminal has room for, if there is one
    unseen: bool = False  # whoever asks has not looked at it: is it a query, are its topics there
    only_topics: bool = True  # there are no other tables


def query_settings(chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of Spark's for queries; `chosen` are what a user said."""
    from ottla.pipeline.spark.session import warehouse_settings

    return {**warehouse_settings(), **PRESET, **(chosen or {})}


def is_wanted() -> bool:
    """Whether servers may be used: on Linux, unless the user has switched them off."""
    return os.environ.get(SWITCH, "1") != "0" and hasattr(socket, "SO_PEERCRED")


def can_answer(query: str) -> bool:
    """Whether a query leaves no trace in a session, and needs nothing of whoever asks."""
    from ottla.pipeline.sql.checking import is_plain_query

    return not has_path(query) and is_plain_query(query)


def has_path(query: str) -> bool:
    """Whether a query reads files by a path."""
    return _PATHS.search(query) is not None


def runtime_folder() -> Path:
    """The user's folder for sockets, which nobody else may enter; Failure if somebody else can."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and len(os.fsencode(given)) <= _LONGEST_FOLDER:
        folder = Path(given) / "ottla"
    else:
        folder = Path(tempfile.gettempdir()) / f"ottla-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Failure(
            f"{folder} is not a folder of yours alone; remove it, or set {SWITCH}=0 to start Spark "
            "anew for each query"
        )
    return folder


def socket_of(settings: Mapping[str, str]) -> Path:
    """Where the server for these settings listens."""
    environment = {
        name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)
    }
    what = [
        sys.executable,
        sys.version,
        __version__,
        __file__,
        dict(settings),
        environment,
        _umask(),
    ]
    words = json.dumps(what, sort_keys=True)
    return runtime_folder() / f"sql-{hashlib.sha256(words.encode()).hexdigest()[:16]}.sock"


def _umask() -> int:
    """What is left off the permissions of files that a server writes."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def prepare(settings: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Have a server started, if there is none."""
    _reached(settings, tell, quiet=True).close()


def answer(
    settings: Mapping[str, str], question: Question, tell: Callable[[str], None] = note
) -> int:
    """Have the server answer, started now if there is none, and print what it says; how many rows.

    A question that follows ends with Ctrl-C or SIGTERM, in good order.
    """
    with _reached(settings, tell) as connection:
        if not question.follow:
            return _printed(connection, asdict(question))
        from ottla.pipeline.spark.progress import stop_signals

        with stop_signals() as enough:
            watching = threading.Thread(
                target=_end_question, args=(connection, enough), daemon=True
            )
            watching.start()
            try:
                return _printed(connection, asdict(question))
            finally:
                enough.set()
                watching.join()


def answer_if_there(settings: Mapping[str, str], question: Question) -> int | None:
    """Answer a query that nobody has parsed; None if there is no server, or it is not for it.

    To look at a query takes a parser, and to import it longer than a server needs for a small answer.
    """
    connection = _connected(socket_of(settings))
    if connection is None:
        return None
    try:
        with connection:
            return _printed(connection, {**asdict(question), "unseen": True})
    except NotForServers:
        return None


def columns_of(
    settings: Mapping[str, str], options: Mapping[str, str], topic: str, tell: Callable[[str], None]
) -> None:
    """Print the columns that a topic has as a table."""
    with _reached(settings, tell) as connection:
        _printed(connection, {"columns": topic, "options": dict(options)})


def check_syntax(settings: Mapping[str, str], statement: str) -> None:
    """Have a server, if there is one, look at a statement that is not for it. Raises Failure."""
    connection = _connected(socket_of(settings))
    if connection is not None:
        with connection:
            _printed(connection, {"syntax": statement})


def _end_question(connection: socket.socket, enough: threading.Event) -> None:
    """Once `enough` is set, tell the server that nothing more of its answer is wanted."""
    enough.wait()
    with suppress(OSError):  # it is over already
        connection.shutdown(socket.SHUT_WR)


def _reached(
    settings: Mapping[str, str], tell: Callable[[str], None], *, quiet: bool = False
) -> socket.socket:
    """A connection to the server for these settings, started now if there is none."""
    path = socket_of(settings)
    connection = _connected(path)
    if connection is not None:
        return connection
    from ottla.cli.spark.sessions import waiting

    shown = nullcontext() if quiet else waiting("Spark starts")
    with shown, path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connected(path)  # somebody else may have started it meanwhile
        if connection is None:
            _start(path, settings)
            tell(
                "Spark stays ready for the next query, for ten minutes; `ottla spark stop` ends it, "
                f"{SWITCH}=0 does without"
            )
            connection = _connected(path)
    if connection is None:
        raise Failure("the Spark server that was started is gone; try again")
    return connection


def _printed(connection: socket.socket, request: Mapping[str, Any]) -> int:
    """Print an answer; the number of its rows."""
    output = Standard()
    rows = 0
    try:
        for message in asked(connection, request):
            match message:
                case {"table": [columns, cells]}:
                    output.table(columns, cells)
                case {"lines": lines}:
                    for line in lines:
                        output.line(line)
                    output.flush()
                case {"live": [columns, cells]}:
                    output.live(columns, cells)
                case {"note": text}:
                    output.note(text)
                case {"rows": count}:
                    rows = count
    finally:
        output.end()
    return rows


def asked(connection: socket.socket, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The messages of an answer; Failure if it says that it failed, or ends early."""
    with connection.makefile("rwb") as stream:
        send(stream, request)
        for line in stream:
            message: dict[str, Any] = json.loads(line)
            if "failed" in message:
                raise Failure(message["failed"])
            if "refused" in message:
                raise NotForServers
            yield message
            if "done" in message:
                return
    raise Failure(
        "the Spark server broke off its answer; `ottla spark stop` ends it, then try again"
    )


def send(stream: BufferedRWPair, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def stop_all() -> int:
    """End all servers of this user; how many there were."""
    count = 0
    for path in sorted(runtime_folder().glob("sql-*.sock")):
        connection = _connected(path)
        if connection is None:
            path.unlink(missing_ok=True)
            continue
        with connection:
            for _ in asked(connection, {"stop": True}):
                count += 1
    return count


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    if peer_user(connection) != os.getuid():
        connection.close()
        raise Failure(f"{path} is somebody else's")
    return connection


def peer_user(connection: socket.socket) -> int:
    """The user at the other end."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[1])


def _start(path: Path, settings: Mapping[str, str]) -> None:
    """Start the server and wait until it listens; Failure says why it does not."""
    from ottla.pipeline.spark.session import log_file

    log = log_file("server")
    idle = os.environ.get(_IDLE_VARIABLE, str(IDLE))
    reading, writing = os.pipe()
    command = [
        sys.executable,
        "-m",
        "ottla.cli.sql.server",
        str(path),
        idle,
        str(log),
        str(writing),
    ]
    with open(reading, "rb") as answers:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[writing],
                    start_new_session=True,
                    cwd="/",
                )
        finally:
            os.close(writing)
        assert process.stdin is not None
        with process.stdin as given:
            given.write(json.dumps(dict(settings)).encode())
        message = answers.read().decode()
    process.returncode = 0  # it is nobody's child from now on, and goes on when this one ends
    if message != "ready":
        raise Failure(message or f"Spark did not start (its log: {log})")
