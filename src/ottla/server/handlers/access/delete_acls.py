"""DeleteAcls: deletes what each filter takes, and answers with it; the controller does it.

- Without an authorizer: SECURITY_DISABLED for each filter.

Versions: v1 pattern types; v2 flexible; v3 as v2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.handlers.access.create_acls import PORTION
from ottla.server.operations import NO_AUTHORIZER
from ottla.server.turns import Steps, Turns, in_turns

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.cluster.security.acls import Acl, AclFilter


@handles(DeleteAclsRequest, versions=(0, 3), by_controller=True)
async def delete_acls(request: Request[DeleteAclsRequest]) -> DeleteAclsResponse:
    from ottla.server.security.acl_filters import read_filter  # not at the start of a broker

    turns = Turns()
    results: list[DeleteAclsFilterResult] = []
    filters: list[AclFilter] = []
    taking: list[DeleteAclsFilterResult] = []
    for each in request.message.filters:
        await turns.pause()
        result = DeleteAclsFilterResult(error_message=None, matching_acls=[])
        results.append(result)
        if request.broker.authorizer is None:
            result.error_code = ErrorCode.SECURITY_DISABLED
            result.error_message = NO_AUTHORIZER
            continue
        wanted = read_filter(each, request.version)
        if wanted is None:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "The filter has unknown elements."
        else:
            filters.append(wanted)
            taking.append(result)
    matching = await in_turns(_matching(request.broker.image, filters, taking))
    try:
        for first in range(0, len(matching), PORTION):
            await request.broker.controller.delete_acls(matching[first : first + PORTION])
    except ProtocolError as error:
        # Some may be gone. Whoever asks again is told which were left.
        for result in taking:
            result.error_code, result.error_message = error.code, error_message(error)
            result.matching_acls = []
            await turns.pause()
    return DeleteAclsResponse(filter_results=results)


def _matching(
    image: ClusterImage, filters: list[AclFilter], results: list[DeleteAclsFilterResult]
) -> Steps[list[Acl]]:
    """Put what each filter takes into its result; the entries that match any of them, each once."""
    from ottla.server.security.acl_filters import acls_of

    matching: list[Acl] = []
    for acl in acls_of(image) if filters else ():
        found = None
        for wanted, result in zip(filters, results, strict=True):
            if wanted.takes(acl):
                if found is None:
                    found = _described(acl)
                    matching.append(acl)
                result.matching_acls.append(found)
            yield
    return matching


def _described(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
