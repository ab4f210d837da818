"""What a leader makes of the requests of its followers: positions, epochs, offsets out of range; and
what waits for them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch_request,
    fill,
    list_offset,
    now_ms,
    offsets_of,
    produce_request,
)
from server_kit.gated_files import GatedFiles
from server_kit.wire import Wire

from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import ClusterImage, Endpoint, RegisteredBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_records_at import (
    DeletedRange,
    DeleteRecordsAtPartition,
    DeleteRecordsAtRequest,
    DeleteRecordsAtResponse,
    DeleteRecordsAtTopic,
)
from ottla.protocol.messages.fetch import FetchResponse, PartitionData, ReplicaState
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from ottla.record.batch import Record, build_batch, headers
from ottla.replication.following import whole_batches
from ottla.replication.partition import SUSPICIOUS_REPEATS, Partition
from ottla.server.broker import Broker

OTHER = 77  # the broker with the other replica
VERSION = 17
EPOCH = 5


def partition_of(broker: Broker, topic: Topic) -> Partition:
    return broker.partitions.by_name[topic.name][0]


def set_state(
    inside: BrokerThread, topic: Topic, *, isr: tuple[int, ...] | None = None, epoch: int = EPOCH
) -> None:
    """A partition led here in `epoch`, with a replica on another broker."""

    def change(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        members = (broker.id, OTHER)
        newer = replace(
            state,
            replicas=members,
            isr=members if isr is None else isr,
            leader_epoch=epoch,
            partition_epoch=partition.partition_epoch + 1,
        )
        partition.update(newer, 0)

    inside.run(change)


@pytest.fixture
def topic(inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Five records, all of them committed before the other replica came."""
    made = create_topic(wire)
    fill(wire, made, *(batch_of(b"%d" % each) for each in range(5)))
    set_state(inside, made)
    inside.run(lambda broker: monkeypatch.setattr(broker.partitions, "is_alive", lambda _: True))
    return made


def replica_fetch(
    wire: Wire, topic: Topic, offset: int, *, start: int = 0, epoch: int = EPOCH, last: int = -1
) -> PartitionData:
    """As the follower asks."""
    request = fetch_request(topic, (0, offset), current_leader_epoch=epoch, last_fetched_epoch=last)
    request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
    request.topics[0].partitions[0].log_start_offset = start
    (answer,) = wire.call(request, FetchResponse, VERSION).responses[0].partitions
    return answer


def known_end(inside: BrokerThread, topic: Topic) -> int:
    """Up to where the leader believes the follower to be."""
    return inside.run(lambda broker: partition_of(broker, topic).followers[OTHER].end_offset)


# An answer on its way ---------------------------------------------------------------------------


def test_a_follower_takes_nothing_that_its_leader_wrote_as_somebody_elses_follower(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    """Large answers are sent from the log's file. While one waits for its socket the leader is deposed,
    its log cut off and filled again, with batches that begin at the same places."""
    topic = create_topic(wire)
    record, count = Record(0, now_ms(), None, bytes(800_000), ()), 16
    fill(wire, topic, *[bytes(build_batch([record]))] * count)
    set_state(inside, topic)
    slow = connect()
    slow.sock.close()
    slow.sock = socket.socket()
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    slow.sock.settimeout(20)
    slow.sock.connect(wire.sock.getpeername())
    request = fetch_request(topic, (0, 0), current_leader_epoch=EPOCH)
    request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
    slow.send(request, VERSION)
    inside.until(lambda broker: any(each.out_bytes for each in broker.reactor.connections))

    def follow_another(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        members = partition.replicas
        newer = replace(state, replicas=members, isr=members, leader=OTHER, leader_epoch=EPOCH + 1)
        partition.update(newer, 0)
        partition.log.truncate_to(0, 0)
        for offset in range(count):
            theirs = build_batch(
                [record._replace(offset=offset)], base_offset=offset, leader_epoch=EPOCH + 1
            )
            partition.take(memoryview(theirs), 0, 0)

    inside.run(follow_another)
    (answer,) = slow.receive(FetchResponse, VERSION).responses[0].partitions

    def epochs(batches: bytes | memoryview) -> list[int]:
        return [int.from_bytes(batches[at + 12 : at + 16]) for at, _ in headers(batches)]

    sent = epochs(answer.records)
    assert len(sent) == count
    assert sent[-1] == EPOCH + 1, "everything was sent before the log was cut"
    assert epochs(whole_batches(answer.records, EPOCH)) == [0] * sent.index(EPOCH + 1)


# Positions ----------------------------------------------------------------------------------------


def test_a_follower_reads_to_the_end_and_moves_the_high_watermark(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=-1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 6)
    follower = connect()
    found = replica_fetch(follower, topic, 3)
    assert (found.error_code, found.high_watermark) == (0, 5)
    assert offsets_of(found.records) == [3, 4, 5]
    assert replica_fetch(follower, topic, 6).high_watermark == 6
    (acknowledged,) = wire.receive(ProduceResponse, 9).responses[0].partition_responses
    assert (acknowledged.error_code, acknowledged.base_offset) == (0, 5)


def test_followers_get_the_bytes_of_deleted_records_and_marks(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    """As the log has them: a follower hides, and erases, by its own marks."""
    topic = create_topic(wire)
    fill(wire, topic, *(batch_of(b"%d" % each) for each in range(5)))
    ranges = [DeletedRange(first_offset=1, last_offset=2)]
    part = DeleteRecordsAtPartition(partition_index=0, ranges=ranges)
    wanted = DeleteRecordsAtTopic(name=topic.name, partitions=[part])
    request = DeleteRecordsAtRequest(topics=[wanted], timeout_ms=20_000)
    wire.call(request, DeleteRecordsAtResponse, 0)
    consumers = wire.call(fetch_request(topic, (0, 0)), FetchResponse, VERSION)
    assert offsets_of(consumers.responses[0].partitions[0].records) == [0, 3, 4]

    def stored(broker: Broker) -> bytes:
        piece = partition_of(broker, topic).log.read(0, 1 << 20, 1 << 20)
        assert piece is not None
        return piece.read()

    whole = inside.run(stored)
    set_state(inside, topic)
    found = replica_fetch(connect(), topic, 0)
    assert found.error_code == 0
    assert bytes(found.records) == whole
    assert [header.last_offset for _, header in headers(whole)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_followers_of_another_epoch_are_told_so_and_do_not_count(
    inside: BrokerThread, wire: Wire, topic: Topic, epoch: int, error: ErrorCode
) -> None:
    found = replica_fetch(wire, topic, 5, epoch=epoch)
    assert found.error_code == error
    assert not found.records
    assert known_end(inside, topic) == -1
    assert replica_fetch(wire, topic, 5).error_code == 0
    assert known_end(inside, topic) == 5


def test_a_broker_without_a_replica_is_refused(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    request = fetch_request(topic, (0, 5), current_leader_epoch=EPOCH)
    request.replica_state = ReplicaState(replica_id=OTHER + 1, replica_epoch=1)
    (answer,) = wire.call(request, FetchResponse, VERSION).responses[0].partitions
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert known_end(inside, topic) == -1


@pytest.mark.parametrize("offset", [1, 6])
@pytest.mark.parametrize("last", [-1, 0])
def test_a_follower_out_of_range_is_told_so_and_does_not_count(
    inside: BrokerThread, wire: Wire, topic: Topic, offset: int, last: int
) -> None:
    """Before the log's start, and beyond its end."""
    inside.run(lambda broker: partition_of(broker, topic).delete_before(2))
    found = replica_fetch(wire, topic, offset, last=last)
    if last >= 0 and offset == 6:
        # It brings the epoch of its last batch: where that ends here is the better answer.
        assert found.diverging_epoch is not None
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 5)
    else:
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert known_end(inside, topic) == -1
    # What it asks next: a replica is told the log's end, a consumer the high watermark.
    ends = [list_offset_of_replica(wire, topic, timestamp) for timestamp in (-2, -1)]
    assert ends == [2, 5]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [4, 12, VERSION])
def test_a_new_leader_tells_no_high_watermark_that_may_go_back(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    topic: Topic,
    isolation: int,
    version: int,
) -> None:
    """The leader before it may have told its clients that a sixth record is committed, which this one
    has, and does not know to be."""
    wire.call(produce_request(topic, (0, batch_of(b"5")), acks=1), ProduceResponse, 9)
    set_state(inside, topic, epoch=EPOCH + 1)

    def told() -> tuple[int, int, int, list[int]]:
        request = fetch_request(topic, (0, 3))
        request.isolation_level = isolation
        (answer,) = wire.call(request, FetchResponse, version).responses[0].partitions
        return (
            answer.error_code,
            answer.high_watermark,
            answer.last_stable_offset,
            offsets_of(answer.records),
        )

    # What is known to be committed is there to be read all the while.
    assert told() == (0, -1, -1, [3, 4])
    found = replica_fetch(connect(), topic, 6, epoch=EPOCH + 1)
    assert found.high_watermark == 6
    assert told() == (0, 6, 6, [3, 4, 5])


# Logs that part: the leader has five records of epoch 0, and one of its own term -------------------


@pytest.fixture
def parted(inside: BrokerThread, wire: Wire, topic: Topic) -> Topic:
    """The follower is not in sync, and has another record in the place of the leader's last."""
    set_state(inside, topic, isr=(inside.run(lambda broker: broker.id),))
    wire.call(produce_request(topic, (0, batch_of(b"5")), acks=-1), ProduceResponse, 9)
    assert inside.run(lambda broker: partition_of(broker, topic).log.high_watermark) == 6
    inside.run(
        lambda broker: setattr(broker.partitions, "may_be_in_sync", lambda *_: True),
    )
    return topic


def wanted_isr(inside: BrokerThread, topic: Topic) -> set[int]:
    wanted = inside.run(lambda broker: partition_of(broker, topic).wanted_isr)
    return set(wanted or ())


@pytest.fixture
def asked(inside: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """Partitions that want another in-sync set; nobody decides on it."""
    found: list[Partition] = []
    inside.run(lambda broker: monkeypatch.setattr(broker.partitions, "isr_wanted", found.append))
    return found


@pytest.mark.parametrize("last", [0, EPOCH - 2])
def test_a_follower_whose_log_parts_does_not_count(
    inside: BrokerThread, wire: Wire, parted: Topic, asked: list[Partition], last: int
) -> None:
    """Its end is the leader's, its last record is not: were it let into the in-sync set, it could be
    elected without what was committed."""
    found = replica_fetch(wire, parted, 6, last=last)
    assert found.diverging_epoch is not None
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 5)
    assert known_end(inside, parted) == -1
    assert asked == []
    # It has cut its log off there, and what it has counts.
    assert replica_fetch(wire, parted, 5, last=0).error_code == 0
    assert known_end(inside, parted) == 5
    assert asked == []
    replica_fetch(wire, parted, 6, last=EPOCH)
    assert known_end(inside, parted) == 6
    assert wanted_isr(inside, parted) == {OTHER, inside.run(lambda broker: broker.id)}


def test_a_follower_in_sync_whose_log_parts_commits_nothing(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    """As after another replica was given back its leadership while producers wrote."""
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=-1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 6)
    follower = connect()
    assert replica_fetch(follower, topic, 6, last=0).diverging_epoch is not None
    assert inside.run(lambda broker: partition_of(broker, topic).log.high_watermark) == 5
    replica_fetch(follower, topic, 6, last=EPOCH)
    assert acknowledged(wire).base_offset == 5


def test_a_session_and_a_repeated_request_count_as_any_other(
    inside: BrokerThread,
    wire: Wire,
    parted: Topic,
    asked: list[Partition],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions that the request repeats from the one before it, or that its session remembers."""
    monkeypatch.setattr("ottla.server.sessions.NOTE_ALL_MS", 0)
    session = 0

    def fetch(number: int, *positions: tuple[int, int]) -> None:
        nonlocal session
        request = fetch_request(
            parted,
            *positions,
            current_leader_epoch=EPOCH,
            last_fetched_epoch=0,
            session=(session, number),
            max_wait_ms=0,
        )
        request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
        session = wire.call(request, FetchResponse, VERSION).session_id

    fetch(0, (0, 4))
    assert known_end(inside, parted) == 4
    fetch(1, (0, 5))
    assert known_end(inside, parted) == 5
    # The same bytes but for the offset: known from the request before it.
    fetch(2, (0, 6))
    fetch(3)
    fetch(4)
    assert known_end(inside, parted) == 5
    assert asked == []
    fetch(5, (0, 4))
    assert known_end(inside, parted) == 4


def test_a_follower_is_told_the_end_of_the_log_and_a_consumer_the_high_watermark(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 6)
    other = connect()
    assert list_offset_of_replica(other, topic, -1) == 6
    replica_fetch(other, topic, 5)
    assert list_offset(other, topic, -1).offset == 5


@pytest.mark.parametrize(
    ("version", "error"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
@pytest.mark.parametrize("timestamp", [-1, 0])
def test_a_new_leader_names_no_end_before_it_knows_what_was_committed(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    topic: Topic,
    version: int,
    error: ErrorCode,
    timestamp: int,
) -> None:
    """Consumers may have read further than its high watermark (KIP-207)."""
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 6)
    consumer, epoch = connect(), EPOCH + 1
    set_state(inside, topic, epoch=epoch)
    refused = list_offset(consumer, topic, timestamp, version=version)
    assert (refused.error_code, refused.offset) == (error, -1)
    # Where it begins is no question, and followers have to know where it ends.
    assert list_offset(consumer, topic, -2, version=version).offset == 0
    assert list_offset_of_replica(consumer, topic, -1, epoch) == 6
    replica_fetch(consumer, topic, 6, epoch=epoch)
    found = list_offset(consumer, topic, timestamp, version=version)
    assert (found.error_code, found.offset) == (0, 6 if timestamp == -1 else 0)


def list_offset_of_replica(wire: Wire, topic: Topic, timestamp: int, epoch: int = EPOCH) -> int:
    wanted = ListOffsetsPartition(
        partition_index=0, current_leader_epoch=epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=OTHER, topics=[ListOffsetsTopic(name=topic.name, partitions=[wanted])]
    )
    (answer,) = wire.call(request, ListOffsetsResponse, 6).topics[0].partitions
    assert answer.error_code == 0
    return answer.offset


# Who leads instead (KIP-951) ------------------------------------------------------------------------

ELSEWHERE = Endpoint("PLAINTEXT", "elsewhere.example", 9192, "PLAINTEXT")


@pytest.fixture
def led_elsewhere(inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Another broker leads the partition in the next epoch, and this one knows where it is."""
    leader = RegisteredBroker(id=OTHER, epoch=1, rack="b", endpoints=(ELSEWHERE,))

    def image(membership: Membership) -> ClusterImage:
        known = membership.follower.image
        return replace(known, brokers={**known.brokers, OTHER: leader})

    monkeypatch.setattr(Membership, "image", property(image))

    def follow(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        newer = replace(
            broker.image.topics[topic.name].partitions[0],
            replicas=(broker.id, OTHER),
            isr=(broker.id, OTHER),
            leader=OTHER,
            leader_epoch=EPOCH + 1,
            partition_epoch=partition.partition_epoch + 1,
        )
        partition.update(newer, 0)

    inside.run(follow)
    return topic


@pytest.mark.parametrize("version", [11, 12, 15, 16, 17])
@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (EPOCH, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_a_fetch_is_told_who_leads_instead_and_where(
    wire: Wire, led_elsewhere: Topic, version: int, epoch: int, error: ErrorCode
) -> None:
    request = fetch_request(led_elsewhere, (0, 3), current_leader_epoch=epoch)
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        # Consumers may read from followers; who wants the leader is a replica.
        if version >= 15:
            request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
        else:
            request.replica_id = OTHER
    answer = wire.call(request, FetchResponse, version)
    (refused,) = answer.responses[0].partitions
    assert (refused.error_code, len(refused.records or b"")) == (error, 0)
    hint = refused.current_leader
    expected = (OTHER, EPOCH + 1) if version >= 12 else None
    assert (None if hint is None else (hint.leader_id, hint.leader_epoch)) == expected
    where = [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
    assert where == ([(OTHER, ELSEWHERE.host, ELSEWHERE.port, "b")] if version >= 16 else [])


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_write_is_told_who_leads_instead_and_where(
    wire: Wire, led_elsewhere: Topic, version: int
) -> None:
    request = produce_request(led_elsewhere, (0, batch_of(b"5")), acks=-1)
    answer = wire.call(request, ProduceResponse, version)
    (refused,) = answer.responses[0].partition_responses
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    hint = refused.current_leader
    expected = (OTHER, EPOCH + 1) if version >= 10 else None
    assert (None if hint is None else (hint.leader_id, hint.leader_epoch)) == expected
    where = [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
    assert where == ([(OTHER, ELSEWHERE.host, ELSEWHERE.port, "b")] if version >= 10 else [])


# min.insync.replicas --------------------------------------------------------------------------------


def wants_two(inside: BrokerThread, topic: Topic) -> None:
    def change(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        partition.configure(replace(partition.config, min_insync_replicas=2))

    inside.run(change)


def acknowledged(wire: Wire) -> PartitionProduceResponse:
    (answer,) = wire.receive(ProduceResponse, 9).responses[0].partition_responses
    return answer


def test_too_few_in_sync_before_the_append(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    wants_two(inside, topic)
    set_state(inside, topic, isr=(inside.run(lambda broker: broker.id),))
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=-1), 9)
    assert acknowledged(wire).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert inside.run(lambda broker: partition_of(broker, topic).log.log_end_offset) == 5


def test_too_few_in_sync_after_the_append(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    """The high watermark stands still with one too few, and goes on when the other is back."""
    wants_two(inside, topic)
    wire.send(produce_request(topic, (0, batch_of(b"5")), acks=-1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 6)
    set_state(inside, topic, isr=(inside.run(lambda broker: broker.id),))

    def look(broker: Broker) -> tuple[int, int]:
        partition = partition_of(broker, topic)
        return partition.log.high_watermark, len(partition._awaiting_commit.waiting)

    assert inside.run(look) == (5, 1)
    set_state(inside, topic)
    inside.run(lambda broker: partition_of(broker, topic).fetched(OTHER, 6, 1, 0))
    answer = acknowledged(wire)
    assert (answer.error_code, answer.base_offset) == (0, 5)


def test_too_few_in_sync_when_the_flush_is_done(
    inside: BrokerThread, wire: Wire, files: GatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicated, and then one of the two that have it leaves before it is flushed."""
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"0"))
    set_state(inside, topic)
    wants_two(inside, topic)

    def flushes(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        partition.configure(replace(partition.config, flush_messages=1))
        partition.log.flush(1)
        monkeypatch.setattr(partition.log, "files", files)

    inside.run(flushes)
    wire.send(produce_request(topic, (0, batch_of(b"1")), acks=-1), 9)
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == 2)
    inside.run(lambda broker: partition_of(broker, topic).fetched(OTHER, 2, 1, 0))
    set_state(inside, topic, isr=(inside.run(lambda broker: broker.id),))
    files.gate.set()
    assert acknowledged(wire).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


# DeleteRecords --------------------------------------------------------------------------------------


def begin_deletion(wire: Wire, topic: Topic, offset: int, timeout_ms: int = 20_000) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name=topic.name, partitions=[wanted])]
    wire.send(DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms), 2)


def deleted(wire: Wire) -> DeleteRecordsPartitionResult:
    (answer,) = wire.receive(DeleteRecordsResponse, 2).topics[0].partitions
    return answer


def until_waiting(inside: BrokerThread, topic: Topic) -> None:
    inside.until(lambda broker: bool(partition_of(broker, topic)._awaiting_deletion.waiting))


def test_a_deletion_waits_for_the_replicas(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    follower = connect()
    replica_fetch(follower, topic, 5)
    begin_deletion(wire, topic, 3)
    until_waiting(inside, topic)
    assert replica_fetch(follower, topic, 5, start=2).log_start_offset == 3
    until_waiting(inside, topic)
    replica_fetch(follower, topic, 5, start=3)
    answer = deleted(wire)
    assert (answer.error_code, answer.low_watermark) == (0, 3)
    assert not inside.run(lambda broker: partition_of(broker, topic)._awaiting_deletion.waiting)


def test_replicas_that_do_not_follow_in_time(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    replica_fetch(connect(), topic, 5, start=1)
    begin_deletion(wire, topic, 3, timeout_ms=20)
    answer = deleted(wire)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 1)
    assert list_offset(wire, topic, -2).offset == 3
    assert not inside.run(lambda broker: partition_of(broker, topic)._awaiting_deletion.waiting)


def test_replicas_of_dead_brokers_are_not_waited_for(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch, topic: Topic
) -> None:
    begin_deletion(wire, topic, 3)
    until_waiting(inside, topic)

    def die(broker: Broker) -> None:
        monkeypatch.setattr(broker.partitions, "is_alive", lambda _: False)
        partition_of(broker, topic).look_at_starts()

    inside.run(die)
    answer = deleted(wire)
    assert (answer.error_code, answer.low_watermark) == (0, 3)


def test_a_deletion_whose_leader_is_deposed(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    begin_deletion(wire, topic, 3)
    until_waiting(inside, topic)

    def depose(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        state = broker.image.topics[topic.name].partitions[0]
        partition.update(replace(state, leader=OTHER, leader_epoch=EPOCH + 1), 0)

    inside.run(depose)
    assert deleted(wire).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_waits_learns_of_a_deletion_at_once(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    follower = connect()
    request = fetch_request(topic, (0, 5), current_leader_epoch=EPOCH, session=(0, 0))
    request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
    request.topics[0].partitions[0].log_start_offset = 0
    first = follower.call(request, FetchResponse, VERSION)
    again = fetch_request(topic, session=(first.session_id, 1), max_wait_ms=1_000_000)
    again.replica_state = request.replica_state
    follower.send(again, VERSION)
    inside.until(lambda broker: bool(partition_of(broker, topic).replica_waiters))
    begin_deletion(wire, topic, 4)
    (told,) = follower.receive(FetchResponse, VERSION).responses[0].partitions
    assert told.log_start_offset == 4


@pytest.mark.parametrize(("tell_all_ms", "max_wait_ms"), [(1_000_000, 1), (0, 0)])
def test_a_follower_that_has_everything_learns_the_high_watermark(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    tell_all_ms: int,
    max_wait_ms: int,
) -> None:
    """Consumers that read from it would not see the last records otherwise, until others follow."""
    monkeypatch.setattr("ottla.server.sessions.WATERMARKS_MS", tell_all_ms)
    follower = connect()
    session = 0

    def fetch(number: int, offset: int) -> list[PartitionData]:
        nonlocal session
        request = fetch_request(
            topic,
            (0, offset),
            current_leader_epoch=EPOCH,
            session=(session, number),
            max_wait_ms=max_wait_ms,
        )
        request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=1)
        answer = follower.call(request, FetchResponse, VERSION)
        session = answer.session_id
        return [each for one in answer.responses for each in one.partitions]

    assert [each.high_watermark for each in fetch(0, 5)] == [5]
    wire.call(produce_request(topic, (0, batch_of(b"5")), acks=1), ProduceResponse, 9)
    assert [each.high_watermark for each in fetch(1, 5)] == [5]
    assert [each.high_watermark for each in fetch(2, 6)] == [6]
    assert fetch(3, 6) == []


def test_a_smaller_set_does_not_commit_with_the_minimum_of_before(
    inside: BrokerThread, wire: Wire, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minimum was raised, and a follower went away: who went away may lead, so nothing that it
    does not have may be committed. One image may tell of both."""
    wire.call(produce_request(topic, (0, batch_of(b"5")), acks=1), ProduceResponse, 9)

    def shrink(broker: Broker) -> tuple[int, bool]:
        partition = partition_of(broker, topic)
        config = replace(partition.config, min_insync_replicas=2)
        monkeypatch.setattr(broker.partitions, "_config_of", lambda _: config)
        known = broker.image.topics[topic.name]
        state = replace(
            known.partitions[0],
            replicas=partition.replicas,
            isr=(broker.id,),
            leader_epoch=EPOCH,
            partition_epoch=partition.partition_epoch + 1,
        )
        broker.partitions.put(replace(known, partitions=(state, *known.partitions[1:])))
        return partition.log.high_watermark, partition.under_min_isr

    assert inside.run(shrink) == (5, True)


# Damage ---------------------------------------------------------------------------------------------


@pytest.mark.complains
def test_a_leader_looks_at_a_batch_that_its_follower_does_not_get_past(
    inside: BrokerThread, wire: Wire, topic: Topic, complaints: list[str]
) -> None:
    def damage(broker: Broker) -> None:
        log = partition_of(broker, topic).log
        piece = log.read(3, 0, 5)
        assert piece is not None
        with open(log.active.path, "r+b") as file:
            file.seek(piece.position + piece.length - 1)
            file.write(b"?")

    def told() -> list[str]:
        return [line for line in complaints if "found by a follower" in line]

    for _ in range(SUSPICIOUS_REPEATS + 1):
        replica_fetch(wire, topic, 3)
    inside.until(lambda broker: not broker.repairs._suspected)
    assert told() == []
    inside.run(damage)
    while not told():
        replica_fetch(wire, topic, 3)
    assert f"topic={topic.name} partition=0 offset=3" in told()[0]
    # The other replica's broker is not there to take over.
    inside.until(lambda _: any("left as it is" in line for line in complaints))


def test_a_broker_that_has_registered_again_follows_its_leaders(
    inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may have taken it in before it knew its epoch: no other news need come."""
    followed: list[Partition] = []

    def register(broker: Broker) -> None:
        monkeypatch.setattr(broker.replicas, "role_changed", followed.append)
        broker.membership.on_registered()

    inside.run(register)
    assert inside.run(lambda broker: partition_of(broker, topic)) in followed


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_controller_of_the_past_is_asked_again_after_a_pause(
    inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch, error: ErrorCode
) -> None:
    """It does not know the topic, or its newest state: nothing newer would come of waiting for it."""
    asked: list[WantedIsr] = []
    paused = threading.Event()
    go_on = asyncio.Event()

    async def answer(wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        asked.extend(wanted)
        return [IsrResult(each.topic_id, each.index, error) for each in wanted]

    async def pause(_seconds: float) -> None:
        paused.set()
        await go_on.wait()
        go_on.clear()

    def shrink(broker: Broker) -> None:
        monkeypatch.setattr(broker.changes, "alter_isr", answer)
        patched = SimpleNamespace(sleep=pause, timeout=asyncio.timeout)
        monkeypatch.setattr("ottla.server.replication.replicas.asyncio", patched)
        partition_of(broker, topic).drop_lagging(1_000_000, 0)

    inside.run(shrink)
    inside.until(lambda _: paused.is_set())
    assert len(asked) == 1
    inside.run(lambda _: go_on.set())
    inside.until(lambda _: len(asked) == 2)
    assert asked[0] == asked[1]

    def settle(broker: Broker) -> None:
        partition_of(broker, topic).isr_refused(ErrorCode.INELIGIBLE_REPLICA)
        go_on.set()

    inside.run(settle)
    inside.until(lambda broker: broker.replicas._asking is None)


def test_a_controller_that_stands_still_is_not_waited_for(
    inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[WantedIsr] = []
    monkeypatch.setattr("ottla.server.replication.replicas._ANSWER_SECONDS", 0.001)

    async def answer(wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        asked.extend(wanted)
        if len(asked) == 1:
            await asyncio.Event().wait()
        error = ErrorCode.INELIGIBLE_REPLICA
        return [IsrResult(each.topic_id, each.index, error) for each in wanted]

    def shrink(broker: Broker) -> None:
        monkeypatch.setattr(broker.changes, "alter_isr", answer)
        partition_of(broker, topic).drop_lagging(1_000_000, 0)

    inside.run(shrink)
    inside.until(lambda broker: broker.replicas._asking is None)
    assert len(asked) == 2
    assert inside.run(lambda broker: partition_of(broker, topic).wanted_isr) is None


def test_an_answer_that_is_later_than_its_image_changes_nothing(
    inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not tell who is on the way in, and no other image comes to tell it again."""
    asked: list[WantedIsr] = []

    def shrink(broker: Broker) -> None:
        partition = partition_of(broker, topic)

        async def answer(wanted: Sequence[WantedIsr]) -> list[IsrResult]:
            asked.extend(wanted)
            (one,) = wanted
            if len(asked) > 1:
                return [IsrResult(one.topic_id, one.index, ErrorCode.INELIGIBLE_REPLICA)]
            known = broker.image.topics[topic.name].partitions[0]
            state = replace(
                known,
                replicas=partition.replicas,
                isr=partition.isr,
                leader_epoch=EPOCH,
                partition_epoch=partition.partition_epoch + 1,
            )
            partition.update(replace(state, adding=(OTHER,)), 0)
            partition.drop_lagging(1_000_000, 0)
            return [IsrResult(one.topic_id, one.index, ErrorCode.NONE, state)]

        monkeypatch.setattr(broker.changes, "alter_isr", answer)
        partition.drop_lagging(1_000_000, 0)

    inside.run(shrink)
    inside.until(lambda broker: broker.replicas._asking is None)
    assert len(asked) == 2
    assert inside.run(lambda broker: partition_of(broker, topic).adding) == (OTHER,)
