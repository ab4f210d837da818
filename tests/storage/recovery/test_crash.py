"""Logs on a disk that loses power, is killed on, runs full and breaks. See storage_kit.log_world.

A failure names its seed: `run_seed(SEED)` or `run_fault(SEED, CALL, ERROR, POWER_LOSS)` repeats it.
"""

from __future__ import annotations

import errno
import logging
import random

import pytest
from storage_kit.faulty_files import Disk, FaultyFiles, PowerLoss
from storage_kit.log_world import World, run_fault, run_seed
from storage_kit.logs import NOW, LogMaker, a_batch, stored_batches

from ottla.storage.errors import OutOfResources

SEEDS_IN_A_TEST = 50


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every crash is worth some warnings."""
    caplog.set_level(logging.CRITICAL, "ottla.storage")


# A quarter of the seeds is in `make test`.
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < 100 else pytest.mark.long)
        for first in range(0, 400, SEEDS_IN_A_TEST)
    ],
)
def test_power_loss(first: int) -> None:
    for seed in range(first, first + SEEDS_IN_A_TEST):
        run_seed(seed)


def run_long(seed: int) -> None:
    run_seed(seed, lives=5, steps=random.Random(seed).choice((10, 40, 100)))


@pytest.mark.parametrize("seed", [100_036, 101_200, 200_073, 216_836, 217_584])
def test_seeds_that_failed_once(seed: int) -> None:
    run_long(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100_000, 130_000, 1000))
def test_power_loss_for_long(first: int) -> None:
    for seed in range(first, first + 1000):
        run_long(seed)


@pytest.mark.parametrize(
    ("error", "power_loss"),
    [
        pytest.param(errno.ENOSPC, True, id="full-power loss"),
        pytest.param(errno.ENOSPC, False, id="full-kill", marks=pytest.mark.long),
        pytest.param(errno.EIO, True, id="broken-power loss", marks=pytest.mark.long),
        pytest.param(errno.EIO, False, id="broken-kill", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("seed", [0])
def test_every_call_fails_once(seed: int, error: int, power_loss: bool) -> None:
    calls = run_fault(seed, 0, 0, power_loss)
    assert calls > 50
    for call in range(1, calls + 1):
        run_fault(seed, call, error, power_loss)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200, 230))
def test_every_call_fails_once_for_long(seed: int) -> None:
    for call in range(1, run_fault(seed, 0, 0, True) + 1):
        for error in (errno.ENOSPC, errno.EIO, errno.EROFS):
            for power_loss in (False, True):
                run_fault(seed, call, error, power_loss)


def test_a_full_disk_refuses_one_batch_and_the_log_goes_on() -> None:
    """What was written of it is cut off again; what was acknowledged is there after a restart."""
    world = World(1)
    world.files = FaultyFiles(world.disk)
    world.logs = world._logs()
    world.logs.open()
    world.open_missing()
    first, second = (world.logs.get("topic", partition) for partition in (0, 1))
    first.append(a_batch(b"kept"), 0, NOW)
    world.files.faults = {world.files.calls + 1: errno.ENOSPC}
    with pytest.raises(OutOfResources, match="No space left"):
        first.append(a_batch(b"refused"), 0, NOW)
    assert second.append(a_batch(b"other"), 0, NOW).base_offset == 0
    ((_, _, kept),) = stored_batches(first)
    assert b"kept" in kept
    assert first.append(a_batch(b"with room"), 0, NOW).base_offset == 1
    world.logs.close(threads=1)
    again = World(1)
    again.disk = world.disk
    again.files = FaultyFiles(world.disk)
    again.logs = again._logs()
    again.logs.open()
    assert again.logs.was_clean
    values = [batch for _, _, batch in stored_batches(again.logs.get("topic", 0))]
    assert [b"kept" in values[0], b"with room" in values[1]] == [True, True]
    assert again.logs.get("topic", 0).append(a_batch(), 0, NOW).base_offset == 2


def test_the_disk_itself() -> None:
    """Unsynced data is lost, torn or kept; synced data is kept. Else the tests above prove nothing."""
    outcomes = set()
    for seed in range(300):
        disk = Disk()
        disk.make_durable_folder("/data")
        files = FaultyFiles(disk)
        fd = files.open("/data/file", 0o102)
        files.pwrite(fd, b"a" * 1000, 0)
        files.fsync(fd)
        files.fsync_folder("/data")
        files.pwrite(fd, b"b" * 1000, 1000)
        files.rename("/data/file", "/data/renamed")
        disk.lose_power(random.Random(seed))
        after = FaultyFiles(disk)
        (name,) = after.names("/data")
        content = after.read_file(f"/data/{name}")
        assert content[:1000] == b"a" * 1000
        tail = content[1000:]
        outcomes.add((name, len(tail) // 1000, tail.count(b"b") // 250))
    assert {name for name, _, _ in outcomes} == {"file", "renamed"}
    assert len({(size, kept) for _, size, kept in outcomes}) > 4


def test_nothing_happens_after_the_power_went() -> None:
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk, power_loss_at=5)
    log = LogMaker("/data", files=files).create()  # four calls
    with pytest.raises(PowerLoss):
        log.append(a_batch(), 0, NOW)
    with pytest.raises(PowerLoss):
        files.names("/data")
    assert files.calls == 5
