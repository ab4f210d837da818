"""Batches of keys and values: the bytes that the general way makes, and the header that is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import Record, build_batch, check_batch, read_header_fields
from ottla.record.pairs import build_pairs

NOW = 1_700_000_000_000
PAIRS = st.lists(st.tuples(st.binary(), st.none() | st.binary()), min_size=1)


def generally(
    pairs: list[tuple[bytes, bytes | None]],
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> bytes:
    return build_batch(
        [Record(offset, NOW, key, value) for offset, (key, value) in enumerate(pairs)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
    )


@given(PAIRS)
def test_plain_pairs(pairs: list[tuple[bytes, bytes | None]]) -> None:
    batch, header = build_pairs(pairs, NOW)
    assert batch == generally(pairs)
    assert header == read_header_fields(batch, 0) == check_batch(batch)


def test_pairs_of_a_transaction() -> None:
    pairs: list[tuple[bytes, bytes | None]] = [(b"key", b"value"), (b"gone", None)]
    batch, header = build_pairs(pairs, NOW, 7, 3, transactional=True)
    assert batch == generally(pairs, 7, 3, transactional=True)
    assert header == read_header_fields(batch, 0)


@pytest.mark.parametrize("size", [60, 63, 64, 1020, 1023, 1024, 9_000])
def test_lengths_of_every_width(size: int) -> None:
    pairs: list[tuple[bytes, bytes | None]] = [
        (b"k" * size, b"v"),
        (b"k", b"v" * size),
        (b"k" * size, None),
    ]
    batch, header = build_pairs(pairs, NOW)
    assert batch == generally(pairs)
    assert header == read_header_fields(batch, 0)


@pytest.mark.parametrize("count", [64, 65, 1024, 1025, 9_000])
def test_many_pairs(count: int) -> None:
    pairs: list[tuple[bytes, bytes | None]] = [(b"key", b"value")] * count
    batch, header = build_pairs(pairs, NOW)
    assert batch == generally(pairs)
    assert header == read_header_fields(batch, 0)
