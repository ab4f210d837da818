"""Two brokers that answer as a script says: other replicas, new leaders, lost sessions, nonsense."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from wire_kit.scripted import Asked, serving

from ottla import AsyncConsumer
from ottla.client.errors import CorruptRecords
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.record.batch import Record, build_batch

TOPIC = "scripted"
TOPIC_ID = b"0123456789abcdef"
PLACE = (TOPIC, 0)
PATIENCE = 20  # seconds


def batch(offset: int) -> bytes:
    value = f"at {offset}".encode()
    return build_batch([Record(offset, 1_700_000_000_000, None, value)], base_offset=offset)


@dataclass
class TwoBrokers:
    """What the brokers 1 and 2 were asked to fetch, and what they are to answer."""

    answers: dict[int, Callable[[FetchRequest], FetchResponse]] = field(default_factory=dict)
    fetches: list[tuple[int, FetchRequest]] = field(default_factory=list)
    ports: dict[int, int] = field(default_factory=dict)
    leader: int = 1

    def script(self, node: int) -> Callable[[Asked], Any]:
        async def answer(asked: Asked) -> None:
            if asked.api_key == ApiKey.METADATA:
                asked.answer(self._metadata())
            elif asked.api_key == ApiKey.FETCH:
                request, _ = FetchRequest.decode(asked.body, 0, asked.version)
                self.fetches.append((node, request))
                asked.answer(self.answers[node](request))

        return answer

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(
            controller_id=1,
            brokers=[
                MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
                for node, port in self.ports.items()
            ],
            topics=[
                MetadataResponseTopic(
                    name=TOPIC,
                    topic_id=TOPIC_ID,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=0,
                            leader_id=self.leader,
                            leader_epoch=self.leader,
                            replica_nodes=[1, 2],
                            isr_nodes=[1, 2],
                        )
                    ],
                )
            ],
        )


@asynccontextmanager
async def two_brokers() -> AsyncIterator[TwoBrokers]:
    brokers = TwoBrokers()
    async with (
        serving(brokers.script(1)) as (first, _),
        serving(brokers.script(2)) as (second, _),
    ):
        brokers.ports = {1: first, 2: second}
        yield brokers


def bootstrap(brokers: TwoBrokers) -> str:
    return f"127.0.0.1:{brokers.ports[1]}"


def answer(session_id: int = 0, **data: Any) -> FetchResponse:
    partition = PartitionData(partition_index=0, high_watermark=1000, **data)
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])
    return FetchResponse(session_id=session_id, responses=[topic])


def records_at(request: FetchRequest) -> FetchResponse:
    return answer(records=batch(request.topics[0].partitions[0].fetch_offset))


async def take(consumer: AsyncConsumer) -> list[bytes]:
    rows = await consumer.next_batch(timeout=PATIENCE)
    assert rows is not None
    return list(rows.column("value").to_pylist())


async def test_the_closest_replica() -> None:
    async with two_brokers() as brokers:
        brokers.answers[1] = lambda request: answer(preferred_read_replica=2)
        brokers.answers[2] = records_at
        async with AsyncConsumer(bootstrap(brokers), client_rack="here") as consumer:
            await consumer.assign({PLACE: 5})
            assert await take(consumer) == [b"at 5"]
            assert await take(consumer) == [b"at 6"]
    assert [node for node, _ in brokers.fetches][:3] == [1, 2, 2]
    assert brokers.fetches[0][1].rack_id == "here"


async def test_a_replica_that_lags_sends_back_to_the_leader() -> None:
    async with two_brokers() as brokers:
        brokers.answers[1] = lambda request: answer(preferred_read_replica=2)

        def behind(request: FetchRequest) -> FetchResponse:
            brokers.answers[1] = records_at
            return answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

        brokers.answers[2] = behind
        async with AsyncConsumer(bootstrap(brokers), auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 5})
            assert await take(consumer) == [b"at 5"]
    assert [node for node, _ in brokers.fetches][:3] == [1, 2, 1]


@pytest.mark.parametrize("tells", [True, False], ids=["answer names it", "metadata name it"])
async def test_a_new_leader(tells: bool) -> None:
    async with two_brokers() as brokers:

        def not_here(request: FetchRequest) -> FetchResponse:
            brokers.leader = 2
            told = LeaderIdAndEpoch(leader_id=2, leader_epoch=2) if tells else None
            response = answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=told)
            if tells:
                port = brokers.ports[2]
                response.node_endpoints = [NodeEndpoint(node_id=2, host="127.0.0.1", port=port)]
            return response

        brokers.answers = {1: not_here, 2: records_at}
        async with AsyncConsumer(bootstrap(brokers)) as consumer:
            await consumer.assign({PLACE: 5})
            assert await take(consumer) == [b"at 5"]
            assert await take(consumer) == [b"at 6"]
    asked = next(request for node, request in brokers.fetches if node == 2)
    assert asked.topics[0].partitions[0].current_leader_epoch == 2


async def test_a_session_that_the_broker_has_forgotten() -> None:
    async with two_brokers() as brokers:
        number = 0

        def forgetful(request: FetchRequest) -> FetchResponse:
            nonlocal number
            number += 1
            if number == 2:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            response = records_at(request)
            response.session_id = 7
            return response

        brokers.answers[1] = forgetful
        async with AsyncConsumer(bootstrap(brokers)) as consumer:
            await consumer.assign({PLACE: 5})
            assert await take(consumer) == [b"at 5"]
            assert await take(consumer) == [b"at 6"]
    sessions = [(each.session_id, each.session_epoch) for _, each in brokers.fetches]
    assert sessions[:4] == [(0, 0), (7, 1), (0, 0), (7, 1)]


@pytest.mark.parametrize(
    "records",
    [
        bytes(200),
        b"\xff" * 200,
        batch(5)[:-1],
        batch(2),
        batch(5)[:20] + bytes(70),
    ],
    ids=["zeros", "ones", "a piece", "what was not asked for", "a header of nonsense"],
)
async def test_nonsense_in_the_place_of_records(records: bytes) -> None:
    async with two_brokers() as brokers:
        brokers.answers[1] = lambda request: answer(records=records)
        async with AsyncConsumer(bootstrap(brokers)) as consumer:
            await consumer.assign({PLACE: 5})
            with pytest.raises(CorruptRecords, match="scripted-0"):
                await consumer.next_batch(timeout=PATIENCE)
            assert consumer.position(PLACE) == 5
