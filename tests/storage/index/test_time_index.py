"""The time index; what it shares with the others is in test_offset_index."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.maps import Maps
from ottla.storage.index.time_index import NO_TIMESTAMP, TimeIndex

# 00000000000000001462.timeindex of a transactional topic, as Kafka 4.3.1 wrote it.
KAFKA_BASE = 1462
KAFKA_FILE = bytes.fromhex(
    "000001a1de58b35d00000006000001a1de58b3680000000a000001a1de58b36d00000012"
    "000001a1de58b36f00000016000001a1de58b3730000001e000001a1de58b37500000022"
    "000001a1de58b37b0000002a000001a1de58b39700000032000001a1de58b39900000036"
    "000001a1de58b39d0000003e000001a1de58b39f00000042000001a1de58b3a40000004a"
    "000001a1de58b3a60000004e000001a1de58b3aa00000056000001a1de58b3ac0000005a"
    "000001a1de59ae2000000063"
)
KAFKA_ENTRIES = [
    (timestamp, KAFKA_BASE + relative)
    for timestamp, relative in struct.iter_unpack(">qi", KAFKA_FILE)
]


def index_at(path: Path, base: int = 0, **options: object) -> TimeIndex:
    options.setdefault("maps", Maps())
    return TimeIndex(str(path), base, 1 << 20, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.timeindex"


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("padding", [0, 12, 12 * 1000, 12 * 100_000])
def test_reads_what_kafka_wrote(path: Path, sealed: bool, padding: int) -> None:
    path.write_bytes(KAFKA_FILE + bytes(padding))
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.sanity_check()
    index.verify()
    assert list(index.entries()) == KAFKA_ENTRIES
    assert index.last_entry == (1794731781664, 1561)
    assert index.last_timestamp == 1794731781664
    first, second = KAFKA_ENTRIES[:2]
    assert index.lookup(first[0] - 1) == (NO_TIMESTAMP, KAFKA_BASE)
    assert index.lookup(first[0]) == first
    assert index.lookup(second[0] - 1) == first
    assert index.lookup(2**62) == KAFKA_ENTRIES[-1]


def test_writes_what_kafka_writes(path: Path) -> None:
    index = index_at(path, KAFKA_BASE, fresh=True)
    for entry in KAFKA_ENTRIES:
        assert index.append(*entry)
    index.flush()
    assert path.read_bytes() == KAFKA_FILE
    index.seal()
    assert list(index.entries()) == KAFKA_ENTRIES
    assert index.last_entry == KAFKA_ENTRIES[-1]


def test_an_empty_index(path: Path) -> None:
    index = index_at(path, 5)
    assert index.last_entry == (NO_TIMESTAMP, 5)
    assert index.lookup(100) == (NO_TIMESTAMP, 5)
    assert not path.exists()
    index.seal()
    assert path.read_bytes() == b""
    assert index.last_entry == (NO_TIMESTAMP, 5)
    assert index.lookup(100) == (NO_TIMESTAMP, 5)


def test_only_a_larger_timestamp_adds_an_entry(path: Path) -> None:
    index = index_at(path, 10, fresh=True)
    assert not index.append(NO_TIMESTAMP, 10)  # a segment of records without timestamps
    assert index.append(100, 12)
    assert not index.append(100, 12)
    assert not index.append(100, 15)
    assert index.append(101, 12)
    assert list(index.entries()) == [(100, 12), (101, 12)]


@pytest.mark.parametrize("entry", [(99, 20), (100, 11), (101, 11), (102, 9)])
def test_a_step_back_is_a_mistake(path: Path, entry: tuple[int, int]) -> None:
    index = index_at(path, 10, fresh=True)
    index.append(100, 12)
    for _ in ("in memory", "loaded again"):
        with pytest.raises(ValueError, match="comes before"):
            index.append(*entry)
        assert list(index.entries()) == [(100, 12)]
        index.write()
        index = index_at(path, 10)


def test_an_offset_before_the_segment_is_a_mistake(path: Path) -> None:
    with pytest.raises(ValueError, match="comes before"):
        index_at(path, 10, fresh=True).append(5, 9)


def test_an_offset_too_far_out_changes_nothing(path: Path) -> None:
    index = index_at(path, 10, fresh=True)
    with pytest.raises(OverflowError):
        index.append(5, 10 + 2**31)
    assert index.append(5, 10 + 2**31 - 1)
    assert list(index.entries()) == [(5, 10 + 2**31 - 1)]


def test_a_sealed_index_takes_no_entry(path: Path) -> None:
    index = index_at(path, fresh=True)
    index.append(1, 1)
    index.seal()
    with pytest.raises(ValueError, match="sealed"):
        index.append(2, 2)


def test_full_while_one_slot_is_left_for_the_roll(path: Path) -> None:
    index = TimeIndex(str(path), 0, 3 * 12 + 11, fresh=True)
    index.append(1, 1)
    assert not index.is_full
    index.append(2, 2)
    assert index.is_full
    assert index.append(3, 3)


def test_the_year_1970_is_a_time_too(path: Path) -> None:
    """One record with timestamp 0 at the base offset is an entry of zeros, and no padding."""
    index = index_at(path, 7, fresh=True)
    assert index.append(0, 7)
    index.flush()
    assert path.read_bytes() == bytes(12)
    assert index_at(path, 7).last_entry == (0, 7)
    assert index_at(path, 7, sealed=True).last_entry == (0, 7)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("offset", "left"), [(0, 0), (1468, 0), (1469, 1), (1560, 15), (1561, 15), (1562, 16)]
)
def test_truncation_goes_by_offset(path: Path, sealed: bool, offset: int, left: int) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.truncate_to(offset)
    assert path.read_bytes() == KAFKA_FILE[: left * 12]
    assert list(index.entries()) == KAFKA_ENTRIES[:left]
    last = KAFKA_ENTRIES[left - 1][0] if left else NO_TIMESTAMP
    assert index.last_timestamp == last
    assert index.append(last + 1, 3000)


@pytest.mark.parametrize(
    "entries",
    [
        [(5, 10), (4, 20)],
        [(5, 10), (5, 20)],
        [(5, 20), (6, 10)],
        [(-1, 10), (6, 20)],
        [(5, -1), (6, 20)],
        [(5, 10), (0, 0), (6, 20)],
    ],
)
def test_entries_out_of_order(path: Path, entries: list[tuple[int, int]]) -> None:
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    with pytest.raises(CorruptIndex):
        index_at(path, sealed=True).verify()
    for use in ("sanity_check", "verify"):
        with pytest.raises(CorruptIndex):
            getattr(index_at(path), use)()
    with pytest.raises(CorruptIndex):
        index_at(path).append(100, 1000)
    if len(entries) == 2:
        with pytest.raises(CorruptIndex):
            index_at(path, sealed=True).sanity_check()


@pytest.mark.parametrize("sealed", [True, False])
def test_odd_size(path: Path, sealed: bool) -> None:
    path.write_bytes(KAFKA_FILE + bytes(8))
    with pytest.raises(CorruptIndex, match="no whole number of entries"):
        index_at(path, KAFKA_BASE, sealed=sealed).sanity_check()


def test_a_negative_entry_is_never_given_out(path: Path) -> None:
    path.write_bytes(struct.pack(">qiqi", 1, 1, 2, -2))
    with pytest.raises(CorruptIndex, match="entry 1"):
        _ = index_at(path, sealed=True).last_entry


@given(steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=60), data=st.data())
def test_lookups_agree_with_a_scan(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("index") / "i"
    timestamp, offset, entries = 50, 1000, []
    for timestamp_step, offset_step in steps:
        timestamp, offset = timestamp + timestamp_step, offset + offset_step
        entries.append((timestamp, offset))
    index = index_at(path, 1000, fresh=True)
    for entry in entries:
        assert index.append(*entry)
    target = data.draw(st.integers(45, timestamp + 5))
    cut = data.draw(st.integers(995, offset + 5))
    expected = ([(NO_TIMESTAMP, 1000)] + [entry for entry in entries if entry[0] <= target])[-1]
    for _ in ("active", "sealed"):
        assert index.lookup(target) == expected
        assert list(index.entries()) == entries
        index.seal()
    index.truncate_to(cut)
    assert list(index.entries()) == [entry for entry in entries if entry[1] < cut]
    index.flush()
    assert list(index_at(path, 1000).entries()) == list(index.entries())
