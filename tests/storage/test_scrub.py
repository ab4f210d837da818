"""Damage at rest: a missing segment is found when a log is loaded, a flipped byte by the scrub."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from storage_kit.logs import NOW, LogMaker, a_batch, close_cleanly

from ottla.logfiles.folders import find_logs
from ottla.record.batch import stamp
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptLog, LogOffline
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs
from ottla.storage.scrub import PART_BYTES, ScrubProgress, missing_after, scrub_log, scrub_part

ID = b"0123456789abcdef"
SMALL = LogConfig(segment_bytes=400)


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), SMALL)


def written(log: Log, count: int = 12) -> Log:
    for number in range(count):
        log.append(a_batch(b"%d" % number * 50), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    return log


def remove_segment(log: Log, slot: int) -> int:
    """Removes a segment with its indexes and its snapshot; its base offset."""
    base = log.segments[slot].base_offset
    for path in Path(log.folder).glob(f"{base:020d}.*"):
        path.unlink()
    return base


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_middle_segment_is_told(maker: LogMaker, clean: bool) -> None:
    log = written(maker.create())
    assert len(log.segments) > 4
    following = log.segments[3].base_offset
    end = close_cleanly(log)
    base = remove_segment(log, 2)
    before = sorted(os.listdir(log.folder))
    with pytest.raises(CorruptLog, match=f"no segment holds the offsets {base} to {following - 1}"):
        maker.load(clean=clean, recovery_point=end, high_watermark=end)
    assert [name for name in before if name.endswith(".log")] == sorted(
        name for name in os.listdir(log.folder) if name.endswith(".log")
    )


def test_gaps_of_compaction_are_none(maker: LogMaker) -> None:
    log = written(maker.create())
    end = close_cleanly(log)
    remove_segment(log, 2)
    # It was compacted once, or is: then a segment may be gone for good reason.
    assert maker.load(
        clean=True, recovery_point=end, high_watermark=end, first_dirty_offset=3
    ).log_end_offset
    maker.config = LogConfig(segment_bytes=400, cleanup_policy=("compact",))
    assert maker.load(clean=True, recovery_point=end, high_watermark=end).log_end_offset == end


def test_gaps_in_segments_tell_of_compaction_elsewhere(maker: LogMaker) -> None:
    """A follower of a log that was compacted before the topic's settings changed."""
    log = maker.create()
    for offset in (0, 2, 5, 6, 9, 14, 15, 20):
        batch = a_batch(b"x" * 100)
        stamp(batch, 0, offset, 0)
        log.append_replicated(batch, NOW)
    assert len(log.segments) > 2
    end = close_cleanly(log)
    assert maker.load(clean=True, recovery_point=end, high_watermark=end).log_end_offset == 21


def test_before_the_log_start_nothing_is_missed(maker: LogMaker) -> None:
    log = written(maker.create())
    start = log.segments[3].base_offset
    end = close_cleanly(log)
    remove_segment(log, 1)
    again = maker.load(clean=True, recovery_point=end, high_watermark=end, log_start_offset=start)
    assert (again.log_start_offset, again.log_end_offset) == (start, end)


def test_it_is_said_soon_after_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of logs that nobody has asked for yet; those of one segment stay unloaded."""
    logs = Logs([str(tmp_path)], lambda _: SMALL)
    logs.open()
    torn = written(logs.create("torn", 0, ID))
    written(logs.create("whole", 0, ID))
    written(logs.create("short", 0, ID), count=1)
    logs.close()
    remove_segment(torn, 2)
    again = Logs([str(tmp_path)], lambda _: SMALL)
    again.open()
    assert again.was_clean
    assert again.loaded() == []
    list(again.survey())
    assert [log.topic for log in again.loaded()] == ["whole"]
    assert "torn-0 is offline" in caplog.text
    assert "no segment holds" in caplog.text
    with pytest.raises(LogOffline, match="no segment holds"):
        again.get("torn", 0)
    again.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        (found,) = file.read(1)
        file.seek(position)
        file.write(bytes([found ^ 0x5A]))


def test_a_flipped_byte_in_a_closed_segment_is_found(maker: LogMaker) -> None:
    log = written(maker.create())
    log.flush(NOW)
    (folder,) = find_logs(Path(log.folder))
    assert list(scrub_log(folder)) == []
    segment = log.segments[2]
    position = segment.size - 3
    flip(segment.path, position)
    # The last segment takes appends, and is looked at by recovery.
    flip(log.active.path, log.active.size - 3)
    read: list[int] = []
    (finding,) = scrub_log(folder, read.append)
    assert finding.file == os.path.basename(segment.path)
    assert finding.position < position
    assert finding.offset == log.segments[3].base_offset - 1
    assert "CRC32C" in finding.reason
    assert sum(read) == sum(segment.size for segment in log.segments) - log.active.size


def test_a_length_that_makes_no_sense_ends_the_segment(maker: LogMaker) -> None:
    log = written(maker.create())
    log.flush(NOW)
    (folder,) = find_logs(Path(log.folder))
    flip(log.segments[1].path, 8)
    (finding,) = scrub_log(folder)
    assert (finding.position, finding.offset) == (0, log.segments[1].base_offset)
    assert "cannot be read" in finding.reason


def test_parts(maker: LogMaker) -> None:
    log = written(maker.create())
    log.flush(NOW)
    (folder,) = find_logs(Path(log.folder))
    segment = folder.segments[0]
    progress, parts = ScrubProgress(), 0
    while not progress.over:
        progress, findings = scrub_part(segment, progress, most=1)
        assert findings == ()
        parts += 1
    assert parts == 3  # a batch each
    assert progress.position == segment.log.stat().st_size
    assert scrub_part(segment, ScrubProgress(), PART_BYTES)[0] == progress


def test_a_file_that_was_replaced_or_removed_meanwhile_is_no_damage(maker: LogMaker) -> None:
    log = written(maker.create())
    log.flush(NOW)
    (folder,) = find_logs(Path(log.folder))
    segment = folder.segments[0]
    progress, _ = scrub_part(segment, ScrubProgress(), most=1)
    other = Path(log.folder) / "other"
    other.write_bytes(b"x" * 5000)
    other.rename(segment.log)
    gone, findings = scrub_part(segment, progress)
    assert (gone.over, findings) == (True, ())
    # Nor is it known where it ends: that the next segment begins later says nothing.
    assert missing_after(gone, folder.segments[1]) is None
    segment.log.unlink()
    assert scrub_part(segment, progress) == (gone, ())
