"""CreatePartitions: more partitions for topics that exist. There is no way back to fewer.

Versions: v1 as v0; v2 flexible; v3 as v2
"""

from __future__ import annotations

from ottla.cluster.decisions.topics import MorePartitions, TopicResult
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message


@handles(CreatePartitionsRequest, versions=(0, 3), by_controller=True)
async def create_partitions(request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    message = request.message
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
        )
        for topic in message.topics
    ]
    try:
        results = await request.broker.controller.create_partitions(
            wanted, validate_only=message.validate_only
        )
    except ProtocolError as error:
        results = [TopicResult(name=each.name, error=error) for each in wanted]
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=each.name or "",
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
            for each in results
        ]
    )
