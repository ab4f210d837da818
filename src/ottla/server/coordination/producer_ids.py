"""Producer ids, taken from blocks that the metadata store hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Gives each caller an id that nobody else ever got.

    A block is reserved durably before the first of its ids is given away; what is left of a block when
    the broker stops is never used.
    """

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        for producer_id in self._block:
            return producer_id
        async with self._lock:
            # Somebody else may have brought a new block while this one waited.
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._allocate())
            return next(self._block)
