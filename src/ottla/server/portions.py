"""Requests that change very many things, in portions.

What the controller decides, it decides in one go, and so it is with what follows from it: what is
written, the new image, the logs that come and go. A request of a million topics is therefore given to it
a few topics at a time; each of them succeeds or fails by itself anyway. What has to be seen together
stays together, and of entries that are the same, two are enough to see that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from ottla.server.turns import Steps, emptied

T = TypeVar("T")

# What the controller is given at a time: about a millisecond of work on the loop, and not so little that
# the syncs of the store, one for each portion, are all that a long request waits for.
PORTION = 50


def portions(
    items: Sequence[T],
    same: Callable[[T], Hashable],
    together: Callable[[T], Hashable] | None = None,
    weight: Callable[[T], int] = lambda _: 1,
) -> Steps[list[Sequence[T]]]:
    """The items in portions of some dozens. `same`: of items with an equal key there are two at most.
    `together`: items with an equal key are in the same portion. `weight`: how many ordinary ones an item
    stands for."""
    if len(items) <= PORTION and sum([max(1, weight(each)) for each in items]) <= PORTION:
        return [items]
    together = together or same
    times: dict[Hashable, int] = {}
    # Nearly always there is one item of a key: a list for each would be a million lists.
    first: dict[Hashable, T] = {}
    others: dict[Hashable, list[T]] = {}
    for item in items:
        key = same(item)
        count = times[key] = times.get(key, 0) + 1
        if count <= 2:
            group = together(item)
            if group in first:
                others.setdefault(group, []).append(item)
            else:
                first[group] = item
        yield
    found: list[Sequence[T]] = []
    portion: list[T] = []
    size = 0
    for group, item in first.items():
        for each in (item, *others.get(group, ())):
            portion.append(each)
            size += max(1, weight(each))
        if size >= PORTION:
            found.append(portion)
            portion, size = [], 0
        yield
    if portion:
        found.append(portion)
    yield from emptied(times)
    yield from emptied(first)
    return found


def one_by_one(found: list[Sequence[T]]) -> Iterator[Sequence[T]]:
    """The portions in order. Each is let go of when the next one is asked for."""
    found.reverse()
    while found:
        yield found.pop()
