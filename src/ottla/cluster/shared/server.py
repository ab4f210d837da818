"""Serves the embedded store to the brokers of this machine, one session for each connection.

A session ends with its connection, which the kernel closes when a broker's process ends, however it
ends; or when nothing is heard of the broker for the session's time-out, as from one that is stopped or
whose loop hangs. While this process itself was held up, nobody is taken for silent.

The socket is in a folder that only its user may enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import Any, Final

from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.shared import frames
from ottla.cluster.store import Change, SessionEvent, SessionLost, StoreError, Stream, boottime

log = logging.getLogger("ottla.cluster.shared")

# How often it is looked who has been silent for too long.
_LOOK_SECONDS: Final = 0.25
# A look that comes later than this says that this process was held up, not that brokers were silent.
_HELD_UP_SECONDS: Final = 1.0


class StoreServer:
    """Takes connections once started. `store` must be open, and stays so after `stop`."""

    def __init__(self, store: EmbeddedStore, path: str | os.PathLike[str]) -> None:
        self._store = store
        self.path = Path(path)
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._look: asyncio.TimerHandle | None = None
        self._looked = 0.0

    async def start(self) -> None:
        """StoreError if the socket cannot be made."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise StoreError(f"{folder}, for the socket of the metadata store, is not ours")
            folder.chmod(0o700)
            self._remove_socket()
            self._server = await asyncio.start_unix_server(self._accept, self.path)
            self.path.chmod(0o600)
        except OSError as error:
            raise StoreError(
                f"cannot make the socket of the metadata store, {self.path}: "
                f"{error.strerror or error}"
            ) from error
        self._looked = boottime()
        self._look_later()

    async def stop(self) -> None:
        """Ends all sessions."""
        if self._look is not None:
            self._look.cancel()
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections.values())
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks)
        with contextlib.suppress(OSError):
            self._remove_socket()

    def _remove_socket(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(self.path.lstat().st_mode):
                self.path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._store, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        try:
            await connection.serve()
        finally:
            del self._connections[connection]

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_LOOK_SECONDS, self._look_at_sessions)

    def _look_at_sessions(self) -> None:
        now = boottime()
        was_held_up = now - self._looked > _HELD_UP_SECONDS
        self._looked = now
        for connection in list(self._connections):
            if was_held_up:
                connection.heard = now
            elif now - connection.heard > connection.timeout:
                log.warning(
                    "session %d of the metadata store ends: nothing was heard of its broker for %.1f s",
                    connection.session_id, now - connection.heard,
                )  # fmt: skip
                connection.abort()
        self._look_later()


class _Connection:
    """One broker's session."""

    def __init__(
        self, store: EmbeddedStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._session = store.join()
        self._reader = reader
        self._writer = writer
        self._watches: dict[int, _News] = {}
        self._is_open = False
        self.heard = boottime()
        self.timeout = 10.0  # until it says which it wants
        # Frames of one turn of the loop go out together.
        self._outgoing: list[bytes] = []

    @property
    def session_id(self) -> int:
        return self._session.session_id

    def abort(self) -> None:
        """Cuts the connection; the session's end follows."""
        self._writer.transport.abort()

    async def serve(self) -> None:
        """Serves the broker's requests until it closes the session, or is gone."""
        try:
            while (frame := await self._next()) is not None:
                self.heard = boottime()
                number, kind = frame[0], frame[1]
                if kind == frames.CLOSE:
                    await self._end_session()
                    self.send((number, frames.OK, None))
                    self._flush()
                    with contextlib.suppress(OSError):
                        await self._writer.drain()
                    break
                if not self._is_open:
                    if kind != frames.HELLO or not await self._open(number, frame[2], frame[3]):
                        break
                else:
                    await self._do(number, kind, frame[2:])
        except (ValueError, TypeError, IndexError, KeyError) as error:
            log.error("a broker of this machine sent what cannot be read: %s", error)
        except SessionLost as error:
            log.error("the metadata store is lost: %s", error)
        finally:
            await self._end_session()
            self._writer.close()

    async def _next(self) -> tuple[Any, ...] | None:
        try:
            (length,) = frames.LENGTH.unpack(await self._reader.readexactly(frames.LENGTH.size))
            return frames.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _open(self, number: int, dialect: tuple[str, ...], timeout: float) -> bool:
        if dialect != frames.DIALECT:
            why = (
                "the metadata store is served by another version of Ottla or Python "
                f"({frames.DIALECT[1]}): stop all brokers of this machine, and start them again"
            )
            self.send((number, frames.REFUSED, why))
            self._flush()
            return False
        self.timeout = timeout
        await self._session.start()
        self._is_open = True
        self.send((number, frames.OK, self._session.session_id))
        return True

    async def _do(self, number: int, kind: int, arguments: tuple[Any, ...]) -> None:
        """Does a request. Nothing here waits: reads are from memory, and a multi's answer follows."""
        session = self._session
        if session.session_state is SessionEvent.LOST:
            raise SessionLost("its file failed")
        result: Any = None
        if kind == frames.GET_MANY:
            found = await session.get_many(arguments[0])
            result = [frames.pack_node(node) for node in found]
        elif kind == frames.CHILDREN:
            result = await session.children(arguments[0])
        elif kind == frames.MULTI:
            answer = session.begin_multi(frames.unpack_operations(arguments[0]))
            answer.add_done_callback(
                lambda done: self.send((number, frames.OK, frames.pack_answer(done.result())))
            )
            return
        elif kind == frames.SYNC:
            session.begin_multi(()).add_done_callback(
                lambda _: self.send((number, frames.OK, None))
            )
            return
        elif kind == frames.WATCH:
            watch, path = arguments
            self._watches[watch] = news = _News(self, watch)
            session.add_watch(path, news)
        elif kind == frames.UNWATCH:
            self._watches.pop(arguments[0]).close()
        elif kind != frames.PING:
            raise ValueError(f"there is no request {kind}")
        self.send((number, frames.OK, result))

    def send(self, frame: tuple[Any, ...]) -> None:
        """Sends with all else of this turn of the loop, in order."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(frames.encode(frame))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and not self._writer.transport.is_closing():
            self._writer.write(b"".join(outgoing))

    async def _end_session(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._session.close()


class _News(Stream[Change]):
    """A watch whose reader is at the other end of a connection."""

    def __init__(self, connection: _Connection, watch: int) -> None:
        super().__init__()
        self._connection = connection
        self._watch = watch

    def push(self, event: Change) -> None:
        if not self.closed:
            self._connection.send((frames.NEWS, self._watch, frames.pack_change(event)))
