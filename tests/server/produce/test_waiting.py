"""What a Produce request waits for before it is answered: the sync that `flush.messages` asks for, and
the in-sync replicas with acks=all."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, end_offset, fill, produce_request
from server_kit.gated_files import GatedFiles
from server_kit.wire import Wire

from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.store import boottime
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from ottla.record.batch import Record, build_batch
from ottla.replication.partition import Partition
from ottla.server.broker import Broker
from ottla.storage.files import Files
from ottla.storage.log.append import Append
from ottla.storage.log.log import Log

PATIENCE = 30.0
VERSIONS = [3, 9, 13]


def partition_of(broker: Broker, topic: Topic) -> Partition:
    return broker.partitions.by_name[topic.name][0]


def a_topic(inside: BrokerThread, wire: Wire, files: Files | None, **configs: str) -> Topic:
    """With one record, flushed; the syncs of its log go through `files` from now on."""
    topic = create_topic(wire, **configs)
    fill(wire, topic, batch_of(b"before"))
    flushed = threading.Event()

    def go_on(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        log = partition.log

        def look() -> None:
            if log.flushing is None and log.recovery_point == log.log_end_offset:
                if files is not None:
                    log.files = files
                flushed.set()
            else:
                broker.loop.call_later(0.005, look)

        broker.periodic_work._flush(log)
        look()

    inside.run(go_on)
    assert flushed.wait(PATIENCE)
    return topic


def send(wire: Wire, topic: Topic, value: bytes, version: int = 9, **settings: int) -> None:
    timeout_ms = settings.pop("timeout_ms", 10_000)
    request = produce_request(topic, (0, batch_of(value)), **settings)
    request.timeout_ms = timeout_ms
    wire.send(request, version)


def answer(wire: Wire, version: int = 9) -> PartitionProduceResponse:
    (only,) = wire.receive(ProduceResponse, version).responses[0].partition_responses
    return only


def is_answered(wire: Wire) -> bool:
    return bool(select.select([wire.sock], [], [], 0)[0])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
# A compacted topic looks at its records, so its appends go through a lane.
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_an_append_that_reaches_flush_messages_is_answered_after_the_sync(
    inside: BrokerThread, wire: Wire, files: GatedFiles, version: int, acks: int, policy: str
) -> None:
    topic = a_topic(inside, wire, files, flush_messages="1", cleanup_policy=policy)
    send(wire, topic, b"synced", version, acks=acks, timeout_ms=0)
    assert files.begun.acquire(timeout=PATIENCE)
    # An answer that came at once would be here before the sync began.
    assert not is_answered(wire)
    files.gate.set()
    done = answer(wire, version)
    assert (done.error_code, done.base_offset) == (0, 1)


def test_the_broker_serves_others_during_the_sync(
    inside: BrokerThread, connect: Callable[[], Wire], files: GatedFiles
) -> None:
    slow, quick = connect(), connect()
    topic = a_topic(inside, slow, files, flush_messages="1")
    send(slow, topic, b"synced")
    assert files.begun.acquire(timeout=PATIENCE)
    assert fill(quick, create_topic(quick), batch_of(b"other")) == [0]
    assert not is_answered(slow)
    files.gate.set()
    assert answer(slow).error_code == 0


def test_producers_share_a_sync(
    inside: BrokerThread, connect: Callable[[], Wire], files: GatedFiles
) -> None:
    wires = [connect() for _ in range(6)]
    topic = a_topic(inside, wires[0], files, flush_messages="1")
    send(wires[0], topic, b"first")
    assert files.begun.acquire(timeout=PATIENCE)
    for wire in wires[1:]:
        send(wire, topic, b"meanwhile")
    await_append(inside, topic, 7)
    assert files.syncs == 1
    assert not any(map(is_answered, wires))
    files.gate.set()
    assert {answer(wire).error_code for wire in wires} == {0}
    assert files.syncs == 2


def test_appends_before_the_number_is_reached_do_not_wait(
    inside: BrokerThread, wire: Wire, files: GatedFiles
) -> None:
    topic = a_topic(inside, wire, files, flush_messages="3")
    assert fill(wire, topic, batch_of(b"one"), batch_of(b"two")) == [1, 2]
    assert not files.syncs
    send(wire, topic, b"three")
    assert files.begun.acquire(timeout=PATIENCE)
    assert not is_answered(wire)
    files.gate.set()
    assert answer(wire).base_offset == 3


def test_without_acknowledgement_nobody_waits(
    inside: BrokerThread, wire: Wire, files: GatedFiles
) -> None:
    topic = a_topic(inside, wire, files, flush_messages="1")
    for _ in range(3):
        send(wire, topic, b"quiet", acks=0)
    assert end_offset(wire, topic) == 4


@pytest.mark.complains
@pytest.mark.parametrize("acks", [1, -1])
def test_a_sync_that_fails_is_told(
    inside: BrokerThread, wire: Wire, files: GatedFiles, acks: int
) -> None:
    topic = a_topic(inside, wire, files, flush_messages="1")
    files.broken = True
    send(wire, topic, b"lost", acks=acks)
    assert files.begun.acquire(timeout=PATIENCE)
    files.gate.set()
    assert answer(wire).error_code == ErrorCode.KAFKA_STORAGE_ERROR


# Replicas ---------------------------------------------------------------------------------------


OTHER = 77  # the broker with the other replica


@pytest.fixture
def replicated(inside: BrokerThread, wire: Wire) -> Topic:
    """A topic whose high watermark does not follow its end: another replica is in sync."""
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"before"))

    def add_replica(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        members = (broker.id, OTHER)
        partition.update(replace(state, replicas=members, isr=members, partition_epoch=1), 0)

    inside.run(add_replica)
    return topic


def advance(inside: BrokerThread, topic: Topic, offset: int) -> None:
    """The other replica has everything up to there."""

    def moved(broker: Broker) -> None:
        partition_of(broker, topic).fetched(OTHER, offset, 1, 0)

    inside.run(moved)


def await_append(inside: BrokerThread, topic: Topic, end: int) -> None:
    while inside.run(lambda broker: partition_of(broker, topic).log.log_end_offset) < end:
        pass


@pytest.mark.parametrize("version", VERSIONS)
def test_all_acks_wait_for_the_high_watermark(
    inside: BrokerThread, wire: Wire, replicated: Topic, version: int
) -> None:
    for value in (b"one", b"two"):
        send(wire, replicated, value, version, acks=-1)
    await_append(inside, replicated, 3)
    assert not is_answered(wire)
    advance(inside, replicated, 2)
    assert answer(wire, version).base_offset == 1
    assert not is_answered(wire)
    advance(inside, replicated, 3)
    assert answer(wire, version).base_offset == 2


def test_the_leaders_acknowledgement_does_not_wait(wire: Wire, replicated: Topic) -> None:
    send(wire, replicated, b"one", acks=1)
    assert answer(wire).base_offset == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_replicas_that_are_too_slow(
    inside: BrokerThread, wire: Wire, replicated: Topic, version: int
) -> None:
    """The partition that is committed succeeds, the other one has run out of time."""
    other = create_topic(wire)
    request = produce_request(replicated, (0, batch_of(b"late")), acks=-1)
    request.topic_data += produce_request(other, (0, batch_of(b"in time"))).topic_data
    request.timeout_ms = 20
    wire.send(request, version)
    response = wire.receive(ProduceResponse, version)
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    # It is in the log all the same, and nobody is left waiting for it.
    assert inside.run(lambda broker: partition_of(broker, replicated).log.log_end_offset) == 2
    assert not inside.run(lambda broker: partition_of(broker, replicated)._awaiting_commit.waiting)


@pytest.mark.parametrize("version", [9, 10, 13])
def test_a_leader_that_loses_its_office_refuses(
    inside: BrokerThread, wire: Wire, replicated: Topic, version: int
) -> None:
    send(wire, replicated, b"uncommitted", version, acks=-1)
    await_append(inside, replicated, 2)

    def move(broker: Broker) -> None:
        partition = partition_of(broker, replicated)
        state = broker.image.topics[replicated.name].partitions[0]
        partition.update(replace(state, leader=7, leader_epoch=state.leader_epoch + 1), 0)

    inside.run(move)
    refused = answer(wire, version)
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert refused.current_leader is not None
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (7, 1)


def test_a_deleted_topic_keeps_nobody_waiting(
    inside: BrokerThread, connect: Callable[[], Wire], wire: Wire, replicated: Topic
) -> None:
    send(wire, replicated, b"uncommitted", acks=-1)
    await_append(inside, replicated, 2)
    deleted = connect().call(
        DeleteTopicsRequest(topic_names=[replicated.name], timeout_ms=10_000),
        DeleteTopicsResponse,
        5,
    )
    assert deleted.responses[0].error_code == 0
    assert answer(wire).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# A leader that may have been deposed ------------------------------------------------------------------


class Contact:
    """When the metadata store last confirmed the broker's session, which lasts a minute without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._last: float | None = None
        monkeypatch.setattr(EmbeddedStore, "session_timeout", 60.0)
        monkeypatch.setattr(EmbeddedStore, "last_commit", property(lambda _: self._when()))

    def _when(self) -> float:
        return boottime() if self._last is None else self._last

    def lose(self) -> None:
        """As after the process stood still for longer than the session lasts."""
        self._last = boottime() - 61

    def find(self) -> None:
        self._last = None


@pytest.fixture
def contact(inside: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> Contact:
    made = Contact(monkeypatch)
    assert not inside.run(lambda broker: broker.membership.can_be_fenced)
    return made


def make_replicated(inside: BrokerThread, topic: Topic) -> None:
    def add_replica(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        partition.update(
            replace(state, replicas=(broker.id, OTHER), isr=(broker.id, OTHER), partition_epoch=1),
            0,
        )

    inside.run(add_replica)


@pytest.mark.parametrize("version", VERSIONS)
# A compacted topic looks at its records, so its appends go through a lane.
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_what_waited_for_a_sync_is_not_acknowledged_by_a_leader_that_can_be_fenced(
    inside: BrokerThread,
    wire: Wire,
    files: GatedFiles,
    contact: Contact,
    version: int,
    policy: str,
) -> None:
    topic = a_topic(inside, wire, files, flush_messages="1", cleanup_policy=policy)
    make_replicated(inside, topic)
    send(wire, topic, b"late", version, acks=1)
    assert files.begun.acquire(timeout=PATIENCE)
    contact.lose()
    files.gate.set()
    assert answer(wire, version).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    contact.find()
    send(wire, topic, b"in time", version, acks=1)
    assert answer(wire, version).error_code == 0


def test_nor_is_what_went_through_a_lane(
    inside: BrokerThread, wire: Wire, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"before"))
    make_replicated(inside, topic)

    def slow(broker: Broker) -> None:
        append = broker.lanes.append

        def held_up(*what: Any) -> None:
            contact.lose()
            append(*what)

        monkeypatch.setattr(broker.lanes, "append", held_up)
        broker.lanes.mark_slow(partition_of(broker, topic).log.folder, 10.0)

    inside.run(slow)
    send(wire, topic, b"late", acks=1)
    assert answer(wire).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert inside.run(lambda broker: partition_of(broker, topic).log.log_end_offset) == 2


def test_parts_of_a_request_that_waited_for_another_are_looked_at_again(
    inside: BrokerThread, wire: Wire, files: GatedFiles, contact: Contact
) -> None:
    """And a topic without other replicas is nobody else's to lead."""
    quick, single = create_topic(wire), create_topic(wire)
    slow = a_topic(inside, wire, files, flush_messages="1")
    for each in (quick, slow):
        make_replicated(inside, each)
    request = produce_request(quick, (0, batch_of(b"quick")), acks=1)
    for topic in (single, slow):
        request.topic_data += produce_request(topic, (0, batch_of(b"other"))).topic_data
    wire.send(request, 9)
    assert files.begun.acquire(timeout=PATIENCE)
    contact.lose()
    files.gate.set()
    response = wire.receive(ProduceResponse, 9)
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes == [refused, ErrorCode.NONE, refused]


def test_a_term_that_ended_meanwhile_acknowledges_nothing(
    inside: BrokerThread, wire: Wire, files: GatedFiles, contact: Contact
) -> None:
    """This broker is in touch again, and leads in another term, when the answer is ready."""
    quick = create_topic(wire)
    slow = a_topic(inside, wire, files, flush_messages="1")
    make_replicated(inside, quick)
    request = produce_request(quick, (0, batch_of(b"quick")), acks=1)
    request.topic_data += produce_request(slow, (0, batch_of(b"other"))).topic_data
    wire.send(request, 9)
    assert files.begun.acquire(timeout=PATIENCE)

    def lead_anew(broker: Broker) -> None:
        partition = partition_of(broker, quick)
        state = broker.image.topics[quick.name].partitions[0]
        partition.update(replace(state, replicas=partition.replicas, leader_epoch=2), 0)

    inside.run(lead_anew)
    files.gate.set()
    response = wire.receive(ProduceResponse, 9)
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


@pytest.mark.parametrize("acks", [1, -1])
def test_with_all_acks_it_does_not_matter(
    inside: BrokerThread, wire: Wire, files: GatedFiles, contact: Contact, acks: int
) -> None:
    """Who has fetched in this term has not let another lead: the in-sync replicas decide."""
    topic = a_topic(inside, wire, files, flush_messages="1")
    make_replicated(inside, topic)
    send(wire, topic, b"all have it", acks=acks)
    assert files.begun.acquire(timeout=PATIENCE)
    advance(inside, topic, 2)
    contact.lose()
    files.gate.set()
    expected = ErrorCode.NONE if acks == -1 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer(wire).error_code == expected


# A leader that is deposed while its disk writes ------------------------------------------------------


class GatedWrites:
    """Writes that threads do stand still until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        write = Log.write

        def held_up(log: Log, append: Append) -> None:
            self.begun.set()
            assert self.gate.wait(PATIENCE)
            write(log, append)

        monkeypatch.setattr(Log, "write", held_up)


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_written_when_another_led_already_is_not_acknowledged(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """The new leader has other records there, which are committed and flushed here before the
    producer's patience is at its end."""
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"before"))
    make_replicated(inside, topic)
    writes = GatedWrites(monkeypatch)

    def slow(broker: Broker) -> None:
        broker.lanes.mark_slow(partition_of(broker, topic).log.folder, 10.0)

    def depose(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        members = partition.replicas
        newer = replace(state, replicas=members, isr=members, leader=OTHER, leader_epoch=1)
        partition.update(newer, 0)

    def follow(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        assert partition.log.log_end_offset == 2
        partition.log.truncate_to(1, 0)
        theirs = build_batch([Record(1, 0, None, b"theirs", ())], base_offset=1, leader_epoch=1)
        partition.take(memoryview(theirs), 2, 0)
        broker.periodic_work._flush(partition.log)

    inside.run(slow)
    send(wire, topic, b"ours", acks=acks)
    assert writes.begun.wait(PATIENCE)
    inside.run(depose)
    writes.gate.set()
    inside.until(lambda broker: partition_of(broker, topic).lane is None)
    monkeypatch.undo()
    inside.run(follow)
    assert answer(wire).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
