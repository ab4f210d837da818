"""DescribeTopicPartitions: partitions of topics in pages, for clusters with very many of them.

Topics come sorted by name. A page ends after `response_partition_limit` partitions (at most
`max.request.partition.size.limit`), and its cursor names where the next one begins. A request
without topics means all of them.

Versions: v0
"""

from __future__ import annotations

from ottla.cluster.metadata import Topic
from ottla.cluster.names import check_topic_name
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.describe_topic_partitions import (
    CursorResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.operations import TOPIC_OPERATIONS
from ottla.server.turns import Steps, in_order


@handles(DescribeTopicPartitionsRequest, versions=(0, 0))
def describe_topic_partitions(
    request: Request[DescribeTopicPartitionsRequest],
) -> Steps[Outcome]:
    message, image = request.message, request.broker.image
    asked: dict[str, None] = {}
    for each in message.topics:
        asked[each.name] = None
        yield
    names = yield from in_order(asked or list(image.topics))
    cursor = message.cursor
    # At least one, or a client that asks for page after page would never get on.
    most = request.broker.config.max_request_partition_size_limit
    left = max(1, min(message.response_partition_limit, most))
    response = DescribeTopicPartitionsResponse(topics=[])
    for name in names:
        yield
        first_partition = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            # A topic that was deleted since the last page: go on with the one after it.
            if name == cursor.topic_name:
                first_partition = max(0, cursor.partition_index)
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        if left <= 0:
            response.next_cursor = CursorResponse(topic_name=name, partition_index=first_partition)
            break
        page = _page(request, topic, first_partition, left)
        response.topics.append(page)
        left -= len(page.partitions)
        end = first_partition + len(page.partitions)
        if end < len(topic.partitions):
            response.next_cursor = CursorResponse(topic_name=name, partition_index=end)
            break
    return response


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ProtocolError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _page(
    request: Request[DescribeTopicPartitionsRequest], topic: Topic, first: int, limit: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=0 if state.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=state.index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=list(state.elr),
                last_known_elr=[],
                offline_replicas=request.broker.offline_replicas(topic.name, state),
            )
            for state in topic.partitions[first : first + limit]
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
