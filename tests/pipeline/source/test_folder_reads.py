"""Reads of log folders, with no broker running: whole, cut off, damaged, with transactions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.positions import TopicPartition
from ottla.record.batch import Record, build_batch
from ottla.record.control import build_end_of_transaction
from ottla.record.deletion import build_mark
from ottla.testing import BrokerProcess
from pyspark_ottla import folder as folders
from pyspark_ottla.errors import DamagedLog, DataLost, OptionError
from pyspark_ottla.options import read_options

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import pieces, rows, values, write_transactions


def batch(first: int, count: int = 1, producer: int = -1) -> bytes:
    return build_batch(
        [Record(first + n, 1000 + n, None, b"%d" % (first + n)) for n in range(count)],
        base_offset=first,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        transactional=producer >= 0,
    )


def ending(offset: int, producer: int, *, committed: bool) -> bytes:
    return build_end_of_transaction(
        committed=committed,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1000,
        base_offset=offset,
    )


def write_log(data: Path, segments: dict[int, Iterable[bytes]], name: str = "orders-0") -> Path:
    log = data / name
    log.mkdir(parents=True)
    for base_offset, batches in segments.items():
        (log / f"{base_offset:020}.log").write_bytes(b"".join(batches))
    return log


def numbers(*spans: range) -> list[bytes]:
    return [b"%d" % number for span in spans for number in span]


# Producer 7 aborts 4..6 (marker 9), producer 8 commits 7..8 (marker 10), 7 commits 11..12 (13) and 15
# (16), and has one more open from 17 on. The abort begins in the first segment and ends in the second.
TRANSACTIONS = {
    0: [batch(0, 4), batch(4, 2, producer=7)],
    6: [
        batch(6, 1, producer=7),
        batch(7, 2, producer=8),
        ending(9, 7, committed=False),
        ending(10, 8, committed=True),
        batch(11, 2, producer=7),
        ending(13, 7, committed=True),
    ],
    14: [
        batch(14),
        batch(15, 1, producer=7),
        ending(16, 7, committed=True),
        batch(17, 1, producer=7),
        batch(18),
    ],
}
COMMITTED = numbers(range(4), range(7, 9), range(11, 13), range(14, 16))


def test_transactions(tmp_path: Path) -> None:
    write_log(tmp_path, TRANSACTIONS)
    assert values(path=tmp_path) == COMMITTED
    assert values(path=tmp_path, kafka__isolation__level="read_uncommitted") == numbers(
        range(9), range(11, 13), range(14, 16), range(17, 19)
    )


@pytest.mark.parametrize("mark_every", [1, 100, 10**6])
@pytest.mark.parametrize("parts", [2, 3, 5, 15])
def test_transactions_in_pieces(
    tmp_path: Path, parts: int, mark_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_MARK_EVERY", mark_every)
    write_log(tmp_path, TRANSACTIONS)
    split = pieces(path=tmp_path, minPartitions=parts)
    assert len(split) == parts
    assert [row["value"] for piece in split for row in piece] == COMMITTED


@pytest.mark.parametrize("parts", [1, 3])
def test_records_that_were_deleted_one_by_one(tmp_path: Path, parts: int) -> None:
    segments = {
        0: [batch(0, 4), batch(4, 2), build_mark([(1, 2)], base_offset=6)],
        7: [batch(7, 3), build_mark([(4, 6), (9, 10)], base_offset=10), batch(11, 2)],
    }
    write_log(tmp_path, segments)
    split = pieces(path=tmp_path, minPartitions=parts)
    assert [row["offset"] for piece in split for row in piece] == [0, 2, 3, 7, 8, 11, 12]


def test_a_folder_of_one_log(tmp_path: Path) -> None:
    log = write_log(tmp_path, {0: [batch(0, 3)]}, "a-b-12")
    read = rows(path=log)
    assert [(row["topic"], row["partition"], row["offset"]) for row in read] == [
        ("a-b", 12, offset) for offset in range(3)
    ]
    assert rows(path=log.as_uri()) == read


def test_which_logs(tmp_path: Path) -> None:
    write_log(tmp_path, {0: [batch(0, 1)]}, "orders-0")
    write_log(tmp_path, {0: [batch(0, 2)]}, "orders-1")
    write_log(tmp_path, {0: [batch(0, 4)]}, "other-0")
    write_log(tmp_path, {0: [batch(0, 8)]}, "__consumer_offsets-0")
    write_log(tmp_path, {0: [batch(0, 16)]}, "orders-2.0123456789-delete")
    (tmp_path / "orders-3").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert len(rows(path=tmp_path)) == 7
    assert len(rows(path=tmp_path, subscribe="orders")) == 3
    assert len(rows(path=tmp_path, assign='{"orders": [1]}')) == 2
    assert len(rows(path=tmp_path, subscribePattern="__.*|other")) == 12
    with pytest.raises(OptionError, match="subscribe: there is no log of absent"):
        rows(path=tmp_path, subscribe="absent")
    with pytest.raises(OptionError, match=r"path: .* holds no logs"):
        rows(path=tmp_path / "orders-3")
    with pytest.raises(OptionError, match=r"path: .* is no folder"):
        rows(path=tmp_path / "nowhere")


def test_offsets(tmp_path: Path) -> None:
    write_log(tmp_path, {10: [batch(10, 10)], 20: [batch(20, 10)], 30: []})
    read = values(
        path=tmp_path,
        startingOffsets='{"orders": {"0": 15}}',
        endingOffsets='{"orders": {"0": 25}}',
    )
    assert read == numbers(range(15, 25))
    with pytest.raises(DataLost, match="orders-0 begins at offset 10"):
        rows(path=tmp_path, startingOffsets='{"orders": {"0": 5}}')
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 17\n")
    assert values(path=tmp_path) == numbers(range(17, 30))


@pytest.mark.parametrize("missing", range(1, 80, 6))
def test_a_torn_tail(tmp_path: Path, missing: int) -> None:
    last = batch(5, 2)
    write_log(tmp_path, {0: [batch(0, 5), last[: max(1, len(last) - missing)]]})
    assert values(path=tmp_path) == numbers(range(5))


def test_batches_of_all_sizes(tmp_path: Path) -> None:
    # The plan reads many small batches' headers at once, those of large ones one by one.
    counts = [*[1] * 900, 1000, *[3] * 500, 2000, 1500, *[1, 400] * 20]
    starts = [sum(counts[:number]) for number in range(len(counts))]
    end = sum(counts)
    batches = [batch(start, count) for start, count in zip(starts, counts, strict=True)]
    open_ = batch(end, 2, producer=7)
    write_log(tmp_path, {0: batches[:1200], starts[1200]: [*batches[1200:], open_]})
    assert values(path=tmp_path) == numbers(range(end))
    part = {"startingOffsets": '{"orders": {"0": 905}}', "endingOffsets": '{"orders": {"0": 4321}}'}
    assert values(path=tmp_path, minPartitions=5, **part) == numbers(range(905, 4321))


def test_space_that_was_set_aside(tmp_path: Path) -> None:
    write_log(tmp_path, {0: [batch(0, 5), bytes(5000)]})
    assert values(path=tmp_path) == numbers(range(5))


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ({0: [batch(0, 5)[:-1]], 5: [batch(5)]}, "offset 0 .* is cut off"),
        ({0: [batch(0, 5), bytes(100), batch(5)]}, r"offset 5 \(byte \d+\) is no batch"),
        ({0: [batch(0, 5), batch(3)]}, r"offset 5 \(byte \d+\) is no batch"),
        ({0: [batch(0, 5), batch(5)[:16] + b"\x09" * 80]}, r"offset 5 \(byte \d+\) is no batch"),
        ({0: [batch(0, 5)], 3: [batch(3)]}, "offset 3 is in the segment before it"),
    ],
)
def test_damage_in_the_order_of_batches(
    tmp_path: Path, segments: dict[int, list[bytes]], said: str
) -> None:
    log = write_log(tmp_path, segments)
    with pytest.raises(DamagedLog, match=said) as raised:
        rows(path=tmp_path)
    assert str(log) in str(raised.value)


def test_a_damaged_batch(tmp_path: Path) -> None:
    damaged = bytearray(batch(5, 2))
    damaged[-1] ^= 1
    log = write_log(tmp_path, {0: [batch(0, 5), damaged, batch(7)]})
    with pytest.raises(DamagedLog, match="batch at offset 5: the CRC32C does not match") as raised:
        rows(path=tmp_path)
    assert str(log / f"{0:020}.log") in str(raised.value)
    # What lies before and after can be read by its offsets.
    assert values(path=tmp_path, endingOffsets='{"orders": {"0": 5}}') == numbers(range(5))
    assert values(path=tmp_path, startingOffsets='{"orders": {"0": 7}}') == numbers(range(7, 8))


def test_a_segment_that_goes_after_the_plan(tmp_path: Path) -> None:
    log = write_log(tmp_path, {0: [batch(0, 5)], 5: [batch(5, 5)]})
    strict = read_options({"path": str(tmp_path)})
    lenient = read_options({"path": str(tmp_path), "failondataloss": "false"})
    (piece,) = folders.plan(strict)
    (log / f"{0:020}.log").unlink()
    with pytest.raises(DataLost, match=f"{0:020}.log is gone"):
        list(folders.read(piece, strict))
    assert sum(batch.num_rows for batch in folders.read(piece, lenient)) == 5


def test_a_segment_that_was_to_take_the_place_of_others(tmp_path: Path) -> None:
    """As a broker leaves it that is killed in the middle of that, and as one has it for a moment."""
    log = write_log(tmp_path, {0: [batch(0, 4)], 2: [batch(2, 2)], 4: [batch(4, 3)]})
    own, under_way = log / f"{0:020}.log", log / f"{0:020}.log.swap"
    own.rename(under_way)
    options = read_options({"path": str(tmp_path)})
    plan = folders.plan(options)
    assert values(path=tmp_path) == numbers(range(7))
    under_way.rename(own)
    assert sum(found.num_rows for piece in plan for found in folders.read(piece, options)) == 7


def compare_with_broker(bootstrap: str, data: Path, topic: str) -> None:
    """The folder of a broker gives what the broker gives."""
    with Admin(bootstrap) as admin:
        # Small segments, so that transactions cross them.
        admin.create_topic(topic, 2, settings={"segment.bytes": "1048576"})
        write_transactions(bootstrap, topic)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with Producer(bootstrap, compression_type=codec) as producer:
                for number in range(300):
                    producer.send(
                        topic,
                        b"%d" % number * 1000,
                        key=b"key",
                        partition=number % 2,
                        headers=[("h", b"x")],
                    )
        admin.delete_records({TopicPartition(topic, 1): 3})
        for isolation in ("read_committed", "read_uncommitted"):
            common = {"subscribe": topic, "includeHeaders": "true", "minPartitions": 5}
            common["kafka__isolation__level"] = isolation
            online = rows(kafka__bootstrap__servers=bootstrap, **common)
            assert len(online) > 1500
            # The checkpoint of log starts is written now and then: it may be behind.
            offline = [
                row
                for row in rows(path=data, **common)
                if row["partition"] == 0 or row["offset"] >= 3
            ]
            assert offline == online


def test_a_folder_of_ottla(broker: BrokerProcess, topic: str) -> None:
    compare_with_broker(broker.bootstrap, broker.data, topic)


@pytest.mark.long
@pytest.mark.interop
def test_a_folder_of_apache_kafka(apache: Any, topic: str) -> None:
    compare_with_broker(apache.bootstrap, apache.data, topic)
