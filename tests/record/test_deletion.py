"""Marks of deleted records, and batches without them."""

from __future__ import annotations

import random

import pytest

from ottla.logfiles.visible import without
from ottla.logfiles.walk import fields_at
from ottla.record.batch import (
    BATCH_LENGTH,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_BYTE,
    Record,
    build_batch,
    check_batch,
    records,
)
from ottla.record.compression.codecs import Codec
from ottla.record.control import COMMIT, build_end_of_transaction, control_type
from ottla.record.deletion import DELETION, build_cover, build_mark, read_mark
from ottla.record.errors import InvalidRecord
from ottla.record.legacy import build_message_set, messages


def batch(first: int, count: int, codec: int = Codec.NONE, **fields: int) -> bytes:
    return build_batch(
        [
            Record(first + each, 1000 + each, b"key", b"value %d" % (first + each), (("h", b"1"),))
            for each in range(count)
        ],
        base_offset=first,
        codec=codec,
        **fields,
    )


def offsets(data: bytes) -> list[int]:
    found = []
    while data:
        header = check_batch(data)
        found += [record.offset for record in records(data[: header.size])]
        data = data[header.size :]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_mark_says_what_it_marks(seed: int) -> None:
    chosen = random.Random(seed)
    ranges = []
    at = 0
    for _ in range(chosen.randrange(1, 300)):
        at += chosen.choice((1, 2, 100, 1 << 33))
        end = at + chosen.choice((1, 1, 1, 50, 1 << 20))
        ranges.append((at, end))
        at = end
    assert read_mark(build_mark(ranges)) == ranges


def test_the_shape_of_a_mark() -> None:
    data = build_mark([(7, 8), (10, 20)], base_offset=42)
    header = check_batch(data)
    (record,) = records(data)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (42, 42, -1)
    assert record.key == bytes.fromhex("00004f54")
    assert control_type(record) == DELETION
    assert record.value == bytes.fromhex("0000" + "04" + "0e00" + "0412")


def test_ten_thousand_neighbours_take_three_bytes_each() -> None:
    data = build_mark([(each, each + 1) for each in range(10**9, 10**9 + 20_000, 2)])
    assert len(data) < 10_000 * 2 + 100


def test_other_control_batches_are_no_marks() -> None:
    end = build_end_of_transaction(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    assert read_mark(end) is None
    assert read_mark(build_cover(3, 9, 0)) is None


@pytest.mark.parametrize(
    "value", [None, b"", b"\0\1\0", b"\0\0\x7e", b"\0\0\2\1\0", b"\0\0\2\0"], ids=repr
)
def test_marks_that_make_no_sense(value: bytes | None) -> None:
    data = build_batch([Record(0, -1, bytes.fromhex("00004f54"), value)], control=True)
    with pytest.raises(InvalidRecord):
        read_mark(data)


def test_ranges_in_order_only() -> None:
    with pytest.raises(ValueError, match="after"):
        build_mark([(5, 6), (4, 5)])


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_its_place_and_loses_a_record(codec: Codec) -> None:
    data = batch(10, 5, codec, producer_id=7, producer_epoch=2, base_sequence=30, leader_epoch=4)
    left, end = without(data, [(3, 4), (11, 12), (14, 15), (90, 95)])
    assert end == 15
    assert offsets(left) == [10, 12, 13]
    header = check_batch(left)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 14, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 30)
    assert (header.partition_leader_epoch, header.codec) == (4, codec)
    # The record with the largest timestamp went.
    assert header.max_timestamp == 1003
    assert list(records(left)) == [each for each in records(data) if each.offset in (10, 12, 13)]


def test_batches_without_hidden_records_come_as_they_are() -> None:
    clean, touched, mark = batch(0, 3), batch(3, 3), build_mark([(4, 5)], base_offset=6)
    end = build_end_of_transaction(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0,
        base_offset=7,
    )  # fmt: skip
    left, end_offset = without(clean + touched + mark + end, [(4, 5), (6, 7)])
    assert end_offset == 8
    assert left.startswith(clean)
    assert left.endswith(end)
    assert offsets(left) == [0, 1, 2, 3, 5, 7]


def test_emptied_batches_and_marks_go() -> None:
    data = batch(0, 2) + batch(2, 2) + build_mark([(0, 4)], base_offset=4)
    assert without(data, [(0, 5)]) == (b"", 5)
    # Also one whose other records compaction had removed.
    compacted = build_batch([Record(3, 0, b"k", b"v")], base_offset=1, last_offset=9)
    assert without(compacted, [(3, 4)]) == (b"", 10)


def test_a_batch_that_was_emptied_by_erasing_and_compaction_goes() -> None:
    """Compaction took some of its records, which nothing hides."""
    empty = build_batch((), base_offset=10, last_offset=19, producer_id=7, base_sequence=0)
    following = build_batch([Record(20, 1, None, b"value")], base_offset=20)
    assert without(empty + following, [(12, 13), (15, 16)]) == (following, 21)


def test_a_batch_that_is_cut_goes() -> None:
    data = batch(0, 2) + batch(2, 2)
    for cut in (1, 30, 60):
        left, end = without(data[:-cut], [(0, 1)])
        assert (offsets(left), end) == ([1], 2)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(codec: Codec) -> None:
    old = build_message_set(
        [Record(each, 1000 + each, b"k", b"v%d" % each) for each in range(5, 9)],
        magic=1,
        codec=codec,
    )
    left, end = without(old, [(6, 7)])
    assert end == 9
    seen = []
    view = memoryview(left)
    at = 0
    while at < len(view):
        fields = fields_at(view, at)
        entry = view[at : at + fields[BATCH_LENGTH] + LENGTH_OVERHEAD]
        read = messages if fields[MAGIC_BYTE] < MAGIC else records
        seen += [each.offset for each in read(entry)]
        at += len(entry)
    assert seen == [5, 7, 8]


def test_a_cover_reaches_to_the_end() -> None:
    data = build_cover(5, 12, 3)
    header = check_batch(data)
    (record,) = records(data)
    assert (header.base_offset, header.last_offset, record.offset) == (5, 11, 11)
    assert (header.is_control, header.producer_id, control_type(record)) == (True, -1, COMMIT)
    far = check_batch(build_cover(5, 1 << 40, 3))
    assert far.last_offset == 5 + (1 << 31) - 1
