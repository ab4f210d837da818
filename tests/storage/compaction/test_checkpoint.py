"""Where compaction goes on: kept over restarts, taken back by truncation, gone with the topic."""

from __future__ import annotations

from pathlib import Path

from compaction_kit.logs import append, compact, compacting, kept, seal
from storage_kit.logs import NOW

from ottla.logfiles.names import CLEANER_CHECKPOINT
from ottla.storage.checkpoints import read_offsets
from ottla.storage.compaction.swap import dirt_of
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs

TOPIC_ID = b"0123456789abcdef"


def open_logs(folder: Path) -> Logs:
    logs = Logs([str(folder)], lambda _: compacting(), clock=lambda: NOW)
    logs.open()
    return logs


def filled(logs: Logs, partition: int = 0) -> Log:
    log = logs.create("topic", partition, TOPIC_ID)
    for number in range(20):
        append(log, [(b"k%d" % (number % 3), b"v")])
        if number % 5 == 4:
            log.roll(NOW)
    seal(log)
    append(log, [(b"active", b"v")])
    return log


def checkpoint(folder: Path) -> dict[tuple[str, int], int]:
    return read_offsets(str(folder / CLEANER_CHECKPOINT))


def store(logs: Logs) -> None:
    for job in logs.checkpoint(NOW):
        job.run()
        assert job.error is None
        logs.finish(job)


def test_it_is_stored_and_found_again(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    log = filled(logs)
    compact(log)
    logs.compacted(log, [])
    assert logs.folders[0].changed
    store(logs)
    assert checkpoint(tmp_path) == {("topic", 0): 20}
    left = kept(log)
    logs.close()
    logs = open_logs(tmp_path)
    # Also before the log is loaded.
    store(logs)
    assert checkpoint(tmp_path) == {("topic", 0): 20}
    log = logs.get("topic", 0)
    assert log.first_dirty_offset == 20
    assert kept(log) == left
    logs.close()


def test_nothing_is_touched_before_it_is_stored_that_it_was_synced(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    log = filled(logs)
    assert log.recovery_point >= 20
    assert dirt_of(log, logs.synced_end(log), NOW).dirty_bytes == 0
    store(logs)
    assert dirt_of(log, logs.synced_end(log), NOW).first_uncleanable == 20
    logs.close()


def test_truncation_takes_it_back_before_it_begins(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    log = filled(logs)
    compact(log)
    store(logs)
    end = log.segments[0].base_offset + 1
    log.truncate_to(end, NOW)
    assert log.first_dirty_offset == log.log_end_offset <= end
    assert checkpoint(tmp_path).get(("topic", 0), 0) == log.log_end_offset
    logs.close()


def test_it_goes_with_the_topic(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    compact(filled(logs))
    compact(filled(logs, 1))
    store(logs)
    logs.delete("topic", 0)
    store(logs)
    assert checkpoint(tmp_path) == {("topic", 1): 20}
    assert logs.create("topic", 0, TOPIC_ID).first_dirty_offset == 0
    logs.close()
