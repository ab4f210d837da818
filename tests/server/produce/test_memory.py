"""Refused batches leave nothing behind: neither an exception nor a frame keeps them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, create_topic, produce_request
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import Record, build_batch
from ottla.server.broker import Broker
from ottla.server.handlers.records.produce import appending, handler

REFUSALS = 1000
BATCH_BYTES = 200_000
# A tenth of what would be kept if nothing were let go of.
ALLOWED = REFUSALS * BATCH_BYTES // 10


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What the garbage collector would find in the end must not be there in the first place."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def refuse(wire: Wire, topic: Topic, batch: bytes, count: int) -> set[int]:
    frame = wire.encode(produce_request(topic, (0, batch)), 9)
    codes = set()
    for _ in range(count):
        wire.send_raw(frame)
        (answer,) = wire.receive(ProduceResponse, 9).responses[0].partition_responses
        codes.add(answer.error_code)
    return codes


def at_once(_: BrokerThread, wire: Wire, __: pytest.MonkeyPatch) -> tuple[Topic, bytes, ErrorCode]:
    """Refused by its header, or by what the log knows of its producer."""
    batch = build_batch(
        [Record(0, 0, b"key", b"x" * BATCH_BYTES)],
        producer_id=9, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    topic = create_topic(wire)
    wire.call(produce_request(topic, (0, batch)), ProduceResponse, 9)
    gap = build_batch(
        [Record(0, 0, b"key", b"x" * BATCH_BYTES)],
        producer_id=9, producer_epoch=0, base_sequence=5,
    )  # fmt: skip
    return topic, gap, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def through_a_worker(
    _: BrokerThread, wire: Wire, __: pytest.MonkeyPatch
) -> tuple[Topic, bytes, ErrorCode]:
    batch = build_batch([Record(0, 0, None, b"x" * BATCH_BYTES)])
    return create_topic(wire, cleanup_policy="compact"), batch, ErrorCode.INVALID_RECORD


def through_a_slow_disk(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> tuple[Topic, bytes, ErrorCode]:
    chosen = at_once(inside, wire, monkeypatch)

    def slow(broker: Broker) -> None:
        monkeypatch.setattr(broker.lanes, "is_slow", lambda _: True)
        broker.lanes.slow["somewhere"] = float("inf")

    inside.run(slow)
    return chosen


Way = Callable[[BrokerThread, Wire, pytest.MonkeyPatch], tuple[Topic, bytes, ErrorCode]]


@pytest.mark.parametrize("way", [at_once, through_a_worker, through_a_slow_disk])
def test_memory_stays_flat_over_refusals(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    for module in (handler, appending):
        monkeypatch.setattr(module, "SLOW_WRITE_SECONDS", float("inf"))
    topic, batch, expected = way(inside, wire, monkeypatch)
    try:
        assert refuse(wire, topic, batch, 100) == {expected}
        before = resident()
        assert refuse(wire, topic, batch, REFUSALS) == {expected}
        assert resident() - before < ALLOWED
    finally:
        inside.run(lambda broker: broker.lanes.slow.clear())
