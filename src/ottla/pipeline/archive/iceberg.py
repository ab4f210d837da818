"""An archive as an Iceberg table.

The files lie as in an archive of plain files; the table's metadata, beside them, say which of them
count. Every snapshot carries the last offset of each partition in its summary, so a batch that runs
again finds its rows committed. Others' snapshots do not, and those before them expire: so the table's
properties have the offsets, too. Small files are left to the tools that maintain Iceberg tables. The
catalogue is a SQLite file in the archive's folder:

    load_catalog("ottla", type="sql", uri="sqlite:///DIR/_ottla/iceberg.db", warehouse="file://DIR")
        .load_table(("ottla", TOPIC))
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from ottla.pipeline.archive.folder import OWN, Covered, CoveredUpTo, StagedFile, passed
from ottla.pipeline.archive.rows import Merge

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.pipeline.archive.job import ArchiveOptions

NAMESPACE: Final = "ottla"
# In summaries of snapshots, and in the table's properties: JSON, by partition.
_OFFSETS: Final = "ottla.last-offsets"


def _uri(path: Path) -> str:
    """The file URI of a path as pyiceberg writes it: nothing is escaped."""
    return f"file://{path.resolve()}"


def catalogue(root: Path) -> SqlCatalog:
    """The catalogue of the tables in a folder of archives."""
    folder = root.resolve()
    return SqlCatalog(
        NAMESPACE, uri=f"sqlite:///{folder / OWN / 'iceberg.db'}", warehouse=_uri(folder)
    )


def table_of(tables: SqlCatalog, folder: Path) -> Table:
    """The table whose files are in this folder."""
    for identifier in tables.list_tables(NAMESPACE):
        table = tables.load_table(identifier)
        if table.location() == _uri(folder):
            return table
    raise LookupError(f"no table of the catalogue is in {folder}")


class IcebergFiles:
    """Files that an Iceberg table's metadata tell of."""

    def __init__(self, options: ArchiveOptions, rows: pa.Schema) -> None:
        self._folder = options.folder
        own = catalogue(options.root)
        own.create_namespace_if_not_exists(NAMESPACE)
        self._identifier = (NAMESPACE, options.topic)
        if not own.table_exists(self._identifier):
            with own.create_table(
                self._identifier, rows, location=_uri(self._folder.rows)
            ).update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), "date")
        self._catalogue = own

    def _table(self) -> Table:
        return self._catalogue.load_table(self._identifier)

    def covered(self) -> Covered:
        return CoveredUpTo(_last_offsets(self._table()))

    def publish(self, files: list[StagedFile]) -> None:
        if not files:
            return
        self._folder.publish(files)
        table = self._table()
        last = _last_offsets(table) | passed(files)
        paths = [_uri(self._folder.rows / file.archived.place) for file in files]
        self._commit(table, paths, last)

    def _commit(self, table: Table, paths: list[str], last: dict[int, int]) -> None:
        # Whether files are known already need not be checked: the offsets tell.
        kept = {_OFFSETS: json.dumps(last)}
        with table.transaction() as transaction:
            transaction.add_files(paths, kept, check_duplicate_files=False)
            transaction.set_properties(kept)

    def merges(self, files: list[StagedFile]) -> list[Merge]:  # noqa: ARG002
        return []

    def replace(self, merges: list[Merge], merged: list[StagedFile]) -> None:  # noqa: ARG002
        raise AssertionError("nothing of a table is merged here")

    def finish(self) -> None:
        self._catalogue.close()


def _last_offsets(table: Table) -> dict[int, int]:
    """The last offset of each partition, by the latest snapshot that tells; others may have made later
    ones.

    Where that one has expired the table's properties have them. They come second, because they do not
    follow a table that is rolled back to an earlier snapshot.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        if summary is not None and _OFFSETS in summary.additional_properties:
            return _read(summary.additional_properties[_OFFSETS])
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return _read(table.properties.get(_OFFSETS, "{}"))


def _read(kept: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(kept).items()}
