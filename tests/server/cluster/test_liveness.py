"""Watching over the processes of other brokers."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cluster.metadata import Endpoint, RegisteredBroker
from ottla.cluster.store import Node
from ottla.server.replication import liveness
from ottla.server.replication.liveness import Liveness


class Paused(Exception):
    """Instead of a pause."""


def test_a_broker_without_room_for_connections_is_not_asked_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[object] = []

    async def ended_at_once(endpoint: object, _connected: object) -> None:
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


SECONDS = 20


class Peer:
    """An address, at which somebody listens or not."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self.accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    def registered(self, epoch: int) -> RegisteredBroker:
        endpoint = Endpoint("INSIDE", "127.0.0.1", self.port, "PLAINTEXT")
        return RegisteredBroker(2, epoch, None, (endpoint,))

    async def listen(self) -> None:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            self.accepted.put_nowait(writer)

        self._server = await asyncio.start_server(accept, sock=self._socket)

    async def connection(self) -> asyncio.StreamWriter:
        return await asyncio.wait_for(self.accepted.get(), SECONDS)

    def die(self) -> None:
        """As the sockets of a process that is killed."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.close()


class Watcher:
    """The broker that watches, in office or not."""

    def __init__(self, in_office: bool = True) -> None:
        self.fenced: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.replaced: asyncio.Queue[int] = asyncio.Queue()
        self.office = Node(b'{"broker":2}', 0, 7, 0)
        controller = SimpleNamespace(fence_broker=self._fence) if in_office else None
        broker: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            membership=SimpleNamespace(
                controller=controller,
                store=SimpleNamespace(get=self._get),
                replace_controller=lambda node: self.replaced.put_nowait(node.created),
            ),
            config=SimpleNamespace(inter_broker_listener="INSIDE"),
        )
        self.liveness = Liveness(broker)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        self.fenced.put_nowait((broker_id, epoch))

    async def _get(self, _path: str) -> Node:
        return self.office

    @asynccontextmanager
    async def watching(self, peer: RegisteredBroker) -> AsyncIterator[None]:
        task = asyncio.create_task(self.liveness._watch(peer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Told(logging.Handler):
    """Hears of what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        liveness.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())

    async def hears(self, part: str) -> None:
        while part not in await asyncio.wait_for(self.lines.get(), SECONDS):
            pass

    def close(self) -> None:
        liveness.log.removeHandler(self)
        super().close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("short_pauses")
def test_a_broker_whose_port_refuses_connections_is_fenced() -> None:
    async def scenario() -> None:
        peer, watcher = Peer(), Watcher()
        await peer.listen()
        async with watcher.watching(peer.registered(10)):
            await peer.connection()
            assert watcher.fenced.empty()
            peer.die()
            assert await asyncio.wait_for(watcher.fenced.get(), SECONDS) == (2, 10)
        peer.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("short_pauses")
def test_a_broker_that_is_silent_or_resets_connections_is_not() -> None:
    async def scenario() -> None:
        peer, watcher = Peer(), Watcher()
        await peer.listen()
        async with watcher.watching(peer.registered(10)):
            for _ in range(3):
                reset(await peer.connection())
            (await peer.connection()).close()
            await peer.connection()  # and nothing is said
        assert watcher.fenced.empty()
        peer.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("short_pauses")
def test_a_wrong_address_is_held_against_a_broker_once() -> None:
    async def scenario() -> None:
        peer, watcher, told = Peer(), Watcher(), Told()
        async with watcher.watching(peer.registered(10)):
            assert await asyncio.wait_for(watcher.fenced.get(), SECONDS) == (2, 10)
        while not watcher.fenced.empty():
            assert watcher.fenced.get_nowait() == (2, 10)
        # It registers again, with the same address.
        for epoch in (11, 12):
            async with watcher.watching(peer.registered(epoch)):
                await told.hears(f"(127.0.0.1:{peer.port}) still refuses connections")
        assert watcher.fenced.empty()
        # The address is right now. If it refuses from here on, the process has ended.
        await peer.listen()
        async with watcher.watching(peer.registered(12)):
            await peer.connection()
            peer.die()
            assert await asyncio.wait_for(watcher.fenced.get(), SECONDS) == (2, 12)
        peer.close()
        told.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("short_pauses")
def test_a_controller_with_a_wrong_address_is_stood_against_once() -> None:
    async def scenario() -> None:
        peer, watcher, told = Peer(), Watcher(in_office=False), Told()
        async with watcher.watching(peer.registered(10)):
            assert await asyncio.wait_for(watcher.replaced.get(), SECONDS) == 7
        while not watcher.replaced.empty():
            assert watcher.replaced.get_nowait() == 7
        # It has taken office again.
        watcher.office = watcher.office._replace(created=9)
        async with watcher.watching(peer.registered(10)):
            await told.hears("still refuses connections")
        assert watcher.replaced.empty()
        peer.close()
        told.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("short_pauses")
def test_a_name_with_two_addresses_refuses_when_both_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localhost` in most places: a broker may listen on one of them only."""

    async def two_addresses(_loop: object, _host: str, port: int, **_options: object) -> Any:
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{each}", port)) for each in (2, 1)]

    async def scenario() -> None:
        peer, watcher = Peer(), Watcher()
        (endpoint,) = peer.registered(10).endpoints
        registered = RegisteredBroker(2, 10, None, (replace(endpoint, host="both.test"),))
        await peer.listen()
        async with watcher.watching(registered):
            await peer.connection()
            assert watcher.fenced.empty()
            peer.die()
            assert await asyncio.wait_for(watcher.fenced.get(), SECONDS) == (2, 10)
        peer.close()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", two_addresses)
    asyncio.run(scenario())
