"""Requests of APIs that Kafka has and this broker does not serve.

They are answered with UNSUPPORTED_VERSION in the API's own response: as the error of the whole where the
response has one, else as the error of each thing that the request names. (Apache Kafka closes the
connection when an API is not enabled, and its clients try again until their time is over.)
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import parse_request_header
from ottla.protocol.message import Buffer, MalformedMessage, Message, Part, UnencodableMessage
from ottla.protocol.schema import slots_of

# Each entry takes the loop's time: larger requests are not read for their entries.
LARGEST_READ: Final = 1 << 14

_ERROR: Final = ErrorCode.UNSUPPORTED_VERSION


def unsupported_version(key: int, version: int, frame: Buffer) -> Message | None:
    """UNSUPPORTED_VERSION in the API's own response to a request (a frame without its length); None if
    nobody knows the API or the version, or if its entries are to be refused and cannot be read."""
    found = messages_of(key, version)
    if found is None:
        return None
    request_type, response_type = found
    try:
        if "error_code" in response_type.declared:
            response = response_type(error_code=_ERROR)
        else:
            refuse = _REFUSALS.get(key)
            if refuse is None or len(frame) > LARGEST_READ:
                return None
            body = parse_request_header(frame)[-1]
            response = refuse(request_type.decode(frame, body, version)[0], response_type)
        response.encode(version)
    except (MalformedMessage, UnencodableMessage):
        return None  # the error may have come with a later version
    return response


def messages_of(key: int, version: int) -> tuple[type[Message], type[Message]] | None:
    """The request and the response of an API, if it has the version."""
    try:
        module = import_module(f"ottla.protocol.messages.{ApiKey(key).name.lower()}")
    except (ValueError, ModuleNotFoundError):
        return None
    found: dict[str, type[Message]] = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message:
            lowest, highest = kind.versions
            ending = "Request" if kind.__name__.endswith("Request") else "Response"
            if lowest <= version <= highest:
                found[ending] = kind
    return (found["Request"], found["Response"]) if len(found) == 2 else None


def _entry_type(kind: type[Part], array: str) -> type[Part]:
    """What an array of a message holds."""
    element = next(slot.kind.element for slot in slots_of(kind) if slot.name == array)
    assert element is not None
    assert element.part is not None
    return element.part


def _client_quotas(request: Any, response: type[Message]) -> Message:
    entry = _entry_type(response, "entries")
    entity = _entry_type(entry, "entity")
    return response(
        entries=[
            entry(
                error_code=_ERROR,
                error_message=None,
                entity=[
                    entity(entity_type=one.entity_type, entity_name=one.entity_name)
                    for one in each.entity
                ],
            )
            for each in request.entries
        ]
    )


def _replica_log_dirs(request: Any, response: type[Message]) -> Message:
    topic_type = _entry_type(response, "results")
    partition_type = _entry_type(topic_type, "partitions")
    return response(
        results=[
            topic_type(
                topic_name=topic.name,
                partitions=[
                    partition_type(partition_index=index, error_code=_ERROR)
                    for index in topic.partitions
                ],
            )
            for folder in request.dirs
            for topic in folder.topics
        ]
    )


def _scram_credentials(request: Any, response: type[Message]) -> Message:
    result = _entry_type(response, "results")
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return response(
        results=[result(user=user, error_code=_ERROR, error_message=None) for user in users]
    )


def _share_groups(request: Any, response: type[Message]) -> Message:
    group = _entry_type(response, "groups")
    return response(groups=[group(group_id=each, error_code=_ERROR) for each in request.group_ids])


def _share_group_offsets(request: Any, response: type[Message]) -> Message:
    group = _entry_type(response, "groups")
    return response(
        groups=[group(group_id=each.group_id, error_code=_ERROR) for each in request.groups]
    )


def _share_group_state(request: Any, response: type[Message]) -> Message:
    topic_type = _entry_type(response, "results")
    partition_type = _entry_type(topic_type, "partitions")
    return response(
        results=[
            topic_type(
                topic_id=topic.topic_id,
                partitions=[
                    partition_type(partition=each.partition, error_code=_ERROR)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# Of the responses that have no error of the whole.
_REFUSALS: Final[dict[int, Callable[[Any, type[Message]], Message]]] = {
    ApiKey.ALTER_CLIENT_QUOTAS: _client_quotas,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _replica_log_dirs,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _scram_credentials,
    ApiKey.SHARE_GROUP_DESCRIBE: _share_groups,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _share_group_offsets,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE: _share_group_state,
    ApiKey.WRITE_SHARE_GROUP_STATE: _share_group_state,
    ApiKey.DELETE_SHARE_GROUP_STATE: _share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _share_group_state,
}
