"""Recompression changes the codec and nothing else; the deep check finds what the header hides."""

from __future__ import annotations

import pytest

from ottla.record.batch import (
    CODEC_MASK,
    Record,
    TooLarge,
    build_batch,
    check_batch,
    records,
)
from ottla.record.compression.codecs import Codec
from ottla.record.compression.recompress import recompress

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


def test_it_is_bounded() -> None:
    batch = build_batch([Record(0, NOW, None, bytes(1_000_000))], codec=Codec.ZSTD)
    with pytest.raises(TooLarge):
        recompress(batch, Codec.NONE, limit=500_000)
