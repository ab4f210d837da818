"""Members of a consumer group that speak the classic protocol: in the middle of an upgrade.

They do not know it. They join, synchronize and send heartbeats as ever, but nobody waits for the
others: the coordinator assigns, so a JoinGroup is answered at once, nobody leads, and SyncGroup only
fetches what the coordinator has decided. A member that has to change is told so by its heartbeat
(REBALANCE_IN_PROGRESS), and its next JoinGroup is its next step. The generation is its epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.classic.answers import (
    leaving,
    left,
    protocols_of,
    rebalance_timeout,
    refused_join,
)
from ottla.coordinator.groups.consumer.changes import Change, PatternChange
from ottla.coordinator.groups.consumer.group import CONSUMER, ConsumerGroup
from ottla.coordinator.groups.consumer.member import (
    ClassicSupport,
    ConsumerMember,
    MemberState,
)
from ottla.coordinator.groups.consumer.protocol import ConsumerGroupProtocol
from ottla.coordinator.groups.consumer.reconciliation import Target
from ottla.coordinator.groups.consumer_protocol_metadata import (
    encode_assignment,
    read_subscription,
)
from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.coordinator.groups.classic.group import Protocols
    from ottla.coordinator.groups.consumer.answers import HeldPartitions
    from ottla.coordinator.groups.group import Caller
    from ottla.coordinator.groups.settings import GroupSettings
    from ottla.coordinator.metadata_view import MetadataView
    from ottla.protocol.records.consumer_protocol import ConsumerProtocolSubscription

# From this version of JoinGroup on, a client has to come back with the id that it is given.
_MEMBER_ID_REQUIRED_SINCE: Final = 4


class ClassicMembers:
    """Handles the requests of members that speak the classic protocol in a consumer group.

    Unless said otherwise, methods raise ProtocolError with the error for the client.
    """

    def __init__(
        self,
        protocol: ConsumerGroupProtocol,
        settings: Callable[[], GroupSettings],
        metadata: MetadataView,
        new_id: Callable[[], str],
    ) -> None:
        self._protocol = protocol
        self._settings = settings
        self._metadata = metadata
        self._new_id = new_id

    # JoinGroup ----------------------------------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        ticket: Ticket,
        request: JoinGroupRequest,
        caller: Caller,
        now: Instant,
    ) -> Effects:
        """Handles JoinGroup; a refusal is returned as an answer, not raised."""
        try:
            return self._join(group, ticket, request, caller, now)
        except ProtocolError as error:
            return Effects((ticket, refused_join(error.code, request.member_id, caller.version)))

    def _join(
        self,
        group: ConsumerGroup,
        ticket: Ticket,
        request: JoinGroupRequest,
        caller: Caller,
        now: Instant,
    ) -> Effects:
        settings = self._settings()
        if not settings.upgrades and not settings.downgrades:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_new = not request.member_id
        member_id = request.member_id or self._new_id()
        protocols = protocols_of(request)
        self._protocol.check_room(group, member_id)
        if not group.supports_classic(request.protocol_type, protocols):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instance_id = request.group_instance_id
        if is_new and instance_id is None and caller.version >= _MEMBER_ID_REQUIRED_SINCE:
            answer = refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id, caller.version)
            return Effects((ticket, answer))
        subscription = _subscription(protocols)
        change = self._member(group, member_id, instance_id, is_new, now)
        # Looked at before the change: it is about the member that is replaced, if one is.
        replaced = group.static_member(instance_id)
        downgrades = replaced is not None and self._protocol.migration.downgrades_with(
            group, replaced
        )
        self._subscribe(change, request, caller, protocols, subscription)
        held = self._held(subscription)
        if downgrades:
            then = self._downgrade(change, held)
        else:
            changes = self._protocol.changes
            changes.reconcile(change, changes.assign(change), held)
            then = self._joined(change, request)
        response = JoinGroupResponse(
            member_id=change.after.id,
            generation_id=group.epoch if downgrades else change.after.epoch,
            protocol_type=CONSUMER,
            protocol_name=next(iter(protocols)),
        )
        return Effects((ticket, response), records=change.records, then=then)

    def _member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        is_new: bool,
        now: Instant,
    ) -> Change:
        if instance_id is not None and is_new:
            return self._protocol.static_change(
                group, member_id, instance_id, [], now, uses_classic=True
            )
        if instance_id is not None:
            member = group.member_by_instance(member_id, instance_id)
        else:
            member = group.members.get(member_id) or ConsumerMember(member_id)
        return Change(group, member, member, now)

    def _subscribe(
        self,
        change: Change,
        request: JoinGroupRequest,
        caller: Caller,
        protocols: Protocols,
        subscription: ConsumerProtocolSubscription,
    ) -> None:
        before = change.before
        timeout = rebalance_timeout(request, caller.version)
        change.after = before._replace(
            instance_id=request.group_instance_id or before.instance_id,
            rack=subscription.rack_id or before.rack,
            rebalance_timeout=before.rebalance_timeout if timeout == -1 else timeout,
            topics=frozenset(subscription.topics),
            pattern="",
            client_id=caller.client_id,
            client_host=caller.client_host,
            classic=ClassicSupport(request.session_timeout_ms, tuple(protocols.items())),
        )
        changes = self._protocol.changes
        names_changed = changes.subscribe(change)
        pattern = changes.update_patterns(change)
        change.subscription_changed = names_changed or pattern is not PatternChange.NONE
        changes.refresh(change, changed=change.subscription_changed)

    def _held(self, subscription: ConsumerProtocolSubscription) -> HeldPartitions:
        """The partitions that a member holds, by its subscription. Members with eager assignors name
        none: they give everything up before they join."""
        held: dict[bytes, frozenset[int]] = {}
        for each in subscription.owned_partitions:
            topic_id = self._metadata.topic_id(each.topic)
            if topic_id is not None:
                held[topic_id] = held.get(topic_id, frozenset()).union(each.partitions)
        return held

    def _downgrade(self, change: Change, held: HeldPartitions) -> Callable[[], Effects]:
        """Makes the group a classic one: the last member of the new protocol is gone."""
        group = change.group
        if group.target_epoch == change.epoch:
            target = Target(group.target_epoch, group.target_of(change.after))
            self._protocol.changes.reconcile(change, target, held)
        # The classic group can go on with the assignment only if all are there already.
        replaced = group.static_member(change.after.instance_id)
        rebalance = not all(
            member.is_reconciled_to(change.epoch)
            for member in (change.after, *group.members.values())
            if member is not replaced
        )
        records, then = self._protocol.migration.downgraded(
            group, [], change.after, change.now, rebalance=rebalance
        )
        change.records += records
        return then

    def _joined(self, change: Change, request: JoinGroupRequest) -> Callable[[], Effects]:
        after = self._protocol.after(change)

        def then() -> Effects:
            effects = after()
            group_id, member = change.group.group_id, change.after
            deadline = change.now.monotonic + max(request.rebalance_timeout_ms, 0)
            self._protocol.timers.joined(group_id, member.id, deadline)
            return effects

        return then

    # SyncGroup ----------------------------------------------------------------------------------

    def sync(
        self, group: ConsumerGroup, ticket: Ticket, request: SyncGroupRequest, now: Instant
    ) -> Effects:
        member, classic = self._check(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (
            None,
            classic.preferred,
        ):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if (
            group.target_epoch > member.epoch
            and member.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            self._ask_to_join(group, member, now)
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        timers = self._protocol.timers
        timers.synced(group.group_id, member.id)
        timers.session(group.group_id, member.id, now.monotonic + classic.session_timeout)
        partitions = {topic_id: frozenset(each) for topic_id, each in member.assigned.items()}
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(partitions, classic.protocols[0][1], self._metadata),
        )
        return Effects((ticket, response))

    # Heartbeat ----------------------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, ticket: Ticket, request: HeartbeatRequest, now: Instant
    ) -> Effects:
        member, classic = self._check(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        deadline = now.monotonic + classic.session_timeout
        self._protocol.timers.session(group.group_id, member.id, deadline)
        if (
            member.epoch < group.target_epoch
            # There may be nobody left who speaks the new protocol and would bring it about.
            or self._protocol.changes.target_is_due(group, now)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (
                member.state is MemberState.UNRELEASED_PARTITIONS
                and not group.waits_for_others(member)
            )
        ):
            self._ask_to_join(group, member, now)
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        return Effects((ticket, HeartbeatResponse()))

    @staticmethod
    def _check(
        group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicSupport]:
        member = group.check_member(member_id, instance_id)
        if member.classic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.epoch != generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    def _ask_to_join(self, group: ConsumerGroup, member: ConsumerMember, now: Instant) -> None:
        deadline = now.monotonic + max(member.rebalance_timeout, 0)
        self._protocol.timers.join(group.group_id, member.id, deadline)

    # LeaveGroup ---------------------------------------------------------------------------------

    def leave(
        self,
        group: ConsumerGroup,
        ticket: Ticket,
        request: LeaveGroupRequest,
        version: int,
        now: Instant,
    ) -> Effects:
        """Removes members; also used by operators, for members of either protocol."""
        gone: dict[str, ConsumerMember] = {}
        results = []
        for each in leaving(request, version):
            result = MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id
            )
            results.append(result)
            try:
                member_id = each.member_id
                if not member_id and each.group_instance_id is not None:
                    member_id = group.static_members.get(each.group_instance_id, "")
                member = group.check_member(member_id, each.group_instance_id)
            except ProtocolError as error:
                result.error_code = error.code
            else:
                gone[member.id] = member
        answer = ticket, left(results, version)
        return self._protocol.fence(group, list(gone.values()), [answer], now)


def _subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    """The subscription in the member's preferred protocol; the others hold the same."""
    try:
        return read_subscription(next(iter(protocols.values())))
    except MalformedMessage:
        raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
