"""A client in another language: a program that answers one JSON line for each JSON line it is sent.

    PROGRAM BOOTSTRAP
    > {"command": "create", "topic": T, "partitions": 2, "config": {"NAME": "VALUE"}}
    > {"command": "produce", "topic": T, "codec": "gzip", "acks": "all", "idempotent": false,
       "records": [RECORD, ...]}
    > {"command": "consume", "topic": T, "partition": 0, "count": 10,
       "start": {} | {"offset": N} | {"time": MS}, "timeout": MS}
    > {"command": "offsets", "topic": T, "partition": 0}
    > {"command": "offset_for_time", "topic": T, "partition": 0, "time": MS}
    > {"command": "read_to_end", "topic": T, "partition": 0, "timeout": MS}   (Java and franz-go only)
    > {"command": "delete", "topic": T}
    < {"result": ...} | {"error": "..."}

The program ends when its input does. It lives as long as the test session, so that a JVM starts once.
RECORD is described in records.py. The results: produce gives the list of offsets, consume the list of
records, offsets gives [first, next], offset_for_time an offset or null, read_to_end {"offsets": [...],
"position": N}.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop_kit.clients.client import EARLIEST, READ_TIMEOUT, Client, Start
from interop_kit.records import Record
from ottla.testing.guardian import end_with_this_program

ANSWER_TIMEOUT = 60.0


class DriverError(Exception):
    """What the foreign client complained about."""


class DriverProcess:
    """The program behind a DriverClient. One request at a time."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self.command = command
        self.log_path = log_path
        self._turn = threading.Lock()
        self._unread = b""
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        end_with_this_program(self.process.pid)

    def request(self, **fields: Any) -> Any:
        with self._turn:
            line = json.dumps(fields).encode() + b"\n"
            assert self.process.stdin is not None
            try:
                view = memoryview(line)
                while view:
                    view = view[self.process.stdin.write(view) :]
            except BrokenPipeError:
                raise DriverError(self._with_log("has ended")) from None
            answer = json.loads(self._read_line(time.monotonic() + ANSWER_TIMEOUT))
        if "error" in answer:
            raise DriverError(f"{fields['command']}: {answer['error']}\n{self._with_log('said')}")
        return answer["result"]

    def _read_line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.process.kill()
                    raise DriverError(self._with_log("did not answer"))
                chunk = os.read(output, 1 << 20)
                if not chunk:
                    raise DriverError(self._with_log("has ended"))
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _with_log(self, what: str) -> str:
        tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-25:])
        return f"{self.command[-2:]} {what}; on stderr:\n{tail}"

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class DriverClient(Client):
    """A client behind a program that speaks JSON lines."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._command = command
        self._log_path = log_path
        self._driver: DriverProcess | None = None

    def request(self, **fields: Any) -> Any:
        if self._driver is None or self._driver.process.poll() is not None:
            self._driver = DriverProcess(self._command, self._log_path)
        return self._driver.request(**fields)

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self.request(
            command="create", topic=topic, partitions=partitions, config=dict(config or {})
        )

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        offsets: list[int] = self.request(
            command="produce",
            topic=topic,
            codec=codec,
            acks=acks,
            idempotent=idempotent,
            records=[record.to_json() for record in records],
        )
        return offsets

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        found = self.request(
            command="consume",
            topic=topic,
            partition=partition,
            count=count,
            start=start.to_json(),
            timeout=int(READ_TIMEOUT * 1000),
        )
        return [Record.from_json(fields) for fields in found]

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        first, following = self.request(command="offsets", topic=topic, partition=partition)
        return first, following

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        offset: int | None = self.request(
            command="offset_for_time", topic=topic, partition=partition, time=timestamp
        )
        return offset

    def delete_topic(self, topic: str) -> None:
        self.request(command="delete", topic=topic)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
