"""One response out of several answers, some of which may take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from ottla.protocol.message import Message
from ottla.server.api import Outcome
from ottla.server.turns import Steps, Turns, emptied, in_turns

R = TypeVar("R", bound=Message)
K = TypeVar("K", bound=Hashable)

Part = Message | asyncio.Future[Message]


def gathered(
    kind: type[R],
    wanted: Sequence[K],
    ask: Callable[[K], Part],
    add: Callable[[R, R], None],
) -> Steps[Outcome]:
    """Ask for each thing that is wanted, and add the answers to one response of the same kind: at once
    if they are there. What is wanted several times is asked for once, its answer added as often."""
    known: dict[K, Part] = {}
    parts: list[Part] = []
    is_ready = True
    for each in wanted:
        part = known.get(each)
        if part is None:
            part = known[each] = ask(each)
            is_ready = is_ready and isinstance(part, kind)
        parts.append(part)
        yield
    yield from emptied(known)
    if not is_ready:
        return _gathered(kind, parts, add)
    response = kind()
    for part in parts:
        assert isinstance(part, kind)
        add(response, part)
        yield
    yield from emptied(parts)
    return response


async def _gathered(kind: type[R], parts: list[Part], add: Callable[[R, R], None]) -> R:
    turns = Turns()
    response = kind()
    for part in parts:
        await turns.pause()
        answer = part if isinstance(part, Message) else await part
        assert isinstance(answer, kind)
        add(response, answer)
    await in_turns(emptied(parts))
    return response
