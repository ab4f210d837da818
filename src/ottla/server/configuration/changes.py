"""Changes of configuration, as both AlterConfigs APIs ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cluster.decisions.configs import AlteredResource, ConfigResult
from ottla.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from ottla.server.broker import Broker


async def change_configs(
    broker: Broker, wanted: Sequence[AlteredResource], *, incremental: bool, validate_only: bool
) -> list[ConfigResult]:
    """Make the changes; what became of each resource."""
    # In a cluster the controller takes the changes of all brokers.
    receiver = broker.id if len(broker.image.brokers) == 1 else None
    try:
        return await broker.controller.alter_configs(
            wanted, incremental=incremental, receiver=receiver, validate_only=validate_only
        )
    except ProtocolError as error:
        return [ConfigResult(each.resource_type, each.name, error) for each in wanted]
