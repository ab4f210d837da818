"""A ZooKeeper ensemble in memory, with the time of whoever runs it: sessions that lag, break and expire.

As in ZooKeeper there is one order of all changes, and each session sees it from a server of its own,
which may be behind: a read shows what that server has, a change or a `sync` waits until it has caught
up. News reach a session in order, and before anything that is newer is shown to it.

A connection breaks with whatever is under way on it: what has arrived is done, and not answered. News of
that time are not told; RESYNC says so once there is a connection again. The servers end a session on
their own (`Ensemble.expire`); its owner hears of it when it next reaches one of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from ottla.cluster import store as interface
from ottla.cluster.embedded.tree import Staged, Tree
from ottla.cluster.session import SessionStore, settle
from ottla.cluster.store import (
    Answer,
    Change,
    ChangeKind,
    Conflict,
    Delete,
    Node,
    Ok,
    Operation,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    Stream,
    Unknown,
    check_path,
    is_within,
)

# Changes that the server may not have at which a session begins.
BEHIND = 10


class Timing(Protocol):
    """When things happen to one session."""

    def at_servers(self, do: Callable[[], None]) -> None:
        """After the time that a message takes."""

    def at_owner(self, do: Callable[[], None], *, caught_up: bool) -> None:
        """The same in the owner's process: later if that stands still, never if it has ended.
        `caught_up`: not before the session's server has all that there is now."""

    def at_end(self, do: Callable[[], None]) -> None:
        """After the time of a session without contact."""


class AtOnce:
    """Everything takes a turn of the loop."""

    def at_servers(self, do: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(do)

    def at_owner(self, do: Callable[[], None], *, caught_up: bool) -> None:
        asyncio.get_running_loop().call_soon(do)

    def at_end(self, do: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(do)


class Commit:
    """A multi that was done, and who did it."""

    __slots__ = ("after", "before", "operations", "session")

    def __init__(self, session: int, operations: Sequence[Operation], staged: Staged) -> None:
        self.session = session
        self.operations = operations
        self.after = staged.nodes
        self.before = {path: staged._tree.nodes.get(path) for path in staged.nodes}


class Ensemble:
    """What all sessions share: the tree, the order of its changes, who has a session."""

    def __init__(self, largest_multi: int = 1 << 62) -> None:
        self.tree = Tree()
        self.largest_multi = largest_multi
        self.sessions: dict[int, EnsembleStore] = {}
        self.order: list[Staged] = []
        # Called with each change right after it was made.
        self.on_commit: Callable[[Commit], None] = lambda _: None
        self.session_ids = itertools.count(1)

    def commit(self, session: int, operations: Sequence[Operation]) -> Answer:
        """All of it, or nothing."""
        staged = Staged(self.tree)
        outcome = staged.add(operations, session)
        if isinstance(outcome, Conflict):
            return outcome
        if staged.nodes:
            made = Commit(session, operations, staged)
            self.tree.apply(staged)
            self.order.append(staged)
            for each in tuple(self.sessions.values()):
                each.hear_of(len(self.order))
            self.on_commit(made)
        return Ok(outcome)

    def expire(self, session: int) -> None:
        """The servers give a session up: what it owns goes. Its owner is not told."""
        if self.sessions.pop(session, None) is not None:
            owned = self.tree.owned_by(session)
            if owned:
                self.commit(session, [Delete(path) for path in owned])


class InOrder:
    """Messages that overtake each other nowhere, however long each of them takes."""

    def __init__(self) -> None:
        self._line: deque[tuple[list[bool], Callable[[], None]]] = deque()

    def arrival(self, do: Callable[[], None]) -> Callable[[], None]:
        """To be called when the message could be there; `do` waits for those before it."""
        is_there = [False]
        self._line.append((is_there, do))

        def arrived() -> None:
            is_there[0] = True
            while self._line and self._line[0][0][0]:
                self._line.popleft()[1]()

        return arrived


class EnsembleStore(SessionStore):
    """One session with an ensemble."""

    def __init__(
        self, ensemble: Ensemble, timing: Timing, chance: Random, timeout: float | None = None
    ) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.largest_multi = ensemble.largest_multi
        self._timing = timing
        self._chance = chance
        self._timeout = timeout
        self._session_id = next(ensemble.session_ids)
        self._last_commit = interface.boottime()
        self._view = Tree()
        self._seen = 0  # changes of the order that are in the view
        self._watches: list[tuple[str, Stream[Change]]] = []
        self._connection = 0  # which one it is
        self._requests, self._answers = InOrder(), InOrder()
        # Requests under way on this connection, and what becomes of each if that breaks.
        self._asked: dict[asyncio.Future[Any], Callable[[], None]] = {}
        self._held: list[Callable[[], None]] = []  # until there is a connection
        self._is_broken = False
        # How often a read shows what is newest. Where it never does, news alone tell of it.
        self._freshness = chance.choice((0.0, 0.5, 1.0))

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout(self) -> float | None:
        return self._timeout

    @property
    def answers_can_be_stale(self) -> bool:
        return self._timeout is not None

    @property
    def last_contact(self) -> float:
        return interface.boottime() if self._timeout is None else self._last_commit

    async def start(self) -> None:
        def arrived() -> int:
            self.ensemble.sessions[self._session_id] = self
            return len(self.ensemble.order)

        def opened(change: int) -> None:
            # A session may begin at a server that is behind.
            self._catch_up(self._chance.randint(max(0, change - BEHIND), change), told=False)
            self._become(SessionEvent.CONNECTED)
            self.hear_of(change)

        await self._ask(arrived, opened, in_session=False)

    async def close(self) -> None:
        if self._state is SessionEvent.LOST:
            return
        if self._is_broken:
            self._timing.at_end(lambda: self.ensemble.expire(self._session_id))
        else:
            try:
                await self._ask(
                    lambda: self.ensemble.expire(self._session_id), lambda _: None, in_session=False
                )
            except StoreUnavailable:
                self._timing.at_end(lambda: self.ensemble.expire(self._session_id))
        self._lose("the session was closed")

    async def get(self, path: str) -> Node | None:
        check_path(path)
        found: Node | None = await self._read(lambda: self._view.nodes.get(path))
        return found

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def some(from_: int, to: int) -> list[Node | None]:
            return [self._view.nodes.get(path) for path in paths[from_:to]]

        def read() -> list[Node | None]:
            cut = self._chance.randint(0, len(paths))
            first = some(0, cut)
            if self._freshness:
                self._catch_up(self._chance.randint(self._seen, self._newest_shown()))
            return first + some(cut, len(paths))

        found: list[Node | None] = await self._read(read)
        return found

    async def children(self, path: str) -> list[str] | None:
        check_path(path)
        found: list[str] | None = await self._read(lambda: self._view.children(path))
        return found

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        for operation in operations:
            check_path(operation.path)
        # It is done, whether or not the caller waits for the answer.
        answer: Answer = await asyncio.shield(self._begin(list(operations)))
        return answer

    async def sync(self) -> None:
        answer = await asyncio.shield(self._begin([]))
        if isinstance(answer, Unknown):
            self._require_session()
            raise StoreUnavailable(answer.reason)

    def watch(self, path: str) -> Stream[Change]:
        self._require_session()
        check_path(path)
        stream: Stream[Change] = Stream()
        self._watches = [entry for entry in self._watches if not entry[1].closed]
        self._watches.append((path, stream))
        return stream

    # Faults

    def break_connection(self) -> None:
        """The connection is gone, and with it all that is under way."""
        if self._state is not SessionEvent.CONNECTED or self._is_broken:
            return
        self._connection += 1
        self._requests, self._answers = InOrder(), InOrder()
        self._is_broken = True
        self._become(SessionEvent.SUSPENDED)
        asked, self._asked = self._asked, {}
        for give_up in asked.values():
            give_up()

    def mend_connection(self) -> None:
        """Another server is reached, if the session still stands."""
        if not self._is_broken or self._state is SessionEvent.LOST:
            return
        if self._session_id not in self.ensemble.sessions:
            self._timing.at_owner(lambda: self._lose("the session has expired"), caught_up=False)
            return

        def mended() -> None:
            if not self._is_broken or self._state is SessionEvent.LOST:
                return
            self._is_broken = False
            self._become(SessionEvent.CONNECTED)
            self._catch_up(self._chance.randint(self._seen, len(self.ensemble.order)), told=False)
            for root, stream in self._watches:
                stream.push(Change(root, ChangeKind.RESYNC))
            held, self._held = self._held, []
            for send in held:
                send()
            self.hear_of(len(self.ensemble.order))

        self._timing.at_owner(mended, caught_up=False)

    # What happens

    def hear_of(self, change: int) -> None:
        """There are so many changes now, of which the session is told in a while."""
        connection = self._connection

        def told() -> None:
            if connection == self._connection and not self._is_broken:
                self._catch_up(change)

        self._timing.at_owner(told, caught_up=True)

    def _newest_shown(self) -> int:
        """How far the session's server may be."""
        return max(self._seen, len(self.ensemble.order)) if self._is_served() else self._seen

    def _is_served(self) -> bool:
        return not self._is_broken and self._session_id in self.ensemble.sessions

    def _catch_up(self, change: int, *, told: bool = True) -> None:
        while self._seen < change:
            staged = self.ensemble.order[self._seen]
            self._seen += 1
            for each in self._view.apply(staged):
                for root, stream in self._watches if told else ():
                    if is_within(each.path, root):
                        stream.push(each)

    async def _read(self, read: Callable[[], Any]) -> Any:
        at_least = self._seen

        def arrived() -> None:
            nonlocal at_least
            if self._chance.random() < self._freshness:
                at_least = self._newest_shown()

        def answered(_: Any) -> Any:
            self._catch_up(at_least)
            return read()

        return await self._ask(arrived, answered)

    def _begin(self, operations: Sequence[Operation]) -> asyncio.Future[Answer]:
        sent = interface.boottime()

        def arrived() -> tuple[Answer, int]:
            answer = self.ensemble.commit(self._session_id, operations)
            return answer, len(self.ensemble.order)

        def answered(done: tuple[Answer, int]) -> Answer:
            answer, change = done
            self._last_commit = max(self._last_commit, sent)
            self._catch_up(change)
            return answer

        return self._ask(arrived, answered, is_change=True)

    def _ask(
        self,
        arrived: Callable[[], Any],
        answered: Callable[[Any], Any],
        *,
        is_change: bool = False,
        in_session: bool = True,
    ) -> asyncio.Future[Any]:
        """`arrived` is done by the servers, `answered` with its result in the owner's process."""
        if in_session or self._state is SessionEvent.LOST:
            self._require_session()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            reason = "the connection was lost"
            if is_change:
                settle(future, Unknown(reason), None)
            elif self._state is SessionEvent.LOST:
                settle(future, None, SessionLost(self._lost_because))
            else:
                settle(future, None, StoreUnavailable(reason))

        def send() -> None:
            connection = self._connection
            self._asked[future] = give_up

            def arrive() -> None:
                if connection != self._connection:
                    return
                if in_session and self._session_id not in self.ensemble.sessions:
                    self._timing.at_owner(
                        lambda: self._lose("the session has expired"), caught_up=False
                    )
                    return
                result = arrived()
                took = self._answers.arrival(lambda: take(result))
                self._timing.at_owner(took, caught_up=is_change)

            def take(result: Any) -> None:
                if connection != self._connection or self._state is SessionEvent.LOST:
                    return
                self._asked.pop(future, None)
                outcome = answered(result)
                settle(future, outcome, None)

            self._timing.at_servers(self._requests.arrival(arrive))

        if self._is_broken:
            self._held.append(send)
        else:
            send()
        return future

    def _require_session(self) -> None:
        # Requests wait while there is no connection.
        if self._state is not SessionEvent.CONNECTED and not (
            self._is_broken and self._state is SessionEvent.SUSPENDED
        ):
            raise SessionLost(self._lost_because)

    def _lose(self, because: str) -> None:
        if self._state is SessionEvent.LOST:
            return
        self._lost_because = because
        self._connection += 1
        self._become(SessionEvent.LOST)
        asked, self._asked = self._asked, {}
        for give_up in asked.values():
            give_up()
        for send in self._held:
            send()  # to nobody
        self._held.clear()
        for give_up in tuple(self._asked.values()):
            give_up()
        self._asked.clear()
        for _, stream in self._watches:
            stream.close()
