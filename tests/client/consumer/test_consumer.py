"""The consumer against Ottla, against a broker that looks like Kafka 2.4, and against Apache Kafka."""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from consumer_kit.writing import NOW, values, write, write_values

from ottla import Admin, AsyncConsumer, Consumer
from ottla.client.admin.offsets import CommittedOffset
from ottla.client.consumer.partitions import MOST_RESULTS
from ottla.client.errors import (
    ClientClosed,
    ConfigurationError,
    CorruptRecords,
    NoStartingOffset,
    OffsetOutOfRange,
    OttlaError,
    TimedOut,
    TopicNotFound,
)
from ottla.client.positions import TopicPartition
from ottla.record.batch import Record, build_batch
from ottla.record.compression.codecs import Codec
from ottla.testing import BrokerProcess
from ottla.wire import connection as wire_connection

PATIENCE = 20  # seconds


def texts(table: pa.Table | pa.RecordBatch) -> list[str]:
    return [value.decode() for value in table.column("value").to_pylist()]


def drain(consumer: Consumer, count: int) -> list[str]:
    """The values of the next `count` rows, whichever batches they come in."""
    found: list[str] = []
    while len(found) < count:
        rows = consumer.next_batch(timeout=PATIENCE)
        assert rows is not None, f"{len(found)} of {count} rows came"
        found += texts(rows)
    return found


def test_a_topic_as_a_table(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    record = Record(0, NOW, b"k", b"v", (("h", b"1"), ("n", None)))
    write(bootstrap, topic, 0, [build_batch([record, Record(1, -1, None, None)])])
    write_values(bootstrap, topic, 1, *"abc", codec=Codec.ZSTD)
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic)
        assert table.schema == consumer.schema
        assert table.schema.field("topic").type == pa.dictionary(pa.int32(), pa.string())
        table.validate(full=True)
        rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert [row["partition"] for row in rows] == [0, 0, 1, 1, 1]
    assert {row["topic"] for row in rows} == {topic}
    time_of_record = datetime.fromtimestamp(NOW / 1000, UTC)
    assert rows[0] == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": time_of_record,
        "timestamp_type": 0, "key": b"k", "value": b"v",
        "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
    }  # fmt: skip
    assert (rows[1]["key"], rows[1]["value"], rows[1]["headers"]) == (None, None, [])


def test_between_offsets_and_times(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    write(
        bootstrap,
        topic,
        0,
        [build_batch(values(*"abcdef")), build_batch(values(*"ghij", at=NOW + 6))],
    )
    moment = datetime.fromtimestamp((NOW + 4) / 1000, UTC)
    with Consumer(bootstrap) as consumer:
        assert texts(consumer.read(topic, 2, 5)) == list("cde")
        assert texts(consumer.read(topic, {0: 8})) == list("ij")
        assert texts(consumer.read(topic, -3)) == list("hij")
        assert texts(consumer.read(topic, "earliest", moment)) == list("abcd")
        assert texts(consumer.read(topic, moment, 8)) == list("efgh")
        assert texts(consumer.read(topic, "latest")) == []
        assert texts(consumer.read(topic, 7, 7)) == []
        assert texts(consumer.read(topic, 8, 1000)) == list("ij")  # what is there now
        narrow = consumer.read(topic, 3, 5, columns=["offset", "partition"])
        assert narrow.to_pylist() == [{"offset": 3, "partition": 0}, {"offset": 4, "partition": 0}]
        with pytest.raises(ValueError, match="no partition 1"):
            consumer.read(topic, {1: 0})
        with pytest.raises(OffsetOutOfRange):
            consumer.read(topic, 11, 12)
        with pytest.raises(TopicNotFound):
            consumer.read("no-such-topic")


def test_others_take_the_stream(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, *"abc")
    with Consumer(bootstrap, columns=["value", "topic"]) as consumer:
        assert texts(pa.table(consumer.scan(topic))) == list("abc")
        reader = pa.RecordBatchReader.from_stream(consumer.scan(topic))
        assert texts(reader.read_all()) == list("abc")
        with consumer.scan(topic) as batches:
            assert batches.schema == consumer.schema


def test_records_one_by_one_and_then_batches(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, *"abcdef")
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap) as consumer:
        consumer.assign({place: "earliest"})
        first, second = itertools.islice(consumer, 2)
        assert (first.topic, first.offset, first.key, first.value) == (topic, 0, b"0", b"a")
        assert first.timestamp == datetime.fromtimestamp(NOW / 1000, UTC)
        assert second.headers == ()
        assert consumer.position(place) == 2
        assert drain(consumer, 4) == list("cdef")
        assert consumer.position(place) == 6
        assert consumer.lag() == {place: 0}
        assert consumer.next_record(timeout=0.2) is None


def test_seeking_and_pausing(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    write_values(bootstrap, topic, 0, *"abc")
    write_values(bootstrap, topic, 1, *"xyz")
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([zero, one])
        assert sorted(drain(consumer, 6)) == list("abcxyz")
        consumer.seek(zero, 1)
        assert drain(consumer, 2) == list("bc")
        consumer.seek_all({zero: "earliest", one: datetime.fromtimestamp((NOW + 2) / 1000)})
        consumer.pause(zero)
        assert consumer.paused == {zero}
        assert drain(consumer, 1) == ["z"]
        assert consumer.next_batch(timeout=0.5) is None
        consumer.resume(zero)
        assert drain(consumer, 3) == list("abc")
        with pytest.raises(ValueError, match="is not assigned"):
            consumer.seek((topic, 7), 0)


def test_a_paused_partition_does_not_keep_the_others_from_being_read(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    large = [letter * 300_000 for letter in "abcd"]
    for value in large:  # more than the queue holds
        write_values(bootstrap, topic, 0, value)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    settings = {"queued.max.messages.kbytes": "300", "auto.offset.reset": "earliest"}
    with Consumer(bootstrap, **settings) as consumer:
        consumer.assign([zero, one])
        assert drain(consumer, 1) == large[:1]
        consumer.pause(zero)
        write_values(bootstrap, topic, 1, *"xyz")
        assert drain(consumer, 3) == list("xyz")
        consumer.resume(zero)
        assert drain(consumer, 3) == large[1:]


def test_where_reading_begins(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    write(
        bootstrap,
        topic,
        0,
        [
            build_batch(values("old", at=1000)),
            build_batch(values("new", at=int(time.time() * 1000))),
        ],
    )
    place = (topic, 0)
    for reset, expected in (("earliest", ["old", "new"]), ("by_duration:PT1H", ["new"])):
        with Consumer(bootstrap, auto_offset_reset=reset) as consumer:
            consumer.assign([place])
            assert drain(consumer, len(expected)) == expected
    with Consumer(bootstrap) as consumer:  # latest
        consumer.assign([place])
        assert consumer.position(place) == 2
        write_values(bootstrap, topic, 0, "newest")
        assert drain(consumer, 1) == ["newest"]
    with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        with pytest.raises(NoStartingOffset):
            consumer.assign([place])
        consumer.assign({place: 2})
        assert drain(consumer, 1) == ["newest"]
        consumer.seek(place, 100)
        for _ in range(2):  # until it is sought elsewhere
            with pytest.raises(OffsetOutOfRange, match="offset 100 is not in the log"):
                consumer.next_batch(timeout=PATIENCE)
        consumer.seek(place, 1)
        assert drain(consumer, 2) == ["new", "newest"]
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign({place: 100})
        assert drain(consumer, 3) == ["old", "new", "newest"]


def test_commits(bootstrap: str, admin: Admin, topic: str, group: str) -> None:
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, *"abc")
    place = TopicPartition(topic, 0)
    options = {"group": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with Consumer(bootstrap, **options) as consumer:
        consumer.assign([place])
        assert drain(consumer, 3) == list("abc")
        assert consumer.committed() == {}
        consumer.commit()
        assert consumer.committed()[place].offset == 3
        consumer.commit({place: (1, "half-way")})
        assert consumer.committed(place)[place] == CommittedOffset(1, metadata="half-way")
    with Consumer(bootstrap, **options) as consumer:
        consumer.assign([place])
        assert drain(consumer, 2) == list("bc")
    consumer = Consumer(bootstrap)
    with pytest.raises(ConfigurationError, match="give the consumer a group"):
        consumer.commit()
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.next_batch()


def test_a_commit_outlives_the_records_before_it(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    """It has the epoch of the last one. That this one is gone does not mean that the log was cut off."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, *"abc")
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap, group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        assert drain(consumer, 3) == list("abc")
    options = {"group": group, "auto.offset.reset": "none", "enable.auto.commit": False}
    with Consumer(bootstrap, **options) as consumer:
        epoch = consumer.committed(place)[place].leader_epoch
        assert epoch is not None
        assert epoch >= 0
        admin.delete_records({place: None})
        consumer.assign([place])
        assert consumer.next_batch(timeout=0.5) is None
        write_values(bootstrap, topic, 0, *"de")
        assert drain(consumer, 2) == list("de")
        # An epoch that the log never had: the commit is of another log, and there is no policy.
        far = CommittedOffset(4, leader_epoch=epoch + 100)
        consumer.commit({place: far})
        assert consumer.committed(place)[place] == far
        consumer.assign([place])
        with pytest.raises(OffsetOutOfRange):
            consumer.next_batch(timeout=PATIENCE)
        consumer.seek(place, 4)
        assert drain(consumer, 1) == ["e"]


def test_what_counts_as_dealt_with(bootstrap: str, admin: Admin, topic: str, group: str) -> None:
    """Auto-commit leaves out what the user has not come back from."""
    admin.create_topic(topic)
    write(bootstrap, topic, 0, [build_batch(values("a")), build_batch(values("b"))])
    place = TopicPartition(topic, 0)
    options = {"group": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 50}
    with Consumer(bootstrap, max_rows=1, **options) as consumer:
        consumer.assign([place])
        assert drain(consumer, 1) == ["a"]
        assert drain(consumer, 1) == ["b"]
        deadline = time.monotonic() + PATIENCE
        while consumer.committed().get(place) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert consumer.committed()[place].offset == 1
    with Consumer(bootstrap, **options) as consumer:  # closing is coming back
        assert consumer.committed(place)[place].offset == 2


def test_auto_commit_does_not_undo_a_commit(
    bootstrap: str, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic)
    write(bootstrap, topic, 0, [build_batch(values("a")), build_batch(values("b"))])
    place = TopicPartition(topic, 0)
    options = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 3_600_000}
    with Consumer(bootstrap, group=group, max_rows=1, **options) as consumer:
        consumer.assign([place])
        assert drain(consumer, 1) == ["a"]
        assert drain(consumer, 1) == ["b"]  # from which the user has not come back
        consumer.commit()
        # What an interval or the loss of the partition would do.
        consumer._loop.run(consumer._consumer._commit_dealt_with([place]))
        assert consumer.committed()[place].offset == 2


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions(bootstrap: str, admin: Admin, topic: str, isolation: str) -> None:
    admin.create_topic(topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"id-{topic}", "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE)
    for value, commits in (("a", True), ("b", False), ("c", True), ("d", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(PATIENCE)
        if commits:
            producer.commit_transaction(PATIENCE)
        else:
            producer.abort_transaction(PATIENCE)
    expected = list("ac") if isolation == "read_committed" else list("abcd")
    with Consumer(bootstrap, isolation_level=isolation) as consumer:
        assert texts(consumer.read(topic)) == expected
        assert texts(consumer.read(topic, 2)) == expected[1:]
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, len(expected)) == expected


def test_small_answers_do_not_pile_up(bootstrap: str, admin: Admin, topic: str) -> None:
    """Records come one by one while the user does something else: after some answers they are left with
    the broker, and then come many at a time."""
    count = 4 * MOST_RESULTS
    admin.create_topic(topic, partitions=1)
    with Consumer(bootstrap) as consumer:
        consumer.assign({(topic, 0): "earliest"})
        fetcher = consumer._consumer._fetcher
        (state,) = fetcher.partitions.values()
        for number in range(1, count + 1):
            write(bootstrap, topic, 0, [build_batch([Record(0, NOW, None, b"x")])])
            deadline = time.monotonic() + PATIENCE
            while state.fetch_offset < number and not fetcher.queue.is_full:
                assert time.monotonic() < deadline
                time.sleep(0.001)  # each in an answer of its own, as long as it is asked for
        batches: list[int] = []
        while sum(batches) < count:
            batch = consumer.next_batch(timeout=PATIENCE)
            assert batch is not None
            batches.append(batch.num_rows)
        # One more may be on its way when the queue is full.
        assert len(batches) <= MOST_RESULTS + 2
        assert max(batches) >= count - MOST_RESULTS - 1


def test_small_room(bootstrap: str, admin: Admin, topic: str) -> None:
    """Far more data than may wait: it comes all the same, and waiting stays within the limit."""
    admin.create_topic(topic, partitions=3)
    payload = [Record(index, NOW, None, b"%d" % index * 1000) for index in range(200)]
    for partition in range(3):
        write(bootstrap, topic, partition, [build_batch(payload, codec=Codec.LZ4)] * 8)
    options = {"queued.max.messages.kbytes": 1024, "max.partition.fetch.bytes": 100_000}
    with Consumer(bootstrap, max_rows=500, **options) as consumer:
        consumer.assign({(topic, partition): "earliest" for partition in range(3)})
        queue = consumer._consumer._fetcher.queue
        rows = most = 0
        while rows < 200 * 24:
            batch = consumer.next_batch(timeout=PATIENCE)
            assert batch is not None
            assert batch.num_rows <= 500
            rows += batch.num_rows
            most = max(most, queue.occupied)
        # Compressed, a batch of these has a hundredth of its size.
        assert most < 8 * 1024 * 1024
        deadline = time.monotonic() + PATIENCE
        while queue.occupied and time.monotonic() < deadline:
            time.sleep(0.01)  # the last of the decoders is on its way out
        assert queue.occupied == 0


async def test_the_asynchronous_twin(bootstrap: str, topic: str) -> None:
    async with AsyncConsumer(bootstrap) as consumer:
        with pytest.raises(TopicNotFound):
            await consumer.subscribe(topic)


def test_subscribing_without_a_group(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    write_values(bootstrap, topic, 0, "a")
    options = {"auto.offset.reset": "earliest", "metadata.max.age.ms": 200}
    with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        assert drain(consumer, 1) == ["a"]
        admin.create_partitions(topic, 2)
        write_values(bootstrap, topic, 1, "b")
        assert drain(consumer, 1) == ["b"]
        assert consumer.assignment == {(topic, 0), (topic, 1)}


def test_a_deleted_topic(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "a")
    with Consumer(bootstrap) as consumer:
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, 1) == ["a"]
        admin.delete_topics([topic])
        with pytest.raises(TopicNotFound, match=topic):
            consumer.next_batch(timeout=PATIENCE)


def test_a_topic_that_is_deleted_under_a_group(
    bootstrap: str, admin: Admin, topic: str, group: str, kind: str
) -> None:
    """It is told, then given up; the commit of its offsets does not keep the member from going on."""
    if kind == "older":
        pytest.skip("its classic groups hear of it with the metadata, whenever these are refreshed")
    other = topic + "-other"
    admin.create_topic(topic)
    admin.create_topic(other)
    write_values(bootstrap, topic, 0, "a")
    options = {"auto.offset.reset": "earliest", "metadata.max.age.ms": 200}
    with Consumer(bootstrap, group=group, **options) as consumer:
        consumer.subscribe([topic, other])
        assert drain(consumer, 1) == ["a"]
        admin.delete_topics([topic])
        deadline = time.monotonic() + PATIENCE
        while (topic, 0) in consumer.assignment:
            assert time.monotonic() < deadline
            with suppress(TopicNotFound):
                consumer.next_batch(timeout=0.1)
        write_values(bootstrap, other, 0, "b")
        assert drain(consumer, 1) == ["b"]


def test_a_deleted_topic_of_a_pattern_is_no_error(
    bootstrap: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    stays, goes = f"{topic}-a", f"{topic}-b"
    admin.create_topics([stays, goes])
    for each in (stays, goes):
        write_values(bootstrap, each, 0, "old")
    options = {"auto.offset.reset": "earliest", "metadata.max.age.ms": 1000}
    with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(re.compile(rf"{topic}-[a-z]"))
        assert drain(consumer, 2) == ["old", "old"]
        with caplog.at_level("INFO", logger="ottla.client.consumer"):
            admin.delete_topics(goes)
            deadline = time.monotonic() + PATIENCE
            while (goes, 0) in consumer.assignment:
                assert time.monotonic() < deadline
                assert consumer.next_batch(timeout=0.1) is None
        assert f"{goes}-0 is not read any more" in caplog.text
        assert consumer.assignment == {(stays, 0)}
        write_values(bootstrap, stays, 0, "new")
        assert drain(consumer, 1) == ["new"]
        admin.create_topic(goes)
        write_values(bootstrap, goes, 0, "again")
        assert drain(consumer, 1) == ["again"]


def test_partitions_for_which_an_answer_has_no_room(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    """Their first batch does not fit into what others have left: they come with the next answers."""
    admin.create_topic(topic, partitions=4)
    for partition in range(4):
        for _ in range(3):
            write_values(bootstrap, topic, partition, "x" * 5000)
    options = {"auto.offset.reset": "earliest", "fetch.max.bytes": 8000}
    with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        assert len(drain(consumer, 12)) == 12
        assert set(consumer.positions().values()) == {3}


def test_reading_nothing(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with Consumer(bootstrap) as consumer:
        for call in (consumer.next_batch, consumer.next_record):
            with pytest.raises(ConfigurationError, match="subscribe to topics or assign"):
                call()
        with pytest.raises(TopicNotFound, match="there is no partition 7; there are 1"):
            consumer.assign({(topic, 7): 0})
        consumer.assign({(topic, 0): 0})
        assert consumer.next_batch(timeout=0.01) is None
        admin.create_partitions(topic, 8)  # which the client has not heard of yet
        consumer.assign({(topic, 7): 0})
        write_values(bootstrap, topic, 7, "a")
        assert drain(consumer, 1) == ["a"]
        consumer.unsubscribe()
        with pytest.raises(ConfigurationError):
            next(iter(consumer.batches()))


def test_a_broker_that_dies_under_a_bounded_read(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with Admin(process.bootstrap) as admin:
            admin.create_topic(topic)
        many = [build_batch(values("x" * 10_000)) for _ in range(300)]
        write(process.bootstrap, topic, 0, many)
        # There is not room for all of it.
        options = {"queued.max.messages.kbytes": 100, "default.api.timeout.ms": 1000}
        with Consumer(process.bootstrap, **options) as consumer:
            batches = consumer.scan(topic)
            assert next(iter(batches)).num_rows > 0
            process.kill()
            with pytest.raises(TimedOut, match="no broker has answered for 1 s"):
                list(batches)


def test_a_quota(bootstrap: str, admin: Admin, topic: str, kind: str) -> None:
    """Kafka answers who is over it with nothing: that is not the end of what there is to read."""
    if kind != "kafka":
        pytest.skip("Ottla keeps no quotas")
    admin.create_topic(topic)
    write(bootstrap, topic, 0, [build_batch(values("x" * 20_000)) for _ in range(40)])
    entity: dict[str, str | None] = {"client-id": topic}
    # Rates are of ten seconds: some 500 kB are free, of the 800.
    admin.alter_quotas(entity, assign={"consumer_byte_rate": 50_000.0})
    deadline = time.monotonic() + PATIENCE
    while not admin.describe_quotas(entity):
        assert time.monotonic() < deadline
    with Consumer(bootstrap, client_id=topic, fetch_max_bytes=100_000) as consumer:
        assert consumer.read(topic).num_rows == 40


def test_a_topic_that_was_made_anew(bootstrap: str, admin: Admin, topic: str, kind: str) -> None:
    """Its offsets are not those of the old one: that is told, where the broker knows topics by ids."""
    if kind == "older":
        pytest.skip("Kafka 2.4 knows topics by their names alone")
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, *"abc")
    with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, 3) == list("abc")
        admin.delete_topics([topic])
        deadline = time.monotonic() + PATIENCE
        while any(each.name == topic for each in admin.list_topics()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        admin.create_topic(topic)
        write_values(bootstrap, topic, 0, *"vwxyz")
        with pytest.raises(TopicNotFound, match=topic):
            consumer.next_batch(timeout=PATIENCE)
        consumer.assign({(topic, 0): 3})
        assert drain(consumer, 2) == list("yz")


def test_a_damaged_log(broker: BrokerProcess, topic: str) -> None:
    """What lies before the damage is handed out; then the damage is told, and can be passed."""
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic)
    write(
        broker.bootstrap, topic, 0, [build_batch(values(text)) for text in ("one", "two", "three")]
    )
    (segment,) = broker.data.glob(f"**/{topic}-0/*.log")
    damaged = bytearray(segment.read_bytes())
    at = damaged.index(b"two")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"TWO")
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, 1) == ["one"]
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=f"{topic}-0: batch at offset 1: the CRC32C"):
                consumer.next_batch(timeout=PATIENCE)
        assert consumer.position((topic, 0)) == 1
        consumer.seek((topic, 0), 2)
        assert drain(consumer, 1) == ["three"]
        with pytest.raises(CorruptRecords):
            consumer.read(topic)
    with Consumer(broker.bootstrap, check_crcs=False) as consumer:
        assert texts(consumer.read(topic)) == ["one", "TWO", "three"]


def test_a_broker_that_comes_back(tmp_path: Path, topic: str) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        with Admin(process.bootstrap) as admin:
            admin.create_topic(topic)
        write_values(process.bootstrap, topic, 0, "before")
        with Consumer(process.bootstrap, group="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(topic)
            assert drain(consumer, 1) == ["before"]
            process.kill()
            process.start()
            write_values(process.bootstrap, topic, 0, "after")
            found = drain(consumer, 1)
            # A group may have to begin at its last commit.
            assert found in (["after"], ["before", "after"])


def test_no_descriptor_left_for_a_while(
    bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that loses its connections while the process has no descriptor goes on afterwards."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "before")
    with Consumer(bootstrap) as consumer:
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, 1) == ["before"]
        refused = threading.Event()

        def no_descriptor(*_: object) -> socket.socket:
            refused.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(wire_connection, "socket", SimpleNamespace(**vars(socket)))
            patch.setattr(wire_connection.socket, "socket", no_descriptor)
            for entry in list(consumer._consumer._cluster._connections._entries.values()):
                if entry.connection is not None:
                    consumer._loop.call(entry.connection.close)
            assert refused.wait(PATIENCE)
        write_values(bootstrap, topic, 0, "after")
        assert drain(consumer, 1) == ["after"]


def test_records_that_cannot_be_decoded_for_want_of_memory(
    bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not passed over: what is wrong is told in their place."""
    admin.create_topic(topic)
    write_values(bootstrap, topic, 0, "one")
    with Consumer(bootstrap) as consumer:
        consumer.assign({(topic, 0): 0})
        assert drain(consumer, 1) == ["one"]
        layout = consumer._consumer._fetcher._layout

        def no_memory(*_: object, **__: object) -> Iterator[tuple[object, int]]:
            raise MemoryError
            yield

        with monkeypatch.context() as patch:
            patch.setattr(layout, "decode", no_memory)
            write_values(bootstrap, topic, 0, "two")
            with pytest.raises(OttlaError, match=f"{topic}-0: .*MemoryError"):
                consumer.next_batch(timeout=PATIENCE)
        write_values(bootstrap, topic, 0, "three")
        with pytest.raises(OttlaError, match="MemoryError"):
            consumer.next_batch(timeout=PATIENCE)
        consumer.seek((topic, 0), consumer.position((topic, 0)))
        assert drain(consumer, 2) == ["two", "three"]
