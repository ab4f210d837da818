"""Record batches on their way to a partition, and the queue they wait in.

Single records gather in an `OpenBatch`, columns of Python objects that are encoded in one go when the
batch is sent; tables come as `Batch`es that are encoded already. No I/O here.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ottla.client.errors import OttlaError
from ottla.client.lazy import lazy
from ottla.client.producer.futures import RecordFuture, settle
from ottla.record.batch import Record, build_batch, records
from ottla.record.compression.codecs import Codec

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy("pyarrow")

# A guess at what a record takes beside its key, value and headers; memory is counted with it.
RECORD_OVERHEAD = 12
HEADER_OVERHEAD = 4
# From so many records on it pays to build Arrow columns for the kernels.
_WORTH_COLUMNS = 24
# And so many before it pays to import pyarrow for that, in a process that has done without.
_WORTH_IMPORTING = 50_000
_UNBOUNDED = 2**31 - 1
LARGEST_SEQUENCE = 0x7FFFFFFF  # the next one is 0

Header: TypeAlias = tuple[str, bytes | None]
DeliveryFuture: TypeAlias = "asyncio.Future[Delivery] | RecordFuture"


class Delivery(NamedTuple):
    """Where a record was written. The offset is -1 if the broker did not say (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds: the record's, or the broker's if the topic stamps records


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch, as the broker gave them."""

    producer_id: int
    epoch: int


NOBODY = ProducerIdentity(-1, -1)
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Compression:
    """How batches are compressed."""

    codec: Codec
    level: int | None


class Completion(Protocol):
    """Somebody who waits for a batch."""

    def __call__(
        self, batch: Batch, base_offset: int, append_time: int, error: OttlaError | None
    ) -> None:
        """Called once per batch, with its first offset and append time, or with what went wrong."""

    def part(self, first: int, end: int) -> Completion:
        """Who waits for these of its records, now that they are a batch of their own."""


class Batch:
    """Encoded records of one partition."""

    __slots__ = (
        "attempts",
        "completion",
        "count",
        "created",
        "data",
        "done",
        "identity",
        "order",
        "queue",
        "sequence",
        "size",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        data: memoryview,
        count: int,
        size: int,
        created: float,
        completion: Completion,
    ) -> None:
        self.queue = queue
        self.data = data
        self.count = count
        self.size = size  # what it holds of the buffer's memory
        self.created = created  # monotonic
        self.completion = completion
        self.attempts = 0  # times it was sent
        # Its place among the batches of its partition; halves, of halves too, are at their whole's.
        self.order: tuple[int, ...] = ()
        self.sequence = -1  # of its first record, once it was given one
        self.identity = NOBODY  # whose sequence it is
        self.done = False  # whoever waits for it has been told

    def complete(self, base_offset: int, append_time: int, error: OttlaError | None) -> None:
        if not self.done:
            self.done = True
            # Its memory is for others now, however long somebody holds on to the batch.
            self.data = _NOTHING
            self.completion(self, base_offset, append_time, error)

    def halves(self, compression: Compression) -> list[Batch]:
        """Two batches of half the records each; together they take this one's place."""
        contents = list(records(self.data))
        middle = len(contents) // 2
        made: list[Batch] = []
        for first, part in ((0, contents[:middle]), (middle, contents[middle:])):
            data = _built([each._replace(offset=at) for at, each in enumerate(part)], compression)
            completion = self.completion.part(first, first + len(part))
            share = self.size // 2 if first else self.size - self.size // 2
            half = Batch(self.queue, data, len(part), share, self.created, completion)
            half.order = (*self.order, len(made))
            half.identity = self.identity
            if self.sequence >= 0:
                half.sequence = (self.sequence + first) & LARGEST_SEQUENCE
            made.append(half)
        return made


class Deliveries:
    """The completion of single records: each has a future of its own."""

    __slots__ = ("condition", "futures", "timestamps")

    def __init__(
        self,
        futures: list[DeliveryFuture],
        timestamps: list[int],
        condition: threading.Condition,
    ) -> None:
        self.futures = futures
        self.timestamps = timestamps
        self.condition = condition

    def part(self, first: int, end: int) -> Deliveries:
        return Deliveries(self.futures[first:end], self.timestamps[first:end], self.condition)

    def __call__(
        self, batch: Batch, base_offset: int, append_time: int, error: OttlaError | None
    ) -> None:
        outcomes: Iterable[Delivery | OttlaError] = repeat(error) if error is not None else ()
        if error is None:
            topic, partition = batch.queue.topic, batch.queue.partition
            offsets = repeat(-1) if base_offset < 0 else count(base_offset)
            times = repeat(append_time) if append_time >= 0 else self.timestamps
            outcomes = map(Delivery, repeat(topic), repeat(partition), offsets, times)
        blocking: list[tuple[RecordFuture, Delivery | OttlaError]] = []
        for future, outcome in zip(self.futures, outcomes, strict=False):
            if isinstance(future, RecordFuture):
                blocking.append((future, outcome))
            elif future.done():
                continue  # a caller has cancelled it; the record is written nevertheless
            elif isinstance(outcome, OttlaError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if blocking:
            settle(self.condition, blocking)


class OpenBatch:
    """Single records of one partition that wait for company."""

    __slots__ = (
        "condition",
        "created",
        "futures",
        "has_headers",
        "headers",
        "keys",
        "size",
        "timestamps",
        "values",
    )

    def __init__(self, created: float) -> None:
        self.created = created
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[tuple[Header, ...]] = []
        self.timestamps: list[int] = []
        self.futures: list[DeliveryFuture] = []
        self.size = 0
        self.has_headers = False
        self.condition = threading.Condition()  # of the futures that block

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        timestamp: int,
        future: DeliveryFuture,
        size: int,
    ) -> None:
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        if headers:
            self.has_headers = True
        self.timestamps.append(timestamp)
        self.futures.append(future)
        self.size += size
        if isinstance(future, RecordFuture):
            future.join(self.condition)

    def closed(self, queue: PartitionQueue, compression: Compression) -> Batch:
        total = len(self.futures)
        if not _columns_are_quicker(total):
            rows = zip(self.timestamps, self.keys, self.values, self.headers, strict=True)
            data = _built([Record(at, *row) for at, row in enumerate(rows)], compression)
        else:
            from ottla.record.columns import encode

            (encoded,) = encode(
                pa.array(self.values, pa.binary()),
                keys=pa.array(self.keys, pa.binary()),
                headers=self._headers_column(),
                timestamps=pa.array(self.timestamps, pa.int64()),
                codec=compression.codec,
                level=compression.level,
                max_bytes=_UNBOUNDED,
            )
            data = encoded.data
        deliveries = Deliveries(self.futures, self.timestamps, self.condition)
        return Batch(queue, data, total, self.size, self.created, deliveries)

    def _headers_column(self) -> pa.Array | None:
        if not self.has_headers:
            return None
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        rows = [[{"key": key, "value": value} for key, value in each] for each in self.headers]
        return pa.array(rows, kind)


_plain_records = 0  # that were encoded without columns so far


def _columns_are_quicker(total: int) -> bool:
    """Whether a batch of so many records is encoded by columns, which takes Arrow: that is imported once
    there have been many records."""
    global _plain_records
    if "pyarrow" in sys.modules:
        return total >= _WORTH_COLUMNS
    _plain_records += total
    return _plain_records > _WORTH_IMPORTING


def _built(contents: list[Record], compression: Compression) -> memoryview:
    # Writable: the producer's id and sequence are put in when the batch is sent.
    batch = build_batch(contents, codec=compression.codec, level=compression.level)
    return memoryview(bytearray(batch))


class PartitionQueue:
    """What waits for, and what is under way to, one partition.

    Batches leave in order. With an idempotent producer they are numbered: `next_sequence` is that of
    the next fresh batch, counted under `identity`. A batch that has to be sent again goes back to its
    place in `ready`.
    """

    __slots__ = (
        "connection",
        "failures",
        "identity",
        "in_flight",
        "next_order",
        "next_sequence",
        "open",
        "partition",
        "ready",
        "reset",
        "retry_at",
        "topic",
        "watched",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: OpenBatch | None = None
        self.ready: deque[Batch] = deque()  # by order
        self.in_flight: list[Batch] = []  # by order
        self.next_order = 0
        self.identity = NOBODY
        self.next_sequence = 0
        # A batch was given up, so its numbers are missing: begin anew under another epoch.
        self.reset = False
        self.retry_at = 0.0  # monotonic; nothing is sent before
        self.failures = 0  # in a row
        self.connection: Any = None  # the one that what is in flight went out on
        self.watched = -1  # how many `ready` batches a writer waits for; -1 if none does

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def about(self) -> str:
        return f"partition {self.partition} of topic '{self.topic}'"

    @property
    def idle(self) -> bool:
        return self.open is None and not self.ready and not self.in_flight

    def add(self, batch: Batch) -> None:
        batch.order = (self.next_order,)
        self.next_order += 1
        self.ready.append(batch)

    def put_back(self, batch: Batch) -> None:
        """Back to where it was: before everything that came later."""
        at = 0
        for at, other in enumerate(self.ready):  # noqa: B007 - the position is used below
            if other.order > batch.order:
                break
        else:
            at = len(self.ready)
        self.ready.insert(at, batch)

    def landed(self, batch: Batch) -> None:
        """The batch is not in flight any more."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        if not self.in_flight:
            self.connection = None
