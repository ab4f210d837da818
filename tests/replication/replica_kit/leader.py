"""A leader that a fetcher connects to, and that answers what a test tells it to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
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


def indexes(request: FetchRequest) -> list[int]:
    return sorted(each.partition for topic in request.topics for each in topic.partitions)
