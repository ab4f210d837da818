"""A bounded set of read-only maps of sealed index files. What was not used lately goes first.

A map costs address space, an entry in the kernel's table of maps (65,530 of them by default) and,
in CPython, a file descriptor. A broker with 9,000 partitions has more sealed indexes than it may
hold of any of these, so the maps are made on demand and shared out of one bounded store.

Each owner has its map itself, so that a search finds it at once, and only says that it was used. To make
room, those that were used since the last time are passed over once.
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
    # To be used at once and not kept: the map may go with the next one that is made.
    mapped: memoryview | None
    was_used: bool


class Maps:
    """Maps by owner, at most `limit` of them. An owner belongs to one thread at a time: the loop's, or
    that which truncates its log."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        # Those whose map is there, the oldest first, or those that were passed over.
        self._owners: OrderedDict[Mapped, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def view(self, owner: Mapped) -> memoryview:
        """The bytes of the owner's file. To be used at once and not kept: the map may go at the
        next call. The file must be sealed; `OSError` if it cannot be opened."""
        view = owner.mapped
        if view is None:
            view = owner.files.map(owner.path)
            while len(self._owners) >= self.limit:
                self._make_room()
            owner.mapped = view
            owner.was_used = False
            self._owners[owner] = None
        else:
            owner.was_used = True
        return view

    def _make_room(self) -> None:
        """Lets go of one map, or passes over it. Who has the view may still use it."""
        try:
            owner, _ = self._owners.popitem(last=False)
        except KeyError:
            return  # other threads have just let go of all of them
        if owner.was_used:
            owner.was_used = False
            self._owners[owner] = None
        else:
            owner.mapped = None

    def drop(self, owner: Mapped) -> None:
        """Unmaps the owner's file, now: after it, the file may shrink. A view that somebody kept
        against the rule raises ValueError when used, instead of killing the process."""
        self._owners.pop(owner, None)
        view, owner.mapped = owner.mapped, None
        if view is not None:
            view.release()

    def clear(self) -> None:
        """Unmaps everything."""
        for owner in list(self._owners):
            self.drop(owner)


# One store for all indexes of the process unless an index is given another.
SHARED_MAPS = Maps()
