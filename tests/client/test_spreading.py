"""Requests that are spread over the brokers which answer for their parts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ottla.client.configuration.clients import AdminSettings, read_settings
from ottla.client.errors import BrokerError, TimedOut
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Leaders, Outcomes, spread
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsResponse


def test_a_partition_without_a_leader_is_named_when_the_time_is_up() -> None:
    """The brokers do answer: it is this partition for which nobody does."""
    place = TopicPartition("orders", 2)

    async def topic(name: str, **_: Any) -> None: ...

    cluster: Any = SimpleNamespace(
        topic=topic,
        metadata=SimpleNamespace(partition=lambda *_: SimpleNamespace(leader=-1), nodes={}),
        request_refresh=lambda _: None,
        settings=read_settings(AdminSettings, "127.0.0.1:1"),
    )

    def never(*_: Any) -> Any:
        raise AssertionError("nobody is asked")

    async def ask() -> Outcomes[TopicPartition, int]:
        return await spread(
            cluster, [place], Leaders(cluster),
            build=never, answer=ListOffsetsResponse, read=never, timeout=0.01,
        )  # fmt: skip

    problem = asyncio.run(ask()).errors[place]
    assert isinstance(problem, TimedOut)
    assert isinstance(problem.__cause__, BrokerError)
    assert problem.__cause__.code == ErrorCode.LEADER_NOT_AVAILABLE
    assert "partition 2 of topic 'orders': The partition has no leader" in str(problem)
