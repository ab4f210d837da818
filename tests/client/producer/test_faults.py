"""Lost requests, lost answers, refusals, dead brokers: no record is lost, doubled or out of order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from producer_kit.behind_meddler import meddled, meddler, topic
from producer_kit.meddler import Decision, Fate, Meddler, Produced
from producer_kit.reading import read_all

from ottla import Admin, Producer
from ottla.client.errors import (
    BrokerError,
    ClientClosed,
    DeliveryTimeout,
    InvalidRecords,
    TopicNotFound,
)
from ottla.client.producer.batches import NOBODY
from ottla.protocol.errors import ErrorCode
from ottla.testing import BrokerProcess

__all__ = ["meddled", "meddler", "topic"]


# Small batches, so that several are in flight.
SMALL = {"batch_size": 200, "linger_ms": 0, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


def send_numbers(producer: Producer, topic: str, count: int = 200) -> list[int]:
    futures = [producer.send(topic, b"%040d" % number) for number in range(count)]
    return [future.result(30).offset for future in futures]


def numbers_in(meddler: Meddler, topic: str) -> list[int]:
    return [int(each.value or b"") for each in read_all(meddler.address, topic)]


def every(period: int, decision: Decision) -> Callable[[Produced], Decision]:
    return lambda produced: decision if produced.number % period == period - 1 else Fate.FORWARD


RETRIED = [
    Fate.LOSE_REQUEST,
    Fate.LOSE_ANSWER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
]


@pytest.mark.parametrize("decision", RETRIED, ids=lambda each: each.name)
def test_each_record_once_and_in_order(meddler: Meddler, topic: str, decision: Decision) -> None:
    meddler.begin(every(4, decision))
    with Producer(meddler.address, **SMALL) as producer:
        offsets = send_numbers(producer, topic)
    meddler.begin(lambda _: Fate.FORWARD)
    assert numbers_in(meddler, topic) == list(range(200))
    # A batch that turned out to be written already has no offset to tell.
    assert all(offset in (-1, number) for number, offset in enumerate(offsets))


def test_a_table_survives_the_same(meddler: Meddler, topic: str) -> None:
    fates = [Fate.LOSE_ANSWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, Fate.LOSE_REQUEST]
    meddler.begin(
        lambda produced: fates[produced.number // 3 % 3] if produced.number % 3 else Fate.FORWARD
    )
    values = pa.array([b"%040d" % number for number in range(150)])
    with Producer(meddler.address, **SMALL) as producer:
        written = producer.write(topic, pa.table({"value": values})).result(50)
    assert written.records == 150
    meddler.begin(lambda _: Fate.FORWARD)
    assert numbers_in(meddler, topic) == list(range(150))


def test_the_first_batch_of_a_partition_goes_alone(meddler: Meddler, topic: str) -> None:
    """A broker takes any number for the first: what follows must not overtake a refused first."""
    meddler.begin(
        lambda sent: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if sent.number < 2 else Fate.FORWARD
    )
    with Producer(meddler.address, **SMALL) as producer:
        send_numbers(producer, topic, 40)
    headers = [each for sent in meddler.produced for each in sent.batches]
    assert [each.base_sequence for each in headers[:3]] == [0, 0, 0]
    assert {each.producer_epoch for each in headers} == {0}
    assert numbers_in(meddler, topic) == list(range(40))


def test_numbers_go_on_under_the_same_epoch_after_a_lost_answer(
    meddler: Meddler, topic: str
) -> None:
    meddler.begin(every(3, Fate.LOSE_ANSWER))
    with Producer(meddler.address, **SMALL) as producer:
        send_numbers(producer, topic, 60)
    assert {each.producer_epoch for sent in meddler.produced for each in sent.batches} == {0}


def test_lost_numbers_begin_anew_under_the_next_epoch(meddler: Meddler, topic: str) -> None:
    meddler.begin(lambda sent: ErrorCode.UNKNOWN_PRODUCER_ID if sent.number == 2 else Fate.FORWARD)
    with Producer(meddler.address, **SMALL, max_in_flight=1) as producer:
        send_numbers(producer, topic, 40)
    headers = [each for sent in meddler.produced for each in sent.batches]
    assert [each.producer_epoch for each in headers[:4]] == [0, 0, 0, 1]
    assert headers[2].base_sequence > 0
    assert headers[3].base_sequence == 0
    assert numbers_in(meddler, topic) == list(range(40))


def test_the_last_epoch_is_followed_by_a_new_producer_id(meddler: Meddler, topic: str) -> None:
    with Producer(meddler.address, **SMALL, max_in_flight=1) as producer:
        producer.send(topic, b"%040d" % 0).result(30)
        identity = producer._core.identity
        identity.current = identity.current._replace(epoch=2**15 - 1)  # type: ignore[attr-defined]
        seen = meddler.produced[-1].batches[0].producer_id
        meddler.begin(
            lambda sent: ErrorCode.UNKNOWN_PRODUCER_ID if sent.number == 0 else Fate.FORWARD
        )
        producer.send(topic, b"%040d" % 1).result(30)
    first, second = (sent.batches[0] for sent in meddler.produced)
    assert (first.producer_id, first.producer_epoch) == (seen, 2**15 - 1)
    assert second.producer_id not in (seen, NOBODY.producer_id)
    assert second.base_sequence == 0
    assert numbers_in(meddler, topic) == [0, 1]


def test_a_record_that_is_refused_does_not_stop_those_behind_it(
    meddler: Meddler, topic: str
) -> None:
    meddler.begin(lambda sent: ErrorCode.INVALID_RECORD if sent.number == 1 else Fate.FORWARD)
    with Producer(meddler.address, batch_size=1, linger_ms=0, retry_backoff_ms=5) as producer:
        futures = [producer.send(topic, b"%040d" % number) for number in range(6)]
        failed = [future.exception(30) for future in futures]
        assert isinstance(failed[1], InvalidRecords)
        assert failed.count(None) == 5
        with pytest.raises(InvalidRecords):
            producer.flush()
    assert numbers_in(meddler, topic) == [0, 2, 3, 4, 5]


def test_a_table_tells_how_much_of_it_was_delivered(meddler: Meddler, topic: str) -> None:
    meddler.begin(
        lambda produced: ErrorCode.INVALID_RECORD if produced.number == 2 else Fate.FORWARD
    )
    values = pa.array([b"%040d" % number for number in range(150)])
    producer = Producer(meddler.address, **SMALL)
    written = producer.write(topic, pa.table({"value": values}))
    with pytest.raises(InvalidRecords):
        written.result(50)
    with pytest.raises(InvalidRecords):
        producer.close()
    meddler.begin(lambda _: Fate.FORWARD)
    assert 0 < written.delivered < 150
    assert written.delivered == len(numbers_in(meddler, topic))


def test_without_retries_the_first_failure_is_told(meddler: Meddler, topic: str) -> None:
    meddler.begin(lambda _: ErrorCode.NOT_ENOUGH_REPLICAS)
    with Producer(meddler.address, retries=0) as producer:
        with pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS"):
            producer.send(topic, b"x").result(30)
        with pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS"):
            producer.flush()


@pytest.mark.parametrize("fate", [Fate.HANG, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_the_time_for_delivery_ends(meddler: Meddler, topic: str, fate: Decision) -> None:
    meddler.begin(lambda _: fate)
    producer = Producer(meddler.address, delivery_timeout_ms=400, retry_backoff_ms=10)
    with pytest.raises(DeliveryTimeout, match=r"within 0\.4 s") as failure:
        producer.send(topic, b"%040d" % 0).result(30)
    # Whoever hears of it can tell a broker that refuses from one that does not answer.
    assert isinstance(failure.value.__cause__, BrokerError) == (fate is not Fate.HANG)
    with pytest.raises(DeliveryTimeout):
        producer.write(topic, pa.table({"value": [b"%040d" % 1]})).result(30)
    with pytest.raises(DeliveryTimeout):
        producer.flush()
    if fate is not Fate.HANG:
        # Numbers are missing now; what follows is delivered nevertheless.
        meddler.begin(lambda _: Fate.FORWARD)
        producer.send(topic, b"%040d" % 2).result(30)
        assert numbers_in(meddler, topic) == [2]
    producer.close()


def test_close_gives_up_when_its_time_is_over(meddler: Meddler, topic: str) -> None:
    meddler.begin(lambda _: ErrorCode.NOT_ENOUGH_REPLICAS)
    producer = Producer(meddler.address)
    waiting = producer.send(topic, b"x")
    with pytest.raises(TimeoutError):
        producer.close(0.2)
    with pytest.raises(ClientClosed):
        waiting.result(0)


def test_a_broker_that_dies_and_comes_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        options = {**SMALL, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 100}
        with Producer(broker.bootstrap, **options) as producer:
            futures = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(300)]
            broker.kill()
            futures += [producer.send("t", b"%d" % n, partition=n % 2) for n in range(300, 600)]
            broker.start()
            futures += [producer.send("t", b"%d" % n, partition=n % 2) for n in range(600, 900)]
            producer.flush()
            assert all(future.exception(0) is None for future in futures)
        found = read_all(broker.bootstrap, "t")
        for partition in range(2):
            numbers = [int(each.value or b"") for each in found if each.partition == partition]
            assert numbers == list(range(partition, 900, 2))


def test_a_topic_that_is_deleted_under_the_producer(meddler: Meddler, topic: str) -> None:
    options = {"delivery_timeout_ms": 1000, "allow_auto_create_topics": False, "max_block_ms": 300}
    producer = Producer(meddler.address, **options)
    producer.send(topic, b"%040d" % 0).result(30)
    with Admin(meddler.address) as admin:
        admin.delete_topics([topic])
    with pytest.raises((DeliveryTimeout, TopicNotFound)):
        producer.send(topic, b"x").result(30)
    with pytest.raises((DeliveryTimeout, TopicNotFound)):
        producer.close()


def test_idle_producers_do_nothing(meddler: Meddler, topic: str) -> None:
    with Producer(meddler.address, linger_ms=0) as producer:
        producer.send(topic, b"%040d" % 0).result(30)
        core = producer._core
        core.loop.call_soon_threadsafe(core.sender.schedule)
        deadline = time.monotonic() + 5
        while core.accumulator.active and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not core.accumulator.active
        assert core.accumulator.used == 0
