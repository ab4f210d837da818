"""Changes of configuration, as both AlterConfigs APIs ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.cluster.decisions.configs import AlteredResource, ConfigResult
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.server.failures import error_message
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Steps, Turns, in_turns

if TYPE_CHECKING:
    from ottla.server.broker import Broker


class AskedResource(Protocol):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str


A = TypeVar("A", bound=AskedResource)
R = TypeVar("R")


async def change_configs(
    broker: Broker,
    asked: Sequence[A],
    altered: Callable[[A], Steps[AlteredResource]],
    answer: Callable[..., R],
    *,
    incremental: bool,
    validate_only: bool,
) -> list[R]:
    """Make the changes, and answer for each resource. `altered` reads a resource of the request,
    `answer` makes an entry of the response."""
    answers: list[R] = []
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
        answers += [
            answer(
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
                resource_type=each.resource_type,
                resource_name=each.name,
            )
            for each in results
        ]
        await turns.pause()
    return answers
