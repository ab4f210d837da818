"""The checks of Produce and Fetch, whose handlers read requests by themselves.

They ask here if there is an authorizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.protocol.acls import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.server.security.access import TOPIC, TRANSACTIONAL_ID, Access

if TYPE_CHECKING:
    from ottla.server.broker import Broker
    from ottla.server.network.connection import Connection


def refused_topics(
    broker: Broker,
    connection: Connection,
    transactional_id: str | None,
    topics: Iterable[tuple[bytes, Any]],
    by_id: bool,
) -> dict[bytes, ErrorCode]:
    """Of the topics of a Produce request, by their keys in it, those that the client may not write."""
    assert broker.authorizer is not None
    access = Access(broker.authorizer, connection)
    if transactional_id and not access.may(AclOperation.WRITE, TRANSACTIONAL_ID, transactional_id):
        return {key: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED for key, _ in topics}
    refused = {}
    for key, _ in topics:
        name = _name_of(broker, key) if by_id else key.decode()
        if name is not None and not access.may(AclOperation.WRITE, TOPIC, name):
            refused[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return refused


def may_fetch(broker: Broker, connection: Connection, replica: int, topic: str | bytes) -> bool:
    """Whether a reader may have the records of a topic; of one that is not known anybody may be told
    so. Replicas may have all."""
    if replica >= 0:
        return may_replicate(broker, connection)
    assert broker.authorizer is not None
    name = _name_of(broker, topic) if isinstance(topic, bytes) else topic
    return name is None or Access(broker.authorizer, connection).may(AclOperation.READ, TOPIC, name)


def may_replicate(broker: Broker, connection: Connection) -> bool:
    """Whether a client that calls itself a replica may fetch as one."""
    assert broker.authorizer is not None
    return Access(broker.authorizer, connection).cluster(AclOperation.CLUSTER_ACTION)


def _name_of(broker: Broker, topic_id: bytes) -> str | None:
    topic = broker.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name
