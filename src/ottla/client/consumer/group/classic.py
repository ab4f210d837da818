"""Membership by the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The coordinator picks a leader among the members; the leader computes the assignment (`assignors`).
With an eager assignor everybody gives up everything before a rebalance. With the cooperative one
members keep what they have; whoever loses something gives it up after the rebalance and asks for
another, in which it goes to its new owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.consumer.group.assignors import (
    ASSIGNORS,
    CLASS_NAMES,
    COOPERATIVE,
    Member,
    Shares,
)
from ottla.client.consumer.group.membership import LANE, Membership
from ottla.client.errors import (
    ConfigurationError,
    OttlaError,
    TimedOut,
    broker_error,
)
from ottla.client.metadata import TopicInfo
from ottla.client.positions import TopicPartition
from ottla.client.spreading import by_topic
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from ottla.wire.connection import Connection

logger = logging.getLogger(__name__)

PROTOCOL_TYPE: Final = "consumer"
_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 0
_NEWEST: Final = 3  # of both, as far as this client knows
_MEMBERS_SINCE: Final = 3  # LeaveGroup
_NO_GENERATION: Final = -1
# The member has to join as a new one.
_UNKNOWN: Final = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION))
# Kafka's clients wait for a JoinGroup this much longer than the rebalance may take.
_JOIN_SPARE: Final = 5.0


class ClassicMembership(Membership):
    """A consumer's membership in a group by the classic protocol."""

    # As leader: the topics that somebody subscribes to, and how many partitions were shared out of
    # those that there were. None: another one leads.
    _wanted: frozenset[str] = frozenset()
    _shared_out: Mapping[str, int] | None = None

    async def run(self) -> None:
        self._assignors = _assignor_names(self.settings.assignment_strategies)
        self._cooperative = all(name in COOPERATIVE for name in self._assignors)
        while True:
            if self.poll_is_overdue:
                await self._leave_until_polled()
            if not self._cooperative:
                await self.hand_over(set(self.owned))
            if await self._rebalance():
                await self._stay()

    async def _rebalance(self) -> bool:
        """Join and get an assignment; False if that has to be tried again."""
        try:
            return await self._join_and_sync()
        except TimedOut as error:
            # What it had may be others' by now. Its member id is perhaps still known.
            logger.info("group '%s': %s", self.group, error)
            self.lose_all()
            return False

    async def _join_and_sync(self) -> bool:
        joined = await self._join()
        code = error_code(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return False
        if code in _UNKNOWN:
            self._forget()
            return False
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        self._raise_for(joined.error_code)
        self.member_id = joined.member_id
        self.epoch = joined.generation_id
        self._topics_of_join = self._topics
        shares: Shares = {}
        self._shared_out = None
        if joined.leader == joined.member_id:
            shares = await self._share_out(joined)
        synced = await self._sync(joined, shares)
        code = error_code(synced.error_code)
        if code in _UNKNOWN:
            self._forget()
            return False
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        self._raise_for(synced.error_code)
        target = _read_assignment(synced.assignment)
        gone = self.owned - target
        await self.hand_over(gone)
        await self.take_on(target)
        self._joined.set()
        # What was given up is free for its new owner only after another rebalance.
        return not (gone and self._cooperative)

    async def _join(self) -> JoinGroupResponse:
        settings = self.settings
        topics = self._topics
        owned = [
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=sorted(indexes))
            for topic, indexes in by_topic(sorted(self.owned)).items()
        ]
        subscription = ConsumerProtocolSubscription(
            topics=sorted(topics),
            owned_partitions=owned,
            generation_id=self.epoch if owned else _NO_GENERATION,
            rack_id=settings.client_rack or None,
        )
        metadata = _versioned(subscription.encode(_SUBSCRIPTION_VERSION), _SUBSCRIPTION_VERSION)
        patience = min(settings.max_poll_interval, 2_000_000)

        def request(connection: Connection) -> JoinGroupRequest:
            del connection
            return JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=int(settings.session_timeout * 1000),
                rebalance_timeout_ms=int(patience * 1000),
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[
                    JoinGroupRequestProtocol(name=name, metadata=metadata)
                    for name in self._assignors
                ],
            )

        return await self.cluster.ask(
            request,
            JoinGroupResponse,
            at=self.route,
            lane=LANE,
            timeout=patience + self.settings.api_timeout,
            request_timeout=patience + _JOIN_SPARE,
        )

    async def _share_out(self, joined: JoinGroupResponse) -> Shares:
        """Compute the assignment of all members, as their leader."""
        members = [
            _read_member(each.member_id, each.group_instance_id, each.metadata)
            for each in joined.members
        ]
        counts: dict[str, int] = {}
        self._wanted = frozenset[str]().union(*(member.topics for member in members))
        self.cluster.watch_also(self._wanted)
        for topic in sorted(self._wanted):
            info: TopicInfo | None
            try:
                info = await self.cluster.topic(topic)
            except OttlaError as error:
                logger.info("group '%s': %s", self.group, error)
                info = self.cluster.metadata.topics.get(topic)  # as it was last known
            if info is not None:
                counts[topic] = len(info.partitions)
        self._shared_out = counts
        if joined.skip_assignment:
            return {}  # a static leader that is back
        assignor = ASSIGNORS.get(joined.protocol_name or "")
        if assignor is None:
            raise broker_error(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group has chosen the assignor '{joined.protocol_name}'",
                f"group '{self.group}'",
            )
        return assignor(members, counts)

    async def _sync(self, joined: JoinGroupResponse, shares: Shares) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=_assignment(share))
                for member_id, share in shares.items()
            ],
        )
        return await self.cluster.ask(
            request,
            SyncGroupResponse,
            at=self.route,
            lane=LANE,
            request_timeout=self.settings.max_poll_interval + _JOIN_SPARE,
        )

    async def _stay(self) -> None:
        """Send heartbeats until there is a reason to join again."""
        while not self._has_reason_to_join() and not self.poll_is_overdue:
            await self.wait(self.settings.heartbeat_interval)
            if self._has_reason_to_join():
                return
            request = HeartbeatRequest(
                group_id=self.group,
                generation_id=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            try:
                answer = await self.cluster.ask(
                    request,
                    HeartbeatResponse,
                    at=self.route,
                    lane=LANE,
                    timeout=self.settings.session_timeout,
                )
            except TimedOut as error:
                logger.info("group '%s': %s", self.group, error)
                self._forget()
                return
            code = error_code(answer.error_code)
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                return
            if code in _UNKNOWN:
                self._forget()
                return
            self._raise_for(answer.error_code)

    def _has_reason_to_join(self) -> bool:
        """Whether another subscription is to be told, or there is more to be shared out: only the leader
        of the group can see that."""
        if self._topics != self._topics_of_join:
            return True
        known, shared_out = self.cluster.metadata.topics, self._shared_out
        return shared_out is not None and any(
            len(known[topic].partitions) > shared_out.get(topic, 0)
            for topic in self._wanted & known.keys()
        )

    def _forget(self) -> None:
        """The group has gone on without this member: it joins as a new one."""
        logger.info("group '%s' has dropped this member, joining again", self.group)
        self.lose_all()
        self.member_id = ""
        self.epoch = _NO_GENERATION

    def _raise_for(self, code: int) -> None:
        if code:
            raise broker_error(code, about=f"group '{self.group}'")

    async def _leave_until_polled(self) -> None:
        logger.warning(
            "group '%s': no records were asked for within max.poll.interval.ms (%g s); left",
            self.group,
            self.settings.max_poll_interval,
        )
        self.lose_all()
        if self.instance_id is None and self.member_id:
            await self.leave_if_possible()
        self.member_id = ""
        self.epoch = _NO_GENERATION
        while self.poll_is_overdue:
            await self.wait(self.settings.max_poll_interval)

    async def leave(self) -> None:
        """Tell the coordinator; a static member stays on its list, to come back unnoticed."""
        if self.instance_id is not None:
            return

        def request(connection: Connection) -> LeaveGroupRequest:
            if connection.version_of(LeaveGroupRequest) < _MEMBERS_SINCE:
                return LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
            return LeaveGroupRequest(
                group_id=self.group, members=[MemberIdentity(member_id=self.member_id)]
            )

        await self.cluster.ask(request, LeaveGroupResponse, at=self.route, lane=LANE)
        await asyncio.sleep(0)


def _assignor_names(strategies: Iterable[str]) -> list[str]:
    names = []
    for strategy in strategies:
        name = CLASS_NAMES.get(strategy.rpartition(".")[2], strategy)
        if name not in ASSIGNORS:
            raise ConfigurationError(
                f"partition.assignment.strategy takes {', '.join(ASSIGNORS)}, not '{strategy}'"
            )
        names.append(name)
    return names


def _versioned(message: bytes, version: int) -> bytes:
    return version.to_bytes(2) + message


def _read_member(member_id: str, instance_id: str | None, metadata: bytes) -> Member:
    version = min(int.from_bytes(metadata[:2]), _NEWEST)
    try:
        read, _ = ConsumerProtocolSubscription.decode(metadata, 2, version)
    except MalformedMessage as error:
        raise broker_error(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"member {member_id} is no consumer: {error}"
        ) from error
    owned = frozenset(
        TopicPartition(each.topic, index)
        for each in read.owned_partitions
        for index in each.partitions
    )
    return Member(member_id, frozenset(read.topics), owned, read.generation_id, instance_id)


def _assignment(share: Iterable[TopicPartition]) -> bytes:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=sorted(indexes))
            for topic, indexes in by_topic(sorted(share)).items()
        ]
    )
    return _versioned(assignment.encode(_ASSIGNMENT_VERSION), _ASSIGNMENT_VERSION)


def _read_assignment(data: bytes) -> set[TopicPartition]:
    if not data:
        return set()
    version = min(int.from_bytes(data[:2]), _NEWEST)
    read, _ = ConsumerProtocolAssignment.decode(data, 2, version)
    return {
        TopicPartition(each.topic, index)
        for each in read.assigned_partitions
        for index in each.partitions
    }
