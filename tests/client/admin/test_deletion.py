"""Deleting single records by the client: many of them, mistakes among them, answers that are lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.admin import deletion
from ottla.client.consumer.asynchronous import AsyncConsumer
from ottla.client.consumer.searching import find_key
from ottla.client.errors import BrokerError, Failures, PartlyDeleted, TopicNotFound
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records_at import DeleteRecordsAtRequest
from ottla.testing import BrokerProcess
from ottla.wire.connection import Connection
from ottla.wire.errors import ConnectionLost


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(broker: BrokerProcess, admin: Admin) -> str:
    """Twenty records in each of two partitions."""
    name = f"deletion-{uuid.uuid4().hex[:10]}"
    admin.create_topic(name, partitions=2)
    with Producer(broker.bootstrap) as producer:
        for partition in (0, 1):
            for number in range(20):
                producer.send(name, f"{number}", key="ab"[number % 2], partition=partition)
    return name


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[DeleteRecordsAtRequest]:
    """Those that are sent; three ranges of a partition go into one."""
    monkeypatch.setattr(deletion, "_MOST_RANGES", 3)
    sent: list[DeleteRecordsAtRequest] = []
    original: Any = Connection.request

    async def request(self: Connection, message: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(message, DeleteRecordsAtRequest):
            sent.append(message)
        return await original(self, message, *arguments, **options)

    monkeypatch.setattr(Connection, "request", request)
    return sent


def left(broker: BrokerProcess, topic: str, partition: int = 0) -> list[int]:
    with Consumer(broker.bootstrap) as consumer:
        found: list[int] = consumer.read(topic, {partition: "earliest"})["offset"].to_pylist()
    return found


def test_all_of_many_or_none(
    admin: Admin, broker: BrokerProcess, topic: str, requests: list[DeleteRecordsAtRequest]
) -> None:
    """Those of a partition go in several requests, and a mistake in the last is found before the first
    is done."""
    place = TopicPartition(topic, 0)
    with pytest.raises(BrokerError, match="offset 99 is out of range"):
        admin.delete_records_at({place: [*range(0, 20, 2), 99]})
    assert all(each.validate_only for each in requests)
    assert left(broker, topic) == list(range(20))
    assert admin.delete_records_at({place: range(0, 20, 2)}) == {place: 10}
    assert left(broker, topic) == list(range(1, 20, 2))


def test_one_partition_of_two(
    admin: Admin, broker: BrokerProcess, topic: str, requests: list[DeleteRecordsAtRequest]
) -> None:
    good, bad = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with pytest.raises(Failures) as caught:
        admin.delete_records_at({good: range(0, 20, 2), bad: [*range(0, 20, 2), 99]})
    assert caught.value.results == {good: 10}
    assert list(caught.value.errors) == [bad]
    assert left(broker, topic, 1) == list(range(20))


def test_a_log_that_changes_between_the_look_and_the_deletion(
    admin: Admin,
    broker: BrokerProcess,
    topic: str,
    requests: list[DeleteRecordsAtRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = TopicPartition(topic, 0)
    counted: Any = Connection.request

    async def request(self: Connection, message: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(message, DeleteRecordsAtRequest) and not message.validate_only:
            ranges = message.topics[0].partitions[0].ranges
            if any(each.first_offset == 6 for each in ranges):
                ranges[-1].last_offset = 99  # as if it had been there a moment ago
        return await counted(self, message, *arguments, **options)

    monkeypatch.setattr(Connection, "request", request)
    with pytest.raises(PartlyDeleted) as caught:
        admin.delete_records_at({place: range(0, 20, 2)})
    assert caught.value.deleted == 3
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "3 records were deleted before that" in str(caught.value)
    assert left(broker, topic) == [each for each in range(20) if each not in (0, 2, 4)]


def test_an_answer_that_is_lost(
    admin: Admin, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is sent again, and what it did the first time counts."""
    place = TopicPartition(topic, 0)
    original: Any = Connection.request
    lost = []

    async def request(self: Connection, message: Any, *arguments: Any, **options: Any) -> Any:
        answer = await original(self, message, *arguments, **options)
        if isinstance(message, DeleteRecordsAtRequest) and not lost:
            lost.append(answer)
            raise ConnectionLost(str(self.address), "somebody cut it")
        return answer

    monkeypatch.setattr(Connection, "request", request)
    assert admin.delete_records_at({place: [1, range(5, 8)]}) == {place: 4}
    assert lost
    assert left(broker, topic) == [each for each in range(20) if each not in (1, 5, 6, 7)]


def test_a_topic_that_is_created_again_before_the_request_is_sent_again(
    admin: Admin, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at the same offsets of the new one is not meant."""
    place = TopicPartition(topic, 0)
    original: Any = Connection.request
    lost = []

    async def request(self: Connection, message: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(message, DeleteRecordsAtRequest) and not lost:
            lost.append(message)
            await asyncio.get_running_loop().run_in_executor(None, create_again)
            raise ConnectionLost(str(self.address), "somebody cut it")
        return await original(self, message, *arguments, **options)

    def create_again() -> None:
        other: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        other.delete_topics([topic])[topic].result(20)
        other.create_topics([confluent_kafka.admin.NewTopic(topic, 1)])[topic].result(20)
        producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(5):
            producer.produce(topic, b"new %d" % number, partition=0)
        assert producer.flush(20) == 0

    monkeypatch.setattr(Connection, "request", request)
    with pytest.raises(TopicNotFound, match="created again"):
        admin.delete_records_at({place: [1, 2]})
    assert lost
    assert left(broker, topic) == [0, 1, 2, 3, 4]


def test_only_to_see_whether_it_could_be_done(
    admin: Admin, broker: BrokerProcess, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    assert admin.delete_records_at({place: [1, range(5, 8)]}, validate_only=True) == {place: 4}
    with pytest.raises(BrokerError, match="out of range"):
        admin.delete_records_at({place: 20}, validate_only=True)
    assert left(broker, topic) == list(range(20))


@pytest.mark.parametrize("offsets", [-1, range(-3, 2), 2**63, [1, 10**30], range(2**63, 2**64)])
def test_what_can_be_no_offset(admin: Admin, topic: str, offsets: Any) -> None:
    with pytest.raises(ValueError, match="is no offset"):
        admin.delete_records_at({TopicPartition(topic, 0): offsets})


@pytest.mark.parametrize("offsets", ["1", b"1", [True], [1.0], [None], True])
def test_what_is_no_number(admin: Admin, topic: str, offsets: Any) -> None:
    with pytest.raises(TypeError):
        admin.delete_records_at({TopicPartition(topic, 0): offsets})


def test_a_range_without_end(admin: Admin, topic: str) -> None:
    with pytest.raises(BrokerError, match="out of range"):
        admin.delete_records_at({TopicPartition(topic, 0): range(2**63)})


async def test_records_with_a_key(broker: BrokerProcess, topic: str) -> None:
    async with AsyncConsumer(broker.bootstrap, max_rows=7) as consumer:
        seen: list[int] = []
        found = await find_key(consumer, topic, b"b", seen.append)
        assert {each: list(some) for each, some in found.items()} == {
            partition: [(offset, offset + 1) for offset in range(1, 20, 2)] for partition in (0, 1)
        }
        assert sum(seen) == 40
        assert await find_key(consumer, topic, b"") == {}
