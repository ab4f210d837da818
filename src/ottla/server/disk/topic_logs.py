"""Logs that come and go with their topics, a few at a time.

A request may create or delete thousands of topics, whose folders are made and renamed on the loop, where
the logs live. What fits into a slice of time is done at once, the rest in turns (`turns`). In between
nobody can tell: a log that is not there yet is made by whoever needs it first, and one that is still to
be deleted is deleted by whoever wants to have another of its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.replication.partition import Role
from ottla.server.turns import Steps, advance, run_in_turns
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.server.partitions import Partitions
    from ottla.storage.folders import Key
    from ottla.storage.logs import Logs

log = logging.getLogger("ottla.broker")


class _OngoingWork:
    """Work in slices that may be added to while it goes on. Belongs to the broker's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Steps[None]]) -> None:
        self._loop = loop
        self._work = work
        # Done when there is no more work; None while there is none.
        self.under_way: asyncio.Future[None] | None = None
        # Work that is left then is not done any more.
        self.is_stopped = False

    def begin(self, *, at_once: bool) -> None:
        """Begin, unless it goes on already; `at_once`: with a slice of it right now."""
        if self.under_way is not None:
            return
        steps = self._work()
        if at_once and advance(steps) is not None:
            return
        self.under_way = self._loop.create_future()
        run_in_turns(self._loop, steps, self._end, self._failed, lambda: not self.is_stopped)

    def _end(self, _: object) -> None:
        assert self.under_way is not None
        if not self.under_way.done():
            self.under_way.set_result(None)
        self.under_way = None

    def _failed(self, error: Exception) -> None:
        log.error("work on logs failed", exc_info=error)
        self._end(None)


class DoomedLogs:
    """Logs whose topic was deleted, or whose partition was moved to other brokers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, logs: Logs) -> None:
        self._logs = logs
        self._waiting: dict[Key, None] = {}
        self._turns = _OngoingWork(loop, self._delete_all)

    def add(self, topic: str, indexes: Iterable[int]) -> None:
        for index in indexes:
            if (topic, index) in self._logs:
                self._waiting[topic, index] = None

    def delete(self) -> None:
        """Begins to delete the logs that were added."""
        self._turns.begin(at_once=True)

    def delete_now(self, topic: str, index: int) -> None:
        """Delete the old log at once: a new one of this name is about to be opened or made."""
        if (topic, index) in self._waiting:
            del self._waiting[topic, index]
            self._delete_one(topic, index)

    async def all_gone(self) -> None:
        """Returns when those that were added so far have been deleted."""
        if self._turns.under_way is not None:
            # Several may wait for it, and one that gives up takes it from nobody.
            await asyncio.shield(self._turns.under_way)

    def _delete_all(self) -> Steps[None]:
        while self._waiting:
            self._delete_one(*self._waiting.popitem()[0])
            yield

    def _delete_one(self, topic: str, index: int) -> None:
        try:
            if (topic, index) in self._logs:
                self._logs.delete(topic, index)
        except StorageError as error:
            log.error("log not deleted: topic=%s partition=%d %s", topic, index, error)


class NewLogs:
    """Creates the folders of new partitions, unless a partition is used before and creates its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partitions: Partitions) -> None:
        self._partitions = partitions
        self._waiting: deque[str] = deque()
        self._turns = _OngoingWork(loop, self._make_all)

    def make(self, topics: Iterable[str]) -> None:
        self._waiting.extend(topics)
        # The requests that made the topics are answered first.
        self._turns.begin(at_once=False)

    def stop(self) -> None:
        """Stop. Folders that are missing are made when they are needed."""
        self._turns.is_stopped = True

    def _make_all(self) -> Steps[None]:
        while self._waiting:
            topic = self._waiting.popleft()
            for partition in list(self._partitions.by_name.get(topic, ())):
                if partition.role is Role.ABSENT or partition.opened is not None:
                    continue
                try:
                    partition.log  # noqa: B018 - opening it makes the folder
                except StorageError as error:
                    log.error("no log: topic=%s partition=%d %s", topic, partition.index, error)
                yield
