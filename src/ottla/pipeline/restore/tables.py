"""The tables that can be restored: which Parquet files they consist of, and which rows those hold.

A folder of Parquet files, a Delta table (it has `_delta_log`), an Iceberg table of an archive, or any
Iceberg table by the path of its metadata file. Of the tables' logs only the lists of files are needed;
Spark reads the files. A table of which some rows are marked as deleted is refused: its files alone do
not tell its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.pipeline.archive.folder import OWN, SUFFIX, Name

_ICEBERG = ".metadata.json"


class TableError(RuntimeError):
    """The table cannot be restored; the message says why and what to do."""


class Span(NamedTuple):
    """The rows of one partition in a file, by the first and the last offset."""

    partition: int
    first: int
    last: int


class TableFile(NamedTuple):
    """A file of a table. No span: the file does not say which records of a topic its rows were."""

    path: str
    span: Span | None


def table_files(table: Path) -> list[TableFile]:
    """The files of a table; TableError if there are none, or they are not what they should be."""
    paths = sorted(_paths(table))
    if not paths:
        raise TableError(f"{table} has no rows: name a folder of Parquet files or a table")
    files = [TableFile(path, _span(Path(path))) for path in paths]
    spanless = [file for file in files if file.span is None]
    if spanless and len(spanless) < len(files):
        raise TableError(
            f"{spanless[0].path} has no columns partition and offset of one partition, and other "
            "files of the table have: restore them apart from each other"
        )
    return files


def _paths(table: Path) -> Iterable[str]:
    if table.name.endswith(_ICEBERG):
        return _iceberg_paths(table)
    if (table / "_delta_log").is_dir():
        return _delta_paths(table)
    if (table / "metadata").is_dir() and (table.parent / OWN / "iceberg.db").exists():
        return _iceberg_paths(table)
    if table.is_file():
        return [str(table)]
    # What begins with _ or a dot is no data, for Spark as for us.
    return (
        str(path)
        for path in table.rglob(f"*{SUFFIX}")
        if not any(part[0] in "_." for part in path.relative_to(table).parts)
    )


def _delta_paths(table: Path) -> list[str]:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise TableError("Delta tables need `pip install 'ottla[delta]'`") from None
    opened = DeltaTable(table)
    actions = pa.table(opened.get_add_actions(flatten=True))
    features = opened.protocol().reader_features or []
    if "deletionVectors" in features:
        raise TableError(f"{table} may have deletion vectors, which are not read; purge it first")
    return [str(table / path) for path in actions["path"].to_pylist()]


def _iceberg_paths(table: Path) -> Iterator[str]:
    try:
        from pyiceberg.table import StaticTable, Table

        from ottla.pipeline.archive.iceberg import catalogue, table_of
    except ImportError:
        raise TableError("Iceberg tables need `pip install 'ottla[iceberg]'`") from None
    if table.name.endswith(_ICEBERG):
        opened: Table = StaticTable.from_metadata(str(table))
    else:
        opened = table_of(catalogue(table.parent), table)
    for task in opened.scan().plan_files():
        if task.delete_files:
            raise TableError(
                f"{table} has files of deletions, which are not read; rewrite it first"
            )
        yield task.file.file_path.removeprefix("file://")


def _span(path: Path) -> Span | None:
    name = Name.read(path.name)
    if name is not None:
        return Span(name.partition, name.first, name.last)
    return _span_by_statistics(pq.read_metadata(path))


def _span_by_statistics(metadata: pq.FileMetaData) -> Span | None:
    names = metadata.schema.to_arrow_schema().names
    if "partition" not in names or "offset" not in names:
        return None
    partitions, offsets = _bounds(metadata, "partition"), _bounds(metadata, "offset")
    if partitions is None or offsets is None or partitions[0] != partitions[1]:
        return None
    return Span(partitions[0], *offsets)


def _bounds(metadata: pq.FileMetaData, column: str) -> tuple[int, int] | None:
    """The least and the largest value of a column, as the file's statistics have them."""
    bounds = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            if group.column(index).path_in_schema == column:
                statistics = group.column(index).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                bounds.append((statistics.min, statistics.max))
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
