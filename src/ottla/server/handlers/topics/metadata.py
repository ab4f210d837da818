"""Metadata: brokers, topics, partitions and their leaders.

- Each listener's clients are told the addresses that were advertised for that listener.
- A topic that does not exist is created if the client and the broker allow it
  (`auto.create.topics.enable`), with the broker's default number of partitions, and the client's quota
  of changes (`controller_mutation_rate`) has room, else it stays unknown; a bad name is answered
  as such. Topics of coordinators get the settings that they have otherwise, too.
- An empty list of topics means all of them in v0, none in later versions, where null means all.
- A topic that is named several times is answered once.

Versions:
  v1   rack, controller, internal topics
  v2   cluster id
  v3   throttle time
  v4   the client says whether topics may be created
  v5   offline replicas
  v7   leader epochs
  v8   authorized operations
  v9   flexible
  v10  topic ids in the answer; v12 also in the request
  v11  no more authorized operations of the cluster
  v13  an error for the whole response
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ottla.cluster.decisions.topics import MOST_PARTITIONS_PER_REQUEST
from ottla.cluster.metadata import Topic
from ottla.cluster.names import check_topic_name
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from ottla.server.portions import PORTION
from ottla.server.turns import Steps, in_turns

# v10 and v11 have the fields already, but of no use.
_FIRST_WITHOUT_NAME = 12


@handles(MetadataRequest, versions=(0, 13))
def metadata(request: Request[MetadataRequest]) -> Steps[Outcome]:
    wanted: dict[tuple[str | None, bytes], MetadataRequestTopic] = {}
    missing: list[str] = []
    for each in request.message.topics or ():
        key = (each.name, each.topic_id)
        if key not in wanted:
            wanted[key] = each
            if each.name is not None and _may_be_created(request, each):
                missing.append(each.name)
        yield
    if missing:
        return _create_and_answer(request, wanted.values(), missing)
    return (yield from _response(request, wanted.values(), {}))


async def _create_and_answer(
    request: Request[MetadataRequest],
    wanted: Collection[MetadataRequestTopic],
    missing: Sequence[str],
) -> MetadataResponse:
    from ottla.server.quotas.usage import quota_client  # not at the start

    broker = request.broker
    client = quota_client(request.connection)
    refused: dict[str, ProtocolError] = {}
    if len(missing) * broker.config.num_partitions > MOST_PARTITIONS_PER_REQUEST:
        # As with CreateTopics. None of them is made.
        refusal = ProtocolError(ErrorCode.POLICY_VIOLATION)
        refused = dict.fromkeys(missing, refusal)
    else:
        for first in range(0, len(missing), PORTION):
            some = missing[first : first + PORTION]
            try:
                refused.update(await broker.create_automatically(some, client))
            except ProtocolError:
                break  # there is no controller: they stay unknown, and are asked for again
    return await in_turns(_response(request, wanted, refused))


def _response(
    request: Request[MetadataRequest],
    wanted: Collection[MetadataRequestTopic],
    refused: Mapping[str, ProtocolError],
) -> Steps[MetadataResponse]:
    broker = request.broker
    image = broker.image
    topics: list[MetadataResponseTopic] = []
    if request.message.topics is None or (request.version == 0 and not wanted):
        for topic in image.topics.values():
            topics.append((yield from _described(request, topic)))
            yield
    else:
        for each in wanted:
            topics.append((yield from _answer(request, each, refused)))
            yield
    asked = request.message.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=host, port=port, rack=node.rack)
            for node, host, port in broker.nodes_for(request.connection.listener.name)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )


def _may_be_created(request: Request[MetadataRequest], wanted: MetadataRequestTopic) -> bool:
    return (
        request.message.allow_auto_topic_creation
        and request.broker.config.auto_create_topics_enable
        and wanted.topic_id == ZERO_UUID
        and wanted.name not in request.broker.image.topics
    )


def _answer(
    request: Request[MetadataRequest],
    wanted: MetadataRequestTopic,
    refused: Mapping[str, ProtocolError],
) -> Steps[MetadataResponseTopic]:
    image = request.broker.image
    if wanted.topic_id != ZERO_UUID:
        if request.version < _FIRST_WITHOUT_NAME:
            return _unknown(request, wanted, ErrorCode.INVALID_REQUEST)
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return _unknown(request, wanted, ErrorCode.UNKNOWN_TOPIC_ID)
        return (yield from _described(request, topic))
    if wanted.name is None:
        return _unknown(request, wanted, ErrorCode.INVALID_REQUEST)
    topic = image.topics.get(wanted.name)
    if topic is not None:
        return (yield from _described(request, topic))
    refusal = refused.get(wanted.name)
    # Who has made too many topics asks again, as one does for a topic that is not there yet.
    if refusal is not None and refusal.code != ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return _unknown(request, wanted, refusal.code)
    try:
        check_topic_name(wanted.name)
    except ProtocolError as error:
        return _unknown(request, wanted, error.code)
    return _unknown(request, wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _unknown(
    request: Request[MetadataRequest], wanted: MetadataRequestTopic, code: ErrorCode
) -> MetadataResponseTopic:
    name = wanted.name
    if name is None and request.version < _FIRST_WITHOUT_NAME:
        name = ""
    return MetadataResponseTopic(error_code=code, name=name, topic_id=wanted.topic_id)


def _described(request: Request[MetadataRequest], topic: Topic) -> Steps[MetadataResponseTopic]:
    asked = request.message.include_topic_authorized_operations
    answer = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=TOPIC_OPERATIONS if asked else NOT_ASKED,
    )
    for state in topic.partitions:
        answer.partitions.append(
            MetadataResponsePartition(
                error_code=0 if state.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=state.index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=request.broker.offline_replicas(topic.name, state),
            )
        )
        yield
    return answer
