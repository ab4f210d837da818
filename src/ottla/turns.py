"""Long work in slices, with the loop's turn between them: what every room may use.

Whoever has long work does it in steps: a generator that pauses after each entry. The steps run until a
slice of time is used up; then the loop has its turn, so that others wait for a slice, not for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import update_wrapper
from time import perf_counter
from typing import Generic, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Work that pauses, and its result.
Steps = Generator[None, None, T]

# Others wait for so long at most, and the loop's turn costs a twentieth of it.
SLICE_SECONDS = 0.00025

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


def at_once(steps: Steps[T]) -> T:
    """Do all the steps without a pause."""
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


class stepwise(Generic[P, T]):  # noqa: N801 - used as a decorator
    """Decorate a function that works in steps: a call does all of them, and its `steps` are for those
    who give others their turn in between."""

    def __init__(self, steps: Callable[P, Steps[T]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(self.steps(*args, **kwargs))


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
