"""`ottla restore`: tables become topics again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ottla import Admin, Consumer
from ottla.client.admin.configs import Resource
from ottla.pipeline.restore import job as restoring
from ottla.pipeline.restore.job import RestoreOptions, Rounds, restore
from ottla.pipeline.restore.tables import Span, TableError, table_files
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.archives import LocalArchive, batch

RECORD = ("partition", "timestamp", "key", "value", "headers")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def archive(tmp_path: Path) -> LocalArchive:
    """Two partitions over several dates: offsets are not in the order of dates."""
    made = LocalArchive(tmp_path / "archive")
    made.write([[batch(0, range(250))], [batch(1, range(30, 120))]])
    return made


def options(broker: BrokerProcess, table: Path, topic: str, **more: Any) -> RestoreOptions:
    return RestoreOptions(broker.bootstrap, table, topic, table.parent.parent / "state", **more)


def values(broker: BrokerProcess, topic: str) -> dict[int, list[bytes]]:
    """Of each partition, in the order of offsets."""
    with Consumer(broker.bootstrap) as consumer:
        table = consumer.read(topic).sort_by([("partition", "ascending"), ("offset", "ascending")])
    found: dict[int, list[bytes]] = {}
    for row in table.select(["partition", "value"]).to_pylist():
        found.setdefault(row["partition"], []).append(row["value"])
    return found


def expected(*pieces: tuple[int, range]) -> dict[int, list[bytes]]:
    return {
        partition: [b"%d-%d" % (partition, number) for number in offsets]
        for partition, offsets in pieces
    }


class Crash(Exception):
    """The driver dies here."""


@pytest.mark.long
def test_a_restore_that_is_interrupted_and_one_that_comes_later(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: str,
    archive: LocalArchive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restoring, "PIECE", 100)
    chosen = options(broker, archive.folder.rows, topic)
    real = restoring._write
    writes = 0

    def dying(*given: Any) -> None:
        nonlocal writes
        real(*given)
        writes += 1
        if writes == 2:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_write", dying)
        with pytest.raises(Crash):
            restore(spark, chosen, print)
    # What comes after it began belongs to the next one.
    archive.write([[batch(0, range(250, 260))], [batch(1, range(120, 130))]])
    assert restore(spark, chosen, print) == 3
    assert values(broker, topic) == expected((0, range(250)), (1, range(30, 120)))
    assert restore(spark, chosen, print) == 2
    assert values(broker, topic) == expected((0, range(260)), (1, range(30, 130)))
    assert restore(spark, chosen, print) == 0


def test_all_of_a_record_comes_back(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """Of a table that others have made: one file, two partitions, no names that tell."""
    rows = pa.table(
        {
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array([b"1", b"2", None]),
            "partition": pa.array([1, 1, 1], pa.int32()),
            "offset": pa.array([7, 9, 8], pa.int64()),
            "timestamp": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None, [{"key": "i", "value": None}]], HEADERS
            ),
        }
    )
    table = tmp_path / "table" / "rows"
    table.mkdir(parents=True)
    pq.write_table(rows, table / "part-1.parquet")
    assert [file.span for file in table_files(table)] == [Span(1, 7, 9)]
    restore(spark, options(broker, table, topic), print)
    assert len(admin.describe_topics(topic)[topic].partitions) == 2
    settings = admin.describe_configs(Resource.topic(topic))[Resource.topic(topic)]
    assert settings["retention.ms"].value == "-1"  # else records of 1970 would not stay
    with Consumer(broker.bootstrap) as consumer:
        found = consumer.read(topic).sort_by("offset").select(RECORD).to_pylist()
    wanted = rows.sort_by("offset").select(RECORD).to_pylist()
    for row in wanted:
        row["headers"] = row["headers"] or []
    assert found == wanted


def test_by_key_and_as_json(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """A table without partitions and offsets, whose values are columns, into a topic that exists."""
    table = tmp_path / "table" / "rows"
    table.mkdir(parents=True)
    pq.write_table(
        pa.table({"key": [b"a"] * 20, "value": [{"n": number} for number in range(20)]}),
        table / "any.parquet",
    )
    admin.create_topic(topic, 3)
    told: list[str] = []
    with pytest.raises(TableError, match="--value-format json"):
        restore(spark, options(broker, table, topic), print)
    chosen = options(broker, table, topic, keep_partitions=False, json_values=True)
    for _ in range(2):
        restore(spark, chosen, told.append)
    assert "retention.ms=604800000" in told[0]
    (found,) = values(broker, topic).values()
    assert sorted(found) == sorted(b'{"n":%d}' % number for number in range(20))


def test_times_in_values_keep_their_microseconds(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table" / "rows"
    table.mkdir(parents=True)
    time = 1_773_489_600_123_456  # microseconds
    value = pa.struct([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
    column = pa.array([{"at": time, "local": time}], value)
    pq.write_table(pa.table({"value": column}), table / "any.parquet")
    restore(spark, options(broker, table, topic, json_values=True), print)
    ((found,),) = values(broker, topic).values()
    written = "2026-03-14T12:00:00.123456"
    assert json.loads(found) == {"at": f"{written}Z", "local": written}


def test_tables_are_found_by_what_they_are(tmp_path: Path, archive: LocalArchive) -> None:
    spans = {file.span for file in table_files(archive.folder.rows)}
    assert Span(1, 30, 119) in spans
    with pytest.raises(TableError, match="has no rows"):
        table_files(tmp_path / "nothing")
    pq.write_table(pa.table({"value": [b"1"]}), archive.folder.rows / "stranger.parquet")
    with pytest.raises(TableError, match="restore them apart"):
        table_files(archive.folder.rows)


def test_too_few_partitions(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, archive: LocalArchive
) -> None:
    admin.create_topic(topic, 1)
    with pytest.raises(TableError, match="--by-key"):
        restore(spark, options(broker, archive.folder.rows, topic), print)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, int]]]:
    """Restores without Spark: what comes of it is which rows, partition and offset, were written.

    As in the sink, a version of an application is written once.
    """
    done: dict[tuple[str, str], int] = {}
    written: list[tuple[int, int]] = []

    def write(piece: Any, chosen: RestoreOptions, application: str, version: int) -> None:
        if version > done.get((application, chosen.topic), -1):
            done[application, chosen.topic] = version
            for partition, offsets in piece.offsets.items():
                written.extend((partition, offset) for offset in offsets)

    monkeypatch.setattr(restoring, "_rows", lambda *_: None)
    monkeypatch.setattr(restoring.Piece, "ordered", lambda piece, _: piece)
    monkeypatch.setattr(restoring, "_write", write)

    def rows(chosen: RestoreOptions) -> list[tuple[int, int]]:
        written.clear()
        restore(cast(Any, None), chosen, print)
        return sorted(written)

    return rows


def offsets(*pieces: tuple[int, range]) -> list[tuple[int, int]]:
    return sorted((partition, offset) for partition, own in pieces for offset in own)


def test_a_topic_that_was_made_anew_is_restored_from_the_beginning(
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    archive: LocalArchive,
    sink: Callable[..., list[tuple[int, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restoring, "PIECE", 100)
    chosen = options(broker, archive.folder.rows, topic)
    everything = offsets((0, range(250)), (1, range(120)))
    real = restoring._write

    def dying(*given: Any) -> None:
        if given[-1] == 1:
            raise Crash
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_write", dying)
        with pytest.raises(Crash):
            sink(chosen)
    admin.delete_topics(topic)
    for again in (everything, []):
        assert sink(chosen) == again
    admin.delete_topics(topic)
    assert sink(chosen) == everything


def test_a_table_that_has_grown_since_the_state_was_lost(
    broker: BrokerProcess,
    topic: str,
    archive: LocalArchive,
    sink: Callable[..., list[tuple[int, int]]],
) -> None:
    chosen = options(broker, archive.folder.rows, topic)
    everything = offsets((0, range(250)), (1, range(120)))
    assert sink(chosen) == everything
    shutil.rmtree(chosen.state)
    assert sink(chosen) == []
    archive.write([[batch(0, range(250, 260))]])
    shutil.rmtree(chosen.state)
    assert set(offsets((0, range(250, 260)))) <= set(sink(chosen))


def test_rounds(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rounds.json"
    rounds = Rounds.load(path)
    assert rounds.begin({0: 10, 1: 5}) == 0
    assert Rounds.load(path).begin({0: 12}) == 0  # the same, until it is finished
    assert Rounds.load(path).ends == [{0: 10, 1: 5}]
    rounds.finish()
    assert Rounds.load(path).begin({0: 10, 1: 5}) is None
    again = Rounds.load(path)
    assert again.begin({0: 12, 2: 1}) == 1
    assert again.starts(1) == {0: 10, 1: 5}
    assert again.ends[1] == {0: 12, 1: 5, 2: 1}
