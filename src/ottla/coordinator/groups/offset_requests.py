"""Committing, fetching, deleting and expiring offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.coordinator.groups.group import Committer, Group, PartitionCheck
from ottla.coordinator.groups.records import (
    RecordPair,
    offset_key,
    offset_tombstone,
    offset_value,
)
from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from ottla.coordinator.groups.offsets import CommittedOffset, Offsets
    from ottla.coordinator.groups.settings import GroupSettings
    from ottla.coordinator.metadata_view import MetadataView

# The offset of a partition for which none is committed.
NO_OFFSET = -1
# From this version of OffsetCommit on, a group that does not exist is called so.
_GROUP_NOT_FOUND_SINCE = 9
# From this version on, topics are named by their ids.
_COMMIT_TOPIC_IDS_SINCE = 10
# Of this version only: the client may say when the commit was made.
_COMMIT_TIMESTAMP_VERSION = 1


class StoredOffset(NamedTuple):
    """One offset of a group, as it was when it was looked at."""

    group_id: str
    topic: str
    partition: int
    # Where it stands in the log.
    record_offset: int


class RepeatableCommit:
    """A commit in which nothing was wrong, as far as it may come again with other offsets."""

    __slots__ = ("checked_at", "checked_by", "committer", "group_id", "partitions")

    def __init__(
        self,
        group_id: str,
        committer: Committer,
        partitions: list[tuple[bytes, str, bytes, int, str]],
        checked_at: int,
        checked_by: GroupSettings,
    ) -> None:
        self.group_id = group_id
        self.committer = committer
        # Of each partition, in the order of the request: the key of its record, the topic's name and id,
        # the index, and what is said besides the offset.
        self.partitions = partitions
        # The version of the metadata that have these partitions, and the settings that allow the texts.
        self.checked_at = checked_at
        self.checked_by = checked_by


class OffsetRequests:
    """Handles requests about committed offsets. State changes only by the replay of records."""

    def __init__(
        self,
        offsets: Offsets,
        metadata: MetadataView,
        settings: Callable[[], GroupSettings],
        find: Callable[[str], Group | None],
    ) -> None:
        self._offsets = offsets
        self._metadata = metadata
        self._settings = settings
        self._find = find

    # Committing ---------------------------------------------------------------------------------

    def check_committer(self, group_id: str, committer: Committer) -> PartitionCheck | None:
        """ProtocolError unless the committer may commit. Returns a check to be made for each partition,
        or None if it may commit for all."""
        group = self._find(group_id)
        if group is not None:
            return group.check_commit(committer)
        if committer.generation >= 0:
            # A member of a group that does not exist. Without a generation it would be a consumer
            # that only keeps its offsets here: for it a group comes to be by its first commit.
            old = committer.transactional or committer.version < _GROUP_NOT_FOUND_SINCE
            code = ErrorCode.ILLEGAL_GENERATION if old else ErrorCode.GROUP_ID_NOT_FOUND
            raise ProtocolError(code)
        return None

    def commit(
        self, ticket: Ticket, request: OffsetCommitRequest, version: int, now: Instant
    ) -> tuple[Effects, bool]:
        """Handle OffsetCommit. The second result: whether the committer was accepted."""
        refusal = self._refusal(
            request.group_id,
            _committer(request, version),
            self._acceptable(request.topics, version >= _COMMIT_TOPIC_IDS_SINCE),
        )
        expire_timestamp = -1
        if request.retention_time_ms != -1:
            expire_timestamp = max(0, now.wall + request.retention_time_ms)
        effects = Effects()
        response = OffsetCommitResponse()
        by_id = version >= _COMMIT_TOPIC_IDS_SINCE
        for topic in request.topics:
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answer)
            name, topic_id, partition_count = self._resolve(topic, by_id)
            unknown = (
                ErrorCode.UNKNOWN_TOPIC_ID
                if by_id and partition_count == 0
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            for partition in topic.partitions:
                index = partition.partition_index
                metadata = partition.committed_metadata or ""
                code = ErrorCode.NONE
                if not 0 <= index < partition_count:
                    code = unknown
                elif refusal is not None:
                    code = refusal
                elif self._is_too_long(metadata):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    timestamp = now.wall
                    if version == _COMMIT_TIMESTAMP_VERSION and partition.commit_timestamp != -1:
                        timestamp = partition.commit_timestamp
                    value = offset_value(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        timestamp,
                        expire_timestamp,
                        topic_id,
                    )
                    effects.records.append((offset_key(request.group_id, name, index), value))
                answer.partitions.append(
                    OffsetCommitResponsePartition(partition_index=index, error_code=code)
                )
        effects.answers.append((ticket, response))
        return effects, refusal is None

    def repeatable(self, request: OffsetCommitRequest, version: int) -> RepeatableCommit | None:
        """What may come again of a commit; None if some of its partitions would not be accepted."""
        partitions: list[tuple[bytes, str, bytes, int, str]] = []
        for topic in request.topics:
            name, topic_id, partition_count = self._resolve(
                topic, version >= _COMMIT_TOPIC_IDS_SINCE
            )
            for partition in topic.partitions:
                index = partition.partition_index
                metadata = partition.committed_metadata or ""
                if not 0 <= index < partition_count or self._is_too_long(metadata):
                    return None
                key = offset_key(request.group_id, name, index)
                partitions.append((key, name, topic_id, index, metadata))
        if not partitions or request.retention_time_ms != -1:
            return None
        return RepeatableCommit(
            request.group_id,
            _committer(request, version),
            partitions,
            self._metadata.version,
            self._settings(),
        )

    def commit_again(
        self,
        group: Group,
        commit: RepeatableCommit,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        now: Instant,
    ) -> list[RecordPair] | None:
        """The records of a commit that is like one before but for its offsets; None if some of it may
        not be accepted. The short cut of `commit`: what that finds in the request is known, and what
        may have changed since is asked again."""
        if commit.checked_by is not self._settings() or (
            commit.checked_at != self._metadata.version and not self._has_partitions(commit)
        ):
            return None
        try:
            check = group.check_commit(commit.committer)
            if check is not None:
                for _, _, topic_id, index, _ in commit.partitions:
                    check(topic_id, index)
        except ProtocolError:
            return None
        records: list[RecordPair] = []
        wall = now.wall
        places = zip(commit.partitions, offsets, leader_epochs)  # noqa: B905 - as many of each
        for (key, _, topic_id, _, metadata), offset, leader_epoch in places:
            value = offset_value(offset, leader_epoch, metadata, wall, -1, topic_id)
            records.append((key, value))
        return records

    def _has_partitions(self, commit: RepeatableCommit) -> bool:
        """Whether the partitions are still there, of the same topics."""
        for _, name, topic_id, index, _ in commit.partitions:
            if self._metadata.topic_id(name) != topic_id or index >= self._metadata.partition_count(
                name
            ):
                return False
        commit.checked_at = self._metadata.version
        return True

    def _resolve(
        self, topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic, by_id: bool
    ) -> tuple[str, bytes, int]:
        """Name, id and number of partitions (0: unknown) of a topic."""
        if by_id and isinstance(topic, OffsetCommitRequestTopic):
            name = self._metadata.topic_name(topic.topic_id)
            if name is None:
                return "", topic.topic_id, 0
            return name, topic.topic_id, self._metadata.partition_count(name)
        topic_id = self._metadata.topic_id(topic.name)
        if topic_id is None:
            return topic.name, ZERO_UUID, 0
        return topic.name, topic_id, self._metadata.partition_count(topic.name)

    def txn_commit(self, ticket: Ticket, request: TxnOffsetCommitRequest, now: Instant) -> Effects:
        """Offsets that count when the producer's transaction commits."""
        refusal = ErrorCode.INVALID_GROUP_ID if not request.group_id else None
        if refusal is None:
            refusal = self._refusal(
                request.group_id,
                Committer(
                    request.member_id, request.group_instance_id, request.generation_id, True, 0
                ),
                self._acceptable(request.topics, by_id=False),
            )
        effects = Effects()
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            answer = TxnOffsetCommitResponseTopic(name=topic.name)
            response.topics.append(answer)
            topic_id = self._metadata.topic_id(topic.name) or ZERO_UUID
            partition_count = self._metadata.partition_count(topic.name)
            for partition in topic.partitions:
                index = partition.partition_index
                metadata = partition.committed_metadata or ""
                code = ErrorCode.NONE
                if not 0 <= index < partition_count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif refusal is not None:
                    code = refusal
                elif self._is_too_long(metadata):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    value = offset_value(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        now.wall,
                        -1,
                        topic_id,
                    )
                    effects.records.append((offset_key(request.group_id, topic.name, index), value))
                answer.partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                )
        if effects.records:
            effects.producer = request.producer_id, request.producer_epoch
        effects.answers.append((ticket, response))
        return effects

    def _refusal(
        self, group_id: str, committer: Committer, partitions: Iterable[tuple[bytes, int]]
    ) -> ErrorCode | None:
        """Why nothing may be committed, or None. One partition that the committer may not commit for is
        enough to refuse them all."""
        try:
            check = self.check_committer(group_id, committer)
            if check is not None:
                for topic_id, index in partitions:
                    check(topic_id, index)
        except ProtocolError as error:
            return error.code
        return None

    def _acceptable(
        self,
        topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic],
        by_id: bool,
    ) -> Iterator[tuple[bytes, int]]:
        """The partitions (by topic id) that exist and whose metadata is not too long."""
        for topic in topics:
            _, topic_id, partition_count = self._resolve(topic, by_id)
            for partition in topic.partitions:
                if 0 <= partition.partition_index < partition_count and not self._is_too_long(
                    partition.committed_metadata or ""
                ):
                    yield topic_id, partition.partition_index

    def _is_too_long(self, metadata: str) -> bool:
        limit = self._settings().offset_metadata_max_bytes
        if metadata.isascii():
            return len(metadata) > limit
        # Kafka counts the characters of a Java string, which are halves of UTF-16.
        return len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit

    # Fetching -----------------------------------------------------------------------------------

    def fetch(
        self, ticket: Ticket, wanted: OffsetFetchRequestGroup, require_stable: bool, by_id: bool
    ) -> Effects:
        """The offsets of one group; the answer has the form of version 8 and later."""
        answer = OffsetFetchResponseGroup(group_id=wanted.group_id)
        effects = Effects((ticket, OffsetFetchResponse(groups=[answer])))
        group = self._find(wanted.group_id)
        if group is not None:
            try:
                group.check_offset_fetch(wanted.member_id, wanted.member_epoch)
            except ProtocolError as error:
                answer.error_code = error.code
                return effects
        topics = wanted.topics
        if topics is None:
            topics = self._all_topics(wanted.group_id, by_id)
        for topic in topics:
            answer.topics.append(self._fetch_topic(wanted.group_id, topic, require_stable, by_id))
        return effects

    def _all_topics(self, group_id: str, by_id: bool) -> list[OffsetFetchRequestTopics]:
        topics = []
        for name, partitions in self._offsets.of_group(group_id).items():
            topic = OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions))
            if by_id:
                topic_id = self._metadata.topic_id(name)
                if topic_id is None:
                    continue
                topic.topic_id = topic_id
            topics.append(topic)
        return topics

    def _fetch_topic(
        self, group_id: str, topic: OffsetFetchRequestTopics, require_stable: bool, by_id: bool
    ) -> OffsetFetchResponseTopics:
        answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        name: str | None = topic.name
        if by_id:
            name = self._metadata.topic_name(topic.topic_id)
        topic_id = None if name is None else self._metadata.topic_id(name)
        for index in topic.partition_indexes:
            part = OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)
            answer.partitions.append(part)
            if name is None:
                part.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if require_stable and self._offsets.is_pending(group_id, name, index):
                part.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                continue
            committed = self._offsets.get(group_id, name, index)
            if committed is not None and not _is_of_another_topic(committed, topic_id):
                part.committed_offset = committed.offset
                part.committed_leader_epoch = committed.leader_epoch
                part.metadata = committed.metadata
        return answer

    # Deleting -----------------------------------------------------------------------------------

    def delete(self, group: Group, ticket: Ticket, request: OffsetDeleteRequest) -> Effects:
        """Handle OffsetDelete; ProtocolError if no offset of this group may be deleted."""
        group.check_offset_delete()
        effects = Effects()
        response = OffsetDeleteResponse()
        for topic in request.topics:
            answer = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answer)
            partition_count = self._metadata.partition_count(topic.name)
            is_subscribed = group.subscribes_to(topic.name)
            for partition in topic.partitions:
                index = partition.partition_index
                code = ErrorCode.NONE
                if not 0 <= index < partition_count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif is_subscribed:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._is_known(group.group_id, topic.name, index):
                    effects.records.append(offset_tombstone(group.group_id, topic.name, index))
                answer.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                )
        effects.answers.append((ticket, response))
        return effects

    def _is_known(self, group_id: str, topic: str, partition: int) -> bool:
        committed = self._offsets.get(group_id, topic, partition)
        return committed is not None or self._offsets.is_pending(group_id, topic, partition)

    def of_group(self, group_id: str, topic: str | None = None) -> list[StoredOffset]:
        """All offsets of a group, or those of one topic."""
        return [
            StoredOffset(group_id, *each, self._offsets.newest(group_id, *each))
            for each in self._offsets.partitions(group_id, topic)
        ]

    def of_topics(self, topics: Iterable[str]) -> list[StoredOffset]:
        """The offsets of deleted topics, without those that were committed for a new topic of the same
        name."""
        return [
            each
            for group_id in self._offsets.group_ids()
            for topic in topics
            for each in self.of_group(group_id, topic)
            if not self._offsets.is_of_topic(
                group_id, topic, each.partition, self._metadata.topic_id(topic)
            )
        ]

    def tombstones(self, offsets: Iterable[StoredOffset]) -> list[RecordPair]:
        """The records that delete these offsets, unless another was committed in the place of one."""
        newest = self._offsets.newest
        return [
            offset_tombstone(group_id, topic, partition)
            for group_id, topic, partition, record_offset in offsets
            if newest(group_id, topic, partition) == record_offset
        ]

    # Expiring -----------------------------------------------------------------------------------

    def expired(self, group: Group, now: Instant) -> tuple[list[RecordPair], bool]:
        """Tombstones of offsets that have grown old; and whether the group has none left."""
        group_id = group.group_id
        retention = self._settings().offsets_retention_ms
        tombstones: list[RecordPair] = []
        remaining = False
        for topic, partitions in self._offsets.of_group(group_id).items():
            is_subscribed = group.subscribes_to(topic)
            for partition, committed in partitions.items():
                if (
                    is_subscribed
                    or not _has_expired(group, committed, retention, now.wall)
                    or self._offsets.is_pending(group_id, topic, partition)
                ):
                    remaining = True
                else:
                    tombstones.append(offset_tombstone(group_id, topic, partition))
        return tombstones, not remaining and not self._offsets.has_open_transactions(group_id)


def _committer(request: OffsetCommitRequest, version: int) -> Committer:
    return Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        False,
        version,
    )


def _is_of_another_topic(committed: CommittedOffset, topic_id: bytes | None) -> bool:
    """Whether an offset was committed for an earlier topic of the same name, which was deleted."""
    return topic_id is not None and committed.topic_id not in (ZERO_UUID, topic_id)


def _has_expired(group: Group, committed: CommittedOffset, retention: int, now: int) -> bool:
    begin = group.expires_from(committed)
    if begin is None:
        return False
    if committed.expire_timestamp >= 0:
        return now >= committed.expire_timestamp
    return now - begin >= retention
