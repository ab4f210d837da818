"""Guards of APIs about topics and their partitions."""

from __future__ import annotations

from typing import Any

from ottla.protocol.acls import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID, Message
from ottla.protocol.messages.create_topics import CreatableTopicResult
from ottla.protocol.messages.delete_topics import DeletableTopicResult
from ottla.protocol.messages.describe_topic_partitions import (
    CursorResponse,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderTopicResult,
)
from ottla.server.api import Answer, Request
from ottla.server.operations import NOT_ASKED
from ottla.server.security.access import CLUSTER, TOPIC, Access
from ottla.server.security.guards.tools import (
    Guarded,
    Proceed,
    adding,
    divided,
    listed,
    on_each,
    then,
)
from ottla.server.turns import Steps, in_order

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_DESCRIBE, _CREATE = AclOperation.DESCRIBE, AclOperation.CREATE
_FIRST_DELETED_BY_ID = 6
# The handler refuses ids in versions before.
_FIRST_DESCRIBED_BY_ID = 12


def metadata(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    """Topics that may not be described are not confirmed to exist, and left out of a list of all."""
    message, image = request.message, request.broker.image
    of_all = message.topics is None or (request.version == 0 and not message.topics)
    refused: list[Any] = []
    if not of_all:
        allowed = []
        for each in message.topics:
            by_id = each.topic_id != ZERO_UUID and request.version >= _FIRST_DESCRIBED_BY_ID
            topic = image.topics_by_id.get(each.topic_id) if by_id else None
            name = each.name if topic is None else topic.name
            if name is None or _may_see(access, request, name):
                allowed.append(each)
            else:
                refused.append(
                    MetadataResponseTopic(
                        error_code=REFUSED,
                        name=None if by_id else name,
                        topic_id=each.topic_id,
                    )
                )
            yield
        message.topics = allowed

    def finish(response: Any) -> Steps[Message]:
        if only_refused:
            response.topics = []
        response.topics = yield from _seen(access, response.topics, left_out=of_all)
        _fill_cluster_operations(access, response)
        return (yield from adding("topics", refused)(response))

    # To the handler an empty list would mean all topics.
    only_refused = bool(refused) and not message.topics and request.version == 0
    if only_refused:
        message.allow_auto_topic_creation = False
    return (yield from then(proceed(request), finish))


def _seen(access: Access, topics: list[Any], *, left_out: bool) -> Steps[list[Any]]:
    """The topics of an answer, with what may be done to them. If others are to be left out, only those
    that may be described."""
    if left_out:
        topics, _ = yield from divided(
            topics, lambda each: access.may(_DESCRIBE, TOPIC, each.name, logged=False)
        )
    for each in topics:
        if each.topic_authorized_operations != NOT_ASKED and each.name is not None:
            each.topic_authorized_operations = access.operations(TOPIC, each.name)
        yield
    return topics


def _may_see(access: Access, request: Request[Any], name: str) -> bool:
    """Whether a topic may be described, and made if it is not there and is to be."""
    if not access.may(_DESCRIBE, TOPIC, name):
        return False
    broker = request.broker
    makes = request.message.allow_auto_topic_creation and broker.config.auto_create_topics_enable
    if not makes or name in broker.image.topics:
        return True
    return access.cluster(_CREATE, logged=False) or access.may(_CREATE, TOPIC, name)


def _fill_cluster_operations(access: Access, response: Any) -> None:
    if response.cluster_authorized_operations != NOT_ASKED:
        may = access.cluster(_DESCRIBE, logged=False)
        response.cluster_authorized_operations = access.operations(CLUSTER) if may else 0


def describe_cluster(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    def finish(response: Any) -> Steps[Message]:
        _fill_cluster_operations(access, response)
        yield
        message: Message = response
        return message

    return then(proceed(request), finish)


def describe_topic_partitions(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    of_all = not message.topics
    refused: list[Any] = []
    if not of_all:
        message.topics, not_allowed = yield from divided(
            message.topics, lambda each: access.may(_DESCRIBE, TOPIC, each.name)
        )
        refused = yield from listed(
            not_allowed,
            lambda each: DescribeTopicPartitionsResponseTopic(error_code=REFUSED, name=each.name),
        )

    def finish(response: Any) -> Steps[Message]:
        if of_all:
            yield from _move_cursor(access, request, response)
        elif not message.topics:
            response.topics = []  # an empty list would have meant all topics
            response.next_cursor = None
        response.topics = yield from _seen(access, response.topics, left_out=of_all)
        return (yield from adding("topics", refused)(response))

    return (yield from then(proceed(request), finish))


def _move_cursor(access: Access, request: Request[Any], response: Any) -> Steps[None]:
    """The next page begins with a topic that the client may see: the names of others are not told."""
    cursor = response.next_cursor
    if cursor is None or access.may(_DESCRIBE, TOPIC, cursor.topic_name, logged=False):
        return
    response.next_cursor = None
    for name in (yield from in_order(request.broker.image.topics)):
        yield
        if name > cursor.topic_name and access.may(_DESCRIBE, TOPIC, name, logged=False):
            response.next_cursor = CursorResponse(topic_name=name, partition_index=0)
            return


def create_topics(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message = request.message
    refused: list[Any] = []
    if not access.cluster(_CREATE, logged=False):
        message.topics, not_allowed = yield from divided(
            message.topics, lambda each: access.may(_CREATE, TOPIC, each.name)
        )
        refused = yield from listed(
            not_allowed,
            lambda each: CreatableTopicResult(
                name=each.name, error_code=REFUSED, error_message="Authorization failed."
            ),
        )

    def finish(response: Any) -> Steps[Message]:
        for each in response.topics:
            if not each.error_code and not access.may(
                AclOperation.DESCRIBE_CONFIGS, TOPIC, each.name, logged=False
            ):
                each.topic_config_error_code = REFUSED
                each.num_partitions = each.replication_factor = -1
                each.configs = []
            yield
        return (yield from adding("topics", refused)(response))

    return (yield from then(proceed(request), finish))


def delete_topics(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
    message, image = request.message, request.broker.image
    refused = []
    if request.version < _FIRST_DELETED_BY_ID:
        message.topic_names, not_allowed = yield from divided(
            message.topic_names, lambda name: access.may(AclOperation.DELETE, TOPIC, name)
        )
        refused = yield from listed(
            not_allowed, lambda name: DeletableTopicResult(name=name, error_code=REFUSED)
        )
    else:
        allowed = []
        for each in message.topics:
            yield
            topic = image.topics_by_id.get(each.topic_id)
            name = each.name if topic is None else topic.name
            if name is None or access.may(AclOperation.DELETE, TOPIC, name):
                allowed.append(each)
                continue
            known = each.name is not None or access.may(_DESCRIBE, TOPIC, name, logged=False)
            refused.append(
                DeletableTopicResult(
                    name=name if known else None,
                    topic_id=each.topic_id,
                    error_code=REFUSED,
                    error_message=None,
                )
            )
        message.topics = allowed
    return (yield from then(proceed(request), adding("responses", refused)))


def _refused_epochs(each: Any, code: ErrorCode) -> Steps[OffsetForLeaderTopicResult]:
    partitions = yield from listed(
        each.partitions,
        lambda one: EpochEndOffset(
            error_code=code, partition=one.partition, leader_epoch=-1, end_offset=-1
        ),
    )
    return OffsetForLeaderTopicResult(topic=each.topic, partitions=partitions)


_epochs_of_topics = on_each(
    _DESCRIBE, TOPIC, "topics", "topics", _refused_epochs, lambda each: str(each.topic)
)


def offset_for_leader_epoch(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    # Replicas may; others need the topic's permission.
    if access.cluster(AclOperation.CLUSTER_ACTION, logged=False):
        return proceed(request)
    return _epochs_of_topics(access, request, proceed)
