"""Work on records, which burns CPU in Python, done in other processes.

One busy Python thread in the broker's process would lift the loop's median latency a hundredfold
(they share the interpreter's lock), so recompression, conversion of old formats and checks of every
record in large batches run in worker processes. They are started on the first such request, give way
to the loop, and end with the broker.

Each worker has a thread here that starts it, passes jobs on and waits for their results; for the loop
a job is one call into a thread and one back.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from ottla.record.compression.codecs import DEFAULT_LIMIT, Codec
from ottla.record.errors import TooLarge
from ottla.server.disk.priority import give_way
from ottla.server.network.platform import HAS_MEMORY_FILES

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.connection import Connection

    from ottla.logfiles.visible import Visible
    from ottla.record.offset_set import OffsetRange
    from ottla.record.validation.findings import Rules
    from ottla.server.disk.lanes import Batches, Transform
    from ottla.storage.config import LogConfig

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

# Jobs on so few bytes are done on the loop: sending them to another process would take longer.
INLINE_BYTES = 4 << 10
INLINE_DECOMPRESSED_LIMIT = 32 << 10
# More than that where a reader waits, and records are only measured: some hundred microseconds.
INLINE_VISIBLE_BYTES = 64 << 10
INLINE_VISIBLE_LIMIT = 128 << 10
# The most that one batch may unfold to: what readers are ready to hold.
DECOMPRESSED_LIMIT = DEFAULT_LIMIT
# Copied at once: some kernels let nobody else have the processor during a call.
_PIECE = 128 << 10


class MemoryFile:
    """A file in memory by which a batch goes to a worker and its result comes back.

    Through the pool's own pipes a batch of a megabyte would be pickled, which takes the interpreter's
    lock for as long as four copies of it take; this way it is one write and one read, which a thread
    does without that lock.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("ottla-exchange", os.MFD_CLOEXEC)
        # Workers are of the same user, so they may open it.
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def put(self, data: Bytes) -> None:
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.pwrite(self._fd, view[written : written + _PIECE], written)

    def take(self, size: int, spent: Bytes) -> Batches:
        """The result; in the place of what was put, if that is memory to write to and large enough."""
        room = memoryview(spent)
        if room.readonly or len(room) < size:
            room = memoryview(bytearray(size))
        with room[:size] as view:
            read = 0
            while read < size:
                got = os.preadv(self._fd, [view[read : read + _PIECE]], read)
                if not got:
                    raise OSError(f"a worker left {read} of {size} bytes")
                read += got
        return room[:size]

    def __del__(self) -> None:
        os.close(self._fd)


class _Worker:
    """A process that does one job after the other, and our end of the line to it. It ends when that
    is closed."""

    # Starting a process looks at modules of the whole interpreter: one at a time.
    _starting = threading.Lock()

    def __init__(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("forkserver")
        with self._starting, _no_main_module():
            context.set_forkserver_preload(["ottla.server.disk.worker_jobs"])
            self._line, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs,), daemon=True).start()
        theirs.close()
        # By which batches go back and forth; made for the first.
        self.exchange: MemoryFile | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process lives. To be asked between jobs, when only its end can be read."""
        return not self._line.poll()

    def do(self, job: Callable[[], T]) -> T:
        """Runs a job. Raises what the job raises; EOFError or OSError if the process is gone."""
        self._line.send_bytes(pickle.dumps(job))
        succeeded, result = pickle.loads(self._line.recv_bytes())
        if not succeeded:
            raise result
        done: T = result
        return done


class Workers:
    def __init__(self, loop: asyncio.AbstractEventLoop, processes: int) -> None:
        self._loop = loop
        self._processes = processes
        # A thread for each worker; made for the first job.
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job (module-level functions only: it travels by pickle) in a worker process."""
        return await self._in_thread(partial(self._do, job))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(self._processes, "ottla-workers")
        return await self._loop.run_in_executor(self._threads, work)

    def _do(self, job: Callable[[], T]) -> T:
        """Runs a job in a worker, from one of our threads."""
        worker = self._worker()
        try:
            return worker.do(job)
        except (EOFError, ConnectionError):
            # It was killed (out of memory, by hand). The job is lost, the next one gets a new worker;
            # the client sends its request again.
            self._own.worker = None
            raise OSError("a worker process died") from None

    def _worker(self) -> _Worker:
        """The worker of this thread; a new one if it was killed while nothing was to be done."""
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None or not worker.is_alive:
            worker = self._own.worker = _Worker()
        return worker

    def _through_memory(self, job: Callable[[bytes], bytes], data: Bytes) -> Batches:
        """Have a job done on data that goes by a file in memory; in one of our threads."""
        from ottla.server.disk import worker_jobs as jobs

        worker = self._worker()
        exchange = worker.exchange
        if exchange is None:
            exchange = worker.exchange = MemoryFile()
        exchange.put(data)
        size = self._do(partial(jobs.in_memory_file, job, exchange.path, len(data)))
        return exchange.take(size, data)

    def repacking(self, config: LogConfig, codec: int) -> Transform | None:
        """Pack a batch with the codec that its topic asks for; None if it has that already."""
        if config.compression_type == "producer":
            return None
        from ottla.server.disk import worker_jobs as jobs

        wanted = jobs.target_codec(config.compression_type, codec)
        if wanted == codec:
            return None
        job = partial(jobs.repack, codec=wanted, level=level_of(config, wanted))
        return partial(self._convert, job)

    async def check(self, rules: Rules, now_ms: int, batch: Batches) -> Batches:
        """Check the records of a producer's batch: see `ottla.record.validation`."""
        from ottla.server.disk import worker_jobs as jobs

        job = partial(jobs.check_produced_batch, rules=rules, now_ms=now_ms)
        return await self._convert(job, batch)

    def upgrade(self, config: LogConfig, rules: Rules, now_ms: int) -> Transform:
        """Turn a message set of an old client into batches of the current format."""
        from ottla.server.disk import worker_jobs as jobs

        return partial(
            self._convert,
            partial(
                jobs.upgrade_messages,
                compression_type=config.compression_type,
                levels={codec: level_of(config, codec) for codec in Codec},
                rules=rules,
                now_ms=now_ms,
            ),
        )

    async def downgrade(self, batches: bytes, magic: int, first_offset: int) -> Bytes:
        """Batches as messages of an old format, for a client that knows no other."""
        from ottla.server.disk import worker_jobs as jobs

        job = partial(jobs.downgrade, magic=magic, first_offset=first_offset)
        return await self._work(job, batches)

    async def visible(self, batches: bytes, hidden: Sequence[OffsetRange]) -> Visible:
        """Batches without the records at these offsets."""
        from ottla.logfiles.visible import without

        if len(batches) <= INLINE_VISIBLE_BYTES:
            try:
                return without(batches, hidden, INLINE_VISIBLE_LIMIT)
            except TooLarge:
                pass
        return await self.run(partial(without, batches, hidden, DECOMPRESSED_LIMIT))

    async def _convert(self, job: Callable[..., bytes], data: Batches) -> Batches:
        converted = await self._work(job, data)
        return bytearray(converted) if isinstance(converted, bytes) else converted

    async def _work(self, job: Callable[..., bytes], data: Bytes) -> Bytes:
        if len(data) <= INLINE_BYTES:
            try:
                return job(bytes(data), limit=INLINE_DECOMPRESSED_LIMIT)
            except TooLarge:
                # Little on the wire, much inside.
                pass
        job = partial(job, limit=DECOMPRESSED_LIMIT)
        if not HAS_MEMORY_FILES:
            return await self.run(partial(job, bytes(data)))
        return await self._in_thread(partial(self._through_memory, job, data))

    def stop(self) -> None:
        """Takes no more jobs; those that have begun are finished, then their workers end."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def level_of(config: LogConfig, codec: int) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Processes that are started meanwhile do not import the program that they are started from (the
    command line with all it needs, or whatever script a broker runs in): jobs come from modules."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(line: Connection[bytes, bytes]) -> None:
    """Runs jobs one after the other until the broker closes the pipe."""
    import signal

    # Ctrl-C in a terminal reaches all of its processes; it is the broker that decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    give_way()
    _follow_the_broker()
    while True:
        try:
            job = line.recv_bytes()
        except EOFError:
            return
        try:
            outcome = pickle.dumps((True, pickle.loads(job)()))
        except Exception as error:  # noqa: BLE001 - it is raised again where the job comes from
            outcome = _pickled(error)
        line.send_bytes(outcome)


def _pickled(error: Exception) -> bytes:
    try:
        result = pickle.dumps((False, error))
        pickle.loads(result)
    except Exception:  # noqa: BLE001 - one that cannot travel
        result = pickle.dumps((False, RuntimeError(f"a job failed: {error!r}")))
    return result


def _follow_the_broker() -> None:
    """Ends this worker when the broker that started it is gone, even in the middle of a job."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow(sentinel: int = parent.sentinel) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
