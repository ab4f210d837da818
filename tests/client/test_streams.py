"""What the consumer hands out goes into pandas, polars and DuckDB as it is, by Arrow's C stream."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

from ottla import Admin, AsyncConsumer, Consumer, Producer
from ottla.client.errors import AlreadyRead, ClientClosed

ROWS = 3000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def written(bootstrap: str, admin: Admin, topic: str) -> str:
    """A topic of one partition with nulls, empty values and headers, in several batches."""
    admin.create_topic(topic, partitions=1)
    numbers = range(ROWS)
    table = pa.table(
        {
            "key": pa.array([None if n % 3 == 0 else f"k{n % 7}" for n in numbers]),
            "value": pa.array([None if n % 10 == 9 else f"{n}" * (n % 4) for n in numbers]),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] * (n % 2) for n in numbers], HEADERS
            ),
            "timestamp": pa.array([1_763_208_000_000 + n for n in numbers]),
        }
    )
    with Producer(bootstrap, batch_size=10_000) as producer:
        producer.write(topic, table)
    return topic


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    with Consumer(bootstrap, max_rows=500) as made:
        yield made


def expected(consumer: Consumer, topic: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = consumer.read(topic).to_pylist()
    assert [row["offset"] for row in rows] == list(range(ROWS))
    return rows


def test_polars(consumer: Consumer, written: str) -> None:
    frame = polars.DataFrame(consumer.scan(written))
    assert frame.schema["timestamp"] == polars.Datetime("ms", "UTC")
    assert frame.schema["value"] == polars.Binary
    assert frame.to_dicts() == expected(consumer, written)


def test_duckdb(consumer: Consumer, written: str) -> None:
    rows = expected(consumer, written)
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        answer = (
            database.from_arrow(consumer.scan(written))
            .query(
                "found",
                'select topic, "partition", "offset", epoch_ms("timestamp"), timestamp_type, key, value,'
                " [each.value for each in headers] from found",
            )
            .fetchall()
        )
    assert answer == [
        (
            row["topic"],
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),  # type: ignore[attr-defined]
            row["timestamp_type"],
            row["key"],
            row["value"],
            [header["value"] for header in row["headers"]],  # type: ignore[attr-defined]
        )
        for row in rows
    ]


def test_duckdb_stops_early(consumer: Consumer, written: str) -> None:
    """Who takes a part only does not hold up what comes after."""
    found = consumer.scan(written)
    assert duckdb.from_arrow(found).limit(1).fetchall()
    found.close()
    assert consumer.read(written).num_rows == ROWS


def test_pandas(consumer: Consumer, written: str) -> None:
    whole = pa.table(consumer.scan(written)).to_pandas()
    pieces = pandas.concat([batch.to_pandas() for batch in consumer.scan(written)])
    assert str(whole.dtypes["timestamp"]) == "datetime64[ms, UTC]"
    assert str(whole.dtypes["topic"]) == "category"
    assert whole["value"].isna().sum() == ROWS // 10
    for column in ("topic", "partition", "offset", "timestamp", "key", "value"):
        assert whole[column].tolist() == pieces[column].tolist()
        assert whole[column].where(whole[column].notna(), None).tolist() == [
            row[column] for row in expected(consumer, written)
        ]


def test_batches_of_a_subscription(consumer: Consumer, written: str) -> None:
    """The stream of `batches` ends when nothing comes any more."""
    consumer.assign({(written, 0): "earliest"})
    frame = polars.DataFrame(consumer.batches(timeout=1.0))
    assert frame["offset"].to_list() == list(range(ROWS))
    assert consumer.position((written, 0)) == ROWS


def test_what_was_read_can_be_written(
    bootstrap: str, consumer: Consumer, written: str, admin: Admin, topic: str
) -> None:
    """A topic is copied by handing one's stream to the other."""
    copy = f"{topic}-copy"
    admin.create_topic(copy, partitions=1)
    with Producer(bootstrap) as producer:
        columns = ["partition", "timestamp", "key", "value", "headers"]
        producer.write(copy, consumer.scan(written, columns=columns))
    names = ["offset", *columns]
    assert consumer.read(copy).select(names) == consumer.read(written).select(names)


def test_a_scan_that_was_read_is_not_an_empty_one(consumer: Consumer, written: str) -> None:
    scan = consumer.scan(written)
    whole = pa.table(scan)
    assert whole.num_rows > 0
    for again in (
        lambda: pa.table(scan),
        lambda: polars.DataFrame(scan),
        lambda: list(scan),
        scan.reader,
    ):
        with pytest.raises(AlreadyRead, match="read to its end already; begin another"):
            again()
    scan.close()
    with pytest.raises(AlreadyRead):
        list(scan)


def test_a_scan_can_be_left_and_taken_up_again(consumer: Consumer, written: str) -> None:
    whole = consumer.read(written)
    scan = consumer.scan(written)
    first = next(iter(scan))
    rest = pa.table(scan)
    assert first.num_rows + rest.num_rows == whole.num_rows
    closed = consumer.scan(written)
    closed.close()
    with pytest.raises(ClientClosed, match="the scan was closed"):
        pa.table(closed)


def test_an_empty_topic_is_read_once_as_empty(admin: Admin, consumer: Consumer, topic: str) -> None:
    admin.create_topic(topic)
    scan = consumer.scan(topic)
    assert pa.table(scan).num_rows == 0
    with pytest.raises(AlreadyRead):
        pa.table(scan)


async def test_the_same_in_asyncio(bootstrap: str, written: str) -> None:
    async with AsyncConsumer(bootstrap) as consumer:
        scan = await consumer.scan(written)
        assert [rows async for rows in scan]
        with pytest.raises(AlreadyRead):
            [rows async for rows in scan]
