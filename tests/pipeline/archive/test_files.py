"""What an archive's files are, through crashes and merges, without Spark."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.pipeline import durable_files
from ottla.pipeline.archive import merging as archive_merging
from ottla.pipeline.archive import rows as archive_rows
from ottla.pipeline.archive.folder import (
    ArchivedFile,
    ArchiveError,
    ArchiveFolder,
    Description,
    Name,
    Spans,
)
from ottla.pipeline.archive.merging import worthwhile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.archives import (
    ENGINES,
    TOPIC,
    LocalArchive,
    batch,
    by_duckdb,
    by_polars,
    check_all,
    rows_of,
)

DESCRIPTION = Description("parquet", "rows", "id")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Folders that lost their places go at once, unless readers are at work. Gives the time it takes
    otherwise."""
    usual = archive_merging.LISTING
    monkeypatch.setattr(archive_merging, "LISTING", 0.0)
    return usual


def names(archive: LocalArchive) -> list[Name]:
    return [file.name for date in archive.folder.dates() for file in archive.folder.files(date)]


# Names


def test_names() -> None:
    name = Name("a-1-b.c", 3, 17, 2**62)
    assert str(name) == "a-1-b.c-3-00000000000000000017-04611686018427387904.parquet"
    assert Name.read(str(name)) == name
    assert Name.read(f"{name}.unfinished") is None
    assert Name.read("part-00000.parquet") is None


def test_spans() -> None:
    spans = Spans([(10, 19), (0, 4)])
    assert [offset for offset in range(25) if offset in spans] == [0, 1, 2, 3, 4, *range(10, 20)]
    assert 5 not in Spans([])


def test_files_are_by_date_and_offsets(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path)
    archive.write([[batch(0, range(90, 110))], [batch(1, range(3))]])
    files = {file.place for date in archive.folder.dates() for file in archive.folder.files(date)}
    assert files == {
        # 91 and 98 are of the day before theirs, and so is 105.
        "date=2026-03-13/" + str(Name(TOPIC, 0, 91, 98)),
        "date=2026-03-13/" + str(Name(TOPIC, 1, 0, 0)),
        "date=2026-03-14/" + str(Name(TOPIC, 0, 90, 105)),
        "date=2026-03-14/" + str(Name(TOPIC, 1, 1, 2)),
        "date=2026-03-15/" + str(Name(TOPIC, 0, 100, 109)),
    }
    check_all(archive, rows_of((0, range(90, 110)), (1, range(3))))


def test_a_topic_that_readers_would_pass_over(tmp_path: Path) -> None:
    assert ArchiveFolder(tmp_path, "_private").rows.name == "+_private"
    assert ArchiveFolder(tmp_path, "orders_").rows.name == "orders_"


# Batches that run again


def test_a_batch_that_runs_again_adds_nothing(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path)
    first = [[batch(0, range(150))], [batch(1, range(70))]]
    archive.write(first)
    before = names(archive)
    archive.write(first, first)
    assert names(archive) == before
    check_all(archive, rows_of((0, range(150)), (1, range(70))))


def test_it_may_be_cut_otherwise(tmp_path: Path) -> None:
    """As after a crash that left the second of three tasks' files, and a restart with other limits."""
    archive = LocalArchive(tmp_path)
    archive.write([[batch(0, range(40, 60))]])
    archive.write([[batch(0, range(80))], [batch(0, range(80, 150))]])
    check_all(archive, rows_of((0, range(150))))
    found = [file.name[2:] for file in archive.folder.files("2026-03-14")]
    assert found == [(1, 39), (40, 59), (60, 79), (80, 147)]  # they do not overlap


def test_compaction_between_two_attempts(tmp_path: Path) -> None:
    """Records that are gone from the topic when a batch runs again stay in the archive."""
    archive = LocalArchive(tmp_path)
    archive.write([[batch(0, range(100))]])
    archive.write([[batch(0, range(0, 100, 9))], [batch(0, range(100, 130))]])
    check_all(archive, rows_of((0, range(130))))


def test_large_files_are_followed_by_others(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(archive_rows, "_GROUP_ROWS", 10)
    archive = LocalArchive(tmp_path, file_size=2000, fewest=1000)
    archive.write([[batch(0, range(n, n + 10)) for n in range(0, 1000, 10)]])
    assert len(names(archive)) > 20
    check_all(archive, rows_of((0, range(1000))))


def test_many_files_open_at_once_stay_in_bounds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(archive_rows, "_BUFFER_BYTES", 2000)
    archive = LocalArchive(tmp_path)
    archive.write([[batch(0, range(n, n + 300)) for n in range(0, 1500, 300)]])
    check_all(archive, rows_of((0, range(1500))))


# What does not fit


def test_one_job_at_a_time(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path)
    with archive.folder.opened(DESCRIPTION), pytest.raises(ArchiveError, match="another job"):
        archive.write([[batch(0, range(1))]])


@pytest.mark.parametrize("changed", ["kind", "schema", "topic_id"])
def test_an_archive_stays_what_it_is(tmp_path: Path, changed: str) -> None:
    folder = ArchiveFolder(tmp_path, TOPIC)
    with folder.opened(DESCRIPTION):
        pass
    with (
        pytest.raises(ArchiveError, match="name another folder"),
        folder.opened(replace(DESCRIPTION, **{changed: "another"})),
    ):
        pass
    with folder.opened(DESCRIPTION):
        pass


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with (
        pytest.raises(ArchiveError, match="too long"),
        ArchiveFolder(tmp_path, "t" * 200).opened(DESCRIPTION),
    ):
        pass


# Merging


def files(*sizes: int, partition: int = 0) -> list[ArchivedFile]:
    return [
        ArchivedFile("2026-03-14", Name(TOPIC, partition, at * 10, at * 10 + 9), size)
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([10] * 3, None),  # too few
        ([10] * 4, (0, 4)),
        ([100, 10, 10, 10], None),  # most of it would be written for nothing
        ([100, 10, 10, 10, 10], (1, 5)),
        ([40, 10, 10, 10, 10], (0, 5)),
        ([10, 10, 10, 500, 10, 10, 10, 10], (4, 8)),  # over a large one, nothing is merged
        ([100] * 6, (0, 4)),  # no more than a file's size
    ],
)
def test_which_files_are_merged(sizes: list[int], merged: tuple[int, int] | None) -> None:
    given = files(*sizes)
    expected = [] if merged is None else [tuple(given[slice(*merged)])]
    assert [merge.files for merge in worthwhile(given, 400, 4)] == expected


def test_partitions_are_merged_apart() -> None:
    given = [*files(1, 1, 1), *files(1, 1, 1, partition=1)]
    assert list(worthwhile(given, 400, 4)) == []
    assert len(list(worthwhile(given, 400, 3))) == 2


def test_rows_are_written_anew_a_few_times_only(tmp_path: Path) -> None:
    """A thousand small files, one by one: with each merge a row's file doubles at least."""
    present: list[ArchivedFile] = []
    written = 0
    for number in range(1000):
        present.append(ArchivedFile("2026-03-14", Name(TOPIC, 0, number, number), 1))
        for merge in worthwhile(present, 10_000, 8):
            size = sum(file.size for file in merge.files)
            written += size
            at = present.index(merge.files[0])
            present[at : at + len(merge.files)] = [ArchivedFile("2026-03-14", merge.result, size)]
    assert written <= 1000 * 10  # 2 ** 10 is about a thousand
    assert len(present) < 30


def test_small_files_are_merged(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path / "archive", fewest=4)
    for start in range(0, 90, 10):
        archive.write([[batch(0, range(start, start + 10))], [batch(1, range(start, start + 10))]])
    found = [file.name for file in archive.folder.files("2026-03-14")]
    assert Name(TOPIC, 0, 1, 69) in found
    assert len(found) < 2 * 9
    check_all(archive, rows_of((0, range(90)), (1, range(90))))
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]  # nothing is left beside it
    archive.write([[batch(0, range(90))], [batch(1, range(90))]])  # as with a lost checkpoint
    check_all(archive, rows_of((0, range(90)), (1, range(90))))


def test_times_in_decoded_values_are_in_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark hands them over in its session's zone, which may be another one the next time."""
    archive = LocalArchive(tmp_path / "archive", fewest=2)
    instant = 1_773_489_600_123_456  # microseconds

    def in_zone(zone: str, first: int) -> pa.RecordBatch:
        time = pa.timestamp("us", zone)
        value = pa.struct([("at", time), ("all", pa.list_(time)), ("by", pa.map_("string", time))])
        plain = batch(0, range(first, first + 3))
        values = [{"at": instant, "all": [instant, None], "by": [("a", instant)]}, None, {}]
        columns = [plain.column(0), pa.array(values, value), *plain.columns[2:]]
        return pa.RecordBatch.from_arrays(columns, plain.schema.names)

    with monkeypatch.context() as patch:  # as older versions did, which left them as they came
        patch.setattr(archive_rows, "_in_utc", lambda rows: rows)
        archive.options = replace(archive.options, fewest=100)
        archive.write([[in_zone("Europe/Prague", 101)]], [[in_zone("UTC", 108)]])
    archive.options = replace(archive.options, fewest=2)
    for number, zone in enumerate(("Europe/Prague", "UTC", "Asia/Tokyo")):
        archive.write([[in_zone(zone, 115 + 7 * number)]])
    merged = [pq.read_table(path) for path in archive.folder.rows.rglob("*.parquet")]
    assert len(merged) < 5
    kept = pa.concat_tables(merged).column("value").combine_chunks()
    assert kept.field("at").drop_null().cast(pa.int64()).to_pylist() == [instant] * 5
    assert kept.field("at").type.tz == "UTC"


def test_a_lost_checkpoint_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    """A job that begins anew comes by small batches to rows that were archived long ago. A merged
    file that reached over to them would claim the rows between."""
    archive = LocalArchive(tmp_path, fewest=2)
    archive.write([[batch(0, range(60, 80))]])
    archive.write(*([[batch(0, range(start, start + 10))]] for start in range(0, 80, 10)))
    check_all(archive, rows_of((0, range(80))))


def test_nothing_is_merged_while_somebody_reads(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path, fewest=2)
    archive.write([[batch(0, range(1, 3))]])
    with archive.folder.reading():
        archive.write([[batch(0, range(3, 5))]])
        assert len(names(archive)) == 2
    archive.write([[batch(0, range(5, 7))]])
    assert names(archive) == [Name(TOPIC, 0, 1, 6)]


def test_a_file_system_that_cannot_exchange(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise durable_files.ExchangeNotOffered(22, "Invalid argument")

    monkeypatch.setattr(archive_merging, "exchange", refuse)
    archive = LocalArchive(tmp_path, fewest=2)
    archive.write(*([[batch(0, range(start, start + 10))]] for start in range(0, 60, 10)))
    check_all(archive, rows_of((0, range(60))))


def test_what_is_in_its_place_is_on_the_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """Every file is synced before it gets its name, and every folder after."""
    synced: list[Path] = []
    real_sync, real_rename = durable_files.sync, Path.rename

    def sync(*paths: Path) -> None:
        synced.extend(paths)
        real_sync(*paths)

    def rename(path: Path, target: Path) -> Path:
        assert path in synced, path
        synced[:] = [each for each in synced if each != target.parent]
        renamed.add(target.parent)
        return real_rename(path, target)

    renamed: set[Path] = set()
    for module in (durable_files, archive_rows, archive_merging):
        monkeypatch.setattr(module, "sync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    archive = LocalArchive(tmp_path / "archive", fewest=3)
    archive.write(*([[batch(0, range(start, start + 40))]] for start in range(0, 200, 40)))
    assert renamed
    assert renamed <= set(synced)


# Crashes


class Crash(BaseException):
    """The process is killed here."""


@contextmanager
def crash_at(call: int) -> Iterator[list[str]]:
    """The process ends before the call-th change of the file system; tells what was called."""
    calls: list[str] = []
    patch = pytest.MonkeyPatch()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call_it(*given: Any, **named: Any) -> Any:
            calls.append(name)
            if len(calls) == call:
                raise Crash(name)
            return real(*given, **named)

        return call_it

    for owner, name in (
        (Path, "rename"),
        (Path, "mkdir"),
        (Path, "replace"),
        (Path, "unlink"),
        (archive_merging.os, "link"),
        (archive_merging, "exchange"),
        (archive_merging.shutil, "rmtree"),
        (archive_rows.pq.ParquetWriter, "write_table"),
        (archive_rows.pq.ParquetWriter, "close"),
        (archive_rows, "sync"),
    ):
        patch.setattr(owner, name, counted(name, getattr(owner, name)))
    try:
        yield calls
    finally:
        patch.undo()


def steps() -> list[list[list[Any]]]:
    """Micro-batches that lead to merges over two dates, beside a file that stays."""
    return [
        [[batch(0, range(70, 90))], [batch(1, range(71, 73))]],
        [[batch(0, range(90, 120))]],
        [[batch(0, range(120, 130))]],
    ]


def test_a_crash_at_every_point(tmp_path: Path) -> None:
    """Before each change of the file system in turn: readers see whole batches' files once, and the
    job that comes after finishes the work."""
    batches = steps()
    whole = rows_of((0, range(70, 130)), (1, range(71, 73)))
    seen: set[str] = set()
    for call in range(1, 10_000):
        archive = LocalArchive(tmp_path / str(call) / "archive", fewest=2)
        with crash_at(call) as calls:
            try:
                archive.write(*batches)
            except Crash as crash:
                seen.add(str(crash))
        if len(calls) < call:  # it came to its end
            break
        if any(archive.options.root.rglob("*.parquet")):
            found = by_polars(archive.folder.rows)
            assert len(set(found)) == len(found), (call, calls[-1])
            assert set(found) <= set(whole)
            assert found == by_duckdb(archive.options.root)
        for again in batches:
            archive.write(again)
        assert by_polars(archive.folder.rows) == whole, (call, calls[-1])
    check_all(archive, whole)
    assert seen >= {"rename", "exchange", "rmtree", "link", "write_table", "close", "sync", "mkdir"}
    assert call > 50


# Readers at work

GONE = (FileNotFoundError, duckdb.IOException, polars.exceptions.PolarsError, OSError)


@pytest.mark.long
def test_readers_while_files_come_and_are_merged(
    tmp_path: Path, monkeypatch: Any, patience: float
) -> None:
    """Never a row twice, never one less than before; a file that was merged away while a reader was
    about to open it is an error, and the reader tries again."""
    monkeypatch.setattr(archive_merging, "LISTING", patience)
    archive = LocalArchive(tmp_path / "archive", fewest=2)
    chance = random.Random(4)
    ended = threading.Event()
    wrong: list[str] = []
    reads = dict.fromkeys(ENGINES, 0)
    archive.write([[batch(0, range(1, 3))]])

    def follow(name: str, read: Callable[[Path], list[Any]], folder: Path) -> None:
        before: set[Any] = set()
        while not ended.is_set():
            try:
                found = read(folder)
            except GONE as error:
                if "No such file" not in str(error):
                    wrong.append(f"{name}: {error}")
                continue
            if len(set(found)) != len(found) or not before <= set(found):
                wrong.append(f"{name}: {len(found)} rows, {len(set(found))} of them different")
            before = set(found)
            reads[name] += 1

    readers = [
        threading.Thread(target=follow, args=(name, read, archive.folder.rows))
        for name, read in ENGINES.items()
    ]
    readers.append(
        threading.Thread(target=follow, args=("duckdb", by_duckdb, archive.options.root))
    )
    for reader in readers:
        reader.start()
    end = 3

    def batches() -> Iterator[list[list[Any]]]:
        nonlocal end
        for number in itertools.count():
            if number > 50 and min(reads.values()) > 5:
                return
            start, end = end, end + chance.randrange(1, 20)
            yield [[batch(0, range(start, end))]]

    try:
        archive.follow(batches())
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    check_all(archive, rows_of((0, range(1, end))))
