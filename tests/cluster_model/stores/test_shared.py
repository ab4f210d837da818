"""The store of the brokers of one machine: what its socket adds to what every store promises."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.shared import SharedStore, StoreServer, frames, server
from ottla.cluster.store import (
    Change,
    ChangeKind,
    Create,
    SessionEvent,
    SessionLost,
    StoreError,
    Unknown,
    boottime,
)

PATIENCE = 20.0

Serve = Callable[[], contextlib.AbstractAsyncContextManager[EmbeddedStore]]


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where a test's store is served; the path of a socket has at most some hundred characters."""
    with tempfile.TemporaryDirectory(prefix="ottla-") as folder:
        yield Path(folder, "private", "store")


@pytest.fixture
def serve(
    tmp_path: Path, socket: Path
) -> Callable[[], contextlib.AbstractAsyncContextManager[EmbeddedStore]]:
    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[EmbeddedStore]:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        served = StoreServer(store, socket)
        await served.start()
        try:
            yield store
        finally:
            await served.stop()
            await store.close()

    return serving


def run(scenario: Awaitable[None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario

    asyncio.run(whole())


async def opened(socket: Path, **options: float) -> SharedStore:
    store = SharedStore(socket, **options)
    await store.start()
    return store


async def lost(store: SharedStore) -> None:
    events = store.session_events()
    if store.session_state is not SessionEvent.LOST:
        assert [event async for event in events] == [SessionEvent.LOST]


def test_only_its_user_can_reach_the_socket(serve: Serve, socket: Path) -> None:
    socket.parent.mkdir(mode=0o777)

    def modes() -> list[int]:
        return [stat.S_IMODE(path.stat().st_mode) for path in (socket.parent, socket)]

    async def scenario() -> None:
        async with serve():
            assert modes() == [0o700, 0o600]

    run(scenario())
    assert not socket.exists()


def test_the_socket_of_a_server_that_was_killed_is_replaced(serve: Serve, socket: Path) -> None:
    import socket as sockets

    socket.parent.mkdir()
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(socket))

    async def scenario() -> None:
        async with serve():
            store = await opened(socket)
            assert await store.children("/") == []
            await store.close()

    run(scenario())


def test_a_session_ends_with_its_connection(serve: Serve, socket: Path) -> None:
    """As that of a process that is killed does."""

    async def scenario() -> None:
        async with serve() as own:
            store = await opened(socket)
            await store.multi([Create("/a", b"", ephemeral=True)])
            watch = own.watch("/")
            assert store._writer is not None
            store._writer.transport.abort()
            assert await anext(watch) == Change("/a", ChangeKind.DELETED)
            await lost(store)
            with pytest.raises(SessionLost):
                await store.get("/")

    run(scenario())


def test_who_is_silent_for_too_long_loses_the_session(serve: Serve, socket: Path) -> None:
    async def scenario() -> None:
        async with serve() as own:
            silent = await opened(socket, session_timeout=0.3)
            alive = await opened(socket, session_timeout=0.3)
            assert silent.session_timeout == 0.3
            for store, path in ((silent, "/silent"), (alive, "/alive")):
                await store.multi([Create(path, b"", ephemeral=True)])
            watch = own.watch("/")
            assert silent._ping is not None
            silent._ping.cancel()
            assert await anext(watch) == Change("/silent", ChangeKind.DELETED)
            # It was the first to doubt.
            assert boottime() - silent.last_contact > 0.3
            await lost(silent)
            assert await alive.get("/alive") is not None
            await alive.close()

    run(scenario())


def test_nobody_is_taken_for_silent_while_the_server_was_held_up(
    serve: Serve, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was stopped finds old moments of contact, and the pings still unread."""

    async def scenario() -> None:
        async with serve():
            store = await opened(socket)
            events = store.session_events()
            await store.multi([Create("/a", b"", ephemeral=True)])
            # An hour passes between two looks.
            monkeypatch.setattr(server, "boottime", lambda: boottime() + 3600)
            await asyncio.sleep(3 * server._LOOK_SECONDS)
            assert store.session_state is SessionEvent.CONNECTED
            assert await store.get("/a") is not None
            assert events.take() == []
            await store.close()

    run(scenario())


def test_what_was_asked_when_the_connection_ended(serve: Serve, socket: Path) -> None:
    async def scenario() -> None:
        async with serve():
            store = await opened(socket)
            multi = asyncio.create_task(store.multi([Create("/a")]))
            read = asyncio.create_task(store.get("/a"))
            await asyncio.sleep(0)
            assert store._writer is not None
            store._writer.transport.abort()
            assert isinstance(await multi, Unknown)
            with pytest.raises(SessionLost):
                await read

    run(scenario())


def test_a_server_that_stops_ends_all_sessions(serve: Serve, socket: Path) -> None:
    async def scenario() -> None:
        async with serve():
            stores = [await opened(socket) for _ in range(3)]
        for store in stores:
            await lost(store)
        late = SharedStore(socket)
        with pytest.raises(StoreError, match="nobody serves the metadata store at"):
            await late.start()
        assert late.session_state is SessionEvent.LOST
        await late.close()

    run(scenario())


def test_another_version_is_refused_with_a_sentence(
    serve: Serve, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serve():
            original = frames.DIALECT
            store = SharedStore(socket)
            begin = store._begin

            def with_another(kind: int, *arguments: object) -> asyncio.Future[object]:
                if kind == frames.HELLO:
                    arguments = ((original[0], "9.9", original[2]), *arguments[1:])
                return begin(kind, *arguments)

            monkeypatch.setattr(store, "_begin", with_another)
            with pytest.raises(StoreError, match="is served by another version of Ottla"):
                await store.start()
            await store.close()

    run(scenario())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\1x",
        frames.encode((1, frames.MULTI, [])),
        frames.encode((1, frames.HELLO, frames.DIALECT, 6.0)) + frames.encode((2, 99)),
    ],
)
def test_a_stranger_is_disconnected_and_the_others_are_served(
    serve: Serve, socket: Path, sent: bytes
) -> None:
    async def scenario() -> None:
        async with serve():
            store = await opened(socket)
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(sent)
            writer.write_eof()
            await reader.read()
            writer.close()
            await store.multi([Create("/a")])
            assert await store.children("/") == ["a"]
            await store.close()

    run(scenario())


def test_a_store_whose_file_failed_ends_all_sessions(serve: Serve, socket: Path) -> None:
    """A ping is enough to learn of it, and the change that failed is in doubt."""

    async def scenario() -> None:
        async with serve() as own:
            writer = await opened(socket)
            idle = await opened(socket, session_timeout=0.4)
            database: Any = own._database

            def failing(staged: object) -> None:
                raise sqlite3.OperationalError("disk I/O error")

            database._file.write = failing
            assert isinstance(await writer.multi([Create("/a")]), Unknown)
            assert own.session_state is SessionEvent.LOST
            await lost(idle)
            await writer.close()

    run(scenario())


def test_a_closed_watch_is_forgotten_by_the_server(serve: Serve, socket: Path) -> None:
    async def scenario() -> None:
        async with serve() as own:
            store = await opened(socket)
            first = store.watch("/")
            await own.multi([Create("/a")])
            assert await anext(first) == Change("/a", ChangeKind.CREATED)
            first.close()
            second = store.watch("/")  # which also ends the first at the other end
            await store.sync()
            await own.multi([Create("/b")])
            assert await anext(second) == Change("/b", ChangeKind.CREATED)
            (session,) = [each for each in own._database.sessions if each is not own]
            assert len([watch for _, watch in session._watches if not watch.closed]) == 1
            await store.close()

    run(scenario())


def test_news_come_before_the_answer_of_who_could_have_seen_them(
    serve: Serve, socket: Path
) -> None:
    """What a follower relies on when it has synced: the changes before that are in its stream."""

    async def scenario() -> None:
        async with serve():
            writer, reader = await opened(socket), await opened(socket)
            watch = reader.watch("/")
            for number in range(200):
                await writer.multi([Create(f"/{number}")])
                await reader.sync()
                assert watch.take() == [Change(f"/{number}", ChangeKind.CREATED)]
            await writer.close()
            await reader.close()

    run(scenario())
