"""AlterConfigs: replace all settings of topics and brokers. IncrementalAlterConfigs does it better;
this one is for older clients.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, full_change
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.failures import error_message
from ottla.server.turns import Steps


@handles(AlterConfigsRequest, versions=(0, 2), by_controller=True)
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    response = AlterConfigsResponse()
    changed = change_configs(
        request.broker,
        request.message.resources,
        _altered,
        incremental=False,
        validate_only=request.message.validate_only,
    )
    async for results in changed:
        for each in results:
            response.responses.append(
                AlterConfigsResourceResponse(
                    error_code=ErrorCode.NONE if each.error is None else each.error.code,
                    error_message=error_message(each.error),
                    resource_type=each.resource_type,
                    resource_name=each.name,
                )
            )
    return response


def _altered(each: AlterConfigsResource) -> Steps[AlteredResource]:
    entries: list[tuple[str, str | None]] = []
    for entry in each.configs:
        entries.append((entry.name, entry.value))
        yield
    return full_change(each.resource_type, each.resource_name, entries)
