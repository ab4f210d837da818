"""The log of one partition: appends, reads, rolls, flushes."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from storage_kit.logs import NOW, AttentiveOwner, LogMaker, a_batch, a_marker, stored_batches
from storage_kit.memory import verify_log

from ottla.record.batch import Record, build_batch, check_batch, read_header
from ottla.record.compression.codecs import Codec
from ottla.record.errors import CorruptBatch, InvalidRecord, Truncated
from ottla.record.legacy import build_message_set
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    InvalidProducerEpoch,
    InvalidTimestamp,
    LogOffline,
    NotInMemory,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
    UnexpectedOffset,
)
from ottla.storage.files import Files
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.segments.file import OpenFiles


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), owner=AttentiveOwner())


@pytest.fixture
def log(maker: LogMaker) -> Log:
    return maker.create()


def sound(log: Log) -> None:
    assert list(verify_log(log)) == []


def test_a_new_log_is_a_folder_and_its_metadata(log: Log) -> None:
    assert os.listdir(log.folder) == ["partition.metadata"]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)
    assert log.read(0, 1000, 0) is None
    assert log.size == 0
    assert log.flush_begin(NOW) is not None  # the metadata


def test_append_stamps_offset_and_epoch_and_nothing_else(log: Log) -> None:
    batch = a_batch(count=3)
    sent = bytes(batch)
    append = log.append(batch, 7, NOW)
    assert (append.base_offset, append.last_offset, append.size) == (0, 2, len(sent))
    assert append.log_append_time == -1
    assert not append.duplicate
    log.append(a_batch(count=2), 7, NOW)
    assert log.log_end_offset == 5
    first, second = stored_batches(log)
    header = check_batch(first[2])
    assert (header.base_offset, header.partition_leader_epoch) == (0, 7)
    assert first[2][16:] == sent[16:]
    assert check_batch(second[2]).base_offset == 3
    assert log.end_offset_for_epoch(7) == (7, 5)


def test_log_append_time(maker: LogMaker) -> None:
    maker.config = LogConfig(message_timestamp_type="LogAppendTime")
    log = maker.create()
    assert log.append(a_batch(timestamp=5), 0, NOW).log_append_time == NOW
    ((_, _, stored),) = stored_batches(log)
    header = check_batch(stored)
    assert (header.max_timestamp, header.timestamp_type) == (NOW, 1)
    assert log.offset_for_time(NOW) == (NOW, 0, 0)
    assert log.offset_for_time(NOW + 1) is None


@pytest.mark.parametrize(
    ("timestamp", "refused"),
    [
        (NOW, False),
        # How old a record may be is for those who look at records to say.
        (NOW - 101, False),
        (NOW + 50, False),
        (NOW + 51, True),
        (-1, False),
    ],
)
def test_timestamps_too_far_from_the_clock(maker: LogMaker, timestamp: int, refused: bool) -> None:
    maker.config = LogConfig(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)
    log = maker.create()
    for batch in (a_batch(timestamp=timestamp), a_batch(timestamp=timestamp) + a_batch()):
        if refused:
            with pytest.raises(InvalidTimestamp):
                log.append(batch, 0, NOW)
            assert log.log_end_offset == 0
        else:
            log.append(batch, 0, NOW)


def test_refused_batches_leave_no_trace(log: Log) -> None:
    log.append(a_batch(), 0, NOW)
    before = os.path.getsize(log.active.path)
    torn = a_batch()
    torn[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append(torn, 0, NOW)
    with pytest.raises(CorruptBatch):
        log.append(a_batch()[:-1], 0, NOW)
    with pytest.raises(CorruptBatch):
        log.append(a_batch() + b"\0\0", 0, NOW)
    with pytest.raises(InvalidRecord):
        log.append(a_marker(1, committed=True), 0, NOW)
    log.reconfigure(replace(log.config, max_message_bytes=100))
    with pytest.raises(RecordTooLarge):
        log.append(a_batch(b"x" * 100), 0, NOW)
    assert (log.log_end_offset, os.path.getsize(log.active.path)) == (1, before)
    assert log.append(a_batch(b"x"), 0, NOW).base_offset == 1
    sound(log)


def test_several_batches_in_one_append(log: Log) -> None:
    append = log.append(a_batch(b"a", count=2) + a_batch(b"b", count=3), 4, NOW)
    assert (append.base_offset, append.last_offset, len(append.batches)) == (0, 4, 2)
    assert [(first, last) for first, last, _ in stored_batches(log)] == [(0, 1), (2, 4)]
    with pytest.raises(InvalidRecord, match="one batch"):
        log.append(a_batch() + a_batch(producer_id=1, producer_epoch=0, base_sequence=0), 4, NOW)
    assert log.log_end_offset == 5
    sound(log)


def test_duplicates_gaps_and_fences(log: Log) -> None:
    def sent(sequence: int, epoch: int = 0) -> bytearray:
        return a_batch(count=2, producer_id=9, producer_epoch=epoch, base_sequence=sequence)

    log.append(a_batch(), 0, NOW)
    first = log.append(sent(4), 0, NOW)
    assert first.base_offset == 1
    log.append(sent(6), 0, NOW)
    again = log.append(sent(4), 0, NOW)
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 1, 2)
    assert log.log_end_offset == 5
    with pytest.raises(OutOfOrderSequence):
        log.append(sent(10), 0, NOW)
    log.append(sent(0, epoch=1), 0, NOW)
    with pytest.raises(InvalidProducerEpoch):
        log.append(sent(8), 0, NOW)
    sound(log)


def test_transactions_hold_back_the_stable_offset(log: Log) -> None:
    def sent(producer: int, sequence: int) -> bytearray:
        return a_batch(
            producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    log.append(a_batch(), 0, NOW)
    log.append(sent(1, 0), 0, NOW)  # 1
    log.append(sent(2, 0), 0, NOW)  # 2
    log.append(a_batch(), 0, NOW)  # 3
    assert log.last_stable_offset == 0  # not above the high watermark
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 1
    log.append(a_marker(1, committed=False), 0, NOW, COORDINATOR)  # 4
    assert log.last_stable_offset == 1  # the marker is not below the high watermark
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 2
    log.append(a_marker(2, committed=True), 0, NOW, COORDINATOR)  # 5
    log.advance_high_watermark(100)
    assert (log.high_watermark, log.last_stable_offset) == (6, 6)
    assert log.aborted_transactions(0, 6) == [(1, 1)]
    assert log.aborted_transactions(0, 1) == []
    assert log.aborted_transactions(5, 6) == []
    sound(log)


def test_reads_begin_at_the_batch_and_end_at_the_bound(log: Log) -> None:
    for _ in range(4):
        log.append(a_batch(count=3), 0, NOW)
    size = log.size // 4
    part = log.read(4, 1 << 20, 12)  # inside of the second batch
    assert part is not None
    assert (part.position, part.length, part.base_offset) == (size, 3 * size, 3)
    part = log.read(4, 1 << 20, 9)
    assert part is not None
    assert part.length == 2 * size
    part = log.read(4, 1 << 20, 8)  # a bound inside of a batch leaves it out
    assert part is not None
    assert part.length == size
    assert log.read(9, 1 << 20, 9) is None
    part = log.read(0, size + 10, 12)  # may end inside of a batch
    assert part is not None
    assert part.length == size + 10
    part = log.read(0, 10, 12)  # but the first is whole
    assert part is not None
    assert part.length == size
    part = log.read(0, 10, 12, at_least_one=False)
    assert part is not None
    assert (part.length, part.first_size) == (10, size)
    assert log.read(0, 0, 12, at_least_one=False) is None
    assert log.read(12, 100, 12) is None
    for offset in (-1, 13):
        with pytest.raises(OffsetOutOfRange) as refused:
            log.read(offset, 100, 12)
        assert (refused.value.start, refused.value.end) == (0, 12)


def test_every_offset_is_found_in_memory_and_on_disk(maker: LogMaker) -> None:
    """Through the tail, the index in memory, the index file; in one segment and over several."""
    maker.config = LogConfig(segment_bytes=20_000, index_interval_bytes=300)
    log = maker.create()
    placed = {}
    for number in range(600):
        append = log.append(a_batch(b"x" * (number % 90), count=number % 4 + 1), 0, NOW + number)
        for offset in range(append.base_offset, append.last_offset + 1):
            placed[offset] = append.base_offset
    assert len(log.segments) > 3

    def check(log: Log) -> None:
        sound(log)
        for offset, base in placed.items():
            part = log.read(offset, 1, log.log_end_offset)
            assert part is not None
            assert part.base_offset == base
            assert read_header(part.read()).last_offset >= offset

    check(log)
    log.flush(NOW)
    check(log)
    assert all(segment.settled for segment in log.segments if segment is not log.active)
    check(maker.load(clean=True, recovery_point=log.log_end_offset))


def test_rolls_when_the_segment_is_full(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_bytes=1000)
    log = maker.create()
    for _ in range(3):
        log.append(a_batch(b"x" * 400), 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert all(segment.size <= 1000 for segment in log.segments)
    assert os.path.exists(f"{log.folder}/00000000000000000002.log")
    with pytest.raises(RecordTooLarge):
        log.append(a_batch(b"x" * 1000), 0, NOW)


def test_rolls_by_the_age_of_the_first_batch(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_ms=1000)
    log = maker.create()
    log.append(a_batch(timestamp=NOW), 0, NOW)
    log.append(a_batch(timestamp=NOW + 1000), 0, NOW)
    assert len(log.segments) == 1
    log.append(a_batch(timestamp=NOW + 1001), 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.append(a_batch(timestamp=NOW + 2001), 0, NOW)
    assert len(log.segments) == 2
    log.reconfigure(LogConfig(segment_ms=999))  # a change takes effect at once
    log.append(a_batch(timestamp=NOW + 2001), 0, NOW)
    assert len(log.segments) == 3


def test_rolls_by_the_clock_where_batches_have_no_time(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_ms=1000)
    log = maker.create()
    log.active.created_ms = NOW
    log.append(a_batch(timestamp=-1), 0, NOW)
    log.append(a_batch(timestamp=-1), 0, NOW + 1000)
    assert len(log.segments) == 1
    log.append(a_batch(timestamp=-1), 0, NOW + 1001)
    assert len(log.segments) == 2


def test_rolls_when_an_index_is_full(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_index_bytes=48, index_interval_bytes=1)
    log = maker.create()
    for number in range(20):
        log.append(a_batch(timestamp=NOW + number), 0, NOW)
    assert len(log.segments) == 5
    log.flush(NOW)
    for segment in log.segments:
        assert segment.offset_index.size <= 48
        assert segment.time_index.size <= 48
    sound(log)


def test_rolls_before_a_relative_offset_overflows(maker: LogMaker) -> None:
    log = maker.create()
    log.append_replicated(build_batch([Record(0, NOW, None, b"")]), NOW)
    far = 2**31 - 1
    log.append_replicated(build_batch([Record(far, NOW, None, b"")], base_offset=far), NOW)
    assert len(log.segments) == 1
    log.append_replicated(build_batch([Record(far + 1, NOW, None, b"")], base_offset=far + 1), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, far + 1]
    # A gap that no segment can span.
    off = 3 * 2**31
    log.append_replicated(build_batch([Record(off, NOW, None, b"")], base_offset=off), NOW)
    assert log.log_end_offset == off + 1
    part = log.read(far + 2, 1000, off + 1)
    assert part is not None
    assert part.base_offset == off
    sound(log)


def test_a_leader_rolls_before_a_relative_offset_overflows(maker: LogMaker) -> None:
    log = maker.create()
    far = 2**31 - 2
    log.append_replicated(build_batch([Record(0, NOW, None, b"")]), NOW)
    log.append_replicated(build_batch([Record(far, NOW, None, b"")], base_offset=far), NOW)
    log.append(a_batch(), 0, NOW)
    assert len(log.segments) == 1
    log.append(a_batch(), 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    sound(log)


def test_jitter_makes_segments_roll_earlier_but_never_later(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_ms=1000, segment_jitter_ms=1000)
    log = maker.create()
    jitters = {log.next_segment(NOW).roll_jitter_ms for _ in range(100)}
    assert len(jitters) > 20
    assert all(0 <= jitter < 1000 for jitter in jitters)


def test_replicated_batches_keep_what_the_leader_gave_them(tmp_path: Path) -> None:
    leader = LogMaker(str(tmp_path / "leader"))
    follower = LogMaker(str(tmp_path / "follower"), LogConfig(segment_bytes=700))
    for folder in ("leader", "follower"):
        (tmp_path / folder).mkdir()
    source, copy = leader.create(), follower.create()
    for epoch in range(6):
        source.append(
            a_batch(
                b"x" * 100, producer_id=3, producer_epoch=0, base_sequence=epoch, transactional=True
            ),
            epoch,
            NOW,
        )
    source.append(a_marker(3, committed=False), 6, NOW, COORDINATOR)
    part = source.read(0, 1 << 20, 7)
    assert part is not None
    assert copy.append_replicated(part.read(), NOW) == 7
    assert list(stored_batches(copy)) == list(stored_batches(source))
    assert len(copy.segments) > 1
    assert copy.end_offset_for_epoch(2) == (2, 3)
    assert copy.aborted_transactions(0, 7) == [(3, 0)]
    assert copy.producers.producers[3].last_sequence == 5
    with pytest.raises(UnexpectedOffset):
        copy.append_replicated(part.read(), NOW)
    sound(copy)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_an_old_kafka_are_copied(tmp_path: Path, magic: int, codec: Codec) -> None:
    """A data folder of Kafka's may hold them; a new replica, or a copy in another folder, too, then."""
    source, target = LogMaker(str(tmp_path / "leader")), LogMaker(str(tmp_path / "follower"))
    Path(source.folder).mkdir(parents=True)
    Path(target.folder).parent.mkdir()
    records = [Record(each, NOW + each if magic else -1, None, b"%d" % each) for each in range(5)]
    stored = build_message_set(records, magic, codec)
    Path(source.folder, "00000000000000000000.log").write_bytes(stored)
    leader, follower = source.load(), target.create()
    leader.append(a_batch(b"new"), 7, NOW)
    part = leader.read(0, 1 << 20, 6)
    assert part is not None
    sent = part.read()
    assert follower.append_replicated(sent, NOW) == 6
    assert list(stored_batches(follower)) == list(stored_batches(leader))
    assert follower.epochs.latest_epoch == 7
    sound(follower)
    damaged = bytearray(sent)
    damaged[len(stored) - 1] ^= 1
    other = LogMaker(str(tmp_path / "other"))
    Path(other.folder).parent.mkdir()
    with pytest.raises(CorruptBatch):
        other.create().append_replicated(damaged, NOW)
    with pytest.raises(Truncated):
        other.load().append_replicated(sent[: len(stored) - 1], NOW)


def test_batches_that_the_leader_took_are_copied_whatever_the_size_of_segments_is_now(
    tmp_path: Path,
) -> None:
    """`segment.bytes` may have been larger when they were written: refused here, they would keep a
    replica that is new, or was away, out of the in-sync set for ever."""
    source = LogMaker(str(tmp_path / "leader"))
    target = LogMaker(str(tmp_path / "follower"), LogConfig(segment_bytes=700))
    for folder in ("leader", "follower"):
        (tmp_path / folder).mkdir()
    leader, follower = source.create(), target.create()
    for size in (100, 1000, 100, 2000):
        leader.append(a_batch(b"x" * size), 0, NOW)
    part = leader.read(0, 1 << 20, 4)
    assert part is not None
    assert follower.append_replicated(part.read(), NOW) == 4
    assert list(stored_batches(follower)) == list(stored_batches(leader))
    assert [segment.base_offset for segment in follower.segments] == [0, 1, 2, 3]
    sound(follower)
    follower.flush(NOW)
    loaded = target.load(recovery_point=2, high_watermark=4)
    assert list(stored_batches(loaded)) == list(stored_batches(leader))


def test_prepare_changes_nothing_and_an_old_one_is_not_written(log: Log) -> None:
    first = log.prepare(a_batch(), 0, NOW)
    second = log.prepare(a_batch(), 0, NOW)
    assert log.log_end_offset == 0
    log.write(first)
    with pytest.raises(RuntimeError, match="under way"):
        log.prepare(a_batch(), 0, NOW)
    assert log.read(0, 1000, 1) is None  # not yet visible
    log.commit(first)
    with pytest.raises(RuntimeError):
        log.write(second)
    with pytest.raises(RuntimeError):
        log.commit(second)
    assert log.log_end_offset == 1
    sound(log)


def test_writes_and_flushes_on_other_threads(maker: LogMaker) -> None:
    """With rolls in them, while the log is read here."""
    maker.config = LogConfig(segment_bytes=1000)
    log = maker.create()
    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            append = log.prepare(a_batch(b"x" * 300), 0, NOW)
            writing = pool.submit(log.write, append)
            job = log.flush_begin(NOW)
            flushing = pool.submit(job.run) if job is not None else None
            assert len(list(stored_batches(log))) == number
            writing.result()
            log.commit(append)
            if job is not None and flushing is not None:
                flushing.result()
                log.flush_end(job)
                assert log.recovery_point == number
    assert len(log.segments) == 30
    sound(log)


def test_flush_moves_the_recovery_point(log: Log, maker: LogMaker) -> None:
    owner = maker.owner
    assert isinstance(owner, AttentiveOwner)
    log.append(a_batch(), 0, NOW)
    log.append(a_batch(), 0, NOW)
    assert owner.told == ["dirty"]
    job = log.flush_begin(NOW)
    assert job is not None
    assert log.flush_begin(NOW) is None  # one at a time
    log.append(a_batch(), 0, NOW)
    job.run()
    assert log.recovery_point == 0
    log.flush_end(job)
    assert log.recovery_point == 2
    assert owner.told == ["dirty", "dirty"]
    log.flush(NOW)
    assert log.recovery_point == 3
    assert log.flush_begin(NOW) is None


def test_due_for_flush(log: Log, maker: LogMaker) -> None:
    assert not log.due_for_flush(NOW)
    log.append(a_batch(), 0, NOW)
    assert not log.due_for_flush(NOW + 59_999)
    assert log.due_for_flush(NOW + 60_000)  # at rest: some time
    log.reconfigure(LogConfig(flush_ms=100))
    assert not log.due_for_flush(NOW + 99)
    assert log.due_for_flush(NOW + 100)
    log.reconfigure(LogConfig(flush_messages=2))
    assert not log.due_for_flush(NOW)
    log.append(a_batch(), 0, NOW)
    assert log.due_for_flush(NOW)
    assert isinstance(maker.owner, AttentiveOwner)
    assert maker.owner.told == ["dirty", "flush"]
    log.flush(NOW)
    assert not log.due_for_flush(NOW)


def test_the_unflushed_tail_is_bounded_by_bytes_or_seconds(log: Log) -> None:
    log.append(a_batch(), 0, NOW)
    log.appended_bytes += 64 << 20
    assert not log.due_for_flush(NOW + 4_999)  # whichever is more
    assert log.due_for_flush(NOW + 5_000)


def test_a_flush_syncs_what_has_changed(tmp_path: Path) -> None:
    """A sync takes a round trip to the disk, whether there is something to sync or not."""

    class Watching(Files):
        def __init__(self) -> None:
            self.synced: list[str] = []

        def fsync(self, fd: int) -> None:  # type: ignore[override]
            self.synced.append(os.path.splitext(os.readlink(f"/proc/self/fd/{fd}"))[1])
            os.fsync(fd)

        def fsync_folder(self, path: str) -> None:
            self.synced.append("folder")
            super().fsync_folder(path)

        def taken(self) -> list[str]:
            synced, self.synced = sorted(self.synced), []
            return synced

    files = Watching()
    log = LogMaker(str(tmp_path), LogConfig(index_interval_bytes=200), files).create()
    log.append(a_batch(), 0, NOW)
    log.flush(NOW)
    files.taken()
    while log.active.offset_index.entry_count < 1:
        log.append(a_batch(timestamp=NOW), 0, NOW)
    log.flush(NOW)
    assert files.taken() == [".index", ".log", ".timeindex", "folder"]  # they are new
    log.append(a_batch(timestamp=NOW), 0, NOW)
    log.flush(NOW)
    assert files.taken() == [".log"]
    while log.active.offset_index.entry_count < 3:
        log.append(a_batch(timestamp=NOW), 0, NOW)
    log.flush(NOW)
    assert files.taken() == [".index", ".log"]  # the times have not changed
    # A flush that came to nothing has synced nothing.
    while log.active.offset_index.entry_count < 5:
        log.append(a_batch(timestamp=NOW), 0, NOW)
    job = log.flush_begin(NOW)
    assert job is not None
    job.stop()
    log.flush_end(job)
    log.flush(NOW)
    assert files.taken() == [".index", ".log"]


def test_a_stopped_flush_is_as_if_never_begun(log: Log) -> None:
    log.append(a_batch(), 3, NOW)
    job = log.flush_begin(NOW)
    assert job is not None
    log.truncate_to(0, NOW)
    job.run()  # too late: it was taken back
    log.flush_end(job)
    assert not job.done
    assert log.recovery_point == 0
    log.append(a_batch(), 3, NOW)
    log.flush(NOW)
    assert log.recovery_point == 1
    assert os.path.exists(f"{log.folder}/leader-epoch-checkpoint")


class Failing(Files):
    """Fails one kind of call, from now on."""

    def __init__(self) -> None:
        self.failing = ""
        self.error = errno.EIO

    def _maybe(self, kind: str) -> None:
        if kind == self.failing:
            raise OSError(self.error, os.strerror(self.error))

    def pwrite(self, fd: int, data: object, position: int) -> int:  # type: ignore[override]
        self._maybe("pwrite")
        return os.pwrite(fd, data, position)  # type: ignore[arg-type]

    def pread(self, fd: int, size: int, position: int) -> bytes:  # type: ignore[override]
        self._maybe("pread")
        return os.pread(fd, size, position)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._maybe("fsync")

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        self._maybe("open")
        return super().open(path, flags)


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_failed_write_takes_the_log_offline_and_is_not_seen(tmp_path: Path, error: int) -> None:
    files = Failing()
    files.error = error
    maker = LogMaker(str(tmp_path), files=files, owner=AttentiveOwner())
    log = maker.create()
    log.append(a_batch(), 0, NOW)
    files.failing = "pwrite"
    with pytest.raises(LogOffline, match="write to"):
        log.append(a_batch(), 0, NOW)
    files.failing = ""
    assert log.log_end_offset == 1
    for call in (
        lambda: log.append(a_batch(), 0, NOW),
        lambda: log.read(0, 100, 1),
        lambda: log.truncate_to(0, NOW),
        lambda: log.offset_for_time(0),
        lambda: log.append_replicated(a_batch(), NOW),
        lambda: log.roll(NOW),
    ):
        with pytest.raises(LogOffline):
            call()
    assert log.flush_begin(NOW) is None
    assert isinstance(maker.owner, AttentiveOwner)
    assert maker.owner.told == ["dirty", "offline"]
    assert maker.load().log_end_offset == 1


def test_a_failed_sync_takes_the_log_offline_for_good(tmp_path: Path) -> None:
    files = Failing()
    log = LogMaker(str(tmp_path), files=files).create()
    log.append(a_batch(), 0, NOW)
    files.failing = "fsync"
    job = log.flush_begin(NOW)
    assert job is not None
    job.run()
    log.flush_end(job)
    files.failing = ""
    assert log.recovery_point == 0
    with pytest.raises(LogOffline, match="flush failed"):
        log.append(a_batch(), 0, NOW)
    with pytest.raises(LogOffline):
        log.flush(NOW)


def test_a_failed_read_takes_the_log_offline(tmp_path: Path) -> None:
    files = Failing()
    maker = LogMaker(str(tmp_path), LogConfig(index_interval_bytes=1), files)
    log = maker.create()
    for _ in range(3):
        log.append(a_batch(), 0, NOW)
    log.flush(NOW)
    log = maker.load(clean=True, recovery_point=3)
    files.failing = "pread"
    with pytest.raises(LogOffline, match="read failed"):
        log.read(0, 100, 3)


def test_no_descriptor_left_is_no_reason_to_go_offline(tmp_path: Path) -> None:
    files = Failing()
    log = LogMaker(str(tmp_path), files=files).create()
    files.failing, files.error = "open", errno.EMFILE
    with pytest.raises(Exception, match="Too many open files"):
        log.append(a_batch(), 0, NOW)
    files.failing = ""
    assert log.offline is None
    assert log.append(a_batch(), 0, NOW).base_offset == 0


def test_cold_files_are_closed_but_not_under_readers_nor_unsynced(tmp_path: Path) -> None:
    class Counting(Files):
        opened = 0

        def open(self, path: str, flags: int = os.O_RDONLY) -> int:
            self.opened += 1
            return super().open(path, flags)

        def close(self, fd: int) -> None:  # type: ignore[override]
            self.opened -= 1
            os.close(fd)

    files = Counting()
    open_files = OpenFiles(files, limit=4)
    logs = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        logs.append(LogMaker(str(folder), files=files, open_files=open_files).create())
    for log in logs:
        log.append(a_batch(b"%d" % logs.index(log)), 0, NOW)
    assert files.opened == 5  # unsynced: none may be closed
    assert open_files.crowded
    for log in logs:
        log.flush(NOW)
    open_files.limit = 2
    reader = logs[4].read(0, 1000, 1)
    assert reader is not None
    open_files.trim()
    for _ in range(2):
        for log in logs:
            log.read(0, 1000, 1)
    assert len(open_files) <= 3
    assert files.opened <= 4
    assert reader.read() == next(stored_batches(logs[4]))[2]
    for log in logs:
        log.close()
    del log
    held = files.opened
    assert held == 1  # the reader's
    assert b"4" in reader.read()
    del reader
    assert files.opened == 0


def test_search_by_time(maker: LogMaker) -> None:
    maker.config = LogConfig(index_interval_bytes=200, segment_bytes=3000)
    log = maker.create()
    for number in range(100):
        # Times go up by 10, with an old one now and then.
        timestamp = NOW + number * 10 if number % 7 else NOW
        log.append(
            bytearray(
                build_batch(
                    [Record(0, timestamp, None, b"a"), Record(1, timestamp + 5, None, b"b")]
                )
            ),
            0,
            NOW,
        )
    assert log.offset_for_time(NOW - 1000) == (NOW, 0, 0)
    assert log.offset_for_time(NOW + 10) == (NOW + 10, 2, 0)
    assert log.offset_for_time(NOW + 11) == (NOW + 15, 3, 0)
    assert log.offset_for_time(NOW + 13 * 10 + 6) == (NOW + 150, 30, 0)
    assert log.offset_for_time(NOW + 995) == (NOW + 995, 199, 0)
    assert log.offset_for_time(NOW + 996) is None
    assert log.offset_of_max_timestamp() == (NOW + 995, 199, 0)
    log.advance_high_watermark(200)
    log.advance_start(40)
    assert log.offset_for_time(0) == (NOW + 200, 40, 0)
    with pytest.raises(OffsetOutOfRange):
        log.read(39, 100, 200)


@pytest.mark.parametrize("step_ms", [0, 1])
def test_search_for_the_newest_brings_each_segment_once(maker: LogMaker, step_ms: int) -> None:
    """Without a wait for the disk: whoever searches brings what is missing, and begins anew."""
    maker.config = LogConfig(segment_bytes=1000)
    log = maker.create()
    for number in range(100):
        log.append(a_batch(b"x" * 400, timestamp=NOW + number * step_ms), 0, NOW)
    log.flush(NOW)
    assert len(log.segments) > 20
    brought = 0
    while True:
        try:
            newest = log.max_timestamp(wait=False)
            break
        except NotInMemory as missing:
            missing.load(1000)
            brought += 1
            assert brought <= len(log.segments)
    assert newest == NOW + 99 * step_ms


def test_start_does_not_pass_the_high_watermark(log: Log) -> None:
    log.append(a_batch(), 0, NOW)
    with pytest.raises(OffsetOutOfRange):
        log.advance_start(1)
    log.advance_high_watermark(1)
    log.advance_start(1)
    log.advance_start(0)
    assert log.log_start_offset == 1


def test_truncation(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_bytes=1000, index_interval_bytes=100)
    log = maker.create()
    for number in range(20):
        log.append(
            a_batch(b"x" * 100, producer_id=1, producer_epoch=0, base_sequence=number),
            number // 5,
            NOW + number,
        )
    log.flush(NOW)
    log.advance_high_watermark(20)
    kept = list(stored_batches(log))
    assert log.recovery_point == 20
    assert log.truncate_to(7, NOW)
    assert isinstance(maker.owner, AttentiveOwner)
    assert "not above 7" in maker.owner.told
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (7, 7, 7)
    assert list(stored_batches(log)) == kept[:7]
    assert log.producers.producers[1].next_sequence == 7
    assert log.end_offset_for_epoch(1) == (1, 7)
    assert log.end_offset_for_epoch(2) == (-1, -1)
    sound(log)
    assert not log.truncate_to(7, NOW)
    log.append(a_batch(b"y" * 300, producer_id=1, producer_epoch=0, base_sequence=7), 9, NOW)
    sound(log)
    again = maker.load(recovery_point=7)
    assert [batch[2] for batch in stored_batches(again)] == [
        batch[2] for batch in stored_batches(log)
    ]
    assert again.producers.producers[1].next_sequence == 8
    sound(again)


def test_truncation_inside_of_a_batch_takes_all_of_it(log: Log) -> None:
    log.append(a_batch(count=5), 0, NOW)
    log.append(a_batch(count=5), 0, NOW)
    log.truncate_to(7, NOW)
    assert log.log_end_offset == 5
    sound(log)


def test_starting_anew_elsewhere(log: Log, maker: LogMaker) -> None:
    for _ in range(3):
        log.append(a_batch(producer_id=1, producer_epoch=0, base_sequence=_), 0, NOW)
    log.flush(NOW)
    log.truncate_fully_and_start_at(100, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    assert log.read(100, 10, 100) is None
    assert not log.producers.producers
    # The end is kept by the segment's name alone.
    assert maker.load().log_end_offset == 100
    assert log.append(a_batch(), 0, NOW).base_offset == 100
    sound(log)


def test_preallocated_segments_are_cut_when_they_are_sealed(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_bytes=4096, preallocate=True)
    log = maker.create()
    log.append(a_batch(b"x" * 3000), 0, NOW)
    assert os.path.getsize(log.active.path) == 4096
    log.append(a_batch(b"x" * 3000), 0, NOW)
    log.flush(NOW)
    assert os.path.getsize(log.segments[0].path) == log.segments[0].size < 4096
    # A crash leaves the zeros after the end: they are no batches.
    again = maker.load(recovery_point=log.recovery_point)
    assert again.log_end_offset == 2
    assert os.path.getsize(again.active.path) == again.active.size
