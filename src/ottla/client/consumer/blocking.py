"""The consumer for those who do not use asyncio: AsyncConsumer's calls, which block.

    with Consumer("localhost:9092", group="billing") as consumer:
        consumer.subscribe("orders")
        for batch in consumer.batches():            # pyarrow.RecordBatch
            ...

    with Consumer("localhost:9092") as consumer:
        table = consumer.read("orders", start="earliest", end="latest")
        frame = polars.DataFrame(consumer.scan("orders"))   # the Arrow C stream interface

It lives in the client's background loop; while the user works on a batch, the next ones are fetched.
A consumer is for one thread at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.consumer.asynchronous import (
    CLOSE_PATIENCE,
    MAX_BYTES,
    MAX_ROWS,
    AsyncConsumer,
)
from ottla.client.consumer.records import ConsumedRecord
from ottla.client.consumer.scanning import Scan
from ottla.client.loop import BackgroundLoop, background_loop
from ottla.client.naming import AnyPartition, Names
from ottla.client.positions import EARLIEST, LATEST, AnyPosition, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _blocking(
    method: Callable[Concatenate[AsyncConsumer, _Parameters], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Consumer, _Parameters], _Result]:
    """A method of AsyncConsumer as one of Consumer: same parameters and words, but it waits."""

    def call(
        self: Consumer, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs
    ) -> _Result:
        return self._loop.run(method(self._consumer, *arguments, **keywords))

    functools.update_wrapper(call, method)
    return call


def _at_once(
    method: Callable[Concatenate[AsyncConsumer, _Parameters], _Result],
) -> Callable[Concatenate[Consumer, _Parameters], _Result]:
    """A method that does not wait, but belongs into the loop, as one of Consumer."""

    def call(
        self: Consumer, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs
    ) -> _Result:
        async def in_loop() -> _Result:
            return method(self._consumer, *arguments, **keywords)

        return self._loop.run(in_loop())

    functools.update_wrapper(call, method)
    return call


class Batches:
    """Batches of rows of one schema: iterate over them, or hand them to whoever takes Arrow streams.

    pandas, polars and DuckDB do (`__arrow_c_stream__`); so does `pyarrow.table`. The rows of a scan come
    once: after the end AlreadyRead is raised.
    """

    def __init__(
        self,
        schema: pa.Schema,
        take: Callable[[], pa.RecordBatch | None],
        close: Callable[[], object] | None = None,
        check: Callable[[], object] | None = None,
    ) -> None:
        self.schema = schema
        self._take = take
        self._close = close
        self._check = check  # raises if there will be no more rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._check is not None:
            self._check()
        return self._rest()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        while (rows := self._take()) is not None:
            yield rows

    def reader(self) -> pa.RecordBatchReader:
        """All that is left, as a reader of Arrow's."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop, if not all of it is wanted."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer:
    """Reads topics as Arrow record batches; for one thread at a time.

        import pyarrow as pa
        from ottla import Admin, Consumer

        with Admin("localhost:9092") as admin:
            admin.create_topic("orders")
        with Consumer("localhost:9092", group="billing") as consumer:
            table = consumer.read("orders", "earliest", "latest")     # pyarrow.Table
            consumer.subscribe("orders")
            for batch in consumer.batches(timeout=0.1):               # pyarrow.RecordBatch
                assert isinstance(batch, pa.RecordBatch)

    Options are librdkafka's or the Java client's, with dots or underscores. See the module.
    """

    def __init__(
        self,
        servers: str | Mapping[str, object] | None = None,
        /,
        *,
        group: str | None = None,
        columns: Names | None = None,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        arrow: bool = True,
        **options: object,
    ) -> None:
        """`servers` is "host:port,…" or a dictionary of options; further options are keywords.

        See AsyncConsumer for the others. ConfigurationError if an option is unknown or makes no sense.
        """

        async def make() -> AsyncConsumer:
            return AsyncConsumer(
                servers,
                group=group,
                columns=columns,
                max_rows=max_rows,
                max_bytes=max_bytes,
                arrow=arrow,
                **options,
            )

        self._loop: BackgroundLoop = background_loop()
        self._consumer = self._loop.run(make())

    subscribe = _blocking(AsyncConsumer.subscribe)
    assign = _blocking(AsyncConsumer.assign)
    unsubscribe = _blocking(AsyncConsumer.unsubscribe)
    next_batch = _blocking(AsyncConsumer.next_batch)
    next_record = _blocking(AsyncConsumer.next_record)
    read = _blocking(AsyncConsumer.read)
    seek = _blocking(AsyncConsumer.seek)
    seek_all = _blocking(AsyncConsumer.seek_all)
    lag = _blocking(AsyncConsumer.lag)
    commit = _blocking(AsyncConsumer.commit)
    committed = _blocking(AsyncConsumer.committed)
    pause = _at_once(AsyncConsumer.pause)
    resume = _at_once(AsyncConsumer.resume)
    positions = _at_once(AsyncConsumer.positions)
    group_member = _at_once(AsyncConsumer.group_member)

    def close(self, *, timeout: float = CLOSE_PATIENCE) -> None:
        """Commit (if that is automatic), leave the group, close the connections.

        The commit may take `timeout` seconds at most. In a forked child this does nothing: the place
        in the group is the parent's.
        """
        if not self._loop.forked:
            self._loop.run(self._consumer.close(timeout=timeout))

    @property
    def settings(self) -> ConsumerSettings:
        """The options, read and checked."""
        return self._consumer.settings

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._consumer.schema

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return self._consumer.assignment

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to now."""
        return self._consumer.subscription

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is handed out now."""
        return self._consumer.paused

    def position(self, partition: AnyPartition) -> int:
        """The offset after the last one handed out; ValueError if the partition is not assigned."""
        return self._consumer.position(partition)

    def batches(self, *, timeout: float | None = None) -> Batches:
        """Batches of rows, for ever; with `timeout`, until nothing has come for so many seconds.

        Raises what `next_batch` does.
        """
        return Batches(self.schema, lambda: self.next_batch(timeout=timeout))

    def scan(
        self,
        topic: str,
        start: AnyPosition | Mapping[int, AnyPosition] = EARLIEST,
        end: AnyPosition | Mapping[int, AnyPosition] = LATEST,
        *,
        columns: Names | None = None,
    ) -> Batches:
        """What `read` gives, as batches one after the other, with bounded memory; raises the same."""
        scan: Scan = self._loop.run(self._consumer.scan(topic, start, end, columns=columns))
        return Batches(
            scan.schema,
            lambda: self._loop.run(scan.next_batch()),
            lambda: self._loop.run(scan.close()),
            scan.check_readable,
        )

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records, one after the other, for ever."""
        while True:
            record = self.next_record()
            if record is not None:
                yield record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
