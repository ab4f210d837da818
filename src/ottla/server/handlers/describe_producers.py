"""DescribeProducers: the producers that a partition remembers, and where their transactions began.

- Answered by the partition's leader, from what its log knows. `ottla transaction find-hanging` and
  Kafka's own tools find transactions by it that nobody will end.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.server.api import Request, handles
from ottla.server.broker import Broker
from ottla.server.failures import error_code, error_message
from ottla.storage.errors import StorageError


@handles(DescribeProducersRequest, versions=(0, 0))
def describe_producers(request: Request[DescribeProducersRequest]) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(request.broker, topic.name, index)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.message.topics
        ]
    )


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        log = broker.leader_of(topic, index, -1).log
    except (ProtocolError, StorageError) as error:
        code: ErrorCode = error_code(error)
        return PartitionResponse(
            partition_index=index, error_code=code, error_message=error_message(error)
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.transaction_first_offset,
            )
            for state in log.producers.producers.values()
        ],
    )
