"""FindCoordinator: which broker looks after a group or a transactional id.

- It is the leader of the partition of an internal topic, found by the hash of the key. The topic is
  made when the first client asks; the answer waits for it.

Versions:
  v1  key type (group or transaction), throttle time, message
  v3  flexible
  v4  several keys at once
  v5  TRANSACTION_ABORTABLE; v6 share groups (key type 2, refused: there are none yet)
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.server.api import Request, handles
from ottla.server.turns import Turns

_GROUP, _TRANSACTION = 0, 1
_KEYS_SINCE = 4


class _Found(NamedTuple):
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.NONE


@handles(FindCoordinatorRequest, versions=(0, 6))
async def find_coordinator(request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    message = request.message
    if request.version < _KEYS_SINCE:
        (found,) = await _find(request, [message.key])
        return FindCoordinatorResponse(
            error_message=found.error_code.message if found.error_code else "NONE",
            **found._asdict(),
        )
    found_all = await _find(request, message.coordinator_keys)
    response = FindCoordinatorResponse()
    turns = Turns()
    for key, found in zip(message.coordinator_keys, found_all, strict=True):
        await turns.pause()
        response.coordinators.append(
            Coordinator(
                key=key,
                error_message=found.error_code.message if found.error_code else "",
                **found._asdict(),
            )
        )
    return response


async def _find(request: Request[FindCoordinatorRequest], keys: list[str]) -> list[_Found]:
    broker = request.broker
    kind = request.message.key_type
    if kind not in (_GROUP, _TRANSACTION):
        return [_Found(error_code=ErrorCode.INVALID_REQUEST)] * len(keys)
    coordinators = broker.groups if kind == _GROUP else broker.transactions
    try:
        await broker.internal_topic(coordinators.topic)
    except ProtocolError as error:
        return [_Found(error_code=error.code)] * len(keys)
    nodes = {
        node.id: _Found(node.id, host, port)
        for node, host, port in broker.nodes_for(request.connection.listener.name)
    }
    found = []
    turns = Turns()
    for key in keys:
        await turns.pause()
        index = coordinators.partition_for(key)
        partition = None if index is None else broker.partitions.get(coordinators.topic, index)
        leader = None if partition is None else nodes.get(partition.leader)
        found.append(leader or _Found(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return found
