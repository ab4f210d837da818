"""Marks in a log: what they hide, and that it stays so through flushes, loads and truncation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_kit.logs import NOW, LogMaker, a_batch

from ottla.logfiles.deletions import InvalidSnapshot, decode_deletions, deleted_offsets
from ottla.logfiles.folders import find_logs
from ottla.logfiles.names import DELETIONS_SNAPSHOT
from ottla.record.deletion import build_mark
from ottla.storage.compaction.erasing import erasable_now, is_due, must_roll
from ottla.storage.errors import UndeletableOffset
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.log.targets import check_bounds, check_records, not_deleted
from ottla.storage.verify import verify_log


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path))


def mark(log: Log, *ranges: tuple[int, int]) -> int:
    append = log.append(bytearray(build_mark(ranges)), 0, NOW, COORDINATOR)
    return append.base_offset


def fill(log: Log, batches: int = 4, count: int = 5) -> None:
    for _ in range(batches):
        log.append(a_batch(count=count), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)


def in_two_segments(maker: LogMaker) -> Log:
    """With ten records each."""
    log = maker.create()
    fill(log, batches=2)
    log.roll(NOW)
    fill(log, batches=2)
    return log


def hidden(log: Log) -> list[tuple[int, int]]:
    return [] if log.deletions is None else log.deletions.invisible.between(0, 1 << 60)


def test_a_log_without_marks_has_nothing_of_it(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    log.flush(NOW)
    assert log.deletions is None
    assert DELETIONS_SNAPSHOT not in os.listdir(log.folder)


def test_a_mark_hides_its_targets_and_itself(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    assert mark(log, (3, 4), (7, 10)) == 20
    assert hidden(log) == [(3, 4), (7, 10), (20, 21)]


def test_followers_hide_what_they_are_sent(maker: LogMaker, tmp_path: Path) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    piece = log.read(0, 1 << 20, log.log_end_offset)
    assert piece is not None
    (tmp_path / "other").mkdir()
    follower = LogMaker(str(tmp_path / "other")).create()
    follower.append_replicated(piece.read(), NOW)
    assert hidden(follower) == hidden(log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flushed", [0, 1, 2])
def test_marks_are_found_again(maker: LogMaker, clean: bool, flushed: int) -> None:
    """From the snapshot, from the log, or from both."""
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    if flushed >= 1:
        log.flush(NOW)
    mark(log, (5, 7))
    fill(log)
    if flushed == 2 or clean:
        log.flush(NOW)
    expected = hidden(log)
    point = log.recovery_point
    log.close()
    again = maker.load(clean=clean, recovery_point=point)
    assert hidden(again) == expected
    assert DELETIONS_SNAPSHOT in os.listdir(log.folder) or not point


@pytest.mark.parametrize("damage", ["cut", "flip", "longer"])
def test_a_snapshot_that_cannot_be_trusted_is_made_anew(maker: LogMaker, damage: str) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.flush(NOW)
    path = Path(log.folder) / DELETIONS_SNAPSHOT
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-1])
        case "flip":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case _:  # of a log that went further
            mark(log, (11, 12))
            fill(log)
            log.flush(NOW)
            later = path.read_bytes()
            log.truncate_to(21, NOW)
            path.write_bytes(later)
    point = log.recovery_point
    log.close()
    assert hidden(maker.load(clean=True, recovery_point=point)) == [(3, 4), (20, 21)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("loss", ["missing", "older"])
def test_a_snapshot_that_the_checkpoint_knows_of_is_missed(
    maker: LogMaker, loss: str, clean: bool
) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.flush(NOW)
    path = Path(log.folder) / DELETIONS_SNAPSHOT
    older = path.read_bytes()
    mark(log, (11, 12))
    log.flush(NOW)
    assert log.deletions is not None
    point, end = log.recovery_point, log.deletions.stored_end
    assert point == end == 22
    log.close()
    if loss == "missing":
        path.unlink()
    else:
        path.write_bytes(older)
    again = maker.load(clean=clean, recovery_point=point, deletions_end=end)
    assert hidden(again) == [(3, 4), (11, 12), (20, 22)]
    again.close()
    # It is there again, and the next start has nothing to mend.
    assert decode_deletions(path.read_bytes()).end_offset == end


def test_truncation_lowers_what_the_checkpoint_is_to_say(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.flush(NOW)
    mark(log, (11, 12))
    log.flush(NOW)
    log.truncate_to(21, NOW)
    assert log.deletions is not None
    assert log.deletions.stored_end == 21


def test_a_snapshot_of_a_log_that_went_further_is_not_believed_once_the_log_has_grown(
    maker: LogMaker,
) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    size = log.active.size
    mark(log, (11, 12))
    log.flush(NOW)
    path = log.active.path
    log.close()
    os.truncate(path, size)  # the last mark is lost
    again = maker.load(clean=False)
    assert hidden(again) == [(3, 4), (20, 21)]
    fill(again)
    again.close()  # killed before the next flush
    assert hidden(maker.load(clean=False)) == [(3, 4), (20, 21)]


def test_truncation_takes_marks_back(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    mark(log, (5, 7))
    fill(log, 1)
    mark(log, (1, 2))
    log.flush(NOW)
    log.truncate_to(21, NOW)
    assert hidden(log) == [(3, 4), (20, 21)]
    point = log.recovery_point
    log.close()
    again = maker.load(clean=False, recovery_point=point)
    assert hidden(again) == [(3, 4), (20, 21)]
    again.truncate_fully_and_start_at(50, NOW)
    assert again.deletions is None
    again.close()
    assert hidden(maker.load(clean=False, recovery_point=0)) == []


def test_marks_that_come_after_a_truncation_are_seen_by_readers_without_a_broker(
    maker: LogMaker,
) -> None:
    """Also where the log had been longer, and was flushed."""
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    fill(log)
    log.flush(NOW)
    log.truncate_to(26, NOW)
    mark(log, (5, 7))
    (folder,) = find_logs(Path(log.folder))
    assert (
        deleted_offsets(folder).between(0, 100)
        == hidden(log)
        == [(3, 4), (5, 7), (20, 21), (26, 27)]
    )


def test_what_may_be_erased_waits_for_the_high_watermark(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.advance_high_watermark(log.log_end_offset)
    mark(log, (5, 7))
    assert log.deletions is not None
    assert list(log.deletions.erasable(0, 20, log.high_watermark)) == [(3, 4)]
    log.flush(NOW)
    point = log.recovery_point
    log.close()
    again = maker.load(clean=True, recovery_point=point, high_watermark=21)
    assert again.deletions is not None
    assert list(again.deletions.erasable(0, 20, 21)) == [(3, 4)]
    assert list(again.deletions.erasable(0, 20, 22)) == [(3, 4), (5, 7)]


def test_the_start_has_to_be_on_disk_before_marks_are_forgotten(maker: LogMaker) -> None:
    log = in_two_segments(maker)
    mark(log, (3, 4), (12, 13))
    log.advance_high_watermark(log.log_end_offset)
    log.advance_start(10)
    log.delete_old_segments(NOW)
    assert hidden(log)[0] == (3, 4)
    log.start_stored(10)
    assert hidden(log) == [(12, 13), (20, 21)]


def test_marks_are_not_forgotten_while_their_records_are_on_disk(maker: LogMaker) -> None:
    log = in_two_segments(maker)
    mark(log, (3, 4), (12, 13))
    log.advance_high_watermark(log.log_end_offset)
    log.advance_start(5)
    log.start_stored(5)
    assert hidden(log)[0] == (3, 4)
    # It is erased, as if the log did not start after it.
    log.flush(NOW)
    found, is_all = erasable_now(log, synced_end=10)
    assert list(found) == [(3, 4)]
    assert not is_all
    (folder,) = find_logs(Path(log.folder))
    assert verify_log(folder).deleted_on_disk == 2


def test_a_pass_leaves_the_active_segment_alone_wherever_the_log_starts(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.advance_high_watermark(log.log_end_offset)
    log.advance_start(5)
    found, is_all = erasable_now(log, synced_end=log.log_end_offset)
    assert not found
    assert not is_all
    assert must_roll(log)


def test_a_clock_that_was_set_back_does_not_put_erasing_off(maker: LogMaker) -> None:
    log = maker.create()
    assert not is_due(log, NOW)
    fill(log)
    mark(log, (3, 4))
    half = log.config.delete_record_erase_ms // 2
    assert not is_due(log, NOW)
    assert not is_due(log, NOW + half - 1)
    assert is_due(log, NOW + half)
    assert is_due(log, NOW - 86_400_000)


def test_marks_are_not_forgotten_while_a_thread_cuts_the_log(maker: LogMaker) -> None:
    log = in_two_segments(maker)
    mark(log, (3, 4), (12, 13))
    log.advance_high_watermark(log.log_end_offset)
    mark(log, (5, 6), (14, 15))
    log.advance_start(10)
    log.delete_old_segments(NOW)
    steps = log.truncation_to(21, NOW)
    for step in steps:
        log.start_stored(10)
        assert hidden(log)[0] == (3, 4)
        step()
    log.start_stored(10)
    assert hidden(log) == [(12, 13), (20, 21)]


def test_readers_without_a_broker(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4))
    log.flush(NOW)
    mark(log, (5, 7))
    (folder,) = find_logs(Path(log.folder))
    assert deleted_offsets(folder).between(0, 100) == [(3, 4), (5, 7), (20, 22)]
    (Path(log.folder) / DELETIONS_SNAPSHOT).write_bytes(b"nonsense")
    assert deleted_offsets(folder).between(0, 100) == [(3, 4), (5, 7), (20, 22)]
    with pytest.raises(InvalidSnapshot):
        decode_deletions(b"nonsense")


# Which way what is left takes to a consumer


def test_batches_without_deleted_records_are_sent_as_they_are(maker: LogMaker) -> None:
    """By far most of a log in which a few were deleted goes from the page cache to the socket."""
    log = maker.create()
    for _ in range(50):
        log.append(a_batch(bytes(10_000), count=2), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    whole = log.read(0, 1 << 20, 100)
    assert whole is not None
    size = whole.length // 50
    mark(log, (50, 51))
    log.advance_high_watermark(log.log_end_offset)

    def parts(offset: int) -> Iterator[tuple[int, bool]]:
        """The batches of each piece, and whether it has to be looked into."""
        while offset < 100:
            part = log.read_visible(offset, 1 << 20, 101, True, True)
            assert part.piece is not None
            batches = part.piece.length // size
            yield batches, part.is_masked
            offset += 2 * batches

    assert list(parts(0)) == [(25, False), (1, True), (24, False)]
    assert list(parts(52)) == [(24, False)]


def test_a_reader_that_waits_at_the_end_is_sent_nothing_for_what_comes_after_it(
    maker: LogMaker,
) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4), (18, 20))
    stable = log.high_watermark
    assert stable == 20 < log.log_end_offset
    assert log.read_visible(17, 1 << 20, stable, True, True).piece is not None
    assert log.read_visible(18, 1 << 20, stable, True, True).is_covered
    for offset in (stable, log.log_end_offset):
        part = log.read_visible(offset, 1 << 20, stable, True, True)
        assert part.piece is None
        assert not part.is_covered


# What may be deleted


def test_aborted_and_open_transactions_and_markers(maker: LogMaker) -> None:
    from storage_kit.logs import a_marker

    log = maker.create()
    for producer in (1, 2):
        batch = a_batch(
            count=2, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append(batch, 0, NOW)
    log.append(a_marker(1, committed=False), 0, NOW, COORDINATOR)
    log.append(a_batch(count=3), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 2
    check_bounds(log, 0, 2)
    with pytest.raises(UndeletableOffset, match="offset 2 is not committed"):
        check_bounds(log, 1, 4)
    with pytest.raises(UndeletableOffset, match=r"offset 0 is in an aborted .*read_uncommitted"):
        check_records(log, 0, 2, wait=True)
    log.append(a_marker(2, committed=True), 0, NOW, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    assert check_records(log, 2, 4, wait=True) == (4, 4)
    with pytest.raises(UndeletableOffset, match="offset 4 holds no record, but the end of a"):
        check_records(log, 2, 6, wait=True)
    with pytest.raises(UndeletableOffset, match="out of range: the log ends at 9"):
        check_bounds(log, 9, 10)


def test_what_is_deleted_is_skipped_or_refused(maker: LogMaker) -> None:
    log = maker.create()
    fill(log)
    mark(log, (3, 4), (6, 8))
    assert not_deleted(log, 2, 10, skip_deleted=True) == [(2, 3), (4, 6), (8, 10)]
    assert not_deleted(log, 3, 4, skip_deleted=True) == []
    with pytest.raises(UndeletableOffset, match="offset 6 is deleted already"):
        not_deleted(log, 5, 10, skip_deleted=False)
