"""The task that follows a leader: what ends a request that waits there, and what ends the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from replica_kit import TOPIC_ID, Holder, batch, state

from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.replication.fetcher import Fetcher
from ottla.replication.following import Limits
from ottla.wire.connection import Connection

LEADER = 2
VERSION = FetchRequest.versions[1]


class Leader:
    """Connections to a leader that never answers by itself."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.asked: asyncio.Queue[FetchRequest] = asyncio.Queue()

    async def connect(self, broker_id: int) -> Connection:
        assert broker_id == LEADER
        connection = FakeConnection(self)
        self.connections.append(connection)
        return cast(Connection, connection)

    async def next_request(self) -> FetchRequest:
        return await asyncio.wait_for(self.asked.get(), 10)

    def answer(self, response: FetchResponse) -> None:
        """The last request is answered so."""
        frame = response.encode(VERSION)
        self.connections[-1].answers[-1].set_result((frame, 0))


class FakeConnection:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.answers: list[asyncio.Future[Any]] = []
        self.closed = False

    def version_of(self, request: type[FetchRequest]) -> int:
        return request.versions[1]

    def send(
        self, api_key: int, version: int, body: list[Any], *, timeout: float
    ) -> asyncio.Future[Any]:
        assert api_key == FetchRequest.api_key
        assert timeout > 0
        self.answers.append(asyncio.get_running_loop().create_future())
        request, _ = FetchRequest.decode(b"".join(body), 0, version)
        self._leader.asked.put_nowait(request)
        return self.answers[-1]

    def read(
        self, _api_key: int, version: int, frame: bytes, at: int, answer: type[FetchResponse]
    ) -> FetchResponse:
        return answer.decode(frame, at, version)[0]

    def close(self) -> None:
        self.closed = True


def follow(scenario: Callable[[Leader, Fetcher], Awaitable[None]]) -> None:
    async def run() -> None:
        leader = Leader()
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Awaitable[None], name: str) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(work, name=name))  # type: ignore[arg-type]
            return tasks[-1]

        fetcher = Fetcher(LEADER, Limits(), leader.connect, lambda: (1, 10), lambda: 0, spawn)
        await scenario(leader, fetcher)
        fetcher.close()
        (task,) = tasks
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
        assert all(connection.closed for connection in leader.connections)

    asyncio.run(run())


def indexes(request: FetchRequest) -> list[int]:
    return sorted(each.partition for topic in request.topics for each in topic.partitions)


def test_answers_are_taken_and_the_next_request_tells_so() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()
        data = PartitionData(
            partition_index=0, high_watermark=1, log_start_offset=0, records=batch(3, epoch=5)
        )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        leader.answer(FetchResponse(session_id=7, responses=[topic]))
        request = await leader.next_request()
        assert request.topics[0].partitions[0].fetch_offset == 3
        assert request.session_id == 7
        assert holder.high_watermark == 1
        assert len(leader.connections) == 1

    follow(scenario)


def test_a_request_that_waits_is_given_up_when_there_is_more_to_follow() -> None:
    first, second = (Holder(state(leader=LEADER, index=index)) for index in range(2))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(first.partition)
        assert indexes(await leader.next_request()) == [0]
        fetcher.put(second.partition)
        assert indexes(await leader.next_request()) == [0, 1]
        abandoned, current = leader.connections
        assert abandoned.closed
        assert not current.closed

    follow(scenario)


def test_an_answer_that_came_before_the_change_counts() -> None:
    first, second = (Holder(state(leader=LEADER, index=index)) for index in range(2))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(first.partition)
        await leader.next_request()
        leader.answer(FetchResponse(session_id=7, responses=[]))
        fetcher.put(second.partition)
        request = await leader.next_request()
        assert indexes(request) == [1]
        assert request.session_id == 7
        assert len(leader.connections) == 1

    follow(scenario)


def test_closing_ends_a_request_that_waits() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()

    follow(scenario)
