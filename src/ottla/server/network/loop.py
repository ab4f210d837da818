"""The event loop of a broker: asyncio's, with a shorter way from a ready socket to who reads it.

asyncio makes a list of the sockets that are ready, queues a handle for each, and runs the queue. Where a
request costs a few microseconds that is a good part of it. This loop calls those that were added by
`add_reader` and `add_writer` while it goes through what epoll has found. What they want called soon
is called before the sockets are looked at again, not one look later: a record gets from its producer to
the followers that wait for it in one turn.

Some sockets are served after the others, and only one of them in a turn: those of peers who read old
data, each of whom keeps the loop busy for a good part of a millisecond again and again. What comes
from anybody else meanwhile waits for one of them at most, not for all.

All else (transports, signals, threads, timers) is asyncio's. A broker works on any other loop, too.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Called = Callable[[], object]
A = TypeVarTuple("A")

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# What epoll calls them; hang-ups and errors are told to both.
_IN, _OUT = 0x001, 0x004


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop for a broker of this process."""
    return BrokerLoop() if hasattr(select, "epoll") else asyncio.new_event_loop()


class _Watched:
    """A socket, and who is called when it can be read from or written to."""

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        self.reader: Called | None = None
        self.writer: Called | None = None

    @property
    def mask(self) -> int:
        return (_IN if self.reader is not None else 0) | (_OUT if self.writer is not None else 0)


class _GivesWay:
    """How long a socket is served after others, and the turn in which it was served last."""

    __slots__ = ("served", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.served = 0


class _Sockets(selectors.BaseSelector):
    """What the loop waits for: sockets whose readers are called here, and those of asyncio itself."""

    def __init__(self, failed: Callable[[Exception, Called], None]) -> None:
        self._epoll = select.epoll()
        self._failed = failed
        self._watched: dict[int, _Watched] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}
        # By number. One that has got a new socket meanwhile is served after others for a while.
        self._giving_way: dict[int, _GivesWay] = {}
        self._turn = 0

    # Those that are called ------------------------------------------------------------------------

    def watch(self, fd: int, *, reader: Called | None = None, writer: Called | None = None) -> None:
        """Have one of them called from now on; the other stays."""
        watched = self._watched.get(fd)
        is_new = watched is None
        if watched is None:
            watched = _Watched()
        before = watched.mask
        if reader is not None:
            watched.reader = reader
        if writer is not None:
            watched.writer = writer
        if is_new:
            self._epoll.register(fd, watched.mask)
            self._watched[fd] = watched
        elif watched.mask != before:
            self._epoll.modify(fd, watched.mask)

    def forget(self, fd: int, *, reader: bool = False, writer: bool = False) -> bool:
        """Call one of them no more, not even for what was found already; whether there was one."""
        watched = self._watched.get(fd)
        if watched is None:
            return False
        before = watched.mask
        if reader:
            watched.reader = None
        if writer:
            watched.writer = None
        if not watched.mask:
            del self._watched[fd]
            self._unregister(fd)
        elif watched.mask != before:
            self._epoll.modify(fd, watched.mask)
        return watched.mask != before

    def serve_after_others(self, fd: int, until: float) -> None:
        gives_way = self._giving_way.get(fd)
        if gives_way is None:
            self._giving_way[fd] = _GivesWay(until)
        else:
            gives_way.until = until

    def serve_like_others(self, fd: int) -> None:
        self._giving_way.pop(fd, None)

    def _serve_one(self, waiting: list[tuple[_GivesWay, int, int]]) -> None:
        """Serve one of the sockets that give way: the one that has waited longest. The others are found
        again in the next turn."""
        now = monotonic()
        left = []
        for each in waiting:
            gives_way, fd, event = each
            if gives_way.until < now:
                self.serve_like_others(fd)
                self._serve(fd, event)
            else:
                left.append(each)
        if left:
            gives_way, fd, event = min(left, key=lambda each: each[0].served)
            self._turn += 1
            gives_way.served = self._turn
            self._serve(fd, event)

    def _serve(self, fd: int, event: int) -> None:
        watched = self._watched.get(fd)
        if watched is not None:
            self._call(watched.reader if event & ~_OUT else None)
            self._call(watched.writer if event & ~_IN else None)

    def _call(self, called: Called | None) -> None:
        if called is not None:
            try:
                called()
            except Exception as error:  # noqa: BLE001 - told; the other sockets are served
                self._failed(error, called)

    # What asyncio asks for ------------------------------------------------------------------------

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        fd = _number(fileobj)
        if fd in self._keys or fd in self._watched:
            raise KeyError(f"{fileobj!r} is registered already")
        self._epoll.register(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        fd = _number(fileobj)
        key = self._keys.pop(fd)
        self._unregister(fd)
        return key

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        fd = _number(fileobj)
        before = self._keys[fd]
        if events != before.events:
            self._epoll.modify(fd, _mask(events))
        key = self._keys[fd] = before._replace(events=events, data=data)
        return key

    def _unregister(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except (OSError, ValueError):
            pass  # it was closed before, or the loop is; either way nobody looks at it

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            timeout = -1
        elif timeout > 0:
            # epoll counts milliseconds; rounded down, it would not wait at all for the last one.
            timeout = math.ceil(timeout * 1000) / 1000
        else:
            timeout = 0
        watched_sockets = self._watched
        try:
            found = self._epoll.poll(timeout, max(len(watched_sockets) + len(self._keys), 1))
        except InterruptedError:
            return []
        ready = []
        giving_way = self._giving_way
        waiting: list[tuple[_GivesWay, int, int]] = []
        for fd, event in found:
            watched = watched_sockets.get(fd)
            if watched is None:
                key = self._keys.get(fd)
                if key is not None:
                    events = (_READ if event & ~_OUT else 0) | (_WRITE if event & ~_IN else 0)
                    ready.append((key, events & key.events))
                continue
            if giving_way and (gives_way := giving_way.get(fd)) is not None:
                waiting.append((gives_way, fd, event))
                continue
            # A number may have got a new socket since epoll looked. Who is called bears that nothing
            # is there.
            if event & ~_OUT and (called := watched.reader) is not None:
                try:
                    called()
                except Exception as error:  # noqa: BLE001 - told; the other sockets are served
                    self._failed(error, called)
            if event & ~_IN and (called := watched.writer) is not None:
                try:
                    called()
                except Exception as error:  # noqa: BLE001 - likewise
                    self._failed(error, called)
        if waiting:
            self._serve_one(waiting)
        return ready

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._keys  # type: ignore[return-value]  # asyncio knows sockets by their numbers

    def close(self) -> None:
        self._epoll.close()
        self._watched.clear()
        self._keys.clear()


class BrokerLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, which calls those who wait for a socket at once.

    A socket that asyncio itself waits for, as in `sock_connect`, is asyncio's until that is over: it
    takes its readers and writers away by the same methods.
    """

    def __init__(self) -> None:
        self._sockets = _Sockets(self._report)
        super().__init__(self._sockets)

    def add_reader(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[A]], Any], *args: *A
    ) -> None:
        number = _number(fd)
        if number in self._sockets.get_map():
            super().add_reader(number, callback, *args)
        else:
            self._sockets.watch(number, reader=partial(callback, *args) if args else callback)

    def remove_reader(self, fd: FileDescriptorLike) -> bool:
        number = _number(fd)
        return self._sockets.forget(number, reader=True) or super().remove_reader(number)

    def add_writer(
        self, fd: FileDescriptorLike, callback: Callable[[Unpack[A]], Any], *args: *A
    ) -> None:
        number = _number(fd)
        if number in self._sockets.get_map():
            super().add_writer(number, callback, *args)
        else:
            self._sockets.watch(number, writer=partial(callback, *args) if args else callback)

    def remove_writer(self, fd: FileDescriptorLike) -> bool:
        number = _number(fd)
        return self._sockets.forget(number, writer=True) or super().remove_writer(number)

    def serve_after_others(self, fd: int, seconds: float = math.inf) -> None:
        """For so long from now, whoever waits for this socket is called after all who wait for others,
        and not in the same turn as another of this kind."""
        self._sockets.serve_after_others(fd, self.time() + seconds)

    def serve_like_others(self, fd: int) -> None:
        """Ends `serve_after_others`, for the socket is closed."""
        self._sockets.serve_like_others(fd)

    def _report(self, error: Exception, called: Called) -> None:
        self.call_exception_handler({"message": f"{called!r} failed", "exception": error})


def _number(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _mask(events: int) -> int:
    return (_IN if events & _READ else 0) | (_OUT if events & _WRITE else 0)
