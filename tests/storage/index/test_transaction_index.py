"""The transaction index; what it shares with the others is in test_offset_index."""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.errors import CorruptIndex
from ottla.storage.files import Files
from ottla.storage.index import transaction_index
from ottla.storage.index.maps import Maps
from ottla.storage.index.transaction_index import AbortedTransaction, TransactionIndex

# 00000000000000001462.txnindex of a transactional topic, as Kafka 4.3.1 wrote it.
KAFKA_BASE = 1462
KAFKA_FILE = bytes.fromhex(
    "0000000000000000000500000000000005b200000000000005e200000000000005b1"
    "0000000000000000000400000000000005e4000000000000061500000000000005e5"
    "000000000000000000030000000000000617000000000000061900000000" + "0000061a"
)
KAFKA_ENTRIES = [
    AbortedTransaction(5, 1458, 1506, 1457),
    AbortedTransaction(4, 1508, 1557, 1509),
    AbortedTransaction(3, 1559, 1561, 1562),
]


def index_at(path: Path, base: int = 0, **options: object) -> TransactionIndex:
    options.setdefault("maps", Maps())
    return TransactionIndex(str(path), base, 0, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


@pytest.mark.parametrize("sealed", [True, False])
def test_reads_what_kafka_wrote(path: Path, sealed: bool) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.sanity_check()
    assert list(index.entries()) == KAFKA_ENTRIES
    assert index.entry_count == 3
    assert index.last_entry == KAFKA_ENTRIES[-1]


def test_writes_what_kafka_writes(path: Path) -> None:
    index = index_at(path, KAFKA_BASE, fresh=True)
    for entry in KAFKA_ENTRIES:
        index.append(*entry)
    index.flush()
    assert path.read_bytes() == KAFKA_FILE
    index.seal()
    assert list(index.entries()) == KAFKA_ENTRIES


def test_no_file_without_an_entry(path: Path) -> None:
    index = index_at(path)
    index.flush()
    index.reset()
    index.sanity_check()
    index.seal()
    index.sync()
    assert index.aborted_between(0, 100) == ([], False)
    assert index.last_entry is None
    assert index.entry_count == 0
    index.close()
    assert not path.exists()


def test_a_sealed_index_without_a_file_is_empty_and_asks_the_disk_once(path: Path) -> None:
    class CountingFiles(Files):
        opened = 0

        def open(self, path: str, flags: int = os.O_RDONLY) -> int:
            self.opened += 1
            return super().open(path, flags)

    files = CountingFiles()
    index = index_at(path, sealed=True, files=files)
    for _ in range(3):
        assert index.aborted_between(0, 100) == ([], False)
    assert files.opened == 1
    index.sanity_check()


def test_a_file_that_vanished_is_noticed(path: Path) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=True)
    assert index.entry_count == 3
    index.drop_map()
    path.unlink()
    with pytest.raises(CorruptIndex, match="missing"):
        index.aborted_between(0, 10**6)


@pytest.mark.parametrize("sealed", [True, False])
def test_overlaps(path: Path, sealed: bool) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    first, second, third = KAFKA_ENTRIES
    assert index.aborted_between(1462, 10**6) == ([first, second, third], False)
    # The first ends at 1506, inclusively.
    assert index.aborted_between(1506, 10**6) == ([first, second, third], False)
    assert index.aborted_between(1507, 10**6) == ([second, third], False)
    # The upper offset is exclusive; an entry whose stable offset reaches it ends the search.
    assert index.aborted_between(1462, 1508) == ([first], True)
    assert index.aborted_between(1462, 1509) == ([first, second], True)
    assert index.aborted_between(1462, 1510) == ([first, second], True)
    assert index.aborted_between(1462, 1562) == ([first, second, third], True)
    assert index.aborted_between(1462, 1563) == ([first, second, third], False)
    assert index.aborted_between(1562, 10**6) == ([], False)


def test_markers_must_come_in_order(path: Path) -> None:
    index = index_at(path, fresh=True)
    index.append(1, 5, 10, 11)
    with pytest.raises(ValueError, match="does not come after"):
        index.append(2, 6, 10, 11)
    index.write()
    again = index_at(path)
    with pytest.raises(ValueError, match="does not come after"):
        again.append(2, 6, 9, 10)
    again.append(2, 6, 12, 13)
    assert again.entry_count == 2
    again.seal()
    with pytest.raises(ValueError, match="sealed"):
        again.append(2, 6, 20, 21)


def test_never_full(path: Path) -> None:
    index = index_at(path, fresh=True)
    for offset in range(1, 200):
        index.append(1, offset - 1, offset, offset + 1)
    assert not index.is_full


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("offset", "left"), [(1506, 0), (1507, 1), (1557, 1), (1558, 2), (2000, 3)]
)
def test_truncation_goes_by_the_marker(path: Path, sealed: bool, offset: int, left: int) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.truncate_to(offset)
    assert list(index.entries()) == KAFKA_ENTRIES[:left]
    assert path.read_bytes() == KAFKA_FILE[: left * 34]
    index.append(9, 2000, 2001, 2002)
    assert index.entry_count == left + 1


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "damaged",
    [
        KAFKA_FILE[:-1],
        KAFKA_FILE + bytes(34),  # never preallocated: zeros are damage
        bytes(34),
        b"\0\x01" + KAFKA_FILE[2:],  # version
        KAFKA_FILE[34:68] + KAFKA_FILE[:34],
        KAFKA_FILE[:34] * 2,
        struct.pack(">hqqqq", 0, -1, 1470, 1480, 1481),
        struct.pack(">hqqqq", 0, 1, -1, 1480, 1481),
        struct.pack(">hqqqq", 0, 1, 1480, 1480, 1481),
        struct.pack(">hqqqq", 0, 1, 1470, 1480, -1),
        struct.pack(">hqqqq", 0, 1, 1400, 1410, 1411),  # of an earlier segment
    ],
)
def test_damage(path: Path, sealed: bool, damaged: bytes) -> None:
    path.write_bytes(damaged)
    for use in ("sanity_check", "verify"):
        with pytest.raises(CorruptIndex):
            getattr(index_at(path, KAFKA_BASE, sealed=sealed), use)()
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.reset()
    assert list(index.entries()) == []
    assert path.read_bytes() == b""


def kafkas_search(
    entries: list[AbortedTransaction], from_offset: int, upper_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    found = []
    for entry in entries:
        if entry.last_offset >= from_offset and entry.first_offset < upper_offset:
            found.append(entry)
        # Kafka looks at entries before the range too; their stable offsets are below it.
        if entry.last_stable_offset >= upper_offset and entry.last_offset >= from_offset:
            return found, True
    return found, False


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 20), st.integers(0, 20)),
        max_size=30,
    ),
    from_offset=st.integers(0, 300),
    length=st.integers(1, 100),
    block=st.sampled_from([2, 5, 256]),
)
def test_agrees_with_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, int, int]],
    from_offset: int,
    length: int,
    block: int,
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transaction_index, "BLOCK", block)
        _agrees_with_a_scan(tmp_path_factory.mktemp("index") / "i", steps, from_offset, length)


def _agrees_with_a_scan(
    path: Path, steps: list[tuple[int, int, int, int]], from_offset: int, length: int
) -> None:
    entries: list[AbortedTransaction] = []
    last = 20
    for producer_id, step, back, open_since in steps:
        last += step
        stable = max(0, last + 1 - open_since)
        entries.append(AbortedTransaction(producer_id, max(0, last - back), last, stable))
    index = index_at(path, fresh=True)
    for entry in entries:
        index.append(*entry)
    expected = kafkas_search(entries, from_offset, from_offset + length)
    for _ in ("active", "sealed"):
        assert index.aborted_between(from_offset, from_offset + length) == expected
        assert list(index.entries()) == entries
        index.seal()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_search_skips_what_ended_while_one_transaction_was_open(
    path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each abort after the range could be of a transaction that began in it; none is."""
    entries = [AbortedTransaction(each, 10 + 2 * each, 11 + 2 * each, 5) for each in range(30_000)]
    index = index_at(path, fresh=True)
    for entry in entries:
        index.append(*entry)
    if sealed:
        index.seal()
    looked_at: list[int] = []
    look = TransactionIndex._entry

    def count(self: TransactionIndex, data: bytes, slot: int) -> AbortedTransaction:
        looked_at.append(slot)
        return look(self, data, slot)

    monkeypatch.setattr(TransactionIndex, "_entry", count)
    assert index.aborted_between(12, 20) == (entries[1:5], False)
    assert len(looked_at) < 1000


def test_a_long_index_is_walked_by_a_thread_first(path: Path) -> None:
    entries = [AbortedTransaction(each, 2 * each, 2 * each + 1, 0) for each in range(5000)]
    index = index_at(path, fresh=True)
    for entry in entries:
        index.append(*entry)
    assert index.long_walk() is None, "what is appended is looked at as it comes"
    index.close()
    again = index_at(path, sealed=True)
    walk = again.long_walk()
    assert walk is not None
    with ThreadPoolExecutor(1) as thread:
        thread.submit(walk, 0).result()
    assert again.long_walk() is None
    assert again.aborted_between(12, 20) == kafkas_search(entries, 12, 20)
    # What a thread has found out of entries that are gone does not count.
    third = index_at(path, sealed=True)
    walk = third.long_walk()
    assert walk is not None
    third.truncate_to(9)
    walk(0)
    third.seal()
    assert third.long_walk() is None
    assert third.entry_count == 4
    assert third.aborted_between(0, 20) == kafkas_search(entries[:4], 0, 20)
