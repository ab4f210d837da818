"""What aiokafka and kafka-python write, we read, and the other way round, in every format and codec."""

from __future__ import annotations

import random
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaMessageSet
from aiokafka.record.memory_records import MemoryRecords as AiokafkaReader
from kafka.record.memory_records import MemoryRecords as KafkaPythonReader
from kafka.record.memory_records import MemoryRecordsBuilder as KafkaPythonBuilder

from ottla.record.batch import Record, build_batch, check_produced, read_header, records
from ottla.record.compression.codecs import Codec
from ottla.record.legacy import build_message_set, downgrade, messages, upgrade

ROOM = 1 << 24


def sample(seed: int, *, headers: bool, offset: int = 0) -> list[Record]:
    chance = random.Random(seed)

    def content() -> bytes | None:
        size = chance.choice((0, 1, 10, 100, 3000, 100_000))
        kind = chance.randrange(4)
        if kind == 0:
            return None
        return chance.randbytes(size) if kind == 1 else (b"%d;" % size * size)[:size]

    return [
        Record(
            offset + index,
            1_700_000_000_000 + chance.randrange(-5000, 5000),
            content(),
            content(),
            tuple((f"h{n}", content()) for n in range(chance.randrange(3))) if headers else (),
        )
        for index in range(chance.choice((1, 2, 70)))
    ]


def aiokafka_batch(written: list[Record], codec: int) -> bytes:
    builder = AiokafkaBatch(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=11,
        producer_epoch=2,
        base_sequence=5,
        batch_size=ROOM,
    )
    for record in written:
        assert builder.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    return bytes(builder.build())


def aiokafka_message_set(written: list[Record], magic: int, codec: int) -> bytes:
    builder = AiokafkaMessageSet(magic=magic, compression_type=codec, batch_size=ROOM)
    for record in written:
        assert builder.append(record.offset, record.timestamp, record.key, record.value)
    return bytes(builder.build())


def kafka_python(written: list[Record], magic: int, codec: int) -> bytes:
    builder = KafkaPythonBuilder(magic=magic, compression_type=codec, batch_size=ROOM)
    for record in written:
        assert builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    return bytes(builder.buffer())


def found_by(reader: Any, data: bytes) -> list[Record]:
    found = []
    batches = reader(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            headers = tuple((key, value) for key, value in record.headers)
            found.append(Record(record.offset, timestamp, record.key, record.value, headers))
    return found


def without_timestamps(written: list[Record], magic: int) -> list[Record]:
    return written if magic > 0 else [record._replace(timestamp=-1) for record in written]


# kafka-python needs packages beside the standard library for all codecs but gzip; aiokafka has
# them, but never learnt the header checksum of LZ4 in v0.
LEGACY = [
    (magic, codec)
    for magic in (0, 1)
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    if (magic, codec) != (0, Codec.LZ4)
]
SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_batches(codec: Codec, seed: int) -> None:
    written = sample(seed, headers=True)
    theirs = aiokafka_batch(written, codec)
    assert list(records(theirs)) == written
    header = read_header(theirs)
    assert check_produced(theirs) == header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 5)
    ours = build_batch(
        written,
        codec=codec,
        producer_id=11,
        producer_epoch=2,
        base_sequence=5,
        transactional=True,
    )
    assert found_by(AiokafkaReader, ours) == written
    if codec == Codec.NONE:
        # They leave the leader epoch at 0, which the broker stamps anyway.
        assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_kafka_python_batches(codec: Codec, seed: int) -> None:
    written = sample(seed, headers=True)
    assert list(records(kafka_python(written, 2, codec))) == written
    assert found_by(KafkaPythonReader, build_batch(written, codec=codec)) == written


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("magic", "codec"), LEGACY)
def test_aiokafka_message_sets(magic: int, codec: Codec, seed: int) -> None:
    written = sample(seed, headers=False)
    theirs = aiokafka_message_set(written, magic, codec)
    assert list(messages(theirs)) == without_timestamps(written, magic)
    assert list(records(upgrade(theirs))) == without_timestamps(written, magic)
    ours = build_message_set(written, magic, codec)
    assert found_by(AiokafkaReader, ours) == without_timestamps(written, magic)
    if codec == Codec.NONE:
        assert ours == theirs


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_kafka_python_message_sets(magic: int, codec: Codec, seed: int) -> None:
    written = sample(seed, headers=False)
    theirs = kafka_python(written, magic, codec)
    assert list(messages(theirs)) == without_timestamps(written, magic)
    ours = build_message_set(written, magic, codec)
    assert found_by(KafkaPythonReader, ours) == without_timestamps(written, magic)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("magic", "codec"), LEGACY)
def test_they_read_what_we_downgrade(magic: int, codec: Codec, seed: int) -> None:
    written = sample(seed, headers=True, offset=5_000_000_000)
    batch = build_batch(written, base_offset=5_000_000_000, codec=codec)
    wanted = [record._replace(headers=()) for record in without_timestamps(written, magic)]
    downgraded = downgrade(batch, magic)
    assert found_by(AiokafkaReader, downgraded) == wanted
    if codec in (Codec.NONE, Codec.GZIP):
        assert found_by(KafkaPythonReader, downgraded) == wanted
