"""What a broker does beside its requests: retention, lanes, and that neither ends for good."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fill,
    list_offset,
    now_ms,
    produce,
    produce_request,
    read_all,
)
from server_kit.wire import Wire

from ottla.protocol.messages.produce import ProduceResponse
from ottla.server.broker import Broker
from ottla.server.upkeep import periodic as periodic
from ottla.server.upkeep.compaction import RETRY_MS, Compactor
from ottla.storage.log.flush import FlushJob
from ottla.storage.logs import Logs

StartBroker = Callable[..., BrokerThread]
HOUR_MS = 3_600_000


def test_a_flush_without_room_is_not_tried_again_at_once(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it would fail again and again, as fast as it can."""
    attempts: list[FlushJob] = []
    failed = threading.Event()

    def run(self: FlushJob, names_last: bool = False) -> None:
        attempts.append(self)
        self.error = OSError(errno.ENOSPC, "no room")
        self.done = True
        failed.set()

    monkeypatch.setattr(periodic, "TICK_SECONDS", 1000.0)
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire, **{"flush.messages": "1"})
        with monkeypatch.context() as patch:
            patch.setattr(FlushJob, "run", run)
            wire.send(produce_request(topic, (0, batch_of(b"value"))), 9)
            assert failed.wait(30)
            broker.until(lambda inside: not inside.periodic_work._jobs)
            assert len(attempts) == 1
        # There is room again, and the clock's next turn.
        broker.run_async(broker.broker.periodic_work._tick())
        broker.until(lambda inside: inside.logs.get(topic.name, 0).recovery_point == 1)
        assert len(attempts) == 1


def test_a_log_that_cannot_be_compacted_for_want_of_descriptors_is_looked_at_again(
    start_broker: StartBroker,
) -> None:
    """Also by those who erase: it would keep what was deleted until the next start."""
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire)
        fill(wire, topic, batch_of(b"one"))

    def seconds_left(inside: Broker) -> float:
        compactor, opened = inside.compactor, inside.logs.get(topic.name, 0)
        compactor._failed(opened, OSError(errno.EMFILE, "too many"))
        assert compactor.uncleanable == {}
        return compactor._not_before[opened] - inside.loop.time()

    assert 0 < broker.run(seconds_left) <= RETRY_MS / 1000


@pytest.mark.complains
def test_a_round_of_retention_that_fails_is_not_the_last(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    rounds: list[int] = []
    done = threading.Event()

    def retention(self: Logs, now: int) -> Iterator[None]:
        rounds.append(now)
        if len(rounds) == 1:
            raise KeyError("a bug")
        done.set()
        yield None

    monkeypatch.setattr(Logs, "retention", retention)
    start_broker(settings={"log.retention.check.interval.ms": "10"})
    assert done.wait(30)
    assert any("retention" in line for line in complaints)


@pytest.mark.complains
def test_a_tick_that_fails_is_not_the_last(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    monkeypatch.setattr(periodic, "TICK_SECONDS", 0.01)
    rounds: list[int] = []
    done = threading.Event()

    def due(self: Logs, now: int) -> list[Any]:
        rounds.append(now)
        if len(rounds) == 1:
            raise KeyError("a bug")
        done.set()
        return []

    monkeypatch.setattr(Logs, "due", due)
    start_broker()
    assert done.wait(30)
    assert complaints


@pytest.mark.complains
def test_a_look_for_logs_to_compact_that_fails_is_not_the_last(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    looks: list[int] = []
    done = threading.Event()

    def erase_some(self: Compactor) -> bool:
        looks.append(1)
        if len(looks) == 1:
            raise IndexError("a bug")
        done.set()
        return False

    monkeypatch.setattr(Compactor, "_erase_some", erase_some)
    start_broker(settings={"log.cleaner.backoff.ms": "10"})
    assert done.wait(30)
    assert any("compact" in line for line in complaints)


def test_old_records_go_while_clients_are_served(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"log.retention.check.interval.ms": "20"})
    with broker.wire() as wire:
        topic = create_topic(wire, retention_ms="60000")
        fill(wire, topic, batch_of(b"old", timestamp=now_ms() - HOUR_MS))
        while list_offset(wire, topic, -2).offset == 0:
            assert fetch(wire, topic, end_offset(wire, topic)).error_code == 0
        assert (list_offset(wire, topic, -2).offset, end_offset(wire, topic)) == (1, 1)
        assert produce(wire, topic, batch_of(b"new")).base_offset == 1
        assert read_all(wire, topic, offset=1) == [b"new"]


@pytest.fixture
def slow_disk(inside: BrokerThread) -> Iterator[Callable[[str], threading.Event]]:
    """Makes appends to a topic's log wait for a free thread until the event is set."""
    gates: list[threading.Event] = []

    def hold(topic: str) -> threading.Event:
        gate = threading.Event()
        gates.append(gate)

        def work(broker: Broker) -> None:
            broker.lanes.mark_slow(broker.partitions.by_name[topic][0].log.folder, 1.0)
            for _ in range(broker.lanes.threads._max_workers):
                broker.lanes.threads.submit(gate.wait, 30)

        inside.run(work)
        return gate

    yield hold
    for gate in gates:
        gate.set()
    inside.run(lambda broker: broker.lanes.slow.clear())


def test_others_are_served_while_a_write_stands_still(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    slow_disk: Callable[[str], threading.Event],
) -> None:
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"first"))
    gate = slow_disk(topic.name)
    for value in (b"second", b"third"):
        wire.send(produce_request(topic, (0, batch_of(value))), 9)
    inside.until(lambda broker: bool(broker.lanes.open))
    other = connect()
    assert read_all(other, topic) == [b"first"]
    assert end_offset(other, topic) == 1
    create_topic(other)
    gate.set()
    offsets = [
        wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].base_offset
        for _ in range(2)
    ]
    assert offsets == [1, 2]
    assert read_all(wire, topic) == [b"first", b"second", b"third"]


def test_topic_deleted_while_a_write_stands_still(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    slow_disk: Callable[[str], threading.Event],
) -> None:
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"first"))
    gate = slow_disk(topic.name)
    wire.send(produce_request(topic, (0, batch_of(b"second"))), 9)
    inside.until(lambda broker: bool(broker.lanes.open))
    other = connect()
    other.call(DeleteTopicsRequest(topic_names=[topic.name]), DeleteTopicsResponse, 5)
    again = create_topic(other, name=topic.name)
    gate.set()
    answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
    assert answer.error_code in (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
    assert read_all(other, again) == []
    assert produce(other, again, batch_of(b"new")).base_offset == 0


def test_retention_while_a_write_stands_still(
    inside: BrokerThread, wire: Wire, slow_disk: Callable[[str], threading.Event]
) -> None:
    topic = create_topic(wire, retention_ms="60000")
    fill(wire, topic, batch_of(b"old", timestamp=now_ms() - HOUR_MS))
    gate = slow_disk(topic.name)
    wire.send(produce_request(topic, (0, batch_of(b"new"))), 9)
    inside.until(lambda broker: bool(broker.lanes.open))

    def retain(broker: Broker) -> None:
        for job in broker.logs.retention(now_ms()):
            if job is not None:
                job.run()
                broker.logs.finish(job)

    inside.run(retain)
    gate.set()
    answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 1)

    def folder(broker: Broker) -> list[str]:
        log = broker.partitions.by_name[topic.name][0].log
        return [segment.path for segment in log.segments]

    import os

    assert all(os.path.exists(path) for path in inside.run(folder)), (
        "an acknowledged record is gone"
    )
