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
from ottla.server.security.guards.tools import Proceed, adding, on_each, then

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_DESCRIBE, _CREATE = AclOperation.DESCRIBE, AclOperation.CREATE
_FIRST_DELETED_BY_ID = 6


def metadata(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    """Topics that may not be described are not confirmed to exist, and left out of a list of all."""
    message, image = request.message, request.broker.image
    of_all = message.topics is None or (request.version == 0 and not message.topics)
    refused: list[Any] = []
    if not of_all:
        allowed = []
        for each in message.topics:
            by_id = each.topic_id != ZERO_UUID
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
        message.topics = allowed

    def finish(response: Any) -> Message:
        topics = response.topics
        if of_all:
            topics = [
                each for each in topics if access.may(_DESCRIBE, TOPIC, each.name, told=False)
            ]
        for each in topics:
            if each.topic_authorized_operations != NOT_ASKED and each.name is not None:
                each.topic_authorized_operations = access.operations(TOPIC, each.name)
        response.topics = [*topics, *refused]
        _fill_cluster_operations(access, response)
        message: Message = response
        return message

    if refused and not message.topics and request.version == 0:
        # To the handler an empty list would mean all topics.
        message.topics = []
        message.allow_auto_topic_creation = False
        return then(proceed(request), lambda response: _only(response, refused))
    return then(proceed(request), finish)


def _only(response: Any, topics: list[Any]) -> Message:
    response.topics = topics
    message: Message = response
    return message


def _may_see(access: Access, request: Request[Any], name: str) -> bool:
    """Whether a topic may be described, and made if it is not there and is to be."""
    if not access.may(_DESCRIBE, TOPIC, name):
        return False
    broker = request.broker
    makes = request.message.allow_auto_topic_creation and broker.config.auto_create_topics_enable
    if not makes or name in broker.image.topics:
        return True
    return access.cluster(_CREATE, told=False) or access.may(_CREATE, TOPIC, name)


def _fill_cluster_operations(access: Access, response: Any) -> None:
    if response.cluster_authorized_operations != NOT_ASKED:
        may = access.cluster(_DESCRIBE, told=False)
        response.cluster_authorized_operations = access.operations(CLUSTER) if may else 0


def describe_cluster(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    def finish(response: Any) -> Message:
        _fill_cluster_operations(access, response)
        message: Message = response
        return message

    return then(proceed(request), finish)


def describe_topic_partitions(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    of_all = not message.topics
    refused = []
    if not of_all:
        allowed = []
        for each in message.topics:
            if access.may(_DESCRIBE, TOPIC, each.name):
                allowed.append(each)
            else:
                refused.append(
                    DescribeTopicPartitionsResponseTopic(error_code=REFUSED, name=each.name)
                )
        message.topics = allowed

    def finish(response: Any) -> Message:
        topics = response.topics
        if of_all:
            topics = [
                each for each in topics if access.may(_DESCRIBE, TOPIC, each.name, told=False)
            ]
            _move_cursor(access, request, response)
        elif not message.topics:
            topics = []  # an empty list would have meant all topics
            response.next_cursor = None
        for each in topics:
            if each.topic_authorized_operations != NOT_ASKED:
                each.topic_authorized_operations = access.operations(TOPIC, each.name)
        response.topics = [*topics, *refused]
        message_: Message = response
        return message_

    return then(proceed(request), finish)


def _move_cursor(access: Access, request: Request[Any], response: Any) -> None:
    """The next page begins with a topic that the client may see: the names of others are not told."""
    cursor = response.next_cursor
    if cursor is None or access.may(_DESCRIBE, TOPIC, cursor.topic_name, told=False):
        return
    names = sorted(name for name in request.broker.image.topics if name > cursor.topic_name)
    following = next(
        (name for name in names if access.may(_DESCRIBE, TOPIC, name, told=False)), None
    )
    response.next_cursor = (
        None if following is None else CursorResponse(topic_name=following, partition_index=0)
    )


def create_topics(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message = request.message
    refused: list[Any] = []
    if not access.cluster(_CREATE, told=False):
        allowed = []
        for each in message.topics:
            if access.may(_CREATE, TOPIC, each.name):
                allowed.append(each)
            else:
                refused.append(
                    CreatableTopicResult(
                        name=each.name, error_code=REFUSED, error_message="Authorization failed."
                    )
                )
        message.topics = allowed

    def finish(response: Any) -> Message:
        for each in response.topics:
            if not each.error_code and not access.may(
                AclOperation.DESCRIBE_CONFIGS, TOPIC, each.name, told=False
            ):
                each.topic_config_error_code = REFUSED
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        response.topics = [*response.topics, *refused]
        message: Message = response
        return message

    return then(proceed(request), finish)


def delete_topics(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    message, image = request.message, request.broker.image
    refused = []
    if request.version < _FIRST_DELETED_BY_ID:
        names = []
        for name in message.topic_names:
            if access.may(AclOperation.DELETE, TOPIC, name):
                names.append(name)
            else:
                refused.append(DeletableTopicResult(name=name, error_code=REFUSED))
        message.topic_names = names
    else:
        allowed = []
        for each in message.topics:
            topic = image.topics_by_id.get(each.topic_id)
            name = each.name if topic is None else topic.name
            if name is None or access.may(AclOperation.DELETE, TOPIC, name):
                allowed.append(each)
                continue
            known = each.name is not None or access.may(_DESCRIBE, TOPIC, name, told=False)
            refused.append(
                DeletableTopicResult(
                    name=name if known else None,
                    topic_id=each.topic_id,
                    error_code=REFUSED,
                    error_message=None,
                )
            )
        message.topics = allowed
    return then(proceed(request), adding("responses", refused))


def _refused_epochs(each: Any, code: ErrorCode) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=each.topic,
        partitions=[
            EpochEndOffset(error_code=code, partition=one.partition, leader_epoch=-1, end_offset=-1)
            for one in each.partitions
        ],
    )


_epochs_of_topics = on_each(
    _DESCRIBE, TOPIC, "topics", "topics", _refused_epochs, lambda each: str(each.topic)
)


def offset_for_leader_epoch(access: Access, request: Request[Any], proceed: Proceed) -> Answer:
    # Replicas may; others need the topic's permission.
    if access.cluster(AclOperation.CLUSTER_ACTION, told=False):
        return proceed(request)
    return _epochs_of_topics(access, request, proceed)
