"""Every OffsetCommit request: decoded, handed to the shard of its group, and answered."""

from __future__ import annotations

import asyncio
from functools import partial

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.server.api import Answer, Later, Outcome, Request
from ottla.server.coordination.reduced_topics import ReducedTopics, completed, is_long
from ottla.server.turns import Steps

_TOPIC_IDS_SINCE = 10


def offset_commit(request: Request[OffsetCommitRequest]) -> Answer:
    message = request.message
    return _commit_many(request) if is_long(message.topics) else _commit(request, message)


def _commit(request: Request[OffsetCommitRequest], message: OffsetCommitRequest) -> Message | Later:
    version = request.version
    return request.broker.groups.submit_gathered(
        message.group_id,
        lambda shard, ticket, now: shard.offset_commit(ticket, message, now, version),
        lambda code: answer_to_all(message, code),
    )


def _commit_many(request: Request[OffsetCommitRequest]) -> Steps[Outcome]:
    reduced = _reduced_topics(request)
    yield from reduced.reduce()
    answer = _commit(request, _with_topics(request.message, reduced))
    if isinstance(answer, Later):
        came: asyncio.Future[Message] = request.broker.loop.create_future()
        answer.done = came.set_result
        return (yield from completed(came, partial(_whole, reduced)))
    return (yield from completed(answer, partial(_whole, reduced)))


def _reduced_topics(
    request: Request[OffsetCommitRequest],
) -> ReducedTopics[OffsetCommitRequestTopic]:
    partitions = request.broker.partitions

    def by_id(topic: OffsetCommitRequestTopic) -> tuple[bytes, int]:
        return topic.topic_id, len(partitions.by_id.get(topic.topic_id, ()))

    def by_name(topic: OffsetCommitRequestTopic) -> tuple[str, int]:
        return topic.name, len(partitions.by_name.get(topic.name, ()))

    count_of = by_id if request.version >= _TOPIC_IDS_SINCE else by_name
    return ReducedTopics(request.message.topics, count_of)


def _with_topics(
    whole: OffsetCommitRequest, reduced: ReducedTopics[OffsetCommitRequestTopic]
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=whole.group_id,
        generation_id_or_member_epoch=whole.generation_id_or_member_epoch,
        member_id=whole.member_id,
        group_instance_id=whole.group_instance_id,
        retention_time_ms=whole.retention_time_ms,
        topics=reduced.topics(
            lambda topic, partitions: OffsetCommitRequestTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        ),
    )


def _whole(reduced: ReducedTopics[OffsetCommitRequestTopic], answer: Message) -> Steps[Message]:
    assert isinstance(answer, OffsetCommitResponse)
    topics = yield from reduced.whole(
        answer.topics,
        lambda asked: OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id),
        OffsetCommitResponsePartition,
    )
    return OffsetCommitResponse(topics=topics)


def answer_to_all(message: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The answer that is the same for every partition."""
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
