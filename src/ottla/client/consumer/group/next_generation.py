"""Membership by the next-generation protocol (KIP-848): one request, ConsumerGroupHeartbeat.

The coordinator computes the assignment. Each heartbeat may bring a new target; the member gives up
what is not in it, says so, and begins with what is new once the coordinator has released it. Fields
that have not changed since the last heartbeat are left out.

    epoch 0      join        -1   leave         -2   leave for a while (static members)
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from typing import Final

from ottla.client.consumer.group.membership import (
    LANE,
    Membership,
    MembershipProtocolUnavailable,
)
from ottla.client.errors import BrokerError, TimedOut, Unsupported, broker_error
from ottla.client.positions import TopicPartition
from ottla.client.spreading import by_topic
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsRequest,
)

logger = logging.getLogger(__name__)

_JOIN: Final = 0
_LEAVE: Final = -1
_LEAVE_STATIC: Final = -2
_FIRST_INTERVAL: Final = 1.0  # seconds, until the broker says which
# A coordinator assigns anew once a second at most (group.consumer.assignment.interval.ms), and answers
# whoever comes in between with nothing. So who has joined asks earlier than at the next heartbeat.
_SOON: Final = (0.3, 0.3, 0.5)  # seconds
# The member has to begin anew.
_FENCED: Final = frozenset((ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID))
# The other protocol is to be used.
_UNAVAILABLE: Final = frozenset(
    (
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    )
)


class NextGenerationMembership(Membership):
    """A consumer's membership in a group by the protocol of KIP-848."""

    _interval = _FIRST_INTERVAL  # between heartbeats; the broker says which
    _target: Assignment | None = None  # what it has assigned last, until that is done
    _asked_early = 0  # heartbeats since it has joined, while it has nothing
    # What the coordinator knows already; None: nothing.
    _told_topics: frozenset[str] | None = None
    _told_owned: set[TopicPartition] | None = None

    async def run(self) -> None:
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._begin_anew()
        while True:
            if self.poll_is_overdue:
                await self._leave_until_polled()
                continue
            answer = await self._heartbeat()
            code = error_code(answer.error_code)
            # A group that is gone, or a classic one again, has dropped its members.
            if code in _FENCED or (code is ErrorCode.GROUP_ID_NOT_FOUND and self.in_group):
                logger.info("group '%s': %s, joining again", self.group, code.name)
                self.lose_all()
                self._begin_anew()
                continue
            if code is ErrorCode.UNRELEASED_INSTANCE_ID:
                # The member before this one may still be on its way out.
                await asyncio.sleep(self._interval)
                self._begin_anew()
                continue
            if code in _UNAVAILABLE:
                raise MembershipProtocolUnavailable(answer.error_message or code.message)
            if answer.error_code:
                about = f"group '{self.group}'"
                raise broker_error(answer.error_code, answer.error_message, about)
            self.member_id = answer.member_id or self.member_id
            self.epoch = answer.member_epoch
            self._interval = max(answer.heartbeat_interval_ms / 1000, 0.001)
            if answer.assignment is not None:
                self._target = answer.assignment
            if not await self._reconcile():
                await self.wait(self._until_next())

    @property
    def in_group(self) -> bool:
        return self.epoch > _JOIN

    def _until_next(self) -> float:
        """Seconds until the next heartbeat."""
        if self.owned or self._asked_early == len(_SOON):
            return self._interval
        self._asked_early += 1
        return min(_SOON[self._asked_early - 1], self._interval)

    def _begin_anew(self) -> None:
        self.epoch = _JOIN
        self._asked_early = 0
        self._interval = _FIRST_INTERVAL
        self._target = None
        self._told_topics = None
        self._told_owned = None

    async def _heartbeat(self) -> ConsumerGroupHeartbeatResponse:
        settings = self.settings
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch
        )
        if self.epoch == _JOIN:
            request.instance_id = self.instance_id
            request.rack_id = settings.client_rack or None
            request.rebalance_timeout_ms = int(min(settings.max_poll_interval, 2_000_000) * 1000)
            request.server_assignor = settings.remote_assignor
        topics, owned = self._topics, set(self.owned)
        if topics != self._told_topics:
            request.subscribed_topic_names = sorted(topics)
        if owned != self._told_owned:
            request.topic_partitions = self._with_ids(owned)
        try:
            answer = await self.cluster.ask(
                request, ConsumerGroupHeartbeatResponse, at=self.route, lane=LANE
            )
        except Unsupported as error:
            raise MembershipProtocolUnavailable(str(error)) from error
        except TimedOut as error:
            # The coordinator has removed this member by now.
            logger.info("group '%s': %s", self.group, error)
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        self._told_topics, self._told_owned = topics, owned
        return answer

    def _with_ids(self, partitions: set[TopicPartition]) -> list[TopicPartitionsRequest]:
        known = self.cluster.metadata.topics
        return [
            TopicPartitionsRequest(topic_id=known[topic].topic_id, partitions=sorted(indexes))
            for topic, indexes in by_topic(sorted(partitions)).items()
            if topic in known
        ]

    async def _reconcile(self) -> bool:
        """Move towards the target; whether the coordinator has to be told at once."""
        if self._target is None:
            return False
        target = await self._named(self._target)
        if target is None:
            return False
        gone = self.owned - target
        if gone:
            await self.hand_over(gone)
        await self.take_on(target)
        self._target = None
        self._joined.set()
        return self.owned != self._told_owned

    async def _named(self, assignment: Assignment) -> set[TopicPartition] | None:
        """The assignment by names; None while the metadata do not know all of its topics."""
        target: set[TopicPartition] = set()
        for attempt in range(2):
            target.clear()
            unknown = False
            for topic in assignment.topic_partitions:
                name = self.cluster.metadata.name_of(topic.topic_id)
                if name is None:
                    unknown = True
                else:
                    target.update(TopicPartition(name, index) for index in topic.partitions)
            if not unknown:
                return target
            if attempt == 0:
                try:
                    await self.cluster.topics(self._topics)
                except BrokerError as error:
                    logger.info("group '%s': %s", self.group, error)
        self.cluster.request_refresh(*self._topics)
        return None

    async def _leave_until_polled(self) -> None:
        """Leave, and come back when the user does."""
        logger.warning(
            "group '%s': no records were asked for within max.poll.interval.ms (%g s); left",
            self.group,
            self.settings.max_poll_interval,
        )
        self.lose_all()
        await self.leave_if_possible()
        while self.poll_is_overdue:
            await self.wait(self.settings.max_poll_interval)
        self._begin_anew()

    async def leave(self) -> None:
        epoch = _LEAVE if self.instance_id is None else _LEAVE_STATIC
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        await self.cluster.ask(request, ConsumerGroupHeartbeatResponse, at=self.route, lane=LANE)
