"""Watching over the processes of other brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.server.replication import liveness
from ottla.server.replication.liveness import Liveness


class Paused(Exception):
    """Instead of a pause."""


def test_a_broker_without_room_for_connections_is_not_asked_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[object] = []

    async def ended_at_once(endpoint: object) -> None:
        attempts.append(endpoint)
        assert len(attempts) == 1, "asked again at once"

    async def pause(_: float) -> None:
        raise Paused

    async def watch() -> None:
        broker: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            membership=SimpleNamespace(controller=object()),
            config=SimpleNamespace(inter_broker_listener="INSIDE"),
        )
        peer: Any = SimpleNamespace(id=2, endpoint=lambda name: f"{name} of 2")
        monkeypatch.setattr(asyncio, "sleep", pause)
        await Liveness(broker)._watch(peer)

    monkeypatch.setattr(liveness, "_until_ended", ended_at_once)
    with pytest.raises(Paused):
        asyncio.run(watch())
    assert attempts == ["INSIDE of 2"]
