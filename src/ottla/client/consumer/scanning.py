"""Reading a topic between two positions: a fetcher of its own that ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.consumer.fetching import AnyLayout, Fetcher
from ottla.client.consumer.partitions import ReadPartition
from ottla.client.consumer.starting import resolve
from ottla.client.errors import (
    AlreadyRead,
    ClientClosed,
    OffsetOutOfRange,
    OttlaError,
    TimedOut,
)
from ottla.client.positions import (
    EARLIEST,
    LATEST,
    AnyPosition,
    Position,
    TopicPartition,
    position_of,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa


class Scan:
    """Batches of rows between two positions of a topic. Iterate, or `close` it.

    Its rows come once: whoever asks again after the end gets AlreadyRead, not an empty table.
    """

    def __init__(self, fetcher: Fetcher, layout: AnyLayout, patience: float) -> None:
        self._fetcher = fetcher
        self._patience = patience  # seconds without any answer
        self._layout = layout
        self._over: OttlaError | None = None  # why nothing comes any more
        self._close_callbacks: list[Callable[[], object]] = []

    @classmethod
    async def begin(
        cls,
        cluster: Cluster,
        settings: ConsumerSettings,
        layout: AnyLayout,
        topic: str,
        start: AnyPosition | Mapping[int, AnyPosition],
        end: AnyPosition | Mapping[int, AnyPosition],
        *,
        lane: str,
        max_rows: int,
        max_bytes: int,
    ) -> Self:
        """Look up both positions in all partitions (in those of a mapping, if one is given)."""
        # Once: a span of time ends now, not at each look at it.
        start, end = _positions(start), _positions(end)
        info = await cluster.topic(topic)
        chosen = set(info.partitions)
        for given in (start, end):
            if isinstance(given, Mapping):
                unknown = set(given) - set(info.partitions)
                if unknown:
                    raise ValueError(f"topic '{topic}' has no partition {min(unknown)}")
                chosen &= set(given)
        starts = await resolve(cluster, settings, _by_partition(topic, chosen, start))
        ends = await resolve(cluster, settings, _by_partition(topic, chosen, end))
        # An offset before the beginning would be out of range; what retention took is not there.
        first = await resolve(
            cluster,
            settings,
            dict.fromkeys((TopicPartition(topic, each) for each in chosen), EARLIEST),
        )
        # An offset that is not there yet would be waited for; what is read is what is there now.
        ahead = [each for each in ends if _is_offset(end, each.partition)]
        last = await resolve(cluster, settings, dict.fromkeys(ahead, LATEST))
        fetcher = Fetcher(
            cluster,
            settings,
            layout,
            reset=_lost,
            lane=lane,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
        states = []
        for partition in sorted(starts):
            offset = starts[partition]
            if not _is_offset(start, partition.partition):
                offset = max(offset, first[partition])
            if offset <= last.get(partition, -1) < ends[partition]:
                ends[partition] = last[partition]
            states.append(ReadPartition(partition, offset, offset, end_offset=ends[partition]))
        fetcher.add(states)
        return cls(fetcher, layout, settings.api_timeout)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._layout.schema

    def on_close(self, call: Callable[[], object]) -> None:
        """Call this once it is over."""
        self._close_callbacks.append(call)

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next rows; None at the end. Raises what is wrong with a partition, and AlreadyRead after
        the end.

        TimedOut if no broker answers for default.api.timeout.ms: what is read is there, so that there
        is nothing else to wait for.
        """
        queue = self._fetcher.queue
        begun = asyncio.get_running_loop().time()
        while True:
            self.check_readable()
            result = queue.take()
            if result is None:
                if self._fetcher.exhausted:
                    await self._end(
                        AlreadyRead("the scan was read to its end already; begin another")
                    )
                    return None
                await self._news(begun)
            elif result.error is not None:
                await self._end(result.error)
                raise result.error
            else:
                result.hand_out()
                if result.rows is not None and result.rows.num_rows:
                    return result.rows

    def check_readable(self) -> None:
        """Raise why nothing more will come, if that is so."""
        if self._over is not None:
            raise self._over

    async def _news(self, begun: float) -> None:
        fetcher = self._fetcher
        quiet = self._patience
        while True:
            last = max(begun, fetcher.answered_at)
            left = last + quiet - asyncio.get_running_loop().time()
            if left <= 0:
                why = "" if fetcher.trouble is None else f"; the last problem: {fetcher.trouble}"
                late = TimedOut(
                    f"no broker has answered for {quiet:g} s (default.api.timeout.ms){why}"
                )
                await self._end(late)
                raise late from fetcher.trouble
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await fetcher.queue.news()
                    return

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while (rows := await self.next_batch()) is not None:
            yield rows

    async def close(self) -> None:
        """Stop, if not all of it is wanted. What was read to its end is closed already."""
        await self._end(ClientClosed("the scan was closed"))

    async def _end(self, why: OttlaError) -> None:
        if self._over is None:
            self._over = why
            await self._fetcher.close()
            for call in self._close_callbacks:
                call()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _positions(
    given: AnyPosition | Mapping[int, AnyPosition],
) -> Position | dict[int, Position]:
    if isinstance(given, Mapping):
        return {partition: position_of(each) for partition, each in given.items()}
    return position_of(given)


def _by_partition(
    topic: str, chosen: set[int], given: AnyPosition | Mapping[int, AnyPosition]
) -> dict[TopicPartition, AnyPosition]:
    return {
        TopicPartition(topic, each): given[each] if isinstance(given, Mapping) else given
        for each in sorted(chosen)
    }


def _is_offset(given: AnyPosition | Mapping[int, AnyPosition], partition: int) -> bool:
    position = position_of(given[partition] if isinstance(given, Mapping) else given)
    return position.kind.value == "offset"


async def _lost(state: ReadPartition) -> int:
    """What was to be read is not there (any more)."""
    raise OffsetOutOfRange(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"offset {state.fetch_offset} is not in the log; retention may have taken it",
        str(state.partition),
    )
