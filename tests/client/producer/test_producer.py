"""The producer against Ottla, against a broker that looks like Kafka 2.4, and against Apache Kafka."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from producer_kit.reading import Read, read_all

from ottla import Admin, AsyncProducer, Consumer, Producer
from ottla.client.errors import (
    BufferFull,
    ClientClosed,
    ConfigurationError,
    OttlaError,
    RecordTooLarge,
    TopicNotFound,
)
from ottla.client.formats import JsonFormat, UnsupportedColumn
from ottla.client.producer import Delivery
from ottla.client.producer.murmur2 import partition_of

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    with Producer(bootstrap) as made:
        yield made


@pytest.fixture
def made_topic(admin: Admin, topic: str) -> str:
    admin.create_topic(topic, partitions=3)
    return topic


def contents(found: list[Read]) -> list[tuple[Any, ...]]:
    return [(each.key, each.value, each.headers) for each in found]


def test_send(producer: Producer, bootstrap: str, made_topic: str) -> None:
    now = int(time.time() * 1000)
    sent = producer.send(
        made_topic,
        b"value",
        key="clé",
        timestamp=now,
        headers={"one": b"1", "none": None, "text": "é"},
    )
    delivery = sent.result(30)
    partition = partition_of("clé".encode(), 3)
    assert delivery == Delivery(made_topic, partition, 0, now)
    (found,) = read_all(bootstrap, made_topic)
    assert found == Read(
        partition,
        0,
        now,
        "clé".encode(),
        b"value",
        [("one", b"1"), ("none", None), ("text", "é".encode())],
    )


def test_many_sends_keep_their_order_and_know_their_offsets(
    producer: Producer, bootstrap: str, made_topic: str
) -> None:
    futures = [producer.send(made_topic, b"%d" % n, key=b"%d" % (n % 7)) for n in range(3000)]
    producer.flush()
    found = read_all(bootstrap, made_topic)
    by_place = {(each.partition, each.offset): each.value for each in found}
    for number, future in enumerate(futures):
        assert future.done()
        delivery = future.result()
        assert by_place[delivery.partition, delivery.offset] == b"%d" % number
    for partition in range(3):
        numbers = [int(each.value or b"") for each in found if each.partition == partition]
        assert numbers == sorted(numbers)
    assert len(found) == 3000


# Without NUL: the name of a header is a C string to the reader here, which would end there.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
records = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=6),
            "value": st.none() | st.binary(max_size=20),
            "headers": st.lists(
                st.fixed_dictionaries({"key": texts, "value": st.none() | st.binary(max_size=3)}),
                max_size=2,
            ),
        }
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize("codec", CODECS)
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=records)
def test_what_is_written_is_what_others_read(
    bootstrap: str, admin: Admin, codec: str, rows: list[dict[str, Any]]
) -> None:
    topic = f"written-{time.monotonic_ns()}"
    admin.create_topic(topic, partitions=1)
    expected = [
        (row["key"], row["value"], [(each["key"], each["value"]) for each in row["headers"]])
        for row in rows
    ]
    table = pa.table(
        {
            "key": pa.array([row["key"] for row in rows], pa.binary()),
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "headers": pa.array([row["headers"] for row in rows], HEADERS),
        }
    )
    with Producer(bootstrap, compression_type=codec) as producer:
        written = producer.write(topic, table).result(30)
        for key, value, headers in expected:
            producer.send(topic, value, key=key, headers=headers)
    assert written.records == len(rows)
    assert written.offsets == {(topic, 0): (0, len(rows))}
    assert contents(read_all(bootstrap, topic)) == expected * 2


def test_a_compression_level(bootstrap: str, made_topic: str) -> None:
    table = pa.table({"value": [b"abcdefgh" * 1000] * 200, "partition": [0] * 200})
    sizes = []
    for level in (1, 19):
        with Producer(bootstrap, compression_type="zstd", compression_level=level) as producer:
            sizes.append(producer.write(made_topic, table).result(30).bytes)
    assert sizes[0] != sizes[1]
    assert len(read_all(bootstrap, made_topic)) == 400


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 12), ("gzip", -1), ("lz4", -1), ("lz4", 22), ("snappy", 5)]
)
def test_compression_levels_as_librdkafka_takes_them(
    bootstrap: str, made_topic: str, codec: str, level: int
) -> None:
    """-1 is the codec's default; above its highest is its highest."""
    with Producer(bootstrap, compression_type=codec, compression_level=level) as producer:
        producer.send(made_topic, b"x" * 1000, partition=0).result(30)
        table = pa.table({"value": [b"y" * 1000] * 50, "partition": [0] * 50})
        producer.write(made_topic, table).result(30)
    assert len(read_all(bootstrap, made_topic)) == 51


def test_compression_levels_that_are_none() -> None:
    for codec, level in (("gzip", -2), ("lz4", -50)):
        with pytest.raises(ConfigurationError, match=f"{codec} is 0 to .* not {level}"):
            Producer("127.0.0.1:9", compression_type=codec, compression_level=level)


def test_rows_go_where_their_columns_say(
    producer: Producer, bootstrap: str, admin: Admin, topic: str
) -> None:
    other = f"{topic}-other"
    admin.create_topic(topic, partitions=3)
    admin.create_topic(other, partitions=1)
    now = int(time.time() * 1000)
    table = pa.table(
        {
            "value": ["a", "b", "c", "d"],
            "partition": pa.array([2, None, 0, 0], pa.int16()),
            "key": [None, b"k", b"k", None],
            "topic": pa.array([topic, topic, other, topic]).dictionary_encode(),
            "timestamp": pa.array([now, now + 1, None, now], pa.timestamp("ms", "UTC")),
        }
    )
    written = producer.write(None, table).result(30)
    assert written.records == 4
    assert set(written.offsets) == {
        (topic, 2),
        (topic, partition_of(b"k", 3)),
        (other, 0),
        (topic, 0),
    }
    found = {each.value: each for each in read_all(bootstrap, topic)}
    assert (found[b"a"].partition, found[b"a"].timestamp) == (2, now)
    assert (found[b"b"].partition, found[b"b"].timestamp) == (partition_of(b"k", 3), now + 1)
    assert found[b"d"].partition == 0
    (lone,) = read_all(bootstrap, other)
    assert lone.value == b"c"
    assert abs(lone.timestamp - now) < 60_000


def test_the_topic_that_is_named_wins_over_the_column(
    producer: Producer, bootstrap: str, admin: Admin, topic: str
) -> None:
    copy = f"{topic}-copy"
    admin.create_topic(topic, partitions=1)
    admin.create_topic(copy, partitions=1)
    producer.write(topic, pa.table({"key": ["a", "b"], "value": ["1", "2"]})).result(30)
    with Consumer(bootstrap) as consumer:
        # All the columns that a consumer gives: topic, offset and timestamp_type among them.
        written = producer.write(copy, consumer.read(topic)).result(30)
    assert written.offsets == {(copy, 0): (0, 2)}
    assert len(read_all(bootstrap, topic)) == 2
    found = read_all(bootstrap, copy)
    assert [(each.key, each.value) for each in found] == [(b"a", b"1"), (b"b", b"2")]
    with pytest.raises(ValueError, match="null in some row, and no topic was named"):
        producer.write(None, pa.table({"value": ["x", "y"], "topic": [topic, None]}))


def test_columns_that_would_be_lost_are_refused(
    producer: Producer, bootstrap: str, made_topic: str
) -> None:
    reserved = "key, value, headers, timestamp, partition, topic"
    table = pa.table({"price": [1], "value": [2], "item": ["pen"]})
    with pytest.raises(ValueError, match="the columns 'price', 'item' would be lost") as raised:
        producer.write(made_topic, table, format="json")
    assert reserved in str(raised.value)
    for name in ("topic", "offset", "timestamp_type"):
        with pytest.raises(ValueError, match=f"the column '{name}' would be lost") as raised:
            producer.write(made_topic, pa.table({name: ["x"], "price": [2]}), format="json")
        assert reserved in str(raised.value)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["price", "price"])
    with pytest.raises(ValueError, match="several columns called 'price'"):
        producer.write(made_topic, twice, format="json")
    producer.flush()
    assert read_all(bootstrap, made_topic) == []


FRAMES = {
    "table": lambda: pa.table({"a": [1, 2], "b": ["x", None]}),
    "batch": lambda: pa.record_batch({"a": [1, 2], "b": ["x", None]}),
    "reader": lambda: pa.table({"a": [1, 2], "b": ["x", None]}).to_reader(),
    "pandas": lambda: pandas.DataFrame({"a": [1, 2], "b": ["x", None]}),
    "polars": lambda: polars.DataFrame({"a": [1, 2], "b": ["x", None]}),
    "list of batches": lambda: [
        pa.record_batch({"a": [1], "b": ["x"]}),
        pa.table({"a": [2], "b": pa.array([None], pa.string())}),
    ],
}


@pytest.mark.parametrize("frame", FRAMES)
def test_anything_arrow_is_written(
    producer: Producer, bootstrap: str, made_topic: str, frame: str
) -> None:
    producer.write(made_topic, FRAMES[frame](), format=JsonFormat()).result(30)
    found = sorted(each.value or b"" for each in read_all(bootstrap, made_topic))
    assert found == [b'{"a":1,"b":"x"}', b'{"a":2,"b":null}']


def test_key_and_value_of_other_types(producer: Producer, bootstrap: str, made_topic: str) -> None:
    table = pa.table({"key": [1, None], "value": [{"a": 1}, None]})
    producer.write(made_topic, table, format="json", key_format="text").result(30)
    found = {(each.key, each.value) for each in read_all(bootstrap, made_topic)}
    assert found == {(b"1", b'{"a":1}'), (None, None)}


def test_numbers_that_are_none_are_told_and_do_no_harm(
    producer: Producer, bootstrap: str, made_topic: str
) -> None:
    """In a batch they would keep everything after them from being sent."""
    with pytest.raises(TypeError, match=r"milliseconds since 1970 or a datetime, not 1\.5"):
        producer.send(made_topic, b"x", timestamp=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a partition is a whole number, not 1\.0"):
        producer.send(made_topic, b"x", partition=1.0)  # type: ignore[arg-type]
    sent = producer.send(made_topic, b"y", partition=np.int64(1), timestamp=np.int64(5))
    assert sent.result(30) == (made_topic, 1, 0, 5)
    assert [each.value for each in read_all(bootstrap, made_topic)] == [b"y"]


def test_tables_that_cannot_be_written(producer: Producer, made_topic: str) -> None:
    with pytest.raises(ValueError, match="nothing says what to do with the column 'a'"):
        producer.write(made_topic, pa.table({"a": [1]}))
    with pytest.raises(TypeError, match="'value' is int64"):
        producer.write(made_topic, pa.table({"value": [1]}))
    with pytest.raises(TypeError, match="'key' is int64"):
        producer.write(made_topic, pa.table({"key": [1], "value": ["x"]}))
    with pytest.raises(ValueError, match="not one of the topic's 3"):
        producer.write(made_topic, pa.table({"value": ["x"], "partition": [3]}))
    with pytest.raises(ValueError, match="no topic"):
        producer.write(None, pa.table({"value": ["x"]}))
    with pytest.raises(TypeError, match="dict"):
        producer.write(made_topic, {"value": ["x"]})
    with pytest.raises(UnsupportedColumn):
        producer.write(made_topic, pa.table({"b": [b"\xff"]}), format="json")
    with pytest.raises(TopicNotFound, match="there is no partition 7"):
        producer.send(made_topic, b"x", partition=7)
    with pytest.raises(TypeError, match="not int"):
        producer.send(made_topic, 5)  # type: ignore[arg-type]
    for timestamp in (-1, 2**63):
        with pytest.raises(ValueError, match="milliseconds since 1970"):
            producer.send(made_topic, b"x", timestamp=timestamp)


def test_a_large_table_arrives_whole_and_in_order(
    producer: Producer, bootstrap: str, made_topic: str
) -> None:
    count = 120_000
    values = pa.array([b"%0100d" % number for number in range(count)])
    written = producer.write(made_topic, pa.table({"value": values})).result(60)
    assert written.records == count
    assert sum(last - first for first, last in written.offsets.values()) == count
    found = read_all(bootstrap, made_topic)
    for partition in range(3):
        numbers = [int(each.value or b"") for each in found if each.partition == partition]
        assert numbers == sorted(numbers)
    assert sorted(int(each.value or b"") for each in found) == list(range(count))


def test_from_several_threads(producer: Producer, bootstrap: str, made_topic: str) -> None:
    def work(name: int) -> None:
        for number in range(300):
            producer.send(made_topic, b"%d-%d" % (name, number), partition=0)
        table = pa.table({"value": [f"{name}-{number}" for number in range(300, 600)]})
        producer.write(made_topic, table.append_column("partition", pa.array([0] * 300)))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    values = [(each.value or b"").decode() for each in read_all(bootstrap, made_topic)]
    for name in range(4):
        own = [int(value.split("-")[1]) for value in values if value.startswith(f"{name}-")]
        assert own == list(range(600))


async def test_async_twin(bootstrap: str, made_topic: str) -> None:
    async with AsyncProducer(bootstrap) as producer:
        futures = [await producer.send(made_topic, b"%d" % n, partition=1) for n in range(100)]
        deliveries = await asyncio.gather(*futures)
        assert [each.offset for each in deliveries] == list(range(100))
        written = await (
            await producer.write(made_topic, pa.table({"value": ["x"], "partition": [1]}))
        )
        assert written.offsets == {(made_topic, 1): (100, 101)}
        with pytest.raises(ValueError, match="nothing says"):
            await producer.write(made_topic, pa.table({"a": [1]}))
    found = await asyncio.to_thread(read_all, bootstrap, made_topic)
    assert [each.value for each in found] == [b"%d" % n for n in range(100)] + [b"x"]
    with pytest.raises(ClientClosed):
        await producer.send(made_topic, b"too late")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("idempotence", [None, False])
def test_acks(bootstrap: str, made_topic: str, acks: str, idempotence: bool | None) -> None:
    with Producer(bootstrap) as producer:
        # Without acknowledgements nobody says that the broker does not know so new a topic yet.
        producer.send(made_topic, b"first", partition=0).result(30)
    options = {"acks": acks, "enable.idempotence": idempotence}
    with Producer({"bootstrap.servers": bootstrap, **options}) as producer:
        futures = [producer.send(made_topic, b"%d" % n, partition=0) for n in range(50)]
        producer.flush()
        offsets = [future.result(30).offset for future in futures]
        assert offsets == ([-1] * 50 if acks == "0" else list(range(1, 51)))
        # Without acknowledgements the end of the connection says that all was taken.
        producer.send(made_topic, b"end", partition=0)
    expected = [b"first", *(b"%d" % n for n in range(50)), b"end"]
    deadline = time.monotonic() + 20
    found: list[bytes | None] = []
    while found != expected and time.monotonic() < deadline:
        found = [each.value for each in read_all(bootstrap, made_topic)]
    assert found == expected


def test_the_futures_are_futures(producer: Producer, made_topic: str) -> None:
    told: list[int] = []
    futures = [producer.send(made_topic, b"x", partition=0) for _ in range(5)]
    futures[0].add_done_callback(lambda future: told.append(future.result().offset))
    done, waiting = concurrent.futures.wait(futures, timeout=30)
    assert (len(done), len(waiting)) == (5, 0)
    assert {each.result().offset for each in concurrent.futures.as_completed(futures)} == set(
        range(5)
    )
    assert told == [0]
    cancelled = producer.send(made_topic, b"x")
    if cancelled.cancel():
        with pytest.raises(concurrent.futures.CancelledError):
            cancelled.result()
    producer.flush()
    with pytest.raises(concurrent.futures.TimeoutError):
        concurrent.futures.Future.result(Producer.send(producer, made_topic, b"y"), timeout=0)

    async def awaited() -> Delivery:
        return await asyncio.wrap_future(producer.send(made_topic, b"z", partition=1))

    assert asyncio.run(awaited()).partition == 1


def test_a_topic_that_is_not_there(bootstrap: str, topic: str) -> None:
    options = {"max_block_ms": 300, "allow_auto_create_topics": False}
    with Producer(bootstrap, **options) as producer:
        with pytest.raises(TopicNotFound, match=topic):
            producer.send(topic, b"x")
        with pytest.raises(TopicNotFound, match=topic):
            producer.write(topic, pa.table({"value": ["x"]}))


def test_a_topic_that_comes_while_it_is_waited_for(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    with (
        Producer(bootstrap, allow_auto_create_topics=False) as producer,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        sending = pool.submit(producer.send, topic, b"x")
        admin.create_topic(topic, partitions=1)
        assert sending.result(30).result(30).offset == 0


def test_new_partitions_are_found(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap, metadata_max_age_ms=100, partitioner="round_robin") as producer:
        assert producer.send(topic, b"x").result(30).partition == 0
        admin.create_partitions(topic, 3)
        deadline = time.monotonic() + 30
        seen: set[int] = set()
        while seen != {0, 1, 2} and time.monotonic() < deadline:
            seen.add(producer.send(topic, b"x").result(30).partition)
        assert seen == {0, 1, 2}


def test_records_that_are_too_large(
    producer: Producer, bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, settings={"max.message.bytes": "2000"})
    with pytest.raises(RecordTooLarge, match=r"message\.max\.bytes"):
        producer.send(topic, b"x" * 2_000_000)
    with pytest.raises(RecordTooLarge, match=r"message\.max\.bytes"):
        producer.write(topic, pa.table({"value": [b"x" * 2_000_000]}))
    # The producer would send it; the topic does not take it.
    with pytest.raises(RecordTooLarge, match="MESSAGE_TOO_LARGE"):
        producer.send(topic, b"x" * 3000).result(30)
    with pytest.raises(RecordTooLarge):
        producer.flush()
    assert producer.send(topic, b"small").result(30).offset == 0


def test_batches_that_are_too_large_are_split(
    producer: Producer, bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, settings={"max.message.bytes": "2000"})
    values = [b"%03d" % number * 30 for number in range(200)]
    futures = [producer.send(topic, value) for value in values]
    written = producer.write(topic, pa.table({"value": values}))
    assert [future.result(30).offset for future in futures] == list(range(200))
    assert written.result(30).offsets == {(topic, 0): (200, 400)}
    producer.flush()
    assert [each.value for each in read_all(bootstrap, topic)] == values * 2


def test_flush_and_close_tell_of_failures_that_nobody_looked_at(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, settings={"max.message.bytes": "2000"})
    producer = Producer(bootstrap)
    producer.send(topic, b"x" * 3000)
    with pytest.raises(RecordTooLarge):
        producer.flush()
    producer.flush()
    producer.send(topic, b"x" * 3000)
    with pytest.raises(RecordTooLarge):
        producer.close()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(topic, b"x")


def test_a_full_buffer_holds_writers_back_and_loses_nothing(
    bootstrap: str, made_topic: str
) -> None:
    options = {"buffer_memory": 20_000, "batch_size": 1000, "linger_ms": 0}
    with Producer(bootstrap, **options) as producer:
        for number in range(2000):
            producer.send(made_topic, b"%0100d" % number, partition=0)
        values = pa.array([b"%0100d" % number for number in range(2000, 4000)])
        table = pa.table({"value": values, "partition": pa.array([0] * 2000)})
        producer.write(made_topic, table)
        assert producer._core.accumulator.used <= 20_000
    found = [int(each.value or b"") for each in read_all(bootstrap, made_topic)]
    assert found == list(range(4000))


def test_options_that_contradict_each_other() -> None:
    nowhere = "127.0.0.1:9"
    with pytest.raises(ConfigurationError, match="acks=all"):
        Producer(nowhere, enable_idempotence=True, acks=1)
    with pytest.raises(ConfigurationError, match="at most 5"):
        Producer(nowhere, enable_idempotence=True, max_in_flight=6)
    with pytest.raises(ConfigurationError, match="acks=all"):
        Producer(nowhere, transactional_id="t", acks=1)
    with pytest.raises(ConfigurationError, match="murmur2_random"):
        Producer(nowhere, partitioner="whatever")
    with Producer(nowhere) as producer, pytest.raises(ConfigurationError, match="transactional"):
        producer.begin_transaction()


def test_no_broker_at_all(topic: str) -> None:
    with (
        Producer("127.0.0.1:9", max_block_ms=200) as producer,
        pytest.raises(OttlaError, match=r"127\.0\.0\.1:9"),
    ):
        producer.send(topic, b"x")


def test_a_buffer_that_stays_full(bootstrap: str, made_topic: str) -> None:
    # With a linger of a minute nothing is sent before the record that finds no room gives up.
    options = {"buffer_memory": 1000, "max_block_ms": 200, "linger_ms": 60_000}
    producer = Producer(bootstrap, **options)
    producer.send(made_topic, b"x" * 800, partition=0)
    with pytest.raises(BufferFull, match=r"buffer\.memory"):
        producer.send(made_topic, b"x" * 800, partition=1)
    producer.close()
    assert len(read_all(bootstrap, made_topic)) == 1
