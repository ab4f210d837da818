"""Long work in slices, with the loop's turn between them.

A request may name a million partitions. Whoever works on it does so in steps: a generator that pauses
after each entry. The steps run until a slice of time is used up; then the loop has its turn, so that
other clients wait for a slice, not for the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from sys import getrefcount
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.protocol.message import Part

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# Work that pauses, and its result.
Steps = Generator[None, None, T]

SLICE_SECONDS = 0.001
# Where an item costs next to nothing.
ITEMS_IN_A_STEP = 500
# Where it costs a call.
ENTRIES_IN_A_STEP = 50

# To an array of a message that nobody else has: the message's own, and two of `taken_apart`.
_REFERENCES_HERE = 3

# Tests put another clock in its place, one that counts steps.
clock: Callable[[], float] = perf_counter


class Done(NamedTuple, Generic[T]):
    result: T


def advance(steps: Steps[T]) -> Done[T] | None:
    """Go on with the steps for one slice; None if there are more."""
    read = clock
    end = read() + SLICE_SECONDS
    try:
        while True:
            next(steps)
            if read() >= end:
                return None
    except StopIteration as stop:
        return Done(stop.value)


async def in_turns(steps: Steps[T]) -> T:
    """Do all the steps, with the loop's turn after each slice."""
    while (done := advance(steps)) is None:  # noqa: ASYNC110 - it is the loop's turn, not an event
        await asyncio.sleep(0)
    return done.result


class Turns:
    """In a coroutine that may never have to wait: the loop's turn when a slice is used up."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = clock() + SLICE_SECONDS

    async def pause(self) -> None:
        if clock() >= self._end:
            await asyncio.sleep(0)
            self._end = clock() + SLICE_SECONDS


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
) -> None:
    """Do all the steps, beginning at the loop's next turn, as long as somebody wants the result."""

    def go_on() -> None:
        if not is_wanted():
            steps.close()
            return
        try:
            done = advance(steps)
            if done is not None:
                finished(done.result)
                return
        except Exception as error:  # noqa: BLE001 - whoever asked for the work is told
            failed(error)
            return
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


def taken_apart(part: Part) -> Steps[None]:
    """Empty the arrays in a message, as `emptied` does a list. Not for messages of which somebody has
    kept some parts; an array of names or numbers that somebody has kept stays as it is."""
    for name in part.declared:
        value = getattr(part, name)
        if type(value) is not list or not value:
            continue
        if isinstance(value[-1], Part):
            while value:
                yield from taken_apart(value[-1])
                value.pop()
                yield
        elif getrefcount(value) <= _REFERENCES_HERE:
            yield from emptied(value)
