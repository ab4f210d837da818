"""Guards of APIs about producers and transactions."""

from __future__ import annotations

from typing import Any

from ottla.protocol.acls import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.describe_transactions import TransactionState
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from ottla.server.api import Answer, Request
from ottla.server.security.access import GROUP, TOPIC, TRANSACTIONAL_ID, Access
from ottla.server.security.guards.tools import Proceed, divided, failure, then

_READ, _WRITE, _DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
_NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_FIRST_BATCHED = 4


def init_producer_id(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    transactional_id = request.message.transactional_id
    if transactional_id is not None:
        if not access.may(_WRITE, TRANSACTIONAL_ID, transactional_id) or (
            request.message.enable2_pc
            and not access.may(AclOperation.TWO_PHASE_COMMIT, TRANSACTIONAL_ID, transactional_id)
        ):
            return failure(request, _NO_ID)
    elif not (
        access.cluster(AclOperation.IDEMPOTENT_WRITE, told=False) or access.some(_WRITE, TOPIC)
    ):
        access.cluster(AclOperation.IDEMPOTENT_WRITE)
        return failure(request, _NO_CLUSTER)
    return proceed(request)


def add_partitions_to_txn(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if request.version >= _FIRST_BATCHED:
        # Of brokers, which ask for the transactions of their producers.
        if access.cluster(AclOperation.CLUSTER_ACTION):
            return proceed(request)
        return failure(request, _NO_CLUSTER)
    topics = message.v3_and_below_topics
    if not access.may(_WRITE, TRANSACTIONAL_ID, message.v3_and_below_transactional_id):
        return _not_added({each.name: _NO_ID for each in topics}, topics)
    refused = {each.name for each in topics if not access.may(_WRITE, TOPIC, each.name)}
    if not refused:
        return proceed(request)
    # All of them, or none.
    return _not_added(
        {
            each.name: _NO_TOPIC if each.name in refused else ErrorCode.OPERATION_NOT_ATTEMPTED
            for each in topics
        },
        topics,
    )


def _not_added(codes: dict[str, ErrorCode], topics: Any) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=each.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=codes[each.name]
                    )
                    for index in each.partitions
                ],
            )
            for each in topics
        ]
    )


def add_offsets_to_txn(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_WRITE, TRANSACTIONAL_ID, message.transactional_id):
        return failure(request, _NO_ID)
    if not access.may(_READ, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    return proceed(request)


def txn_offset_commit(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_WRITE, TRANSACTIONAL_ID, message.transactional_id):
        return TxnOffsetCommitResponse(topics=_not_committed(message.topics, _NO_ID))
    if not access.may(_READ, GROUP, message.group_id):
        return TxnOffsetCommitResponse(topics=_not_committed(message.topics, _NO_GROUP))
    allowed, refused = divided(message.topics, lambda topic: access.may(_READ, TOPIC, topic.name))
    if not refused:
        return proceed(request)
    answers = _not_committed(refused, _NO_TOPIC)
    message.topics = allowed
    if not message.topics:
        return TxnOffsetCommitResponse(topics=answers)

    def finish(response: Any) -> Message:
        response.topics = [*response.topics, *answers]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def _not_committed(topics: Any, code: ErrorCode) -> list[TxnOffsetCommitResponseTopic]:
    return [
        TxnOffsetCommitResponseTopic(
            name=each.name,
            partitions=[
                TxnOffsetCommitResponsePartition(
                    partition_index=one.partition_index, error_code=code
                )
                for one in each.partitions
            ],
        )
        for each in topics
    ]


def write_txn_markers(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    if access.cluster(AclOperation.ALTER, told=False) or access.cluster(
        AclOperation.CLUSTER_ACTION
    ):
        return proceed(request)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=_NO_CLUSTER
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.message.markers
        ]
    )


def describe_transactions(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    asked = message.transactional_ids
    allowed, not_allowed = divided(
        asked, lambda name: access.may(_DESCRIBE, TRANSACTIONAL_ID, name)
    )
    refused = [TransactionState(transactional_id=each, error_code=_NO_ID) for each in not_allowed]
    message.transactional_ids = allowed

    def finish(response: Any) -> Message:
        for state in response.transaction_states:
            state.topics = [
                each
                for each in state.topics
                if access.may(_DESCRIBE, TOPIC, each.topic, told=False)
            ]
        response.transaction_states = [*response.transaction_states, *refused]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def list_transactions(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    def finish(response: Any) -> Message:
        response.transaction_states = [
            each
            for each in response.transaction_states
            if access.may(_DESCRIBE, TRANSACTIONAL_ID, each.transactional_id, told=False)
        ]
        answer: Message = response
        return answer

    return then(proceed(request), finish)
