"""FindCoordinator: which broker looks after a group or a transactional id.

There are no coordinators yet: the answer names none, with a message that says so. It is not one of
the retriable errors, or clients would ask for ever.

Versions:
  v1  key type, throttle time, message
  v3  flexible
  v4  several keys at once
  v5  TRANSACTION_ABORTABLE; v6 share groups (key type 2)
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.server.api import Request, handles

_KINDS = {0: "consumer groups", 1: "transactions", 2: "share groups"}


@handles(FindCoordinatorRequest, versions=(0, 6))
def find_coordinator(request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    message = request.message
    kind = _KINDS.get(message.key_type)
    code = ErrorCode.INVALID_REQUEST
    text = f"{kind} are not served yet" if kind else f"unknown key type {message.key_type}"
    if request.version < 4:
        return FindCoordinatorResponse(
            error_code=code, error_message=text, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
            for key in message.coordinator_keys
        ]
    )
