"""ListConfigResources: what has settings of its own.

Versions:
  v0  client metrics subscriptions only; there are none
  v1  resources of the types asked for, or of all types
"""

from __future__ import annotations

from ottla.cluster.metadata import ON_THE_WIRE, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.server.api import Request, handles


@handles(ListConfigResourcesRequest, versions=(0, 1))
def list_config_resources(
    request: Request[ListConfigResourcesRequest],
) -> ListConfigResourcesResponse:
    image = request.broker.image
    if request.version == 0:
        wanted = {int(ResourceType.CLIENT_METRICS)}
    else:
        wanted = set(request.message.resource_types) or {int(each) for each in ON_THE_WIRE}
    if not wanted <= {int(each) for each in ON_THE_WIRE}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: set[tuple[int, str]] = {
        (kind, name) for kind, name in image.configs if name and kind in wanted
    }
    if ResourceType.TOPIC in wanted:
        found.update((ResourceType.TOPIC, name) for name in image.topics)
    for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        if kind in wanted:
            found.update((kind, str(node)) for node in image.brokers)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind) for kind, name in sorted(found)
        ]
    )
