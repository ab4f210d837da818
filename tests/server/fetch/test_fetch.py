"""Fetch: positions, sizes, errors, epochs, isolation, waiting."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch,
    fetch_request,
    fill,
    fresh_name,
    now_ms,
    offsets_of,
    values_of,
    versions_of,
    whole_batches,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.record.batch import Codec, Record, build_batch
from ottla.server.broker import Broker
from ottla.server.disk.reads import Reads
from ottla.storage.log.producer_state import Origin

FORMAT_2 = versions_of(FetchRequest, first=4)


def delete(wire: Wire, topic: Topic) -> None:
    answer = wire.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout_ms=20_000),
        DeleteTopicsResponse,
        6,
    )
    assert answer.responses[0].error_code == 0


# Positions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
def test_every_version(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"), batch_of(b"c"))
    answer = fetch(wire, topic, 0, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
    if version >= 5:
        assert answer.log_start_offset == 0
    assert answer.diverging_epoch is None
    assert answer.preferred_read_replica == -1
    assert values_of(answer.records) == [b"a", b"b", b"c"]
    assert offsets_of(answer.records) == [0, 1, 2]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_from_the_middle_of_a_batch(wire: Wire, topic: Topic, version: int, codec: Codec) -> None:
    fill(
        wire, topic, *(batch_of(*(b"%d" % each for each in range(10)), codec=codec) for _ in "123")
    )
    for offset in (0, 5, 9, 10, 15, 29):
        answer = fetch(wire, topic, offset, version=version)
        # The batch that holds the offset comes whole, nothing before it.
        assert offsets_of(answer.records) == list(range(offset // 10 * 10, 30))
    assert bytes(fetch(wire, topic, 30, version=version).records or b"") == b""


def test_many_batches_over_many_segments(wire: Wire) -> None:
    topic = create_topic(wire, segment_bytes=str(1 << 20))
    for number in range(60):
        fill(wire, topic, batch_of(b"%02d" % number * 20_000, b"second"))
    for offset in range(0, 120, 7):
        answer = fetch(wire, topic, offset, max_bytes=1)
        (batch,) = whole_batches(answer.records)
        assert offset in offsets_of(batch)
    assert fetch(wire, topic, 0).high_watermark == 120


# Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}])
def test_the_first_batch_comes_whole(
    wire: Wire, topic: Topic, version: int, limits: dict[str, int]
) -> None:
    fill(wire, topic, batch_of(b"x" * 5000), batch_of(b"y"))
    answer = fetch(wire, topic, 0, version=version, **limits)
    assert values_of(answer.records) == [b"x" * 5000]
    assert len(whole_batches(answer.records)) == 1


def test_only_one_partition_may_exceed(wire: Wire) -> None:
    """The first that has anything; the others get what is left, nothing here."""
    topic = create_topic(wire, partitions=3)
    for index in (1, 2):
        fill(wire, topic, batch_of(b"x" * 5000), index=index)
    request = fetch_request(topic, (0, 0), (1, 0), (2, 0), max_bytes=100)
    answers = wire.call(request, FetchResponse, 12).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [0, 1, 0]
    assert [each.error_code for each in answers] == [0, 0, 0]
    assert answers[2].high_watermark == 1


@pytest.mark.parametrize("version", [4, 11, 12])
def test_no_partition_begins_with_a_part_of_a_batch(wire: Wire, version: int) -> None:
    """What is left for it is less than its first batch: then it gets nothing, as from Kafka.

    Clients take bytes without a whole batch for a log that cannot be read on.
    """
    topic = create_topic(wire, partitions=2)
    for index in (0, 1):
        fill(wire, topic, batch_of(b"x" * 5000), index=index)
    request = fetch_request(topic, (0, 0), (1, 0), max_bytes=8000)
    answers = wire.call(request, FetchResponse, version).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [1, 0]
    assert bytes(answers[1].records or b"") == b""
    assert (answers[1].error_code, answers[1].high_watermark) == (0, 1)


def test_max_bytes_is_shared(wire: Wire) -> None:
    topic = create_topic(wire, partitions=3)
    size = len(batch_of(b"x" * 1000))
    for index in range(3):
        fill(wire, topic, *(batch_of(b"x" * 1000) for _ in range(10)), index=index)
    request = fetch_request(topic, (0, 0), (1, 0), (2, 0), max_bytes=12 * size)
    answers = wire.call(request, FetchResponse, 12).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [10, 2, 0]
    request = fetch_request(topic, (0, 0), (1, 0), (2, 0), partition_max_bytes=3 * size)
    answers = wire.call(request, FetchResponse, 12).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [3, 3, 3]


def test_max_bytes_may_cut_a_batch(wire: Wire, topic: Topic) -> None:
    batch = batch_of(b"x" * 1000)
    fill(wire, topic, batch, batch, batch)
    answer = fetch(wire, topic, 0, partition_max_bytes=2 * len(batch) + 30)
    assert len(answer.records) <= 2 * len(batch) + 30
    assert len(whole_batches(answer.records)) == 2


def test_brokers_own_limit(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"fetch.max.bytes": "3000"})
    with broker.wire() as wire:
        topic = create_topic(wire)
        batch = batch_of(b"x" * 900)
        fill(wire, topic, batch, batch, batch, batch)
        assert len(whole_batches(fetch(wire, topic, 0).records)) == 3


@pytest.mark.parametrize("size", [10, 5_000, 20_000, 900_000])
def test_small_and_large_pieces(wire: Wire, topic: Topic, size: int) -> None:
    """Copied into the answer, or sent from the file."""
    value = bytes(range(256)) * (size // 256 + 1)
    fill(wire, topic, batch_of(value))
    for _ in range(3):
        assert values_of(fetch(wire, topic, 0).records) == [value]


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("offset", [-1, 4, 2**62, -(2**63)])
def test_out_of_range(wire: Wire, topic: Topic, version: int, offset: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b", b"c"))
    answer = fetch(wire, topic, offset, version=version, max_wait_ms=20_000)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not answer.records
    assert (answer.high_watermark, answer.last_stable_offset) == (-1, -1)


@pytest.mark.parametrize("version", range(4, 13))
def test_unknown_topic_and_partition(wire: Wire, topic: Topic, version: int) -> None:
    nowhere = Topic(fresh_name("missing"), bytes(16))
    answer = fetch(wire, nowhere, 0, version=version, max_wait_ms=20_000)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.high_watermark == -1
    for index in (1, -1, 2**31 - 1):
        answer = fetch(wire, topic, 0, version=version, index=index, max_wait_ms=20_000)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(13, 19))
def test_unknown_topic_id(wire: Wire, topic: Topic, version: int) -> None:
    stranger = Topic(topic.name, b"\x07" * 16)
    answer = fetch(wire, stranger, 0, version=version, max_wait_ms=20_000)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    answer = fetch(wire, topic, 0, version=version, index=1, max_wait_ms=20_000)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", FORMAT_2)
def test_an_unreadable_log_is_told_in_words_that_the_reader_knows(
    inside: BrokerThread, wire: Wire, topic: Topic, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(wire, topic, batch_of(b"a"))
    # Clients of before Kafka 1.0 look for a leader only if they hear that there is another.
    known = ErrorCode.KAFKA_STORAGE_ERROR if version >= 6 else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Reads, "take", fail)
        assert fetch(wire, topic, 0, version=version).error_code == known

    def declare(reason: str | None) -> None:
        log = inside.broker.partitions.by_name[topic.name][0].log
        log.offline = reason

    inside.run(lambda _: declare("the test says so"))
    assert fetch(wire, topic, 0, version=version).error_code == known
    inside.run(lambda _: declare(None))


def test_an_error_of_one_partition_ends_the_wait(wire: Wire) -> None:
    topic = create_topic(wire, partitions=2)
    request = fetch_request(topic, (0, 0), (1, 99), max_wait_ms=20_000)
    answers = wire.call(request, FetchResponse, 12).responses[0].partitions
    assert [ErrorCode(each.error_code) for each in answers] == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]


@pytest.mark.parametrize("version", [4, 7, 12, 15, 18])
def test_replicas_of_no_cluster(
    inside: BrokerThread, wire: Wire, topic: Topic, version: int
) -> None:
    """Only replicas may read beyond the high watermark, and there are none to be."""
    fill(wire, topic, batch_of(b"a"))
    request = fetch_request(topic, (0, 0))
    if version < 15:
        request.replica_id = 5
    else:
        request.replica_state = ReplicaState(replica_id=5, replica_epoch=1)
    response = wire.call(request, FetchResponse, version)
    assert not any(each.partitions[0].records for each in response.responses)


# Epochs -----------------------------------------------------------------------------------------


def current_epoch(wire: Wire, topic: Topic) -> int:
    request = MetadataRequest(topics=None)
    for each in wire.call(request, MetadataResponse, 9).topics:
        if each.name == topic.name:
            return each.partitions[0].leader_epoch
    raise AssertionError(topic)


@pytest.mark.parametrize("version", [9, 11, 12, 13, 18])
def test_current_leader_epoch(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a"))
    epoch = current_epoch(wire, topic)
    known = fetch(wire, topic, 0, version=version, current_leader_epoch=epoch)
    assert (known.error_code, values_of(known.records)) == (0, [b"a"])
    newer = fetch(wire, topic, 0, version=version, current_leader_epoch=epoch + 1)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_an_older_leader_epoch_is_refused(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    fill(wire, topic, batch_of(b"a"))
    epoch = current_epoch(wire, topic)

    def lead_anew(broker: Broker) -> None:
        partition = broker.partitions.get(topic.name, 0)
        assert partition is not None
        partition.leader_epoch += 1

    inside.run(lead_anew)
    older = fetch(wire, topic, 0, version=18, current_leader_epoch=epoch)
    assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH
    known = fetch(wire, topic, 0, version=18, current_leader_epoch=epoch + 1)
    assert known.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [12, 13, 18])
def test_last_fetched_epoch(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"))
    epoch = current_epoch(wire, topic)
    same = fetch(wire, topic, 1, version=version, last_fetched_epoch=epoch)
    assert same.error_code == 0
    assert same.diverging_epoch is None
    assert values_of(same.records) == [b"a", b"b"]
    # Beyond the end of that epoch: the reader has seen what is not there any more.
    beyond = fetch(wire, topic, 7, version=version, last_fetched_epoch=epoch)
    assert beyond.error_code == 0
    assert beyond.diverging_epoch is not None
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (epoch, 2)
    assert not beyond.records


@pytest.mark.parametrize("version", [12, 13, 18])
def test_last_fetched_epoch_that_is_not_known(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"))
    newer = fetch(wire, topic, 1, version=version, last_fetched_epoch=99)
    assert newer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert newer.diverging_epoch is None


# Isolation --------------------------------------------------------------------------------------


def marker(kind: int, producer: int) -> bytearray:
    """The end of a transaction: 0 aborts, 1 commits."""
    return bytearray(
        build_batch(
            [Record(0, now_ms(), b"\0\0" + kind.to_bytes(2, "big"), b"\0\0\0\0\0\1")],
            control=True, transactional=True, producer_id=producer, producer_epoch=0,
        )
    )  # fmt: skip


def run_transactions(inside: BrokerThread, topic: Topic) -> None:
    """Straight into the log, as the coordinators of a later day: a committed one (0–1), an aborted
    one (2–3), an open one (4), with markers at 1 and 3."""

    def data(value: bytes, producer: int) -> bytearray:
        return bytearray(
            batch_of(
                value, transactional=True, producer_id=producer, producer_epoch=0, base_sequence=0
            )
        )

    def work(broker: object) -> None:
        partition = inside.broker.partitions.by_name[topic.name][0]
        log = partition.log
        for batch, origin in (
            (data(b"committed", 1), Origin.CLIENT),
            (marker(1, 1), Origin.COORDINATOR),
            (data(b"aborted", 2), Origin.CLIENT),
            (marker(0, 2), Origin.COORDINATOR),
            (data(b"open", 3), Origin.CLIENT),
        ):
            log.append(batch, 0, now_ms(), origin)
        log.advance_high_watermark(log.log_end_offset)

    inside.run(work)


@pytest.mark.parametrize("version", FORMAT_2)
def test_isolation_levels(inside: BrokerThread, wire: Wire, topic: Topic, version: int) -> None:
    run_transactions(inside, topic)
    everything = fetch(wire, topic, 0, version=version, isolation_level=0)
    assert offsets_of(everything.records) == [0, 1, 2, 3, 4]
    assert (everything.high_watermark, everything.last_stable_offset) == (5, 4)
    assert not everything.aborted_transactions
    committed = fetch(wire, topic, 0, version=version, isolation_level=1)
    assert offsets_of(committed.records) == [0, 1, 2, 3]
    assert (committed.high_watermark, committed.last_stable_offset) == (5, 4)
    assert committed.aborted_transactions is not None
    assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions] == [
        (2, 2)
    ]
    at_the_end = fetch(wire, topic, 4, version=version, isolation_level=1)
    assert not at_the_end.records


def test_only_aborts_that_overlap_the_range_are_listed(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    aborts = 3000

    def work(broker: object) -> None:
        log = inside.broker.partitions.by_name[topic.name][0].log
        for producer in range(aborts):
            data = batch_of(
                b"x" * 50, transactional=True, producer_id=producer, producer_epoch=0,
                base_sequence=0,
            )  # fmt: skip
            log.append(bytearray(data), 0, now_ms(), Origin.CLIENT)
            log.append(marker(0, producer), 0, now_ms(), Origin.COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)

    inside.run(work)
    answer = fetch(wire, topic, 0, isolation_level=1, max_bytes=1024, partition_max_bytes=1024)
    sent = offsets_of(answer.records)
    assert 0 < len(sent) < 20
    listed = [each.first_offset for each in answer.aborted_transactions or ()]
    assert {each for each in sent if each % 2 == 0} <= set(listed)
    # The index knows an offset after every 4 KiB, so a few more may be among them.
    assert len(listed) < 60


# Waiting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
def test_wakes_on_append(
    wire: Wire, connect: Callable[[], Wire], topic: Topic, version: int
) -> None:
    """The test would run into its time limit if the append did not wake it."""
    waiting = connect()
    waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), version)
    fill(wire, topic, batch_of(b"woken"))
    (answer,) = waiting.receive(FetchResponse, version).responses[0].partitions
    assert values_of(answer.records) == [b"woken"]


def test_nothing_polls(inside: BrokerThread, connect: Callable[[], Wire], topic: Topic) -> None:
    """A waiting fetch is looked at when it comes and when there is news, and at no other time."""
    from ottla.server.handlers.records.fetch.handler import Fetch
    from ottla.server.sessions import WatchedPartition

    looks = []
    real = Fetch._look

    def look(self: Fetch, at: list[WatchedPartition]) -> object:
        looks.append(self)
        return real(self, at)

    Fetch._look = look  # type: ignore[method-assign, assignment]
    try:
        waiting = connect()
        waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000, min_bytes=100), 12)
        inside.until(lambda broker: len(broker.waiting_fetches) == 1)
        assert len(looks) == 1
        other = connect()
        for _ in range(20):
            other.call(MetadataRequest(topics=[]), MetadataResponse, 9)
        assert len(looks) == 1
        fill(other, topic, batch_of(b"x" * 200))
        waiting.receive(FetchResponse, 12)
        assert len(looks) == 2
    finally:
        Fetch._look = real  # type: ignore[method-assign]


def test_min_bytes(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    batch = batch_of(b"x" * 100)
    waiting = connect()
    waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000, min_bytes=3 * len(batch)), 12)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    for _ in range(2):
        fill(wire, topic, batch)
    assert inside.run(lambda broker: len(broker.waiting_fetches)) == 1
    fill(wire, topic, batch)
    (answer,) = waiting.receive(FetchResponse, 12).responses[0].partitions
    assert len(whole_batches(answer.records)) == 3


def test_min_bytes_over_several_partitions(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    topic = create_topic(wire, partitions=3)
    batch = batch_of(b"x" * 100)
    waiting = connect()
    waiting.send(
        fetch_request(topic, (0, 0), (1, 0), (2, 0), max_wait_ms=600_000, min_bytes=3 * len(batch)),
        12,
    )
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    for index in range(3):
        fill(wire, topic, batch, index=index)
    answers = waiting.receive(FetchResponse, 12).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [1, 1, 1]


def test_more_than_fits_into_an_answer_is_not_waited_for(wire: Wire, topic: Topic) -> None:
    """min_bytes above what an answer may hold, as in Kafka: a full answer is enough."""
    batch = batch_of(b"x" * 1000)
    fill(wire, topic, *[batch] * 10)
    answer = fetch(
        wire, topic, 0, max_wait_ms=600_000, min_bytes=1_000_000, max_bytes=3 * len(batch)
    )
    assert len(whole_batches(answer.records)) == 3


def test_an_answer_without_room_for_the_next_partition_is_not_held_back(wire: Wire) -> None:
    topic = create_topic(wire, partitions=2)
    small, large = batch_of(b"x" * 1000), batch_of(b"x" * 5000)
    fill(wire, topic, small, index=0)
    fill(wire, topic, large, index=1)
    most = len(small) + len(large) - 1
    request = fetch_request(
        topic, (0, 0), (1, 0), max_wait_ms=600_000, min_bytes=most, max_bytes=most
    )
    answers = wire.call(request, FetchResponse, 12).responses[0].partitions
    assert [len(whole_batches(each.records)) for each in answers] == [1, 0]


def test_the_end_of_a_segment_is_not_waited_at(wire: Wire) -> None:
    """A reader of a backlog gets what is left of a segment, however little that is."""
    topic = create_topic(wire, segment_bytes=str(1 << 20))
    batch = batch_of(b"x" * 300_000)
    fill(wire, topic, *[batch] * 7)
    read = []
    offset = 0
    while offset < 6:
        answer = fetch(wire, topic, offset, max_wait_ms=600_000, min_bytes=4 * len(batch))
        found = whole_batches(answer.records)
        read.append(len(found))
        offset += len(found)
    assert read == [3, 3]
    # In the last segment there is nothing to go on with.
    answer = fetch(wire, topic, 6, max_wait_ms=30, min_bytes=4 * len(batch))
    assert len(whole_batches(answer.records)) == 1


def test_time_runs_out(wire: Wire, topic: Topic) -> None:
    answer = fetch(wire, topic, 0, max_wait_ms=30)
    assert (answer.error_code, answer.high_watermark, bytes(answer.records or b"")) == (0, 0, b"")
    fill(wire, topic, batch_of(b"too little"))
    answer = fetch(wire, topic, 0, max_wait_ms=30, min_bytes=10_000)
    assert values_of(answer.records) == [b"too little"]


def test_no_wait_without_time_or_wish(wire: Wire, topic: Topic) -> None:
    assert fetch(wire, topic, 0, max_wait_ms=0, min_bytes=10_000).error_code == 0
    assert fetch(wire, topic, 0, max_wait_ms=600_000, min_bytes=0).error_code == 0
    assert fetch(wire, topic, 0, max_wait_ms=-1, min_bytes=10_000).error_code == 0
    assert fetch(wire, topic, 0, max_wait_ms=600_000, min_bytes=-1).error_code == 0


@pytest.mark.parametrize("version", [12, 13])
def test_a_deleted_topic_ends_the_wait(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], topic: Topic, version: int
) -> None:
    waiting = connect()
    waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), version)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    delete(wire, topic)
    (answer,) = waiting.receive(FetchResponse, version).responses[0].partitions
    assert answer.error_code == (
        ErrorCode.UNKNOWN_TOPIC_ID if version == 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    inside.until(lambda broker: not broker.waiting_fetches)


def test_appends_to_other_partitions_do_not_wake(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    topic = create_topic(wire, partitions=2)
    waiting = connect()
    waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    fill(wire, topic, batch_of(b"other"), index=1)
    assert inside.run(lambda broker: len(broker.waiting_fetches)) == 1
    fill(wire, topic, batch_of(b"mine"), index=0)
    (answer,) = waiting.receive(FetchResponse, 12).responses[0].partitions
    assert values_of(answer.records) == [b"mine"]


def test_many_wait_for_one(wire: Wire, connect: Callable[[], Wire], topic: Topic) -> None:
    crowd = [connect() for _ in range(30)]
    for each in crowd:
        each.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
    fill(wire, topic, batch_of(b"all of you"))
    for each in crowd:
        (answer,) = each.receive(FetchResponse, 12).responses[0].partitions
        assert values_of(answer.records) == [b"all of you"]


def test_waits_for_a_recompressed_batch(wire: Wire, connect: Callable[[], Wire]) -> None:
    """An append that took the way through a lane wakes as well."""
    topic = create_topic(wire, compression_type="gzip")
    waiting = connect()
    waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
    fill(wire, topic, batch_of(b"packed"))
    (answer,) = waiting.receive(FetchResponse, 12).responses[0].partitions
    assert values_of(answer.records) == [b"packed"]


def test_the_same_partition_twice(wire: Wire, topic: Topic) -> None:
    fill(wire, topic, batch_of(b"a"))
    request = fetch_request(topic, (0, 0), (0, 0))
    response = wire.call(request, FetchResponse, 12)
    assert all(values_of(each.records) == [b"a"] for each in response.responses[0].partitions)


def test_no_topics_at_all(wire: Wire) -> None:
    response = wire.call(FetchRequest(max_wait_ms=600_000, min_bytes=1), FetchResponse, 12)
    assert response.responses == []
    assert response.error_code == 0
