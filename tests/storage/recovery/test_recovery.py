"""Opening a log: after a clean stop, after a crash, after an operation that was interrupted."""

from __future__ import annotations

import copy
import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from storage_kit.faulty_files import Disk, FaultyFiles
from storage_kit.logs import NOW, LogMaker, a_batch, a_marker, close_cleanly, stored_batches
from storage_kit.memory import verify_log

from ottla.logfiles.names import segment_name
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptLog
from ottla.storage.files import Files
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.recovery import load as recovery
from ottla.storage.recovery import replay
from ottla.storage.segments.segment import Segment


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), LogConfig(segment_bytes=2000, index_interval_bytes=300))


def filled(maker: LogMaker, count: int = 40) -> Log:
    log = maker.create()
    for number in range(count):
        log.append(
            a_batch(b"x" * 80, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3),
            number // 10,
            NOW + number,
        )
    return log


def names(log: Log, suffix: str) -> list[int]:
    return sorted(int(name[:20]) for name in os.listdir(log.folder) if name.endswith(suffix))


def state(log: Log) -> object:
    """All that a log knows and that the disk should tell it again."""
    return (
        log.log_end_offset,
        [(s.base_offset, s.size, s.max_timestamp, s.offset_of_max_timestamp) for s in log.segments],
        [list(s.offset_index.entries()) for s in log.segments],
        list(log.epochs.entries()),
        {
            key: (p.epoch, p.last_sequence, p.last_offset)
            for key, p in log.producers.producers.items()
        },
        list(stored_batches(log)),
        [list(s.transaction_index.entries()) for s in log.segments],
    )


def test_an_abort_that_was_cut_off_does_not_come_back_over_records_that_were_committed() -> None:
    """A truncation cut its marker off, and did not come to the index. The start after that cut the index
    and was killed, the next one found nothing to cut; then the power fails."""
    disk = Disk()
    disk.make_durable_folder("/data")

    def maker(disk: Disk) -> LogMaker:
        return LogMaker("/data", LogConfig(index_interval_bytes=0), FaultyFiles(disk))

    log = maker(disk).create()
    for sequence in range(3):
        batch = a_batch(producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        log.append(batch, 0, NOW)
    end = log.active.size
    log.append(a_marker(7, committed=False), 0, NOW, COORDINATOR)
    log.flush(NOW)
    assert log.aborted_transactions(0, 10) == [(7, 0)]
    fd = log.active.file().fd
    log.files.truncate(fd, end)
    log.files.fsync(fd)
    for _ in range(2):
        log = maker(disk).load(recovery_point=3)
        assert log.aborted_transactions(0, 10) == []
    log.append(a_marker(7, committed=True), 0, NOW, COORDINATOR)
    log.append(a_batch(), 0, NOW)
    log.flush(NOW)
    for seed in range(20):
        after = copy.deepcopy(disk)
        after.lose_power(random.Random(seed))
        found = maker(after).load(recovery_point=log.recovery_point)
        assert found.log_end_offset == 5
        assert found.aborted_transactions(0, 10) == []


def test_after_a_clean_stop_nothing_is_scanned(
    maker: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(maker)
    before = state(log)
    end = close_cleanly(log)

    def scan(*_: object) -> None:
        raise AssertionError("a scan")

    monkeypatch.setattr(recovery, "walk_checked", scan)
    again = maker.load(clean=True, recovery_point=end, high_watermark=end)
    assert state(again) == before
    assert (again.recovery_point, again.high_watermark) == (40, 40)
    assert again.flush_begin(NOW) is None
    assert list(verify_log(again)) == []


def test_a_clean_stop_that_does_not_fit_is_none(maker: LogMaker) -> None:
    log = filled(maker)
    before = state(log)
    close_cleanly(log)
    with open(log.active.path, "ab") as file:
        file.write(b"torn")
    again = maker.load(clean=True, recovery_point=40)
    assert state(again) == before
    assert os.path.getsize(again.active.path) == again.active.size
    assert maker.load(clean=True, recovery_point=39).log_end_offset == 40


@pytest.mark.parametrize("recovery_point", [0, 1, 13, 14, 39, 40])
def test_after_a_crash_all_is_made_anew_behind_the_recovery_point(
    maker: LogMaker, recovery_point: int
) -> None:
    """The same state, wherever the recovery point is; a crash of the process loses nothing."""
    log = filled(maker)
    log.flush(NOW)
    before = state(log)
    again = maker.load(recovery_point=recovery_point)
    assert state(again) == before
    assert again.recovery_point == recovery_point
    assert list(verify_log(again)) == []
    again.flush(NOW)
    assert again.recovery_point == 40
    assert state(maker.load(clean=True, recovery_point=40)) == before


def test_without_any_index_snapshot_or_checkpoint(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    before = state(log)
    for name in os.listdir(log.folder):
        if not name.endswith(".log"):
            os.unlink(f"{log.folder}/{name}")
    again = maker.load()
    assert state(again) == before
    assert again.topic_id is None


def test_only_the_tail_is_read(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large segment nothing before the last index entry below the recovery point."""
    maker.config = LogConfig(segment_bytes=10 << 20, index_interval_bytes=300)
    log = filled(maker, 1000)
    log.flush(NOW)
    for _ in range(10):
        log.append(a_batch(b"x" * 80), 200, NOW)
    tail = log.active.size - log.active.synced_size
    read = 0
    pread = Files.pread

    def counting(fd: int, size: int, position: int) -> bytes:
        nonlocal read
        data = pread(fd, size, position)
        read += len(data)
        return data

    # The producers come from a snapshot, as one is taken with every 64 MiB that are flushed, and
    # their earlier batches from the entries before it.
    monkeypatch.setattr(replay, "RECALLED_ENTRIES", 8)
    recalled = 8 * 600
    log.producers.map_end_offset = 1000
    snapshot = log.producers.take_snapshot()
    assert snapshot is not None
    snapshot.write()
    monkeypatch.setattr(maker.files, "pread", counting, raising=False)
    again = maker.load(recovery_point=1000)
    indexes = sum(
        os.path.getsize(again.active.stem + suffix) for suffix in (".index", ".timeindex")
    )
    assert again.log_end_offset == 1010
    assert read < 3 * (tail + 4096) + 2 * indexes + recalled < log.active.size / 2


@pytest.mark.parametrize("cut", [1, 60, 61, 100, 145])
def test_a_torn_end_is_cut(maker: LogMaker, cut: int) -> None:
    log = filled(maker)
    kept = list(stored_batches(log))[:-1]
    path = log.active.path
    os.truncate(path, os.path.getsize(path) - cut)
    again = maker.load()
    assert list(stored_batches(again)) == kept
    assert os.path.getsize(path) == again.active.size
    assert again.append(a_batch(), 9, NOW).base_offset == 39
    assert list(verify_log(again)) == []


def test_what_lies_behind_a_bad_batch_goes(maker: LogMaker) -> None:
    """In the middle of the unflushed part: everything after it, later segments too."""
    log = filled(maker)
    log.flush(NOW)
    second = log.segments[1]
    found = second.locate(second.base_offset + 2)
    assert found is not None
    with open(second.path, "r+b") as file:
        file.seek(found[0] + 70)
        file.write(b"\xff")
    kept = list(stored_batches(log))[: second.base_offset + 2]
    again = maker.load(recovery_point=second.base_offset)
    assert list(stored_batches(again)) == kept
    assert again.log_end_offset == second.base_offset + 2
    assert names(again, ".log") == [0, second.base_offset]
    assert max(names(again, ".snapshot"), default=0) <= again.log_end_offset
    assert again.producers.producers[0].next_sequence == -(-again.log_end_offset // 3)
    assert list(verify_log(again)) == []


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_damage_below_the_recovery_point_is_not_mended(maker: LogMaker, damage: str) -> None:
    """The disk lost what it had promised to keep. Nothing is cut, so that it can be looked at."""
    log = filled(maker)
    log.flush(NOW)
    path = log.active.path
    if damage == "flip":
        # In the header of the batch before the end, where the walk to the recovery point comes by.
        found = log.active.locate(38)
        assert found is not None
        with open(path, "r+b") as file:
            file.seek(found[0] + 8)
            file.write(b"\x7f")
    elif damage == "shorten":
        os.truncate(path, os.path.getsize(path) - 10)
    else:
        os.truncate(path, 0)
    size = os.path.getsize(path)
    with pytest.raises(CorruptLog, match="synced up to 40"):
        maker.load(recovery_point=40)
    assert os.path.getsize(path) == size


def test_a_missing_piece_between_segments_ends_the_log(maker: LogMaker) -> None:
    """A segment whose last batches were never written, though the next segment's were."""
    log = filled(maker)
    second = log.segments[1]
    last = second.locate(log.segments[2].base_offset - 1)
    assert last is not None
    os.truncate(second.path, last[0])
    again = maker.load()
    assert again.log_end_offset == log.segments[2].base_offset - 1
    assert len(again.segments) == 2


def test_a_gap_behind_a_synced_segment_is_compactions(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)  # with the snapshots that prove it
    third = log.segments[2].base_offset
    second = log.segments[1]
    last = second.locate(third - 1)
    assert last is not None
    os.truncate(second.path, last[0])
    maker.config = replace(maker.config, cleanup_policy=("compact",))
    again = maker.load()
    assert again.log_end_offset == 40
    part = again.read(third - 1, 1000, 40)
    assert part is not None
    assert part.base_offset == third


def test_transactions_are_replayed(maker: LogMaker) -> None:
    log = maker.create()

    def data(producer: int, sequence: int) -> None:
        log.append(
            a_batch(
                b"x" * 200,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            ),
            0,
            NOW,
        )

    for sequence in range(12):
        data(1, sequence)
        data(2, sequence)
    log.append(a_marker(1, committed=False), 0, NOW, COORDINATOR)
    data(3, 0)
    log.append(a_marker(2, committed=True), 0, NOW, COORDINATOR)
    before = state(log)
    log.flush(NOW)
    for recovery_point in (27, 25, 20, 5, 0):
        again = maker.load(recovery_point=recovery_point, high_watermark=27)
        assert state(again) == before
        assert again.last_stable_offset == 25  # producer 3's is open
        assert again.aborted_transactions(0, 27) == [(1, 0)]
        assert list(again.producers.open_transactions()) == [(3, 25)]


def test_a_kill_in_a_truncation_does_not_bring_back_what_was_cut() -> None:
    """Cut in the page cache and not on the disk; then the power goes, after new records."""
    disk = Disk()
    disk.make_durable_folder("/data")
    maker = LogMaker("/data", files=FaultyFiles(disk))
    log = maker.create()
    for value in (b"a", b"b", b"c"):
        log.append(a_batch(value), 0, NOW)
    log.flush(NOW)
    files = maker.files
    found = log.active.locate(1)
    assert found is not None
    files.truncate(log.active.file().fd, found[0])  # and the process is killed here

    def reopened(recovery_point: int) -> Log:
        maker.files = FaultyFiles(disk)
        maker.open_files = type(maker.open_files)(maker.files)
        return maker.load(recovery_point=recovery_point)

    again = reopened(1)
    assert again.log_end_offset == 1
    again.append(a_batch(b"B"), 0, NOW)

    class Worst:
        """A power loss after which no unsynced size lasted and all unsynced sectors did."""

        def choice(self, options: tuple[object, ...]) -> object:
            return (
                options[0]
                if options[0] == 0
                and isinstance(options[0], int)
                and len(options) == 3
                and options[1] != 1.0
                else 1.0
            )

        def random(self) -> float:
            return 0.4

        def randint(self, low: int, high: int) -> int:
            return high

    disk.lose_power(Worst())  # type: ignore[arg-type]
    last = reopened(1)
    assert [data[-2:-1] for _, _, data in stored_batches(last)] in ([b"a"], [b"a", b"B"])


def test_the_log_starts_behind_all_that_is_left(maker: LogMaker) -> None:
    """DeleteRecords came to the end, and the power took the tail: the offsets are not used again."""
    log = filled(maker)
    log.flush(NOW)
    os.truncate(log.active.path, 0)
    again = maker.load(recovery_point=log.active.base_offset, log_start_offset=40)
    assert (again.log_start_offset, again.log_end_offset) == (40, 40)
    assert names(again, ".log") == [40]
    assert again.append(a_batch(), 4, NOW).base_offset == 40


def test_segments_below_the_stored_start_go(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    second = log.segments[1].base_offset
    again = maker.load(recovery_point=40, log_start_offset=second + 1)
    assert names(again, ".log")[0] == second
    assert again.log_start_offset == second + 1


def test_a_copied_folder_starts_with_its_first_segment(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    first = log.segments[0]
    for suffix in (".log", ".index", ".timeindex"):
        os.unlink(first.stem + suffix)
    again = maker.load()
    assert again.log_start_offset == log.segments[1].base_offset
    assert again.log_end_offset == 40


# What was interrupted


def test_leftovers_go(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    before = state(log)
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000007.log.cleaned",
        "00000000000000000040.snapshot.tmp",
        "00000000000000000999.index",
        "00000000000000000999.timeindex",
        "leader-epoch-checkpoint.tmp",
    ):
        Path(log.folder, name).write_bytes(b"left")
    Path(log.folder, "notes").write_bytes(b"somebody's own")
    again = maker.load(recovery_point=40)
    assert state(again) == before
    left = set(os.listdir(log.folder))
    assert not any(name.endswith((".deleted", ".cleaned", ".tmp")) for name in left)
    assert "00000000000000000999.index" not in left
    assert "notes" in left


def compacted(log: Log, slots: range, keep: range, suffix: str) -> None:
    """Puts a segment beside the others that holds what compaction kept of some of them."""
    kept = [data for first, _, data in stored_batches(log) if first in keep]
    stem = f"{log.folder}/{segment_name(log.segments[slots[0]].base_offset)}"
    Path(f"{stem}.log{suffix}").write_bytes(b"".join(kept))
    for index in (".index", ".timeindex"):
        Path(f"{stem}{index}{suffix}").write_bytes(b"")


def test_a_finished_compaction_is_swapped_in(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    bases = [segment.base_offset for segment in log.segments]
    keep = range(3, bases[2] - 2)
    compacted(log, range(2), keep, ".swap")
    expected = [batch for batch in stored_batches(log) if batch[0] in keep or batch[0] >= bases[2]]
    again = maker.load(recovery_point=40)
    assert [segment.base_offset for segment in again.segments] == [0, *bases[2:]]
    assert list(stored_batches(again)) == expected
    assert not any(name.endswith(".swap") for name in os.listdir(log.folder))


def test_an_unfinished_split_is_undone(maker: LogMaker) -> None:
    """A `.cleaned` file at or below a `.swap` file: not all of the new segments were finished."""
    log = filled(maker)
    log.flush(NOW)
    before = state(log)
    compacted(log, range(1), range(2), ".cleaned")
    compacted(log, range(1, 2), range(14, 15), ".swap")
    again = maker.load(recovery_point=40)
    assert state(again) == before


def test_a_torn_topic_id_is_forgotten(maker: LogMaker) -> None:
    log = filled(maker)
    Path(log.folder, "partition.metadata").write_bytes(b"\0" * 43)
    assert maker.load().topic_id is None


def test_broken_epochs_are_read_from_the_log(maker: LogMaker) -> None:
    log = filled(maker)
    log.flush(NOW)
    epochs = list(log.epochs.entries())
    path = Path(log.folder, "leader-epoch-checkpoint")
    for damage in (b"0\n1\nx y\n", b"", b"0\n0\n"):
        path.write_bytes(damage)
        for clean in (False, True):
            again = maker.load(clean=clean, recovery_point=40)
            assert list(again.epochs.entries()) == epochs


def test_empty_segments_are_kept_for_their_names(maker: LogMaker) -> None:
    log = filled(maker)
    log.roll(NOW)
    end = close_cleanly(log)
    for clean in (True, False):
        again = maker.load(clean=clean, recovery_point=end)
        assert again.active.base_offset == 40
        assert again.append(a_batch(), 9, NOW).base_offset == 40
        again.truncate_to(40, NOW)


def test_a_folder_can_be_loaded_from_a_copy_while_it_is_written(
    maker: LogMaker, tmp_path: Path
) -> None:
    """What a copy tool may catch: more of one file than of another."""
    log = filled(maker)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(log.folder, copy / "topic-0")
    other = LogMaker(str(copy), replace(maker.config))
    assert other.load().log_end_offset == 40


def test_segments_know_nothing_of_each_other(maker: LogMaker) -> None:
    log = filled(maker)
    assert all(isinstance(segment, Segment) for segment in log.segments)
    for earlier, later in zip(list(log.segments), list(log.segments)[1:], strict=False):
        found = earlier.locate(later.base_offset)
        assert found is None


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_entry_that_was_cut_and_came_back_is_noticed(maker: LogMaker, suffix: str) -> None:
    """The segment before the recovery point ends there, and its index goes on: a recovery had cut it,
    the power went before that lasted."""
    log = filled(maker)
    log.flush(NOW)
    before = state(log)
    sealed, following = log.segments[-2], log.segments[-1]
    log.close()
    entry = (
        struct.pack(">qi", NOW + 10_000, following.base_offset - sealed.base_offset)
        if suffix == ".timeindex"
        else struct.pack(">ii", following.base_offset - sealed.base_offset, sealed.size)
    )
    with open(sealed.stem + suffix, "ab") as file:
        file.write(entry)
    again = maker.load(recovery_point=following.base_offset)
    assert list(verify_log(again)) == []
    assert again.log_end_offset == before[0]  # type: ignore[index]
    assert again.offset_for_time(NOW + 5_000) is None
