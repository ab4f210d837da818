"""Reading from brokers: what the tasks of a query do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from ottla.client.cluster import Cluster
from ottla.client.consumer.fetching import Fetcher
from ottla.client.consumer.partitions import ReadPartition
from ottla.client.errors import OttlaError, TimedOut, TopicNotFound
from ottla.client.loop import background_loop
from ottla.client.positions import EARLIEST as FIRST
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID, uuid_from_text
from pyspark_ottla.broker import SourceAdmin, cluster_of
from pyspark_ottla.options import SourceOptions
from pyspark_ottla.ranges import Range, lost
from pyspark_ottla.rows import MAX_BYTES, MAX_ROWS, SparkRows

_LANE: Final = "spark"


class _NothingLeft(OttlaError):
    """The rest of a range is gone, and that is no error (failOnDataLoss is false)."""


def read(piece: Range, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, while the next ones are fetched. It ends where the piece does, by
    position: the last offsets may be those of transactions' marks, which are no rows."""
    loop = background_loop()
    try:
        reading = loop.run(_Reading.begin(piece, options))
    except TopicNotFound:
        _lost_topic(piece, options)
        return
    try:
        while (rows := loop.run(reading.next_rows())) is not None:
            yield rows
    finally:
        loop.run(reading.close())


def _lost_topic(piece: Range, options: SourceOptions) -> None:
    lost(
        f"{piece.partition} is gone: its topic was deleted, and made anew if there is one of this name",
        options,
    )


class _Reading:
    """One piece under reading, inside of the client's event loop."""

    def __init__(self, cluster: Cluster, piece: Range, options: SourceOptions) -> None:
        self._cluster = cluster
        self._piece = piece
        self._options = options
        self._fetcher = Fetcher(
            cluster,
            options.settings,
            SparkRows(options.include_headers, options.values),
            reset=self._go_on,
            lane=_LANE,
            max_rows=MAX_ROWS,
            max_bytes=MAX_BYTES,
        )

    @classmethod
    async def begin(cls, piece: Range, options: SourceOptions) -> _Reading:
        cluster = await cluster_of(options)
        # What an earlier task learnt may be outdated: the topic may have been made anew since.
        cluster.metadata.forget(piece.partition.topic)
        found = (await cluster.topic(piece.partition.topic)).topic_id
        if piece.topic_id is not None and found not in (ZERO_UUID, uuid_from_text(piece.topic_id)):
            raise TopicNotFound(ErrorCode.UNKNOWN_TOPIC_ID, "the topic is another one by now")
        reading = cls(cluster, piece, options)
        state = ReadPartition(piece.partition, piece.start, piece.start, end_offset=piece.end)
        reading._fetcher.add([state])
        return reading

    async def next_rows(self) -> pa.RecordBatch | None:
        queue = self._fetcher.queue
        while True:
            result = queue.take()
            if result is None:
                if self._fetcher.exhausted:
                    return None
                await self._news()
            elif isinstance(result.error, _NothingLeft):
                return None
            elif isinstance(result.error, TopicNotFound):
                _lost_topic(self._piece, self._options)
                return None
            elif result.error is not None:
                raise result.error
            else:
                result.hand_out()
                if isinstance(result.rows, pa.RecordBatch) and result.rows.num_rows:
                    return result.rows

    async def _news(self) -> None:
        patience = self._options.poll_timeout
        try:
            async with asyncio.timeout(patience):
                await self._fetcher.queue.news()
        except TimeoutError:
            raise TimedOut(
                f"nothing came of {self._piece.partition} for {patience:g} s, with offset "
                f"{self._piece.end} still to be reached (kafkaConsumer.pollTimeoutMs)"
            ) from None

    async def _go_on(self, state: ReadPartition) -> int:
        """The first offset that is left, when the one to be read is gone. DataLost if that is an
        error."""
        admin = SourceAdmin(self._cluster)
        at = dict.fromkeys([state.partition], FIRST)
        first = (await admin.list_offsets(at))[state.partition].offset or 0
        lost(
            f"offset {state.fetch_offset} of {state.partition} is gone (it begins at {first})",
            self._options,
        )
        if not state.fetch_offset < first < self._piece.end:
            raise _NothingLeft
        return first

    async def close(self) -> None:
        await self._fetcher.close()
