"""One response out of several answers, some of which may take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ottla.protocol.message import Message

R = TypeVar("R", bound=Message)

Part = Message | asyncio.Future[Message]


def gathered(
    kind: type[R], parts: Sequence[Part], combine: Callable[[list[R]], R]
) -> R | Coroutine[Any, Any, R]:
    """Combine the answers, all of one kind, at once if they are there."""
    ready = [part for part in parts if isinstance(part, kind)]
    return combine(ready) if len(ready) == len(parts) else _gathered(kind, parts, combine)


async def _gathered(kind: type[R], parts: Sequence[Part], combine: Callable[[list[R]], R]) -> R:
    answers = []
    for part in parts:
        answer = part if isinstance(part, Message) else await part
        assert isinstance(answer, kind)
        answers.append(answer)
    return combine(answers)
