"""The producer's works, shared by the asynchronous and the blocking class.

Adding records (`send_now`, `write`) is plain code that any thread may run; where it has to wait, it
says so (`send_now` gives False) or asks `wait` to do the waiting. Everything that talks to brokers runs
in the event loop that made it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ProducerSettings
from ottla.client.deadline import Deadline
from ottla.client.errors import (
    BufferFull,
    ClientClosed,
    ConfigurationError,
    OttlaError,
    RecordTooLarge,
    TimedOut,
    TopicNotFound,
    broker_error,
)
from ottla.client.formats import format_named
from ottla.client.lazy import lazy
from ottla.client.metadata import TopicInfo
from ottla.client.producer import leftovers
from ottla.client.producer.accumulator import Accumulator, record_size
from ottla.client.producer.batches import (
    Batch,
    Compression,
    DeliveryFuture,
    Header,
    PartitionQueue,
)
from ottla.client.producer.identity import IdempotentIdentity, Identity
from ottla.client.producer.partitioners import Partitioner, checked, partitioner_for
from ottla.client.producer.sender import Sender
from ottla.client.producer.transactions import Transactions
from ottla.client.times import milliseconds_of
from ottla.protocol.errors import ErrorCode
from ottla.record.compression.codecs import Codec

if TYPE_CHECKING:
    import numpy as np

    from ottla.client.formats.base import Format
    from ottla.client.producer.tables import Columns
    from ottla.record.columns import BufferPool, Encoded
else:
    np = lazy("numpy")

Data: TypeAlias = bytes | bytearray | memoryview | str | None
Headers: TypeAlias = Mapping[str, Data] | Iterable[tuple[str, Data]] | None
# Runs a coroutine in the event loop and waits for it.
Wait: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]

_MOST_IN_FLIGHT = 5  # of an idempotent producer: brokers remember as many batches of each
# Rows of a table for several partitions are encoded in pieces of about so many bytes, so that sending
# begins early for all of them.
_PIECE = 8 * 1024 * 1024
# Bytes of a table that are encoded before the sender has taken them: so few that the processor's cache
# still has them when they are sent. The writer waits for the sender to catch up; not for long, since a
# sender that is slow has other reasons.
_AHEAD = 6 * 1024 * 1024
_CATCHING_UP = 0.05  # seconds
_KEPT = 16 * 1024 * 1024  # bytes of buffers that are kept for the next batches
_LATEST = 2**62  # milliseconds
# As librdkafka has it: -1 is the codec's own default, and what is above the highest is the highest.
_DEFAULT_LEVEL = -1
_LEVELS = {Codec.GZIP: (0, 9), Codec.LZ4: (0, 12), Codec.ZSTD: (-131072, 22)}


@dataclass(slots=True)
class Written:
    """A table that was written: how much, and where (first offset and the one after the last)."""

    records: int = 0
    batches: int = 0
    bytes: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class WriteFuture(Future[Written]):
    """Done when all of a table is written, or some of it has failed."""

    delivered = 0  # rows that are acknowledged so far; after a failure, that were


class _WriteProgress:
    """The completion of a table's batches: one future for all of them."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._written = Written()
        self._left = 1  # batches, and one for the table itself until all of it was added
        self._error: OttlaError | None = None
        self._lock = threading.Lock()
        self.paced = True  # so far the sender has kept up with the writer

    def added(self, batch: Batch) -> None:
        with self._lock:
            self._left += 1
            self._written.records += batch.count
            self._written.batches += 1
            self._written.bytes += len(batch.data)

    def __call__(
        self, batch: Batch, base_offset: int, append_time: int, error: OttlaError | None
    ) -> None:
        del append_time
        if error is not None:
            self._error = self._error or error
            self.finished()
            return
        self._future.delivered += batch.count
        if base_offset >= 0:
            place = (batch.queue.topic, batch.queue.partition)
            end = base_offset + batch.count
            first, last = self._written.offsets.get(place, (base_offset, end))
            self._written.offsets[place] = (min(first, base_offset), max(last, end))
        self.finished()

    def part(self, first: int, end: int) -> _WriteProgress:
        # A batch is cut in two: the first part takes its place, the second is one more.
        del end
        if first:
            with self._lock:
                self._left += 1
                self._written.batches += 1
        return self

    def finished(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if self._future.done():
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._written)


class ProducerCore:
    """Settings, buffer, sender and identity of one producer. Made inside of its event loop."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.cluster = Cluster(settings)
        self.closed = False
        self._compression = _compression(settings)
        self.accumulator = Accumulator(
            limit=settings.buffer_limit,
            batch_size=min(settings.batch_size, settings.request_size),
            batch_records=settings.batch_records,
            compression=self._compression,
            wake=self._wake,
        )
        self.identity = self._make_identity()
        self.sender = Sender(
            self.cluster, settings, self.accumulator, self.identity, self._batch_failed
        )
        self._topics: set[str] = set()
        self._partitioners: dict[str, Partitioner] = {}
        partitioner_for(settings.partitioner, settings.batch_size)  # a wrong name is told at once
        leftovers.opened(self, None)
        self._usable: dict[str, tuple[float, list[int]]] = {}
        self._woken = False
        self.first_error: OttlaError | None = None  # since the last flush
        self.lost = 0  # records that could not be written, since the last flush
        self._buffers: BufferPool | None = None

    def _make_identity(self) -> Identity:
        settings = self.settings
        if settings.transactional_id is not None:
            if settings.idempotence is False or settings.acks != -1:
                raise ConfigurationError("transactions need enable.idempotence=true and acks=all")
            if settings.in_flight > _MOST_IN_FLIGHT:
                raise ConfigurationError(_TOO_MANY)
            return Transactions(
                self.cluster, settings, self._schedule, self._abandon, self.accumulator.flush
            )
        possible = settings.acks == -1 and settings.in_flight <= _MOST_IN_FLIGHT
        if settings.idempotence and not possible:
            raise ConfigurationError(
                "enable.idempotence=true needs acks=all" if settings.acks != -1 else _TOO_MANY
            )
        if settings.idempotence is False or not possible:
            return Identity()
        return IdempotentIdentity(self.cluster, settings, self._schedule, self._abandon)

    @property
    def transactional_id(self) -> str | None:
        return self.settings.transactional_id

    @property
    def transactions(self) -> Transactions:
        if not isinstance(self.identity, Transactions):
            raise ConfigurationError("transactions need the option transactional.id")
        return self.identity

    # Waking the sender

    def _wake(self) -> None:
        # Records come much faster than the loop turns, so only the first one calls.
        if self._woken:
            return
        self._woken = True
        if threading.get_ident() == self._thread:
            self.loop.call_soon(self._on_wake)
        else:
            self.loop.call_soon_threadsafe(self._on_wake)

    def _on_wake(self) -> None:
        self._woken = False
        self.sender.schedule()

    def _schedule(self) -> None:
        self.sender.schedule()

    def _abandon(self, problem: OttlaError) -> None:
        self.sender.abandon(problem)

    def _batch_failed(self, batch: Batch, problem: OttlaError) -> None:
        self.first_error = self.first_error or problem
        self.lost += batch.count
        self.identity.batch_failed(problem)

    # Single records

    def send_now(
        self,
        topic: str,
        value: Data,
        key: Data,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers,
        future: DeliveryFuture,
    ) -> bool:
        """Add a record if that is possible without waiting; whether it was."""
        self._check_open()
        info = self.cluster.metadata.topics.get(topic)
        if info is None:
            return False
        key_bytes = key if key is None or type(key) is bytes else _bytes(key)
        value_bytes = value if value is None or type(value) is bytes else _bytes(value)
        pairs = _pairs(headers) if headers else ()
        size = record_size(key_bytes, value_bytes, pairs)
        if size > self.settings.request_size:
            raise self._too_large(size, topic)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif isinstance(timestamp, datetime):
            timestamp = milliseconds_of(timestamp)
        else:
            timestamp = _whole(timestamp, "a timestamp is milliseconds since 1970 or a datetime")
            if not 0 <= timestamp <= _LATEST:
                raise ValueError(f"a timestamp is milliseconds since 1970, not {timestamp}")
        if partition is None:
            partition = self._partitioner(topic).one(
                key_bytes, size, len(info.partitions), self._usable_partitions(info)
            )
        else:
            partition = _whole(partition, "a partition is a whole number")
            if partition not in info.partitions:
                raise _no_partition(info, partition)
        return self.accumulator.append(
            self.accumulator.queue(topic, partition),
            key_bytes,
            value_bytes,
            pairs,
            timestamp,
            future,
            size,
        )

    async def send_later(
        self,
        topic: str,
        value: Data,
        key: Data,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers,
        future: DeliveryFuture,
    ) -> None:
        """Add a record, waiting for the topic's metadata or for room."""
        deadline = Deadline.after(self.settings.max_block)
        await self.topic(topic, deadline)
        while not self.send_now(topic, value, key, partition, timestamp, headers, future):
            await self._room(deadline)

    # Tables

    def write(
        self,
        topic: str | None,
        data: Any,
        value_format: Format | str | None,
        key_format: Format | str | None,
        future: Any,
        wait: Wait,
    ) -> None:
        """Add all rows of a table; in any thread but the loop's, which `wait` runs things in."""
        from ottla.client.producer.tables import by_topic, columns_of, record_batches

        values = format_named(value_format) if isinstance(value_format, str) else value_format
        keys = format_named(key_format) if isinstance(key_format, str) else key_format
        progress = _WriteProgress(future)
        try:
            for batch in record_batches(data):
                columns = columns_of(batch, values, keys, topic)
                for name, rows in by_topic(columns, topic):
                    self._write_topic(name, columns, rows, progress, wait)
        finally:
            progress.finished()

    def _write_topic(
        self,
        topic: str,
        columns: Columns,
        rows: np.ndarray[Any, Any] | None,
        progress: _WriteProgress,
        wait: Wait,
    ) -> None:
        from ottla.client.producer.tables import by_partition

        self._check_open()
        info = self.cluster.metadata.topics.get(topic)
        if info is None:
            info = wait(self.topic(topic, Deadline.after(self.settings.max_block)))
        if len(info.partitions) == 1 and not (
            columns.partitions is not None or self._partitioner(topic).always_asked
        ):
            self._write_partition(info, 0, columns, rows, progress, wait)
            return
        sizes = columns.sizes()
        if rows is not None:
            sizes = sizes[rows]
        partitions = self._partitions(info, columns, rows, sizes)
        ends = np.cumsum(sizes)
        first = 0
        while first < len(sizes):
            done = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, done + _PIECE)), first + 1)
            if rows is not None:
                chosen = rows[first:last]
            elif first == 0 and last >= len(sizes):
                chosen = None
            else:
                chosen = np.arange(first, min(last, len(sizes)))
            for partition, some in by_partition(partitions[first:last], chosen):
                self._write_partition(info, partition, columns, some, progress, wait)
            first = last

    def _partitions(
        self,
        info: TopicInfo,
        columns: Columns,
        rows: np.ndarray[Any, Any] | None,
        sizes: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        from ottla.client.producer.tables import true_rows

        count = len(info.partitions)
        named = columns.partitions
        if named is not None and rows is not None:
            named = named.take(rows)
        if named is not None and not named.null_count:
            return checked(named, len(sizes), count)
        keys = columns.keys
        if keys is not None and rows is not None:
            keys = keys.take(rows)
        chosen = self._partitioner(info.name).many(
            keys, sizes, count, self._usable_partitions(info)
        )
        if named is not None and named.null_count < len(named):
            given = true_rows(named.is_valid())
            chosen[given] = checked(named.drop_null(), len(given), count)
        return chosen

    def _write_partition(
        self,
        info: TopicInfo,
        partition: int,
        columns: Columns,
        rows: np.ndarray[Any, Any] | None,
        progress: _WriteProgress,
        wait: Wait,
    ) -> None:
        from ottla.record.columns import encode_in_turn

        queue = self.accumulator.queue(info.name, partition)
        size = self.accumulator.batch_size
        ahead = max(_AHEAD // size // len(info.partitions), 2)
        for some in encode_in_turn(
            columns.values,
            keys=columns.keys,
            headers=columns.headers,
            timestamps=columns.timestamps,
            count=columns.count,
            rows=rows,
            codec=self._compression.codec,
            level=self._compression.level,
            max_bytes=size,
            pool=self._pool(),
        ):
            for encoded in some:
                self._add_encoded(queue, encoded, progress, wait)
            if progress.paced and len(queue.ready) >= ahead:
                progress.paced = self.accumulator.wait_for_sender(queue, ahead // 2, _CATCHING_UP)

    def _pool(self) -> BufferPool:
        if self._buffers is None:
            from ottla.record.columns import BufferPool, buffer_size

            size = buffer_size(self.accumulator.batch_size)
            kept = min(_KEPT, self.accumulator.limit // 4) // size
            self._buffers = BufferPool(size, kept)
        return self._buffers

    def _add_encoded(
        self, queue: PartitionQueue, encoded: Encoded, progress: _WriteProgress, wait: Wait
    ) -> None:
        size = len(encoded.data)
        if size > self.settings.request_size:
            raise self._too_large(size, queue.topic)
        batch = Batch(queue, encoded.data, encoded.row_count, size, time.monotonic(), progress)
        self._check_open()
        progress.added(batch)
        if not self.accumulator.add(batch):
            try:
                wait(self._add(batch))
            except BaseException:
                progress.finished()
                raise

    async def _add(self, batch: Batch) -> None:
        deadline = Deadline.after(self.settings.max_block)
        while not self.accumulator.add(batch):
            await self._room(deadline)
            self._check_open()
        batch.created = time.monotonic()

    # Waiting

    async def topic(self, name: str, deadline: Deadline) -> TopicInfo:
        """The topic, created if the brokers do that, within the time.

        One that is not there is waited for, but not for long: it may have been made a moment ago.
        """
        try:
            info = await self.cluster.topic(
                name,
                wait=True,
                timeout=deadline.remaining,
                topic_wait=self.settings.topic_wait,
                allow_auto_create=self.settings.auto_create_topics,
            )
        except TimedOut as error:
            if isinstance(error.__cause__, TopicNotFound):
                raise error.__cause__ from None
            raise
        if name not in self._topics:
            # So that new partitions are seen, and that it is gone when it is.
            self._topics.add(name)
            self.cluster.watch(self._topics)
        return info

    async def _room(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.remaining):
                await self.accumulator.room()
        except TimeoutError:
            problem = self.identity.last_problem
            why = f"; the last problem: {problem}" if problem is not None else ""
            raise BufferFull(
                f"{self.accumulator.used} bytes of records wait to be sent (buffer.memory allows "
                f"{self.accumulator.limit}), and none could be sent for "
                f"{self.settings.max_block:g} s{why}"
            ) from problem

    async def flush(self) -> None:
        """Send all that is buffered; raises the first failure since the last flush."""
        await self.accumulator.flush()
        error, self.first_error, self.lost = self.first_error, None, 0
        if error is not None:
            raise error

    def forget_failures(self) -> None:
        """Forget failed records: an aborted transaction reports none."""
        self.first_error, self.lost = None, 0

    async def close(self, timeout: float | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        leftovers.closed(self)
        problem: OttlaError | None = None
        try:
            async with asyncio.timeout(timeout):
                if isinstance(self.identity, Transactions):
                    await self.identity.leave()
                else:
                    await self.accumulator.flush()
                    problem = self.first_error
        except OttlaError as error:
            problem = error
        except TimeoutError:
            problem = TimedOut(f"not all records were sent within {timeout:g} s")
        finally:
            self.sender.abandon(ClientClosed("the producer was closed"))
            await self.identity.close()
            await self.sender.close()
            await self.cluster.close()
        if problem is not None:
            raise problem

    # Parts

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the producer was closed")
        self.identity.check_open()

    def _partitioner(self, topic: str) -> Partitioner:
        found = self._partitioners.get(topic)
        if found is None:
            made = partitioner_for(self.settings.partitioner, self.accumulator.batch_size)
            found = self._partitioners.setdefault(topic, made)
        return found

    def _usable_partitions(self, info: TopicInfo) -> list[int]:
        """The partitions that have a leader."""
        known = self._usable.get(info.name)
        if known is None or known[0] != info.updated_at:
            usable = [each.partition for each in info.partitions.values() if each.leader >= 0]
            known = self._usable[info.name] = (info.updated_at, usable)
        return known[1]

    def _too_large(self, size: int, topic: str) -> RecordTooLarge:
        return RecordTooLarge(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record of {size} bytes is larger than message.max.bytes "
            f"({self.settings.request_size}) allows",
            f"topic '{topic}'",
        )


def _compression(settings: ProducerSettings) -> Compression:
    codec, level = Codec[settings.compression.upper()], settings.compression_level
    if level is None or level == _DEFAULT_LEVEL or codec not in _LEVELS:
        return Compression(codec, None)
    lowest, highest = _LEVELS[codec]
    if level < lowest:
        raise ConfigurationError(
            f"compression.level of {settings.compression} is {lowest} to {highest} (or "
            f"{_DEFAULT_LEVEL}, the default), not {level}"
        )
    return Compression(codec, min(level, highest))


_TOO_MANY = (
    f"an idempotent producer has at most {_MOST_IN_FLIGHT} requests in flight "
    "(max.in.flight.requests.per.connection)"
)


def _no_partition(info: TopicInfo, partition: int) -> OttlaError:
    return broker_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no partition {partition}; there are {len(info.partitions)}",
        f"topic '{info.name}'",
    )


def _whole(number: int, what: str) -> int:
    """The number as an int; TypeError if it is none. That is found out here: a batch with it could
    not be encoded, and nothing after it would be sent."""
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"{what}, not {number!r}") from None


def _bytes(data: Data) -> bytes | None:
    if isinstance(data, str):
        return data.encode()
    if data is None or isinstance(data, bytes | bytearray | memoryview):
        return data if data is None else bytes(data)
    raise TypeError(f"keys and values are bytes or text, not {type(data).__name__}")


def _pairs(headers: Headers) -> tuple[Header, ...]:
    if headers is None:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    pairs = []
    for name, value in items:
        name.encode()  # what is not text, or cannot be written as UTF-8, is told here
        pairs.append((name, _bytes(value)))
    return tuple(pairs)
