"""The connections of one client: to brokers by number, and to the bootstrap servers.

A broker may have several connections, one for each lane: requests that wait at the broker (Fetch,
JoinGroup) must not stand before those that should not. Who asks for a connection that is being
opened waits for that attempt; after a failure the next attempt waits its turn (back-off).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from ottla.client.configuration.clients import ClientSettings
from ottla.client.errors import ClientClosed
from ottla.client.metadata import Node
from ottla.wire.connection import Connection
from ottla.wire.errors import WireError


@dataclass(slots=True)
class _Line:
    """One connection there is, or should be."""

    host: str
    port: int
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0  # in a row
    not_before: float = 0.0  # monotonic
    used_at: float = field(default_factory=time.monotonic)


class Connections:
    """Opens, shares and closes them."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._lines: dict[tuple[str, int, str], _Line] = {}
        self._closed = False

    async def to(self, node: Node, lane: str = "") -> Connection:
        """The open connection to this broker. Raises WireError, ClientClosed."""
        return await self.to_address(node.host, node.port, lane)

    async def to_address(self, host: str, port: int, lane: str = "") -> Connection:
        if self._closed:
            raise ClientClosed("the client was closed")
        line = self._lines.get((host, port, lane))
        if line is None:
            line = self._lines[host, port, lane] = _Line(host, port)
        line.used_at = time.monotonic()
        if line.connection is not None and not line.connection.closed:
            return line.connection
        if line.opening is None:
            line.opening = asyncio.create_task(self._open(line))
            line.opening.add_done_callback(_look_at_outcome)
        # Shielded: whoever gives up must not take the attempt from the others.
        return await asyncio.shield(line.opening)

    def open_one(self) -> Connection | None:
        """Any connection that is open and idle, or the least busy one; None if none is open."""
        usable = [
            line.connection
            for (_, _, lane), line in self._lines.items()
            if line.connection is not None and not line.connection.closed and not lane
        ]
        return min(usable, key=lambda connection: connection.in_flight, default=None)

    async def _open(self, line: _Line) -> Connection:
        try:
            wait = line.not_before - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            connection = await Connection.open(
                line.host,
                line.port,
                options=self._settings.connection_options(line.failures),
                security=self._settings.security,
            )
        except WireError:
            line.failures += 1
            backoff = self._settings.reconnects_backoff
            line.not_before = time.monotonic() + backoff.after(line.failures)
            raise
        finally:
            line.opening = None
        if self._closed:
            connection.close()
            raise ClientClosed("the client was closed")
        line.failures = 0
        line.connection = connection
        return connection

    def close_idle(self) -> None:
        """Close those that nobody has used for connections.max.idle.ms."""
        limit = time.monotonic() - self._settings.idle_timeout
        for key, line in list(self._lines.items()):
            connection = line.connection
            if line.used_at < limit and line.opening is None:
                if connection is not None and connection.in_flight:
                    continue
                del self._lines[key]
                if connection is not None:
                    connection.close()

    def close_lane(self, lane: str) -> None:
        """Close those of one lane: whoever they were for is done, and each has buffers of its own."""
        for key, line in list(self._lines.items()):
            if key[2] == lane:
                del self._lines[key]
                if line.opening is not None:
                    line.opening.cancel()
                if line.connection is not None:
                    line.connection.close()

    async def close(self) -> None:
        """Close them all; attempts under way are given up."""
        self._closed = True
        for line in self._lines.values():
            if line.opening is not None:
                line.opening.cancel()
            if line.connection is not None:
                line.connection.close()
        attempts = [line.opening for line in self._lines.values() if line.opening is not None]
        if attempts:
            await asyncio.gather(*attempts, return_exceptions=True)
        self._lines.clear()


def _look_at_outcome(attempt: asyncio.Task[Connection]) -> None:
    """All who waited for it may have given up; asyncio would complain that nobody knows it failed."""
    if not attempt.cancelled():
        attempt.exception()
