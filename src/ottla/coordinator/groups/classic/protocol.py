"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what time does to it.

A rebalance has two halves. In the first all members join: everyone who is asked (by a heartbeat's
answer) sends JoinGroup and waits, until all have come or the rebalance timeout leaves the others out.
Then one of them, the leader, is told who is there; it computes the assignment and sends it with
SyncGroup, while the others wait with theirs. The assignment is stored, and everybody gets its part.

Nothing but that assignment, and a group's becoming empty, is written to the log; a heartbeat writes
nothing. The records are replayed as soon as they are appended, before anything else happens to the
group, and replaying is what makes the group stable or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.classic.answers import (
    answer_sync,
    assigned,
    joined,
    leaving,
    left,
    protocols_of,
    rebalance_timeout,
    refuse_join,
    refused_join,
)
from ottla.coordinator.groups.classic.group import (
    ClassicGroup,
    ClassicMember,
    Protocols,
    Waiting,
    assignments_of,
)
from ottla.coordinator.groups.group import Caller
from ottla.coordinator.groups.records import empty_group_record, group_record
from ottla.coordinator.groups.states import ClassicState, Event
from ottla.coordinator.groups.timers import Timer, Timers, unset
from ottla.coordinator.shard import NOTHING, Effects, Instant, Ticket
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.groups.settings import GroupSettings

EMPTY = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE

# How long a member may wait in its first JoinGroup, whatever its session timeout is.
NEW_MEMBER_TIMEOUT_MS: Final = 5 * 60_000
# How long silent members are waited for at the least, even if they ask for no time at all.
LEAST_PATIENCE_MS: Final = 100
# What a member id has after the name of its client: a dash and a UUID.
MEMBER_ID_SUFFIX: Final = 37
LONGEST_STRING: Final = 32_767  # bytes, in the protocol and in records
# From this version of JoinGroup on, a client has to come back with the id that it is given.
_MEMBER_ID_REQUIRED_SINCE: Final = 4
# From this version on, a leader can be told that it leads, but has nothing to assign.
_SKIP_ASSIGNMENT_SINCE: Final = 9


class ClassicProtocol:
    """The rules of the classic protocol, for all classic groups of a shard. Timers call back here."""

    def __init__(
        self,
        timers: Timers,
        settings: Callable[[], GroupSettings],
        new_id: Callable[[], str],
        find: Callable[[str], ClassicGroup | None],
    ) -> None:
        self._timers = timers
        self._settings = settings
        self._new_id = new_id
        self._find = find

    def new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            Timer(lambda now: self._rebalance_timed_out(group_id, now)),
            Timer(lambda now: self._synchronization_timed_out(group_id, now)),
        )

    def session(self, group_id: str, member_id: str) -> Timer:
        return Timer(lambda now: self._session_ended(group_id, member_id, now))

    def loaded(self, group: ClassicGroup, now: Instant) -> Effects:
        """Starts the sessions of the members that were loaded."""
        for member in group.members.values():
            self._renew(member, now)
        if len(group.members) > self._settings().group_max_size:
            out = Effects()
            self._prepare_rebalance(group, now, out)
            return out
        return NOTHING

    @staticmethod
    def unloaded(group: ClassicGroup, out: Effects) -> None:
        for member in group.members.values():
            joining = group.take_join(member)
            if joining is not None:
                answer = refused_join(ErrorCode.NOT_COORDINATOR, member.id, joining.version)
                out.answers.append((joining.ticket, answer))
            answer_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR), out)
        group.move(Event.GONE)

    def taken_over(
        self,
        group: ClassicGroup,
        protocols: Mapping[str, Protocols],
        now: Instant,
        *,
        rebalance: bool,
    ) -> Effects:
        """Takes over a group that was a consumer group. `protocols`: all that its members know. (Those
        who have joined since the group's record was appended said it themselves, and have begun the
        rebalance.)"""
        for member in group.members.values():
            known = protocols.get(member.id)
            if known is None:
                continue
            if member.joining is None and known.items() >= member.protocols.items():
                group.update(member, known, member.rebalance_timeout, member.session_timeout)
            self._renew(member, now)
        out = Effects()
        if rebalance and group.state is STABLE:
            self._prepare_rebalance(group, now, out)
        return out

    # JoinGroup ----------------------------------------------------------------------------------

    def join(
        self,
        group: ClassicGroup | None,
        ticket: Ticket,
        request: JoinGroupRequest,
        caller: Caller,
        now: Instant,
        join_created: Callable[[], Effects],
    ) -> Effects:
        """Handle JoinGroup. `join_created` handles the request once more, when the group that it makes
        is committed: other requests came in between, and it may be gone, or of another kind."""
        protocols = protocols_of(request)
        if not request.member_id and not _can_be_named(request, caller):
            code = ErrorCode.INVALID_REQUEST
            return Effects((ticket, refused_join(code, request.member_id, caller.version)))
        if group is not None:
            out = Effects()
            self._join(group, Waiting(ticket, caller.version), request, protocols, caller, now, out)
            return out
        if request.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            return Effects((ticket, refused_join(code, request.member_id, caller.version)))
        if not protocols or not request.protocol_type:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return Effects((ticket, refused_join(code, "", caller.version)))

        def failed(code: ErrorCode) -> Effects:
            return Effects((ticket, refused_join(code, "", caller.version)))

        # First the group, then its member: a group exists once its record is replayed.
        record = empty_group_record(request.group_id, None, 0, now.wall)
        return Effects(records=[record], then=join_created, failed=failed, asking=(ticket,))

    def _join(
        self,
        group: ClassicGroup,
        waiting: Waiting,
        request: JoinGroupRequest,
        protocols: Protocols,
        caller: Caller,
        now: Instant,
        out: Effects,
    ) -> None:
        member_id = request.member_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            code = ErrorCode.GROUP_MAX_SIZE_REACHED
            out.answers.append((waiting.ticket, refused_join(code, "", waiting.version)))
        elif not group.supports(request.protocol_type, protocols):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            out.answers.append((waiting.ticket, refused_join(code, member_id, waiting.version)))
        elif not member_id and request.group_instance_id is not None:
            new_id = f"{request.group_instance_id}-{self._new_id()}"
            old_id = group.static_members.get(request.group_instance_id)
            if old_id is None:
                self._add(group, waiting, new_id, request, protocols, caller, now, out)
            else:
                old = group.members[old_id]
                self._replace(group, waiting, old, new_id, request, protocols, now, out)
        elif not member_id:
            new_id = f"{caller.client_id}-{self._new_id()}"
            if caller.version >= _MEMBER_ID_REQUIRED_SINCE:
                self._hand_out_id(group, waiting, new_id, request.session_timeout_ms, now, out)
            else:
                self._add(group, waiting, new_id, request, protocols, caller, now, out)
        elif member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, waiting, member_id, request, protocols, caller, now, out)
        else:
            self._join_again(group, waiting, request, protocols, now, out)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings().group_max_size
        member = group.members.get(member_id)
        if group.state is EMPTY:
            return True
        if group.state is PREPARING:
            # Who comes first stays, also where the limit was lowered below what is there.
            waits = member is not None and member.joining is not None
            return waits or group.joining_count < limit
        return member is not None or len(group.members) < limit

    def _hand_out_id(
        self,
        group: ClassicGroup,
        waiting: Waiting,
        new_id: str,
        session_timeout: int,
        now: Instant,
        out: Effects,
    ) -> None:
        """Answer a new member with its id, with which it joins again: a client that crashes in between
        leaves no member."""
        session = self.session(group.group_id, new_id)
        group.pending_joins[new_id] = session
        self._timers.set(session, now.monotonic + session_timeout)
        answer = refused_join(ErrorCode.MEMBER_ID_REQUIRED, new_id, waiting.version)
        out.answers.append((waiting.ticket, answer))

    def _add(
        self,
        group: ClassicGroup,
        waiting: Waiting,
        new_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        caller: Caller,
        now: Instant,
        out: Effects,
    ) -> None:
        member = ClassicMember(
            new_id,
            request.group_instance_id,
            caller.client_id,
            caller.client_host,
            rebalance_timeout(request, caller.version),
            request.session_timeout_ms,
            protocols,
            self.session(group.group_id, new_id),
        )
        member.is_new = True
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type, waiting)
        self._timers.set(member.session, now.monotonic + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance(group, now, out)

    def _join_again(
        self,
        group: ClassicGroup,
        waiting: Waiting,
        request: JoinGroupRequest,
        protocols: Protocols,
        now: Instant,
        out: Effects,
    ) -> None:
        try:
            member = group.check_member(request.member_id, request.group_instance_id)
        except ProtocolError as error:
            answer = refused_join(error.code, request.member_id, waiting.version)
            out.answers.append((waiting.ticket, answer))
            return
        if group.state is EMPTY:
            # Only a member that was loaded by nobody could come here; it starts anew.
            code = ErrorCode.UNKNOWN_MEMBER_ID
            out.answers.append((waiting.ticket, refused_join(code, member.id, waiting.version)))
            return
        unchanged = list(protocols.items()) == list(member.protocols.items())
        leads = group.leader == member.id
        # A leader may see changes that concern the assignment and not its own metadata (partitions
        # were added), so in a stable group its joining again means a rebalance.
        if unchanged and (group.state is COMPLETING or (group.state is STABLE and not leads)):
            # Its client has perhaps not seen the answer to its first request.
            out.answers.append((waiting.ticket, joined(group, member)))
            return
        group.update(
            member,
            protocols,
            rebalance_timeout(request, waiting.version),
            request.session_timeout_ms,
        )
        self._wait_for_join(group, member, waiting, out)
        self._rebalance(group, now, out)

    @staticmethod
    def _wait_for_join(
        group: ClassicGroup, member: ClassicMember, waiting: Waiting, out: Effects
    ) -> None:
        before = group.wait_for_join(member, waiting)
        if before is not None:
            # Its client has sent another request since, over another connection.
            code = ErrorCode.REBALANCE_IN_PROGRESS
            out.answers.append((before.ticket, refused_join(code, member.id, before.version)))

    def _replace(
        self,
        group: ClassicGroup,
        waiting: Waiting,
        old: ClassicMember,
        new_id: str,
        request: JoinGroupRequest,
        protocols: Protocols,
        now: Instant,
        out: Effects,
    ) -> None:
        """Replaces a static member that is back; a client that still uses its old id is fenced."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        refuse_join(group, old, fenced, old.id, out)
        answer_sync(old, SyncGroupResponse(error_code=fenced), out)
        old_leader = group.leader
        new = ClassicMember(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            rebalance_timeout(request, waiting.version),
            request.session_timeout_ms,
            protocols,
            self.session(group.group_id, new_id),
            old.assignment,
        )
        group.replace(old, new)
        self._renew(new, now)
        if group.state is not STABLE or group.select_protocol() != group.protocol:
            self._wait_for_join(group, new, waiting, out)
            self._rebalance(group, now, out)
            return

        # The assignment is still right: no rebalance, only the new id is stored.
        def failed(code: ErrorCode) -> Effects:
            group.replace(new, old)
            self._renew(old, now)
            return Effects((waiting.ticket, refused_join(code, "", waiting.version)))

        if waiting.version >= _SKIP_ASSIGNMENT_SINCE:
            answer = joined(group, new)
            answer.skip_assignment = group.leader == new_id
        else:
            # Older clients cannot be told that they lead and have nothing to assign. With the old id
            # of the leader, which is not theirs, they take themselves for followers.
            answer = joined(group, new, leader=old_leader)
        out.answers.append((waiting.ticket, answer))
        out.records.append(group_record(group, assignments_of(group), group.state_timestamp))
        out.failed = failed

    # SyncGroup ----------------------------------------------------------------------------------

    def sync(
        self, group: ClassicGroup, ticket: Ticket, request: SyncGroupRequest, now: Instant
    ) -> Effects:
        """Handle SyncGroup; ProtocolError is the error for the client."""
        if group.is_empty:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if (request.protocol_type is not None and request.protocol_type != group.protocol_type) or (
            request.protocol_name is not None and request.protocol_name != group.protocol
        ):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is PREPARING:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        out = Effects()
        group.pending_syncs.discard(member.id)
        if not group.pending_syncs:
            unset(group.synchronization)
        if group.state is STABLE:
            out.answers.append((ticket, assigned(group, member.assignment)))
            return out
        answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), out)
        member.syncing = ticket
        if group.leader == member.id:
            self._assign(group, request, now, out)
        return out

    def _assign(
        self, group: ClassicGroup, request: SyncGroupRequest, now: Instant, out: Effects
    ) -> None:
        """Store the assignment that the leader has sent, and answer the members that wait for it."""
        assignments = {each.member_id: each.assignment for each in request.assignments}
        for member in group.members.values():
            # A member that the leader forgot has nothing to do, and is told so.
            share = assigned(group, assignments.get(member.id, b""))
            if answer_sync(member, share, out):
                self._renew(member, now)

        def failed(code: ErrorCode) -> Effects:
            if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
                # Too large for the log, but no commit.
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            refusal = SyncGroupResponse(error_code=code)
            refused = Effects(*((waiting, refusal) for waiting, _ in out.answers))
            self._prepare_rebalance(group, now, refused)
            return refused

        out.records.append(group_record(group, assignments, now.wall))
        out.failed = failed

    # Heartbeat ----------------------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, ticket: Ticket, request: HeartbeatRequest, now: Instant
    ) -> Effects:
        """Handle Heartbeat; ProtocolError is the error for the client."""
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        self._timers.set(member.session, now.monotonic + member.session_timeout)
        if group.state is PREPARING:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        return Effects((ticket, HeartbeatResponse()))

    def committed(self, group: ClassicGroup, member_id: str, now: Instant) -> None:
        """Counts a commit as a heartbeat."""
        member = group.members.get(member_id)
        if member is not None and group.state in (STABLE, PREPARING):
            self._renew(member, now)

    # LeaveGroup ---------------------------------------------------------------------------------

    def leave(
        self,
        group: ClassicGroup,
        ticket: Ticket,
        request: LeaveGroupRequest,
        version: int,
        now: Instant,
    ) -> Effects:
        out = Effects()
        results = [self._leave(group, each, out) for each in leaving(request, version)]
        out.answers.append((ticket, left(results, version)))
        if any(result.error_code == ErrorCode.NONE for result in results):
            if group.state in (STABLE, COMPLETING):
                self._prepare_rebalance(group, now, out)
            elif group.state is PREPARING:
                self._complete_when_all_joined(group, now, out)
        return out

    @staticmethod
    def _leave(group: ClassicGroup, identity: MemberIdentity, out: Effects) -> MemberResponse:
        result = MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id
        )
        instance_id = identity.group_instance_id
        try:
            if identity.member_id in group.pending_joins:
                group.remove(identity.member_id)
                return result
            member_id = identity.member_id
            if not member_id and instance_id is not None:
                # An operator removes a static member, whatever its id is at the moment.
                member_id = group.static_members.get(instance_id, "")
            member = group.check_member(member_id, instance_id)
        except ProtocolError as error:
            result.error_code = error.code
        else:
            _remove_member(group, member, out)
        return result

    # The first half of a rebalance --------------------------------------------------------------

    def _rebalance(self, group: ClassicGroup, now: Instant, out: Effects) -> None:
        """Begins a rebalance; during one, checks whether all members have joined."""
        if group.state is PREPARING:
            self._complete_when_all_joined(group, now, out)
        else:
            self._prepare_rebalance(group, now, out)

    def _prepare_rebalance(self, group: ClassicGroup, now: Instant, out: Effects) -> None:
        if group.state is COMPLETING:
            # The assignment that these wait for will not come.
            code = ErrorCode.REBALANCE_IN_PROGRESS
            for member in group.members.values():
                member.assignment = b""
                if answer_sync(member, SyncGroupResponse(error_code=code), out):
                    self._renew(member, now)
        group.pending_syncs.clear()
        unset(group.synchronization)
        is_initial = group.state is EMPTY
        group.move(Event.REBALANCE_WANTED)
        if is_initial:
            # More first members are waited for: a while, and again when some came.
            delay = self._settings().group_initial_rebalance_delay_ms
            group.new_member_added = False
            group.delay_left = max(group.rebalance_timeout - delay, 0)
            self._timers.set(group.rebalance, now.monotonic + delay)
        elif group.all_have_joined:
            self._complete_join(group, now, out)
        else:
            self._timers.set(group.rebalance, now.monotonic + group.rebalance_timeout)

    def _complete_when_all_joined(self, group: ClassicGroup, now: Instant, out: Effects) -> None:
        # The first rebalance of a group waits for its delay, not for its members.
        if group.previous_state is not EMPTY and group.all_have_joined:
            self._complete_join(group, now, out)

    def _rebalance_timed_out(self, group_id: str, now: Instant) -> Effects:
        group = self._find(group_id)
        if group is None or group.state is not PREPARING:
            return NOTHING
        if group.previous_state is EMPTY and group.new_member_added and group.delay_left:
            delay = self._settings().group_initial_rebalance_delay_ms
            self._timers.set(group.rebalance, now.monotonic + min(delay, group.delay_left))
            group.new_member_added = False
            group.delay_left = max(group.delay_left - delay, 0)
            return NOTHING
        out = Effects()
        self._complete_join(group, now, out)
        return out

    def _complete_join(self, group: ClassicGroup, now: Instant, out: Effects) -> None:
        """End the joining half of a rebalance. Dynamic members that have not joined are removed."""
        unset(group.rebalance)
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                group.remove(member.id)
        if not group.members:
            self._empty(group, now, out)
            return
        if not group.elect_leader():
            # Only static members, all silent: their sessions will end, or they will come.
            patience = max(group.rebalance_timeout, LEAST_PATIENCE_MS)
            self._timers.set(group.rebalance, now.monotonic + patience)
            return
        group.begin_generation()
        for member in group.members.values():
            joining = group.take_join(member)
            if joining is not None:
                out.answers.append((joining.ticket, joined(group, member)))
            self._renew(member, now)
            member.is_new = False
            group.pending_syncs.add(member.id)
        self._timers.set(group.synchronization, now.monotonic + group.rebalance_timeout)

    def _empty(self, group: ClassicGroup, now: Instant, out: Effects) -> None:
        generation = group.generation + 1

        def failed(_: ErrorCode) -> Effects:
            # It is empty all the same. Should the coordinator move before the next rebalance is
            # stored, the members of the last one come back to life and time out.
            group.generation = generation
            group.protocol = None
            group.subscribed_topics = frozenset()
            group.state_timestamp = now.wall
            group.move(Event.NOBODY_LEFT)
            return Effects(*out.answers)

        out.records.append(
            empty_group_record(group.group_id, group.protocol_type, generation, now.wall)
        )
        out.failed = failed

    # What time does -----------------------------------------------------------------------------

    def _renew(self, member: ClassicMember, now: Instant) -> None:
        self._timers.set(member.session, now.monotonic + member.session_timeout)

    def _session_ended(self, group_id: str, member_id: str, now: Instant) -> Effects:
        group = self._find(group_id)
        if group is None:
            return NOTHING
        out = Effects()
        member = group.members.get(member_id)
        if member is None:
            if member_id in group.pending_joins:
                group.remove(member_id)
                if group.state is PREPARING and group.all_have_joined:
                    self._complete_join(group, now, out)
            return out
        if member.is_alive_without_heartbeats:
            # Renewed when its request is answered.
            return out
        _remove_member(group, member, out)
        if group.state in (STABLE, COMPLETING):
            self._prepare_rebalance(group, now, out)
        elif group.state is PREPARING and group.all_have_joined:
            self._complete_join(group, now, out)
        return out

    def _synchronization_timed_out(self, group_id: str, now: Instant) -> Effects:
        """Remove members that have joined and not asked for their assignment in time."""
        group = self._find(group_id)
        if group is None or group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
            return NOTHING
        out = Effects()
        for member_id in list(group.pending_syncs):
            group.remove(member_id)
        self._prepare_rebalance(group, now, out)
        return out


def _remove_member(group: ClassicGroup, member: ClassicMember, out: Effects) -> None:
    """Remove a member, and answer its waiting requests with that."""
    code = ErrorCode.UNKNOWN_MEMBER_ID
    refuse_join(group, member, code, "", out)
    answer_sync(member, SyncGroupResponse(error_code=code), out)
    group.remove(member.id)


def _can_be_named(request: JoinGroupRequest, caller: Caller) -> bool:
    """Whether the id of a new member, which begins with a name of its client, is not too long."""
    name = caller.client_id if request.group_instance_id is None else request.group_instance_id
    return len(name.encode()) + MEMBER_ID_SUFFIX <= LONGEST_STRING
