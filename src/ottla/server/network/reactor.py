"""The reactor: listening sockets, the connections they accept, and the limits on them.

One event loop serves all of them; docs/adr/0003 says why there is no pool of handler threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from time import perf_counter
from typing import TYPE_CHECKING

from ottla.server.api import Api
from ottla.server.network.connection import EAGER_BYTES, SPARE_BYTES, Connection
from ottla.server.network.platform import HAS_MREMAP
from ottla.server.network.slots import Buffer
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.security.addresses import of_connection

if TYPE_CHECKING:
    from ottla.server.disk.old_data import OldData
    from ottla.server.network.file_range import FileRange
    from ottla.server.security.listeners import ListenerSecurity

log = LimitedLog(logging.getLogger("ottla.reactor"))

SCRATCH_BYTES = 512 << 10
_ACCEPTS_IN_A_ROW = 64
# Large buffers kept for the next request that arrives in parts.
SPARES = 4
# While others wait for memory, the preferred connection (see wait_for_memory) has to send so many
# bytes, or the rest of its request, in this time.
PREFERRED_SECONDS = 10.0
PREFERRED_BYTES = 128 << 10
# How long a client may take until it has proved who it is, and how many may be about it at once: of
# more, those that began first are disconnected, so that a flood of them locks nobody out.
AUTHENTICATION_SECONDS = 30.0
AUTHENTICATING_LIMIT = 1000
# For so long handshakes of TLS go on in one turn of the loop: a flood of them must not keep those
# waiting who are connected. (Tests put another clock in its place.)
HANDSHAKE_SECONDS = 0.001
clock: Callable[[], float] = perf_counter
# The peer has closed its side. (That a connection is broken is always reported.)
_HUNG_UP: int = getattr(select, "POLLRDHUP", 0)


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket, and the name that clients who come in by it are told addresses of."""

    name: str
    sock: socket.socket
    # What its clients have to do before they are served; None: nothing.
    security: ListenerSecurity | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()[:2]
        return host, port


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_request_bytes: int
    max_connections: int
    # Whose connections are taken beyond that limit; then another is closed. None: no listener's.
    protected_listener: str | None
    # Connections that there are descriptors for.
    max_descriptors: int
    max_connections_per_address: int
    max_connections_overrides: Mapping[str, int]
    idle_seconds: float
    # Memory for requests that have arrived in part or wait for a disk, over all connections.
    partial_bytes: int
    send_buffer: int
    receive_buffer: int
    backlog: int


class Reactor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        apis: dict[int, Api],
        limits: ConnectionLimits,
        refuse_version: Callable[[Connection, memoryview, int, int, int], None],
    ) -> None:
        self.loop = loop
        self.apis = apis
        self.limits = limits
        self.refuse_version = refuse_version
        self.now = loop.time
        # Every read goes here first: what has arrived whole is handled in place.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.max_request_bytes = limits.max_request_bytes
        self._spares: list[Buffer] = []
        self.partial_bytes = 0
        self.partial_bytes_limit = limits.partial_bytes
        # For metrics.
        self.received_bytes = 0
        self.sent_bytes = 0
        self.accepted = 0
        self.refused = 0
        self.malformed = 0
        self.failed_handshakes = 0  # of TLS
        self.failed_authentications = 0  # of SASL
        self.crowded_out = 0  # disconnected because too many were about to authenticate
        # For want of memory.
        self.refused_requests = 0
        self.connections: set[Connection] = set()
        # For how many seconds a new connection of an address, on a listener, is not read from; None:
        # there are no such limits.
        self.connection_delay: Callable[[str, str], float] | None = None
        # Has a thread read so much of a range into memory; the broker, which has the threads, sets it.
        self.page_in: Callable[[FileRange, int], asyncio.Future[bool]]
        # What readers of old data may have of the loop; set likewise.
        self.old_data: OldData
        # Connections whose answers leave with `send_gathered`; None: answers leave when they are given.
        self.gathered: list[Connection] | None = None
        self.listeners: list[Listener] = []
        # While the broker stops: done when every connection has been answered.
        self.draining: asyncio.Future[None] | None = None
        # Then: done when no connection is left.
        self._all_closed: asyncio.Future[None] | None = None
        self._by_address: Counter[str] = Counter()
        # Connections that have not proved who they are, the oldest first, with their time limits.
        self._authenticating: dict[Connection, asyncio.TimerHandle] = {}
        # What is to be done next of handshakes.
        self._handshakes: deque[Callable[[], None]] = deque()
        self._handshake_turn: asyncio.Handle | None = None
        # Connections that are not read from and whose peers had hung up at the last look.
        self._hung_up: set[Connection] = set()
        self._waiting_for_memory: deque[Connection] = deque()
        self._preferred: Connection | None = None
        # What it had sent of its request when it was last looked at.
        self._preferred_arrived = 0
        self._preferred_check: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._accept_pause: asyncio.TimerHandle | None = None

    # Answering ----------------------------------------------------------------------------------

    def gather(self) -> None:
        """Collect answers until `send_gathered`, which must follow at once: many are about to be given,
        several of them on one connection."""
        self.gathered = []

    def send_gathered(self) -> None:
        gathered, self.gathered = self.gathered, None
        for connection in gathered or ():
            connection.flush_ready()

    # Listening ----------------------------------------------------------------------------------

    def listen(
        self, name: str, host: str, port: int, security: ListenerSecurity | None = None
    ) -> Listener:
        family = socket.AF_INET6 if ":" in host or host == "" else socket.AF_INET
        if host and ":" not in host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        try:
            sock = _bound(family, host, port, self.limits.backlog)
        except OSError as error:
            if host == "" and family == socket.AF_INET6 and error.errno == errno.EAFNOSUPPORT:
                sock = _bound(socket.AF_INET, "0.0.0.0", port, self.limits.backlog)
            else:
                raise
        listener = Listener(name, sock, security)
        self.listeners.append(listener)
        return listener

    def start(self) -> None:
        for listener in self.listeners:
            self.loop.add_reader(listener.sock.fileno(), self._accept, listener)
        if self.limits.idle_seconds > 0:
            self._schedule_sweep()

    def _accept(self, listener: Listener) -> None:
        for _ in range(_ACCEPTS_IN_A_ROW):
            try:
                sock, peer = listener.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections: %s", error)
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The listening socket stays readable: without a pause this would spin.
                    self._pause_accepting()
                # Anything else is an error of one connection, which is gone with it.
                return
            address = f"{peer[0]}:{peer[1]}"
            try:
                self._add_connection(sock, peer[0], address, listener)
            except (OSError, MemoryError) as error:
                # Reset meanwhile, or the kernel or this process has no memory for it.
                log.warning("connection not taken: peer=%s %r", address, error)
                self._refuse(sock)

    def _pause_accepting(self) -> None:
        for listener in self.listeners:
            self.loop.remove_reader(listener.sock.fileno())
        self._accept_pause = self.loop.call_later(1.0, self._accept_again)

    def _accept_again(self) -> None:
        self._accept_pause = None
        for listener in self.listeners:
            self.loop.add_reader(listener.sock.fileno(), self._accept, listener)

    def _add_connection(
        self, sock: socket.socket, host: str, peer: str, listener: Listener
    ) -> None:
        limits = self.limits
        allowed = limits.max_connections_overrides.get(
            of_connection(host), limits.max_connections_per_address
        )
        count = len(self.connections)
        if count >= limits.max_descriptors:
            # Before the logs run out of them.
            log.warning("no descriptors for more connections: peer=%s open=%d", peer, count)
            self._refuse(sock)
            return
        is_protected = listener.name == limits.protected_listener
        if self._by_address[host] >= allowed or (
            count >= limits.max_connections and not is_protected
        ):
            log.warning("too many connections: peer=%s open=%d", peer, count)
            self._refuse(sock)
            return
        if count >= limits.max_connections:
            self._close_longest_idle()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose machine is gone says nothing; without this it would keep its place until the
        # idle timeout, or for ever where there is none.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer)
        if limits.receive_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer)
        if listener.security is None:
            connection = Connection(self, sock, listener, peer)
        else:
            connection = listener.security.make_connection(self, sock, listener, peer)
            self._await_authentication(connection)
        self.accepted += 1
        self._by_address[host] += 1
        self.connections.add(connection)
        if self.connection_delay is not None:
            delay = self.connection_delay(host, listener.name)
            if delay > 0:
                connection.mute(delay)

    def _close_longest_idle(self) -> None:
        """Make room for another broker: of the connections of others, the one that was idle longest
        is closed."""
        protected = self.limits.protected_listener
        others = [each for each in self.connections if each.listener.name != protected]
        if others:
            idle = min(others, key=lambda each: each.active_at)
            log.warning("connection closed for one of a broker: peer=%s", idle.address)
            idle.close("a broker needs its place")

    def _await_authentication(self, connection: Connection) -> None:
        limit = min(AUTHENTICATING_LIMIT, max(1, self.limits.max_descriptors // 4))
        while len(self._authenticating) >= limit:
            oldest = next(iter(self._authenticating))
            log.warning("too many connections are about to authenticate: peer=%s", oldest.address)
            self.crowded_out += 1
            oldest.close("too many connections are about to authenticate")
        self._authenticating[connection] = self.loop.call_later(
            AUTHENTICATION_SECONDS, connection.close, "it did not authenticate in time"
        )

    def authenticated(self, connection: Connection) -> None:
        """Cancel the time-out of a connection whose peer has proved who it is."""
        timer = self._authenticating.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def shake_hands_in_turn(self, step: Callable[[], None]) -> None:
        """Queue the next step of a handshake, which costs about a millisecond: a turn of the loop has
        time for few."""
        self._handshakes.append(step)
        if self._handshake_turn is None:
            self._handshake_turn = self.loop.call_soon(self._shake_hands)

    def _shake_hands(self) -> None:
        self._handshake_turn = None
        end = clock() + HANDSHAKE_SECONDS
        try:
            while self._handshakes:
                self._handshakes.popleft()()
                if clock() >= end:
                    break
        finally:
            if self._handshakes:
                self._handshake_turn = self.loop.call_soon(self._shake_hands)

    def _refuse(self, sock: socket.socket) -> None:
        sock.close()
        self.refused += 1

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if connection in self._authenticating:
            self.authenticated(connection)
        if connection.authentication is not None:
            connection.authentication.abandon()
        host = connection.address.rpartition(":")[0]
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]
        self.settled()
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    # Limits --------------------------------------------------------------------------------------

    def wait_for_memory(self, connection: Connection) -> None:
        """Stop reading from a connection for now, because incomplete requests hold too much memory.

        One connection, the preferred, is read all the same, or each would wait for all the others.
        """
        if self._preferred is None or self._preferred is connection:
            self._prefer(connection)
        else:
            connection.pause()
            self._waiting_for_memory.append(connection)

    @property
    def has_memory(self) -> bool:
        """Whether less than half of the memory for incomplete requests is in use."""
        return 2 * self.partial_bytes < self.partial_bytes_limit

    def take_buffer(self, size: int) -> Buffer:
        """Memory for an incomplete request; it may be larger than asked for. MemoryError or OSError
        (ENOMEM) if there is none."""
        buffer: Buffer
        if size <= EAGER_BYTES:
            buffer = bytearray(size)
        elif size > SPARE_BYTES:
            # Private: only such a mapping can grow.
            buffer = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
        elif not self.has_memory:
            buffer = mmap(-1, size)
        else:
            # Mapped, since a megabyte is otherwise cleared here and now, a millisecond for which the
            # loop would serve nobody; so the system does it page by page as the bytes come.
            buffer = self._spares.pop() if self._spares else mmap(-1, SPARE_BYTES)
        self.partial_bytes += len(buffer)
        return buffer

    def grow_buffer(self, buffer: Buffer, filled: int, size: int) -> Buffer:
        """A buffer of `size` with the first `filled` bytes of this one. Nothing may refer to this one.

        Above SPARE_BYTES the system moves the mapping without copying a byte, where it can; elsewhere
        the bytes are copied. Sizes double, so that each byte is copied once on average.
        """
        before = len(buffer)
        if HAS_MREMAP and before > SPARE_BYTES and isinstance(buffer, mmap):
            buffer.resize(size)
            self.partial_bytes += size - before
            return buffer
        grown = self.take_buffer(size)
        with memoryview(buffer) as old, memoryview(grown) as new:
            new[:filled] = old[:filled]
        self.give_buffer_back(buffer)
        return grown

    def give_buffer_back(self, buffer: Buffer) -> None:
        self.partial_bytes -= len(buffer)
        if len(buffer) == SPARE_BYTES and len(self._spares) < SPARES:
            self._spares.append(buffer)

    def memory_released(self, connection: Connection | None) -> None:
        """Go on reading from connections that wait for memory, if there is enough. `connection` is the
        one whose incomplete request is complete or given up."""
        if connection is not None and connection is self._preferred:
            self._preferred = None
        waiting = self._waiting_for_memory
        while waiting and (
            self.partial_bytes <= self.partial_bytes_limit or self._preferred is None
        ):
            following = waiting.popleft()
            if not following.closed:
                if self._preferred is None:
                    self._prefer(following)
                self.loop.call_soon(following.unpause)

    def _prefer(self, connection: Connection) -> None:
        if connection is not self._preferred:
            self._preferred = connection
            self._look_at_preferred(connection)

    def _look_at_preferred(self, connection: Connection) -> None:
        """Remember how much the preferred connection has sent, and compare in a while."""
        self._preferred_arrived = connection.arrived
        if self._preferred_check is not None:
            self._preferred_check.cancel()
        self._preferred_check = self.loop.call_later(PREFERRED_SECONDS, self._check_preferred)

    def _check_preferred(self) -> None:
        """A preferred connection that sends next to nothing is closed, so that another can be it."""
        self._preferred_check = None
        preferred = self._preferred
        if preferred is None:
            return
        progress = preferred.arrived - self._preferred_arrived
        if self._waiting_for_memory and progress < PREFERRED_BYTES:
            log.warning("request sent too slowly while others wait: peer=%s", preferred.address)
            preferred.close("too slow while memory is short")
        else:
            self._look_at_preferred(preferred)

    def close_hung_up(self) -> None:
        """Close connections whose peers hung up while a request that waits keeps them unread.

        A peer that closed only its own side may still want its answer: it gets the time between two
        calls for it.
        """
        unread = {each.fd: each for each in self.connections if not each.is_read}
        poll = select.poll()
        for fd in unread:
            poll.register(fd, _HUNG_UP)
        hung_up = {unread[fd] for fd, _ in poll.poll(0)}
        for connection in hung_up & self._hung_up:
            connection.close("closed by the peer")
        self._hung_up = hung_up - self._hung_up

    def _schedule_sweep(self) -> None:
        self._sweep = self.loop.call_later(self.limits.idle_seconds / 4, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.loop.time() - self.limits.idle_seconds
        for connection in [
            c for c in self.connections if c.active_at < oldest and c.exclusive is None
        ]:
            connection.close(f"idle for {self.limits.idle_seconds:.0f} s")
        self._schedule_sweep()

    # The end ------------------------------------------------------------------------------------

    def stop_listening(self) -> None:
        for timer in (self._sweep, self._accept_pause, self._preferred_check):
            if timer is not None:
                timer.cancel()
        for listener in self.listeners:
            self.loop.remove_reader(listener.sock.fileno())
            listener.sock.close()
        self.listeners.clear()

    async def drained(self, seconds: float) -> None:
        """Wait until all answers were sent, but not longer than this for peers that do not read."""
        if all(c.idle for c in self.connections):
            return
        self.draining = self.loop.create_future()
        await asyncio.wait([self.draining], timeout=seconds)

    def settled(self) -> None:
        """End the draining if all has been sent: a connection has nothing more to send, or is gone."""
        draining = self.draining
        if draining is not None and not draining.done() and all(c.idle for c in self.connections):
            draining.set_result(None)

    async def close(self, seconds: float) -> None:
        """Close all connections; peers get some time to close their side first."""
        for connection in list(self.connections):
            connection.close_when_sent()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait([self._all_closed], timeout=seconds)
        for connection in list(self.connections):
            connection.close("the broker stops")


def _bound(family: int, host: str, port: int, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
