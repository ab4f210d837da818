"""AlterConfigs: replace all settings of topics and brokers. IncrementalAlterConfigs does it better;
this one is for older clients.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, full_change
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.failures import error_message


@handles(AlterConfigsRequest, versions=(0, 2), by_controller=True)
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    wanted: list[AlteredResource] = [
        full_change(
            each.resource_type,
            each.resource_name,
            [(entry.name, entry.value) for entry in each.configs],
        )
        for each in request.message.resources
    ]
    results = await change_configs(
        request.broker, wanted, incremental=False, validate_only=request.message.validate_only
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
                resource_type=each.resource_type,
                resource_name=each.name,
            )
            for each in results
        ]
    )
