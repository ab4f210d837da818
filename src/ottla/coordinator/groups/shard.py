"""The state machine of one partition of `__consumer_offsets`: its groups and their offsets.

Every request that concerns a group comes here, finds the group, and is handed to the rules of the
group's kind. What the rules want written is replayed here, at once and again when the partition is
loaded; see `ottla.coordinator.shard`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.classic.answers import leaving, left, refused_join
from ottla.coordinator.groups.classic.group import ClassicGroup, stored_member
from ottla.coordinator.groups.classic.protocol import ClassicProtocol
from ottla.coordinator.groups.consumer.answers import described
from ottla.coordinator.groups.consumer.classic_members import ClassicMembers
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.protocol import ConsumerGroupProtocol
from ottla.coordinator.groups.consumer.records import KINDS as CONSUMER_GROUP_KINDS
from ottla.coordinator.groups.consumer.replay import ConsumerGroupReplay
from ottla.coordinator.groups.group import Caller, Group
from ottla.coordinator.groups.offset_requests import OffsetRequests, RepeatableCommit, StoredOffset
from ottla.coordinator.groups.offsets import Offsets
from ottla.coordinator.groups.records import (
    GROUP,
    LEGACY_OFFSET,
    OFFSET,
    RecordPair,
    kind_of,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
)
from ottla.coordinator.groups.states import ClassicState
from ottla.coordinator.groups.timers import Timer, Timers
from ottla.coordinator.shard import NOTHING, Effects, Instant, Replayed, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from ottla.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberResponse
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.messages.offset_delete import OffsetDeleteResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.groups.settings import GroupSettings
    from ottla.coordinator.metadata_view import MetadataView
    from ottla.protocol.message import Message
    from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from ottla.protocol.messages.heartbeat import HeartbeatRequest
    from ottla.protocol.messages.join_group import JoinGroupRequest
    from ottla.protocol.messages.leave_group import LeaveGroupRequest
    from ottla.protocol.messages.offset_commit import OffsetCommitRequest
    from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
    from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup
    from ottla.protocol.messages.sync_group import SyncGroupRequest
    from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

log = logging.getLogger("ottla.groups")

# Tombstones in one batch. A group may have more offsets than a batch may have bytes.
TOMBSTONES_AT_ONCE: Final = 1_000
# From this version of DescribeGroups on, a group that does not exist is an error.
_DESCRIBE_NOT_FOUND_SINCE: Final = 6


class GroupShard:
    """The groups of one partition of __consumer_offsets (a `Shard`).

    `new_id` makes the random part of member ids. `settings` may be replaced while running;
    `own_settings` tells what a group (by its id) is configured with itself.
    """

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        new_id: Callable[[], str],
        own_settings: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self.settings = settings
        self.metadata = metadata
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.timers = Timers()
        self._classic = ClassicProtocol(
            self.timers, self._current_settings, new_id, self._find_classic
        )
        self._consumer = ConsumerGroupProtocol(
            self.timers,
            self._current_settings,
            own_settings,
            metadata,
            new_id,
            self.groups.get,
            self._classic,
        )
        self._classic_members = ClassicMembers(
            self._consumer, self._current_settings, metadata, new_id
        )
        self._consumer_replay = ConsumerGroupReplay(self.groups, self._consumer.timers.forget)
        self._offset_requests = OffsetRequests(
            self.offsets, metadata, self._current_settings, self.groups.get
        )
        # Topics with offsets, as they were last seen: name -> id, None if it was not there.
        self._topics: dict[str, bytes | None] = {}
        self._expiry = Timer(self._expire)
        # Groups that the expiry in progress has yet to look at.
        self._to_expire: list[str] = []

    def _current_settings(self) -> GroupSettings:
        return self.settings

    def _find_classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    # Membership ---------------------------------------------------------------------------------

    def join_group(
        self, ticket: Ticket, request: JoinGroupRequest, now: Instant, caller: Caller
    ) -> Effects:
        settings = self.settings
        group = self.groups.get(request.group_id)
        again = partial(self.join_group, ticket, request, now, caller)
        code = ErrorCode.NONE
        if not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
        elif not (
            settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.group_max_session_timeout_ms
        ):
            code = ErrorCode.INVALID_SESSION_TIMEOUT
        elif group is None or isinstance(group, ClassicGroup):
            return self._classic.join(group, ticket, request, caller, now, again)
        elif not group.is_empty and isinstance(group, ConsumerGroup):
            return self._classic_members.join(group, ticket, request, caller, now)
        else:
            # It has no members, and so may be of any kind: it ends as what it was.
            effects = self._classic.join(None, ticket, request, caller, now, again)
            if effects.records:
                effects.records = group.tombstones() + effects.records
            return effects
        return Effects((ticket, refused_join(code, request.member_id, caller.version)))

    def sync_group(self, ticket: Ticket, request: SyncGroupRequest, now: Instant) -> Effects:
        try:
            group = self._group_of_member(request.group_id)
            if isinstance(group, ConsumerGroup):
                return self._classic_members.sync(group, ticket, request, now)
            return self._classic.sync(group, ticket, request, now)
        except ProtocolError as error:
            return Effects((ticket, SyncGroupResponse(error_code=error.code)))

    def heartbeat(self, ticket: Ticket, request: HeartbeatRequest, now: Instant) -> Effects:
        try:
            group = self._group_of_member(request.group_id)
            if isinstance(group, ConsumerGroup):
                return self._classic_members.heartbeat(group, ticket, request, now)
            return self._classic.heartbeat(group, ticket, request, now)
        except ProtocolError as error:
            return Effects((ticket, HeartbeatResponse(error_code=error.code)))

    def leave_group(
        self, ticket: Ticket, request: LeaveGroupRequest, now: Instant, version: int
    ) -> Effects:
        if not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
            return Effects((ticket, LeaveGroupResponse(error_code=code)))
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return self._classic.leave(group, ticket, request, version, now)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, ticket, request, version, now)
        results = [
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for each in leaving(request, version)
        ]
        return Effects((ticket, left(results, version)))

    def consumer_group_heartbeat(
        self,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        now: Instant,
        caller: Caller,
    ) -> Effects:
        return self._consumer.heartbeat(ticket, request, caller, now)

    def _group_of_member(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        if not group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # Offsets ------------------------------------------------------------------------------------

    def offset_commit(
        self, ticket: Ticket, request: OffsetCommitRequest, now: Instant, version: int
    ) -> Effects:
        effects, accepted = self._offset_requests.commit(ticket, request, version, now)
        group = self.groups.get(request.group_id)
        if accepted and isinstance(group, ClassicGroup):
            self._classic.committed(group, request.member_id, now)
        # Commits ask for groups, not for offsets. A group that is not there yet comes to be by the
        # replay: that has to be before the next one.
        effects.can_be_gathered = group is not None and bool(effects.records)
        return effects

    def repeatable_commit(
        self, request: OffsetCommitRequest, version: int
    ) -> RepeatableCommit | None:
        """What may come again of a commit; None if something is wrong with it as it is."""
        return self._offset_requests.repeatable(request, version)

    def commit_again(
        self,
        commit: RepeatableCommit,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        now: Instant,
    ) -> list[RecordPair] | None:
        """The records of a commit that came before, with other offsets; None if it has to be looked at
        as a whole. They can be gathered: see `offset_commit`."""
        group = self.groups.get(commit.group_id)
        if group is None:
            return None
        records = self._offset_requests.commit_again(group, commit, offsets, leader_epochs, now)
        if records is not None and isinstance(group, ClassicGroup):
            self._classic.committed(group, commit.committer.member_id, now)
        return records

    def txn_offset_commit(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, now: Instant
    ) -> Effects:
        """Handle TxnOffsetCommit: its records are part of the producer's transaction, which the caller
        has found open."""
        return self._offset_requests.txn_commit(ticket, request, now)

    def offset_fetch(
        self,
        ticket: Ticket,
        wanted: OffsetFetchRequestGroup,
        now: Instant,  # noqa: ARG002 - every request is told the time
        *,
        require_stable: bool,
        by_id: bool,
    ) -> Effects:
        """Handle one group of an OffsetFetch; the answer has the form of version 8."""
        return self._offset_requests.fetch(ticket, wanted, require_stable, by_id)

    def offset_delete(
        self,
        ticket: Ticket,
        request: OffsetDeleteRequest,
        now: Instant,  # noqa: ARG002
    ) -> Effects:
        try:
            if not request.group_id:
                raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
            group = self._group(request.group_id)
            return self._offset_requests.delete(group, ticket, request)
        except ProtocolError as error:
            return Effects((ticket, OffsetDeleteResponse(error_code=error.code)))

    # Groups as a whole --------------------------------------------------------------------------

    def has_member(self, group_id: str, member_id: str) -> bool:
        group = self.groups.get(group_id)
        return isinstance(group, ClassicGroup | ConsumerGroup) and member_id in group.members

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Lists the groups in one of the states and of one of the types, which are given in lower case;
        without a filter all of them."""
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.listed_protocol_type,
                group_state=group.state_name,
                group_type=group.kind.value,
            )
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states)
            and (not types or group.kind.value in types)
        ]

    def describe_group(
        self,
        ticket: Ticket,
        group_id: str,
        now: Instant,  # noqa: ARG002
        version: int,
    ) -> Effects:
        """Answered with a DescribeGroupsResponse of this one group."""
        group = self._find_classic(group_id)
        if group is not None:
            answer = _described(group)
        else:
            # A group of another kind is, to this request, none.
            answer = DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
            if version >= _DESCRIBE_NOT_FOUND_SINCE:
                answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                answer.error_message = (
                    f"Group {group_id} is not a classic group."
                    if group_id in self.groups
                    else f"Group {group_id} not found."
                )
        return Effects((ticket, DescribeGroupsResponse(groups=[answer])))

    def describe_consumer_group(
        self,
        ticket: Ticket,
        group_id: str,
        now: Instant,  # noqa: ARG002
    ) -> Effects:
        """Answered with a ConsumerGroupDescribeResponse of this one group."""
        group = self.groups.get(group_id)
        if not group_id:
            answer = DescribedConsumerGroup(error_code=ErrorCode.INVALID_GROUP_ID)
        elif isinstance(group, ConsumerGroup):
            answer = described(group, self.settings.group_consumer_assignors[0], self.metadata)
        else:
            answer = DescribedConsumerGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found."
                if group is None
                else f"Group {group_id} is not a consumer group.",
            )
        return Effects((ticket, ConsumerGroupDescribeResponse(groups=[answer])))

    def delete_group(
        self,
        ticket: Ticket,
        group_id: str,
        now: Instant,  # noqa: ARG002
    ) -> Effects:
        """Answered with a DeleteGroupsResponse of this one group."""
        result = DeletableGroupResult(group_id=group_id)
        response = DeleteGroupsResponse(results=[result])

        def failed(code: ErrorCode) -> Effects:
            result.error_code = code
            return Effects((ticket, response))

        try:
            group = self._group(group_id)
            group.check_delete()
        except ProtocolError as error:
            return failed(error.code)
        doomed = self._offset_requests.of_group(group_id)

        def last(tombstones: list[RecordPair]) -> Effects:
            group = self.groups.get(group_id)
            # What was committed, and who has joined, while the offsets went in several batches, makes
            # it a group anew.
            is_left = len(self._offset_requests.of_group(group_id)) == len(tombstones)
            if group is not None and group.is_empty and is_left:
                tombstones += group.tombstones()
            return Effects((ticket, response), records=tombstones, failed=failed)

        return self._in_pieces(doomed, last, failed, asking=(ticket,))

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    # The state that lasts -----------------------------------------------------------------------

    def replay(self, record: Replayed) -> None:
        try:
            kind = kind_of(record.key)
            if kind in (OFFSET, LEGACY_OFFSET):
                self._replay_offset(record)
            elif kind == GROUP:
                self._replay_classic_group(record)
            elif kind in CONSUMER_GROUP_KINDS:
                self._consumer_replay.replay(kind, record.key, record.value)
        except MalformedMessage as error:
            # Written by somebody else, or by a later version of us. The others must not suffer.
            log.warning("record skipped: offset=%d %s", record.offset, error)

    def _replay_offset(self, record: Replayed) -> None:
        key = read_offset_key(record.key)
        if record.value is None:
            self.offsets.remove(key.group, key.topic, key.partition)
            return
        self.offsets.put(key, read_offset_value(record.value, record.offset), record.producer_id)
        if key.topic not in self._topics:
            self._topics[key.topic] = self.metadata.topic_id(key.topic)
        if key.group not in self.groups:
            # A consumer that only keeps its offsets here.
            self.groups[key.group] = self._classic.new_group(key.group)

    def _replay_classic_group(self, record: Replayed) -> None:
        group_id = read_group_key(record.key)
        group = self._find_classic(group_id)
        if record.value is None:
            if group is not None:
                group.retire()
                del self.groups[group_id]
            return
        value = read_group_value(record.value)
        if group is None:
            group = self._classic.new_group(group_id)
            self.groups[group_id] = group
        group.settle(
            value,
            lambda stored: stored_member(
                stored, value.protocol, self._classic.session(group_id, stored.member_id)
            ),
        )

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:  # noqa: ARG002
        self.offsets.end_transaction(producer_id, committed)

    # Time and the world -------------------------------------------------------------------------

    def loaded(self, now: Instant) -> Effects:
        interval = self.settings.offsets_retention_check_interval_ms
        self.timers.set(self._expiry, now.monotonic + interval)
        # It was not told of those that were created meanwhile.
        self._consumer.changes.topics_created_at = self.metadata.version
        effects = Effects()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                effects.answers += self._classic.loaded(group, now).answers
            elif isinstance(group, ConsumerGroup):
                self._consumer.loaded(group, now)
        return effects

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def tick(self, now: Instant) -> Effects:
        """Run the timers that are due: up to the first that writes; the rest is due at the next tick."""
        answers: list[tuple[Ticket, Message]] = []
        while (timer := self.timers.pop_due(now.monotonic)) is not None:
            effects = timer.action(now)
            if effects.records or effects.then is not None:
                return _together(answers, effects)
            answers += effects.answers
        return Effects(*answers) if answers else NOTHING

    def unloaded(self) -> Effects:
        effects = Effects()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self._classic.unloaded(group, effects)
        return effects

    def reconfigured(self, settings: GroupSettings) -> Effects:
        """Take over settings of the broker that were changed while it runs."""
        self.settings = settings
        return NOTHING

    def metadata_changed(self, now: Instant, *, created: bool = True) -> Effects:  # noqa: ARG002
        """Delete the offsets of topics that were deleted; a new topic of the same name starts afresh.

        `created`: there are new topics, which patterns may match.
        """
        if created:
            self._consumer.changes.topics_created_at = self.metadata.version
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                group.refreshed_at = None
        gone = []
        for topic, known in self._topics.items():
            current = self.metadata.topic_id(topic)
            if known is not None and current != known:
                gone.append(topic)
            elif known is None:
                self._topics[topic] = current
        if not gone:
            return NOTHING
        for topic in gone:
            known = self.metadata.topic_id(topic)
            if known is None:
                del self._topics[topic]
            else:
                self._topics[topic] = known
        return self._in_pieces(
            self._offset_requests.of_topics(gone), lambda tombstones: Effects(records=tombstones)
        )

    def _expire(self, now: Instant) -> Effects:
        """Look for old offsets, some groups at a time, and for groups that have nothing left."""
        if not self._to_expire:
            self._to_expire = list(self.groups)
        tombstones: list[RecordPair] = []
        while self._to_expire and len(tombstones) < TOMBSTONES_AT_ONCE:
            group = self.groups.get(self._to_expire.pop())
            if group is None:
                continue
            expired, nothing_left = self._offset_requests.expired(group, now)
            room = TOMBSTONES_AT_ONCE - len(tombstones)
            tombstones += expired[:room]
            if len(expired) > room:
                # The rest is looked at again: others may be committed before its turn comes.
                self._to_expire.append(group.group_id)
            elif nothing_left and group.is_empty:
                tombstones += group.tombstones()
        interval = self.settings.offsets_retention_check_interval_ms
        self.timers.set(self._expiry, now.monotonic + (0 if self._to_expire else interval))

        def failed(_: ErrorCode) -> Effects:
            self._to_expire.clear()
            self.timers.set(self._expiry, now.monotonic + interval)
            return NOTHING

        return Effects(records=tombstones, failed=failed)

    def _in_pieces(
        self,
        doomed: Sequence[StoredOffset],
        last: Callable[[list[RecordPair]], Effects],
        failed: Callable[[ErrorCode], Effects] | None = None,
        first: int = 0,
        asking: tuple[Ticket, ...] = (),
    ) -> Effects:
        """Effects that delete so many offsets in several batches, the last of them with what `last`
        makes of its tombstones. Each waits until the one before it is committed, and requests come
        between them: what they commit stays. If a batch fails, those after it are not written."""
        end = first + TOMBSTONES_AT_ONCE
        tombstones = self._offset_requests.tombstones(doomed[first:end])
        if end >= len(doomed):
            return last(tombstones)
        return Effects(
            records=tombstones,
            failed=failed,
            then=lambda: self._in_pieces(doomed, last, failed, end, asking),
            asking=asking,
        )


def _described(group: ClassicGroup) -> DescribedGroup:
    answer = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.listed_protocol_type,
    )
    is_stable = group.state is ClassicState.STABLE
    protocol = group.protocol or ""
    if is_stable:
        answer.protocol_data = protocol
    answer.members = [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # While members join, it is open which of their protocols will be the one.
            member_metadata=member.protocols[protocol] if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    return answer


def _together(answers: list[tuple[Ticket, Message]], effects: Effects) -> Effects:
    """The effects with answers that do not depend on them. What is to be written is written now: when
    the answers have left, the group may be another."""
    if not answers:
        return effects
    refused = effects.failed

    return Effects(
        *answers,
        *effects.answers,
        records=effects.records,
        producer=effects.producer,
        failed=None if refused is None else lambda code: _together(answers, refused(code)),
        then=effects.then,
        asking=effects.asking,
    )
