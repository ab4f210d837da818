"""The states of a classic group, and what moves it from one to another.

This table is the whole of it: no other module decides which state follows.

                      the first member joins
           ┌──────────────────────────────────────┐
           │                                      ▼
         EMPTY ◀── nobody is left ── PREPARING_REBALANCE ◀───── members came, went
                                                  │             or changed ───┐
                                 all have joined  │             ▲             │
                                                  ▼             │             │
                                         COMPLETING_REBALANCE ──┘             │
                                                  │                           │
                      the assignment is stored    ▼                           │
                                                STABLE ───────────────────────┘

Two of the states last: a group that was stored is STABLE, or EMPTY. The two of a rebalance are known
only to the coordinator that leads it; when the group moves to another one it is again what was stored
last, and its members find out by their heartbeats.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ClassicState(Enum):
    """The values are what clients are shown."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # members are asked to join (again)
    COMPLETING_REBALANCE = "CompletingRebalance"  # all have joined; the leader's word is awaited
    STABLE = "Stable"  # every member has its assignment
    DEAD = "Dead"  # deleted, or led by another broker


class Event(Enum):
    REBALANCE_WANTED = auto()  # a member came, went, changed, or asked for it
    ALL_JOINED = auto()  # or those who did not were left out
    NOBODY_LEFT = auto()
    ASSIGNMENT_STORED = auto()
    GONE = auto()


TABLE: Final[dict[ClassicState, dict[Event, ClassicState]]] = {
    ClassicState.EMPTY: {
        Event.REBALANCE_WANTED: ClassicState.PREPARING_REBALANCE,
        Event.GONE: ClassicState.DEAD,
    },
    ClassicState.PREPARING_REBALANCE: {
        Event.ALL_JOINED: ClassicState.COMPLETING_REBALANCE,
        Event.NOBODY_LEFT: ClassicState.EMPTY,
        Event.GONE: ClassicState.DEAD,
    },
    ClassicState.COMPLETING_REBALANCE: {
        Event.REBALANCE_WANTED: ClassicState.PREPARING_REBALANCE,
        Event.ASSIGNMENT_STORED: ClassicState.STABLE,
        Event.GONE: ClassicState.DEAD,
    },
    ClassicState.STABLE: {
        Event.REBALANCE_WANTED: ClassicState.PREPARING_REBALANCE,
        # A static member was replaced: stored, and nothing else changes.
        Event.ASSIGNMENT_STORED: ClassicState.STABLE,
        Event.GONE: ClassicState.DEAD,
    },
    ClassicState.DEAD: {},
}
