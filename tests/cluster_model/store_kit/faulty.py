"""A store that loses answers on purpose, in front of another: what a bad network does, seeded.

It exists for tests; what runs on it must come to the same end as on a store without faults. The
faults are those a ZooKeeper client sees: an answer lost before or after the change was made, a change
that is made only after the client has been told that nothing is known, a read without an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ottla.cluster.store import (
    Answer,
    Change,
    Node,
    Operation,
    SessionEvent,
    Store,
    StoreUnavailable,
    Stream,
    Unknown,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How likely each fault is, from 0 to 1."""

    lost_before: float = 0.0  # a multi answers Unknown and is never done
    lost_after: float = 0.0  # a multi is done and answers Unknown
    lost_late: float = 0.0  # a multi answers Unknown and is done, or refused, by the next sync
    unavailable: float = 0.0  # a read or a sync raises StoreUnavailable


class FaultyStore(Store):
    """Wraps a store. The same seed and the same calls meet the same faults."""

    def __init__(self, inner: Store, seed: int, faults: Faults) -> None:
        self.inner = inner
        self.largest_multi = inner.largest_multi
        self.faults = faults  # may be replaced at any time
        self._random = Random(seed)
        self._late: list[Sequence[Operation]] = []
        self._session_streams: list[Stream[SessionEvent]] = []

    @property
    def session_id(self) -> int:
        return self.inner.session_id

    @property
    def session_state(self) -> SessionEvent:
        return self.inner.session_state

    @property
    def session_timeout(self) -> float | None:
        return self.inner.session_timeout

    @property
    def last_contact(self) -> float:
        return self.inner.last_contact

    @property
    def answers_can_be_stale(self) -> bool:
        return self.inner.answers_can_be_stale

    @property
    def last_commit(self) -> float:
        return self.inner.last_commit

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self._do_late()
        await self.inner.close()

    async def get(self, path: str) -> Node | None:
        self._maybe_unavailable()
        return await self.inner.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._maybe_unavailable()
        return await self.inner.get_many(paths)

    async def children(self, path: str) -> list[str] | None:
        self._maybe_unavailable()
        return await self.inner.children(path)

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        faults = self.faults
        dice = self._random.random()
        if dice < faults.lost_before:
            self._interrupt()
            return Unknown("the connection was lost before the request arrived")
        dice -= faults.lost_before
        if dice < faults.lost_late:
            self._late.append(operations)
            self._interrupt()
            return Unknown("the connection was lost while the request was under way")
        # What is under way is older than this one; a session's requests keep their order.
        await self._do_late()
        answer = await self.inner.multi(operations)
        dice -= faults.lost_late
        if dice < faults.lost_after:
            self._interrupt()
            return Unknown("the connection was lost before the answer arrived")
        return answer

    async def sync(self) -> None:
        self._maybe_unavailable()
        await self._do_late()
        await self.inner.sync()

    def watch(self, path: str) -> Stream[Change]:
        return self.inner.watch(path)

    def session_events(self) -> Stream[SessionEvent]:
        stream = self.inner.session_events()
        self._session_streams.append(stream)
        return stream

    async def _do_late(self) -> None:
        while self._late:
            operations = self._late.pop(0)
            if self._random.random() < 0.5:
                await self.inner.multi(operations)

    def _maybe_unavailable(self) -> None:
        if self._random.random() < self.faults.unavailable:
            self._interrupt()
            raise StoreUnavailable("the connection was lost")

    def _interrupt(self) -> None:
        """Those who listen hear of a connection that went and came back."""
        for stream in self._session_streams:
            stream.push(SessionEvent.SUSPENDED)
            stream.push(SessionEvent.CONNECTED)
