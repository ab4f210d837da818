"""The table of mutations, and the search for a seed that finds one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from simulation_kit.world import run_seed

MUTATIONS: dict[str, Mutation] = {}


@dataclass(frozen=True)
class Mutation:
    name: str
    what: str  # for the table in docs/reliability.md
    patches: Callable[[], list[tuple[Any, str, Any]]]
    run: Callable[[int], object] = run_seed

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(patch.object(target, name, value))
            yield


def mutation(
    what: str, run: Callable[[int], object] = run_seed
) -> Callable[[Callable[[], list[tuple[Any, str, Any]]]], None]:
    def register(patches: Callable[[], list[tuple[Any, str, Any]]]) -> None:
        name = patches.__name__
        MUTATIONS[name] = Mutation(name, what, patches, run)

    return register


def first_caught(chosen: Mutation, most: int) -> tuple[int, str] | None:
    """The first seed that finds a mutation, and what was broken; None if none of `most` does."""
    logging.getLogger("ottla").setLevel(logging.CRITICAL)
    try:
        with chosen.applied():
            for seed in range(most):
                try:
                    chosen.run(seed)
                except Exception as error:  # noqa: BLE001 - whatever breaks has been found
                    lines = str(error).splitlines() or [type(error).__name__]
                    return seed, lines[0].removeprefix(f"seed {seed}: ")
    finally:
        logging.getLogger("ottla").setLevel(logging.NOTSET)
    return None
