"""Guards of APIs about groups and their offsets."""

from __future__ import annotations

from typing import Any

from ottla.protocol.acls import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID, Message
from ottla.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.server.api import Answer, Request
from ottla.server.operations import NOT_ASKED
from ottla.server.security.access import GROUP, TOPIC, TRANSACTIONAL_ID, Access
from ottla.server.security.guards.tools import REFUSAL, Proceed, divided, failure, then

_READ, _DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_FIRST_COORDINATOR_KEYS = 4
_UNSEEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
_FIRST_GROUPS = 8
_FIRST_ERROR_OF_ALL = 2


def topic_name(request: Request[Any], each: Any) -> str | None:
    """What a topic is called that is named or has an id; None if nobody knows the id."""
    if getattr(each, "topic_id", ZERO_UUID) == ZERO_UUID:
        return str(each.name)
    topic = request.broker.image.topics_by_id.get(each.topic_id)
    return None if topic is None else topic.name


def _sorted_out(
    access: Access, request: Request[Any], topics: Any, operation: AclOperation
) -> tuple[list[Any], list[Any]]:
    allowed: list[Any] = []
    refused: list[Any] = []
    for each in topics:
        name = topic_name(request, each)
        # Of an unknown id the handler says so.
        may = name is None or access.may(operation, TOPIC, name)
        (allowed if may else refused).append(each)
    return allowed, refused


def find_coordinator(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    kind = TRANSACTIONAL_ID if message.key_type == 1 else GROUP
    code = REFUSAL[kind]
    if request.version < _FIRST_COORDINATOR_KEYS:
        if access.may(_DESCRIBE, kind, message.key):
            return proceed(request)
        return FindCoordinatorResponse(
            error_code=code, error_message=code.message, node_id=-1, host="", port=-1
        )
    allowed, not_allowed = divided(
        message.coordinator_keys, lambda key: access.may(_DESCRIBE, kind, key)
    )
    refused = [
        Coordinator(
            key=key, error_code=code, error_message=code.message, node_id=-1, host="", port=-1
        )
        for key in not_allowed
    ]
    message.coordinator_keys = allowed

    def finish(response: Any) -> Message:
        response.coordinators = [*response.coordinators, *refused]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def list_groups(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    if access.cluster(_DESCRIBE, told=False):
        return proceed(request)

    def finish(response: Any) -> Message:
        response.groups = [
            each
            for each in response.groups
            if access.may(_DESCRIBE, GROUP, each.group_id, told=False)
        ]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def describe_groups(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    """DescribeGroups and ConsumerGroupDescribe: groups, and what may be done to them."""
    message = request.message
    field = "groups" if hasattr(message, "groups") else "group_ids"
    asked: list[str] = getattr(message, field)
    allowed, refused = divided(asked, lambda name: access.may(_DESCRIBE, GROUP, name))
    setattr(message, field, allowed)

    def finish(response: Any) -> Message:
        for each in response.groups:
            if each.authorized_operations != NOT_ASKED:
                each.authorized_operations = access.operations(GROUP, each.group_id)
            if field == "group_ids" and not _may_see_topics(access, each):
                each.error_code = _NO_TOPIC
                each.error_message = _UNSEEN_TOPICS
                each.members = []
        kind = _described_class(response)
        response.groups = [
            *response.groups,
            *(kind(group_id=name, error_code=_NO_GROUP, error_message=None) for name in refused),
        ]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def _described_class(response: Any) -> Any:
    import sys

    return sys.modules[type(response).__module__].DescribedGroup


def _may_see_topics(access: Access, group: Any) -> bool:
    names: set[str] = set()
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            names.update(each.topic_name for each in assignment.topic_partitions)
    return all(access.may(_DESCRIBE, TOPIC, name, told=False) for name in names)


def consumer_group_heartbeat(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_READ, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    for name in message.subscribed_topic_names or ():
        if not access.may(_DESCRIBE, TOPIC, name):
            return failure(request, _NO_TOPIC)
    return proceed(request)


def offset_commit(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_READ, GROUP, message.group_id):
        return OffsetCommitResponse(topics=_not_committed(message.topics, _NO_GROUP))
    message.topics, refused = _sorted_out(access, request, message.topics, _READ)
    if refused and not message.topics:
        return OffsetCommitResponse(topics=_not_committed(refused, _NO_TOPIC))

    def finish(response: Any) -> Message:
        response.topics = [*response.topics, *_not_committed(refused, _NO_TOPIC)]
        answer: Message = response
        return answer

    return then(proceed(request), finish) if refused else proceed(request)


def _not_committed(topics: Any, code: ErrorCode) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=each.name,
            topic_id=each.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                for one in each.partitions
            ],
        )
        for each in topics
    ]


def offset_delete(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(AclOperation.DELETE, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    message.topics, refused = _sorted_out(access, request, message.topics, _READ)

    def finish(response: Any) -> Message:
        response.topics = [
            *response.topics,
            *(
                OffsetDeleteResponseTopic(
                    name=each.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=one.partition_index, error_code=_NO_TOPIC
                        )
                        for one in each.partitions
                    ],
                )
                for each in refused
            ),
        ]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def offset_fetch(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    if request.version < _FIRST_GROUPS:
        return _offset_fetch_of_one(access, request, proceed)
    message = request.message
    groups, refused_groups = [], []
    refused_topics: dict[str, list[Any]] = {}
    for each in message.groups:
        if not access.may(_DESCRIBE, GROUP, each.group_id):
            refused_groups.append(
                OffsetFetchResponseGroup(group_id=each.group_id, topics=[], error_code=_NO_GROUP)
            )
            continue
        groups.append(each)
        if each.topics is not None:
            each.topics, refused = _sorted_out(access, request, each.topics, _DESCRIBE)
            refused_topics[each.group_id] = refused
    message.groups = groups

    def finish(response: Any) -> Message:
        for each in response.groups:
            refused = refused_topics.get(each.group_id)
            if refused is None:
                each.topics = _seen(access, request, each.topics)
            elif not each.error_code:
                each.topics = [*each.topics, *(_not_fetched(one) for one in refused)]
        response.groups = [*response.groups, *refused_groups]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def _offset_fetch_of_one(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    if not access.may(_DESCRIBE, GROUP, message.group_id):
        if request.version >= _FIRST_ERROR_OF_ALL:
            return OffsetFetchResponse(error_code=_NO_GROUP)
        return OffsetFetchResponse(
            topics=[_not_fetched_of_one(each, _NO_GROUP) for each in message.topics or ()]
        )
    refused: list[Any] | None = None
    if message.topics is not None:
        message.topics, refused = _sorted_out(access, request, message.topics, _DESCRIBE)

    def finish(response: Any) -> Message:
        if refused is None:
            response.topics = _seen(access, request, response.topics)
        else:
            response.topics = [
                *response.topics,
                *(_not_fetched_of_one(each, _NO_TOPIC) for each in refused),
            ]
        answer: Message = response
        return answer

    return then(proceed(request), finish)


def _seen(access: Access, request: Request[Any], topics: Any) -> list[Any]:
    seen = []
    for each in topics:
        name = topic_name(request, each)
        if name is not None and access.may(_DESCRIBE, TOPIC, name, told=False):
            seen.append(each)
    return seen


def _not_fetched(each: Any) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=each.name,
        topic_id=each.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=_NO_TOPIC,
            )
            for index in each.partition_indexes
        ],
    )


def _not_fetched_of_one(each: Any, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=each.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            )
            for index in each.partition_indexes
        ],
    )
