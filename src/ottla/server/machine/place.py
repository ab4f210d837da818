"""Where a broker runs that is one of several on its machine."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """What a broker has in common with the others of its machine."""

    machine: str  # names the machine; the same for all of its brokers
    store: str | None  # the socket of the store that they share; None: they have a ZooKeeper
