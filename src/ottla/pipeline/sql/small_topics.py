"""Small topics, read at once by whoever asks.

Spark plans and reads a Python source in Python processes of its own: of a small query that is most of
the time. So a topic of a few thousand records is read here, with the source's own code (the same
options, the same offsets, the same rows), and handed to Spark as a table. How many records there are is
known when the query is planned; how large they are, as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ottla.pipeline.sql.sampling import Sample, stretches
from pyspark_ottla import broker, broker_reads
from pyspark_ottla.options import SourceOptions, read_options
from pyspark_ottla.ranges import Range
from pyspark_ottla.rows import SparkRows

RECORDS: Final = 20_000
_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class SmallTopic:
    """All rows of a topic as the source has them, by the partitions that they are of."""

    options: SourceOptions
    read: Mapping[Range, list[pa.RecordBatch]]

    def table(self) -> pa.Table:
        batches = [batch for found in self.read.values() for batch in found]
        schema = SparkRows(self.options.include_headers).schema
        return pa.Table.from_batches(batches, schema=schema)

    def sample(self) -> Sample:
        """Those of the records that are looked at for the columns: the same as of a larger topic."""
        bounds: dict[int, tuple[int, int]] = {}
        for piece in self.read:
            first, end = bounds.get(piece.partition.partition, (piece.start, piece.end))
            bounds[piece.partition.partition] = (min(first, piece.start), max(end, piece.end))
        sample = Sample()
        for stretch in stretches(bounds):
            for piece, batches in self.read.items():
                if piece.partition.partition in stretch:
                    for batch in batches:
                        _add(sample, batch, *stretch[piece.partition.partition])
        return sample


def _add(sample: Sample, batch: pa.RecordBatch, first: int, end: int) -> None:
    """The records from an offset up to, not including, another; they are in order."""
    begin, stop = np.searchsorted(batch.column("offset").to_numpy(), (first, end)).tolist()
    some = batch.slice(begin, stop - begin)
    sample.keys += some.column("key").drop_null().to_pylist()
    sample.values += some.column("value").drop_null().to_pylist()


def small_topic(given: Mapping[str, str]) -> SmallTopic | None:
    """What the options of the source name, as of now; None if it is not small. Raises what the source
    raises, TopicNotFound among it."""
    options = read_options(given, "batch")
    if options.path is not None or options.values is not None:
        return None
    pieces = broker.plan(options)
    if sum(piece.size for piece in pieces) > RECORDS:
        return None
    read: dict[Range, list[pa.RecordBatch]] = {}
    room = _BYTES
    for piece in pieces:
        found = read[piece] = []
        with closing(broker_reads.read(piece, options)) as batches:  # type: ignore[type-var]
            for batch in batches:
                room -= batch.nbytes
                if room < 0:
                    return None
                found.append(batch)
    return SmallTopic(options, read)
