"""What the tasks of an archive do: rows to Parquet files, and small files to larger ones.

They run in Spark's Python workers (mapInArrow) and leave files that are written and synced, but not in
their places: the driver, of which there is one, puts them there. So a task that runs twice, or that
outlives its job, changes nothing that anybody sees.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ottla.pipeline.archive.folder import (
    UNFINISHED,
    ArchivedFile,
    ArchiveFolder,
    Covered,
    Name,
    StagedFile,
)
from ottla.pipeline.durable_files import sync

# Of what is reported to the driver, a row for each file.
REPORT: Final = (
    "path string, date string, topic string, partition int, first long, last long, "
    "rows long, size long"
)
_REPORT: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("path", "date", "topic")),
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in ("first", "last", "rows", "size")),
    ]
)
_GROUP_ROWS: Final = 1_000_000  # of a row group, at most
_GROUP_BYTES: Final = 64 * 1024 * 1024  # about, before compression
_BUFFER_BYTES: Final = 128 * 1024 * 1024  # of all the files that a task has open
_DAY: Final = 86_400_000_000  # microseconds
_DAYS: Final = np.array(["0001-01-01", "9999-12-31"], "datetime64[D]")

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


def reported(rows: Iterable[Any]) -> list[StagedFile]:
    """The files that tasks have reported, in the order of their rows."""
    files = [
        StagedFile(
            row["path"],
            row["date"],
            Name(row["topic"], row["partition"], row["first"], row["last"]),
            row["rows"],
            row["size"],
        )
        for row in rows
    ]
    return sorted(files, key=lambda file: (file.name, file.date))


def _report(files: Iterable[StagedFile]) -> pa.RecordBatch:
    rows = [
        {
            "path": file.path,
            "date": file.date,
            **file.name._asdict(),
            "rows": file.rows,
            "size": file.size,
        }
        for file in files
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_REPORT)


# Rows to files


@dataclass(frozen=True)
class Writing:
    """What a task has to know to write rows."""

    topic: str
    staging: str  # a folder
    covered: Covered
    file_size: int  # bytes; a file that is larger is followed by another


def writing(plan: Writing) -> Task:
    """A task that writes the rows it gets, but for those that are there already."""

    def task(batches: Batches) -> Batches:
        files = _OpenFiles(plan)
        for batch in batches:
            files.add(_in_utc(batch))
        yield _report(files.finish())

    return task


class _OpenFiles:
    """The files a task is writing: one for each partition and date, or for each gap in what is there.

    A file must not reach over rows that another one holds, so the spans that are covered already
    divide the rows of a partition and date into gaps, and every gap has its file.
    """

    def __init__(self, plan: Writing) -> None:
        self._plan = plan
        self._open: dict[tuple[int, str, int], _OpenFile] = {}
        self._finished: list[StagedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        partitions = batch.column("partition").to_numpy()
        days = _days(batch.column("timestamp"))
        offsets = batch.column("offset").to_numpy()
        for partition in np.unique(partitions).tolist():
            for day in np.unique(days[partitions == partition]).tolist():
                chosen = np.flatnonzero((partitions == partition) & (days == day))
                self._add_missing(partition, str(np.datetime64(day, "D")), batch, offsets, chosen)

    def _add_missing(
        self,
        partition: int,
        date: str,
        batch: pa.RecordBatch,
        offsets: np.ndarray[Any, Any],
        chosen: np.ndarray[Any, Any],
    ) -> None:
        """Adds those of the chosen rows that are not covered."""
        spans = self._plan.covered.spans(partition, date)
        gaps = np.searchsorted(np.array(spans.firsts, np.int64), offsets[chosen], "right")
        lasts = np.array([-1, *spans.lasts], np.int64)
        missing = offsets[chosen] > lasts[gaps]
        chosen, gaps = chosen[missing], gaps[missing]
        for gap in np.unique(gaps).tolist():
            self._add(partition, date, gap, batch, chosen[gaps == gap])

    def _add(
        self, partition: int, date: str, gap: int, batch: pa.RecordBatch, rows: np.ndarray[Any, Any]
    ) -> None:
        key = (partition, date, gap)
        if key not in self._open:
            self._open[key] = _OpenFile(Path(self._plan.staging), batch.schema)
        file = self._open[key]
        file.add(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)))
        if file.size >= self._plan.file_size:
            self._finish(key)
        elif sum(file.buffered for file in self._open.values()) > _BUFFER_BYTES:
            max(self._open.values(), key=lambda file: file.buffered).write_group()

    def _finish(self, key: tuple[int, str, int]) -> None:
        partition, date, _ = key
        self._finished.append(self._open.pop(key).finish(self._plan.topic, partition, date))

    def finish(self) -> list[StagedFile]:
        for key in list(self._open):
            self._finish(key)
        return self._finished


class _OpenFile:
    """A Parquet file under writing. Rows come by ascending offset."""

    def __init__(self, staging: Path, schema: pa.Schema) -> None:
        self.path = staging / f"{uuid.uuid4().hex}{UNFINISHED}"
        self.buffered = 0  # bytes
        self._rows_buffered = 0
        self._batches: list[pa.RecordBatch] = []
        self._writer = pq.ParquetWriter(self.path, schema, compression="zstd")
        self._first: int | None = None
        self._last = -1
        self._rows = 0

    @property
    def size(self) -> int:
        """Bytes of the file so far, but for what is buffered."""
        return self.path.stat().st_size

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset")
        if self._first is None:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._rows_buffered += batch.num_rows
        self.buffered += batch.nbytes
        if self._rows_buffered >= _GROUP_ROWS or self.buffered >= _GROUP_BYTES:
            self.write_group()

    def write_group(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._rows_buffered, self.buffered = [], 0, 0

    def finish(self, topic: str, partition: int, date: str) -> StagedFile:
        assert self._first is not None, "a file is opened for its first row"
        self.write_group()
        self._writer.close()
        sync(self.path)
        name = Name(topic, partition, self._first, self._last)
        return StagedFile(str(self.path), date, name, self._rows, self.size)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with all times in UTC: Spark hands them over in the zone of its session.

    Files of one archive must not differ in it, or they could not be merged.
    """
    columns = []
    for column in batch.columns:
        kind = _type_in_utc(column.type)
        columns.append(column if column.type.equals(kind) else column.cast(kind))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with all times that have a zone in UTC, at whatever depth."""
    types = pa.types
    if types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pa.struct([each.with_type(_type_in_utc(each.type)) for each in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_type_in_utc(key.type)), item.with_type(_type_in_utc(item.type))
        )
    return kind


def _days(timestamps: pa.Array) -> np.ndarray[Any, Any]:
    """Days since 1970, in UTC; what is no date of four digits counts as the nearest one."""
    days = timestamps.cast(pa.int64()).to_numpy() // _DAY
    first, last = _DAYS.astype(np.int64)
    clipped: np.ndarray[Any, Any] = np.clip(days, first, last)
    return clipped


# Small files to large ones


@dataclass(frozen=True)
class Merge:
    """Files of one partition and date, by offset, that are to become one."""

    files: tuple[ArchivedFile, ...]

    @property
    def result(self) -> Name:
        first, last = self.files[0].name, self.files[-1].name
        return first._replace(last=last.last)


def merging(folder: ArchiveFolder, merges: list[Merge]) -> Task:
    """A task that does those of the merges whose numbers it gets."""

    def task(batches: Batches) -> Batches:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        yield _report(_merged(folder, merges[number]) for number in numbers)

    return task


def _merged(folder: ArchiveFolder, merge: Merge) -> StagedFile:
    result: _OpenFile | None = None
    for small in merge.files:
        with pq.ParquetFile(folder.rows / small.place) as source:
            for batch in map(_in_utc, source.iter_batches()):
                if result is None:
                    result = _OpenFile(folder.staging, batch.schema)
                result.add(batch)
    assert result is not None, "files of an archive have rows"
    staged = result.finish(merge.result.topic, merge.result.partition, merge.files[0].date)
    assert staged.name == merge.result, "a merged file covers what its parts did"
    return staged
