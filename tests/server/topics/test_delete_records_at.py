"""DeleteRecordsAt: single records go, and nobody who reads sees them again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    all_batches,
    batch_of,
    create_topic,
    delete_records,
    end_offset,
    fetch,
    fetch_request,
    fill,
    fresh_name,
    list_offset,
    now_ms,
    offsets_of,
    produce,
    set_config,
    values_of,
    whole_batches,
)
from server_kit.wire import Wire

from ottla import turns
from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.logfiles.deletions import deleted_offsets
from ottla.logfiles.folders import find_logs
from ottla.logfiles.names import DELETIONS_SNAPSHOT
from ottla.logfiles.walk import OVERHEAD, fields_at
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records_at import (
    DeletedRange,
    DeleteRecordsAtPartition,
    DeleteRecordsAtPartitionResult,
    DeleteRecordsAtRequest,
    DeleteRecordsAtResponse,
    DeleteRecordsAtTopic,
)
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.record.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_BYTE,
    Record,
    build_batch,
    check_batch,
    records,
)
from ottla.record.compression.codecs import Codec
from ottla.record.deletion import read_mark
from ottla.record.legacy import build_message_set, messages
from ottla.replication.partition import Appended, Partition
from ottla.server.broker import Broker
from ottla.server.disk.reads import Reads
from ottla.server.disk.time_search import offset_for_time
from ottla.storage.compaction.swap import Swap
from ottla.storage.log.append import Append
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.segments.file import Slice
from ottla.storage.verify import verify_log
from ottla.testing import BrokerProcess


def delete_at(
    wire: Wire,
    topic: Topic,
    *offsets: int | tuple[int, int],
    skip_deleted: bool = False,
    timeout_ms: int = 20_000,
    index: int = 0,
) -> DeleteRecordsAtPartitionResult:
    """Offsets, or pairs of the first and the last of several."""
    ranges = [each if isinstance(each, tuple) else (each, each) for each in offsets]
    request = delete_request(topic, ranges, skip_deleted, timeout_ms)
    request.topics[0].partitions[0].partition_index = index
    response = wire.call(request, DeleteRecordsAtResponse, 0)
    ((answer,),) = [each.partitions for each in response.topics]
    return answer


def delete_request(
    topic: Topic,
    ranges: Sequence[tuple[int, int]],
    skip_deleted: bool = False,
    timeout_ms: int = 20_000,
) -> DeleteRecordsAtRequest:
    return DeleteRecordsAtRequest(
        topics=[
            DeleteRecordsAtTopic(
                name=topic.name,
                partitions=[
                    DeleteRecordsAtPartition(
                        partition_index=0,
                        ranges=[DeletedRange(first_offset=a, last_offset=b) for a, b in ranges],
                    )
                ],
            )
        ],
        timeout_ms=timeout_ms,
        skip_deleted=skip_deleted,
    )


def raw_batches(inside: BrokerThread, topic: Topic) -> list[bytes]:
    """The log as replicas see it."""

    def read(broker: Broker) -> bytes:
        log = broker.partitions.by_name[topic.name][0].log
        data = b""
        for segment in log.segments:
            data += segment.file().read(segment.size, 0)
        return data

    return whole_batches(inside.run(read))


def seen(wire: Wire, topic: Topic, offset: int = 0) -> list[bytes | None]:
    """The values that a consumer gets from an offset on, to the end."""
    found: list[bytes | None] = []
    end = end_offset(wire, topic)
    while offset < end:
        answer = fetch(wire, topic, offset)
        assert answer.error_code == 0
        batches = whole_batches(answer.records)
        assert batches, f"nothing at {offset}, before the end at {end}"
        for each in batches:
            header = check_batch(each)
            if not header.is_control:
                found += [record.value for record in records(each) if record.offset >= offset]
                assert header.record_count
        offset = header.last_offset + 1
    assert offset == end
    return found


def ten(wire: Wire, topic: Topic, codec: int = Codec.NONE) -> None:
    """Two batches of five records."""
    for first in (0, 5):
        values = [b"%d" % each for each in range(first, first + 5)]
        fill(wire, topic, batch_of(*values, codec=codec))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_record_is_seen_no_more_and_the_others_keep_their_offsets(
    wire: Wire, topic: Topic, codec: int
) -> None:
    ten(wire, topic, codec)
    answer = delete_at(wire, topic, 3)
    assert (answer.error_code, answer.error_message, answer.deleted) == (0, None, 1)
    assert end_offset(wire, topic) == 11  # with the mark
    assert seen(wire, topic) == [b"%d" % each for each in range(10) if each != 3]
    for offset in range(10):
        found = fetch(wire, topic, offset)
        assert 3 not in offsets_of(found.records)
        assert b"3" not in values_of(found.records)
        assert offsets_of(found.records)[-1] >= offset
    (touched, *_) = whole_batches(fetch(wire, topic, 0).records)
    header = check_batch(touched)  # its checksum fits
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 4, 4)


def test_consumers_get_to_the_end(wire: Wire, topic: Topic) -> None:
    """Neither marks nor emptied batches are sent; a control batch of nobody covers what is left."""
    ten(wire, topic)
    assert delete_at(wire, topic, (5, 9)).deleted == 5
    assert offsets_of(fetch(wire, topic, 0).records) == [0, 1, 2, 3, 4]
    for offset in range(5, 11):
        (cover,) = whole_batches(fetch(wire, topic, offset).records)
        header = check_batch(cover)
        assert (header.base_offset, header.last_offset) == (offset, 10)
        assert (header.is_control, header.producer_id, header.record_count) == (True, -1, 1)
    assert not fetch(wire, topic, 11).records
    fill(wire, topic, batch_of(b"next"))
    for offset in range(5, 12):
        assert values_of(fetch(wire, topic, offset).records) == [b"next"]
    # One in front of the mark is still covered when the mark was the last.
    assert delete_at(wire, topic, 11).error_code == 0
    (cover,) = whole_batches(fetch(wire, topic, 5).records)
    assert check_batch(cover).last_offset == 12


def test_a_waiting_consumer_gets_over_a_mark(
    wire: Wire, inside: BrokerThread, topic: Topic
) -> None:
    ten(wire, topic)
    with inside.wire() as other:
        version = 12
        request = fetch_request(topic, (0, 10), max_wait_ms=60_000)
        other.send(request, version)
        inside.until(lambda broker: len(broker.waiting_fetches) > 0)
        delete_at(wire, topic, 0)
        response = other.receive(FetchResponse, version)
    (cover,) = whole_batches(response.responses[0].partitions[0].records)
    assert check_batch(cover).last_offset == 10


def test_the_log_holds_what_was_deleted_and_the_mark(
    wire: Wire, inside: BrokerThread, topic: Topic
) -> None:
    ten(wire, topic)
    delete_at(wire, topic, 1, 2, 7)
    *data, mark = raw_batches(inside, topic)
    assert [each.value for one in data for each in records(one)] == [b"%d" % n for n in range(10)]
    header = check_batch(mark)
    assert (header.base_offset, header.is_control, header.producer_id) == (10, True, -1)
    assert read_mark(mark) == [(1, 3), (7, 8)]


def test_many_deletions_are_few_marks(wire: Wire, inside: BrokerThread, topic: Topic) -> None:
    count = 10_000
    fill(wire, topic, batch_of(*(b"%d" % each for each in range(count))))
    assert delete_at(wire, topic, *range(0, count, 2)).deleted == count // 2
    assert end_offset(wire, topic) == count + 10
    _, *marks = raw_batches(inside, topic)
    assert sum(map(len, marks)) < 3 * count // 2
    assert seen(wire, topic) == [b"%d" % each for each in range(1, count, 2)]


@pytest.mark.parametrize("first_version", [4, 11, 18])
def test_versions_of_fetch(wire: Wire, topic: Topic, first_version: int) -> None:
    ten(wire, topic)
    delete_at(wire, topic, 4, (8, 9))
    found = fetch(wire, topic, 0, version=first_version)
    assert offsets_of(found.records) == [0, 1, 2, 3, 5, 6, 7]


# What cannot be deleted


def test_offsets_out_of_range(wire: Wire, topic: Topic) -> None:
    ten(wire, topic)
    for bad, words in (
        ((10, 10), "the log ends at 10"),
        ((-1, 2), "the log starts at 0"),
        ((4, 3), "ends before"),
    ):
        answer = delete_at(wire, topic, 3, bad)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert words in (answer.error_message or "")
        assert answer.deleted == 0
    assert len(seen(wire, topic)) == 10
    assert end_offset(wire, topic) == 10  # nothing was written


def test_deleted_already(wire: Wire, topic: Topic) -> None:
    ten(wire, topic)
    assert delete_at(wire, topic, 3).error_code == 0
    again = delete_at(wire, topic, 2, 3)
    assert again.error_code == ErrorCode.INVALID_REQUEST
    assert again.error_message == "offset 3 is deleted already"
    assert len(seen(wire, topic)) == 9
    skipping = delete_at(wire, topic, (2, 4), skip_deleted=True)
    assert (skipping.error_code, skipping.deleted) == (0, 2)
    assert len(seen(wire, topic)) == 7
    # Nothing left to do is no error, and no mark.
    end = end_offset(wire, topic)
    assert delete_at(wire, topic, (2, 4), skip_deleted=True).deleted == 0
    assert end_offset(wire, topic) == end


def test_what_is_passed_over_has_to_be_committed_too(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer did not come in time is sent again: its marks may still be lost."""
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire, **{"visible.when.flushed": "true"})
        ten(wire, topic)
        broker.until(lambda inside: inside.logs.get(topic.name, 0).high_watermark == 10)
        opened = threading.Event()
        files = broker.run(lambda inside: inside.logs.files)
        sync = files.fsync
        monkeypatch.setattr(files, "fsync", lambda fd: (opened.wait(60), sync(fd)))
        try:
            for skip in (False, True):
                answer = delete_at(wire, topic, 3, skip_deleted=skip, timeout_ms=50)
                assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        finally:
            opened.set()
        again = delete_at(wire, topic, 3, skip_deleted=True)
        assert (again.error_code, again.deleted) == (0, 0)
        assert broker.run(lambda inside: inside.logs.get(topic.name, 0).high_watermark) == 11


def test_no_topic_and_internal_topics(wire: Wire, inside: BrokerThread, topic: Topic) -> None:
    missing = topic._replace(name="nowhere")
    assert delete_at(wire, missing, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    commit = OffsetCommitRequest(
        group_id=fresh_name("group"),
        topics=[OffsetCommitRequestTopic(name=topic.name, partitions=[part])],
    )
    find = FindCoordinatorRequest(coordinator_keys=[commit.group_id])
    wire.call(find, FindCoordinatorResponse, 4)
    inside.until(lambda broker: CONSUMER_OFFSETS in broker.partitions.by_name)
    committed = wire.call(commit, OffsetCommitResponse, 8)
    assert committed.topics[0].partitions[0].error_code == 0

    def partition_with_offsets(broker: Broker) -> tuple[int, int]:
        partitions = broker.partitions.by_name[CONSUMER_OFFSETS]
        return max((each.log.log_end_offset, each.index) for each in partitions)

    end, index = inside.run(partition_with_offsets)
    assert end > 0
    internal = topic._replace(name=CONSUMER_OFFSETS)
    answer = delete_at(wire, internal, 0, index=index)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "internal topics" in (answer.error_message or "")
    assert inside.run(partition_with_offsets) == (end, index)


def test_ranges_that_overlap_count_once(wire: Wire, topic: Topic) -> None:
    ten(wire, topic)
    assert delete_at(wire, topic, (2, 5), (4, 6), 4).deleted == 5
    assert seen(wire, topic) == [b"%d" % each for each in (0, 1, 7, 8, 9)]


# Searches by time


def test_times(wire: Wire, topic: Topic) -> None:
    now = now_ms()
    for first in (0, 3):
        batch = build_batch(
            [Record(each, now + 10 * (first + each), b"k", b"v") for each in range(3)]
        )
        fill(wire, topic, batch)
    assert list_offset(wire, topic, now + 20).offset == 2
    delete_at(wire, topic, 2, 5)
    assert list_offset(wire, topic, now + 11).offset == 3
    assert list_offset(wire, topic, now + 20).offset == 3
    assert list_offset(wire, topic, now + 41).offset == -1
    newest = list_offset(wire, topic, -3, version=8)
    assert (newest.offset, newest.timestamp) == (4, now + 40)


def test_others_have_their_turn_during_a_search_by_time(
    wire: Wire, inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many batches that claim a time which only deleted records had; all of them are in memory."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    now = now_ms()
    batch = build_batch([Record(0, now, b"k", b"v"), Record(1, now + 10, b"k", b"v")])
    count = 50
    fill(wire, topic, *([batch] * (count + 1)))
    delete_at(wire, topic, *(2 * each + 1 for each in range(count)))

    async def search(broker: Broker) -> tuple[int, int]:
        log = broker.partitions.by_name[topic.name][0].log
        searching = asyncio.ensure_future(offset_for_time(broker, log, now + 5))
        others = 0
        while not searching.done():
            others += 1
            await asyncio.sleep(0)
        found = await searching
        assert found is not None
        return found.offset, others

    offset, others = inside.run_async(search(inside.broker))
    assert offset == 2 * count + 1
    assert others >= count
    # A run of deleted records is no search at all.
    delete_at(wire, topic, (0, 2 * count - 1), skip_deleted=True)
    offset, others = inside.run_async(search(inside.broker))
    assert offset == 2 * count + 1
    assert others < 10


def test_a_new_leader_that_does_not_know_what_is_committed(
    wire: Wire, inside: BrokerThread, topic: Topic
) -> None:
    """Asked again later, it does: that is no mistake of the user's."""
    ten(wire, topic)

    def begin_at(offset: int) -> None:
        def change(broker: Broker) -> None:
            broker.partitions.by_name[topic.name][0].epoch_start_offset = offset

        inside.run(change)

    begin_at(11)
    assert delete_at(wire, topic, 3).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert ErrorCode.OFFSET_NOT_AVAILABLE.retriable
    begin_at(0)
    assert delete_at(wire, topic, 3).error_code == 0


@pytest.mark.parametrize("leads_again", [False, True])
def test_a_mark_of_a_term_that_ended_is_not_taken_for_committed(
    wire: Wire,
    inside: BrokerThread,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    leads_again: bool,
) -> None:
    """When the request goes on after its append, another leader has written something else there."""
    ten(wire, topic)

    def slow(broker: Broker) -> None:
        broker.lanes.mark_slow(broker.partitions.by_name[topic.name][0].log.folder, 10.0)

    def depose(broker: Broker) -> None:
        partition = broker.partitions.by_name[topic.name][0]
        state = broker.image.topics[topic.name].partitions[0]
        members = (broker.id, broker.id + 1)
        led_elsewhere = replace(
            state, replicas=members, isr=members, leader=broker.id + 1, leader_epoch=1
        )
        partition.update(led_elsewhere, 0)
        partition.log.truncate_to(10, 0)
        theirs = build_batch([Record(10, 0, None, b"theirs", ())], base_offset=10, leader_epoch=1)
        partition.take(memoryview(theirs), 11, 0)
        if leads_again:
            partition.update(replace(state, leader_epoch=2), 0)

    commit = Partition.commit

    def commit_and_lose(partition: Partition, append: Append) -> Appended:
        committed = commit(partition, append)
        inside.broker.loop.call_soon(depose, inside.broker)
        return committed

    inside.run(slow)
    monkeypatch.setattr(Partition, "commit", commit_and_lose)
    answer = delete_at(wire, topic, 3, timeout_ms=1000)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_only_to_see_whether_it_could_be_done(wire: Wire, topic: Topic) -> None:
    ten(wire, topic)
    delete_at(wire, topic, 3)
    end = end_offset(wire, topic)

    def validate(
        ranges: list[tuple[int, int]], skip_deleted: bool = False
    ) -> DeleteRecordsAtPartitionResult:
        request = delete_request(topic, ranges, skip_deleted)
        request.validate_only = True
        response = wire.call(request, DeleteRecordsAtResponse, 1)
        return response.topics[0].partitions[0]

    assert (validate([(0, 2), (5, 5)]).error_code, validate([(0, 2), (5, 5)]).deleted) == (0, 4)
    assert validate([(3, 3)]).error_message == "offset 3 is deleted already"
    assert validate([(2, 4)], skip_deleted=True).deleted == 2
    assert validate([(0, 99)]).error_code == ErrorCode.INVALID_REQUEST
    assert end_offset(wire, topic) == end  # nothing was written
    assert len(seen(wire, topic)) == 9


# Restarts


@pytest.mark.parametrize("kill", [False, True])
def test_deletions_outlast_the_broker(
    start_process: Callable[..., BrokerProcess], kill: bool
) -> None:
    process = start_process()
    with Wire(process.host, process.port) as wire:
        topic = create_topic(wire)
        ten(wire, topic)
        delete_at(wire, topic, 3, (6, 7))
        delete_at(wire, topic, 9)
    if kill:
        process.kill()
    else:
        process.stop()
    process.start()
    with Wire(process.host, process.port) as wire:
        assert seen(wire, topic) == [b"%d" % each for each in (0, 1, 2, 4, 5, 8)]
        assert delete_at(wire, topic, 3).error_message == "offset 3 is deleted already"
        fill(wire, topic, batch_of(b"next"))
        assert seen(wire, topic, 6) == [b"8", b"next"]


@pytest.mark.parametrize("loss", ["missing", "older"])
def test_deletions_outlast_the_loss_of_their_snapshot(
    start_process: Callable[..., BrokerProcess], loss: str
) -> None:
    """With and without a broker."""
    process = start_process()
    with Wire(process.host, process.port) as wire:
        topic = create_topic(wire)
        ten(wire, topic)
        delete_at(wire, topic, 3)
    process.stop()
    folder = process.data / f"{topic.name}-0"
    snapshot = folder / DELETIONS_SNAPSHOT
    older = snapshot.read_bytes()
    process.start()
    with Wire(process.host, process.port) as wire:
        delete_at(wire, topic, 9)
    process.stop()
    if loss == "missing":
        snapshot.unlink()
    else:
        snapshot.write_bytes(older)
    (found,) = find_logs(folder)
    assert deleted_offsets(found).between(0, 12) == [(3, 4), (9, 12)]
    process.start()
    with Wire(process.host, process.port) as wire:
        assert seen(wire, topic) == [b"%d" % each for each in (0, 1, 2, 4, 5, 6, 7, 8)]


def test_deleted_records_before_the_start_are_out_of_range(wire: Wire, topic: Topic) -> None:
    ten(wire, topic)
    delete_at(wire, topic, 3)
    delete_records(wire, topic, 5)
    assert "the log starts at 5" in (delete_at(wire, topic, 3).error_message or "")
    assert produce(wire, topic, batch_of(b"x")).error_code == 0
    assert [check_batch(each).base_offset for each in all_batches(wire, topic, offset=5)]


# Transactions


def test_transactions(wire: Wire, inside: BrokerThread) -> None:
    """Records of ended transactions can be deleted; markers and what was aborted cannot."""
    from ottla import Producer

    topic = create_topic(wire)
    with Producer(f"127.0.0.1:{inside.port}", transactional_id=topic.name) as producer:
        producer.init_transactions()
        for good in (True, False, True):
            producer.begin_transaction()
            for each in range(3):
                producer.send(topic.name, b"%d" % each, partition=0)
            producer.flush()
            if good:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic.name, b"open", partition=0)
        producer.flush()
        assert "offset 12 is not committed" in (delete_at(wire, topic, 12).error_message or "")
        producer.commit_transaction()
    assert "aborted transaction" in (delete_at(wire, topic, 5).error_message or "")
    assert "end of a transaction" in (delete_at(wire, topic, 3).error_message or "")
    assert delete_at(wire, topic, 1, (8, 10)).deleted == 4
    committed = fetch(wire, topic, 0, isolation_level=1)
    kept = [check_batch(each) for each in whole_batches(committed.records)]
    # Both ends of transactions whose records went are still there.
    assert [each.base_offset for each in kept if each.is_control] == [3, 7, 11, 13]
    assert [each.first_offset for each in committed.aborted_transactions] == [4]
    assert offsets_of(committed.records) == [0, 2, 3, 4, 5, 6, 7, 11, 12, 13]


def test_a_reader_of_committed_records_waits_at_an_open_transaction(
    wire: Wire, inside: BrokerThread, topic: Topic
) -> None:
    """Nothing is before it that would have to be covered, whatever was deleted."""
    from ottla import Producer

    ten(wire, topic)
    delete_at(wire, topic, 3)
    with Producer(f"127.0.0.1:{inside.port}", transactional_id=topic.name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.name, b"open", partition=0)
        producer.flush()
        found = fetch(wire, topic, 11, isolation_level=1)
        assert (found.error_code, found.last_stable_offset) == (0, 11)
        assert not found.records
        producer.commit_transaction()
    assert offsets_of(fetch(wire, topic, 11, isolation_level=1).records) == [11, 12]


# Old clients


@pytest.mark.parametrize("version", [0, 2, 3])
def test_old_formats(wire: Wire, topic: Topic, version: int) -> None:
    ten(wire, topic)
    delete_at(wire, topic, 3, (5, 9))
    found = fetch(wire, topic, 0, version=version)
    assert [each.offset for each in messages(bytes(found.records))] == [0, 1, 2, 4]


def test_a_segment_that_goes_while_it_is_read_shows_nothing_that_was_deleted(
    wire: Wire, inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted of it is forgotten with it, and the reader still has its file."""
    ten(wire, topic)
    delete_at(wire, topic, 3)
    fill(wire, topic, batch_of(b"next"))
    read = Reads.read
    begun, may_go_on = threading.Event(), threading.Event()

    async def slowly(self: Reads, piece: Slice) -> bytes:
        begun.set()
        await asyncio.to_thread(may_go_on.wait, 30)
        return await read(self, piece)

    log = inside.run(lambda broker: broker.partitions.by_name[topic.name][0].log)
    inside.run(lambda _: log.roll(now_ms()))
    inside.until(lambda _: log.flushing is None and log.recovery_point == log.log_end_offset)
    with monkeypatch.context() as patch, inside.wire() as other:
        patch.setattr(Reads, "read", slowly)
        other.send(fetch_request(topic, (0, 0)), 12)
        assert begun.wait(30)
        delete_records(wire, topic, 12)
        assert inside.run(lambda _: log.delete_old_segments(now_ms())) is not None
        inside.run_async(inside.broker.periodic_work.checkpoint())
        may_go_on.set()
        response = other.receive(FetchResponse, 12)
    (answer,) = response.responses[0].partitions
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not answer.records


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("start", [0, 5, 10, 17])
def test_compressed_sets_of_an_old_kafka(
    wire: Wire, inside: BrokerThread, topic: Topic, magic: int, start: int
) -> None:
    """They tell the offset of their last message only."""

    def append(broker: Broker) -> None:
        partition = broker.partitions.by_name[topic.name][0]
        for first in (0, 10, 20):
            every = [Record(first + at, now_ms(), None, b"%d" % (first + at)) for at in range(10)]
            partition.log.append_replicated(build_message_set(every, magic, Codec.GZIP), now_ms())
        partition.advance()

    inside.run(append)
    assert delete_at(wire, topic, 3, 15).error_code == 0
    found: dict[int, bytes | None] = {}
    offset = start
    while offset < 30:
        data = bytes(fetch(wire, topic, offset).records)
        assert data
        at = 0
        while at < len(data):
            fields = fields_at(data, at)
            entry = data[at : at + fields[BATCH_LENGTH] + OVERHEAD]
            read = messages if fields[MAGIC_BYTE] < MAGIC else records
            found |= {record.offset: record.value for record in read(entry)}
            offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
            at += len(entry)
    there = set(range(start - start % 10, 30)) - {3, 15}
    assert found == {each: b"%d" % each for each in there}


# Erasing


def bytes_of_segments(folder: Path) -> bytes:
    """What the log files of a running broker hold, those on their way out included. One that was removed
    after it was listed holds nothing."""
    found = []
    for path in folder.glob("*.log*"):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.read_bytes())
    return b"".join(found)


def test_deleted_records_are_erased(start_broker: Callable[..., BrokerThread]) -> None:
    """Within `delete.record.erase.ms`, also in the active segment; `ottla log verify` proves it."""
    broker = start_broker(
        settings={"log.cleaner.backoff.ms": "10", "log.flush.offset.checkpoint.interval.ms": "50"}
    )
    with broker.wire() as wire:
        topic = create_topic(wire, **{"delete.record.erase.ms": "0"})
        fill(wire, topic, batch_of(b"keep", b"forget", b"keep too"), batch_of(b"forget"))
        delete_at(wire, topic, 1, 3)
        broker.until(lambda running: running.compactor.erasures > 0)
        assert seen(wire, topic) == [b"keep", b"keep too"]
        fill(wire, topic, batch_of(b"later"))
        assert seen(wire, topic) == [b"keep", b"keep too", b"later"]

    def folder(running: Broker) -> Path:
        return Path(running.partitions.by_name[topic.name][0].log.folder)

    path = broker.run(folder)

    broker.until(lambda _: b"forget" not in bytes_of_segments(path))
    (found,) = find_logs(path)
    assert verify_log(found, deep=True).deleted_on_disk == 0


def test_what_was_deleted_before_a_crash_is_erased_in_a_topic_that_nobody_uses(
    start_process: Callable[..., BrokerProcess],
) -> None:
    """The high watermark that was stored last is before the mark: the leader tells the one of now."""
    process = start_process(settings={"log.cleaner.enable": "false"})
    with Wire(process.host, process.port) as wire:
        topic = create_topic(wire, **{"delete.record.erase.ms": "0"})
        fill(wire, topic, batch_of(b"keep", b"forget"))
        delete_at(wire, topic, 1)
    process.kill()
    folder = process.data / f"{topic.name}-0"
    assert b"forget" in bytes_of_segments(folder)
    settings = {
        "log.cleaner.backoff.ms": "10",
        "log.flush.offset.checkpoint.interval.ms": "50",
    }
    with BrokerThread(process.data, settings=settings) as broker:
        broker.until(lambda _: b"forget" not in bytes_of_segments(folder))


def test_what_a_deleted_record_took_the_place_of_goes_with_it(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """A compacted log is compacted before records are erased, however little of it is dirty: without its
    key nobody would know that the older record of the key is to go, and a replica that was compacted
    earlier has lost it."""
    broker = start_broker(
        settings={"log.cleaner.backoff.ms": "10", "log.flush.offset.checkpoint.interval.ms": "50"}
    )
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "1.0",
        "delete.record.erase.ms": "0",
    }
    with broker.wire() as wire:
        topic = create_topic(wire, **settings)
        pairs = ((b"a", b"old"), (b"b", b"keep"), (b"a", b"forget"))
        for key, value in pairs:
            fill(wire, topic, build_batch([Record(0, now_ms(), key, value)]))
        delete_at(wire, topic, 2)

        def is_gone(running: Broker) -> bool:
            deletions = running.partitions.by_name[topic.name][0].log.deletions
            return deletions is not None and not deletions.unerased

        broker.until(is_gone)
        assert seen(wire, topic) == [b"keep"]


def test_where_compaction_is_held_up_records_are_erased_when_all_of_their_time_has_passed(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Here by a transaction that is open; before that they wait for it to end."""
    broker = start_broker(
        settings={"log.cleaner.enable": "false", "log.flush.offset.checkpoint.interval.ms": "50"}
    )
    open_one = build_batch(
        [Record(0, now_ms(), b"b", b"open")],
        producer_id=7, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    with broker.wire() as wire:
        hour = {"cleanup.policy": "compact", "delete.record.erase.ms": "3600000"}
        topic = create_topic(wire, **hour)
        for value in (b"old", b"forget"):
            fill(wire, topic, build_batch([Record(0, now_ms(), b"a", value)]))

        def opened(running: Broker) -> Log:
            partition = running.partitions.by_name[topic.name][0]
            partition.append(bytearray(open_one), now_ms(), COORDINATOR)
            return partition.log

        log = broker.run(opened)
        delete_at(wire, topic, 1)
        broker.run(lambda _: log.roll(now_ms()))
        broker.until(lambda running: running.logs.synced_end(log) == log.log_end_offset)
        deletions = log.deletions
        assert deletions is not None
        half, all_of_it = deletions.since_ms + 1_800_000, deletions.since_ms + 3_600_000
        assert not broker.run(lambda running: running.compactor._erase(log, half))
        assert broker.run(lambda running: running.compactor._erase(log, all_of_it))
        broker.until(lambda _: b"forget" not in bytes_of_segments(Path(log.folder)))
        assert not deletions.unerased


@pytest.mark.complains
def test_a_pass_that_cannot_put_one_segment_in_place_leaves_those_after_it_as_they_are(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that stays has an older record of the key, which nobody would know to be one if the
    deleted record were gone."""
    broker = start_broker(
        settings={"log.cleaner.enable": "false", "log.flush.offset.checkpoint.interval.ms": "50"}
    )
    announce = Swap._announce
    failed: list[Swap] = []

    def fail_once(self: Swap) -> None:
        if not failed:
            failed.append(self)
            raise OSError(errno.EIO, "the disk fails")
        announce(self)

    async def compact(inside: Broker) -> None:
        assert await inside.compactor._dirtiest()
        await inside.compactor._begin_passes(1)
        while inside.compactor._passes:
            await asyncio.wait(inside.compactor._passes.values())

    monkeypatch.setattr(Swap, "_announce", fail_once)
    with broker.wire() as wire:
        settings = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "segment.bytes": "1048576",
        }
        topic = create_topic(wire, **settings)
        pairs = [(b"a", b"old"), (b"b", b"x" * 700_000), (b"a", b"new"), (b"c", b"x" * 700_000)]
        for (key, value), (other, large) in zip(pairs[::2], pairs[1::2], strict=True):
            every = [Record(0, now_ms(), key, value), Record(1, now_ms(), other, large)]
            fill(wire, topic, build_batch(every))
        delete_at(wire, topic, 2)
        log = broker.run(lambda running: running.partitions.by_name[topic.name][0].log)
        broker.run(lambda _: log.roll(now_ms()))
        for _ in range(2):
            broker.until(lambda running: running.logs.synced_end(log) == log.log_end_offset)
            broker.run_async(compact(broker.broker))
        assert failed
        assert seen(wire, topic) == [b"x" * 700_000] * 2


def test_a_log_that_is_copied_to_another_folder_is_not_compacted_for_what_is_to_be_erased(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """The copy may have an older record of the key already, and would never learn of the later one."""
    broker = start_broker(
        settings={"log.cleaner.enable": "false", "log.flush.offset.checkpoint.interval.ms": "50"}
    )
    with broker.wire() as wire:
        topic = create_topic(wire, **{"cleanup.policy": "compact"})
        for value in (b"old", b"forget"):
            fill(wire, topic, build_batch([Record(0, now_ms(), b"a", value)]))
        delete_at(wire, topic, 1)
        log = broker.run(lambda running: running.partitions.by_name[topic.name][0].log)
        broker.run(lambda _: log.roll(now_ms()))
        broker.until(lambda running: running.logs.synced_end(log) == log.log_end_offset)
        assert log.deletions is not None
        half = log.deletions.since_ms + 1_800_000
        broker.run(lambda running: running.logs.relocating.add(log))
        assert not broker.run(lambda running: running.compactor._erase(log, half))
        broker.run(lambda running: running.logs.relocating.discard(log))
        assert broker.run(lambda running: running.compactor._erase(log, half))
        broker.until(lambda running: running.compactor.passes == 1)
        assert seen(wire, topic) == []


@pytest.mark.complains
def test_what_cannot_be_compacted_is_erased_all_the_same(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """And one segment that cannot be read keeps its own records only."""
    broker = start_broker(
        settings={
            "log.cleaner.backoff.ms": "10",
            "log.flush.offset.checkpoint.interval.ms": "50",
            "log.segment.delete.delay.ms": "0",
        }
    )
    with broker.wire() as wire:
        topic = create_topic(
            wire,
            **{
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.0",
                "min.compaction.lag.ms": "3600000",
                "segment.bytes": "1048576",
                "delete.record.erase.ms": "3600000",
            },
        )
        for number in range(4):
            large = bytes(700_000)
            values = (b"keep %d" % number, b"forget %d" % number, large)
            batch = build_batch(
                [
                    Record(each, now_ms(), b"%d %d" % (number, each), value)
                    for each, value in enumerate(values)
                ]
            )
            fill(wire, topic, batch)  # a segment of its own

        def opened(running: Broker) -> Log:
            return running.partitions.by_name[topic.name][0].log

        log = broker.run(opened)
        (path, *_) = sorted(Path(log.folder).glob("*.log"))
        data = path.read_bytes()
        at = data.index(b"keep 0")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"K")
        set_config(wire, topic.name, **{"min.compaction.lag.ms": "0"})
        broker.until(lambda running: opened(running) in running.compactor.uncleanable)
        assert delete_at(wire, topic, 1, 4, 7).deleted == 3
        set_config(wire, topic.name, **{"delete.record.erase.ms": "0"})
        broker.until(lambda running: opened(running) in running.compactor.unerasable)

        def is_gone(_: Broker) -> bool:
            left = bytes_of_segments(Path(log.folder))
            return b"forget 1" not in left and b"forget 2" not in left

        broker.until(is_gone)
        ((offsets, why),) = broker.run(
            lambda running: running.compactor.unerasable[opened(running)]
        ).items()
        assert offsets == (0, 3)
        assert "00000000000000000000.log" in why
        assert b"forget 0" in path.read_bytes()
        deletions = log.deletions
        assert deletions is not None
        assert list(deletions.unerased) == [(1, 2)]


def test_requests_for_one_partition_come_one_after_the_other(
    wire: Wire, inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one finds undeleted is so until it is marked: it is done as a whole or not at all, also if
    another, which has one record in common with it, comes at the same time."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)  # the loop's turn after every step
    count = 6_000
    fill(wire, topic, batch_of(*(b"%d" % each for each in range(count))))
    even = [(each, each) for each in range(0, count, 2)]
    odd = [*((each, each) for each in range(1, count - 2, 2)), even[-1]]
    answers = []
    with inside.wire() as one, inside.wire() as other:
        one.send(delete_request(topic, even), 0)
        other.send(delete_request(topic, odd), 0)
        for each in (one, other):
            response = each.receive(DeleteRecordsAtResponse, 0)
            answers.append(response.topics[0].partitions[0])
    second, first = sorted(answers, key=lambda each: each.deleted)
    assert (first.error_code, first.deleted) == (0, count // 2)
    assert (second.error_code, second.deleted) == (ErrorCode.INVALID_REQUEST, 0)
    assert second.error_message == f"offset {count - 2} is deleted already"
    assert len(seen(wire, topic)) == count // 2
