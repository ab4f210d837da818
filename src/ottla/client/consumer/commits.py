"""Committing how far a consumer has read, and asking for it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ottla.client.admin_offsets import CommittedOffset, OffsetsAdmin
from ottla.client.cluster import Cluster, Coordinator
from ottla.client.consumer.membership import Membership
from ottla.client.errors import raise_for
from ottla.client.positions import TopicPartition
from ottla.client.spreading import by_topic
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

# From the next version on topics are named by their ids.
_COMMIT_BY_NAME: Final = 9
# The member's epoch has changed while the commit was under way: the new one may be known by now.
_STALE: Final = frozenset((ErrorCode.STALE_MEMBER_EPOCH,))
_GONE: Final = frozenset(
    (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
)
_STALE_TRIES: Final = 5
_NO_GENERATION: Final = -1

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
    ) -> None:
        """Commit, as the member that this consumer is. Raises the first error there is."""
        if not offsets:
            return
        answer = OffsetCommitResponse()
        for _ in range(_STALE_TRIES):
            answer = await self._cluster.ask(
                self._request(offsets, membership),
                OffsetCommitResponse,
                at=Coordinator.of_group(self._group),
                failing=_first_passing_error,
                at_most=_COMMIT_BY_NAME,
                timeout=timeout,
            )
            if error_code(_first_error(answer)) not in _STALE:
                break
            await asyncio.sleep(self._cluster.settings.retry_backoff)
        for topic in answer.topics:
            for each in topic.partitions:
                about = f"{topic.name}-{each.partition_index} of group '{self._group}'"
                raise_for(each.error_code, about=about)

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
        if membership is not None and membership.epoch >= 0:
            request.member_id = membership.member_id
            request.generation_id_or_member_epoch = membership.epoch
            request.group_instance_id = membership.instance_id
        return request


def _first_passing_error(answer: OffsetCommitResponse) -> int:
    """A topic that was deleted does not come back while a member that has to go on waits for it."""
    codes = (each.error_code for topic in answer.topics for each in topic.partitions)
    return next((code for code in codes if code not in _GONE), 0)


def _first_error(answer: OffsetCommitResponse) -> int:
    codes = (each.error_code for topic in answer.topics for each in topic.partitions)
    return next(filter(None, codes), 0)


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
