"""OffsetCommit: store how far a group has read.

- A member names its generation (or epoch); a consumer that is in no group leaves it out, and may
  commit as long as the group has no members. Its first commit makes the group.
- Each partition has an answer of its own: topics and partitions must exist, and the metadata string is
  limited by `offset.metadata.max.bytes`.
- Of a partition that is named several times, the last offset counts; it is answered as often.
- All offsets of a request are written as one batch, with those of other requests to the same shard
  that arrive at the same moment.

Versions:
  v0  no generation (Kafka stored these in ZooKeeper; here they are commits like any other)
  v1  generation and member id; a timestamp for each partition (gone in v2)
  v2  a retention time (gone in v5)
  v3  throttle time
  v6  leader epochs
  v7  group.instance.id
  v8  flexible
  v9  member epochs of consumer groups; GROUP_ID_NOT_FOUND
  v10 topics by id
"""

from __future__ import annotations

import asyncio

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.server.api import Answer, Later, Outcome, Request, handles
from ottla.server.turns import Steps, in_turns

_TOPIC_IDS_SINCE = 10
# A request with more entries is looked through before the group sees it.
MANY_ENTRIES = 1000
# Stands for all partitions that a topic has not.
NOT_THERE = -1


@handles(OffsetCommitRequest, versions=(0, 10))
def offset_commit(request: Request[OffsetCommitRequest]) -> Answer:
    message = request.message
    entries = sum([len(topic.partitions) for topic in message.topics], len(message.topics))
    return _commit(request, message) if entries <= MANY_ENTRIES else _commit_many(request)


def _commit(request: Request[OffsetCommitRequest], message: OffsetCommitRequest) -> Message | Later:
    version = request.version
    return request.broker.groups.submit_gathered(
        message.group_id,
        lambda shard, ticket, now: shard.offset_commit(ticket, message, now, version),
        lambda code: _refused(message, code),
    )


def _commit_many(request: Request[OffsetCommitRequest]) -> Steps[Outcome]:
    """What is written is written in one go. So only partitions that there are go to the group, each
    once; of those that there are not one goes along, and stands for the others."""
    message = request.message
    reduced = _Reduced(request)
    for topic in message.topics:
        of_topic = reduced.of(topic)
        for each in topic.partitions:
            of_topic.take(each)
            yield
        yield
    answer = _commit(request, reduced.request())
    if isinstance(answer, Message):
        return (yield from reduced.whole(answer))
    came: asyncio.Future[Message] = request.broker.loop.create_future()
    answer.done = came.set_result
    return _committed(reduced, came)


async def _committed(reduced: _Reduced, came: asyncio.Future[Message]) -> Message:
    return await in_turns(reduced.whole(await came))


class _OfTopic:
    """What goes to the group of one topic, and with which codes it came back."""

    __slots__ = ("codes", "count", "partitions", "topic")

    def __init__(self, topic: OffsetCommitRequestTopic, count: int) -> None:
        self.topic = topic
        self.count = count
        self.partitions: dict[int, OffsetCommitRequestPartition] = {}
        self.codes: dict[int, int] = {}

    def _key(self, index: int) -> int:
        return index if 0 <= index < self.count else NOT_THERE

    def take(self, partition: OffsetCommitRequestPartition) -> None:
        self.partitions[self._key(partition.partition_index)] = partition

    def code(self, index: int) -> int:
        return self.codes[self._key(index)]


class _Reduced:
    """A request without what is in it several times or in vain."""

    def __init__(self, request: Request[OffsetCommitRequest]) -> None:
        self._message = request.message
        self._by_id = request.version >= _TOPIC_IDS_SINCE
        self._partitions = request.broker.partitions
        # By name or id; the topics that there are not have one entry together.
        self._topics: dict[str | bytes | None, _OfTopic] = {}
        # For each topic of the request, in its order.
        self._placed: list[_OfTopic] = []

    def _key(self, topic: OffsetCommitRequestTopic) -> str | bytes | None:
        if self._by_id:
            return topic.topic_id if topic.topic_id in self._partitions.by_id else None
        return topic.name if topic.name in self._partitions.by_name else None

    def of(self, topic: OffsetCommitRequestTopic) -> _OfTopic:
        key = self._key(topic)
        found = self._topics.get(key)
        if found is None:
            count = 0
            if isinstance(key, bytes):
                count = len(self._partitions.by_id[key])
            elif isinstance(key, str):
                count = len(self._partitions.by_name[key])
            found = self._topics[key] = _OfTopic(topic, count)
        self._placed.append(found)
        return found

    def request(self) -> OffsetCommitRequest:
        whole = self._message
        return OffsetCommitRequest(
            group_id=whole.group_id,
            generation_id_or_member_epoch=whole.generation_id_or_member_epoch,
            member_id=whole.member_id,
            group_instance_id=whole.group_instance_id,
            retention_time_ms=whole.retention_time_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=each.topic.name,
                    topic_id=each.topic.topic_id,
                    partitions=list(each.partitions.values()),
                )
                for each in self._topics.values()
            ],
        )

    def whole(self, answer: Message) -> Steps[Message]:
        """The answer for the reduced request as one for the whole."""
        assert isinstance(answer, OffsetCommitResponse)
        for of_topic, topic in zip(self._topics.values(), answer.topics, strict=True):
            for index, part in zip(of_topic.partitions, topic.partitions, strict=True):
                of_topic.codes[index] = part.error_code
            yield
        response = OffsetCommitResponse()
        for asked, of_topic in zip(self._message.topics, self._placed, strict=True):
            told = OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
            response.topics.append(told)
            for each in asked.partitions:
                index = each.partition_index
                told.partitions.append(
                    OffsetCommitResponsePartition(
                        partition_index=index, error_code=of_topic.code(index)
                    )
                )
                yield
            yield
        return response


def _refused(message: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
