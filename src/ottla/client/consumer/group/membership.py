"""What both kinds of group membership have in common.

A membership is a task that keeps a consumer in its group and tells it which partitions are its own.
The next-generation protocol (KIP-848) is in `next_generation`, the classic one in `classic`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from ottla.client.cluster import Cluster, Coordinator
from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition

logger = logging.getLogger(__name__)

LANE: Final = "group"
_LEAVE_PATIENCE: Final = 5.0  # seconds


class Assignee(Protocol):
    """The consumer, as its membership sees it."""

    async def begin(self, partitions: set[TopicPartition]) -> None:
        """These partitions are yours now, too."""

    async def give_up(self, partitions: set[TopicPartition]) -> None:
        """These will be another's: commit what there is to commit, and stop reading."""

    def lose(self, partitions: set[TopicPartition]) -> None:
        """These may be another's already: stop reading, and do not commit."""

    @property
    def seconds_since_poll(self) -> float:
        """How long the user has not asked for records."""


class MembershipProtocolUnavailable(Exception):
    """The broker or the group does not know this kind of membership."""


class Membership:
    """A place in a group; the subclasses know how to keep it."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, assignee: Assignee) -> None:
        assert settings.group_id is not None
        self.cluster = cluster
        self.settings = settings
        self.assignee = assignee
        self.group = settings.group_id
        self.instance_id = settings.group_instance_id
        self.route = Coordinator.of_group(self.group)
        self.member_id = ""
        self.epoch = -1  # the member's epoch, or the classic group's generation
        self.owned: set[TopicPartition] = set()
        self.failure: BaseException | None = None  # what has ended it
        self._topics: frozenset[str] = frozenset()
        self._changed = asyncio.Event()  # the subscription is another, or there is something to do
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, topics: Iterable[str]) -> None:
        self._topics = frozenset(topics)
        self._task = asyncio.create_task(self._keep())

    @property
    def in_group(self) -> bool:
        """Whether the group knows this member, as far as it knows itself."""
        return self.epoch >= 0

    def subscribe(self, topics: Iterable[str]) -> None:
        """The topics are others now."""
        if frozenset(topics) != self._topics:
            self._topics = frozenset(topics)
            self._changed.set()

    def wake(self) -> None:
        """The user has asked for records again."""
        self._changed.set()

    async def joined(self) -> None:
        """Wait for the first assignment; raises what has ended the membership."""
        assert self._task is not None
        waiting = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Leave the group. What is owned should have been given up before."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.epoch >= 0 and self.member_id:
            await self.leave_if_possible()

    def end_with(self, task: asyncio.Task[None]) -> None:
        """End the membership with what a task has raised, if it has."""
        if task.cancelled() or self.failure is not None or (error := task.exception()) is None:
            return
        if self._task is not None:
            self._task.cancel()
        self._fail(error)

    async def _keep(self) -> None:
        try:
            await self.run()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - what a listener has raised, too; the user is told
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        try:
            self.lose_all()
        except Exception as other:
            logger.exception("group '%s': %r was raised after %r", self.group, other, error)

    async def run(self) -> None:
        """Join and stay, until cancelled; raises what cannot be overcome."""
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    async def leave_if_possible(self) -> None:
        """Tell the coordinator, if it is there: it will notice in the end."""
        try:
            async with asyncio.timeout(_LEAVE_PATIENCE):
                await self.leave()
        except (OttlaError, TimeoutError) as error:
            logger.info("leaving group '%s' failed: %s", self.group, error)

    # For the subclasses

    async def take_on(self, target: set[TopicPartition]) -> None:
        """Begin to read what is new in the target."""
        added = target - self.owned
        if added:
            self.owned |= added
            await self.assignee.begin(added)

    async def hand_over(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            try:
                await self.assignee.give_up(set(partitions))
            finally:
                self.owned -= partitions

    def lose_all(self) -> None:
        """The group has gone on without this member."""
        owned, self.owned = self.owned, set()
        self.assignee.lose(owned)

    async def wait(self, seconds: float) -> None:
        """Until the time is up or something has changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    @property
    def poll_is_overdue(self) -> bool:
        """Whether the user has been away for too long to be a member (max.poll.interval.ms)."""
        return self.assignee.seconds_since_poll > self.settings.max_poll_interval
