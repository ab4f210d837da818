"""DescribeProducers: the producers that a partition remembers, and where their transactions began.

- Answered from what the log here knows. Clients ask the leader, unless they are told whom to ask: any
  replica answers. `ottla transaction find-hanging` and Kafka's own tools find transactions by it that
  nobody will end.
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
from ottla.replication.partition import Partition, Role
from ottla.server.api import Outcome, Request, handles
from ottla.server.broker import Broker
from ottla.server.failures import error_code, error_message
from ottla.server.turns import Steps
from ottla.storage.errors import StorageError


@handles(DescribeProducersRequest, versions=(0, 0))
def describe_producers(request: Request[DescribeProducersRequest]) -> Steps[Outcome]:
    response = DescribeProducersResponse()
    known: dict[tuple[str, int], PartitionResponse] = {}
    for topic in request.message.topics:
        answers = TopicResponse(name=topic.name)
        response.topics.append(answers)
        for index in topic.partition_indexes:
            key = (topic.name, index)
            answer = known.get(key)
            if answer is None:
                answer = known[key] = yield from _describe(request.broker, topic.name, index)
            answers.partitions.append(answer)
            yield
        yield
    return response


def _replica(broker: Broker, topic: str, index: int) -> Partition:
    partition = broker.partitions.get(topic, index)
    if partition is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if partition.role is Role.ABSENT:
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition


def _describe(broker: Broker, topic: str, index: int) -> Steps[PartitionResponse]:
    try:
        log = _replica(broker, topic, index).log
    except (ProtocolError, StorageError) as error:
        code: ErrorCode = error_code(error)
        return PartitionResponse(
            partition_index=index, error_code=code, error_message=error_message(error)
        )
    answer = PartitionResponse(partition_index=index)
    for state in list(log.producers.producers.values()):
        answer.active_producers.append(
            ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.transaction_first_offset,
            )
        )
        yield
    return answer
