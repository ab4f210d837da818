"""Whole logs before and after compaction."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compaction_kit.logs import (
    FAST,
    Pair,
    append,
    begin,
    compact,
    compacting,
    end_transaction,
    kept,
    latest,
    put_in_place,
    records_of,
    seal,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit.faulty_files import Disk, FaultyFiles
from storage_kit.logs import NOW, LogMaker, close_cleanly, stored_batches
from storage_kit.memory import verify_log

from ottla.logfiles.folders import read_batches, read_records, segments_in
from ottla.record.compression.codecs import Codec
from ottla.storage.compaction.rewrite import Cancelled, Job, Throttle, Uncleanable, run, run_over
from ottla.storage.compaction.swap import Compaction, dirt_of
from ottla.storage.files import Files, FilesOfFolder
from ottla.storage.log.log import Log

DAY = 86_400_000


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), compacting())


@pytest.fixture
def small(tmp_path: Path) -> LogMaker:
    """Segments are full after a few batches, so that a pass makes several of several."""
    return LogMaker(str(tmp_path), compacting(segment_bytes=500, segment_index_bytes=400))


def fill(log: Log, count: int, keys: int = 5, size: int = 10) -> None:
    """In segments of six batches, all of which go into one."""
    for number in range(count):
        append(log, [(b"k%d" % (number % keys), b"%d" % number * size)])
        if number % 6 == 5:
            log.roll(NOW)


def names(maker: LogMaker) -> list[str]:
    return sorted(os.listdir(maker.folder))


def test_the_last_record_of_each_key_is_left_at_its_offset(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    appended = kept(log)
    assert len(log.segments) > 5
    assert compact(log) == 1
    assert kept(log) == appended[-5:] == latest(appended, log.log_end_offset)
    assert len(log.segments) == 2
    assert not list(verify_log(log))
    assert (log.log_start_offset, log.log_end_offset) == (0, 40)
    assert log.first_dirty_offset == 40
    assert compact(log) == 0


def test_the_active_segment_stays(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 20)
    seal(log)
    fill(log, 3, keys=1)
    appended = kept(log)
    compact(log)
    # The map knows only what is sealed.
    assert kept(log) == latest(appended, 20)
    assert {offset for offset, _, _ in kept(log)} >= {20, 21, 22}


def test_nothing_behind_the_last_stable_offset_is_touched(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 10)
    seal(log)
    transaction = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    append(log, [(b"k0", b"open")], base_sequence=0, **transaction)
    fill(log, 20)
    seal(log)
    appended = kept(log)
    compact(log)
    assert kept(log) == latest(appended, 10)
    end_transaction(log, 1, committed=True)
    compact(log)
    assert [offset for offset, _, _ in kept(log) if offset < 31] == [26, 27, 28, 29, 30]


def test_reads_from_every_offset_go_on_at_the_next_record(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 40)
    append(log, [(b"last", b"x")])
    seal(log)
    compact(log)
    left = [(first, last) for first, last, _ in stored_batches(log)]
    for offset in range(log.log_end_offset):
        expected = [pair for pair in left if pair[1] >= offset]
        assert [(first, last) for first, last, _ in stored_batches(log, offset, 1)] == expected


def test_passes_go_on_where_the_map_was_full(small: LogMaker) -> None:
    log = small.create()
    fill(log, 90, keys=30)
    seal(log)
    appended = kept(log)
    assert compact(log, map_bytes=1500) > 3
    assert kept(log) == latest(appended, log.log_end_offset)
    assert not list(verify_log(log))


def test_a_restart_finds_what_compaction_left(small: LogMaker) -> None:
    log = small.create()
    for number in range(40):
        append(
            log,
            [(b"k%d" % (number % 3), b"v")],
            producer_id=number % 2,
            producer_epoch=0,
            base_sequence=number // 2,
        )
    append(log, [(b"k0", b"other")])
    seal(log)
    compact(log)
    left = kept(log)
    assert len(left) == 3
    state = {pid: s.last_sequence for pid, s in log.producers.producers.items()}
    assert state == {0: 19, 1: 19}
    end = close_cleanly(log)
    for clean in (True, False):
        again = small.load(clean=clean, recovery_point=end, high_watermark=end)
        assert kept(again) == left
        assert again.log_end_offset == end
        assert not list(verify_log(again))
        again.close()
    # Without any snapshot the batches that are left tell the same of the producers.
    for name in names(small):
        if name.endswith(".snapshot"):
            os.unlink(f"{small.folder}/{name}")
    again = small.load(recovery_point=end)
    assert {pid: s.last_sequence for pid, s in again.producers.producers.items()} == state
    # And a producer goes on where it was, while a repeated batch is known.
    from compaction_kit.logs import pairs_batch

    header = {"producer_id": 1, "producer_epoch": 0}
    repeated = again.append(pairs_batch([(b"k0", b"v")], base_sequence=19, **header), 0, NOW)
    assert repeated.duplicate
    new = again.append(pairs_batch([(b"k0", b"v")], base_sequence=20, **header), 0, NOW)
    assert new.base_offset == end


def test_old_files_go_and_nothing_is_left_over(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    compact(log)
    segments = {segment.base_offset for segment in log.segments}
    for name in names(maker):
        assert name.split(".")[-1] not in ("cleaned", "swap", "deleted"), name
        if name[0].isdigit():
            assert int(name[:20]) in segments, name


class Watched(Files):
    """Has somebody look after each change of a name."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        os.replace(source, target)
        self.look()

    def unlink(self, path: str) -> None:  # type: ignore[override]
        os.unlink(path)
        self.look()


def test_who_reads_the_folder_misses_nothing_in_the_middle_of_a_swap(tmp_path: Path) -> None:
    """Nor what a broker left that was killed there, nor what the next one does about it."""
    files = Watched()
    maker = LogMaker(str(tmp_path), compacting(segment_bytes=500, segment_index_bytes=400), files)
    log = maker.create()
    fill(log, 40, keys=20)
    seal(log)
    wanted = {offset for offset, _, _ in latest(kept(log), log.log_end_offset)}
    looks = 0

    def look(folder: Path) -> None:
        nonlocal looks
        looks += 1
        offsets = [
            record.offset
            for segment in segments_in(folder)
            for batch in read_batches(segment.log)
            for record in read_records(batch)
        ]
        assert offsets == sorted(set(offsets))
        assert wanted <= set(offsets)

    def crash_and_start() -> None:
        look(Path(maker.folder))
        copy = tmp_path / f"crash-{looks}"
        shutil.copytree(maker.folder, copy / "topic-0")
        after = Watched()
        after.look = lambda: look(copy / "topic-0")
        LogMaker(str(copy), maker.config, after).load(recovery_point=log.recovery_point)

    files.look = crash_and_start
    compact(log)
    assert looks > 50


def test_a_reader_that_holds_an_old_segment_reads_on(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    part = log.read(0, 1 << 20, log.log_end_offset)
    assert part is not None
    before = part.read()
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    swap = compaction.swap(outcome.replacements[0])
    assert swap is not None
    swap.run()
    assert part.read() == before
    assert log.end_bound(part) >= part.segment.base_offset
    compaction.finish(outcome)


# Tombstones


def test_tombstones_stay_for_delete_retention_and_then_go(tmp_path: Path) -> None:
    log = LogMaker(str(tmp_path), compacting(delete_retention_ms=DAY)).create()
    fill(log, 10, keys=2)
    append(log, [(b"k0", None)])
    seal(log)
    compact(log)
    assert kept(log)[-1] == (10, b"k0", None)
    seal(log)

    def touch(now: int) -> None:
        append(log, [(b"other", b"x")], now)
        seal(log, now)
        compact(log, now)

    touch(NOW + DAY - 1)
    assert (10, b"k0", None) in kept(log)
    touch(NOW + DAY)
    assert (10, b"k0", None) not in kept(log)
    assert [key for _, key, _ in kept(log)] == [b"k1", b"other"]


# Transactions


def committed_records(log: Log) -> list[tuple[int, bytes | None]]:
    """What a reader of committed records sees: the client's way of leaving aborted ones out."""
    aborted = sorted(
        log.aborted_transactions(0, log.last_stable_offset), key=lambda entry: entry[1]
    )
    hidden: set[int] = set()
    seen = []
    from ottla.record.batch import read_header, records

    for first, last, batch in stored_batches(log):
        header = read_header(batch)
        if first >= log.last_stable_offset:
            break
        while aborted and aborted[0][1] <= last:
            hidden.add(aborted.pop(0)[0])
        if header.is_control:
            for record in records(batch):
                if record.key is not None and record.key[3] == 0:
                    hidden.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in hidden:
            continue
        seen += [(record.offset, record.key) for record in records(batch)]
    return seen


def test_aborted_records_go_and_committed_ones_are_seen_as_before(small: LogMaker) -> None:
    log = small.create()
    sequences = dict.fromkeys(range(3), 0)
    for number in range(60):
        producer = number % 3
        append(
            log,
            [(b"p%d-%d" % (producer, number % 7), b"x" * 20)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += 1
        if number % 5 == 4:
            end_transaction(log, producer, committed=number % 10 == 4)
    for producer in range(3):
        end_transaction(log, producer, committed=producer == 0)
    append(log, [(b"end", b"")])
    seal(log)
    seen = committed_records(log)
    assert len(seen) < 60
    last = {key: offset for offset, key in seen}
    compact(log)
    assert committed_records(log) == [pair for pair in seen if last[pair[1]] == pair[0]]
    # Nothing aborted is left for anybody.
    assert [(r.offset, r.key) for r in records_of(log)] == committed_records(log)
    # Markers get their horizons, then go; what is seen stays.
    for days in range(1, 4):
        append(log, [(b"tick", b"%d" % days)], NOW + days * DAY)
        seal(log, NOW + days * DAY)
        compact(log, NOW + days * DAY)
        assert committed_records(log)[:-1] == [p for p in seen if last[p[1]] == p[0]]
    # What is left is about the producers' last batches, whose headers are kept.
    assert log.aborted_transactions(0, log.log_end_offset) == [(2, 56), (1, 62)]
    aborts = [record for record in records_of(log, control=True) if record.key == b"\0\0\0\0"]
    assert len(aborts) == 2
    # Everything again from the disk.
    before = committed_records(log)
    end = close_cleanly(log)
    again = small.load(recovery_point=end, high_watermark=end)
    assert committed_records(again) == before


def test_a_transaction_over_many_segments(small: LogMaker) -> None:
    """Its first records are compacted in one segment, its marker lies in the active one."""
    log = small.create()
    header = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    for number in range(20):
        append(log, [(b"a%d" % number, b"x" * 30)], base_sequence=number, **header)
    seal(log)
    end_transaction(log, 1, committed=False)
    for number in range(20, 25):
        append(log, [(b"b%d" % number, b"x")], base_sequence=number, **header)
    end_transaction(log, 1, committed=True)
    compact(log)
    expected = [(21 + number, b"b%d" % (20 + number)) for number in range(5)]
    assert committed_records(log) == expected
    assert [(r.offset, r.key) for r in records_of(log)] == expected
    seal(log)
    compact(log)
    assert committed_records(log) == expected


# While other things happen


@pytest.mark.parametrize("steps", range(7))
def test_appends_reads_and_rolls_between_the_steps(maker: LogMaker, steps: int) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    appended = kept(log)
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    append(log, [(b"k0", b"meanwhile")])
    swap = compaction.swap(outcome.replacements[0])
    assert swap is not None
    old, new = appended, latest(appended, 40)
    for step in range(5):
        if step == steps:
            append(log, [(b"k1", b"between")])
            log.roll(NOW)
            log.flush(NOW)
            assert log.delete_old_segments(NOW) is None
        swap.step()
        below = [each for each in kept(log) if each[0] < 40]
        assert below == (new if step >= 1 else old)
    assert swap.over
    compaction.finish(outcome)
    assert kept(log)[-1][2] in (b"meanwhile", b"between")
    assert not list(verify_log(log))


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("offset", [0, 7, 33, 41])
def test_truncation_ends_a_swap(maker: LogMaker, steps: int, offset: int) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    fill(log, 5)
    appended = kept(log)
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    swap = compaction.swap(outcome.replacements[0])
    assert swap is not None
    for _ in range(steps):
        swap.step()
    expected = appended if steps < 2 else latest(appended, 40)
    log.truncate_to(offset, NOW)
    assert compaction.stopped
    assert kept(log) == [each for each in expected if each[0] < offset]
    assert not list(verify_log(log))
    # What is left to do comes to nothing.
    swap.step()
    compaction.finish(outcome)
    compaction.discard(outcome)
    assert log.first_dirty_offset == 0
    assert not [name for name in names(maker) if name.endswith((".swap", ".cleaned"))]
    # And the log goes on, and can be opened.
    append(log, [(b"new", b"record")])
    left = kept(log)
    end = close_cleanly(log)
    assert kept(maker.load(clean=True, recovery_point=end)) == left
    assert kept(maker.load(recovery_point=end)) == left


def test_truncation_into_a_gap_ends_the_log_where_its_records_do(maker: LogMaker) -> None:
    for offset in range(1, 41):
        log = maker.create()
        for number in range(40):
            append(log, [(b"k%d" % number if number % 7 == 0 else b"same", b"x" * 20)])
        seal(log)
        compact(log)
        left = [each for each in kept(log) if each[0] < offset]
        log.truncate_to(offset, NOW)
        assert kept(log) == left
        assert log.log_end_offset <= offset
        end = close_cleanly(log)
        for clean in (True, False):
            again = maker.load(clean=clean, recovery_point=end)
            assert kept(again) == left
            again.close()
        maker.files.remove_tree(maker.folder)


def test_segments_that_retention_took_are_not_brought_back(tmp_path: Path) -> None:
    config = compacting(cleanup_policy=("compact", "delete"), retention_bytes=1000)
    log = LogMaker(str(tmp_path), config).create()
    fill(log, 60, keys=60)
    seal(log)
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    retired = log.delete_old_segments(NOW)
    assert retired is not None
    retired.rename()
    start = log.log_start_offset
    assert start > 0
    left = kept(log)
    assert not put_in_place(compaction, outcome)
    assert kept(log) == left
    assert log.log_start_offset == start
    assert log.first_dirty_offset == 0
    assert not [name for name in names_in(log.folder) if name.endswith((".swap", ".cleaned"))]
    compact(log)
    assert kept(log) == left


def names_in(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def test_compact_and_delete_both_apply(tmp_path: Path) -> None:
    config = compacting(cleanup_policy=("compact", "delete"), retention_ms=1000)
    log = LogMaker(str(tmp_path), config).create()
    fill(log, 40)
    seal(log)
    append(log, [(b"young", b"x")], NOW + 5000)
    compact(log, NOW + 5000)
    assert len(kept(log)) == 6
    assert log.delete_old_segments(NOW + 5000) is not None
    assert kept(log) == [(40, b"young", b"x")]
    assert log.log_start_offset == 40


def test_deleted_records_stay_deleted(maker: LogMaker) -> None:
    log = maker.create()
    fill(log, 40)
    seal(log)
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    log.advance_start(37)
    assert put_in_place(compaction, outcome)
    assert [offset for offset, _, _ in kept(log)] == [37, 38, 39]


def test_a_segment_is_rolled_for_the_largest_lag(tmp_path: Path) -> None:
    config = compacting(max_compaction_lag_ms=1000, segment_bytes=1 << 20)
    log = LogMaker(str(tmp_path), config).create()
    append(log, [(b"a", b"1")])
    append(log, [(b"a", b"2")], NOW + 1000)
    assert len(log.segments) == 1
    append(log, [(b"a", b"3")], NOW + 1001)
    assert len(log.segments) == 2


# The job


def a_job(log: Log) -> tuple[Compaction, Job]:
    fill(log, 40)
    seal(log)
    compaction = begin(log)
    assert compaction is not None
    return compaction, compaction.job


def test_a_job_travels_by_pickle(maker: LogMaker) -> None:
    import pickle

    _, job = a_job(maker.create())
    again = pickle.loads(pickle.dumps(job))
    assert again == job
    outcome = run(again)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    for error in (Cancelled("why"), Uncleanable("why")):
        assert str(pickle.loads(pickle.dumps(error))) == "why"


def test_a_job_ends_when_it_is_stopped(maker: LogMaker) -> None:
    log = maker.create()
    compaction, job = a_job(log)

    class Watched(Files):
        def exists(self, path: str) -> bool:
            if path == job.licence:
                compaction.stop()
            return super().exists(path)

    with pytest.raises(Cancelled):
        run_over(job, Watched())
    assert log.compaction is None
    assert not [name for name in names(maker) if name.endswith(".cleaned")]


def test_a_folder_that_is_gone_is_no_fault_of_the_disk(maker: LogMaker) -> None:
    log = maker.create()
    _, job = a_job(log)
    os.rename(maker.folder, maker.folder + "-delete")
    with pytest.raises(Cancelled):
        run(job)


@pytest.mark.parametrize("renamed", ["before the job", "in the middle of it"])
def test_nothing_is_made_in_the_folder_of_a_namesake(maker: LogMaker, renamed: str) -> None:
    """The topic is deleted and created again while a worker compacts the old log."""
    log = maker.create()
    _, job = a_job(log)

    def replace_folder() -> None:
        os.rename(maker.folder, maker.folder + "-delete")
        os.mkdir(maker.folder)

    if renamed == "before the job":
        replace_folder()
        with pytest.raises(Cancelled):
            run(job)
    else:

        class Watched(FilesOfFolder):
            replaced = False

            def exists(self, path: str) -> bool:
                if not self.replaced:
                    self.replaced = True
                    replace_folder()
                return super().exists(path)

        files = Watched(job.folder, job.folder_identity)
        run_over(job, files)
        files.close_folder()
        assert files.replaced
    assert os.listdir(maker.folder) == []


@pytest.mark.parametrize("position", [0, 10, 30, 65], ids=["offset", "length", "header", "record"])
def test_what_cannot_be_read_is_said_and_left(maker: LogMaker, position: int) -> None:
    log = maker.create()
    _, job = a_job(log)
    path = log.segments[1].path
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"damage")
    with pytest.raises(Uncleanable, match=os.path.basename(path)):
        run(job)
    assert not [name for name in names(maker) if name.endswith(".cleaned")]


def test_stale_files_of_an_earlier_job_are_not_taken(maker: LogMaker) -> None:
    log = maker.create()
    _, job = a_job(log)
    stale = job.licence.replace(".log.", ".txnindex.")
    for path in (stale, job.licence):
        with open(path, "wb") as file:
            file.write(b"stale" * 1000)
    outcome = run(job)
    assert not os.path.exists(stale)
    assert os.path.getsize(job.licence) == outcome.replacements[0].size


def test_a_segment_that_stays_the_same_is_not_replaced(maker: LogMaker) -> None:
    log = maker.create()
    append(log, [(b"%d" % number, b"x" * 30) for number in range(7)])
    append(log, [(b"1%d" % number, b"x" * 30) for number in range(7)])
    seal(log)
    compaction = begin(log)
    assert compaction is not None
    outcome = run(compaction.job)
    assert outcome.replacements == ()
    assert put_in_place(compaction, outcome)
    assert log.first_dirty_offset == 14
    assert not [name for name in names(maker) if name.endswith(".cleaned")]


def test_the_throttle_keeps_the_rate() -> None:
    now = 0.0
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        naps.append(seconds)
        now += seconds

    throttle = Throttle(1000, lambda: now, sleep)
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    for _ in range(10):
        throttle.spend(500, check)
    assert now == pytest.approx(5.0)
    assert checks == len(naps)
    assert max(naps) <= 0.2
    fast = Throttle(FAST, lambda: now, sleep)
    fast.spend(1 << 40, check)
    assert now == pytest.approx(5.0)


# Against the naive model

keys = st.sampled_from([b"a", b"b", b"c", b"d" * 40, b"e" * 41, b""])
values = st.one_of(st.none(), st.binary(max_size=40))
batches = st.lists(st.lists(st.tuples(keys, values), min_size=1, max_size=5), max_size=25)
rounds = st.lists(
    st.tuples(batches, st.sampled_from([0, DAY // 2, DAY]), st.sampled_from(list(Codec))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(rounds=rounds, map_bytes=st.sampled_from([300, 600, 1 << 20]))
def test_what_is_left_is_what_the_model_says(
    rounds: list[tuple[list[list[Pair]], int, Codec]], map_bytes: int
) -> None:
    disk = Disk()
    disk.make_durable_folder("/data")
    maker = LogMaker(
        "/data", compacting(delete_retention_ms=DAY, segment_bytes=500), FaultyFiles(disk)
    )
    log = maker.create()
    now = NOW
    appended: list[tuple[int, bytes | None, bytes | None]] = []
    for batches_, later, codec in rounds:
        now += later
        for pairs in batches_:
            base = append(log, pairs, now, codec=codec)
            appended += [(base + at, key, value) for at, (key, value) in enumerate(pairs)]
        seal(log, now)
        compact(log, now, map_bytes)
        left = kept(log)
        expected = latest(appended, log.log_end_offset)
        # All values; of the tombstones those that are not yet past their horizon, or more.
        assert [each for each in left if each[2] is not None] == [
            each for each in expected if each[2] is not None
        ]
        assert set(left) <= set(expected)
        if later == 0 and rounds[0][1] == 0 and now == NOW:
            assert left == expected
        assert not list(verify_log(log))
        dirt = dirt_of(log, log.recovery_point, now)
        assert dirt.dirty_bytes == 0
    end = close_cleanly(log, now)
    again = maker.load(recovery_point=end, high_watermark=end, now_ms=now)
    assert kept(again) == kept(log)
