"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings.

- All changes of one resource are made or none of them.
- A change takes effect at once: on the logs of a topic, on the broker.

Versions: v1 flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.configs import AlteredResource, ConfigChange
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.configuration.changes import change_configs
from ottla.server.turns import Steps


@handles(IncrementalAlterConfigsRequest, versions=(0, 1), by_controller=True)
async def incremental_alter_configs(
    request: Request[IncrementalAlterConfigsRequest],
) -> IncrementalAlterConfigsResponse:
    answers = await change_configs(
        request.broker,
        request.message.resources,
        _altered,
        AlterConfigsResourceResponse,
        incremental=True,
        validate_only=request.message.validate_only,
    )
    return IncrementalAlterConfigsResponse(responses=answers)


def _altered(each: AlterConfigsResource) -> Steps[AlteredResource]:
    changes: list[ConfigChange] = []
    for entry in each.configs:
        changes.append(ConfigChange(entry.name, entry.config_operation, entry.value))
        yield
    return AlteredResource(each.resource_type, each.resource_name, changes)
