"""DeleteAcls: there is no authorizer that has any: SECURITY_DISABLED for each filter.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.operations import NO_AUTHORIZER
from ottla.server.turns import Steps


@handles(DeleteAclsRequest, versions=(0, 3))
def delete_acls(request: Request[DeleteAclsRequest]) -> Steps[Outcome]:
    response = DeleteAclsResponse()
    for _ in request.message.filters:
        response.filter_results.append(
            DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
            )
        )
        yield
    return response
