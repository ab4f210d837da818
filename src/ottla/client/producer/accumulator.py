"""The producer's buffer: records by partition, bounded in bytes.

Records are added by any thread; the sender takes them in the event loop. A lock guards what both touch.
`wake` is called (in any thread) when there may be something to send that the sender does not know of.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from ottla.client.errors import OttlaError
from ottla.client.producer.batches import (
    HEADER_OVERHEAD,
    RECORD_OVERHEAD,
    Batch,
    Compression,
    DeliveryFuture,
    Header,
    OpenBatch,
    PartitionQueue,
)


def record_size(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """About the bytes of a record in a batch."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD + len(name) + len(content or b"")
    return size


class Accumulator:
    """Queues of all partitions, and the memory they hold."""

    def __init__(
        self,
        *,
        limit: int,
        batch_size: int,
        batch_records: int,
        compression: Compression,
        wake: Callable[[], None],
    ) -> None:
        self.limit = limit
        self.batch_size = batch_size
        self._batch_records = batch_records
        self._compression = compression
        self._wake = wake
        self.lock = threading.Lock()
        self._fewer_ready = threading.Condition(self.lock)
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self.active: dict[PartitionQueue, None] = {}  # those that are not idle, in order of arrival
        self.used = 0  # bytes
        self._batches: set[Batch] = set()  # closed, and not yet told about
        self._room: list[asyncio.Future[None]] = []
        self._flushes: list[_Flush] = []

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        found = self._queues.get((topic, partition))
        if found is None:
            with self.lock:
                found = self._queues.setdefault(
                    (topic, partition), PartitionQueue(topic, partition)
                )
        return found

    def queues(self) -> list[PartitionQueue]:
        with self.lock:
            return list(self._queues.values())

    # Adding, in any thread

    def append(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        timestamp: int,
        future: DeliveryFuture,
        size: int,
    ) -> bool:
        """Add a record; False if there is no room for it now."""
        with self.lock:
            if self.used and self.used + size > self.limit:
                return False
            self.used += size
            batch = queue.open
            fresh = batch is None
            if batch is None:
                batch = queue.open = OpenBatch(time.monotonic())
                self.active[queue] = None
            elif batch.size + size > self.batch_size:
                self._close(queue)
                batch = queue.open = OpenBatch(time.monotonic())
                fresh = True
            batch.add(key, value, headers, timestamp, future, size)
            full = batch.size >= self.batch_size or len(batch.futures) >= self._batch_records
            if full:
                self._close(queue)
        if fresh or full:
            self._wake()
        return True

    def add(self, batch: Batch) -> bool:
        """Add an encoded batch; False if there is no room for it now."""
        with self.lock:
            if self.used and self.used + batch.size > self.limit:
                return False
            self.used += batch.size
            # The sender looks again at whatever it could not send by itself.
            unknown = not batch.queue.ready
            self._close(batch.queue)
            self._enter(batch)
            self.active[batch.queue] = None
        if unknown:
            self._wake()
        return True

    def wait_for_sender(self, queue: PartitionQueue, most: int, timeout: float) -> bool:
        """Wait until at most `most` batches wait to be sent; whether it came to that in time.

        Not in the event loop.
        """
        with self._fewer_ready:
            queue.watched = most
            return self._fewer_ready.wait_for(lambda: len(queue.ready) <= most, timeout)

    def _close(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            self._enter(queue.open.closed(queue, self._compression))
            queue.open = None

    def _enter(self, batch: Batch) -> None:
        batch.queue.add(batch)
        self._batches.add(batch)

    # Taking and giving back, in the event loop

    def take(self, queue: PartitionQueue) -> Batch:
        """The next batch, which is in flight from now on."""
        with self.lock:
            batch = queue.ready.popleft()
            queue.in_flight.append(batch)
            queue.in_flight.sort(key=_order)
            if len(queue.ready) == queue.watched:
                queue.watched = -1
                self._fewer_ready.notify_all()
        return batch

    def close_due(self, queue: PartitionQueue, opened_before: float) -> float | None:
        """Close the open batch if it is old enough, else say when it was opened."""
        with self.lock:
            if queue.open is None:
                return None
            if queue.open.created > opened_before:
                return queue.open.created
            self._close(queue)
            return None

    def split(self, batch: Batch) -> None:
        """Put a batch's halves in its place."""
        halves = batch.halves(self._compression)
        with self.lock:
            self._batches.discard(batch)
            self._batches.update(halves)
            for flush in self._flushes:
                flush.replace(batch, halves)
            for half in halves:
                batch.queue.put_back(half)
            self.active[batch.queue] = None

    def put_back(self, batch: Batch) -> None:
        with self.lock:
            batch.queue.put_back(batch)
            self.active[batch.queue] = None

    def finish(
        self, batch: Batch, base_offset: int, append_time: int, error: OttlaError | None
    ) -> None:
        """Tell whoever waits for the batch, and free its memory."""
        if batch.done:
            return
        batch.complete(base_offset, append_time, error)
        with self.lock:
            self.used -= batch.size
            self._batches.discard(batch)
        for flush in self._flushes:
            flush.finished(batch)
        room, self._room = self._room, []
        for waiter in room:
            if not waiter.done():
                waiter.set_result(None)

    def retire(self, queue: PartitionQueue) -> None:
        """Forget that a queue was active if it is idle."""
        with self.lock:
            if queue.idle:
                self.active.pop(queue, None)

    def records(self) -> int:
        """How many records nothing is known of yet."""
        with self.lock:
            waiting = sum(len(each.open.futures) for each in self.active if each.open is not None)
            return waiting + sum(batch.count for batch in self._batches)

    def unsent(self) -> Iterator[Batch]:
        """Every batch that is not in flight, open ones included; they leave their queues."""
        with self.lock:
            found: list[Batch] = []
            for queue in list(self.active):
                self._close(queue)
                found += queue.ready
                queue.ready.clear()
        return iter(found)

    async def room(self) -> None:
        """Wait until some memory was freed."""
        waiter = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        with self.lock:
            free = not self.used
        if not free:
            await waiter

    async def flush(self) -> None:
        """Close what is open, and wait until all that is here now has been told about."""
        flush = _Flush(asyncio.get_running_loop().create_future())
        with self.lock:
            for queue in list(self.active):
                self._close(queue)
            flush.batches.update(self._batches)
        if not flush.batches:
            return
        self._flushes.append(flush)
        self._wake()
        try:
            await flush.done
        finally:
            self._flushes.remove(flush)


_order = attrgetter("order")


class _Flush:
    """A flush: waits for the batches that were there when it began."""

    __slots__ = ("batches", "done")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.batches: set[Batch] = set()

    def finished(self, batch: Batch) -> None:
        self.batches.discard(batch)
        if not self.batches and not self.done.done():
            self.done.set_result(None)

    def replace(self, batch: Batch, halves: list[Batch]) -> None:
        if batch in self.batches:
            self.batches.update(halves)
            self.batches.discard(batch)
