"""Work on records, which burns CPU in Python, done in other processes.

One busy Python thread in the broker's process would lift the loop's median latency a hundredfold
(they share the interpreter's lock), so recompression, conversion of old formats and checks of every
record in large batches run in worker processes. They are started on the first such request, run at a
lower priority, and end with the broker.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from ottla.record.codecs import Codec
from ottla.record.errors import TooLarge
from ottla.server.platform import HAS_MEMORY_FILES

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    from ottla.server.lanes import Transform
    from ottla.storage.config import LogConfig

T = TypeVar("T")

# Jobs on so few bytes are done on the loop: sending them to another process would take longer.
INLINE_BYTES = 4 << 10
INLINE_DECOMPRESSED_LIMIT = 32 << 10
# The most that one batch may unfold to.
DECOMPRESSED_LIMIT = 256 << 20
# Files by which batches go back and forth, kept for the next.
SPARE_EXCHANGES = 4
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

    def put(self, data: bytes | bytearray) -> None:
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.pwrite(self._fd, view[written : written + _PIECE], written)

    def take(self, size: int) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as view:
            read = 0
            while read < size:
                got = os.preadv(self._fd, [view[read : read + _PIECE]], read)
                if not got:
                    raise OSError(f"a worker left {read} of {size} bytes")
                read += got
        return data

    def __del__(self) -> None:
        os.close(self._fd)


class Workers:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: int,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self._loop = loop
        # For what passes batches on; none: the loop's own.
        self._threads = threads
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._exchanges: list[MemoryFile] = []

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job (module-level functions only: it travels by pickle) in a worker process."""
        # Imported on first use: few brokers ever need it, and it is not cheap.
        from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

        if self._pool is None:
            import multiprocessing

            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["ottla.server.jobs"])
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_start_worker
            )
        try:
            with _no_main_module():
                running = self._loop.run_in_executor(self._pool, job)
            return await running
        except BrokenProcessPool:
            # A worker was killed (out of memory, by hand). The job is lost, the next one gets a
            # new pool; the client sends its request again.
            self._pool = None
            raise OSError("a worker process died") from None

    def transform(self, config: LogConfig, codec: int) -> Transform | None:
        """What has to be done to a producer's batch before it is stored, if anything."""
        if config.compression_type == "producer" and not config.compacts:
            return None
        from ottla.server import jobs

        wanted = jobs.target_codec(config.compression_type, codec)
        if wanted == codec and not config.compacts:
            return None
        return partial(
            self._convert,
            partial(
                jobs.prepare_batch,
                codec=wanted,
                level=level_of(config, wanted),
                keyed=config.compacts,
            ),
        )

    def upgrade(self, config: LogConfig) -> Transform:
        """Turn a message set of an old client into batches of the current format."""
        from ottla.server import jobs

        return partial(
            self._convert,
            partial(
                jobs.upgrade_messages,
                compression_type=config.compression_type,
                levels={codec: level_of(config, codec) for codec in Codec},
                keyed=config.compacts,
            ),
        )

    async def downgrade(self, batches: bytes, magic: int, first_offset: int) -> bytes | bytearray:
        """Batches as messages of an old format, for a client that knows no other."""
        from ottla.server import jobs

        job = partial(jobs.downgrade, magic=magic, first_offset=first_offset)
        return await self._work(job, batches)

    async def _convert(self, job: Callable[..., bytes], data: bytearray) -> bytearray:
        converted = await self._work(job, data)
        return converted if isinstance(converted, bytearray) else bytearray(converted)

    async def _work(self, job: Callable[..., bytes], data: bytes | bytearray) -> bytes | bytearray:
        if len(data) <= INLINE_BYTES:
            try:
                return job(data, limit=INLINE_DECOMPRESSED_LIMIT)
            except TooLarge:
                # Little on the wire, much inside.
                pass
        if not HAS_MEMORY_FILES:
            return await self.run(partial(job, bytes(data), limit=DECOMPRESSED_LIMIT))
        from ottla.server import jobs

        exchange = self._exchanges.pop() if self._exchanges else MemoryFile()
        in_thread = partial(self._loop.run_in_executor, self._threads)
        try:
            await in_thread(exchange.put, data)
            job = partial(job, limit=DECOMPRESSED_LIMIT)
            size = await self.run(partial(jobs.in_memory_file, job, exchange.path, len(data)))
            return await in_thread(exchange.take, size)
        finally:
            if len(self._exchanges) < SPARE_EXCHANGES:
                self._exchanges.append(exchange)

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


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


def _start_worker() -> None:
    """Give way to the broker's loop, and do not outlive the broker."""
    import multiprocessing
    from multiprocessing.connection import wait

    os.nice(5)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow(sentinel: int = parent.sentinel) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
