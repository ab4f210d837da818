"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings.

- All changes of one resource are made or none of them.
- A change takes effect at once: on the logs of a topic, on the broker.

Versions: v1 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, ConfigChange, ConfigResult
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.failures import error_message
from ottla.server.turns import Steps, in_turns


@handles(IncrementalAlterConfigsRequest, versions=(0, 1))
async def incremental_alter_configs(
    request: Request[IncrementalAlterConfigsRequest],
) -> IncrementalAlterConfigsResponse:
    wanted = await in_turns(_wanted(request.message))
    results = await change_configs(
        request.broker, wanted, incremental=True, validate_only=request.message.validate_only
    )
    return await in_turns(_response(results))


def _wanted(message: IncrementalAlterConfigsRequest) -> Steps[list[AlteredResource]]:
    wanted: list[AlteredResource] = []
    for each in message.resources:
        wanted.append(
            AlteredResource(
                each.resource_type,
                each.resource_name,
                [
                    ConfigChange(entry.name, entry.config_operation, entry.value)
                    for entry in each.configs
                ],
            )
        )
        yield
    return wanted


def _response(results: list[ConfigResult]) -> Steps[IncrementalAlterConfigsResponse]:
    response = IncrementalAlterConfigsResponse()
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
