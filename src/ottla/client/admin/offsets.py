"""Offsets: of positions in partitions, and those that groups have committed; resetting the latter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import Coordinator
from ottla.client.errors import GroupNotEmpty, OttlaError, broker_error, raise_for
from ottla.client.naming import Names, Partitions, by_partition, names_of, partitions_of
from ottla.client.offset_lookup import Isolation, find_offsets
from ottla.client.positions import (
    EARLIEST,
    LATEST,
    AnyPosition,
    FoundOffset,
    TopicPartition,
    position_of,
)
from ottla.client.spreading import Outcomes, Verdict, by_topic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.wire.connection import Connection

_FetchedTopic = OffsetFetchResponseTopic | OffsetFetchResponseTopics
# From these versions on topics are named by their ids, which a group's topics may not have any
# more; the version before says the same by name.
_COMMIT_BY_NAME: Final = 9
_FETCH_BY_NAME: Final = 9
_FETCH_GROUPS_SINCE: Final = 8
_STABLE_SINCE: Final = 7


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read: the offset it goes on from."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition."""

    partition: TopicPartition
    committed: int | None  # None: nothing was committed yet
    start: int  # the first offset there is
    end: int  # the offset after the last one

    @property
    def lag(self) -> int | None:
        """Records the group has still to read; None where it has committed nothing."""
        return None if self.committed is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One line of a plan: where a group stands in a partition, and where it would stand."""

    partition: TopicPartition
    before: int | None
    after: int

    @property
    def changes(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """What a reset would do; `AsyncAdmin.apply_offsets` does it."""

    group: str
    changes: tuple[OffsetChange, ...]


class OffsetsAdmin(AdminPart):
    """The calls about offsets."""

    async def list_offsets(
        self,
        positions: Mapping[TopicPartition, AnyPosition],
        *,
        isolation: Isolation = "read_uncommitted",
        timeout: float | None = None,
    ) -> dict[TopicPartition, FoundOffset]:
        """The offset of each partition at its position. TopicNotFound where there is none."""
        wanted = by_partition(positions)
        found = await find_offsets(self.cluster, wanted, isolation=isolation, timeout=timeout)
        return found.all()

    async def committed_offsets(
        self,
        group: str,
        partitions: Partitions | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed: for these partitions, or for all it has committed.

        Partitions without a commit are left out. With `require_stable` offsets that an open
        transaction is about to change are waited for.
        """
        topics = None if partitions is None else by_topic(partitions_of(partitions))

        def request(connection: Connection) -> OffsetFetchRequest:
            version = connection.version_of(OffsetFetchRequest, _FETCH_BY_NAME)
            stable = require_stable and version >= _STABLE_SINCE
            if version >= _FETCH_GROUPS_SINCE:
                asked = None if topics is None else [
                    OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ]  # fmt: skip
                return OffsetFetchRequest(
                    groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)],
                    require_stable=stable,
                )
            older = None if topics is None else [
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ]  # fmt: skip
            return OffsetFetchRequest(group_id=group, topics=older, require_stable=stable)

        def failing(answer: OffsetFetchResponse) -> int:
            codes = [each.error_code for each in answer.groups] or [answer.error_code]
            codes += [each.error_code for topic in _topics(answer) for each in topic.partitions]
            return next(filter(None, codes), 0)

        answer = await self.cluster.ask(
            request,
            OffsetFetchResponse,
            at=Coordinator.of_group(group),
            timeout=timeout,
            failing=failing,
            at_most=_FETCH_BY_NAME,
        )
        raise_for(failing(answer), about=f"group '{group}'")
        return {
            TopicPartition(topic.name, each.partition_index): CommittedOffset(
                each.committed_offset,
                each.committed_leader_epoch if each.committed_leader_epoch >= 0 else None,
                each.metadata or "",
            )
            for topic in _topics(answer)
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    async def group_lag(
        self,
        group: str,
        partitions: Partitions | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        timeout: float | None = None,
    ) -> list[PartitionLag]:
        """How far the group is behind: in these partitions, or in all it has committed in.

        Partitions of topics that were deleted are left out.
        """
        asked = None if partitions is None else partitions_of(partitions)
        committed = await self.committed_offsets(group, asked, timeout=timeout)
        chosen = sorted(committed if asked is None else asked)
        starts = await find_offsets(
            self.cluster, dict.fromkeys(chosen, EARLIEST), isolation=isolation, timeout=timeout
        )
        ends = await find_offsets(
            self.cluster, dict.fromkeys(chosen, LATEST), isolation=isolation, timeout=timeout
        )
        lags = []
        for partition in chosen:
            start, end = starts.results.get(partition), ends.results.get(partition)
            if start is None or end is None or start.offset is None or end.offset is None:
                continue
            stands = committed.get(partition)
            lags.append(
                PartitionLag(
                    partition, None if stands is None else stands.offset, start.offset, end.offset
                )
            )
        return lags

    async def plan_offsets(
        self,
        group: str,
        to: AnyPosition | None = None,
        *,
        shift: int | None = None,
        partitions: Partitions | None = None,
        topics: Names | None = None,
        timeout: float | None = None,
    ) -> OffsetPlan:
        """What moving a group to a position would change. Nothing is changed.

        `to` is a position, or None with `shift`: so many records on from where the group stands (or
        back, if negative). Partitions are those given, all of `topics`, or all in which the group
        has committed. Offsets beyond the ends of a partition become those ends; a time after the
        last record means the end.
        """
        if (to is None) == (shift is None):
            raise ValueError("either a position or a shift says where to go")
        position = None if to is None else position_of(to)
        committed = await self.committed_offsets(group, timeout=timeout)
        chosen = await self._chosen(committed, partitions, topics, timeout)
        starts = (await find_offsets(self.cluster, dict.fromkeys(chosen, EARLIEST))).all()
        ends = (await find_offsets(self.cluster, dict.fromkeys(chosen, LATEST))).all()
        if position is not None:
            found = await find_offsets(self.cluster, dict.fromkeys(chosen, position))
            targets = {each: offset.offset for each, offset in found.all().items()}
        else:
            assert shift is not None
            # Where nothing is committed there is nothing to shift from.
            chosen = [each for each in chosen if each in committed]
            targets = {each: committed[each].offset + shift for each in chosen}
        changes = []
        for each in chosen:
            low, high = starts[each].offset or 0, ends[each].offset or 0
            target = targets[each]
            after = high if target is None else min(max(target, low), high)
            before = committed[each].offset if each in committed else None
            changes.append(OffsetChange(each, before, after))
        return OffsetPlan(group, tuple(changes))

    async def _chosen(
        self,
        committed: Mapping[TopicPartition, CommittedOffset],
        partitions: Partitions | None,
        topics: Names | None,
        timeout: float | None,
    ) -> list[TopicPartition]:
        if partitions is None and topics is None:
            return sorted(committed)
        chosen = set(partitions_of(() if partitions is None else partitions))
        named = names_of(() if topics is None else topics, "topics")
        for name, info in (await self.cluster.topics(named, timeout=timeout)).items():
            chosen.update(TopicPartition(name, index) for index in info.partitions)
        return sorted(chosen)

    async def apply_offsets(self, plan: OffsetPlan, *, timeout: float | None = None) -> None:
        """Do what the plan says. GroupNotEmpty while the group has members."""
        offsets = {each.partition: each.after for each in plan.changes if each.changes}
        await self.alter_offsets(plan.group, offsets, timeout=timeout)

    async def alter_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for a group from outside. GroupNotEmpty while the group has members."""
        if not offsets:
            return
        commits = {
            partition: offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for partition, offset in by_partition(offsets).items()
        }
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        _commit(index, commits[TopicPartition(topic, index)]) for index in indexes
                    ],
                )
                for topic, indexes in by_topic(commits).items()
            ],
        )

        def read(answer: OffsetCommitResponse) -> Iterable[Verdict[TopicPartition, None]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    yield Verdict(partition, each.error_code, None)

        altered = await self._ask(
            request,
            OffsetCommitResponse,
            read=read,
            about=lambda partition: f"{partition} of group '{group}'",
            at=Coordinator.of_group(group),
            timeout=timeout,
            at_most=_COMMIT_BY_NAME,
        )
        if any(_has_members(error) for error in altered.errors.values()):
            raise GroupNotEmpty(
                ErrorCode.NON_EMPTY_GROUP,
                "it has members, whose commits would undo it; stop them first",
                f"group '{group}'",
            )
        altered.all()

    async def delete_offsets(
        self, group: str, partitions: Partitions, *, timeout: float | None = None
    ) -> None:
        """Make a group forget its offsets of partitions.

        GroupNotFound; GroupNotEmpty for topics that its members subscribe to.
        """
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                    ],
                )
                for topic, indexes in by_topic(partitions_of(partitions)).items()
            ],
        )
        answer = await self.cluster.ask(
            request, OffsetDeleteResponse, at=Coordinator.of_group(group), timeout=timeout
        )
        raise_for(answer.error_code, about=f"group '{group}'")
        results: dict[TopicPartition, None] = {}
        errors: dict[TopicPartition, OttlaError] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    about = f"{partition} of group '{group}'"
                    errors[partition] = broker_error(each.error_code, about=about)
                else:
                    results[partition] = None
        Outcomes(results, errors).all()


def _topics(answer: OffsetFetchResponse) -> list[_FetchedTopic]:
    if answer.groups:
        return [topic for group in answer.groups for topic in group.topics]
    return list(answer.topics)


def _commit(index: int, commit: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=commit.offset,
        committed_leader_epoch=-1 if commit.leader_epoch is None else commit.leader_epoch,
        committed_metadata=commit.metadata,
    )


def _has_members(error: OttlaError) -> bool:
    """What brokers say of a commit by a stranger to a group that has members."""
    return getattr(error, "code", None) in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
    )
