"""Connections to the other brokers of the cluster, and to its controller.

Each use has a connection of its own (`purpose`): a Fetch that waits at its leader must not hold up a
question to a coordinator. Connections are made when they are needed, and made anew when they are lost
or when the broker has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ottla.protocol.message import Message
from ottla.server.turns import in_turns
from ottla.wire.connection import Connection, ConnectionOptions
from ottla.wire.errors import ConnectFailed
from ottla.wire.security import PLAINTEXT

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage, Endpoint
    from ottla.wire.security import Security

A = TypeVar("A", bound=Message)

# Kafka's brokers call themselves the same among each other.
CLIENT_ID = "broker-{}-{}"


class Peers:
    """Connections to brokers by number. Belongs to the broker's loop."""

    def __init__(
        self,
        broker_id: int,
        listener: Callable[[], str],
        image: Callable[[], ClusterImage],
        security: Callable[[], Security] = lambda: PLAINTEXT,
    ) -> None:
        """`listener` names the one by which brokers talk to each other, `security` is how."""
        self._broker_id = broker_id
        self._listener = listener
        self._image = image
        self._security = security
        self._kept: dict[tuple[int, str], tuple[Endpoint, asyncio.Task[Connection]]] = {}

    async def open(self, broker_id: int, purpose: str, receive_buffer: int) -> Connection:
        """A new connection, the caller's own. ConnectFailed if the broker is away."""
        return await self._open(self._endpoint(broker_id), purpose, receive_buffer)

    async def connection(self, broker_id: int, purpose: str) -> Connection:
        """A connection that is shared by all who have the same purpose."""
        endpoint = self._endpoint(broker_id)
        key = broker_id, purpose
        kept = self._kept.get(key)
        if kept is not None:
            known, task = kept
            failed = task.done() and (
                task.cancelled() or task.exception() is not None or task.result().closed
            )
            if known == endpoint and not failed:
                return await asyncio.shield(task)
            if task.done() and not failed:
                task.result().close()
        task = asyncio.get_running_loop().create_task(self._open(endpoint, purpose))
        self._kept[key] = endpoint, task
        return await asyncio.shield(task)

    async def request(
        self,
        broker_id: int,
        purpose: str,
        message: Message,
        answer: type[A],
        timeout: float | None = None,
        version: int | None = None,
        client_id: str | None = None,
    ) -> A:
        """One request over a shared connection, in the name of another if a client id is given.
        WireError if there is no answer."""
        connection = await self.connection(broker_id, purpose)
        return await connection.request(
            message,
            answer,
            timeout=timeout,
            version=version,
            client_id=client_id,
            # Clients' requests may be very long.
            in_turns=None if client_id is None else in_turns,
        )

    def close(self) -> None:
        for _, task in self._kept.values():
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                task.result().close()
        self._kept.clear()

    async def _open(self, endpoint: Endpoint, purpose: str, receive_buffer: int = 0) -> Connection:
        options = ConnectionOptions(
            client_id=CLIENT_ID.format(self._broker_id, purpose),
            setup_timeout=5.0,
            receive_buffer=receive_buffer,
        )
        return await Connection.open(
            endpoint.host, endpoint.port, options=options, security=self._security()
        )

    def _endpoint(self, broker_id: int) -> Endpoint:
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            raise ConnectFailed(f"broker {broker_id}", "it is not part of the cluster")
        endpoint = broker.endpoint(self._listener())
        if endpoint is None:
            raise ConnectFailed(f"broker {broker_id}", f"it has no listener {self._listener()}")
        return endpoint
