"""The states of a transactional id, and which may follow which.

This table is the whole of it: no other module decides which state follows.

                 partitions are added            the producer ends it, or its
        EMPTY ─────────────────────▶ ONGOING ──▶ timeout, or a newer producer
          ▲                          ▲  ▲  │                  │
          │ a producer begins anew   │  └──┘ more partitions  ▼
          │                          │       PREPARE_COMMIT or PREPARE_ABORT
          ├──────────────────────────┤                        │
          │                          │                        │ every marker is written
          └───────────── COMPLETE_COMMIT or COMPLETE_ABORT ◀──┘

With the second transaction protocol EMPTY and both COMPLETE states also lead to PREPARE_ABORT: a
producer that does not know whether anything arrived ends its transaction to be sure.

Two states are never stored. DEAD: the id has expired and its tombstone is being written.
PREPARE_EPOCH_FENCE: the abort of an ONGOING transaction is being written on behalf of somebody other
than its producer, who is fenced by it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """The numbers are those in stored records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """The name that clients are shown, and filter by."""
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_NAME: Final = {state.shown: state for state in State}

# The decision has been stored, markers are under way.
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
# No transaction is open: a new one may begin, and the id may expire.
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

FOLLOWING: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset(
        {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE}
    ),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
}
