"""Streaming queries, planned and run in this process as Spark would, batch for batch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from ottla import Consumer, Producer
from ottla.client.admin.client import Admin
from ottla.client.errors import ClusterUnreachable, TimedOut, TopicNotFound
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess, free_port
from pyspark_ottla.errors import DataLost, OptionError
from pyspark_ottla.streaming.offsets import CheckpointError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import write_transactions
from pipeline_kit.streamed_reads import Stream

Servers = dict[str, Any]


@pytest.fixture
def servers(broker: BrokerProcess, topic: str) -> Servers:
    return {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topic}


@pytest.fixture
def earliest(servers: Servers) -> Servers:
    return servers | {"startingOffsets": "earliest"}


def send(broker: BrokerProcess, topic: str, *values: bytes, partition: int = 0) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# Where it begins


def test_a_query_begins_at_the_end(
    broker: BrokerProcess, admin: Admin, topic: str, servers: Servers
) -> None:
    admin.create_topic(topic, 2)
    send(broker, topic, b"before")
    stream = Stream(**servers)
    assert stream.reader.initialOffset() == {topic: {"0": 1, "1": 0}}
    send(broker, topic, b"after")
    assert stream.reader.initialOffset() == {topic: {"0": 1, "1": 0}}
    # The first batch is to write down where the query begins.
    assert stream.batch() == []
    assert stream.end == {topic: {"0": 1, "1": 0}}
    assert stream.batch() == [b"after"]


def test_a_first_batch_that_is_repeated_loses_nothing(
    broker: BrokerProcess, admin: Admin, topic: str, servers: Servers
) -> None:
    admin.create_topic(topic, 2)
    _, planned = Stream(**servers).plan()
    send(broker, topic, b"meanwhile")
    # Started anew with the first batch planned but not done: Spark asks again where it began.
    again = Stream(**servers)
    start = again.reader.initialOffset()
    assert again.pieces(start, planned) == []
    again.end = planned
    assert again.batch() == [b"meanwhile"]


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_partitions_that_come_before_the_first_batch_is_repeated(
    broker: BrokerProcess, admin: Admin, topic: str, servers: Servers, begin: str
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, b"0")
    _, planned = Stream(**servers, startingOffsets=begin).plan()
    admin.create_partitions(topic, 2)
    send(broker, topic, b"new", partition=1)
    again = Stream(**servers, startingOffsets=begin)
    read = again.pieces(again.reader.initialOffset(), planned)
    assert [row["value"] for piece in read for row in piece] == [b"0"] * (begin == "earliest")
    again.end = planned
    assert again.batch() == [b"new"]


def test_given_offsets(broker: BrokerProcess, admin: Admin, topic: str, servers: Servers) -> None:
    admin.create_topic(topic, 3)
    send(broker, topic, *numbered(0, 10))
    send(broker, topic, *numbered(10, 20), partition=1)
    send(broker, topic, *numbered(20, 30), partition=2)
    wanted = json.dumps({topic: {"0": 7, "1": -2, "2": -1}})
    stream = Stream(**servers, startingOffsets=wanted)
    assert stream.batch() == numbered(7, 20)
    send(broker, topic, b"30", partition=2)
    assert stream.batch() == [b"30"]
    few = json.dumps({topic: {"0": 7}})
    with pytest.raises(OptionError, match=f"startingOffsets must name every .* {topic}-1 is miss"):
        Stream(**servers, startingOffsets=few).plan()
    beyond = json.dumps({topic: {"0": 99, "1": -2, "2": -2}})
    with pytest.raises(DataLost, match=rf"startingOffsets says 99 for {topic}-0, .* 0 to 10"):
        Stream(**servers, startingOffsets=beyond).plan()
    lenient = Stream(**servers, startingOffsets=beyond, failOnDataLoss=False)
    assert lenient.batch() == numbered(10, 31)


def test_times(broker: BrokerProcess, admin: Admin, topic: str, servers: Servers) -> None:
    admin.create_topic(topic, 2)
    first = time.time_ns() // 1_000_000 - 60_000
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            stamp = first + number * 1000
            producer.send(topic, b"%d" % number, partition=0, timestamp=stamp)
    with pytest.raises(OptionError, match=f"startingTimestamp: {topic}-1 has no record"):
        Stream(**servers, startingTimestamp=first + 4000).plan()
    kind = {"startingOffsetsByTimestampStrategy": "latest"}
    stream = Stream(**servers, startingTimestamp=first + 4000, **kind)
    assert stream.batch() == numbered(4, 10)
    send(broker, topic, b"later", partition=1)
    assert stream.batch() == [b"later"]


# How far a batch goes


def test_limits_are_handed_to_spark(servers: Servers) -> None:
    assert Stream(**servers).limit == ReadAllAvailable()
    assert Stream(**servers, maxOffsetsPerTrigger=5).limit == ReadMaxRows(5)
    assert Stream(**servers, minOffsetsPerTrigger=5).limit == ReadMinRows(5)
    both = Stream(**servers, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6)
    assert both.limit == ReadMaxRows(6)


def test_at_most(broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers) -> None:
    admin.create_topic(topic, 2)
    send(broker, topic, *numbered(0, 30))
    send(broker, topic, *numbered(30, 40), partition=1)
    stream = Stream(**earliest, maxOffsetsPerTrigger=8)
    assert stream.batch() == [*numbered(0, 6), *numbered(30, 32)]
    assert stream.reader.reportLatestOffset() == {topic: {"0": 30, "1": 10}}
    assert stream.batch(everything=True) == [*numbered(6, 30), *numbered(32, 40)]


def test_at_least(broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, b"0")
    stream = Stream(**earliest, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=4)
    assert stream.batch() == [b"0"]  # the first is not held back
    send(broker, topic, b"1", b"2")
    assert stream.batch() == []
    assert stream.reader.reportLatestOffset() == {topic: {"0": 3}}
    send(broker, topic, *numbered(3, 6))
    assert stream.batch() == numbered(1, 5)
    assert stream.batch() == []
    assert stream.batch(everything=True) == [b"5"]


def test_a_long_wait_is_ended(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    stream = Stream(**earliest, minOffsetsPerTrigger=3, maxTriggerDelay="1ms")
    assert stream.batch() == []
    send(broker, topic, b"0")
    assert stream.batch() == [b"0"]


def test_available_now_sees_nothing_newer(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 5))
    limits = {"maxOffsetsPerTrigger": 3, "minOffsetsPerTrigger": 3}
    stream = Stream(**earliest, **limits)
    stream.reader.prepareForTriggerAvailableNow()
    send(broker, topic, b"later")
    assert [stream.batch() for _ in range(3)] == [numbered(0, 3), numbered(3, 5), []]
    start, end = stream.plan()
    assert end == start


def test_available_now_from_latest(
    broker: BrokerProcess, admin: Admin, topic: str, servers: Servers
) -> None:
    admin.create_topic(topic, 1)
    stream = Stream(**servers)
    stream.reader.prepareForTriggerAvailableNow()
    send(broker, topic, b"between")  # where the query begins is asked for after this
    assert stream.batch() == []
    start, end = stream.plan()
    assert end == start == {topic: {"0": 1}}


def test_partitions_that_come_after_available_now_has_begun(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, b"0")
    stream = Stream(**earliest)
    stream.reader.prepareForTriggerAvailableNow()
    admin.create_partitions(topic, 2)
    send(broker, topic, b"new", partition=1)
    assert stream.batch() == [b"0"]
    assert stream.batch() == []
    assert stream.restarted().batch() == [b"new"]


def test_pieces(broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers) -> None:
    admin.create_topic(topic, 2)
    send(broker, topic, *numbered(0, 30))
    send(broker, topic, *numbered(30, 40), partition=1)
    stream = Stream(**earliest, minPartitions=5, maxRecordsPerPartition=9)
    pieces = stream.pieces(*stream.plan())
    assert len(pieces) == 6
    assert all(len(piece) <= 9 for piece in pieces)
    assert [row["value"] for piece in pieces for row in piece] == numbered(0, 40)


def test_transactions(broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers) -> None:
    admin.create_topic(topic, 1)
    committed = write_transactions(broker.bootstrap, topic)
    patience = {"kafkaConsumer__pollTimeoutMs": 20000}
    stream = Stream(**earliest, **patience)
    assert stream.batch() == committed
    # Batch ends within aborted records and on marks of transactions, too.
    careful = Stream(**earliest, **patience, maxOffsetsPerTrigger=3)
    read = []
    while careful.end != stream.end:
        read += careful.batch()
    assert read == committed
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush()
        assert stream.batch() == []
        hasty = stream.restarted(kafka__isolation__level="read_uncommitted")
        assert hasty.batch() == [b"open"]
        # A query that has read past the last stable offset waits for it there.
        patient = hasty.restarted(kafka__isolation__level="read_committed")
        assert patient.batch() == []
        assert patient.end == hasty.end
        producer.commit_transaction()
    assert stream.batch() == [b"open"]
    assert patient.batch() == []


def test_headers(broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers) -> None:
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"v", headers=[("a", b"x")])
    stream = Stream(**earliest, includeHeaders=True)
    [[row]] = stream.pieces(*stream.plan())
    assert row["headers"] == [{"key": "a", "value": b"x"}]


# What changes meanwhile


def test_new_partitions_are_read_from_their_beginning(
    broker: BrokerProcess, admin: Admin, topic: str, servers: Servers
) -> None:
    admin.create_topic(topic, 1)
    stream = Stream(**servers, maxOffsetsPerTrigger=100)
    assert stream.batch() == []
    admin.create_partitions(topic, 3)
    send(broker, topic, b"new", partition=2)
    assert stream.batch() == [b"new"]
    assert stream.end == {topic: {"0": 0, "1": 0, "2": 1}}


def test_topics_that_appear_later(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribePattern": f"{topic}-.*"}
    stream = Stream(**servers)
    assert stream.batch() == []
    assert stream.end == {}
    admin.create_topic(f"{topic}-a", 1)
    admin.create_topic(f"{topic}-b", 1)
    send(broker, f"{topic}-b", b"later")
    assert stream.batch() == [b"later"]
    assert stream.end == {f"{topic}-a": {"0": 0}, f"{topic}-b": {"0": 1}}
    admin.create_topic(f"{topic}-c", 1)
    send(broker, f"{topic}-c", b"c0", b"c1")
    admin.delete_records({TopicPartition(f"{topic}-c", 0): 1})
    with pytest.raises(DataLost, match=f"{topic}-c-0 is new, and begins at offset 1"):
        stream.batch()
    assert stream.restarted(failOnDataLoss=False).batch() == [b"c1"]


def test_retention_between_batches(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 10))
    stream = Stream(**earliest, maxOffsetsPerTrigger=2)
    assert stream.batch() == numbered(0, 2)
    admin.delete_records({TopicPartition(topic, 0): 3})
    with pytest.raises(
        DataLost, match=f"offset 2 of {topic}-0 is gone .*begins at 3.*failOnDataLo"
    ):
        stream.batch()
    lenient = stream.restarted(failOnDataLoss=False)
    assert lenient.batch() == [b"3"]
    admin.delete_records({TopicPartition(topic, 0): 8})
    assert lenient.batch() == []  # all of the batch is gone
    assert lenient.batch() == []
    assert lenient.batch() == numbered(8, 10)


def test_a_topic_made_anew(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 5))
    strict = Stream(**earliest)
    lenient = Stream(**earliest, failOnDataLoss=False)
    assert strict.batch() == lenient.batch() == numbered(0, 5)
    admin.delete_topics([topic])
    with pytest.raises(DataLost, match=f"{topic}-0 is gone: the topic was deleted"):
        strict.plan()
    now = strict.restarted(failOnDataLoss=False)
    now.reader.prepareForTriggerAvailableNow()
    assert now.batch() == []
    admin.create_topic(topic, 1)
    send(broker, topic, b"anew")
    # With fewer records than before it shows by the offsets, also after a restart.
    with pytest.raises(
        DataLost, match=f"{topic}-0 ends at offset 1, and the query has read up to 5"
    ):
        strict.restarted().batch()
    assert strict.restarted(failOnDataLoss=False).batch() == [b"anew"]
    send(broker, topic, *numbered(5, 10))
    # With more of them a running query sees it by the topic's id.
    with pytest.raises(DataLost, match=f"topic '{topic}' was deleted and made anew"):
        strict.batch()
    start, end = lenient.plan()
    for _ in range(2):  # a batch may be run several times
        [piece] = lenient.pieces(start, end)
        assert [row["value"] for row in piece] == [b"anew", *numbered(5, 10)]
    lenient.end = end
    send(broker, topic, b"last")
    assert lenient.batch() == [b"last"]


@pytest.mark.parametrize("records", [2, 20])
def test_a_topic_made_anew_during_available_now(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers, records: int
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 10))
    streams = [
        Stream(**earliest, maxOffsetsPerTrigger=5, failOnDataLoss=strict)
        for strict in (True, False)
    ]
    for stream in streams:
        stream.reader.prepareForTriggerAvailableNow()
        assert stream.batch() == numbered(0, 5)
    admin.delete_topics([topic])
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(100, 100 + records))
    strict, lenient = streams
    with pytest.raises(DataLost, match=f"topic '{topic}' was deleted and made anew"):
        strict.plan()
    read: list[bytes] = []
    while lenient.end != {topic: {"0": records}}:
        read += lenient.batch()
    assert read == numbered(100, 100 + records)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_topic_made_anew_between_a_plan_and_its_tasks(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers, repeated: bool
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 5))
    stream = Stream(**earliest, failOnDataLoss=False)
    start, stream.end = stream.plan()
    if repeated:  # after a restart Spark does not ask how far this batch goes
        stream = stream.restarted()
        start = stream.reader.initialOffset()
    assert stream.end is not None
    [piece] = stream.reader.partitions(start, stream.end)
    admin.delete_topics([topic])
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(100, 110))
    with pytest.raises(DataLost, match=f"{topic}-0 is gone: its topic was deleted, and made anew"):
        list(Stream(**earliest).reader.read(piece))
    assert list(stream.reader.read(piece)) == []
    assert stream.batch() == numbered(100, 110)


def test_a_topic_that_comes_back_is_read_from_its_beginning(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, *numbered(0, 5))
    stream = Stream(**earliest, failOnDataLoss=False)
    assert stream.batch() == numbered(0, 5)
    admin.delete_topics([topic])
    for _ in range(2):
        assert stream.batch() == []
        assert stream.end == {}
    admin.create_topic(topic, 1)
    send(broker, topic, b"anew")
    restarted = stream.restarted()
    assert stream.batch() == restarted.batch() == [b"anew"]


def test_a_topic_that_is_no_longer_asked_for(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 1)
    other = f"{topic}-other"
    admin.create_topic(other, 2)
    stream = Stream(**earliest | {"subscribe": f"{topic},{other}"})
    assert stream.batch() == []
    with pytest.raises(DataLost, match=f"{other}-0 and another partition are gone: .* no longer"):
        stream.restarted(subscribe=topic).batch()
    send(broker, other, b"o")
    # Topics that a query asks for besides those of its checkpoint are new.
    assert Stream({topic: {"0": 0}}, **servers_of(broker, f"{topic},{other}")).batch() == [b"o"]


def servers_of(broker: BrokerProcess, topics: str) -> Servers:
    return {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topics}


# Progress in a group


def committed(admin: Admin, group: str) -> dict[int, int]:
    found = admin.committed_offsets(group)
    return {partition: each.offset for (_, partition), each in found.items()}


def test_progress_is_committed_to_a_group(
    broker: BrokerProcess, admin: Admin, topic: str, earliest: Servers
) -> None:
    admin.create_topic(topic, 2)
    send(broker, topic, *numbered(0, 5))
    stream = Stream(**earliest, groupId=topic, maxOffsetsPerTrigger=3)
    stream.plan()
    assert committed(admin, topic) == {0: 0, 1: 0}
    assert stream.batch() == numbered(0, 3)
    assert committed(admin, topic) == {0: 0, 1: 0}  # not before the batch is done
    stream.plan()
    assert committed(admin, topic) == {0: 3, 1: 0}
    assert sum(each.lag or 0 for each in admin.group_lag(topic)) == 2
    again = stream.restarted()
    assert again.batch() == numbered(3, 5)
    again.plan()
    assert committed(admin, topic) == {0: 5, 1: 0}


def test_a_group_with_members_is_left_alone(
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    earliest: Servers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.create_topic(topic, 1)
    send(broker, topic, b"0")
    stream = Stream(**earliest, groupId=topic)
    assert stream.batch() == [b"0"]
    with Consumer(broker.bootstrap, group_id=topic, auto_offset_reset="earliest") as member:
        member.subscribe([topic])
        assert next(iter(member)).value == b"0"
        with pytest.raises(OptionError, match=f"groupId: the group '{topic}' has live members"):
            stream.restarted().batch()
        send(broker, topic, b"1")
        assert stream.batch() == [b"1"]  # it goes on
        assert "groupId: progress is not committed" in caplog.text
    send(broker, topic, b"2")
    assert stream.batch() == [b"2"]
    stream.plan()
    assert committed(admin, topic) == {0: 3}


@pytest.mark.parametrize("others", [0, 1])
def test_a_group_of_a_query_whose_topic_is_gone(
    broker: BrokerProcess, admin: Admin, topic: str, others: int
) -> None:
    """Of one partition, and of one among others, which brokers answer differently."""
    names = [topic, *(f"{topic}-{number}" for number in range(others))]
    for name in names:
        admin.create_topic(name, 1)
        send(broker, name, b"0")
    given = servers_of(broker, ",".join(names)) | {"startingOffsets": "earliest"}
    stream = Stream(**given, groupId=topic)
    assert stream.batch() == [b"0"] * len(names)
    admin.delete_topics([topic])
    with pytest.raises(DataLost, match=f"{topic}-0 is gone"):
        stream.restarted().batch()
    for name in names[1:]:
        send(broker, name, b"1")
    lenient = stream.restarted(failOnDataLoss=False)
    assert lenient.batch() == [b"1"] * others
    lenient.plan()
    found = admin.committed_offsets(topic)
    assert {each.topic: at.offset for each, at in found.items()} == dict.fromkeys(names[1:], 2)


# What is wrong


def test_topics_that_do_not_exist(broker: BrokerProcess, topic: str, servers: Servers) -> None:
    with pytest.raises(TopicNotFound, match=topic):
        Stream(**servers).plan()
    other = Stream({"other": {"0": 1}}, **servers)
    other.reader.prepareForTriggerAvailableNow()
    with pytest.raises(TopicNotFound, match=topic):
        other.plan()


def test_a_broker_that_is_away(topic: str) -> None:
    servers = {"kafka__bootstrap__servers": f"127.0.0.1:{free_port()}", "subscribe": topic}
    stream = Stream(**servers, kafka__default__api__timeout__ms=1000)
    with pytest.raises((ClusterUnreachable, TimedOut), match=r"127\.0\.0\.1"):
        stream.plan()


def test_a_broker_that_comes_back(topic: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, 1)
        stream = Stream(**servers_of(broker, topic), startingOffsets="earliest")
        send(broker, topic, b"before")
        assert stream.batch() == [b"before"]
        broker.restart()
        send(broker, topic, b"after")
        assert stream.batch() == [b"after"]
        broker.kill()
        # Given up only after kafka.default.api.timeout.ms.
        hasty = stream.restarted(kafka__default__api__timeout__ms=500)
        with pytest.raises((ClusterUnreachable, TimedOut), match=broker.bootstrap):
            hasty.batch()


@pytest.mark.parametrize("found", [{"a": 1}, {"topic": {"x": 1}}, {"topic": {"0": "x"}}, {"a": []}])
def test_a_checkpoint_of_another_source(servers: Servers, found: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="is not of the form"):
        Stream(found, **servers).plan()


def test_readers_are_pickled(servers: Servers) -> None:
    reader = Stream(**servers).reader
    assert isinstance(pickle.loads(pickle.dumps(reader)), type(reader))


# What it costs


def test_loaded_modules_are_kept_out_of_collections() -> None:
    """In a process of its own: here other threads may load modules meanwhile."""
    program = """
import gc
from pyspark import TaskContext
from pyspark_ottla.workers import keep_modules_out_of_collections

keep_modules_out_of_collections()
print(gc.get_freeze_count())  # this is no task
TaskContext._taskContext = TaskContext()
keep_modules_out_of_collections()
print(gc.get_freeze_count() > 10_000)
gc.unfreeze()
keep_modules_out_of_collections()
print(gc.get_freeze_count())  # once is enough
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["0", "True", "0"]


def test_planning_loads_neither_pandas_nor_numba() -> None:
    """Spark starts several processes for every query: half a second each."""
    program = (
        "import sys, pyspark_ottla; print(*({'pandas', 'numba', 'polars'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == []
