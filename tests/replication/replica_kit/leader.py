"""A leader that a fetcher connects to, and that answers what a test tells it to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.connection import Connection, OnAnswer

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

    def answer_with(self, failure: Exception) -> None:
        """The last request is answered with what cannot be read."""
        self.connections[-1].failure = failure
        self.answer(FetchResponse())

    def answer(self, response: FetchResponse) -> None:
        """The last request is answered so."""
        frame = response.encode(VERSION)
        on_answer, failed = self.connections[-1].asked[-1]
        if not failed.done():
            on_answer(frame, 0)


class FakeConnection:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.asked: list[tuple[OnAnswer, asyncio.Future[Any]]] = []
        self.closed = False
        self.failure: Exception | None = None

    def version_of(self, request: type[FetchRequest]) -> int:
        return request.versions[1]

    def send_to(
        self,
        api_key: int,
        version: int,
        body: list[Any],
        on_answer: OnAnswer,
        failed: asyncio.Future[Any],
        *,
        timeout: float,
    ) -> None:
        assert api_key == FetchRequest.api_key
        assert timeout > 0
        self.asked.append((on_answer, failed))
        request, _ = FetchRequest.decode(b"".join(body), 0, version)
        self._leader.asked.put_nowait(request)

    def read(
        self, _api_key: int, version: int, frame: bytes, at: int, answer: type[FetchResponse]
    ) -> FetchResponse:
        if self.failure is not None:
            raise self.failure
        return answer.decode(frame, at, version)[0]

    def close(self) -> None:
        self.closed = True


def indexes(request: FetchRequest) -> list[int]:
    return sorted(each.partition for topic in request.topics for each in topic.partitions)
