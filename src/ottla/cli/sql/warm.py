"""A Spark session that outlives a command, so that the next query does not wait for Spark to start.

The first `ottla sql QUERY` starts a server (ottla.cli.sql.server): a process with a session in it,
which answers on a socket in a folder that only its user may enter. It ends after ten minutes without a
query, or by `ottla spark stop`. The commands that ask it need nothing of PySpark themselves, which
alone would take longer to import than a small query to answer.

A server has the settings that it was started with: there is one for each choice of settings, Python
and environment. What could change a session for those who come later (anything but a query), or
depends on the folder a command was started in, is not asked of it.

On the socket each message is a line of JSON. A request is {"query": …} or {"stop": true}; the answers
are {"table": [columns, rows]}, {"lines": […]}, {"note": text}, and at the end {"failed": sentence} or
{"done": pid}.
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
from collections.abc import Iterator, Mapping
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Final

from ottla.cli.failures import Failure
from ottla.cli.output import note, write_line, write_table
from ottla.version import __version__

IDLE: Final = 600.0  # seconds
SWITCH: Final = "OTTLA_SPARK_SERVER"  # 0: none is started or asked
_IDLE_VARIABLE: Final = "OTTLA_SPARK_IDLE"  # seconds, in place of IDLE
# What Spark, Java and Python take from the environment: a server with another one is another server.
_ENVIRONMENT: Final = re.compile(
    r"(SPARK|PYSPARK|JAVA|JDK|HADOOP|YARN|AWS|AZURE|GOOGLE|PYTHON|KRB5|XDG_STATE)\w*|PATH|HOME|LANG|TZ"
)
_LONGEST_FOLDER: Final = 70  # bytes: the path of a socket has at most 107
# Paths in a query are relative to the folder of whoever asks.
_PATHS: Final = re.compile(
    r"\b(parquet|json|csv|orc|text|avro|delta|binaryFile)\s*\.\s*`", re.IGNORECASE
)


def is_wanted() -> bool:
    """Whether servers may be used: on Linux, unless the user has switched them off."""
    return os.environ.get(SWITCH, "1") != "0" and hasattr(socket, "SO_PEERCRED")


def can_answer(query: str) -> bool:
    """Whether a query leaves no trace in a session, and needs nothing of whoever asks."""
    from ottla.pipeline.sql.checking import is_plain_query

    return _PATHS.search(query) is None and is_plain_query(query)


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
    what = [sys.executable, sys.version, __version__, __file__, dict(settings), environment]
    words = json.dumps(what, sort_keys=True)
    return runtime_folder() / f"sql-{hashlib.sha256(words.encode()).hexdigest()[:16]}.sock"


def answer(settings: Mapping[str, str], request: Mapping[str, Any]) -> None:
    """Have the server answer, started now if there is none, and print what it says."""
    path = socket_of(settings)
    connection = _connected(path)
    if connection is None:
        from ottla.cli.spark import waiting

        with waiting("Spark starts"), path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _connected(path)  # somebody else may have started it meanwhile
            if connection is None:
                _start(path, settings)
                note(
                    "Spark stays ready for the next query, for ten minutes; `ottla spark stop` ends "
                    f"it, {SWITCH}=0 does without"
                )
                connection = _connected(path)
        if connection is None:
            raise Failure("the Spark server that was started is gone; try again")
    with connection:
        for message in asked(connection, request):
            _print(message)


def _print(message: Mapping[str, Any]) -> None:
    match message:
        case {"table": [columns, rows]}:
            write_table(columns, rows)
        case {"lines": lines}:
            for line in lines:
                write_line(line)
        case {"note": text}:
            note(text)


def asked(connection: socket.socket, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The messages of an answer; Failure if it says that it failed, or ends early."""
    with connection.makefile("rwb") as stream:
        send(stream, request)
        for line in stream:
            message: dict[str, Any] = json.loads(line)
            if "failed" in message:
                raise Failure(message["failed"])
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
