"""CreateAcls: there is no authorizer to keep them: SECURITY_DISABLED for each.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.operations import NO_AUTHORIZER
from ottla.server.turns import Steps


@handles(CreateAclsRequest, versions=(0, 3))
def create_acls(request: Request[CreateAclsRequest]) -> Steps[Outcome]:
    response = CreateAclsResponse()
    for _ in request.message.creations:
        response.results.append(
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        )
        yield
    return response
