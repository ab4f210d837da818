"""Long requests in slices, with the loop's turn between them (turns.py).

A request may name a million partitions. Other clients wait for a slice of the work on it, not for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from sys import getrefcount
from time import perf_counter
from types import SimpleNamespace
from typing import Any, TypeVar

from ottla.protocol.message import Part
from ottla.turns import Steps as Steps
from ottla.turns import Turns as Turns
from ottla.turns import advance as advance
from ottla.turns import in_turns as in_turns

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# Where an item costs next to nothing.
ITEMS_IN_A_STEP = 500
# Where it costs a call.
ENTRIES_IN_A_STEP = 50


def _references(part: object, name: str) -> int:
    """How many references there are to what a part has by this name, with those of this function, whose
    number is a matter of the interpreter."""
    value = getattr(part, name)
    return getrefcount(value)


# To what nobody else has.
_REFERENCES_OF_ONE = _references(SimpleNamespace(items=[]), "items")


def distinct(items: Sequence[K]) -> Steps[dict[K, None]]:
    """Each of the items once, in the order in which they come first."""
    found: dict[K, None] = {}
    for first in range(0, len(items), ITEMS_IN_A_STEP):
        found.update(dict.fromkeys(items[first : first + ITEMS_IN_A_STEP]))
        yield
    return found


def in_order(items: Iterable[K]) -> Steps[Iterator[K]]:
    """The items sorted, one at a time."""
    left = iter(items)
    runs: list[list[K]] = []
    while run := sorted(islice(left, ITEMS_IN_A_STEP)):  # type: ignore[type-var]
        runs.append(run)
        yield
    return merge(*runs)  # type: ignore[type-var]


def run_in_turns(
    loop: asyncio.AbstractEventLoop,
    steps: Steps[T],
    finished: Callable[[T], None],
    failed: Callable[[Exception], None],
    is_wanted: Callable[[], bool],
    measured: Callable[[float], object] | None = None,
) -> None:
    """Do all the steps, beginning at the loop's next turn, as long as somebody wants the result.
    `measured` is called with the seconds that each slice has taken."""

    def go_on() -> None:
        if not is_wanted():
            steps.close()
            return
        begun = perf_counter()
        try:
            done = advance(steps)
            if done is not None:
                finished(done.result)
                return
        except Exception as error:  # noqa: BLE001 - whoever asked for the work is told
            failed(error)
            return
        finally:
            if measured is not None:
                measured(perf_counter() - begun)
        loop.call_soon(go_on)

    loop.call_soon(go_on)


def emptied(items: list[Any] | dict[Any, Any]) -> Steps[None]:
    """Empty a list or a dict: to free a million things at once takes its time, too."""
    if isinstance(items, list):
        while items:
            del items[-ITEMS_IN_A_STEP:]
            yield
        return
    while items:
        for _ in range(min(len(items), ENTRIES_IN_A_STEP)):
            items.popitem()
        yield


def emptied_message(part: Part) -> Steps[None]:
    """Empty the arrays in a message, as `emptied` does a list. Not for messages of which somebody has
    kept some parts; an array of names or numbers that somebody has kept stays as it is."""
    for name in part.declared:
        value = getattr(part, name)
        if type(value) is not list or not value:
            continue
        if isinstance(value[-1], Part):
            while value:
                yield from emptied_message(value[-1])
                value.pop()
                yield
        elif _references(part, name) <= _REFERENCES_OF_ONE + 1:  # `value` is one more
            yield from emptied(value)
