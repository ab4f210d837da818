"""Requests that change very many things, in portions.

What the controller decides, it decides in one go. A request of a million topics is therefore given to
it a few hundred topics at a time; each of them succeeds or fails by itself anyway. What has to be seen
together stays together, and of entries that are the same, two are enough to see that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from ottla.server.turns import Steps

T = TypeVar("T")

PORTION = 500


def portions(
    items: Sequence[T],
    same: Callable[[T], Hashable],
    together: Callable[[T], Hashable] | None = None,
) -> Steps[list[Sequence[T]]]:
    """The items in portions of some hundred. `same`: of items with an equal key there are two at most.
    `together`: items with an equal key are in the same portion."""
    if len(items) <= PORTION:
        return [items]
    together = together or same
    seen: dict[Hashable, int] = {}
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        key = same(item)
        times = seen.get(key, 0)
        if times < 2:
            seen[key] = times + 1
            groups.setdefault(together(item), []).append(item)
        yield
    found: list[Sequence[T]] = []
    portion: list[T] = []
    for group in groups.values():
        portion += group
        if len(portion) >= PORTION:
            found.append(portion)
            portion = []
        yield
    if portion:
        found.append(portion)
    return found
