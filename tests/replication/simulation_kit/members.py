"""Members of a consumer group in a simulated cluster: they join, divide the partitions among themselves,
commit what they have read, stand still for too long, and go on as if nothing had happened.

What must hold, whichever broker coordinates the group:

- an assignment that somebody was given is the whole generation's: nobody is given another one in it, and
  no partition has two owners in it;
- generations do not go back: once one has its assignment, nobody is given that of an older one, and
  nobody commits as its member;
- so the committed offset of a partition, which each owner goes on from, never goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.server.coordination import coordinators, markers
from simulation_kit.clients import AGAIN, Asking, Committer, GaveUp
from simulation_kit.coordinated import CoordinatedWorld
from simulation_kit.world import TOPIC

if TYPE_CHECKING:
    from ottla.protocol.message import Message

GROUP = "members"
# Partitions that the members divide.
SHARED = range(4)
SESSION_MS = 1500
REBALANCE_MS = 1500
# A join is answered when all have joined, or their time is over.
JOIN_PATIENCE_MS = 2 * REBALANCE_MS

# The member is to join again, as itself or as a new one.
_JOIN_AGAIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
_FORGOTTEN = {ErrorCode.UNKNOWN_MEMBER_ID}


class Member(Asking):
    """One member, in one life after the other."""

    def __init__(self, world: GroupedWorld, name: str) -> None:
        super().__init__(world)
        self.grouped = world
        self.name = name
        self.member_id = ""
        self.generation = -1
        # The last commit that was under way while it joined again, and its generation.
        self._late: tuple[int, asyncio.Task[None]] | None = None

    async def run(self) -> None:
        while not self.world.is_closing:
            try:
                await self._take_part()
            except GaveUp:
                pass
            await self.pause(200)

    async def _coordinator(self, message: Message, version: int, patience_ms: int = 0) -> Any:
        return await self.request(
            CONSUMER_OFFSETS, GROUP, message, version, late=False, patience_ms=patience_ms
        )

    async def _take_part(self) -> None:
        joined = await self._join()
        held = await self._sync(joined)
        if self._late is not None and self._late[0] == self.generation:
            # In the same generation it may come at any time, and must not come after others.
            await self._late[1]
        positions = {index: await self._committed(index) for index in held}
        try:
            await self._work(positions)
        except GaveUp:
            if positions and self.chance.random() < 0.5:
                # A commit of what it has read, which is under way while it joins again.
                late = self._commit_late(self._commit_of(_advanced(positions, self.chance)))
                self._late = (self.generation, self.loop.create_task(late))
            raise

    async def _work(self, positions: dict[int, int]) -> None:
        while not self.world.is_closing:
            dice = self.chance.random()
            if dice < 0.03:
                # Longer than its session; then it goes on with what it takes for its own.
                await self.pause(4 * SESSION_MS)
            elif dice < 0.04:
                await self._leave()
                return
            else:
                await self.pause(150)
            if self.chance.random() < 0.6:
                positions.update(_advanced(positions, self.chance))
                await self._commit(positions)
            else:
                await self._ask_until_done(
                    lambda: self._coordinator(
                        HeartbeatRequest(
                            group_id=GROUP,
                            generation_id=self.generation,
                            member_id=self.member_id,
                        ),
                        3,
                    ),
                    lambda answer: answer.error_code,
                )

    async def _join(self) -> Any:
        while not self.world.is_closing:
            answer = await self._coordinator(
                JoinGroupRequest(
                    group_id=GROUP,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
                ),
                5,
                JOIN_PATIENCE_MS,
            )
            code = None if answer is None else ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                return answer
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif code in _FORGOTTEN:
                self.member_id = ""
            elif code is not None and code not in AGAIN and code not in _JOIN_AGAIN:
                self.world.broken(f"{self.name} was told {code.name} when it joined")
            await self.pause()
        raise GaveUp

    async def _sync(self, joined: Any) -> list[int]:
        """The partitions that are this member's now."""
        shares: list[SyncGroupRequestAssignment] = []
        if joined.leader == self.member_id:
            members = sorted(each.member_id for each in joined.members)
            order = self.chance.sample(SHARED, len(SHARED))
            shares = [
                SyncGroupRequestAssignment(
                    member_id=member, assignment=bytes(order[at :: len(members)])
                )
                for at, member in enumerate(members)
            ]
        message = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=shares,
        )
        began = self.world.now
        answer = await self._ask_until_done(
            lambda: self._coordinator(message, 3, JOIN_PATIENCE_MS),
            lambda answer: answer.error_code,
        )
        held = list(answer.assignment)
        self.grouped.synced(self.generation, self.member_id, held, began)
        return held

    async def _committed(self, index: int) -> int:
        while not self.world.is_closing:
            found = await fetch_position(self, index)
            if found is not None:
                return found
            await self.pause()
        raise GaveUp

    async def _commit(self, positions: dict[int, int]) -> None:
        if not positions:
            return
        began = self.world.now
        message = self._commit_of(positions)
        await self._ask_until_done(lambda: self._coordinator(message, 7), _commit_code)
        self.grouped.member_committed(message, began)

    def _commit_of(self, positions: dict[int, int]) -> OffsetCommitRequest:
        parts = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in positions.items()
        ]
        return OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=parts)],
        )

    async def _commit_late(self, message: OffsetCommitRequest) -> None:
        await self.pause(REBALANCE_MS)
        began = self.world.now
        answer = await self._coordinator(message, 7)
        if answer is not None and not _commit_code(answer):
            self.grouped.member_committed(message, began)

    async def _leave(self) -> None:
        leaving = MemberIdentity(member_id=self.member_id)
        await self._coordinator(LeaveGroupRequest(group_id=GROUP, members=[leaving]), 3)
        self.member_id = ""

    async def _ask_until_done(self, ask: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
        """GaveUp if the member has to join again."""
        while not self.world.is_closing:
            answer = await ask()
            if answer is not None:
                code = ErrorCode(code_of(answer))
                if code is ErrorCode.NONE:
                    return answer
                if code in _FORGOTTEN:
                    self.member_id = ""
                if code in _FORGOTTEN or code in _JOIN_AGAIN:
                    raise GaveUp
                if code not in AGAIN:
                    self.world.broken(f"{self.name} was told {code.name}")
            await self.pause()
        raise GaveUp


def _commit_code(answer: Any) -> int:
    return max(each.error_code for each in answer.topics[0].partitions)


def _advanced(positions: dict[int, int], chance: Random) -> dict[int, int]:
    return {index: offset + chance.randint(1, 3) for index, offset in positions.items()}


class GroupedWorld(CoordinatedWorld):
    """A cluster with one group of three, and a consumer that commits without being a member."""

    topics: ClassVar[dict[str, int]] = {TOPIC: len(SHARED), CONSUMER_OFFSETS: 2}
    FEATURES: ClassVar[dict[str, int]] = {}

    def make_clients(self) -> None:
        # Generation -> member -> the partitions it was given.
        self.assigned: dict[int, dict[str, list[int]]] = {}
        # When somebody was first told the assignment of a generation that was the newest then.
        self._newest: list[tuple[int, int]] = []
        self.least_position: dict[int, int] = {}
        self.producers = []
        self.committers = [Committer(self, "alone")]
        self.members = [Member(self, f"member {number}") for number in range(3)]

    def start_clients(self) -> None:
        self.clients = [
            self.loop.create_task(each.run()) for each in (*self.members, *self.committers)
        ]

    def _newest_before(self, when: int) -> int:
        return max((generation for told, generation in self._newest if told < when), default=-1)

    def synced(self, generation: int, member: str, held: list[int], began: int) -> None:
        self.note(f"{member} has {held} in generation {generation}")
        newest = self._newest_before(began)
        if generation < newest:
            self.broken(f"{member} got generation {generation}, and {newest} was there before")
        assigned = self.assigned.setdefault(generation, {})
        if assigned.setdefault(member, held) != held:
            self.broken(f"{member} got {held} in generation {generation}, and {assigned[member]}")
        for other, theirs in assigned.items():
            if other != member and set(theirs) & set(held):
                self.broken(f"{member} and {other} share some of {held} in {generation}")
        if not self._newest or generation > self._newest[-1][1]:
            self._newest.append((self.now, generation))

    def member_committed(self, message: OffsetCommitRequest, began: int) -> None:
        generation, newest = message.generation_id_or_member_epoch, self._newest_before(began)
        if generation < newest:
            self.broken(f"a member of generation {generation} committed in {newest}")
        for each in message.topics[0].partitions:
            self.reached(each.partition_index, each.committed_offset)

    def reached(self, index: int, offset: int) -> None:
        """An offset that was acknowledged or read."""
        self.least_position[index] = max(self.least_position.get(index, -1), offset)

    async def _check_offsets(self) -> None:
        await super()._check_offsets()
        for index in sorted(self.least_position):
            while await fetch_position(self.members[0], index) is None:
                pass


async def fetch_position(asking: Member, index: int) -> int | None:
    """Where the owner of a partition goes on, if somebody knows; it must not go back."""
    world = asking.grouped
    least = world.least_position.get(index, -1)
    topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[index])]
    message = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
    answer = await asking._coordinator(message, 9)
    if answer is None or answer.groups[0].error_code:
        return None
    found: int = answer.groups[0].topics[0].partitions[0].committed_offset
    if found < least:
        world.broken(f"{GROUP} had committed {least} of {index}, and is told {found}")
    world.reached(index, found)
    return found


def run_grouped_seed(seed: int, *, steps: int = 60, brokers: int = 3) -> GroupedWorld:
    """As `run_coordinated_seed`, with members in the place of transactions."""
    world = GroupedWorld(seed, brokers=brokers)
    with ExitStack() as stack:
        for module in (coordinators, markers):
            stack.enter_context(patch.object(module, "time", world.time))
        world.run(500)
        world.start_clients()
        for _ in range(steps):
            if world.chance.random() < 0.3:
                world.faults()
            world.run(world.chance.choice((20, 100, 400, 800)))
        world.heal()
    return world
