"""Ranges: what is missing is reported, and the pieces make up the whole."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.positions import TopicPartition
from pyspark_ottla.errors import DataLost, OptionError
from pyspark_ottla.options import read_options
from pyspark_ottla.ranges import HeldOffsets, Range, divided, for_each, ranges_between

PARTITION = TopicPartition("orders", 0)
OPTIONS = read_options({"kafka.bootstrap.servers": "a:1", "subscribe": "orders"})


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 200),
)
def test_pieces_make_up_the_whole(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [
        Range(TopicPartition("orders", index), start, start + size)
        for index, (start, size) in enumerate(sizes)
    ]
    pieces = divided(ranges, min_partitions, max_records)
    assert all(piece.size > 0 for piece in pieces)
    offsets = [(piece.partition, at) for piece in pieces for at in range(piece.start, piece.end)]
    assert offsets == [
        (each.partition, at) for each in ranges for at in range(each.start, each.end)
    ]
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    if min_partitions is not None:
        assert len(pieces) >= min(min_partitions, len(offsets))
    if max_records is None and min_partitions is None:
        assert len(pieces) == sum(size > 0 for _, size in sizes)


def test_the_largest_is_cut_first() -> None:
    small, large = (Range(TopicPartition("orders", n), 0, size) for n, size in ((0, 10), (1, 90)))
    pieces = divided([small, large], 4, None)
    assert [piece.size for piece in pieces] == [10, 30, 30, 30]


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(-2, -1, (10, 20)), (12, 15, (12, 15)), (20, -1, (20, 20)), (16, 12, (12, 12))],
)
def test_what_is_there(start: int, end: int, left: tuple[int, int]) -> None:
    held = {PARTITION: HeldOffsets(10, 20)}
    ranges = ranges_between({PARTITION: start}, {PARTITION: end}, held, OPTIONS)
    assert ranges == [Range(PARTITION, *left)]


@pytest.mark.parametrize(
    ("start", "end", "left", "said"),
    [
        (5, -1, (10, 20), "orders-0 begins at offset 10, and startingOffsets says 5"),
        (5, 8, (8, 8), "orders-0 begins at offset 10"),
        (-2, 25, (10, 20), "endingOffsets says 25 for orders-0, after its last stable offset 20"),
        (25, -1, (20, 20), "startingOffsets says 25 for orders-0, after"),
    ],
)
def test_what_is_not_there(start: int, end: int, left: tuple[int, int], said: str) -> None:
    held = {PARTITION: HeldOffsets(10, 20)}
    with pytest.raises(DataLost) as raised:
        ranges_between({PARTITION: start}, {PARTITION: end}, held, OPTIONS)
    assert said in str(raised.value)
    careless = dataclasses.replace(OPTIONS, fail_on_data_loss=False)
    ranges = ranges_between({PARTITION: start}, {PARTITION: end}, held, careless)
    assert ranges == [Range(PARTITION, *left)]


def test_offsets_name_every_partition_that_is_read_and_no_other() -> None:
    other = TopicPartition("orders", 1)
    with pytest.raises(OptionError, match="orders-1 is missing"):
        for_each({PARTITION: 1}, OPTIONS.start, [PARTITION, other])
    with pytest.raises(OptionError, match="names orders-1"):
        for_each({PARTITION: 1, other: 1}, OPTIONS.start, [PARTITION])
