"""Guards of APIs about producers and transactions."""

from __future__ import annotations

from functools import partial
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
from ottla.server.security.guards.tools import (
    Guarded,
    Proceed,
    adding,
    divided,
    failure,
    keeping,
    listed,
    passed_on,
    refused_partitions,
    then,
    without_refused_topics,
)
from ottla.server.turns import Steps

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
        access.cluster(AclOperation.IDEMPOTENT_WRITE, logged=False) or access.some(_WRITE, TOPIC)
    ):
        access.cluster(AclOperation.IDEMPOTENT_WRITE)
        return failure(request, _NO_CLUSTER)
    return proceed(request)


def add_partitions_to_txn(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    if request.version >= _FIRST_BATCHED:
        # Of brokers, which ask for the transactions of their producers.
        if access.cluster(AclOperation.CLUSTER_ACTION):
            return (yield from passed_on(proceed(request)))
        return failure(request, _NO_CLUSTER)
    topics = message.v3_and_below_topics
    codes: dict[str, ErrorCode] = {}
    if not access.may(_WRITE, TRANSACTIONAL_ID, message.v3_and_below_transactional_id):
        return (yield from _not_added(topics, codes, _NO_ID))
    for each in topics:
        if not access.may(_WRITE, TOPIC, each.name):
            codes[each.name] = _NO_TOPIC
        yield
    if not codes:
        return (yield from passed_on(proceed(request)))
    # All of them, or none.
    return (yield from _not_added(topics, codes, ErrorCode.OPERATION_NOT_ATTEMPTED))


def _not_added(
    topics: Any, codes: dict[str, ErrorCode], otherwise: ErrorCode
) -> Steps[AddPartitionsToTxnResponse]:
    results = []
    for each in topics:
        results.append((yield from _topic_not_added(each, codes.get(each.name, otherwise))))
        yield
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _topic_not_added(each: Any, code: ErrorCode) -> Steps[AddPartitionsToTxnTopicResult]:
    results = yield from listed(
        each.partitions,
        lambda index: AddPartitionsToTxnPartitionResult(
            partition_index=index, partition_error_code=code
        ),
    )
    return AddPartitionsToTxnTopicResult(name=each.name, results_by_partition=results)


def add_offsets_to_txn(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_WRITE, TRANSACTIONAL_ID, message.transactional_id):
        return failure(request, _NO_ID)
    if not access.may(_READ, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    return proceed(request)


def txn_offset_commit(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    for operation, kind, name, code in (
        (_WRITE, TRANSACTIONAL_ID, message.transactional_id, _NO_ID),
        (_READ, GROUP, message.group_id, _NO_GROUP),
    ):
        if not access.may(operation, kind, name):
            refusals = yield from _not_committed(message.topics, code)
            return TxnOffsetCommitResponse(topics=refusals)
    message.topics, refused = yield from divided(
        message.topics, lambda topic: access.may(_READ, TOPIC, topic.name)
    )
    refuse = partial(_not_committed, code=_NO_TOPIC)
    return (
        yield from without_refused_topics(
            request, proceed, refused, refuse, TxnOffsetCommitResponse
        )
    )


def _not_committed(topics: Any, code: ErrorCode) -> Steps[list[TxnOffsetCommitResponseTopic]]:
    return refused_partitions(
        topics,
        code,
        TxnOffsetCommitResponsePartition,
        lambda each, partitions: TxnOffsetCommitResponseTopic(
            name=each.name, partitions=partitions
        ),
    )


def write_txn_markers(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    if access.cluster(AclOperation.ALTER, logged=False) or access.cluster(
        AclOperation.CLUSTER_ACTION
    ):
        return (yield from passed_on(proceed(request)))
    markers = []
    for marker in request.message.markers:
        topics = []
        for topic in marker.topics:
            partitions = yield from listed(
                topic.partition_indexes,
                lambda index: WritableTxnMarkerPartitionResult(
                    partition_index=index, error_code=_NO_CLUSTER
                ),
            )
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            yield
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        yield
    return WriteTxnMarkersResponse(markers=markers)


def describe_transactions(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    message.transactional_ids, not_allowed = yield from divided(
        message.transactional_ids, lambda name: access.may(_DESCRIBE, TRANSACTIONAL_ID, name)
    )
    refused = yield from listed(
        not_allowed, lambda each: TransactionState(transactional_id=each, error_code=_NO_ID)
    )
    seen = keeping("topics", lambda each: access.may(_DESCRIBE, TOPIC, each.topic, logged=False))

    def finish(response: Any) -> Steps[Message]:
        for state in response.transaction_states:
            yield from seen(state)
            yield
        return (yield from adding("transaction_states", refused)(response))

    return (yield from then(proceed(request), finish))


def list_transactions(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    def may(each: Any) -> bool:
        return access.may(_DESCRIBE, TRANSACTIONAL_ID, each.transactional_id, logged=False)

    return then(proceed(request), keeping("transaction_states", may))
