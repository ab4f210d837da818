"""Old data is brought into the page cache by a process of its own; by threads when that one does not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.server.disk import warming as warming_module
from ottla.server.disk.threads import started_threads
from ottla.server.disk.warming import Warming
from ottla.storage.files import OS_FILES, PORTABLE
from ottla.storage.segments.file import SegmentFile

pytestmark = pytest.mark.skipif(PORTABLE, reason="threads do it everywhere but on Linux")

SIZE = 8 << 20
MEGABYTE = 1 << 20
NOTHING = range(0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with started_threads(1, "test") as threads:
        yield threads


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    """One of which the page cache holds nothing, where the file system can tell."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return SegmentFile(OS_FILES, fd)


@pytest.fixture
def by_threads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that threads have brought."""
    ranges = []
    brought = warming_module.bring_into_memory

    def noted(file: SegmentFile, position: int, size: int, ahead: range) -> bool:
        ranges.append((position, size))
        return brought(file, position, size, ahead)

    monkeypatch.setattr(warming_module, "bring_into_memory", noted)
    return ranges


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, the process is waited for."""
    monkeypatch.setattr(warming_module, "PATIENCE_SECONDS", 3600.0)


def run(
    threads: ThreadPoolExecutor, test: Callable[[Warming], Coroutine[object, object, None]]
) -> None:
    async def main() -> None:
        warming = Warming(asyncio.get_running_loop(), threads)
        try:
            await test(warming)
        finally:
            warming.stop()

    asyncio.run(main())


def pid_of(warming: Warming) -> int:
    assert warming._process is not None
    return warming._process.pid


@pytest.mark.usefixtures("patient")
def test_a_process_brings_what_is_waited_for_and_asks_for_what_follows(
    threads: ThreadPoolExecutor, file: SegmentFile, by_threads: list[tuple[int, int]]
) -> None:
    is_known = not file.seems_in_memory(0, SIZE)

    async def test(warming: Warming) -> None:
        was_needed = await warming.bring_into_memory(
            file, 0, MEGABYTE, range(2 * MEGABYTE, 3 * MEGABYTE)
        )
        assert was_needed is is_known
        assert file.seems_in_memory(0, MEGABYTE)
        if is_known:
            assert not file.seems_in_memory(4 * MEGABYTE, MEGABYTE)
        while not file.seems_in_memory(2 * MEGABYTE, MEGABYTE):  # noqa: ASYNC110 - the disk says nothing
            await asyncio.sleep(0.001)

    run(threads, test)
    assert by_threads == []


@pytest.mark.usefixtures("patient")
def test_many_at_once(
    threads: ThreadPoolExecutor, file: SegmentFile, by_threads: list[tuple[int, int]]
) -> None:
    async def test(warming: Warming) -> None:
        await asyncio.gather(
            *(
                warming.bring_into_memory(file, at, 64 << 10, NOTHING)
                for at in range(0, SIZE, 64 << 10)
            )
        )
        assert file.seems_in_memory(0, SIZE)

    run(threads, test)
    assert by_threads == []


def test_what_waits_for_too_long_is_done_by_a_thread_and_so_is_what_follows(
    threads: ThreadPoolExecutor,
    file: SegmentFile,
    by_threads: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(warming: Warming) -> None:
        monkeypatch.setattr(warming_module, "PATIENCE_SECONDS", 3600.0)
        await warming.bring_into_memory(file, 0, MEGABYTE, NOTHING)
        assert by_threads == []
        os.kill(pid_of(warming), signal.SIGSTOP)
        monkeypatch.setattr(warming_module, "PATIENCE_SECONDS", 0.001)
        monkeypatch.setattr(warming_module, "LATE_SECONDS", 3600.0)
        await warming.bring_into_memory(file, MEGABYTE, MEGABYTE, NOTHING)
        # Nobody waits for it a second time.
        monkeypatch.setattr(warming_module, "PATIENCE_SECONDS", 3600.0)
        await warming.bring_into_memory(file, 2 * MEGABYTE, MEGABYTE, NOTHING)
        assert by_threads == [(MEGABYTE, MEGABYTE), (2 * MEGABYTE, MEGABYTE)]
        assert file.seems_in_memory(0, 3 * MEGABYTE)
        # Not before it was given another chance.
        os.kill(pid_of(warming), signal.SIGCONT)
        warming._late_until = 0.0
        await warming.bring_into_memory(file, 3 * MEGABYTE, MEGABYTE, NOTHING)
        assert len(by_threads) == 2

    run(threads, test)


@pytest.mark.usefixtures("patient")
def test_threads_do_what_a_process_that_was_killed_has_not_done(
    threads: ThreadPoolExecutor, file: SegmentFile, by_threads: list[tuple[int, int]]
) -> None:
    async def test(warming: Warming) -> None:
        await warming.bring_into_memory(file, 0, MEGABYTE, NOTHING)
        first = pid_of(warming)
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.ensure_future(
            warming.bring_into_memory(file, MEGABYTE, MEGABYTE, NOTHING)
        )
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        await waiting
        assert by_threads == [(MEGABYTE, MEGABYTE)]
        await warming.bring_into_memory(file, 2 * MEGABYTE, MEGABYTE, NOTHING)
        assert len(by_threads) == 1
        assert pid_of(warming) != first

    run(threads, test)


@pytest.mark.usefixtures("patient")
def test_an_error_is_raised_where_it_is_waited_for(
    threads: ThreadPoolExecutor, file: SegmentFile, tmp_path: Path
) -> None:
    unreadable = SegmentFile(OS_FILES, os.open(tmp_path / "new", os.O_WRONLY | os.O_CREAT))

    async def test(warming: Warming) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await warming.bring_into_memory(unreadable, 0, MEGABYTE, NOTHING)
        before = pid_of(warming)
        await warming.bring_into_memory(file, 0, MEGABYTE, NOTHING)
        assert pid_of(warming) == before, "it died of the error"

    run(threads, test)


@pytest.mark.usefixtures("patient")
def test_the_process_ends_with_the_broker(threads: ThreadPoolExecutor, file: SegmentFile) -> None:
    pids = []

    async def test(warming: Warming) -> None:
        await warming.bring_into_memory(file, 0, MEGABYTE, NOTHING)
        pids.append(pid_of(warming))
        assert os.sched_getscheduler(pids[0]) == os.SCHED_IDLE

    run(threads, test)
    assert os.waitpid(pids[0], 0) == (pids[0], 0)


def test_without_a_process_threads_do_it(
    threads: ThreadPoolExecutor,
    file: SegmentFile,
    by_threads: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")

    async def test(warming: Warming) -> None:
        await warming.bring_into_memory(file, 0, MEGABYTE, NOTHING)
        assert file.seems_in_memory(0, MEGABYTE)

    run(threads, test)
    assert by_threads == [(0, MEGABYTE)]
