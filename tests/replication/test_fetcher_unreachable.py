"""The task that follows a leader, when that leader cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from ottla.replication.fetcher import Fetcher
from ottla.replication.following import FetchLimits, Following
from ottla.wire.connection import Connection
from ottla.wire.errors import ConnectFailed

LIMITS = FetchLimits(500, 1, 1 << 20, 1 << 20, 1000)


class Unreachable:
    """A leader whose port refuses connections."""

    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, leader: int) -> Connection:
        self.attempts += 1
        raise ConnectFailed(f"broker {leader}", "connection refused")


def follow(leader: Unreachable) -> Fetcher:
    def spawn(work: Awaitable[None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)  # type: ignore[arg-type]

    fetcher = Fetcher(2, LIMITS, leader.connect, lambda: (1, 1), lambda: 0, spawn)
    fetcher._changed.set()  # as when a partition was put
    return fetcher


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Following, "is_idle", property(lambda _self: False))


def test_pauses_between_attempts() -> None:
    async def scenario() -> int:
        leader = Unreachable()
        fetcher = follow(leader)
        await turns(2000)
        fetcher.close()
        return leader.attempts

    # The pauses double from 20 ms to a second; without them there are hundreds of attempts.
    assert 1 <= asyncio.run(scenario()) < 50


def test_ends_although_something_changes_as_well() -> None:
    async def scenario() -> bool:
        leader = Unreachable()
        fetcher = follow(leader)
        while leader.attempts == 0:
            await turns(1)
        await turns(5)  # it pauses now
        fetcher._changed.set()
        await turns(1)
        fetcher.close()
        await turns(20)
        return fetcher._task.cancelled()

    assert asyncio.run(scenario())
