"""Who asks a group coordinator for something, and whether it may use the new protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.coordinator.groups.group import Caller
from ottla.server.api import Request

if TYPE_CHECKING:
    from ottla.server.broker import Broker

# The feature that switches the new protocol on.
GROUP_VERSION: Final = "group.version"


def caller_of(request: Request[Any]) -> Caller:
    connection = request.connection
    host = connection.address.rpartition(":")[0].strip("[]")
    # The host as Kafka writes it, for tools that show it.
    return Caller(request.version, connection.client_id, f"/{host}")


def speaks_new_protocol(broker: Broker) -> bool:
    """Whether consumer groups of the new protocol (KIP-848) are served."""
    return (
        broker.image.features.get(GROUP_VERSION, 0) >= 1
        and "consumer" in broker.config.group_coordinator_rebalance_protocols
    )
