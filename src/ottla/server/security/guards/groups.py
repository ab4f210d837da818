"""Guards of APIs about groups and their offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

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
from ottla.server.security.guards.tools import (
    REFUSAL,
    Finish,
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

P = TypeVar("P")
T = TypeVar("T")

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


def _divided_topics(
    access: Access, request: Request[Any], topics: Any, operation: AclOperation
) -> Steps[tuple[list[Any], list[Any]]]:
    def may(each: Any) -> bool:
        name = topic_name(request, each)
        # Of an unknown id the handler says so.
        return name is None or access.may(operation, TOPIC, name)

    return divided(topics, may)


def find_coordinator(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    kind = TRANSACTIONAL_ID if message.key_type == 1 else GROUP
    code = REFUSAL[kind]
    if request.version < _FIRST_COORDINATOR_KEYS:
        if access.may(_DESCRIBE, kind, message.key):
            return (yield from passed_on(proceed(request)))
        return FindCoordinatorResponse(
            error_code=code, error_message=code.message, node_id=-1, host="", port=-1
        )
    message.coordinator_keys, not_allowed = yield from divided(
        message.coordinator_keys, lambda key: access.may(_DESCRIBE, kind, key)
    )
    refused = yield from listed(
        not_allowed,
        lambda key: Coordinator(
            key=key, error_code=code, error_message=code.message, node_id=-1, host="", port=-1
        ),
    )
    return (yield from then(proceed(request), adding("coordinators", refused)))


def list_groups(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    if access.cluster(_DESCRIBE, logged=False):
        return proceed(request)
    return then(
        proceed(request),
        keeping("groups", lambda each: access.may(_DESCRIBE, GROUP, each.group_id, logged=False)),
    )


def describe_groups(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    """DescribeGroups and ConsumerGroupDescribe: groups, and what may be done to them."""
    message = request.message
    field = "groups" if hasattr(message, "groups") else "group_ids"
    asked: list[str] = getattr(message, field)
    allowed, refused = yield from divided(asked, lambda name: access.may(_DESCRIBE, GROUP, name))
    setattr(message, field, allowed)

    def finish(response: Any) -> Steps[Message]:
        for each in response.groups:
            if each.authorized_operations != NOT_ASKED:
                each.authorized_operations = access.operations(GROUP, each.group_id)
            if field == "group_ids" and not (yield from _may_see_topics(access, each)):
                each.error_code = _NO_TOPIC
                each.error_message = _UNSEEN_TOPICS
                each.members = []
            yield
        kind = _described_class(response)
        refusals = yield from listed(
            refused, lambda name: kind(group_id=name, error_code=_NO_GROUP, error_message=None)
        )
        return (yield from adding("groups", refusals)(response))

    return (yield from then(proceed(request), finish))


def _described_class(response: Any) -> Any:
    import sys

    return sys.modules[type(response).__module__].DescribedGroup


def _may_see_topics(access: Access, group: Any) -> Steps[bool]:
    seen: set[str] = set()
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            for each in assignment.topic_partitions:
                if each.topic_name not in seen:
                    seen.add(each.topic_name)
                    if not access.may(_DESCRIBE, TOPIC, each.topic_name, logged=False):
                        return False
                yield
    return True


def consumer_group_heartbeat(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    if not access.may(_READ, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    for name in message.subscribed_topic_names or ():
        if not access.may(_DESCRIBE, TOPIC, name):
            return failure(request, _NO_TOPIC)
        yield
    return (yield from passed_on(proceed(request)))


def offset_commit(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    if not access.may(_READ, GROUP, message.group_id):
        refusals = yield from _not_committed(message.topics, _NO_GROUP)
        return OffsetCommitResponse(topics=refusals)
    message.topics, refused = yield from _divided_topics(access, request, message.topics, _READ)
    refuse = partial(_not_committed, code=_NO_TOPIC)
    return (
        yield from without_refused_topics(request, proceed, refused, refuse, OffsetCommitResponse)
    )


def _not_committed(topics: Any, code: ErrorCode) -> Steps[list[OffsetCommitResponseTopic]]:
    return refused_partitions(
        topics,
        code,
        OffsetCommitResponsePartition,
        lambda each, partitions: OffsetCommitResponseTopic(
            name=each.name, topic_id=each.topic_id, partitions=partitions
        ),
    )


def offset_delete(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    if not access.may(AclOperation.DELETE, GROUP, message.group_id):
        return failure(request, _NO_GROUP)
    message.topics, refused = yield from _divided_topics(access, request, message.topics, _READ)
    refusals = yield from refused_partitions(
        refused,
        _NO_TOPIC,
        OffsetDeleteResponsePartition,
        lambda each, partitions: OffsetDeleteResponseTopic(name=each.name, partitions=partitions),
    )
    return (yield from then(proceed(request), adding("topics", refusals)))


def offset_fetch(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    if request.version < _FIRST_GROUPS:
        return (yield from _offset_fetch_of_one(access, request, proceed))
    message = request.message
    groups, refused_groups = [], []
    # What is added to the topics of a group; None: it was asked for all of them.
    more_of: dict[str, list[Any] | None] = {}
    for each in message.groups:
        yield
        if not access.may(_DESCRIBE, GROUP, each.group_id):
            refused_groups.append(
                OffsetFetchResponseGroup(group_id=each.group_id, topics=[], error_code=_NO_GROUP)
            )
            continue
        groups.append(each)
        more_of[each.group_id] = None
        if each.topics is not None:
            each.topics, refused = yield from _divided_topics(
                access, request, each.topics, _DESCRIBE
            )
            more_of[each.group_id] = yield from _not_fetched(refused)
    message.groups = groups

    def finish(response: Any) -> Steps[Message]:
        for each in response.groups:
            more = more_of.get(each.group_id)
            if more is None:
                yield from _keeping_seen(access, request)(each)
            elif not each.error_code:
                each.topics = [*each.topics, *more]
            yield
        return (yield from adding("groups", refused_groups)(response))

    return (yield from then(proceed(request), finish))


def _offset_fetch_of_one(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    if not access.may(_DESCRIBE, GROUP, message.group_id):
        if request.version >= _FIRST_ERROR_OF_ALL:
            return OffsetFetchResponse(error_code=_NO_GROUP)
        refusals = yield from _not_fetched_of_one(message.topics or (), _NO_GROUP)
        return OffsetFetchResponse(topics=refusals)
    if message.topics is None:
        return (yield from then(proceed(request), _keeping_seen(access, request)))
    message.topics, refused = yield from _divided_topics(access, request, message.topics, _DESCRIBE)
    refusals = yield from _not_fetched_of_one(refused, _NO_TOPIC)
    return (yield from then(proceed(request), adding("topics", refusals)))


def _keeping_seen(access: Access, request: Request[Any]) -> Finish:
    """Leaves the topics that the client may see."""

    def may(each: Any) -> bool:
        name = topic_name(request, each)
        return name is not None and access.may(_DESCRIBE, TOPIC, name, logged=False)

    return keeping("topics", may)


def _not_fetched(topics: Any) -> Steps[list[OffsetFetchResponseTopics]]:
    return _refused_fetches(
        topics,
        _NO_TOPIC,
        OffsetFetchResponsePartitions,
        lambda each, partitions: OffsetFetchResponseTopics(
            name=each.name, topic_id=each.topic_id, partitions=partitions
        ),
    )


def _not_fetched_of_one(topics: Any, code: ErrorCode) -> Steps[list[OffsetFetchResponseTopic]]:
    return _refused_fetches(
        topics,
        code,
        OffsetFetchResponsePartition,
        lambda each, partitions: OffsetFetchResponseTopic(name=each.name, partitions=partitions),
    )


def _refused_fetches(
    topics: Any,
    code: ErrorCode,
    partition_of: Callable[..., P],
    topic_of: Callable[[Any, list[P]], T],
) -> Steps[list[T]]:
    refusals = []
    for each in topics:
        partitions = yield from listed(
            each.partition_indexes,
            lambda index: partition_of(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            ),
        )
        refusals.append(topic_of(each, partitions))
        yield
    return refusals
