"""Reads and writes of the metadata store, tried again until their outcome is known.

A read that gets no answer is simply repeated. A write may have been made although no answer came: the
store is synced and the revision node read back. It carries a mark that no other write has, so it shows
whether the write was made. If it was not, it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ottla.cluster import layout
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage
from ottla.cluster.store import (
    Conflict,
    Node,
    Ok,
    Operation,
    Refusal,
    Store,
    StoreError,
    StoreUnavailable,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

# Seconds before each attempt; about ten in all.
PAUSES: Final = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.0, 2.0, 2.0, 3.0)


class Undecided(StoreError):
    """The store gave no answer for so long that the requests must be answered without it."""


def new_mark() -> str:
    """A random mark by which one write is known again."""
    return os.urandom(8).hex()


class Retries:
    """Reads and writes a store with as many attempts as there are pauses. Undecided after the last."""

    def __init__(self, store: Store, pauses: Sequence[float] = PAUSES) -> None:
        self._store = store
        self._pauses = tuple(pauses)

    async def read(self, read: Callable[[], Awaitable[R]]) -> R:
        """Reads, again if no answer comes."""
        reason: StoreUnavailable | None = None
        for pause in self._pauses:
            await asyncio.sleep(pause)
            try:
                return await read()
            except StoreUnavailable as error:
                reason = error
        raise Undecided(f"the metadata store does not answer: {reason}")

    async def write(
        self, operations: Sequence[Operation], mark: str, version: int | None
    ) -> Ok | Conflict:
        """Does a multi until it is known to be done or refused. `mark` is what it writes into the
        revision, `version` the revision it follows on, None for none."""
        reason: str | None = None
        for pause in self._pauses:
            await asyncio.sleep(pause)
            answer = await self._store.multi(operations)
            if isinstance(answer, Ok) or (isinstance(answer, Conflict) and reason is None):
                return answer
            # After an attempt whose outcome was unknown, a conflict may be with that very attempt.
            revision = await self.read(self._revision)
            if revision is not None and layout.decode_mark(revision.value) == mark:
                return Ok(())
            if isinstance(answer, Conflict):
                return answer
            if revision is not None and revision.version != version:
                return Conflict(0, Refusal.BAD_VERSION)
            reason = answer.reason
            log.warning("the metadata store did not make a change: %s", reason)
        raise Undecided(reason)

    async def load(self) -> ClusterImage | None:
        """The newest image; None if there is no cluster in the store."""
        return await self.read(self._load)

    async def _load(self) -> ClusterImage | None:
        await self._store.sync()
        return await load_image(self._store)

    async def _revision(self) -> Node | None:
        await self._store.sync()
        return await self._store.get(layout.REVISION)
