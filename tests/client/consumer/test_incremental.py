"""Fetch answers that are decoded while they come in."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from ottla import Admin, AsyncConsumer, Consumer, Producer
from ottla.client.consumer.epochs import UNKNOWN_EPOCH
from ottla.client.consumer.incremental import Head, IncrementalAnswer, Outline
from ottla.client.consumer.partitions import ReadPartition
from ottla.client.consumer.rows import IncrementalRows, RowsLayout
from ottla.client.positions import TopicPartition
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.record.batch import Record, build_batch
from ottla.record.columns import compile_kernels

VERSIONS = range(5, 19)


def some_answer(dice: random.Random, version: int) -> FetchResponse:
    def partition(index: int) -> PartitionData:
        data = PartitionData(
            partition_index=index,
            error_code=dice.choice((0, 0, 3)),
            high_watermark=99,
            last_stable_offset=98,
            log_start_offset=1,
            aborted_transactions=dice.choice(
                (None, [], [AbortedTransaction(producer_id=at, first_offset=at) for at in range(3)])
            ),
            records=dice.choice((None, b"", dice.randbytes(300))),
        )
        if version >= 11:
            data.preferred_read_replica = dice.choice((-1, 5))
        if version >= 12 and dice.random() < 0.5:
            data.current_leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
            data.diverging_epoch = EpochEndOffset(epoch=3, end_offset=4)
        return data

    def topic(number: int) -> FetchableTopicResponse:
        partitions = [partition(index) for index in range(dice.randrange(4))]
        if version >= 13:
            return FetchableTopicResponse(topic_id=bytes([number] * 16), partitions=partitions)
        return FetchableTopicResponse(topic=f"töpic-{number}", partitions=partitions)

    return FetchResponse(responses=[topic(number) for number in range(dice.randrange(4))])


def heads(answer: FetchResponse, version: int) -> list[tuple[object, ...]]:
    return [
        (
            topic.topic_id if version >= 13 else topic.topic,
            data.partition_index,
            data.error_code,
            [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
            data.preferred_read_replica,
            bytes(data.records or b""),
        )
        for topic in answer.responses
        for data in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_outline_of_an_answer_wherever_it_is_cut(version: int) -> None:
    for seed in range(30):
        dice = random.Random(f"{version}/{seed}")
        answer = some_answer(dice, version)
        frame = memoryview(b"head" + b"".join(answer.encode_parts(version)))
        for step in (1, 7, len(frame)):
            outline = Outline(version, 4)
            found: list[Head] = []
            inside = False
            for arrived in [*range(4, len(frame), step), len(frame)]:
                part = frame[:arrived]
                while True:
                    if not inside:
                        head = outline.next(part)
                        if head is None:
                            break
                        found.append(head)
                        inside = True
                    if not outline.pass_records(part):
                        break
                    inside = False
            told = [
                (*each[:5], bytes(frame[each.start : each.start + each.size])) for each in found
            ]
            assert told == heads(answer, version), f"seed {seed}, {step} at a time"


def _not_wanted(head: Head, records: memoryview) -> None:
    assert head.size == len(records)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_answer_upsets_it(version: int) -> None:
    """Whatever is wrong with an answer is found out when it is decoded as a whole."""
    dice = random.Random(version)
    for _ in range(300):
        frame = bytearray(b"".join(some_answer(dice, version).encode_parts(version)))
        for _ in range(dice.randrange(1, 4)):
            frame[dice.randrange(len(frame))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        incremental = IncrementalAnswer(version, _not_wanted)
        for arrived in sorted(dice.randrange(len(frame) + 1) for _ in range(4)):
            incremental(memoryview(frame), 0, arrived)


def test_rows_are_ready_before_the_answer_is_whole() -> None:
    assert compile_kernels()
    records = [Record(at, 1_800_000_000_000, None, b"v" * 1000) for at in range(4000)]
    batches = b"".join(
        build_batch(records[at : at + 100], base_offset=at) for at in range(0, 4000, 100)
    )
    data = PartitionData(partition_index=3, records=batches, aborted_transactions=None)
    topic = FetchableTopicResponse(topic_id=b"i" * 16, partitions=[data])
    frame = b"".join(FetchResponse(responses=[topic]).encode_parts(16))
    begun: list[IncrementalRows] = []

    def begin(head: Head, place: memoryview) -> IncrementalRows:
        assert (head.topic, head.partition, head.error_code) == (b"i" * 16, 3, 0)
        rows = RowsLayout().incremental(place, TopicPartition("topic", 3))
        begun.append(rows)
        return rows

    buffer = bytearray(len(frame))
    incremental = IncrementalAnswer(16, begin)
    for at in range(0, len(frame), 500_000):
        buffer[at : at + 500_000] = frame[at : at + 500_000]
        incremental(memoryview(buffer).toreadonly(), 0, min(at + 500_000, len(frame)))
    (rows,) = begun
    assert 1_000_000 < rows.left < 1_700_000  # the last of it is left for later
    ((table, next_offset),) = rows
    assert next_offset == 4000
    assert table.column("offset").to_pylist() == list(range(4000))
    assert set(table.column("value").to_pylist()) == {b"v" * 1000}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_large_answers_of_several_partitions(
    bootstrap: str, admin: Admin, topic: str, codec: str
) -> None:
    assert compile_kernels()
    values = [b"%08d" % number + b"v" * 2000 for number in range(12_000)]
    table = pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([number % 3 for number in range(12_000)], pa.int32()),
        }
    )
    admin.create_topic(topic, partitions=3)
    with Producer(bootstrap, compression_type=codec) as producer:
        producer.write(topic, table).result(60)
    for fetch in (8 << 20, 2 << 20):
        with Consumer(bootstrap, max_partition_fetch_bytes=fetch) as consumer:
            found = consumer.read(topic)
        rows = zip(
            found.column("partition").to_pylist(),
            found.column("offset").to_pylist(),
            found.column("value").to_pylist(),
            strict=True,
        )
        by_partition = itertools.groupby(sorted(rows), key=lambda row: row[0])
        read = {index: [row[2] for row in of_it] for index, of_it in by_partition}
        assert read == {index: values[index::3] for index in range(3)}


def test_a_scan_leaves_no_connection_behind(bootstrap: str, admin: Admin, topic: str) -> None:
    """Each has its own, with buffers as large as the answers were."""
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap) as producer:
        producer.send(topic, b"value").result(60)
    with Consumer(bootstrap) as consumer:
        entries = consumer._consumer._cluster._connections._entries
        assert consumer.read(topic).num_rows == 1
        before = len(entries)
        for _ in range(3):
            assert consumer.read(topic).num_rows == 1
        assert len(entries) == before
        assert not any(lane.startswith("fetch") for _, _, lane in entries)


async def test_an_answer_is_decoded_beside_the_one_before_it(bootstrap: str) -> None:
    """Also one that had to wait until another that was ahead had its turn."""
    begun = [threading.Event() for _ in range(4)]
    gates = [threading.Event() for _ in range(4)]
    rows = pa.record_batch({"offset": pa.array([1], pa.int64())})

    def results(number: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        begun[number].set()
        assert gates[number].wait(30)
        yield rows, number + 1

    async with AsyncConsumer(bootstrap) as consumer:
        fetcher = consumer._fetcher
        fetcher._threads = ThreadPoolExecutor(2)
        state = ReadPartition(TopicPartition("topic", 0), 0, 0)
        for number in range(4):
            fetcher.queue.occupy(1000)
            job = fetcher._decode(
                *(state, 0, state.decoding, results(number), 1000, UNKNOWN_EPOCH), in_place=False
            )
            state.decoding = fetcher._spawn(job)
        for number in range(4):
            following = begun[min(number + 1, 3)]
            assert await asyncio.to_thread(following.wait, 30)
            assert not any(each.is_set() for each in begun[number + 2 :])  # one ahead, no more
            gates[number].set()
        assert state.decoding is not None
        await state.decoding
        taken = [fetcher.queue.take() for _ in range(4)]
        assert [each.next_offset for each in taken if each is not None] == [1, 2, 3, 4]
        assert fetcher.queue.occupied == 0
