"""Streaming queries whose micro-batches the driver deals with one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def trigger(every: str, *, once: bool) -> dict[str, Any]:
    """For DataStreamWriter.trigger: a micro-batch every so often, or (`once`) what there is now."""
    return {"availableNow": True} if once else {"processingTime": every}


def start_batches(
    frame: DataFrame,
    name: str,
    checkpoint: Path,
    write: Callable[[DataFrame, int], None],
    *,
    every: str,
    once: bool,
) -> StreamingQuery:
    """Start a query that hands each micro-batch, with its number, to `write`."""
    stream = frame.writeStream.queryName(name).option("checkpointLocation", str(checkpoint))
    return stream.trigger(**trigger(every, once=once)).foreachBatch(write).start()
