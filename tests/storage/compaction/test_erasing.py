"""Erasing: deleted records go from disk, everything else stays what it was."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from compaction_kit.logs import (
    FAST,
    append,
    compact,
    compacting,
    end_transaction,
    headers_of,
    pairs_batch,
    put_in_place,
    records_of,
    seal,
)
from storage_kit.logs import NOW, LogMaker, stored_batches
from storage_kit.memory import verify_log

from ottla.logfiles.folders import find_logs, read_batches, read_records
from ottla.record.batch import assemble, read_header, records
from ottla.record.compression.codecs import Codec
from ottla.record.deletion import build_mark
from ottla.record.legacy import downgrade
from ottla.storage import verify
from ottla.storage.compaction import erasing
from ottla.storage.compaction.erasing import erasable_now, is_due, must_roll
from ottla.storage.compaction.plan import Dirt
from ottla.storage.compaction.rewrite import run_over
from ottla.storage.compaction.swap import Compaction
from ottla.storage.config import LogConfig
from ottla.storage.log.log import COORDINATOR, Log

CONFIG = LogConfig(segment_bytes=8000, index_interval_bytes=100, delete_record_erase_ms=1000)


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), CONFIG)


def mark(log: Log, *ranges: tuple[int, int], committed: bool = True) -> None:
    log.append(bytearray(build_mark(ranges)), 0, NOW, COORDINATOR)
    if committed:
        log.advance_high_watermark(log.log_end_offset)


def erase(log: Log, now_ms: int = NOW + 1000) -> int:
    """As the server does it, as long as something is due; the number of passes."""
    passes = 0
    while is_due(log, now_ms):
        erasable, is_all = erasable_now(log, log.recovery_point)
        if not is_all and must_roll(log):
            seal(log)
            continue
        if not erasable:
            break
        dirt = Dirt(log.first_dirty_offset, log.active.base_offset, 0, 0, overdue=False)
        compaction = Compaction(log, dirt, now_ms, 0, FAST, erasable, is_all)
        assert put_in_place(compaction, run_over(compaction.job, log.files))
        passes += 1
        assert passes < 10
    return passes


def on_disk(log: Log) -> bytes:
    return b"".join(path.read_bytes() for path in Path(log.folder).iterdir())


def offsets(log: Log) -> list[int]:
    return [
        record.offset
        for _, _, batch in stored_batches(log)
        if not read_header(batch).is_control
        for record in records(batch)
    ]


def values_on_disk(log: Log) -> list[tuple[int, bytes | None]]:
    (folder,) = find_logs(Path(log.folder))
    return [
        (record.offset, record.value)
        for segment in folder.segments
        for batch in read_batches(segment.log)
        if not batch.header.is_control
        for record in read_records(batch)
    ]


def deleted_on_disk(log: Log) -> int:
    (folder,) = find_logs(Path(log.folder))
    verdict = verify.verify_log(folder, deep=True)
    assert not verdict.problems
    return verdict.deleted_on_disk


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_bytes_are_gone_and_nothing_else(maker: LogMaker, codec: Codec) -> None:
    log = maker.create()
    for first in range(0, 40, 4):
        pairs = [(b"k", b"secret %02d" % each) for each in range(first, first + 4)]
        append(log, pairs, NOW + first, codec=codec, producer_id=5, producer_epoch=1,
               base_sequence=first)  # fmt: skip
    before = [read_header(batch) for _, _, batch in stored_batches(log)]
    mark(log, (2, 3), (8, 12), (39, 40))
    assert deleted_on_disk(log) == 6
    assert not is_due(log, NOW + 499)
    assert erase(log, NOW + 500) == 1
    assert offsets(log) == [each for each in range(40) if each not in (2, 8, 9, 10, 11, 39)]
    if codec is Codec.NONE:
        for gone in (2, 8, 11, 39):
            assert b"secret %02d" % gone not in on_disk(log)
        assert b"secret 01" in on_disk(log)
    assert deleted_on_disk(log) == 0
    assert list(verify_log(log)) == []
    after = [read_header(batch) for _, _, batch in stored_batches(log)][: len(before)]
    for old, new in zip(before, after, strict=True):
        # All but count, size, checksum and the largest timestamp.
        assert new._replace(record_count=0, batch_length=0, crc=0, attributes=0, max_timestamp=0,
                            base_timestamp=0) == old._replace(
            record_count=0, batch_length=0, crc=0, attributes=0, max_timestamp=0,
            base_timestamp=0)  # fmt: skip
    assert after[2].record_count == 0
    # Nothing is left to do, also after a restart.
    assert erase(log, NOW + 10**9) == 0
    log.flush(NOW)
    point = log.recovery_point
    log.close()
    again = maker.load(clean=True, recovery_point=point, high_watermark=point)
    assert erase(again, NOW + 10**9) == 0
    assert again.deletions is not None
    assert again.deletions.invisible.between(0, 40) == [(2, 3), (8, 12), (39, 40)]
    assert list(again.producers.producers) == [5]


def test_the_active_segment_is_rolled(maker: LogMaker) -> None:
    log = maker.create()
    append(log, [(b"k", b"one"), (b"k", b"two")])
    mark(log, (0, 1))
    assert must_roll(log)
    assert erase(log) == 1
    assert offsets(log) == [1]


def test_marks_above_the_high_watermark_erase_nothing(maker: LogMaker) -> None:
    log = maker.create()
    append(log, [(b"k", b"one"), (b"k", b"two")])
    mark(log, (0, 1), committed=False)
    seal(log)
    assert erase(log) == 0
    assert offsets(log) == [0, 1]
    log.truncate_to(2, NOW)
    assert erase(log) == 0
    append(log, [(b"k", b"three")])
    mark(log, (1, 2))
    assert erase(log) == 1
    assert offsets(log) == [0, 2]


def test_transactions_stay_what_they_were(maker: LogMaker) -> None:
    """Also one that began in a segment which is not touched."""
    log = maker.create()
    header = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    append(log, [(b"k", b"0"), (b"k", b"1")], base_sequence=0, **header)
    seal(log)
    append(log, [(b"k", b"2")])
    end_transaction(log, 7, committed=False)
    append(log, [(b"k", b"4")], base_sequence=2, **header)
    end_transaction(log, 7, committed=True)
    before = log.aborted_transactions(0, log.log_end_offset)
    assert before == [(7, 0)]
    mark(log, (2, 3), (4, 5))
    assert erase(log) == 1
    assert offsets(log) == [0, 1]
    assert log.aborted_transactions(0, log.log_end_offset) == before
    assert log.aborted_transactions(0, 2) == before
    assert list(verify_log(log)) == []


def test_the_largest_timestamp_is_that_of_what_is_left(maker: LogMaker) -> None:
    log = maker.create()
    append(log, [(b"k", b"a")], NOW)
    append(log, [(b"k", b"b")], NOW + 500)
    append(log, [(b"k", b"c")], NOW + 100)
    mark(log, (1, 2))
    assert erase(log) == 1
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp) == (2, NOW + 100)
    assert log.offset_for_time(NOW + 101) is None


def test_a_segment_all_of_which_was_deleted_grows_no_younger(tmp_path: Path) -> None:
    """Without a record it is as old as its file: rewritten, it would begin its retention anew, and keep
    all that comes after it for as long."""
    log = LogMaker(str(tmp_path), replace(CONFIG, retention_ms=10_000, retention_bytes=-1)).create()
    for value in (b"secret", b"kept", b"young"):
        append(log, [(b"k", value)], NOW + (20_000 if value == b"young" else 0))
        seal(log)
    for path in Path(log.folder).glob("*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    mark(log, (0, 1))
    assert erase(log) == 1
    assert log.delete_old_segments(NOW + 10_000) is None
    assert log.delete_old_segments(NOW + 10_001) is not None
    assert log.log_start_offset == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(maker: LogMaker, magic: int, codec: Codec) -> None:
    """As a log has them that was a Kafka's once: some records of a set, all of one in the middle, and
    the last of a segment, in whose place something stays."""
    sets = [
        downgrade(
            bytes(
                pairs_batch(
                    [(b"k", b"secret %d" % each) for each in range(first, first + 3)],
                    base_offset=first,
                    codec=codec,
                )
            ),
            magic,
            0,
        )
        for first in (0, 3, 6)
    ]
    Path(maker.folder).mkdir()
    (Path(maker.folder) / "00000000000000000000.log").write_bytes(b"".join(map(bytes, sets)))
    log = maker.load()
    assert log.log_end_offset == 9
    log.advance_high_watermark(9)
    seal(log)
    mark(log, (1, 2), (3, 6), (8, 9))
    assert erase(log) == 1
    left = [(each, b"secret %d" % each) for each in (0, 2, 6, 7)]
    assert values_on_disk(log) == left
    if codec is Codec.NONE:
        assert [each for each in range(9) if b"secret %d" % each in on_disk(log)] == [0, 2, 6, 7]
    (folder,) = find_logs(Path(log.folder))
    *_, last = read_batches(folder.segments[0].log)
    assert last.header.last_offset == 8
    assert deleted_on_disk(log) == 0
    assert list(verify_log(log)) == []
    log.flush(NOW)
    point = log.recovery_point
    log.close()
    again = maker.load(recovery_point=point, high_watermark=point)
    assert again.log_end_offset == log.log_end_offset
    assert values_on_disk(again) == left


def test_times_that_the_broker_gave_stay(maker: LogMaker) -> None:
    maker.config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    log = maker.create()
    for count, now in ((2, NOW), (1, NOW + 500)):
        batch = pairs_batch([(b"k", b"v")] * count, NOW - 5000)
        log.append(batch, 0, now, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    mark(log, (1, 3))
    assert erase(log) == 1
    ((_, _, batch), *_) = stored_batches(log)
    assert read_header(batch).max_timestamp == NOW
    assert [(each.offset, each.timestamp) for each in records_of(log)] == [(0, NOW)]
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW)


def test_what_erasing_leaves_is_compacted(maker: LogMaker) -> None:
    """Headers without records go, but for the last one of a producer."""
    maker.config = compacting(delete_record_erase_ms=1000)
    log = maker.create()
    for sequence in range(3):
        append(log, [(b"k%d" % sequence, b"v")], producer_id=5, producer_epoch=1,
               base_sequence=sequence)  # fmt: skip
    mark(log, (0, 3))
    assert erase(log) == 1
    assert [header.record_count for header in headers_of(log)] == [0, 0, 0, 1]
    append(log, [(b"other", b"v")])
    seal(log)
    assert compact(log)
    kinds = [(each.base_offset, each.record_count, each.producer_id) for each in headers_of(log)]
    assert kinds == [(2, 0, 5), (3, 1, -1), (4, 1, -1)]
    assert list(log.producers.producers) == [5]
    assert list(verify_log(log)) == []


def damage(log: Log, needle: bytes) -> None:
    """Flip a byte in a record: the checksum of its batch does not fit any more."""
    for path in Path(log.folder).glob("*.log"):
        data = bytearray(path.read_bytes())
        at = data.find(needle)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("not found")


def test_a_damaged_segment_does_not_keep_the_others(maker: LogMaker) -> None:
    log = maker.create()
    for each in range(3):
        append(log, [(b"k", b"keep %d" % each), (b"k", b"secret %d" % each)])
        seal(log)
    mark(log, (1, 2), (3, 4), (5, 6))
    damage(log, b"keep 1")
    now = NOW + 1000
    erasable, is_all = erasable_now(log, log.recovery_point)
    dirt = Dirt(log.first_dirty_offset, log.active.base_offset, 0, 0, overdue=False)
    compaction = Compaction(log, dirt, now, 0, FAST, erasable, is_all)
    outcome = run_over(compaction.job, log.files)
    assert put_in_place(compaction, outcome)
    ((unreadable, why),) = outcome.skipped
    assert unreadable == (2, 4)
    assert "00000000000000000002.log" in why
    assert outcome.records_dropped == 2
    assert b"secret 0" not in on_disk(log)
    assert b"secret 1" in on_disk(log)
    assert b"secret 2" not in on_disk(log)
    assert log.deletions is not None
    assert list(log.deletions.unerased) == [(3, 4)]
    # It is left alone from now on, and what is marked later has its own time.
    assert log.deletions.since_ms == now
    found, is_all = erasable_now(log, log.recovery_point, {unreadable})
    assert (found.count, is_all) == (0, True)
    mark(log, (0, 1))
    found, _ = erasable_now(log, log.recovery_point, {unreadable})
    assert list(found) == [(0, 1)]
    assert not list(Path(log.folder).glob("*.cleaned"))


def test_a_batch_all_of_which_was_deleted_need_not_be_unpacked(maker: LogMaker) -> None:
    log = maker.create()
    batch = pairs_batch([(b"k", b"secret"), (b"k", b"secret too")])
    # As a producer that is trusted may write it: what is called zstd is none.
    fields = read_header(batch)
    garbage = assemble(fields._replace(attributes=int(Codec.ZSTD)), bytes(batch[61:]))
    log.append(bytearray(garbage), 0, NOW, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    mark(log, (0, 2))
    assert erase(log) == 1
    assert b"secret" not in on_disk(log)
    assert log.deletions is not None
    assert not log.deletions.unerased


def test_what_cannot_be_read_is_no_proof(maker: LogMaker) -> None:
    """Deleted records of a batch that nobody can take apart are on disk as long as the batch is."""
    log = maker.create()
    fields = read_header(pairs_batch([(b"k", b"secret"), (b"k", b"secret too")]))
    batch = pairs_batch([(b"k", b"secret"), (b"k", b"secret too")])
    for _ in range(2):
        garbage = assemble(fields._replace(attributes=int(Codec.ZSTD)), bytes(batch[61:]))
        log.append(bytearray(garbage), 0, NOW, COORDINATOR)
    append(log, [(b"k", b"keep"), (b"k", b"damaged")])
    mark(log, (0, 2), (3, 4), (5, 6))
    damage(log, b"damaged")
    (folder,) = find_logs(Path(log.folder))
    assert verify.verify_log(folder).deleted_on_disk == 4


@pytest.mark.parametrize("limit", [("RANGES_AT_ONCE", 2), ("BYTES_AT_ONCE", 50)])
def test_very_much_is_erased_in_several_passes(
    maker: LogMaker, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    monkeypatch.setattr(erasing, *limit)
    log = maker.create()
    for _ in range(4):
        append(log, [(b"k", b"%d" % each) for each in range(4)])
        seal(log)
    mark(log, *((each, each + 1) for each in range(0, 16, 2)))
    assert erase(log) == 4
    assert offsets(log) == list(range(1, 16, 2))
    assert deleted_on_disk(log) == 0
