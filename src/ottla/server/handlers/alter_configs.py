"""AlterConfigs: replace all settings of topics and brokers. IncrementalAlterConfigs does it better;
this one is for older clients.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, ConfigResult, full_change
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.failures import error_message
from ottla.server.turns import Steps, in_turns


@handles(AlterConfigsRequest, versions=(0, 2))
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    wanted = await in_turns(_wanted(request.message))
    results = await change_configs(
        request.broker, wanted, incremental=False, validate_only=request.message.validate_only
    )
    return await in_turns(_response(results))


def _wanted(message: AlterConfigsRequest) -> Steps[list[AlteredResource]]:
    wanted: list[AlteredResource] = []
    for each in message.resources:
        wanted.append(
            full_change(
                each.resource_type,
                each.resource_name,
                [(entry.name, entry.value) for entry in each.configs],
            )
        )
        yield
    return wanted


def _response(results: list[ConfigResult]) -> Steps[AlterConfigsResponse]:
    response = AlterConfigsResponse()
    for each in results:
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
                resource_type=each.resource_type,
                resource_name=each.name,
            )
        )
        yield
    return response
