"""CreatePartitions: more partitions for topics that exist. There is no way back to fewer.

Versions: v1 as v0; v2 flexible; v3 as v2
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.decisions.topics import (
    MOST_PARTITIONS_PER_REQUEST,
    MorePartitions,
    TopicResult,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Steps, Turns, in_turns


@handles(CreatePartitionsRequest, versions=(0, 3), by_controller=True)
async def create_partitions(request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    response = CreatePartitionsResponse()
    allowed = MOST_PARTITIONS_PER_REQUEST
    turns = Turns()
    for some in one_by_one(await in_turns(_portions(request))):
        wanted = await in_turns(_wanted(some))
        before = request.broker.image.topics
        try:
            results = await request.broker.controller.create_partitions(
                wanted, allowed=allowed, validate_only=request.message.validate_only
            )
        except ProtocolError as error:
            refusal = error.with_traceback(None)
            results = [TopicResult(name=each.name, error=refusal) for each in wanted]
        for each in results:
            if each.topic is not None:
                known = before.get(each.topic.name)
                allowed -= len(each.topic.partitions) - (len(known.partitions) if known else 0)
            response.results.append(
                CreatePartitionsTopicResult(
                    name=each.name or "",
                    error_code=ErrorCode.NONE if each.error is None else each.error.code,
                    error_message=error_message(each.error),
                )
            )
        await turns.pause()
    return response


def _portions(
    request: Request[CreatePartitionsRequest],
) -> Steps[list[Sequence[CreatePartitionsTopic]]]:
    topics = request.broker.image.topics

    def weight(wanted: CreatePartitionsTopic) -> int:
        topic = topics.get(wanted.name)
        return 0 if topic is None else wanted.count - len(topic.partitions)

    return (yield from portions(request.message.topics, lambda each: each.name, weight=weight))


def _wanted(some: Sequence[CreatePartitionsTopic]) -> Steps[list[MorePartitions]]:
    wanted: list[MorePartitions] = []
    for topic in some:
        assignments: list[list[int]] | None = None
        if topic.assignments is not None:
            assignments = []
            for each in topic.assignments:
                assignments.append(each.broker_ids)
                yield
        wanted.append(MorePartitions(topic.name, topic.count, assignments))
        yield
    return wanted
