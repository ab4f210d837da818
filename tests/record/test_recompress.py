"""Recompression changes the codec and nothing else; the deep check finds what the header hides."""

from __future__ import annotations

import pytest

from ottla.record.batch import (
    CODEC_MASK,
    InvalidBatch,
    InvalidRecord,
    Record,
    TooLarge,
    assemble,
    build_batch,
    check_batch,
    read_header,
    records,
)
from ottla.record.codecs import Codec
from ottla.record.errors import TimestampOutOfRange
from ottla.record.recompress import recompress, validate_records

NOW = 1_700_000_000_000
RECORDS = [
    Record(7 + index, NOW + index, b"key %d" % index, b"value " * 40, (("h", b"x"),))
    for index in range(20)
]


def sample(codec: Codec) -> bytes:
    return build_batch(
        RECORDS,
        base_offset=7,
        codec=codec,
        producer_id=5,
        producer_epoch=1,
        base_sequence=3,
        leader_epoch=9,
        transactional=True,
    )


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_only_the_codec_changes(source: Codec, target: Codec) -> None:
    before = sample(source)
    after = recompress(memoryview(before), target)
    old, new = check_batch(before), check_batch(after)
    assert new.codec == target
    assert new.attributes & ~CODEC_MASK == old.attributes & ~CODEC_MASK
    kept = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert new._replace(**kept) == old._replace(**kept)
    assert list(records(after)) == RECORDS
    if source == target:
        assert after == before


def test_the_level_is_used_even_for_the_same_codec() -> None:
    noisy = [record._replace(value=bytes(i * i % 251 for i in range(3000))) for record in RECORDS]
    fast = build_batch(noisy, base_offset=7, codec=Codec.GZIP, level=1)
    best = recompress(fast, Codec.GZIP, 9)
    assert len(best) < len(fast)
    assert list(records(best)) == noisy


def test_an_emptied_batch_stays_as_it_is() -> None:
    batch = build_batch([], base_offset=3, last_offset=9)
    assert recompress(batch, Codec.LZ4) == batch
    validate_records(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_lying_records_are_refused_by_both(codec: Codec) -> None:
    batch = sample(codec)
    lying = assemble(read_header(batch)._replace(record_count=21), batch[61:])
    validate_records(batch)
    for work in (validate_records, lambda data: recompress(data, Codec.SNAPPY)):
        with pytest.raises(InvalidRecord):
            work(lying)


def test_garbage_with_a_right_checksum_is_refused() -> None:
    for codec in Codec:
        garbage = assemble(read_header(sample(codec)), b"\x00garbage" * 30)
        check_batch(garbage)
        with pytest.raises(InvalidBatch):
            validate_records(garbage)


def test_keys_can_be_required() -> None:
    keyless = build_batch([*RECORDS, Record(40, NOW, None, b"v")], base_offset=7)
    validate_records(keyless)
    validate_records(sample(Codec.NONE), keys_required=True)
    with pytest.raises(InvalidRecord, match="no key"):
        validate_records(keyless, keys_required=True)


def test_both_are_bounded() -> None:
    batch = build_batch([Record(0, NOW, None, bytes(1_000_000))], codec=Codec.ZSTD)
    with pytest.raises(TooLarge):
        validate_records(batch, 500_000)
    with pytest.raises(TooLarge):
        recompress(batch, Codec.NONE, limit=500_000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_record_that_is_too_old_is_refused_wherever_it_stands(codec: Codec) -> None:
    times = [1000, 400, 2000, -1]
    batch = build_batch(
        [Record(offset, at, None, b"value") for offset, at in enumerate(times)], codec=codec
    )
    validate_records(batch, not_before=400)
    with pytest.raises(TimestampOutOfRange, match="record at 1 has the timestamp 400"):
        validate_records(batch, not_before=401)
