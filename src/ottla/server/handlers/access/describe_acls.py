"""DescribeAcls: the entries that a filter takes, by the resources they are about.

- Without an authorizer: SECURITY_DISABLED.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.operations import NO_AUTHORIZER
from ottla.server.turns import Steps

if TYPE_CHECKING:
    from ottla.cluster.security.acls import Acl


@handles(DescribeAclsRequest, versions=(0, 3))
def describe_acls(request: Request[DescribeAclsRequest]) -> Steps[Outcome]:
    broker = request.broker
    if broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    from ottla.server.security.acl_filters import acls_of, read_filter

    wanted = read_filter(request.message, request.version)
    if wanted is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="The filter has unknown elements."
        )
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in acls_of(broker.image):
        yield
        if wanted.takes(acl):
            _of_resource(resources, acl).acls.append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


def _of_resource(
    resources: dict[tuple[int, str, int], DescribeAclsResource], acl: Acl
) -> DescribeAclsResource:
    key = (acl.resource, acl.name, acl.pattern)
    if key not in resources:
        resources[key] = DescribeAclsResource(
            resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern, acls=[]
        )
    return resources[key]
