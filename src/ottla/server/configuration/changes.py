"""Changes of configuration, as both AlterConfigs APIs ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cluster.decisions.configs import AlteredResource, ConfigResult
from ottla.protocol.errors import ProtocolError
from ottla.server.portions import portions
from ottla.server.turns import Turns, in_turns

if TYPE_CHECKING:
    from ottla.server.broker import Broker


async def change_configs(
    broker: Broker, wanted: Sequence[AlteredResource], *, incremental: bool, validate_only: bool
) -> list[ConfigResult]:
    """Make the changes; what became of each resource."""
    results: list[ConfigResult] = []
    turns = Turns()
    for some in await in_turns(portions(wanted, lambda each: (each.resource_type, each.name))):
        await turns.pause()
        try:
            results += await broker.controller.alter_configs(
                some, incremental=incremental, receiver=broker.id, validate_only=validate_only
            )
        except ProtocolError as error:
            results += [ConfigResult(each.resource_type, each.name, error) for each in some]
    return results
