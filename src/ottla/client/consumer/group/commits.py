"""Committing how far a consumer has read, and asking for it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ottla.client.admin.offsets import CommittedOffset, OffsetsAdmin
from ottla.client.cluster import Cluster, Coordinator
from ottla.client.consumer.epochs import NO_EPOCH
from ottla.client.consumer.group.membership import Membership
from ottla.client.deadline import Deadline
from ottla.client.errors import BrokerError, CommitFailed, broker_error
from ottla.client.positions import TopicPartition
from ottla.client.spreading import by_topic
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

logger = logging.getLogger(__name__)

# From the next version on topics are named by their ids.
_COMMIT_BY_NAME: Final = 9
# The member's epoch has changed while the commit was under way, or is about to: the new one may be
# known by now, and the partitions may be the member's still.
_OUTDATED: Final = frozenset(
    (
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)
# The group does not take it from this member.
_REFUSED: Final = _OUTDATED | {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
_DELETED: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))
_GONE: Final = _DELETED | {ErrorCode.NONE}
_OUTDATED_TRIES: Final = 5
_NO_GENERATION: Final = -1
_SHOWN: Final = 3  # partitions that a message names

# What a user may commit for a partition: an offset, one with metadata, or all there is to say.
AnyCommit: TypeAlias = int | tuple[int, str] | CommittedOffset


def commit_of(given: AnyCommit) -> CommittedOffset:
    if isinstance(given, CommittedOffset):
        return given
    if isinstance(given, tuple):
        return CommittedOffset(given[0], metadata=given[1])
    return CommittedOffset(given)


class Commits:
    """The commits of one group; `membership` is None for a consumer that assigns itself."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._admin = OffsetsAdmin(cluster)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, stable: bool, timeout: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these; partitions without a commit are left out."""
        return await self._admin.committed_offsets(
            self._group, partitions, require_stable=stable, timeout=timeout
        )

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        membership: Membership | None,
        *,
        timeout: float | None = None,
        await_rebalance: bool = False,
        ignore_deleted: bool = False,
    ) -> None:
        """Commit, as the member that this consumer is.

        CommitFailed if the group does not take some of it from this member; else the first error there
        is. With `await_rebalance` a rebalance under way is waited for (the membership itself must not:
        it would wait for itself), with `ignore_deleted` topics that are gone are no error.
        """
        deadline = Deadline.after(
            self._cluster.settings.api_timeout if timeout is None else timeout
        )
        held = set() if membership is None else membership.owned & offsets.keys()
        refused: dict[TopicPartition, ErrorCode] = {}
        other: BrokerError | None = None
        left = dict(offsets)
        tries = 0
        while left:
            tries += 1
            codes = await self._try(left, membership, timeout)
            outdated = {each for each, code in codes.items() if code in _OUTDATED}
            waits = await_rebalance and ErrorCode.REBALANCE_IN_PROGRESS in codes.values()
            again = bool(outdated) and (waits or tries < _OUTDATED_TRIES)
            pause = self._cluster.settings.retry_backoff
            if again and deadline.remaining > pause:
                await asyncio.sleep(pause)
            else:
                again = False
            for each in tuple(left):
                code = codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR)
                taken_away = (
                    membership is not None and each in held and each not in membership.owned
                )
                if again and each in outdated and not taken_away:
                    continue  # with the member's new epoch
                left.pop(each)
                if code in _REFUSED:
                    refused[each] = code
                elif code in _DELETED and ignore_deleted:
                    logger.info("%s is gone, nothing is committed for it", each)
                elif code is not ErrorCode.NONE and other is None:
                    other = broker_error(code, about=f"{each} of group '{self._group}'")
        if refused:
            raise self.failed(refused, next(iter(refused.values())))
        if other is not None:
            raise other

    def failed(self, partitions: Iterable[TopicPartition], code: ErrorCode) -> CommitFailed:
        """The exception about partitions that are not this member's."""
        names = sorted(partitions)
        shown = ", ".join(map(str, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
        return CommitFailed(
            code,
            "not committed: the group has given the partitions to others, or has gone on without this "
            "member (max.poll.interval.ms, session.timeout.ms); whoever has them reads the records "
            "again",
            f"{shown} of group '{self._group}'",
            names,
        )

    async def _try(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        membership: Membership | None,
        timeout: float | None,
    ) -> dict[TopicPartition, ErrorCode]:
        """What the coordinator says about each of them."""
        if membership is not None and not membership.in_group:
            # As a stranger it would be let in while the group is empty: after others, perhaps.
            return dict.fromkeys(offsets, ErrorCode.UNKNOWN_MEMBER_ID)
        answer = await self._cluster.ask(
            self._request(offsets, membership),
            OffsetCommitResponse,
            at=Coordinator.of_group(self._group),
            failing=_first_passing_error,
            at_most=_COMMIT_BY_NAME,
            timeout=timeout,
        )
        return {
            TopicPartition(topic.name, each.partition_index): error_code(each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        }

    def _request(
        self, offsets: Mapping[TopicPartition, CommittedOffset], membership: Membership | None
    ) -> OffsetCommitRequest:
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=_NO_GENERATION,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        _partition(index, offsets[TopicPartition(topic, index)])
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(offsets).items()
            ],
        )
        if membership is not None:
            request.member_id = membership.member_id
            request.generation_id_or_member_epoch = membership.epoch
            request.group_instance_id = membership.instance_id
        return request


def _first_passing_error(answer: OffsetCommitResponse) -> int:
    """A topic that was deleted does not come back while a member that has to go on waits for it."""
    codes = (each.error_code for topic in answer.topics for each in topic.partitions)
    return next((code for code in codes if code not in _GONE), 0)


def _partition(index: int, commit: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=commit.offset,
        committed_leader_epoch=-1 if commit.leader_epoch is None else commit.leader_epoch,
        committed_metadata=commit.metadata,
    )


def at_position(offset: int, epoch: int) -> CommittedOffset:
    """The commit of a position; `epoch` is -1 where it is not known."""
    return dataclasses.replace(CommittedOffset(offset), leader_epoch=epoch if epoch >= 0 else None)


def epoch_of(commit: CommittedOffset) -> int:
    """The leader epoch of a commit; -1 where it has none."""
    return NO_EPOCH if commit.leader_epoch is None else commit.leader_epoch
