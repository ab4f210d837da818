"""Changes of configuration, as both AlterConfigs APIs ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.cluster.decisions.configs import AlteredResource, ConfigResult
from ottla.protocol.errors import ProtocolError
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Steps, Turns, in_turns

if TYPE_CHECKING:
    from ottla.server.broker import Broker


class AskedResource(Protocol):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str


A = TypeVar("A", bound=AskedResource)


async def change_configs(
    broker: Broker,
    asked: Sequence[A],
    altered: Callable[[A], Steps[AlteredResource]],
    *,
    incremental: bool,
    validate_only: bool,
) -> AsyncIterator[list[ConfigResult]]:
    """Make the changes; what became of each resource, some at a time. `altered` reads a resource of the
    request."""
    # In a cluster the controller takes the changes of all brokers.
    receiver = broker.id if len(broker.image.brokers) == 1 else None
    turns = Turns()
    found = await in_turns(portions(asked, lambda each: (each.resource_type, each.resource_name)))
    for some in one_by_one(found):
        wanted = [await in_turns(altered(each)) for each in some]
        try:
            results = await broker.controller.alter_configs(
                wanted, incremental=incremental, receiver=receiver, validate_only=validate_only
            )
        except ProtocolError as error:
            refusal = error.with_traceback(None)
            results = [ConfigResult(each.resource_type, each.name, refusal) for each in wanted]
        yield results
        await turns.pause()
