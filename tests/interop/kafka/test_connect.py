"""Kafka Connect, whose worker reads its own topics to their ends before it does anything.

It waits until the consumer's position is where the topic ended. Where only deleted records are left
before that, a position that stays behind them would keep the worker from starting for ever.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from interop_kit import toolchain

from ottla import Admin, Consumer
from ottla.client.positions import TopicPartition
from ottla.testing import free_port
from ottla.testing.guardian import end_with_this_program

pytestmark = pytest.mark.long

PATIENCE = 90.0
LOOK_SECONDS = 0.1


@pytest.fixture(scope="module")
def command() -> list[str]:
    return toolchain.java_program(
        "connect",
        [toolchain.INTEROP / "java" / "CountingSource.java"],
        "org.apache.kafka.connect.cli.ConnectDistributed",
        [f"org.apache.kafka:connect-runtime:{toolchain.KAFKA_VERSION}"],
    )


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_SECONDS)  # another process decides when


class Worker:
    """A distributed worker, and its REST interface."""

    def __init__(self, command: list[str], settings: Mapping[str, str], folder: Path) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        properties = folder / "worker.properties"
        given = {**settings, "listeners": self.address}
        properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        with (folder / "connect.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end_with_this_program(self.process.pid)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def connectors(self) -> list[str] | None:
        """None as long as the worker has not read its topics."""
        assert self.process.poll() is None, "the worker has ended"
        try:
            return sorted(self.ask("GET", "/connectors"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


Start = Callable[[], contextlib.AbstractContextManager[Worker]]


@pytest.fixture
def start(command: list[str], broker, topic: str, tmp_path: Path) -> Start:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": topic,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": "100",
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
    }
    for kind in ("config", "offset", "status"):
        settings[f"{kind}.storage.topic"] = f"{topic}-{kind}"
        settings[f"{kind}.storage.replication.factor"] = "1"

    @contextlib.contextmanager
    def running() -> Iterator[Worker]:
        worker = Worker(command, settings, tmp_path)
        try:
            until("the worker answers", lambda: worker.connectors() is not None)
            yield worker
        finally:
            worker.stop()

    return running


def rows(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic)
    columns = (table[name].to_pylist() for name in ("offset", "key", "value"))
    return list(zip(*columns, strict=True))


@pytest.mark.timeout(240, func_only=True)
def test_internal_topics_with_invisible_ends(broker, topic: str, start: Start) -> None:
    bootstrap = broker.bootstrap

    def numbers() -> list[int]:
        return [int(value or b"-1") for _, _, value in rows(bootstrap, topic)]

    def stored_numbers() -> list[tuple[int, int]]:
        """Offsets and contents of what the source has stored about where it is."""
        return [
            (offset, json.loads(value)["number"])
            for offset, _, value in rows(bootstrap, f"{topic}-offset")
            if value is not None
        ]

    with Admin(bootstrap) as admin:
        admin.create_topic(topic, 1)
        source = {"connector.class": "CountingSource", "tasks.max": "1", "topic": topic}
        with start() as worker:
            for count in ("5", "8"):
                worker.ask("PUT", "/connectors/counting/config", {**source, "count": count})
                until(
                    f"{count} numbers are written and noted",
                    lambda count=count: (  # type: ignore[misc]
                        len(numbers()) >= int(count)
                        and any(number == int(count) for _, number in stored_numbers())
                    ),
                )
            worker.ask(
                "POST",
                "/connectors",
                {
                    "name": "other",
                    "config": {**source, "count": "1"},
                    "initial_state": "STOPPED",
                },
            )
            until("both are known", lambda: worker.connectors() == ["counting", "other"])
        assert numbers() == list(range(1, 9))
        # The end of each topic: the second connector, where the first one was last, all states.
        ends = {
            "config": [
                offset
                for offset, key, _ in rows(bootstrap, f"{topic}-config")
                if key is not None and key.endswith(b"-other")
            ],
            "offset": [offset for offset, number in stored_numbers() if number > 5],
            "status": [offset for offset, _, _ in rows(bootstrap, f"{topic}-status")],
        }
        for kind, offsets in ends.items():
            place = TopicPartition(f"{topic}-{kind}", 0)
            last = rows(bootstrap, place.topic)[-1][0]
            assert last in offsets, f"the end of {kind} was to be deleted"
            assert admin.delete_records_at({place: offsets}) == {place: len(offsets)}
        with start() as worker:
            assert worker.connectors() == ["counting"]
            # From where it was, as far as that was not deleted.
            until("the source goes on", lambda: len(numbers()) >= 11)
            assert numbers() == [*range(1, 9), 6, 7, 8]
            until(
                "its state is known again",
                lambda: (
                    worker.ask("GET", "/connectors/counting/status")["connector"]["state"]
                    == "RUNNING"
                ),
            )
