"""AsyncProducer: records and tables to topics, for programs that run in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.client.configuration.clients import ProducerSettings, read_settings
from ottla.client.deadline import Deadline
from ottla.client.producer.batches import Delivery
from ottla.client.producer.core import Data, Headers, ProducerCore, Written
from ottla.client.producer.transactions import GroupMember, PreparedTransaction

if TYPE_CHECKING:
    from ottla.client.formats.base import Format


class AsyncProducer:
    """Writes records and tables to topics.

        async with AsyncProducer("localhost:9092", compression_type="zstd") as producer:
            written = await (await producer.write("orders", table, format="json"))
            sent = await producer.send("orders", b"value", key=b"key")
            delivery = await sent

    `send` and `write` return when the records are in the buffer, with a future that is done when the
    broker has acknowledged them. Options are librdkafka's or the Java client's, with dots or
    underscores. Made inside a running event loop.
    """

    def __init__(
        self, servers: str | Mapping[str, object] | None = None, **options: object
    ) -> None:
        self._core = ProducerCore(read_settings(ProducerSettings, servers, options))

    @property
    def settings(self) -> ProducerSettings:
        """The options, read and checked."""
        return self._core.settings

    async def send(
        self,
        topic: str,
        value: Data = None,
        *,
        key: Data = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers = None,
    ) -> asyncio.Future[Delivery]:
        """Add one record; the future tells where it was written.

        Waits, for max.block.ms at most, while the topic is unknown (TopicNotFound) or the buffer is
        full (BufferFull). `timestamp` is in milliseconds since 1970, or a
        datetime (UTC, if it has no zone).
        """
        future: asyncio.Future[Delivery] = self._core.loop.create_future()
        record = (topic, value, key, partition, timestamp, headers, future)
        if not self._core.send_now(*record):
            await self._core.send_later(*record)
        return future

    async def write(
        self,
        topic: str | None,
        data: Any,
        *,
        format: Format | str | None = None,  # noqa: A002 - the word for it
        key_format: Format | str | None = None,
    ) -> asyncio.Future[Written]:
        """Add all rows of a table: anything Arrow, or a pandas or polars frame.

        Columns are taken by their names: key, value, headers, timestamp, partition, topic (the last
        only where `topic` is None). With a `format` values are encoded from the column `value`, or from
        all other columns. A column that would be lost is a ValueError. The future
        tells what was written, or raises the first failure.
        """
        future: asyncio.Future[Written] = self._core.loop.create_future()
        loop = self._core.loop

        def wait(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

        # In a thread: encoding takes its time, and the loop has answers to read meanwhile.
        await asyncio.to_thread(
            self._core.write, topic, data, format, key_format, _InLoop(future), wait
        )
        return future

    async def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[int]:
        """The topic's partitions; the topic is created if the brokers do that.

        TopicNotFound if it is not there within `timeout` seconds (max.block.ms if not given).
        """
        limit = self.settings.max_block if timeout is None else timeout
        return sorted((await self._core.topic(topic, Deadline.after(limit))).partitions)

    async def flush(self) -> None:
        """Send everything that is buffered now, and wait until it is acknowledged.

        Raises the first failure since the last flush, so that none is missed if futures are not
        looked at.
        """
        await self._core.flush()

    async def close(self, timeout: float | None = None) -> None:
        """Flush and end. What is not delivered within `timeout` seconds fails with ClientClosed."""
        await self._core.close(timeout)

    # Transactions

    async def init_transactions(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get ready for transactions: once, before the first. Older instances are fenced.

        With `keep_prepared` (two-phase commit) a prepared transaction of an older instance is kept
        and returned, for `complete_transaction`.
        """
        return await self._core.transactions.init(keep_prepared=keep_prepared)

    def begin_transaction(self) -> None:
        """Begin; InvalidTransactionState while another is open, or before `init_transactions`."""
        self._core.transactions.begin()

    async def commit_transaction(self) -> None:
        """Deliver everything, then make it visible at once. TransactionFailed: abort it."""
        await self._core.transactions.commit()

    async def abort_transaction(self) -> None:
        """Drop what was not sent; what was sent will never be visible."""
        await self._core.transactions.abort()
        self._core.forget_failures()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], Any], group: GroupMember | str
    ) -> None:
        """Commit a consumer group's offsets (the next to read) with the transaction.

        With `AsyncConsumer.group_member()` they are refused (UnknownMember, Fenced) once the group has
        gone on without that consumer: abort the transaction then. The mere name of the group is not
        checked.
        """
        await self._core.transactions.send_offsets(offsets, group)

    async def prepare_transaction(self, *, may_time_out: bool = False) -> PreparedTransaction:
        """First phase: everything is durable, the decision is somebody else's (KIP-939).

        A prepared transaction stays open when the producer is closed, and whoever knows its id and
        epoch may end it (`Admin.end_transaction`). With `may_time_out` this is had without two-phase
        commit, too; then the broker aborts it when transaction.timeout.ms is over.
        """
        return await self._core.transactions.prepare(may_time_out=may_time_out)

    async def complete_transaction(self, decided: PreparedTransaction) -> bool:
        """Second phase: commit if the prepared transaction is this one, else abort; which it was."""
        return await self._core.transactions.complete(decided)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction that is committed at the end, and aborted if an exception ends it."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            await self.abort_transaction()
            raise
        await self.commit_transaction()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class _InLoop:
    """A future of the loop that may be settled in another thread."""

    delivered = 0

    def __init__(self, future: asyncio.Future[Written]) -> None:
        self._future = future
        self._loop = future.get_loop()

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: Written) -> None:
        self._loop.call_soon_threadsafe(self._settle, result, None)

    def set_exception(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._settle, None, error)

    def _settle(self, result: Written | None, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            assert result is not None
            self._future.set_result(result)
