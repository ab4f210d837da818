"""Archives as Delta and Iceberg tables, through crashes, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake import DeltaTable, TableFeatures

from ottla.pipeline.archive.delta import DeltaFiles
from ottla.pipeline.archive.iceberg import IcebergFiles, catalogue
from ottla.pipeline.restore.tables import TableError, table_files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.archives import TOPIC, LocalArchive, Row, batch, rows_of

KINDS = ("delta", "iceberg")


def rows(archive: LocalArchive) -> list[Row]:
    """As readers of such tables see them."""
    if archive.options.kind == "delta":
        frame = polars.read_delta(str(archive.folder.rows))
    else:
        table = catalogue(archive.options.root).load_table(("ottla", TOPIC))
        frame = polars.DataFrame(table.scan().to_arrow())
    return sorted(frame.select("partition", "offset", "value").rows())


def in_files(archive: LocalArchive) -> list[Row]:
    """As a restore sees them."""
    paths = [file.path for file in table_files(archive.folder.rows)]
    frame = polars.read_parquet(paths, hive_partitioning=False)
    return sorted(frame.select("partition", "offset", "value").rows())


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_run_again(tmp_path: Path, kind: Any) -> None:
    """With the same rows, cut otherwise, from the beginning: nothing is there twice."""
    archive = LocalArchive(tmp_path / "tables", kind=kind)
    archive.write([[batch(0, range(150))], [batch(3, range(70))]])
    archive.write([[batch(0, range(90))], [batch(0, range(90, 160))]])
    archive.write([[batch(3, range(80))]], [[batch(1, range(5))]])
    expected = rows_of((0, range(160)), (1, range(5)), (3, range(80)))
    assert rows(archive) == expected
    assert in_files(archive) == expected


class Crash(BaseException):
    """The process is killed here."""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [("delta", DeltaFiles, "_commit"), ("iceberg", IcebergFiles, "_commit")],
)
def test_crashes_around_the_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    owner: type,
    name: str,
    before: bool,
) -> None:
    """Files are in their places, and the table does not know of them yet; or it does, and Spark
    does not know that the batch is done."""
    archive = LocalArchive(tmp_path / "tables", kind=kind)
    archive.write([[batch(0, range(40))]])
    real: Callable[..., None] = getattr(owner, name)

    def dying(*given: Any) -> None:
        if not before:
            real(*given)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Crash):
            archive.write([[batch(0, range(40, 90))]])
    assert rows(archive) == rows_of((0, range(40 if before else 90)))
    archive.write([[batch(0, range(40, 90))]], [[batch(0, range(90, 100))]])
    assert rows(archive) == rows_of((0, range(100)))


def test_small_files_of_a_delta_table_are_merged(tmp_path: Path) -> None:
    """For those who read the present version; earlier versions stay what they were."""
    archive = LocalArchive(tmp_path / "tables", kind="delta", fewest=4)
    archive.write(*([[batch(0, range(start, start + 10))]] for start in range(0, 60, 10)))
    table = DeltaTable(archive.folder.rows)
    assert len(table.file_uris()) == 6  # of twelve: of both dates a merged one and two since
    assert rows(archive) == rows_of((0, range(60)))
    assert table.transaction_version(f"ottla:{TOPIC}:0") == 59
    earlier = polars.read_delta(str(archive.folder.rows), version=2)
    assert sorted(earlier["offset"].to_list()) == list(range(20))


def test_a_delta_table_that_others_have_optimised(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path / "tables", kind="delta")
    archive.write(*([[batch(0, range(start, start + 10))]] for start in range(0, 60, 10)))
    DeltaTable(archive.folder.rows).optimize.compact()
    archive.write([[batch(0, range(70))]])
    assert rows(archive) == rows_of((0, range(70)))
    assert in_files(archive) == rows_of((0, range(70)))


def test_an_iceberg_table_by_its_metadata(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path / "tables", kind="iceberg")
    archive.write([[batch(0, range(30))]])
    table = catalogue(archive.options.root).load_table(("ottla", TOPIC))
    found = table_files(Path(table.metadata_location.removeprefix("file://")))
    assert sorted(file.path for file in found) == sorted(
        file.path for file in table_files(archive.folder.rows)
    )


def test_an_iceberg_table_whose_snapshots_have_expired(tmp_path: Path) -> None:
    """But for one of somebody else's, as it is after such a table was maintained."""
    archive = LocalArchive(tmp_path / "tables", kind="iceberg")
    archive.write([[batch(0, range(20))], [batch(1, range(10))]])
    table = catalogue(archive.options.root).load_table(("ottla", TOPIC))
    earlier = [each.snapshot_id for each in table.snapshots()]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    table.maintenance.expire_snapshots().by_ids(earlier).commit()
    archive.write([[batch(0, range(25))]])
    archive.write([[batch(1, range(12))]])
    assert rows(archive) == rows_of((0, range(25)), (1, range(12)))


def test_an_iceberg_table_that_was_rolled_back(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path / "tables", kind="iceberg")
    archive.write([[batch(0, range(20))]])
    table = catalogue(archive.options.root).load_table(("ottla", TOPIC))
    (first, *_) = [each.snapshot_id for each in table.snapshots()]
    archive.write([[batch(0, range(30))]])
    table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    archive.write([[batch(0, range(40))]])
    assert rows(archive) == rows_of((0, range(40)))


def test_rows_that_are_marked_as_deleted(tmp_path: Path) -> None:
    """Of such a table the files alone do not tell the rows."""
    archive = LocalArchive(tmp_path / "tables", kind="delta")
    archive.write([[batch(0, range(30))]])
    DeltaTable(archive.folder.rows).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(TableError, match="deletion vectors"):
        table_files(archive.folder.rows)
