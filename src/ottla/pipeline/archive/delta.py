"""An archive as a Delta table.

The files lie as in an archive of plain files, and the table's log (`_delta_log`) says which of them
count. The log also has, in the same commit as the files, the last offset of every partition as the
version of an application `ottla:TOPIC:PARTITION` (Delta's application transactions): a batch that runs
again finds its rows committed.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ottla.pipeline.archive.folder import (
    DATE,
    ArchivedFile,
    Covered,
    CoveredUpTo,
    Name,
    StagedFile,
    passed,
)
from ottla.pipeline.archive.merging import worthwhile
from ottla.pipeline.archive.rows import Merge

if TYPE_CHECKING:
    from ottla.pipeline.archive.job import ArchiveOptions

_BY: Final = "date"


class DeltaFiles:
    """Files that a Delta table's log tells of."""

    def __init__(self, options: ArchiveOptions, rows: pa.Schema) -> None:
        self._options = options
        self._folder = options.folder
        self._schema = rows.append(pa.field(_BY, pa.date32()))
        self._table = DeltaTable.create(
            self._folder.rows, self._schema, mode="ignore", partition_by=[_BY], name=options.topic
        )

    def covered(self) -> Covered:
        self._table.update_incremental()
        highest = self._table.transaction_version(self._application())
        versions = {
            partition: self._table.transaction_version(self._application(partition))
            for partition in range(0 if highest is None else highest + 1)
        }
        return CoveredUpTo({each: last for each, last in versions.items() if last is not None})

    def publish(self, files: list[StagedFile]) -> None:
        if not files:
            return
        self._folder.publish(files)
        last = passed(files)
        highest = self._table.transaction_version(self._application())
        reached = [Transaction(self._application(each), offset) for each, offset in last.items()]
        reached.append(
            Transaction(self._application(), max(*last, -1 if highest is None else highest))
        )
        self._commit([_added(file, new=True) for file in files], reached)

    def merges(self, files: list[StagedFile]) -> list[Merge]:
        self._table.update_incremental()
        dates = {file.date for file in files}
        present = [file for file in self._files() if file.date in dates]
        chosen: list[Merge] = []
        for date in sorted(dates):
            own = sorted(
                (each for each in present if each.date == date), key=lambda each: each.name
            )
            chosen += worthwhile(own, self._options.file_size, self._options.fewest)
        return chosen

    def replace(self, merges: list[Merge], merged: list[StagedFile]) -> None:
        """Put merged files into the table in the place of small ones, which stay on disk for those who
        read earlier versions."""
        self._folder.publish(merged)
        now = int(time.time() * 1000)
        gone = [
            RemoveAction(file.place, False, now, file.size, {_BY: file.date})
            for merge in merges
            for file in merge.files
        ]
        self._commit([*(_added(file, new=False) for file in merged), *gone], [])

    def finish(self) -> None:
        """Does nothing: a Delta table is complete after each commit."""

    def _commit(
        self, actions: list[AddAction | RemoveAction], transactions: list[Transaction]
    ) -> None:
        self._table.create_write_transaction(
            actions,
            "append",
            self._schema,
            [_BY],
            commit_properties=CommitProperties(app_transactions=transactions),
        )

    def _application(self, partition: int | None = None) -> str:
        """The Delta application whose version is the last offset of a partition, or (of None) the
        highest partition."""
        own = f"ottla:{self._options.topic}"
        return own if partition is None else f"{own}:{partition}"

    def _files(self) -> list[ArchivedFile]:
        actions = pa.table(self._table.get_add_actions())
        found = []
        for path, size in zip(
            actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True
        ):
            folder, _, text = path.rpartition("/")
            name = Name.read(text)
            if name is not None:  # those that others have optimised are named otherwise
                found.append(ArchivedFile(folder.removeprefix(DATE), name, size))
        return found


def _added(file: StagedFile, *, new: bool) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {"partition": file.name.partition, "offset": file.name.first},
        "maxValues": {"partition": file.name.partition, "offset": file.name.last},
        "nullCount": {"partition": 0, "offset": 0},
    }
    now = int(time.time() * 1000)
    place = file.archived.place
    return AddAction(place, file.size, {_BY: file.date}, now, new, json.dumps(stats))
