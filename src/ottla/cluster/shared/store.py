"""A session of one broker with the store that another process of its machine serves.

The session is the connection. When that ends, for whatever reason, the session is lost: the other end
has ended it, or is gone, and its ephemeral nodes go with it. There is nothing in between, so a session
is never suspended.

`last_contact` is when the request was sent that was last answered. The other end gives a session up
when it has heard nothing for the time-out, counted from a later moment; so this end is the first to
doubt. Requests go out from the event loop: while that hangs, nothing is heard of the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from typing import Any, Final

from ottla.cluster.session import SessionStore
from ottla.cluster.shared import frames
from ottla.cluster.store import (
    Answer,
    Change,
    Node,
    Operation,
    SessionEvent,
    SessionLost,
    StoreError,
    Stream,
    Unknown,
    boottime,
    check_path,
)

SESSION_TIMEOUT: Final = 6.0
START_TIMEOUT: Final = 15.0
_PINGS_PER_TIMEOUT: Final = 4
_GONE: Final = "the process that serves the metadata store has closed the connection"


class SharedStore(SessionStore):
    """A session with the store at the socket `path`; see the module's docstring."""

    def __init__(
        self, path: str | os.PathLike[str], *, session_timeout: float = SESSION_TIMEOUT
    ) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._timeout = session_timeout
        self._session_id = 0
        self._writer: asyncio.StreamWriter | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        # Requests that are not answered yet, with the moments at which they were sent.
        self._asked: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self._last_contact = 0.0
        self._watches: dict[int, Stream[Change]] = {}

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout(self) -> float:
        return self._timeout

    @property
    def last_contact(self) -> float:
        return self._last_contact

    async def start(self) -> None:
        if self._writer is not None:
            raise RuntimeError("the store was started before")
        try:
            reader, self._writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            self._lose("there was no connection")
            raise StoreError(
                f"nobody serves the metadata store at {self._path}: {error.strerror or error}"
            ) from error
        loop = asyncio.get_running_loop()
        self._receiving = loop.create_task(self._receive(reader), name="metadata store")
        try:
            async with asyncio.timeout(START_TIMEOUT):
                self._session_id = await self._ask(frames.HELLO, frames.DIALECT, self._timeout)
        except (TimeoutError, SessionLost) as error:
            self._lose("the session was not opened")
            raise StoreError(
                f"the metadata store at {self._path} took the connection, and then did not answer"
            ) from error
        except BaseException:
            self._lose("the session was not opened")
            raise
        self._become(SessionEvent.CONNECTED)
        self._ping_later()

    async def close(self) -> None:
        if self._state is SessionEvent.CONNECTED:
            closed = self._begin(frames.CLOSE)
            # From here on the session takes no more calls.
            self._state = SessionEvent.SUSPENDED
            try:
                async with asyncio.timeout(self._timeout):
                    await closed
            except (TimeoutError, StoreError):
                pass  # then it ends with the connection
        self._lose("the session was closed")
        if self._receiving is not None:
            await asyncio.gather(self._receiving, return_exceptions=True)

    # Reads

    async def get(self, path: str) -> Node | None:
        (node,) = await self.get_many([path])
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._require_session()
        for path in paths:
            check_path(path)
        found = await self._ask(frames.GET_MANY, list(paths))
        return [frames.unpack_node(node) for node in found]

    async def children(self, path: str) -> list[str] | None:
        self._require_session()
        check_path(path)
        names: list[str] | None = await self._ask(frames.CHILDREN, path)
        return names

    # Changes

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        self._require_session()
        for operation in operations:
            check_path(operation.path)
        try:
            return frames.unpack_answer(
                await self._ask(frames.MULTI, frames.pack_operations(operations))
            )
        except SessionLost as error:
            return Unknown(str(error))

    async def sync(self) -> None:
        self._require_session()
        await self._ask(frames.SYNC)

    # News

    def watch(self, path: str) -> Stream[Change]:
        self._require_session()
        check_path(path)
        self._forget_closed_watches()
        number = next(self._numbers)
        stream: Stream[Change] = Stream()
        self._watches[number] = stream
        _ignore_answer(self._begin(frames.WATCH, number, path))
        return stream

    def _forget_closed_watches(self) -> None:
        for number in [number for number, stream in self._watches.items() if stream.closed]:
            del self._watches[number]
            _ignore_answer(self._begin(frames.UNWATCH, number))

    # The connection

    async def _ask(self, kind: int, *arguments: Any) -> Any:
        return await self._begin(kind, *arguments)

    def _begin(self, kind: int, *arguments: Any) -> asyncio.Future[Any]:
        """Sends a request; the future of its answer."""
        assert self._writer is not None
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = (answer, boottime())
        self._writer.write(frames.encode((number, kind, *arguments)))
        return answer

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        because = _GONE
        try:
            while True:
                (length,) = frames.LENGTH.unpack(await reader.readexactly(frames.LENGTH.size))
                self._take(frames.decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (ValueError, TypeError, IndexError) as error:
            because = f"what serves the metadata store cannot be understood: {error}"
        self._lose(because)

    def _take(self, frame: tuple[Any, ...]) -> None:
        number = frame[0]
        if number == frames.NEWS:
            stream = self._watches.get(frame[1])
            if stream is not None:
                stream.push(frames.unpack_change(frame[2]))
            return
        answer, sent = self._asked.pop(number)
        self._last_contact = max(self._last_contact, sent)
        if answer.done():  # whoever asked has gone
            return
        if frame[1] == frames.OK:
            answer.set_result(frame[2])
        else:
            answer.set_exception(StoreError(frame[2]))

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._ping = loop.call_later(self._timeout / _PINGS_PER_TIMEOUT, self._send_ping)

    def _send_ping(self) -> None:
        if self._state is SessionEvent.CONNECTED:
            _ignore_answer(self._begin(frames.PING))
            self._ping_later()

    def _lose(self, because: str) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._state is SessionEvent.LOST:
            return
        self._lost_because = because
        if self._ping is not None:
            self._ping.cancel()
        asked, self._asked = self._asked, {}
        for answer, _ in asked.values():
            if not answer.done():
                answer.set_exception(SessionLost(because))
        self._become(SessionEvent.LOST)
        for watch in self._watches.values():
            watch.close()


def _ignore_answer(answer: asyncio.Future[Any]) -> None:
    """Ignore an answer that nobody waits for. That the session is lost is told by its events."""
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
