"""A bounded set of read-only maps of sealed index files, least recently used out first.

A map costs address space, an entry in the kernel's table of maps (65,530 of them by default) and,
in CPython, a file descriptor. A broker with 9,000 partitions has more sealed indexes than it may
hold of any of these, so the maps are made on demand and shared out of one bounded store.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from ottla.storage.files import Files

DEFAULT_LIMIT = 256


class Mapped(Protocol):
    """The owner of a map: a sealed index. The map is kept by the owner's identity, so that it
    outlives a rename and two file layers with equal paths never meet."""

    path: str
    files: Files


class Maps:
    """Maps by owner, at most `limit` of them. An owner belongs to one thread at a time: the loop's, or
    that which truncates its log."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        # Least recently used first.
        self._views: OrderedDict[Mapped, memoryview] = OrderedDict()

    def __len__(self) -> int:
        return len(self._views)

    def view(self, owner: Mapped) -> memoryview:
        """The bytes of the owner's file. To be used at once and not kept: the map may go at the
        next call. The file must be sealed; `OSError` if it cannot be opened."""
        views = self._views
        view = views.get(owner)
        if view is not None:
            try:
                views.move_to_end(owner)
            except KeyError:
                pass  # another thread has just let go of it; who has the view may use it
            return view
        view = owner.files.map(owner.path)
        while len(views) >= self.limit:
            views.popitem(last=False)
        views[owner] = view
        return view

    def has(self, owner: Mapped) -> bool:
        return owner in self._views

    def drop(self, owner: Mapped) -> None:
        """Unmaps the owner's file, now: after it, the file may shrink. A view that somebody kept
        against the rule raises ValueError when used, instead of killing the process."""
        view = self._views.pop(owner, None)
        if view is not None:
            view.release()

    def clear(self) -> None:
        """Unmaps everything."""
        for owner in list(self._views):
            self.drop(owner)


# One store for all indexes of the process unless an index is given another.
SHARED_MAPS = Maps()
