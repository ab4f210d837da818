"""Streaming reads as Spark sees them: spark.readStream.format("ottla")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.errors import OttlaError
from ottla.client.loop import background_loop
from pyspark_ottla.options import SourceOptions
from pyspark_ottla.streaming.offsets import as_json, offsets_in
from pyspark_ottla.streaming.planner import StreamPlanner
from pyspark_ottla.workers import keep_modules_out_of_collections, plain_errors

if TYPE_CHECKING:
    import pyarrow as pa


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. One of these plans it, in a process that lives as long as the query; copies
    of others, which Spark makes for each micro-batch and pickles, `read` in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = StreamPlanner(options)

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names from here on
        return as_json(background_loop().run(self._planner.initial()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark hands this back to latestOffset, or ReadAllAvailable where a trigger wants all. The
        # planner knows the numbers: there is no limit that says both.
        if (most := self._options.max_offsets_per_trigger) is not None:
            return ReadMaxRows(most)
        if (least := self._options.min_offsets_per_trigger) is not None:
            return ReadMinRows(least)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        background_loop().run(self._planner.fix_target())

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return as_json(background_loop().run(self._planner.latest(offsets_in(start), limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        known = self._planner.known_ends
        return None if known is None else as_json(known)

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._planner.plan(offsets_in(start), offsets_in(end))
        return [InputPartition(piece) for piece in background_loop().run(planned)]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # In the tasks alone: the planner's process starts sooner without.
        from pyspark_ottla import broker_reads

        yield from broker_reads.read(partition.value, self._options)
        keep_modules_out_of_collections()


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the place of a query whose options are refused: it says so as soon as it is asked."""

    def __init__(self, reason: OttlaError) -> None:
        self._reason = reason

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._reason

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._reason

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self._reason

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        raise self._reason

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._reason
