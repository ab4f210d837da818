"""What readers of old data may have of the loop.

Somebody who reads a backlog asks for a megabyte at a time, one after the other, as fast as the disk
gives it, and for each the loop is busy with `sendfile` for the better part of a millisecond. So what
came from the disk is sent in small pieces, one in a turn of the loop, whoever's it is. What comes from
such a reader is served after what comes from others (see network/loop.py): each of its requests is some
hundred microseconds of work, which is better not done for several of them before a producer is served.
And while producers write, readers of old data together get a share of the loop's time. With no producer,
or with room left in the share, nobody waits. (`python -m bench cold` measures it.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.server.network.loop import BrokerLoop

# What is sent in one turn of the loop.
PIECE_BYTES: Final = 64 << 10
# Of the loop's time, while there are producers: what sending takes. Their requests come on top of it.
SHARE: Final = 0.12
# For so long after a request of a producer's there are producers.
WRITTEN_SECONDS: Final = 0.1
# For so long after it was sent old data somebody is expected to ask for more.
READS_ON_SECONDS: Final = 1.0
# How much the newest piece counts for what a byte costs.
_NEWEST: Final = 0.05
# What a byte costs before the first was sent: of a gigabyte in a second.
_ASSUMED_COST: Final = 1e-9


def _served_in_any_order(fd: int, seconds: float) -> None:
    """Does nothing: a loop that is not the broker's own serves all sockets alike."""


class OldData:
    def __init__(self, loop: asyncio.AbstractEventLoop, produced: Callable[[], int]) -> None:
        """`produced`: how many requests have come from producers."""
        self._loop = loop
        self._produced = produced
        self._seen = 0
        self._written_at = -WRITTEN_SECONDS
        # When the share is used up to, by what was asked for.
        self._used_until = 0.0
        # Seconds of the loop for a byte.
        self._cost = _ASSUMED_COST
        self._was_sent = False
        self._serve_after_others = (
            loop.serve_after_others if isinstance(loop, BrokerLoop) else _served_in_any_order
        )

    def may_send(self) -> bool:
        """Whether a connection may send a piece; once in a turn of the loop."""
        if self._was_sent:
            return False
        self._was_sent = True
        self._loop.call_soon(self._turn_ends)
        return True

    def _turn_ends(self) -> None:
        self._was_sent = False

    def sent(self, fd: int, size: int, seconds: float) -> None:
        """So much was sent to this socket, and took so long."""
        self._serve_after_others(fd, READS_ON_SECONDS)
        self._cost += _NEWEST * (seconds / size - self._cost)

    def delay(self, size: int) -> float:
        """Seconds for which who asks for so much has to wait, so that all stay within the share."""
        now = self._loop.time()
        produced = self._produced()
        if produced != self._seen:
            self._seen = produced
            self._written_at = now
        if now - self._written_at >= WRITTEN_SECONDS:
            return 0.0
        begin = max(self._used_until, now)
        self._used_until = begin + size * self._cost / SHARE
        return begin - now
