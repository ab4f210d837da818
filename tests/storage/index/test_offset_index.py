"""The offset index, and with it everything that the three indexes and the store of maps share."""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.storage.errors import CorruptIndex
from ottla.storage.files import Files
from ottla.storage.index.maps import Maps
from ottla.storage.index.offset_index import OffsetIndex

# 00000000000000001462.index of a transactional topic, as Kafka 4.3.1 wrote it.
KAFKA_BASE = 1462
KAFKA_FILE = bytes.fromhex(
    "000000060000120c0000000c00002418000000120000362400000018000048300000001e00005a3c"
    "0000002400006c480000002a00007e540000003300008e96000000390000a0a20000003f0000b2ae"
    "000000450000c4ba0000004b0000d6c6000000510000e8d2000000570000fade0000005d00010cea"
)
KAFKA_ENTRIES = [
    (KAFKA_BASE + relative, position)
    for relative, position in struct.iter_unpack(">ii", KAFKA_FILE)
]
LARGE = 10 * 1024 * 1024


class UntouchedFiles(Files):
    """Fails the test at any attempt to reach the disk."""

    def open(self, path: str, flags: int = 0) -> int:
        raise AssertionError(f"opened {path}")

    def exists(self, path: str) -> bool:
        raise AssertionError(f"asked for {path}")


class WatchedFiles(Files):
    """Counts the writes, fails them on demand, and knows what is mapped when a file shrinks."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int]] = []
        self.syncs = 0
        self.fail_after: int | None = None
        self.maps: Maps | None = None
        self.descriptors: set[int] = set()

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        fd = super().open(path, flags)
        self.descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        self.descriptors.discard(fd)
        os.close(fd)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        if self.fail_after is not None:
            os.pwrite(fd, bytes(data)[: self.fail_after], position)
            raise OSError(errno.ENOSPC, "no space left")
        self.writes.append((position, len(data)))
        return os.pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.syncs += 1

    def truncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        assert self.maps is None or len(self.maps) == 0, "truncated while mapped"
        os.ftruncate(fd, size)


def index_at(path: Path, base: int = 0, **options: object) -> OffsetIndex:
    options.setdefault("maps", Maps())
    return OffsetIndex(str(path), base, LARGE, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.index"


@pytest.mark.parametrize("sealed", [True, False])
def test_reads_what_kafka_wrote(path: Path, sealed: bool) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE, sealed=sealed)
    index.sanity_check()
    index.verify()
    assert list(index.entries()) == KAFKA_ENTRIES
    assert index.entry_count == 15
    assert index.size == len(KAFKA_FILE)
    assert index.last_entry == (1555, 68842)
    assert index.last_offset == 1555
    assert index.lookup(1462) == (1462, 0)
    assert index.lookup(1467) == (1462, 0)
    assert index.lookup(1468) == (1468, 4620)
    assert index.lookup(1473) == (1468, 4620)
    assert index.lookup(10**9) == (1555, 68842)


def test_writes_what_kafka_writes(path: Path) -> None:
    index = index_at(path, KAFKA_BASE, fresh=True)
    for entry in KAFKA_ENTRIES:
        index.append(*entry)
    index.flush()
    assert path.read_bytes() == KAFKA_FILE
    index.seal()
    assert path.read_bytes() == KAFKA_FILE
    assert list(index.entries()) == KAFKA_ENTRIES


def test_making_and_filling_an_index_touches_no_file(path: Path) -> None:
    files = UntouchedFiles()
    index_at(path, files=files)
    index_at(path, files=files, sealed=True)
    index = index_at(path, files=files, fresh=True)
    index.append(10, 100)
    assert index.lookup(10) == (10, 100)
    assert index.last_entry == (10, 100)
    assert not index.is_full


def test_an_empty_active_index_needs_no_file(path: Path) -> None:
    index = index_at(path, 500)
    assert index.entry_count == 0
    assert index.last_entry == (500, 0)
    assert index.lookup(700) == (500, 0)
    assert index.first_at_or_after_position(0) is None
    index.sanity_check()
    assert not path.exists()


def test_write_and_seal_leave_a_file_even_when_empty(path: Path) -> None:
    index = index_at(path, fresh=True)
    index.write()
    assert path.read_bytes() == b""
    index.seal()
    assert index.entry_count == 0
    assert index.lookup(5) == (0, 0)
    assert index.last_entry == (0, 0)
    index.sanity_check()


def test_a_fresh_index_overwrites_a_stale_file(path: Path) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, fresh=True)
    assert index.entry_count == 0
    index.append(3, 30)
    index.write()
    assert path.read_bytes() == struct.pack(">ii", 3, 30)


def test_an_active_index_goes_on_where_its_file_ends(path: Path) -> None:
    path.write_bytes(KAFKA_FILE)
    index = index_at(path, KAFKA_BASE)
    index.append(1600, 80000)
    index.write()
    assert path.read_bytes() == KAFKA_FILE + struct.pack(">ii", 1600 - KAFKA_BASE, 80000)


def test_pending_entries_go_out_in_one_write(path: Path) -> None:
    files = WatchedFiles()
    index = index_at(path, files=files, fresh=True)
    for offset in range(1, 101):
        index.append(offset, offset * 10)
    assert files.writes == []
    index.write()
    index.write()
    assert files.writes == [(0, 800)]
    index.append(200, 5000)
    index.flush()
    assert files.writes == [(0, 800), (800, 8)]
    assert files.syncs == 1
    assert files.descriptors == set()


def test_a_failed_write_can_be_repeated(path: Path) -> None:
    files = WatchedFiles()
    index = index_at(path, files=files, fresh=True)
    index.append(1, 10)
    index.write()
    index.append(2, 20)
    index.append(3, 30)
    files.fail_after = 11
    with pytest.raises(OSError, match="no space"):
        index.write()
    assert files.descriptors == set()
    assert path.stat().st_size == 19
    files.fail_after = None
    index.write()
    assert path.read_bytes() == struct.pack(">6i", 1, 10, 2, 20, 3, 30)


def test_what_a_failed_write_left_behind_goes_even_if_its_entries_do(path: Path) -> None:
    files = WatchedFiles()
    index = index_at(path, files=files, fresh=True)
    index.append(1, 10)
    index.write()
    index.append(2, 20)
    files.fail_after = 8
    with pytest.raises(OSError, match="no space"):
        index.write()
    files.fail_after = None
    index.truncate_to(2)
    index.write()
    assert path.read_bytes() == struct.pack(">ii", 1, 10)


def test_offsets_must_increase(path: Path) -> None:
    index = index_at(path, 100, fresh=True)
    with pytest.raises(ValueError, match="does not come after"):
        index.append(99, 1)
    index.append(100, 1)
    for offset in (100, 50):
        with pytest.raises(ValueError, match="does not come after"):
            index.append(offset, 2)
    index.write()
    again = index_at(path, 100)
    with pytest.raises(ValueError, match="does not come after"):
        again.append(100, 2)
    again.append(101, 2)
    assert list(again.entries()) == [(100, 1), (101, 2)]


def test_what_does_not_fit_into_32_bits_changes_nothing(path: Path) -> None:
    index = index_at(path, 100, fresh=True)
    index.append(101, 7)
    with pytest.raises(OverflowError):
        index.append(100 + 2**31, 8)
    with pytest.raises(OverflowError):
        index.append(102, 2**31)
    index.append(100 + 2**31 - 1, 2**31 - 1)
    assert list(index.entries()) == [(101, 7), (100 + 2**31 - 1, 2**31 - 1)]


def test_full_when_the_bytes_are_used_up(path: Path) -> None:
    index = OffsetIndex(str(path), 0, 31, fresh=True)
    for offset in (1, 2):
        index.append(offset, offset)
        assert not index.is_full
    index.append(3, 3)
    assert index.is_full
    index.seal()
    assert index.is_full


class TestPadding:
    """Kafka makes the file of an active index 10 MiB long at once."""

    @pytest.mark.parametrize("sealed", [True, False])
    @pytest.mark.parametrize("zeros", [8, 4096, 64 * 1024 - 120, 64 * 1024, LARGE - 120])
    def test_zeros_at_the_end_are_no_entries(self, path: Path, sealed: bool, zeros: int) -> None:
        path.write_bytes(KAFKA_FILE + bytes(zeros))
        index = index_at(path, KAFKA_BASE, sealed=sealed)
        index.sanity_check()
        assert index.entry_count == 15
        assert list(index.entries()) == KAFKA_ENTRIES
        assert index.last_entry == KAFKA_ENTRIES[-1]
        assert index.lookup(10**6) == KAFKA_ENTRIES[-1]

    @pytest.mark.parametrize("sealed", [True, False])
    def test_all_zeros_is_empty(self, path: Path, sealed: bool) -> None:
        path.write_bytes(bytes(LARGE))
        index = index_at(path, 77, sealed=sealed)
        assert index.entry_count == 0
        assert index.lookup(1000) == (77, 0)

    @pytest.mark.parametrize("sealed", [True, False])
    def test_an_entry_that_ends_in_zeros_stays(self, path: Path, sealed: bool) -> None:
        path.write_bytes(struct.pack(">ii", 0x10000, 0x1000000) + bytes(80000))
        index = index_at(path, sealed=sealed)
        assert list(index.entries()) == [(0x10000, 0x1000000)]

    def test_the_next_write_and_the_seal_cut_it_off(self, path: Path) -> None:
        path.write_bytes(KAFKA_FILE + bytes(8000))
        index = index_at(path, KAFKA_BASE)
        index.append(2000, 90000)
        index.write()
        assert path.read_bytes() == KAFKA_FILE + struct.pack(">ii", 2000 - KAFKA_BASE, 90000)
        path.write_bytes(KAFKA_FILE + bytes(8000))
        index_at(path, KAFKA_BASE).seal()
        assert path.read_bytes() == KAFKA_FILE


class TestDamage:
    @pytest.mark.parametrize("sealed", [True, False])
    @pytest.mark.parametrize("extra", [b"\x01", b"\0" * 7, b"\xff" * 4])
    def test_odd_size(self, path: Path, sealed: bool, extra: bytes) -> None:
        path.write_bytes(KAFKA_FILE + extra)
        index = index_at(path, KAFKA_BASE, sealed=sealed)
        for use in (index.sanity_check, index.verify, lambda: index.lookup(1500)):
            with pytest.raises(CorruptIndex, match="no whole number of entries"):
                use()

    @pytest.mark.parametrize(
        "entries",
        [
            [(5, 10), (4, 20)],
            [(5, 10), (5, 20)],
            [(5, 20), (6, 20)],
            [(5, 20), (6, 10)],
            [(-1, 10), (5, 20)],
            [(1, -10), (5, 20)],
            [(1, 10), (0, 0), (5, 20)],
            [(1, 10), (9, 20), (5, 30), (7, 40)],
        ],
    )
    def test_entries_out_of_order(self, path: Path, entries: list[tuple[int, int]]) -> None:
        path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
        with pytest.raises(CorruptIndex):
            index_at(path, sealed=True).verify()
        for use in ("sanity_check", "verify"):
            with pytest.raises(CorruptIndex):
                getattr(index_at(path), use)()
        with pytest.raises(CorruptIndex):
            index_at(path).lookup(5)
        with pytest.raises(CorruptIndex):
            index_at(path).append(100, 1000)
        if entries[0] >= entries[-1] or min(entries[0]) < 0:
            with pytest.raises(CorruptIndex):
                index_at(path, sealed=True).sanity_check()

    def test_a_negative_entry_is_never_given_out(self, path: Path) -> None:
        path.write_bytes(struct.pack(">4i", 1, 10, 2, -20))
        with pytest.raises(CorruptIndex, match="entry 1"):
            index_at(path, sealed=True).lookup(3)

    def test_a_sealed_index_without_a_file(self, path: Path) -> None:
        index = index_at(path, sealed=True)
        for use in (index.sanity_check, index.verify, lambda: index.lookup(1)):
            with pytest.raises(CorruptIndex, match="missing"):
                use()

    def test_a_sealed_file_that_lost_its_tail(self, path: Path) -> None:
        path.write_bytes(KAFKA_FILE)
        index = index_at(path, KAFKA_BASE, sealed=True)
        assert index.entry_count == 15
        index.drop_map()
        path.write_bytes(KAFKA_FILE[:80])
        with pytest.raises(CorruptIndex, match="only 80 bytes"):
            index.lookup(1500)

    @pytest.mark.parametrize("sealed", [True, False])
    def test_reset_is_the_way_out(self, path: Path, sealed: bool) -> None:
        path.write_bytes(KAFKA_FILE[:-3])
        index = index_at(path, KAFKA_BASE, sealed=sealed)
        with pytest.raises(CorruptIndex):
            index.sanity_check()
        index.reset()
        assert path.read_bytes() == b""
        assert not index.sealed
        index.append(1470, 5)
        index.flush()
        assert list(index_at(path, KAFKA_BASE).entries()) == [(1470, 5)]


class TestTruncation:
    @pytest.mark.parametrize("sealed", [True, False])
    @pytest.mark.parametrize(
        ("offset", "left"),
        [(0, 0), (1468, 0), (1469, 1), (1474, 1), (1475, 2), (1555, 14), (9999, 15)],
    )
    def test_drops_the_entries_from_an_offset_on(
        self, path: Path, sealed: bool, offset: int, left: int
    ) -> None:
        path.write_bytes(KAFKA_FILE)
        files = WatchedFiles()
        files.maps = Maps()
        index = index_at(path, KAFKA_BASE, sealed=sealed, files=files, maps=files.maps)
        index.lookup(1500)
        assert len(files.maps) == sealed
        index.truncate_to(offset)
        assert len(files.maps) == 0
        assert path.read_bytes() == KAFKA_FILE[: left * 8]
        assert list(index.entries()) == KAFKA_ENTRIES[:left]
        index.append(max(offset, 1556), 99999)
        assert index.entry_count == left + 1

    def test_of_pending_entries(self, path: Path) -> None:
        index = index_at(path, fresh=True)
        for offset in (1, 2, 3, 4):
            index.append(offset, offset)
            if offset == 2:
                index.write()
        index.truncate_to(4)
        assert path.stat().st_size == 16
        index.write()
        assert list(index_at(path).entries()) == [(1, 1), (2, 2), (3, 3)]
        index.truncate_to(2)
        assert path.stat().st_size == 8

    def test_a_view_that_was_kept_does_not_kill_the_process(self, path: Path) -> None:
        path.write_bytes(KAFKA_FILE * 100)
        maps = Maps()
        index = index_at(path, KAFKA_BASE, sealed=True, maps=maps)
        view = maps.view(index)
        index.reset()
        with pytest.raises(ValueError, match="released"):
            view[0]


class TestTheFile:
    def test_sealed_index_refuses_appends_until_it_is_unsealed(self, path: Path) -> None:
        index = index_at(path, fresh=True)
        index.append(1, 1)
        index.seal()
        index.seal()
        with pytest.raises(ValueError, match="sealed"):
            index.append(2, 2)
        index.unseal()
        index.append(2, 2)
        index.close()
        assert list(index_at(path, sealed=True).entries()) == [(1, 1), (2, 2)]

    def test_rename(self, path: Path) -> None:
        index = index_at(path, fresh=True)
        index.append(1, 1)
        elsewhere = path.with_suffix(".index.deleted")
        index.rename(str(elsewhere))
        assert not elsewhere.exists()
        index.write()
        assert elsewhere.stat().st_size == 8
        index.seal()
        assert index.lookup(1) == (1, 1)
        index.rename(str(path))
        assert index.path == str(path)
        assert index.lookup(1) == (1, 1)
        index.drop_map()
        assert index.lookup(1) == (1, 1)

    def test_delete(self, path: Path) -> None:
        index = index_at(path, fresh=True)
        index.delete()
        index.append(1, 1)
        index.seal()
        index.lookup(1)
        index.delete()
        assert not path.exists()

    def test_sync_of_a_file_that_is_not_there(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            index_at(path).sync()

    def test_sealed_and_fresh_is_a_contradiction(self, path: Path) -> None:
        with pytest.raises(ValueError, match="not fresh"):
            index_at(path, sealed=True, fresh=True)


class TestMaps:
    def sealed(self, folder: Path, number: int, maps: Maps) -> list[OffsetIndex]:
        indexes = []
        for base in range(number):
            index = index_at(folder / f"{base}.index", base * 10, fresh=True, maps=maps)
            index.append(base * 10 + 1, base + 1)
            index.seal()
            indexes.append(index)
        return indexes

    def test_never_more_than_the_limit(self, tmp_path: Path) -> None:
        maps = Maps(3)
        indexes = self.sealed(tmp_path, 10, maps)
        assert len(maps) == 0
        for _ in range(2):
            for index in indexes:
                assert index.lookup(index.base_offset + 5) == index.last_entry
                assert len(maps) <= 3

    def test_the_least_recently_used_goes_first(self, tmp_path: Path) -> None:
        maps = Maps(2)
        a, b, c = self.sealed(tmp_path, 3, maps)
        a.lookup(1)
        b.lookup(1)
        view_of_a = maps.view(a)
        c.lookup(1)
        assert maps.view(a) is view_of_a
        os.unlink(b.path)
        with pytest.raises(CorruptIndex, match="missing"):
            b.lookup(1)

    def test_evicted_views_live_as_long_as_they_are_used(self, tmp_path: Path) -> None:
        maps = Maps(1)
        a, b = self.sealed(tmp_path, 2, maps)
        view = maps.view(a)
        maps.view(b)
        assert bytes(view) == struct.pack(">ii", 1, 1)

    def test_what_was_used_since_is_passed_over_once(self, tmp_path: Path) -> None:
        maps = Maps(2)
        a, b, c = self.sealed(tmp_path, 3, maps)
        for index in (a, b, a, c):
            index.lookup(1)
        assert [each.is_mapped for each in (a, b, c)] == [True, False, True]
        b.lookup(1)
        assert [each.is_mapped for each in (a, b, c)] == [False, True, True]

    def test_a_broken_index_is_broken_at_every_look(self, tmp_path: Path) -> None:
        maps = Maps()
        (index,) = self.sealed(tmp_path, 1, maps)
        Path(index.path).write_bytes(b"")
        for _ in range(2):
            with pytest.raises(CorruptIndex, match="only 0 bytes"):
                index.lookup(5)
        odd = tmp_path / "7.index"
        odd.write_bytes(b"\1" * 11)
        for each in [index_at(odd, 7, sealed=True, maps=maps)] * 2:
            with pytest.raises(CorruptIndex, match="no whole number"):
                each.lookup(8)
        assert len(maps) == 0

    def test_clear(self, tmp_path: Path) -> None:
        maps = Maps()
        for index in self.sealed(tmp_path, 4, maps):
            index.lookup(0)
        assert len(maps) == 4
        maps.clear()
        assert len(maps) == 0

    def test_indexes_of_equal_paths_do_not_meet(self, tmp_path: Path) -> None:
        """Two file layers may use the same paths; a map belongs to the index, not to the path."""
        maps = Maps()
        (one,) = self.sealed(tmp_path, 1, maps)
        assert one.lookup(5) == (1, 1)
        os.unlink(one.path)
        other = index_at(Path(one.path), fresh=True, maps=maps)
        other.append(4, 44)
        other.seal()
        assert other.lookup(5) == (4, 44)
        assert one.lookup(5) == (1, 1)


def naive_lookup(entries: list[tuple[int, int]], base: int, target: int) -> tuple[int, int]:
    found = (base, 0)
    for entry in entries:
        if entry[0] <= target:
            found = entry
    return found


increasing = st.lists(st.integers(1, 50), max_size=60)


@given(
    offset_steps=increasing,
    position_steps=st.lists(st.integers(1, 50), min_size=60),
    data=st.data(),
)
def test_lookups_agree_with_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    offset_steps: list[int],
    position_steps: list[int],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("index") / "i"
    base, entries = 1000, []
    offset, position = base, 0
    for offset_step, position_step in zip(offset_steps, position_steps, strict=False):
        offset, position = offset + offset_step, position + position_step
        entries.append((offset, position))
    index = index_at(path, base, fresh=True)
    for entry in entries:
        index.append(*entry)
    active_target = data.draw(st.integers(base - 5, offset + 5))
    wanted_position = data.draw(st.integers(0, position + 5))
    later = next((entry for entry in entries if entry[1] >= wanted_position), None)
    for _ in ("active", "sealed"):
        assert index.lookup(active_target) == naive_lookup(entries, base, active_target)
        assert index.first_at_or_after_position(wanted_position) == later
        assert list(index.entries()) == entries
        index.verify()
        index.seal()


class IndexAgainstAList(RuleBasedStateMachine):
    """Any sequence of appends, writes, truncations, seals and restarts keeps the entries of a list."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "i")
        self.files = WatchedFiles()
        self.maps = self.files.maps = Maps(1)
        self.index = OffsetIndex(self.path, 100, LARGE, self.files, fresh=True, maps=self.maps)
        self.model: list[tuple[int, int]] = []

    def teardown(self) -> None:
        self.maps.clear()
        self.folder.cleanup()

    @precondition(lambda self: not self.index.sealed)
    @rule(steps=st.lists(st.integers(1, 9), min_size=1, max_size=4))
    def append(self, steps: list[int]) -> None:
        for step in steps:
            offset, position = self.model[-1] if self.model else (100, 0)
            entry = offset + step, position + step
            self.index.append(*entry)
            self.model.append(entry)

    @rule()
    def write(self) -> None:
        self.index.write()

    @precondition(lambda self: not self.index.sealed and self.model)
    @rule(kept=st.integers(0, 40))
    def fail_to_write(self, kept: int) -> None:
        self.files.fail_after = kept
        try:
            self.index.write()
        except OSError:
            pass
        self.files.fail_after = None

    @rule()
    def seal(self) -> None:
        self.index.seal()

    @rule()
    def unseal(self) -> None:
        self.index.unseal()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        last = self.model[-1][0] if self.model else 100
        offset = data.draw(st.integers(95, last + 5))
        self.index.truncate_to(offset)
        self.model = [entry for entry in self.model if entry[0] < offset]

    @rule()
    def reset(self) -> None:
        self.index.reset()
        self.model = []

    @rule(sealed=st.booleans(), padding=st.integers(0, 3))
    def restart(self, sealed: bool, padding: int) -> None:
        self.index.close()
        if not sealed and os.path.exists(self.path):
            with open(self.path, "ab") as file:
                file.write(bytes(padding * 8))
        sealed = sealed and os.path.exists(self.path)
        self.index = OffsetIndex(self.path, 100, LARGE, self.files, sealed=sealed, maps=self.maps)

    @rule(data=st.data())
    def lookup(self, data: st.DataObject) -> None:
        last = self.model[-1][0] if self.model else 100
        target = data.draw(st.integers(95, last + 5))
        slot = bisect_right([offset for offset, _ in self.model], target) - 1
        assert self.index.lookup(target) == (self.model[slot] if slot >= 0 else (100, 0))

    @invariant()
    def holds_the_entries_of_the_list(self) -> None:
        if self.index._loaded or self.index.sealed:
            assert list(self.index.entries()) == self.model
            assert self.index.entry_count == len(self.model)
            assert self.index.last_entry == (self.model[-1] if self.model else (100, 0))
        assert not self.files.descriptors


IndexAgainstAList.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestIndexAgainstAList = IndexAgainstAList.TestCase
