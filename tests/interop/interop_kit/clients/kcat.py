"""kcat, one process for each thing it is asked."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from itertools import groupby
from tempfile import TemporaryFile

from interop_kit.clients.client import EARLIEST, READ_TIMEOUT, Client, Start
from interop_kit.records import Record

# What stands between key and value on kcat's input. The records that kcat is given are printable.
KEY_END = "\x1f"


class KcatClient(Client):
    def __init__(self, program: str, bootstrap: str, broker_version: str | None = None) -> None:
        """With `broker_version` it takes the broker for one of that age, and does not ask."""
        self.program = program
        self.bootstrap = bootstrap
        self.settings: dict[str, str] = {}
        if broker_version is not None:
            self.settings = {
                "api.version.request": "false",
                "broker.version.fallback": broker_version,
            }

    def _command(self, *arguments: str, **settings: str) -> list[str]:
        command = [self.program, "-b", self.bootstrap, *arguments]
        named = {name.replace("_", "."): value for name, value in settings.items()}
        for name, value in {**self.settings, **named}.items():
            command += ["-X", f"{name}={value}"]
        return command

    def _run(self, command: list[str], given: str = "") -> str:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        raise NotImplementedError("kcat creates topics only by writing to them")

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        def call(record: Record) -> tuple[object, ...]:
            return record.partition, record.headers, record.value is None

        by_partition = sorted(records, key=lambda record: record.partition)
        for (partition, headers, null_value), run in groupby(by_partition, key=call):
            arguments = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-K", KEY_END]
            for name, value in headers:  # type: ignore[attr-defined]
                # A header without an equals sign is one whose value is null.
                arguments += ["-H", name if value is None else f"{name}={value.decode()}"]
            if null_value:
                arguments.append("-Z")
            lines = [
                (
                    ""
                    if record.key is None and not null_value
                    else (record.key or b"").decode() + KEY_END
                )
                + (record.value or b"").decode()
                + "\n"
                for record in run
            ]
            command = self._command(
                *arguments,
                acks=acks,
                enable_idempotence=str(idempotent).lower(),
                linger_ms="50",
                message_timeout_ms="30000",
            )
            self._run(command, "".join(lines))
        return [-1] * len(records)  # kcat tells nobody what offsets it was given

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        place = "beginning"
        if start.time is not None:
            place = f"s@{start.time}"
        elif start.offset is not None:
            place = str(start.offset)
        # -E: a broker that went away may come back.
        command = self._command(
            "-C", "-t", topic, "-p", str(partition), "-o", place, "-c", str(count),
            "-J", "-u", "-q", "-E",
            fetch_wait_max_ms="100",
        )  # fmt: skip
        with TemporaryFile("w+") as output, TemporaryFile("w+") as complaints:
            process = subprocess.Popen(command, stdout=output, stderr=complaints)
            try:
                status = process.wait(READ_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            output.seek(0)
            complaints.seek(0)
            found = [json_record(json.loads(line)) for line in output if line.endswith("}\n")]
            # What was read until it was ended for want of more is an answer. One that gave up is none.
            assert status in (0, -signal.SIGKILL), complaints.read()
        return found

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        return self._query(topic, partition, -2), self._query(topic, partition, -1)

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        offset = self._query(topic, partition, timestamp)
        return None if offset < 0 else offset

    def _query(self, topic: str, partition: int, timestamp: int) -> int:
        # The answer: topic [0] offset 5
        said = self._run(self._command("-Q", "-t", f"{topic}:{partition}:{timestamp}"))
        return int(said.split()[-1])

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError("kcat deletes no topics")

    def listing(self) -> dict[str, object]:
        """What `kcat -L -J` says about brokers and topics."""
        listing: dict[str, object] = json.loads(self._run(self._command("-L", "-J")))
        return listing


def json_record(fields: dict[str, object]) -> Record:
    headers = fields.get("headers") or []
    assert isinstance(headers, list)
    pairs = zip(headers[::2], headers[1::2], strict=True)
    return Record(
        value=text_bytes(fields["payload"]),
        key=text_bytes(fields["key"]),
        headers=tuple((name, text_bytes(value)) for name, value in pairs),
        timestamp=as_int(fields.get("ts", -1)),
        partition=as_int(fields["partition"]),
        offset=as_int(fields["offset"]),
    )


def text_bytes(text: object) -> bytes | None:
    return None if text is None else str(text).encode()


def as_int(number: object) -> int:
    assert isinstance(number, int)
    return number
