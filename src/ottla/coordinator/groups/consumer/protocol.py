"""The new consumer group protocol (KIP-848): one request, ConsumerGroupHeartbeat, does it all.

A member tells what it subscribes to and what it holds, when it joins and when that changes; otherwise
it only says that it lives. The answer tells its epoch and, when that changes, what it is to hold. The
coordinator computes the assignment, and leads each member there by itself: see
`consumer_group_changes` for the steps, `consumer_group_member` for the states of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.coordinator.groups.classic.answers import waiting_answers
from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.classic.protocol import ClassicProtocol
from ottla.coordinator.groups.consumer.answers import (
    HeldPartitions,
    assignment_of,
    check_heartbeat,
    held_by,
    is_full,
    refused_heartbeat,
)
from ottla.coordinator.groups.consumer.changes import (
    Change,
    ConsumerGroupChanges,
    PatternChange,
)
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.member import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    owns_only,
)
from ottla.coordinator.groups.consumer.migration import Migration
from ottla.coordinator.groups.consumer.records import current_record
from ottla.coordinator.groups.consumer.timers import ConsumerGroupTimers
from ottla.coordinator.groups.group import Caller, Group
from ottla.coordinator.groups.timers import Timers
from ottla.coordinator.shard import NOTHING, Effects, Instant, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from ottla.coordinator.groups.records import RecordPair
    from ottla.coordinator.groups.settings import GroupSettings
    from ottla.coordinator.metadata_view import MetadataView
    from ottla.protocol.message import Message


class ConsumerGroupProtocol:
    """The rules of the consumer group protocol, for all consumer groups of a shard."""

    def __init__(
        self,
        timers: Timers,
        settings: Callable[[], GroupSettings],
        own_settings: Callable[[str], Mapping[str, str]],
        metadata: MetadataView,
        new_id: Callable[[], str],
        find: Callable[[str], Group | None],
        classic: ClassicProtocol,
    ) -> None:
        self._settings = settings
        self._new_id = new_id
        self._find = find
        self.changes = ConsumerGroupChanges(settings, own_settings, metadata)
        self.timers = ConsumerGroupTimers(timers, self._fenced)
        self.migration = Migration(settings, metadata, classic, self._find_classic)

    def _find_classic(self, group_id: str) -> ClassicGroup | None:
        group = self._find(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self._find(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def loaded(self, group: ConsumerGroup, now: Instant) -> None:
        """Starts the sessions of the members that were loaded."""
        for member in group.members.values():
            self._watch(group.group_id, member, now, changed=True)

    # The heartbeat ------------------------------------------------------------------------------

    def heartbeat(
        self,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        now: Instant,
    ) -> Effects:
        try:
            check_heartbeat(request, caller.version, self._settings().group_consumer_assignors)
            if request.member_epoch in (LEAVE_EPOCH, AWAY_EPOCH):
                return self._leave(ticket, request, now)
            return self._beat(ticket, request, caller, now)
        except ProtocolError as error:
            return Effects((ticket, refused_heartbeat(error)))

    def _beat(
        self,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        now: Instant,
    ) -> Effects:
        joins = request.member_epoch == JOIN_EPOCH
        group, records = self._group(request.group_id, joins)
        upgraded = self._find_classic(request.group_id) if records else None
        self.check_room(group, request.member_id)
        held = held_by(request)
        change = self._member(group, request, held, records, now)
        change.after = change.before._replace(**_described_in(request, change.before, caller))
        changes = self.changes
        names_changed = changes.subscribe(change)
        pattern = changes.update_patterns(change)
        change.subscription_changed = names_changed or pattern is not PatternChange.NONE
        changes.refresh(change, changed=names_changed or pattern is PatternChange.RESOLVED)
        changes.reconcile(change, changes.assign(change), held)
        after = change.after
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=changes.times(group.group_id).heartbeat_interval,
        )
        if joins or is_full(request) or after.assigned != change.before.assigned:
            response.assignment = assignment_of(after)
        if not change.records and not change.to_resolve:
            # What nearly all of them are.
            self._renew(group.group_id, after, now)
            return Effects((ticket, response))
        effects = Effects((ticket, response), records=change.records, then=self.after(change))
        if upgraded is not None:
            # Those who wait in the classic group are to join again, if there is none any more.
            effects.answers += waiting_answers(upgraded, ErrorCode.REBALANCE_IN_PROGRESS)
            effects.failed = lambda code: Effects((ticket, refused_heartbeat(ProtocolError(code))))
        return effects

    def _group(self, group_id: str, joins: bool) -> tuple[ConsumerGroup, list[RecordPair]]:
        """The group, or what it will be when the records are replayed."""
        group = self._find(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if not joins:
            raise _no_such_group()
        if group is None:
            return ConsumerGroup(group_id), []
        if group.is_empty:
            return ConsumerGroup(group_id), group.tombstones()
        if isinstance(group, ClassicGroup):
            return self.migration.upgraded(group)
        raise _no_such_group()

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self._settings().group_consumer_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise ProtocolError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group has {limit} members, which is all that it may have.",
            )

    def _member(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        held: HeldPartitions | None,
        records: list[RecordPair],
        now: Instant,
    ) -> Change:
        """The member that the request comes from, as it is now, or new."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or self._new_id()
        if request.instance_id is not None:
            if joins:
                return self.static_change(
                    group, member_id, request.instance_id, records, now, uses_classic=False
                )
            member = group.member_by_instance(member_id, request.instance_id)
        elif joins:
            member = group.members.get(member_id) or ConsumerMember(member_id)
        else:
            member = group.member(member_id)
        _check_epoch(member, request.member_epoch, held)
        return Change(group, member, member, now, records)

    def static_change(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        records: list[RecordPair],
        now: Instant,
        *,
        uses_classic: bool,
    ) -> Change:
        """A static member that joins: new, or in the place of the one that had its name."""
        old = group.static_member(instance_id)
        if old is None:
            member = group.members.get(member_id) or ConsumerMember(member_id)
            return Change(group, member, member, now, records)
        if not uses_classic and not old.uses_classic_protocol and old.epoch != AWAY_EPOCH:
            if old.id == member_id:
                # The same client: it was fenced, or the answer to its joining was lost. (Kafka 4.3
                # refuses it, which clients take for the end.)
                return Change(group, old, old, now, records)
            raise ProtocolError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                "The instance id is in use by another member.",
            )
        new = old._replace(id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        change = Change(group, new, new, now, records)
        self.changes.replace(change, old)
        return change

    def after(self, change: Change) -> Callable[[], Effects]:
        """What follows when the records are replayed: deadlines, and the meaning of patterns."""

        def then() -> Effects:
            group = self.find(change.group.group_id)
            member = None if group is None else group.members.get(change.after.id)
            if group is None or member is None:
                return NOTHING
            # A new group is another object than the one that it was computed with.
            group.refreshed_at = change.group.refreshed_at
            self._watch(group.group_id, member, change.now, changed=change.reconciled)
            for each in change.group.members.values() if group is not change.group else ():
                # The other members of a group that was a classic one until now.
                if each.id != member.id:
                    self._renew(group.group_id, each, change.now)
            if not change.to_resolve:
                return NOTHING
            return Effects(records=self.changes.resolved(group, change.to_resolve, change.now))

        return then

    # Leaving ------------------------------------------------------------------------------------

    def _leave(
        self, ticket: Ticket, request: ConsumerGroupHeartbeatRequest, now: Instant
    ) -> Effects:
        group = self.find(request.group_id)
        if group is None:
            raise _no_such_group()
        member = group.check_member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id, member_epoch=request.member_epoch
        )
        if request.member_epoch == AWAY_EPOCH and request.instance_id is not None:
            # Its session goes on: until it ends, its partitions are kept for it.
            record = current_record(group.group_id, member.away())
            return Effects((ticket, response), records=[record])
        return self.fence(group, [member], [(ticket, response)], now)

    def fence(
        self,
        group: ConsumerGroup,
        members: list[ConsumerMember],
        answers: list[tuple[Ticket, Message]],
        now: Instant,
    ) -> Effects:
        """Remove members: they left, or are not heard of any more."""
        if not members:
            return Effects(*answers)
        if self.migration.downgrades_without(group, members):
            records, then = self.migration.downgraded(group, members, None, now, rebalance=True)
            return Effects(*answers, records=records, then=then)
        return Effects(*answers, records=self.changes.removed(group, members))

    def _fenced(self, group_id: str, member_id: str, now: Instant, epoch: int | None) -> Effects:
        """Remove a member whose deadline has passed. `epoch`: only if it is still in this one."""
        group = self.find(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            self.timers.forget(group_id, member_id)
            return Effects()
        if epoch is not None and member.epoch != epoch:
            return Effects()
        return self.fence(group, [member], [], now)

    # Deadlines ----------------------------------------------------------------------------------

    def session_timeout(self, group_id: str, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout
        return self.changes.times(group_id).session_timeout

    def _renew(self, group_id: str, member: ConsumerMember, now: Instant) -> None:
        deadline = now.monotonic + self.session_timeout(group_id, member)
        self.timers.session(group_id, member.id, deadline)

    def _watch(self, group_id: str, member: ConsumerMember, now: Instant, *, changed: bool) -> None:
        """Set the deadlines of a member. `changed`: its assignment, or what it has to revoke, is new."""
        self._renew(group_id, member, now)
        if not changed or member.uses_classic_protocol:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            deadline = now.monotonic + max(member.rebalance_timeout, 0)
            self.timers.rebalance(group_id, member.id, member.epoch, deadline)
        else:
            self.timers.end_rebalance(group_id, member.id)


def _described_in(
    request: ConsumerGroupHeartbeatRequest, before: ConsumerMember, caller: Caller
) -> dict[str, Any]:
    """What a heartbeat says about its member; what it leaves out stays as it was."""
    given: dict[str, Any] = {
        "client_id": caller.client_id,
        "client_host": caller.client_host,
        "classic": None,
    }
    if request.instance_id is not None:
        given["instance_id"] = request.instance_id
    if request.rack_id is not None:
        given["rack"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        given["rebalance_timeout"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        given["assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        given["topics"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        given["pattern"] = request.subscribed_topic_regex
    return {name: value for name, value in given.items() if value != getattr(before, name)}


def _check_epoch(member: ConsumerMember, epoch: int, held: HeldPartitions | None) -> None:
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    # Of the epoch before it may be, if the answer was lost, and it does not hold anything else.
    if epoch == member.previous_epoch and epoch < member.epoch and owns_only(held, member.assigned):
        return
    raise ProtocolError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member is in epoch {member.epoch}, not in {epoch}: give up all partitions and join "
        "again.",
    )


def _no_such_group() -> ProtocolError:
    return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, "There is no such consumer group.")
