"""AlterPartition: a leader asks for other in-sync replicas of its partitions (KIP-497).

- Answered by the controller alone; others say NOT_CONTROLLER.
- The leader's broker epoch and those of the replicas that are to be in sync are compared with the
  registrations: a former life of a broker changes nothing and enters no set (KIP-841, KIP-903).

Versions:
  v2  topics by id
  v3  broker epochs of the in-sync replicas
"""

from __future__ import annotations

from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataRequest,
    PartitionDataResponse,
    TopicDataResponse,
)
from ottla.server.api import Request, handles
from ottla.server.turns import Steps, in_turns

# Partitions that the controller decides on in one go. Brokers ask, and wait for all of it: fewer at a
# time would be more writes.
_AT_ONCE = 500


@handles(AlterPartitionRequest, versions=(2, 3))
async def alter_partition(request: Request[AlterPartitionRequest]) -> AlterPartitionResponse:
    message = request.message
    wanted = await in_turns(_wanted(message, request.version))
    topics: dict[bytes, TopicDataResponse] = {}
    for first in range(0, len(wanted), _AT_ONCE) or (0,):
        try:
            results = await request.broker.controller.alter_isr(
                message.broker_id, message.broker_epoch, wanted[first : first + _AT_ONCE]
            )
        except ProtocolError as error:
            return AlterPartitionResponse(error_code=error.code)
        for result in results:
            topic = topics.setdefault(
                result.topic_id, TopicDataResponse(topic_id=result.topic_id, partitions=[])
            )
            topic.partitions.append(_answer(result))
    return AlterPartitionResponse(topics=list(topics.values()))


def _wanted(message: AlterPartitionRequest, version: int) -> Steps[list[WantedIsr]]:
    wanted: list[WantedIsr] = []
    for topic in message.topics:
        for each in topic.partitions:
            wanted.append(
                WantedIsr(
                    topic.topic_id,
                    each.partition_index,
                    each.leader_epoch,
                    each.partition_epoch,
                    _members(each, version),
                )
            )
            yield
        yield
    return wanted


def _members(wanted: PartitionDataRequest, version: int) -> list[tuple[int, int]]:
    if version < 3:
        return [(broker_id, -1) for broker_id in wanted.new_isr]
    return [(each.broker_id, each.broker_epoch) for each in wanted.new_isr_with_epochs]


def _answer(result: IsrResult) -> PartitionDataResponse:
    answer = PartitionDataResponse(partition_index=result.index, error_code=result.error)
    state = result.state
    if result.error is ErrorCode.NONE and state is not None:
        answer.leader_id = state.leader
        answer.leader_epoch = state.leader_epoch
        answer.isr = list(state.isr)
        answer.partition_epoch = state.partition_epoch
    return answer
