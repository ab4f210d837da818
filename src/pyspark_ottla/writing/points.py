"""Named points on the way of an exactly-once write.

Nothing happens at them. A test that wants to know what a crash there does puts a function of its own
in the place of `reached`, in the process where it is to happen.
"""

from __future__ import annotations

from typing import Literal

Point = Literal[
    "before flush",  # a task: rows are on their way, none is known to be acknowledged
    "prepared",  # a task: all rows are acknowledged, the driver does not know yet
    "before decision",  # the driver: the decision is written, but not committed
    "after decision",  # the driver: the batch counts, and none of its transactions has ended
    "between ends",  # the driver: beyond the end of a transaction
]


def reached(point: Point) -> None:
    """Does nothing. It is called at each point, so that tests can stop the process there."""
