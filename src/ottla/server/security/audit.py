"""The audit log of administrative operations: who asked for what, on the logger `ottla.audit`.

Denials are in it too (access.py). Names are logged, never values: those may be secret. On a broker that
knows nobody (no authorizer, and clients that prove nothing) there is nothing to be logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from ottla.protocol.apis import ApiKey
from ottla.server.security.access import shown
from ottla.server.security.names import ANONYMOUS

if TYPE_CHECKING:
    from ottla.server.api import Answer, Request

audit = logging.getLogger("ottla.audit")

_MOST_NAMES: Final = 20


def _names(field: str, name: str = "name") -> Callable[[Any], Iterator[object]]:
    return lambda message: (getattr(each, name) for each in getattr(message, field) or ())


def _deleted_topics(message: Any) -> Iterator[object]:
    for each in message.topics:
        yield each.name or each.topic_id.hex()
    yield from message.topic_names


def _users(message: Any) -> Iterator[object]:
    return (each.name for each in chain(message.deletions, message.upsertions))


def _configs(message: Any) -> Iterator[object]:
    for each in message.resources:
        names = ",".join(one.name for one in islice(each.configs, _MOST_NAMES))
        yield f"{each.resource_type}:{each.resource_name}[{names}]"


def _created_acls(message: Any) -> Iterator[object]:
    for each in message.creations:
        permission = "deny" if each.permission_type == 2 else "allow"
        yield (
            f"{each.principal} {permission} {each.operation} "
            f"{each.resource_type}:{each.resource_name}"
        )


def _quotas(message: Any) -> Iterator[object]:
    for each in message.entries:
        yield {one.entity_type: one.entity_name for one in each.entity}


def _elections(message: Any) -> Iterator[object]:
    if message.topic_partitions is None:
        return iter(["all partitions"])
    return (each.topic for each in message.topic_partitions)


def _moved(message: Any) -> Iterator[object]:
    return (f"{each.name} to {folder.path}" for folder in message.dirs for each in folder.topics)


# What is named in a request, one after the other: of a long one only the first are looked at.
ADMINISTRATIVE: Final[Mapping[ApiKey, Callable[[Any], Iterable[object]]]] = {
    ApiKey.CREATE_TOPICS: _names("topics"),
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.DELETE_RECORDS: _names("topics"),
    ApiKey.DELETE_RECORDS_AT: _names("topics"),
    ApiKey.CREATE_PARTITIONS: _names("topics"),
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _names("filters", "resource_name_filter"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _names("topics"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moved,
    ApiKey.UNREGISTER_BROKER: lambda message: [message.broker_id],
    ApiKey.UPDATE_FEATURES: _names("feature_updates", "feature"),
    ApiKey.DELETE_GROUPS: lambda message: message.groups_names,
    ApiKey.OFFSET_DELETE: lambda message: [message.group_id],
}


def audited(
    key: ApiKey, function: Callable[[Request[Any]], Answer], *, always: bool
) -> Callable[[Request[Any]], Answer]:
    """The handler of an administrative API, with a line for each request. `always`: also of clients
    that nobody knows."""
    about = ADMINISTRATIVE[key]

    def handle(request: Request[Any]) -> Answer:
        connection = request.connection
        if always or connection.principal != ANONYMOUS:
            names = iter(about(request.message))
            about_what = ", ".join(shown(each) for each in islice(names, _MOST_NAMES))
            more = " and more" if next(names, None) is not None else ""
            # Of a request whose names were all refused nothing is left, and the denials are logged:
            # these are limited, so that nobody without rights fills the log.
            if about_what:
                audit.info(
                    "administrative: api=%s principal=%s peer=%s client=%s about=%s%s",
                    key.name, connection.principal, connection.address,
                    shown(connection.client_id), about_what, more,
                )  # fmt: skip
        return function(request)

    return handle
