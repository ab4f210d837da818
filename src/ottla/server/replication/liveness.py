"""Noticing at once that a broker's process has ended, before its session with the store times out.

A process that is killed loses its sockets: whoever is connected to it hears of it, and its port refuses
new connections. That is certain enough to act on. The controller holds a connection to every broker,
the others hold one to the controller's broker:

- the controller fences a broker whose port refuses it: deletes its registration and elects leaders;
- another broker stands against a controller whose port refuses it.

Anything less (silence, a connection that ends while the port is open) says nothing, and the session's
time-out decides. If the process is alive all the same, say with its port closed, its epoch is fenced by
then: it can change nothing, and followers have other leaders.

A broker that advertises a wrong address is alive, too. It registers again, and would be fenced again,
for ever. So a refusal is acted on once, and then no more until somebody has answered at the address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.cluster import layout
from ottla.cluster.store import StoreError

if TYPE_CHECKING:
    from ottla.cluster.metadata import Endpoint, RegisteredBroker
    from ottla.cluster.store import Node
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.liveness")

# How long one attempt to connect may take, and the pause after one that neither came about nor was
# refused, or that was ended at once.
_CONNECT_SECONDS = 2.0
_PAUSE_SECONDS = 0.5


class Liveness:
    """Watches over the processes of other brokers. Belongs to the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watches: dict[int, tuple[RegisteredBroker, asyncio.Task[None]]] = {}
        self._in_office = False
        # Addresses that refused and have not answered since, by broker: whom that was held against, as
        # the epoch of a broker that was fenced, or of a controller against whom this broker stood.
        self._refused: dict[tuple[int, Endpoint], dict[bool, int]] = {}

    def follow(self) -> None:
        """The image or the office changed: watch those who are to be watched now."""
        broker = self._broker
        image = broker.image
        in_office = broker.membership.controller is not None
        if in_office != self._in_office:
            # What is to be done about a dead broker is another thing now, and at once.
            self._in_office = in_office
            self.stop()
        if in_office:
            wanted = {each.id: each for each in image.brokers.values() if each.id != broker.id}
        else:
            holder = image.brokers.get(image.controller_id)
            wanted = {} if holder is None or holder.id == broker.id else {holder.id: holder}
        for broker_id, (peer, task) in list(self._watches.items()):
            if wanted.get(broker_id) != peer:
                task.cancel()
                del self._watches[broker_id]
        for broker_id, peer in wanted.items():
            if broker_id not in self._watches:
                work = self._watch(peer)
                self._watches[broker_id] = peer, broker.spawn(work, f"watch of broker {broker_id}")

    def stop(self) -> None:
        for _, task in self._watches.values():
            task.cancel()
        self._watches.clear()

    async def _watch(self, peer: RegisteredBroker) -> None:
        endpoint = peer.endpoint(self._broker.config.inter_broker_listener)
        if endpoint is None:
            return
        where = peer.id, endpoint
        is_told = False
        while True:
            holder = await self._office_of(peer)
            began = self._broker.loop.time()
            try:
                await _until_ended(endpoint, lambda: self._refused.pop(where, None))
                if self._broker.loop.time() - began < _PAUSE_SECONDS:
                    # It has no room for connections, and would be asked for one thousands of times.
                    await asyncio.sleep(_PAUSE_SECONDS)
            except ConnectionRefusedError:
                if self._is_known_to_refuse(peer, endpoint, holder):
                    if not is_told:
                        is_told = True
                        log.warning(
                            "broker %d has come back, and the address that it advertises to other "
                            "brokers (%s:%d) still refuses connections: it is left alone, as long as "
                            "its session lasts. Correct its advertised.listeners",
                            peer.id, endpoint.host, endpoint.port,
                        )  # fmt: skip
                else:
                    log.warning("broker %d refuses connections: its process has ended", peer.id)
                    await self._is_dead(peer, holder)
                await asyncio.sleep(_PAUSE_SECONDS)
            except (OSError, TimeoutError):
                await asyncio.sleep(_PAUSE_SECONDS)

    def _is_known_to_refuse(
        self, peer: RegisteredBroker, endpoint: Endpoint, holder: Node | None
    ) -> bool:
        """Whether a refusal was held against an earlier registration of this broker, or an earlier term
        of office, and nobody has answered there since."""
        in_office = self._broker.membership.controller is not None
        if not in_office and holder is None:
            return False  # there is nothing to be done about it here
        now = peer.epoch if in_office or holder is None else holder.created
        return self._refused.setdefault((peer.id, endpoint), {}).setdefault(in_office, now) != now

    async def _office_of(self, peer: RegisteredBroker) -> Node | None:
        """The controller's node, if it is that broker's; read before its port is tried."""
        if self._broker.membership.controller is not None:
            return None
        try:
            node = await self._broker.membership.store.get(layout.CONTROLLER)
        except StoreError:
            return None
        return node if layout.decode_controller(node) == peer.id else None

    async def _is_dead(self, peer: RegisteredBroker, holder: Node | None) -> None:
        membership = self._broker.membership
        controller = membership.controller
        try:
            if controller is not None:
                await controller.fence_broker(peer.id, peer.epoch)
            elif holder is not None:
                membership.replace_controller(holder)
        except StoreError as error:
            log.warning("broker %d could not be fenced: %s", peer.id, error)


class _Ended(asyncio.Protocol):
    """Hears of the end of a connection over which nothing is said."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _until_ended(endpoint: Endpoint, connected: Callable[[], object]) -> None:
    """Connects, and returns when that connection has ended. OSError if it does not come about."""
    async with asyncio.timeout(_CONNECT_SECONDS):
        transport, protocol = await _connected(endpoint)
    connected()
    try:
        await protocol.ended
    finally:
        transport.close()


async def _connected(endpoint: Endpoint) -> tuple[asyncio.Transport, _Ended]:
    """A connection to one of the addresses of a name, such as the two of `localhost`.
    ConnectionRefusedError if all of them refuse it (asyncio says that in an error of another kind)."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{endpoint.host} has no address")
    infos = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for at, (family, _, _, _, address) in enumerate(infos):
        host = str(address[0])
        try:
            return await loop.create_connection(_Ended, host, endpoint.port, family=family)
        except OSError as error:
            if not at or isinstance(problem, ConnectionRefusedError):
                problem = error
    raise problem
