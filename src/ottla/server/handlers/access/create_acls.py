"""CreateAcls: entries of access control, each with a result of its own; the controller adds them.

- What is there already stays, without an error.
- Without an authorizer: SECURITY_DISABLED for each.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.acls import AclPattern
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.operations import NO_AUTHORIZER
from ottla.server.turns import Turns

_FIRST_PATTERNS = 1
# Entries that the controller gets at once: what it decides, it decides in one go.
PORTION = 100


@handles(CreateAclsRequest, versions=(0, 3), by_controller=True)
async def create_acls(request: Request[CreateAclsRequest]) -> CreateAclsResponse:
    from ottla.cluster.security.acls import Acl  # not at the start of a broker

    turns = Turns()
    wanted = []
    response = CreateAclsResponse()
    for each in request.message.creations:
        await turns.pause()
        if request.broker.authorizer is None:
            response.results.append(
                AclCreationResult(
                    error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
                )
            )
            continue
        pattern = each.resource_pattern_type
        if request.version < _FIRST_PATTERNS:
            pattern = AclPattern.LITERAL
        wanted.append(
            Acl(
                each.resource_type,
                each.resource_name,
                pattern,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
        )
    for first in range(0, len(wanted), PORTION):
        some = wanted[first : first + PORTION]
        errors: Sequence[ProtocolError | None]
        try:
            errors = await request.broker.controller.create_acls(some)
        except ProtocolError as failure:
            errors = [failure.with_traceback(None)] * len(some)
        for error in errors:
            response.results.append(
                AclCreationResult(
                    error_code=0 if error is None else error.code,
                    error_message=None if error is None else error_message(error),
                )
            )
        await turns.pause()
    return response
