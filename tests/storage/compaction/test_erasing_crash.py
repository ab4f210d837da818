"""Erasing that is interrupted at every one of its calls: by a kill, or by a power loss.

What is deleted stays hidden, what is not stays whole, and the next start ends what was begun.
"""

from __future__ import annotations

import copy
import logging
import random

import pytest
from compaction_kit.logs import FAST, append, end_transaction, put_in_place, seal
from storage_kit.faulty_files import Disk, FaultyFiles, PowerLoss
from storage_kit.logs import NOW, LogMaker, stored_batches
from storage_kit.memory import verify_log

from ottla.record.batch import read_header, records
from ottla.record.deletion import build_mark
from ottla.storage.compaction.erasing import erasable_now
from ottla.storage.compaction.plan import Dirt
from ottla.storage.compaction.rewrite import run_over
from ottla.storage.compaction.swap import Compaction
from ottla.storage.config import LogConfig
from ottla.storage.log.log import COORDINATOR, Log

DATA = "/data"
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, file_delete_delay_ms=0)
GONE = [(1, 3), (20, 26), (40, 41)]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every crash is worth some warnings."""
    caplog.set_level(logging.CRITICAL, "ottla.storage")


def is_gone(offset: int) -> bool:
    return any(start <= offset < end for start, end in GONE)


def headers(log: Log) -> list[tuple[int, int, int, int, int]]:
    """What must stay of every batch."""
    found = []
    for _, _, batch in stored_batches(log):
        each = read_header(batch)
        found.append(
            (
                each.base_offset,
                each.last_offset,
                each.producer_id,
                each.base_sequence,
                each.partition_leader_epoch,
            )
        )
    return found


def values(log: Log) -> dict[int, bytes | None]:
    return {
        record.offset: record.value
        for _, _, batch in stored_batches(log)
        if not read_header(batch).is_control
        for record in records(batch)
    }


class Scene:
    def __init__(self) -> None:
        self.disk = Disk()
        self.disk.make_durable_folder(DATA)
        log = self.maker(FaultyFiles(self.disk)).create()
        for number in range(12):
            append(log, [(b"k", b"%d" % each) for each in range(2)])
            append(
                log,
                [(b"t", b"%d" % each) for each in range(2)],
                producer_id=1,
                producer_epoch=0,
                base_sequence=2 * number,
                transactional=True,
            )
            if number % 3 == 2:
                end_transaction(log, 1, committed=number % 2 == 0)
        end_transaction(log, 1, committed=True)
        log.append(bytearray(build_mark(GONE)), 0, NOW, COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)
        seal(log)
        self.end = log.log_end_offset
        self.values, self.headers = values(log), headers(log)
        self.aborted = log.aborted_transactions(0, self.end)
        self.left = {each: value for each, value in self.values.items() if not is_gone(each)}
        assert len(self.left) < len(self.values)

    def maker(self, files: FaultyFiles) -> LogMaker:
        return LogMaker(DATA, CONFIG, files)

    def load(self, files: FaultyFiles) -> Log:
        return self.maker(files).load(recovery_point=self.end, high_watermark=self.end)

    @staticmethod
    def erase(log: Log) -> None:
        erasable, is_all = erasable_now(log, log.recovery_point)
        if not erasable:
            return
        assert is_all
        dirt = Dirt(0, log.active.base_offset, 0, 0, overdue=False)
        compaction = Compaction(log, dirt, NOW, 0, FAST, erasable, is_all)
        put_in_place(compaction, run_over(compaction.job, log.files))
        log.flush(NOW)

    def check(self, disk: Disk) -> None:
        log = self.load(FaultyFiles(disk))
        assert not list(verify_log(log))
        found = values(log)
        assert self.left.items() <= found.items() <= self.values.items()
        assert headers(log) == self.headers
        assert log.deletions is not None
        assert all(log.deletions.invisible.between(*each) == [each] for each in GONE)
        assert log.aborted_transactions(0, self.end) == self.aborted
        self.erase(log)
        assert values(log) == self.left
        assert headers(log) == self.headers
        assert not log.deletions.unerased


@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
def test_at_every_call(power_loss: bool) -> None:
    scene = Scene()
    whole = copy.deepcopy(scene.disk)
    files = FaultyFiles(whole)
    log = scene.load(files)
    first = files.calls
    scene.erase(log)
    last = files.calls
    assert last - first > 50
    scene.check(whole)
    for call in range(first + 1, last + 1):
        disk = copy.deepcopy(scene.disk)
        files = FaultyFiles(disk, power_loss_at=call)
        log = scene.load(files)
        with pytest.raises(PowerLoss):
            scene.erase(log)
        if power_loss:
            disk.lose_power(random.Random(call))
        scene.check(disk)
