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
class _Entry:
    """A broker's connection in one lane, open or not, and its failures so far."""

    host: str
    port: int
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0  # in a row
    not_before: float = 0.0  # monotonic
    used_at: float = field(default_factory=time.monotonic)


class Connections:
    """Opens, shares and closes the connections of a client."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._entries: dict[tuple[str, int, str], _Entry] = {}
        self._closed = False

    async def to(self, node: Node, lane: str = "") -> Connection:
        """The open connection to this broker. Raises WireError, ClientClosed."""
        return await self.to_address(node.host, node.port, lane)

    async def to_address(self, host: str, port: int, lane: str = "") -> Connection:
        if self._closed:
            raise ClientClosed("the client was closed")
        entry = self._entries.get((host, port, lane))
        if entry is None:
            entry = self._entries[host, port, lane] = _Entry(host, port)
        entry.used_at = time.monotonic()
        if entry.connection is not None and not entry.connection.closed:
            return entry.connection
        if entry.opening is None:
            entry.opening = asyncio.create_task(self._open(entry))
            entry.opening.add_done_callback(_retrieve_exception)
        # Shielded: whoever gives up must not take the attempt from the others.
        return await asyncio.shield(entry.opening)

    def open_one(self) -> Connection | None:
        """Any connection that is open and idle, or the least busy one; None if none is open."""
        usable = [
            entry.connection
            for (_, _, lane), entry in self._entries.items()
            if entry.connection is not None and not entry.connection.closed and not lane
        ]
        return min(usable, key=lambda connection: connection.in_flight, default=None)

    async def _open(self, entry: _Entry) -> Connection:
        try:
            wait = entry.not_before - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            connection = await Connection.open(
                entry.host,
                entry.port,
                options=self._settings.connection_options(entry.failures),
                security=self._settings.security,
            )
        except WireError:
            entry.failures += 1
            backoff = self._settings.reconnects_backoff
            entry.not_before = time.monotonic() + backoff.after(entry.failures)
            raise
        finally:
            entry.opening = None
        if self._closed:
            connection.close()
            raise ClientClosed("the client was closed")
        entry.failures = 0
        entry.connection = connection
        return connection

    def close_idle(self) -> None:
        """Close those that nobody has used for connections.max.idle.ms."""
        limit = time.monotonic() - self._settings.idle_timeout
        for key, entry in list(self._entries.items()):
            connection = entry.connection
            if entry.used_at < limit and entry.opening is None:
                if connection is not None and connection.in_flight:
                    continue
                del self._entries[key]
                if connection is not None:
                    connection.close()

    def close_lane(self, lane: str) -> None:
        """Close the connections of a lane that nobody uses any more: each has buffers of its own."""
        for key, entry in list(self._entries.items()):
            if key[2] == lane:
                del self._entries[key]
                if entry.opening is not None:
                    entry.opening.cancel()
                if entry.connection is not None:
                    entry.connection.close()

    async def close(self) -> None:
        """Close them all; attempts under way are given up."""
        self._closed = True
        for entry in self._entries.values():
            if entry.opening is not None:
                entry.opening.cancel()
            if entry.connection is not None:
                entry.connection.close()
        attempts = [entry.opening for entry in self._entries.values() if entry.opening is not None]
        if attempts:
            await asyncio.gather(*attempts, return_exceptions=True)
        self._entries.clear()


def _retrieve_exception(attempt: asyncio.Task[Connection]) -> None:
    """Retrieve the exception of an attempt to connect: if all who waited for it have given up, asyncio
    would log that nobody did."""
    if not attempt.cancelled():
        attempt.exception()
