"""A compaction that is interrupted at every one of its calls, by a kill, a power loss, a broken disk.

The log has the old segments or the new ones, never parts of both; no aborted record comes to light.
"""

from __future__ import annotations

import copy
import errno
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from compaction_kit.logs import (
    append,
    begin,
    compact,
    compacting,
    end_transaction,
    kept,
    put_in_place,
    seal,
)
from storage_kit.faulty_files import Disk, FaultyFiles, PowerLoss
from storage_kit.logs import NOW, LogMaker, stored_batches
from storage_kit.memory import verify_log

from ottla.logfiles.names import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from ottla.record.batch import read_header
from ottla.storage.compaction.rewrite import Cancelled, Outcome, run_over
from ottla.storage.compaction.swap import Compaction
from ottla.storage.errors import LogOffline
from ottla.storage.log.log import Log

DATA = "/data"
LEFTOVERS = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)
# What a power loss leaves is a matter of chance.
CHANCES = 2
CHANCES_FOR_LONG = 30

Records = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every crash is worth some warnings."""
    caplog.set_level(logging.CRITICAL, "ottla.storage")


class Scene:
    """A log before its compaction, on a disk that can be copied."""

    def __init__(self, **settings: int) -> None:
        self.config = compacting(**settings)
        self.disk = Disk()
        self.disk.make_durable_folder(DATA)
        log = self.maker(FaultyFiles(self.disk)).create()
        header = {"producer_epoch": 0}
        for number in range(30):
            append(log, [(b"k%d" % (number % 4), b"%d" % number)])
            append(
                log,
                [(b"t%d" % (number % 3), b"%d" % number)],
                producer_id=1,
                base_sequence=number,
                transactional=True,
                **header,
            )
            if number % 6 == 2:
                end_transaction(log, 1, committed=number % 12 == 2)
            if number % 4 == 3:
                log.roll(NOW)
        end_transaction(log, 1, committed=True)
        append(log, [(b"k0", b"last")])
        seal(log)
        append(log, [(b"active", b"x")])
        log.flush(NOW)
        self.end = log.log_end_offset
        self.old = kept(log)
        self.seen = committed(log)
        self.producer = log.producers.producers[1].last_sequence
        # From here on, what a compaction without trouble leads to.
        disk = copy.deepcopy(self.disk)
        log = self.load(FaultyFiles(disk))
        compact(log)
        self.new = kept(log)
        self.bases = [segment.base_offset for segment in log.segments]
        assert len(self.new) < len(self.old) - 20
        last = {key: offset for offset, key, _ in self.seen if offset < self.end - 1}
        last[b"active"] = self.end - 1
        assert committed(log) == [each for each in self.seen if last[each[1]] == each[0]]

    def maker(self, files: FaultyFiles) -> LogMaker:
        return LogMaker(DATA, self.config, files)

    def load(self, files: FaultyFiles) -> Log:
        return self.maker(files).load(recovery_point=self.end, high_watermark=self.end)

    def check(self, disk: Disk) -> None:
        """What the next start finds."""
        files = FaultyFiles(disk)
        log = self.load(files)
        assert not list(verify_log(log))
        assert log.log_end_offset == self.end
        found = kept(log)
        # Segment by segment, all of the old or all of the new.
        for slot, base in enumerate(self.bases):
            end = self.bases[slot + 1] if slot + 1 < len(self.bases) else self.end
            part = _between(found, base, end)
            choices = (_between(self.old, base, end), _between(self.new, base, end))
            assert part in choices, f"offsets {base} to {end}"
        # Readers of committed records see nothing that was aborted, and nothing less than the last.
        seen = committed(log)
        assert set(seen) <= set(self.seen)
        assert set(seen) >= {each for each in self.new if each in self.seen}
        assert log.producers.producers[1].last_sequence == self.producer
        leftovers = [name for name in files.names(log.folder) if name.endswith(LEFTOVERS)]
        assert not leftovers
        # And it can be compacted, to the same end.
        log.lower_first_dirty(0)
        compact(log)
        assert kept(log) == self.new
        assert committed(log) == [each for each in self.seen if each in self.new]


def _between(records: Records, start: int, end: int) -> Records:
    return [each for each in records if start <= each[0] < end]


def committed(log: Log) -> Records:
    """What a reader of committed records sees."""
    from ottla.record.batch import records

    aborted = sorted(log.aborted_transactions(0, log.log_end_offset), key=lambda each: each[1])
    hidden: set[int] = set()
    seen: Records = []
    for _, last, batch in stored_batches(log):
        header = read_header(batch)
        while aborted and aborted[0][1] <= last:
            hidden.add(aborted.pop(0)[0])
        if header.is_control:
            if any(record.key == b"\0\0\0\0" for record in records(batch)):
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            seen += [(record.offset, record.key, record.value) for record in records(batch)]
    return seen


def begun(log: Log) -> tuple[Compaction, Outcome]:
    compaction = begin(log)
    assert compaction is not None
    return compaction, run_over(compaction.job, log.files)


def one_pass(log: Log) -> None:
    put_in_place(*begun(log))


# What is done first, and what is done with that: the part which is interrupted.
Act = tuple[Callable[[Log], Any], Callable[..., object]]


def stopped_after(steps: int) -> Act:
    """So many steps of the first swap."""

    def stop(compaction: Compaction, outcome: Outcome) -> None:
        swap = compaction.swap(outcome.replacements[0])
        assert swap is not None
        for _ in range(steps):
            swap.step()
        compaction.stop()
        compaction.discard(outcome)

    return begun, stop


ACTS: dict[str, Act] = {
    "swap": (begun, put_in_place),
    **{f"stopped after {steps}": stopped_after(steps) for steps in range(5)},
}


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


@pytest.fixture(scope="module")
def small() -> Scene:
    """Several segments of several."""
    return Scene(segment_bytes=700)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(act, id=name, marks=() if name == "swap" else pytest.mark.long)
        for name, act in ACTS.items()
    ],
)
def test_killed_or_without_power_at_every_call(scene: Scene, act: Act) -> None:
    interrupt_everywhere(scene, act, CHANCES)


@pytest.mark.long
def test_killed_or_without_power_in_one_of_several_swaps(small: Scene) -> None:
    interrupt_everywhere(small, ACTS["swap"], 1)


@pytest.mark.soak
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_killed_or_without_power_for_long(scene: Scene, small: Scene, act: Act) -> None:
    interrupt_everywhere(scene, act, CHANCES_FOR_LONG)
    interrupt_everywhere(small, act, CHANCES_FOR_LONG)


def test_killed_or_without_power_while_segments_are_written(scene: Scene) -> None:
    calls = 0
    act: Act = (lambda log: (log,)), one_pass
    while interrupt_once(scene, act, calls + 1, 1):
        calls += 3
    assert calls > 20


def interrupt_everywhere(scene: Scene, act: Act, chances: int) -> None:
    call = 1
    while interrupt_once(scene, act, call, chances):
        call += 1
    assert call > 5


def interrupt_once(scene: Scene, act: Act, call: int, chances: int) -> bool:
    """False if there is no such call."""
    disk = copy.deepcopy(scene.disk)
    files = FaultyFiles(disk)
    log = scene.load(files)
    before, then = act
    prepared = before(log)
    files.power_loss_at = files.calls + call
    try:
        then(*prepared)
    except PowerLoss:
        pass
    scene.check(copy.deepcopy(disk))
    for chance in range(chances):
        lost = copy.deepcopy(disk)
        lost.lose_power(random.Random(chance * 1000 + call))
        _crash_again(scene, copy.deepcopy(lost), chance)
        scene.check(lost)
    return files.lost_power


def _crash_again(scene: Scene, disk: Disk, chance: int) -> None:
    """The start that ends what was interrupted is itself interrupted."""
    generator = random.Random(chance)
    files = FaultyFiles(disk, power_loss_at=generator.randint(1, 30))
    try:
        scene.load(files)
    except PowerLoss:
        disk.lose_power(generator)
    scene.check(disk)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_every_call_fails_once(scene: Scene, error: int) -> None:
    call = 0
    while True:
        call += 1
        disk = copy.deepcopy(scene.disk)
        files = FaultyFiles(disk)
        log = scene.load(files)
        files.faults = {files.calls + call: error}
        try:
            one_pass(log)
        except OSError:
            pass
        except Cancelled:
            pytest.fail("a broken disk is no reason to go on as if nothing was")
        over = files.calls < max(files.faults)
        files.faults = {}
        if log.offline is None:
            # Whatever did not come to its end: the log has all of the old or of the new.
            if log.compaction is not None:
                log.compaction.stop()
            found = kept(log)
            assert set(scene.new) <= set(found) <= set(scene.old)
            append(log, [(b"more", b"x")])
            log.truncate_to(scene.end, NOW)
            log.flush(NOW)
        else:
            with pytest.raises(LogOffline):
                log.flush(NOW)
        scene.check(copy.deepcopy(disk))
        disk.lose_power(random.Random(call))
        scene.check(disk)
        if over:
            break
    assert call > 10


def test_truncation_after_an_interrupted_swap_is_not_undone(scene: Scene) -> None:
    """A swap that was taken back must not come to life again in a crash after the truncation."""
    for steps in range(5):
        for chance in range(8):
            disk = copy.deepcopy(scene.disk)
            files = FaultyFiles(disk)
            log = scene.load(files)
            compaction, outcome = begun(log)
            swap = compaction.swap(outcome.replacements[0])
            assert swap is not None
            for _ in range(steps):
                swap.step()
            cut = log.segments[1].base_offset + 1
            log.truncate_to(cut, NOW)
            left = kept(log)
            end = log.log_end_offset
            disk.lose_power(random.Random(chance))
            again = scene.maker(FaultyFiles(disk)).load(recovery_point=end, high_watermark=end)
            assert kept(again) == left
            assert again.log_end_offset == end
            assert not list(verify_log(again))
