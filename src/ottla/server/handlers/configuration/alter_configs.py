"""AlterConfigs: replace all settings of topics and brokers. IncrementalAlterConfigs does it better;
this one is for older clients.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, full_change
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.turns import Steps


@handles(AlterConfigsRequest, versions=(0, 2), by_controller=True)
async def alter_configs(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    answers = await change_configs(
        request.broker,
        request.message.resources,
        _altered,
        AlterConfigsResourceResponse,
        incremental=False,
        validate_only=request.message.validate_only,
    )
    return AlterConfigsResponse(responses=answers)


def _altered(each: AlterConfigsResource) -> Steps[AlteredResource]:
    entries: list[tuple[str, str | None]] = []
    for entry in each.configs:
        entries.append((entry.name, entry.value))
        yield
    return full_change(each.resource_type, each.resource_name, entries)
