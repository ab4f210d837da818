"""Producer ids, taken from blocks that the metadata store hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.protocol.errors import ErrorCode, ProtocolError


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
        """ProtocolError with what producers are to be told, if there is none at the moment."""
        for producer_id in self._block:
            return producer_id
        async with self._lock:
            # Somebody else may have brought a new block while this one waited.
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._allocate())
            except ProtocolError as error:
                # What a controller says is nothing that all producers know to repeat. This is what
                # Kafka says when its ids have run out for a moment.
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                raise ProtocolError(code, error.message) from error
            return next(self._block)
