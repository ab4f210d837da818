"""CreatePartitions: more partitions for topics that exist. There is no way back to fewer.

Versions: v1 as v0; v2 flexible; v3 as v2
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.decisions.topics import MorePartitions, TopicResult
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import portions
from ottla.server.turns import Steps, Turns, in_turns


@handles(CreatePartitionsRequest, versions=(0, 3))
async def create_partitions(request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    message = request.message
    results: list[TopicResult] = []
    turns = Turns()
    for some in await in_turns(_portions(message)):
        await turns.pause()
        try:
            results += await request.broker.controller.create_partitions(
                some, validate_only=message.validate_only
            )
        except ProtocolError as error:
            results += [TopicResult(name=each.name, error=error) for each in some]
    return await in_turns(_response(results))


def _portions(message: CreatePartitionsRequest) -> Steps[list[Sequence[MorePartitions]]]:
    wanted: list[MorePartitions] = []
    for topic in message.topics:
        assignments: list[list[int]] | None = None
        if topic.assignments is not None:
            assignments = []
            for each in topic.assignments:
                assignments.append(each.broker_ids)
                yield
        wanted.append(MorePartitions(topic.name, topic.count, assignments))
        yield
    return (yield from portions(wanted, lambda more: more.name))


def _response(results: list[TopicResult]) -> Steps[CreatePartitionsResponse]:
    response = CreatePartitionsResponse()
    for each in results:
        response.results.append(
            CreatePartitionsTopicResult(
                name=each.name or "",
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
        )
        yield
    return response
