"""Archives without Spark: its tasks and its driver's part in this process, over rows made here.

`LocalFrame` does what an archive asks of a DataFrame (run a task over the pieces, collect what it
tells); the tasks, the driver's work and the files are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset

from ottla.pipeline.archive.folder import Description
from ottla.pipeline.archive.job import ArchiveOptions, Archiving, destination_of

Row = tuple[int, int, bytes]  # partition, offset, value
TOPIC = "orders"
DAY = 86_400_000_000  # microseconds
SOME_DAY = 20_526 * DAY  # 2026-03-14
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


def batch(partition: int, offsets: Iterable[int], topic: str = TOPIC) -> pa.RecordBatch:
    """The rows of some offsets: a day has 100 of them, but every seventh is of the day before."""
    offsets = list(offsets)
    days = [number // 100 - (number % 7 == 0) for number in offsets]
    count = len(offsets)
    return pa.record_batch(
        [
            pa.array([None] * count, pa.binary()),
            pa.array([b"%d-%d" % (partition, number) for number in offsets]),
            pa.array([topic] * count),
            pa.array([partition] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([SOME_DAY + day * DAY for day in days], pa.timestamp("us", "UTC")),
            pa.array([0] * count, pa.int32()),
        ],
        schema=SCHEMA,
    )


def rows_of(*pieces: tuple[int, Iterable[int]]) -> list[Row]:
    return sorted(
        (partition, number, b"%d-%d" % (partition, number))
        for partition, offsets in pieces
        for number in offsets
    )


@dataclass
class LocalFrame:
    """What is asked of a DataFrame of a micro-batch: tasks over its pieces, one after the other."""

    pieces: list[list[pa.RecordBatch]]

    def mapInArrow(  # noqa: N802 - Spark's name
        self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> LocalFrame:
        return LocalFrame([list(task(iter(piece))) for piece in self.pieces])

    def collect(self) -> list[dict[str, Any]]:
        return [row for piece in self.pieces for each in piece for row in each.to_pylist()]

    @property
    def sparkSession(self) -> LocalFrame:  # noqa: N802 - Spark's name
        return self

    def range(self, start: int, end: int, step: int, pieces: int) -> LocalFrame:
        return LocalFrame([[pa.record_batch({"id": [each]})] for each in range(start, end, step)])


class LocalArchive:
    """An archive that is written in this process."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.options = ArchiveOptions("none", TOPIC, root, **options)
        self.folder = self.options.folder

    def write(self, *batches: list[list[pa.RecordBatch]]) -> None:
        """Some micro-batches, each of them the pieces of its tasks, as one run of the job."""
        self.follow(batches)

    def follow(self, batches: Iterable[list[list[pa.RecordBatch]]]) -> None:
        """Micro-batches as they come, as one run of the job."""
        with self.folder.opened(Description(self.options.kind, SCHEMA.to_string(), None)):
            destination = destination_of(self.options, SCHEMA)
            work = Archiving(self.options, destination)
            for number, pieces in enumerate(batches):
                frame: Any = LocalFrame(pieces)
                work.write_batch(frame, number)
            destination.finish()


# What readers see


def by_duckdb(folder: Path) -> list[Row]:
    found = duckdb.connect().sql(
        f"select partition, \"offset\", value from '{folder}/**/*.parquet'"
    )
    return sorted(found.fetchall())


def by_polars(folder: Path) -> list[Row]:
    frame = polars.scan_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
    return sorted(frame.select("partition", "offset", "value").collect().rows())


def by_polars_folder(folder: Path) -> list[Row]:
    return sorted(
        polars.scan_parquet(folder).select("partition", "offset", "value").collect().rows()
    )


def by_arrow(folder: Path) -> list[Row]:
    table = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


ENGINES: dict[str, Callable[[Path], list[Row]]] = {
    "duckdb": by_duckdb,
    "polars": by_polars,
    "polars, by its folder": by_polars_folder,
    "arrow": by_arrow,
}


def check_all(archive: LocalArchive, expected: list[Row]) -> None:
    """All engines see these rows; DuckDB and polars also where they look at all that there is."""
    for name, read in ENGINES.items():
        assert read(archive.folder.rows) == expected, name
    assert by_duckdb(archive.options.root) == expected
    assert by_polars(archive.options.root) == expected
