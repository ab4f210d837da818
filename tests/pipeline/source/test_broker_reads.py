"""Reads from a broker, planned and run in this process as Spark would."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.errors import ClusterUnreachable, TimedOut, TopicNotFound
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess, free_port
from pyspark_ottla import OttlaDataSource
from pyspark_ottla.errors import DataLost, OptionError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import pieces, rows, values, write_transactions


def offsets(topic: str, **by_partition: int) -> str:
    return json.dumps({topic: {name[1:]: offset for name, offset in by_partition.items()}})


@pytest.fixture
def filled(broker: BrokerProcess, admin: Admin, topic: str) -> str:
    """60 records in three partitions, of timestamps 1 s apart; ends at now."""
    admin.create_topic(topic, 3)
    first = time.time_ns() // 1_000_000 - 60_000
    with Producer(broker.bootstrap) as producer:
        for number in range(60):
            producer.send(
                topic,
                b"v%d" % number,
                key=None if number % 2 else b"k",
                partition=number % 3,
                timestamp=first + number * 1000,
                headers=[("a", b"x"), ("b", None)] if number % 2 else None,
            )
        producer.flush()
    return topic


def test_a_partition_each(broker: BrokerProcess, filled: str) -> None:
    read = pieces(kafka__bootstrap__servers=broker.bootstrap, subscribe=filled)
    assert [len(piece) for piece in read] == [20, 20, 20]
    for index, piece in enumerate(read):
        assert [row["offset"] for row in piece] == list(range(20))
        assert {(row["topic"], row["partition"]) for row in piece} == {(filled, index)}
        assert [row["value"] for row in piece] == [b"v%d" % n for n in range(index, 60, 3)]


def test_headers(broker: BrokerProcess, filled: str) -> None:
    read = rows(kafka__bootstrap__servers=broker.bootstrap, subscribe=filled, includeHeaders="true")
    for row in read:
        odd = int(row["value"][1:]) % 2
        expected = [{"key": "a", "value": b"x"}, {"key": "b", "value": None}] if odd else None
        assert row["headers"] == expected
        assert row["key"] == (None if odd else b"k")


def test_selections(broker: BrokerProcess, admin: Admin, filled: str) -> None:
    admin.create_topic(f"{filled}-other", 1)
    servers = {"kafka__bootstrap__servers": broker.bootstrap}
    assert len(rows(**servers, subscribePattern=f"{filled}.*")) == 60
    assert len(rows(**servers, subscribe=f"{filled}, {filled}-other")) == 60
    assert len(rows(**servers, assign=json.dumps({filled: [2]}))) == 20
    assert rows(**servers, subscribePattern="no-such-.*") == []
    with pytest.raises(OptionError, match="has no partition 7"):
        rows(**servers, assign=json.dumps({filled: [7]}))
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        rows(**servers, subscribe="no-such-topic")


def test_offsets_and_pieces(broker: BrokerProcess, filled: str) -> None:
    read = pieces(
        kafka__bootstrap__servers=broker.bootstrap,
        subscribe=filled,
        startingOffsets=offsets(filled, p0=5, p1=-2, p2=20),
        endingOffsets=offsets(filled, p0=15, p1=-1, p2=-1),
        maxRecordsPerPartition=8,
        minPartitions=6,
    )
    assert len(read) == 6
    found = [(row["partition"], row["offset"]) for piece in read for row in piece]
    assert found == [(0, at) for at in range(5, 15)] + [(1, at) for at in range(20)]
    assert all(len(piece) <= 8 for piece in read)


def test_times(broker: BrokerProcess, filled: str) -> None:
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": filled}
    stamped = {row["value"]: int(row["timestamp"].timestamp() * 1000) for row in rows(**servers)}
    first = min(stamped.values())
    read = values(**servers, startingTimestamp=first + 30_000, endingTimestamp=first + 45_000)
    assert sorted(read) == sorted(b"v%d" % n for n in range(30, 45))
    late = json.dumps({filled: {"0": first, "1": first, "2": first + 100_000_000}})
    with pytest.raises(OptionError, match=f"startingOffsetsByTimestamp: {filled}-2 has no record"):
        values(**servers, startingOffsetsByTimestamp=late)
    kind = {"startingOffsetsByTimestampStrategy": "latest"}
    assert len(values(**servers, startingOffsetsByTimestamp=late, **kind)) == 40
    assert len(values(**servers, endingTimestamp=first + 100_000_000)) == 60


def test_a_range_that_ends_in_aborted_records_ends(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    committed = write_transactions(broker.bootstrap, topic)
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topic}
    servers["kafkaConsumer__pollTimeoutMs"] = "20000"
    assert values(**servers) == committed
    assert len(values(**servers, kafka__isolation__level="read_uncommitted")) == 40
    for parts in (2, 7, 44):
        split = pieces(**servers, minPartitions=parts)
        assert len(split) == parts
        assert [row["value"] for piece in split for row in piece] == committed


def test_open_transactions_are_left_for_later(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topic}
    with Producer(broker.bootstrap) as plain:
        plain.send(topic, b"before").result()
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush()
        assert values(**servers) == [b"before"]
        uncommitted = {"kafka__isolation__level": "read_uncommitted"}
        assert values(**servers, **uncommitted) == [b"before", b"open"]
        with pytest.raises(DataLost, match="after its last stable offset 1"):
            values(**servers, endingOffsets=offsets(topic, p0=2))
        producer.commit_transaction()
    assert values(**servers) == [b"before", b"open"]


def test_the_end_is_that_of_the_plan(broker: BrokerProcess, filled: str) -> None:
    source = OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled})
    reader = source.reader(source.schema())
    planned = reader.partitions()
    with Producer(broker.bootstrap) as producer:
        producer.send(filled, b"later", partition=0).result()
    assert sum(batch.num_rows for piece in planned for batch in reader.read(piece)) == 60
    assert len(rows(kafka__bootstrap__servers=broker.bootstrap, subscribe=filled)) == 61


def test_what_retention_took(broker: BrokerProcess, admin: Admin, filled: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled}
    lenient = OttlaDataSource({**given, "failondataloss": "false"})
    strict = OttlaDataSource(given)
    readers = [source.reader(source.schema()) for source in (strict, lenient)]
    plans = [reader.partitions() for reader in readers]
    admin.delete_records({TopicPartition(filled, 0): 12, TopicPartition(filled, 1): None})
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": filled}

    # Taken before the plan.
    from_zero = offsets(filled, p0=0, p1=0, p2=0)
    with pytest.raises(DataLost, match=f"{filled}-0 begins at offset 12"):
        rows(**servers, startingOffsets=from_zero)
    left = rows(**servers, startingOffsets=from_zero, failOnDataLoss="false")
    assert len(left) == 8 + 0 + 20
    assert len(rows(**servers)) == 28

    # Taken after it.
    with pytest.raises(DataLost, match=f"offset 0 of {filled}-0 is gone"):
        list(readers[0].read(plans[0][0]))
    counts = [sum(batch.num_rows for batch in readers[1].read(piece)) for piece in plans[1]]
    assert counts == [8, 0, 20]


def test_a_topic_that_was_made_anew(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topic}
    for value in (b"first", b"second"):
        admin.create_topic(topic, 1)
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, value).result()
        assert values(**servers) == [value]
        admin.delete_topics(topic)
    with pytest.raises(TopicNotFound):
        values(**servers)


def test_a_topic_that_is_deleted_after_the_plan(
    broker: BrokerProcess, admin: Admin, filled: str
) -> None:
    source = OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled})
    reader = source.reader(source.schema())
    planned = reader.partitions()
    admin.delete_topics(filled)
    with pytest.raises(DataLost, match=f"{filled}-0 is gone: its topic was deleted"):
        list(reader.read(planned[0]))
    lenient = OttlaDataSource({**source.options, "failondataloss": "false"})
    assert list(lenient.reader(source.schema()).read(planned[0])) == []


def test_a_topic_that_is_made_anew_after_the_plan(
    broker: BrokerProcess, admin: Admin, filled: str
) -> None:
    """As by a DataFrame that is used again: it keeps its plan."""
    source = OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled})
    reader = source.reader(source.schema())
    planned = reader.partitions()
    admin.delete_topics(filled)
    admin.create_topic(filled, 3)
    with Producer(broker.bootstrap) as producer:
        for number in range(90):
            producer.send(filled, b"another", partition=number % 3)
    with pytest.raises(DataLost, match=f"{filled}-0 is gone: its topic was deleted, and made anew"):
        list(reader.read(planned[0]))
    lenient = OttlaDataSource({**source.options, "failondataloss": "false"})
    assert list(lenient.reader(source.schema()).read(planned[0])) == []


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read(
    broker: BrokerProcess, admin: Admin, topic: str, anew: bool
) -> None:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "kafka.queued.max.messages.kbytes": "1000",
    }
    values = pa.table({"value": pa.array([b"x" * 800_000] * 30, pa.binary())})
    for strict in ("true", "false"):
        admin.create_topic(topic, 1)
        with Producer(broker.bootstrap) as producer:
            producer.write(topic, values)
            producer.flush()
        source = OttlaDataSource({**given, "failondataloss": strict})
        reader = source.reader(source.schema())
        (piece,) = reader.partitions()
        reading = reader.read(piece)
        read = next(reading).num_rows
        admin.delete_topics(topic)
        if anew:
            admin.create_topic(topic, 1)
            with Producer(broker.bootstrap) as producer:
                producer.write(topic, values)
                producer.flush()
        if strict == "true":
            with pytest.raises(DataLost, match=f"{topic}-0 is gone: its topic was deleted"):
                list(reading)
        else:
            read += sum(batch.num_rows for batch in reading)
            assert 0 < read < 30
        if anew:
            admin.delete_topics(topic)


def test_a_broker_that_is_away() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises((ClusterUnreachable, TimedOut), match=address):
        rows(
            kafka__bootstrap__servers=address,
            subscribe="orders",
            kafka__default__api__timeout__ms="500",
        )


def test_a_reader_that_stops_early(broker: BrokerProcess, filled: str) -> None:
    source = OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled})
    reader = source.reader(source.schema())
    reading = reader.read(reader.partitions()[0])
    next(reading)
    reading.close()
    assert len(rows(kafka__bootstrap__servers=broker.bootstrap, subscribe=filled)) == 60


def test_many_records_come_in_bounded_batches(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap, compression_type="zstd") as producer:
        for value, count in ((b"x" * 800_000, 60), (b"y", 201_000)):
            producer.write(topic, pa.table({"value": pa.array([value] * count, pa.binary())}))
        producer.flush()
    source = OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    reader = source.reader(source.schema())
    (piece,) = reader.partitions()
    sizes = [(batch.num_rows, batch.nbytes) for batch in reader.read(piece)]
    assert sum(count for count, _ in sizes) == 201_060
    assert all(count <= 200_000 and size < 48 * 1024 * 1024 for count, size in sizes)
