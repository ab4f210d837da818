"""Kafka Streams restores a state store from a changelog from which records were deleted.

A restore ends when the consumer's position is where the changelog ended. Where only deleted records are
left before that, a position that stays behind them would keep the application from starting for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop_kit import toolchain
from interop_kit.clients.driver import DriverProcess

from ottla import Admin, Consumer, Producer
from ottla.client.positions import TopicPartition

pytestmark = pytest.mark.long

JAVA = toolchain.INTEROP / "java"
PATIENCE = 60.0
STREAMS = f"org.apache.kafka:kafka-streams:{toolchain.KAFKA_VERSION}"


@pytest.fixture(scope="module")
def command() -> list[str]:
    return toolchain.java_program(
        "restored-counts",
        [JAVA / "Lines.java", JAVA / "RestoredCounts.java"],
        "RestoredCounts",
        [STREAMS, toolchain.GSON],
    )


Start = Callable[[], Any]


@pytest.fixture
def start(command: list[str], broker, topic: str, tmp_path: Path) -> Start:
    """Starts the application for a while: a context in which it can be asked."""

    @contextmanager
    def running() -> Iterator[DriverProcess]:
        words = [*command, broker.bootstrap, f"app-{topic}", topic, str(tmp_path / "state")]
        program = DriverProcess(words, tmp_path / "streams.log")
        try:
            yield program
            program.request(command="close")
        finally:
            program.close()

    return running


def counts_when(program: DriverProcess, total: int) -> dict[str, Any]:
    """What the application tells as soon as it has counted so many records."""
    deadline = time.monotonic() + PATIENCE
    while True:
        told: dict[str, Any] = program.request(command="counts")
        if sum(told["counts"].values()) >= total:
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)  # another process decides when


@pytest.mark.parametrize(
    ("deleted", "left"), [((3, 4), {"a": 2, "b": 1}), ((0, 1, 2, 3, 4), {})], ids=["end", "all"]
)
def test_a_changelog_with_an_invisible_end(
    broker, topic: str, start: Start, deleted: tuple[int, ...], left: dict[str, int]
) -> None:
    changelog = f"app-{topic}-counts-changelog"
    place = TopicPartition(changelog, 0)
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic(topic, 1)
        for key in (b"a", b"b", b"a", b"a", b"b"):
            producer.send(topic, b"", key=key, partition=0)
        producer.flush()
        with start() as program:
            assert counts_when(program, 5) == {"counts": {"a": 3, "b": 2}, "restored": 0}
        with Consumer(broker.bootstrap) as consumer:
            keys = consumer.read(changelog)["key"].to_pylist()
        assert keys == [b"a", b"b", b"a", b"a", b"b"]
        assert admin.delete_records_at({place: deleted}) == {place: len(deleted)}
        with start() as program:
            assert counts_when(program, sum(left.values())) == {
                "counts": left,
                "restored": 5 - len(deleted),
            }
            # It goes on from what is left.
            producer.send(topic, b"", key=b"a", partition=0)
            producer.flush()
            told = counts_when(program, sum(left.values()) + 1)
            assert told["counts"]["a"] == left.get("a", 0) + 1
