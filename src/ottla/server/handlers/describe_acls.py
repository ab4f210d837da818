"""DescribeAcls: there is no authorizer, so there is nothing to describe: SECURITY_DISABLED.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.server.api import Request, handles
from ottla.server.operations import NO_AUTHORIZER


@handles(DescribeAclsRequest, versions=(0, 3))
def describe_acls(_: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
