"""Producer: AsyncProducer's twin for programs without an event loop. It only waits."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.client.configuration.clients import ProducerSettings
from ottla.client.loop import background_loop
from ottla.client.producer import leftovers
from ottla.client.producer.asynchronous import AsyncProducer
from ottla.client.producer.batches import Delivery
from ottla.client.producer.core import Data, Headers, WriteFuture
from ottla.client.producer.futures import RecordFuture
from ottla.client.producer.transactions import GroupMember, PreparedTransaction

if TYPE_CHECKING:
    from ottla.client.formats.base import Format


class Producer:
    """Writes records and tables to topics; safe to use from several threads.

        import pyarrow as pa
        from ottla import Producer

        with Producer("localhost:9092", compression_type="zstd") as producer:
            table = pa.table({"key": ["ann", "bob"], "price": [2.5, 4.0]})
            written = producer.write("orders", table, format="json").result()
            assert written.records == 2
            delivery = producer.send("orders", b"value", key=b"key").result()

    `send` and `write` return when the records are in the buffer, with a future that is done when the
    broker has acknowledged them. Options are librdkafka's or the Java client's, with dots or
    underscores. A producer that nobody closes is closed when the interpreter ends. See AsyncProducer for
    what the methods do.
    """

    def __init__(
        self, servers: str | Mapping[str, object] | None = None, **options: object
    ) -> None:
        self._loop = background_loop()

        async def make() -> AsyncProducer:
            return AsyncProducer(servers, **options)

        self._producer = self._loop.run(make())
        self._core = self._producer._core
        leftovers.opened(self._core, self._loop)

    @property
    def settings(self) -> ProducerSettings:
        """The options, read and checked."""
        return self._core.settings

    def send(
        self,
        topic: str,
        value: Data = None,
        *,
        key: Data = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers = None,
    ) -> concurrent.futures.Future[Delivery]:
        """Add one record; the future tells where it was written.

        Waits, for max.block.ms at most, while the topic is unknown (TopicNotFound) or the buffer is full
        (BufferFull). `timestamp` is in milliseconds since 1970, or a
        datetime (UTC, if it has no zone). The future raises what the broker said
        (RecordTooLarge, NotAuthorized, …) or DeliveryTimeout.
        """
        if self._loop.forked:
            self._loop.check_own()
        future = RecordFuture()
        record = (topic, value, key, partition, timestamp, headers, future)
        if not self._core.send_now(*record):
            self._loop.run(self._core.send_later(*record))
        return future

    def write(
        self,
        topic: str | None,
        data: Any,
        *,
        format: Format | str | None = None,  # noqa: A002 - the word for it
        key_format: Format | str | None = None,
    ) -> WriteFuture:
        """Add all rows of a table: anything Arrow, or a pandas or polars frame.

        Columns are taken by their names: key, value, headers, timestamp, partition, topic (the last
        only where `topic` is None). With a `format` values are encoded from the column `value`, or from
        all other columns. A column that would be lost is a ValueError. The future
        tells what was written, or raises the first failure, as that of `send` does. TypeError or
        ValueError for what is no table, or has columns that nobody asked for.
        """
        self._loop.check_own()
        future = WriteFuture()
        self._core.write(topic, data, format, key_format, future, self._loop.run)
        return future

    def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[int]:
        """The topic's partitions; the topic is created if the brokers do that.

        TopicNotFound if it is not there within `timeout` seconds (max.block.ms if not given).
        """
        return self._loop.run(self._producer.partitions_for(topic, timeout=timeout))

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that is buffered now, and wait until it is acknowledged.

        Raises the first failure since the last flush that nobody has looked at, and TimeoutError if it
        takes longer than `timeout` seconds.
        """
        self._loop.run(self._producer.flush(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush and end. What is not delivered within `timeout` seconds fails with ClientClosed."""
        if self._loop.forked:
            return  # what is in the buffer, the parent sends
        self._loop.run(self._producer.close(timeout))

    def init_transactions(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get ready for transactions: once, before the first. Older instances are fenced.

        With `keep_prepared` (two-phase commit) a prepared transaction of an older instance is kept and
        returned. ConfigurationError without transactional.id.
        """
        return self._loop.run(self._producer.init_transactions(keep_prepared=keep_prepared))

    def begin_transaction(self) -> None:
        """Begin; InvalidTransactionState while another is open, or before `init_transactions`."""
        self._loop.check_own()
        self._producer.begin_transaction()

    def commit_transaction(self) -> None:
        """Deliver everything, then make it visible at once. TransactionFailed: abort it."""
        self._loop.run(self._producer.commit_transaction())

    def abort_transaction(self) -> None:
        """Drop what was not sent; what was sent will never be visible. Fenced: it is over."""
        self._loop.run(self._producer.abort_transaction())

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], Any], group: GroupMember | str
    ) -> None:
        """Commit a consumer group's offsets (the next to read) with the transaction.

        With `Consumer.group_member()` they are refused (UnknownMember, Fenced) once the group has gone
        on without that consumer: abort the transaction then. The mere name of the group is not checked.
        """
        self._loop.run(self._producer.send_offsets_to_transaction(offsets, group))

    def prepare_transaction(self, *, may_time_out: bool = False) -> PreparedTransaction:
        """First phase: everything is durable, the decision is somebody else's (KIP-939).

        See AsyncProducer. TransactionFailed: abort it.
        """
        return self._loop.run(self._producer.prepare_transaction(may_time_out=may_time_out))

    def complete_transaction(self, decided: PreparedTransaction) -> bool:
        """Second phase: commit if the prepared transaction is this one, else abort; which it was."""
        return self._loop.run(self._producer.complete_transaction(decided))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction that is committed at the end, and aborted if an exception ends it."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self.abort_transaction()
            raise
        self.commit_transaction()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
