"""One session with ZooKeeper on kazoo's connection thread, and the way from there to the loop.

kazoo connects, authenticates, pings, reconnects and speaks the protocol. What it lacks, or does in a
way that a broker cannot use, is mended here, in the three places where it can be:

- `_Handler`: kazoo has one thread that owns the socket and two more that call back. Callbacks of two
  threads have no order between them; so here is only the first, and all it has to tell (answers,
  changes, states) goes to the loop through one queue, in the order in which the server sent it.
- `_Connection`: persistent recursive watches, which kazoo does not know; the moments at which the
  server was heard; an end to connections on which requests go out and nothing comes back (kazoo
  counts its own requests as signs of life); no new session once this one has expired.
- the requests `AddWatch` and `MultiRead`, which kazoo does not have either.

A ping goes out only if the event loop has run since the one before. So a broker whose loop hangs
loses its session, as one whose process is stopped does, although kazoo's thread is well.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionDropped,
    NoNodeError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    Transaction,
    Watch,
    int_struct,
    multiheader_struct,
    write_string,
)
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from ottla.cluster.store import ChangeKind, SessionEvent, boottime
from ottla.cluster.zookeeper.address import Address
from ottla.cluster.zookeeper.security import Credentials, Scheme, Tls

log = logging.getLogger("ottla.cluster.zookeeper")
# kazoo has a line for each attempt to connect; what matters of that is logged by the store.
_kazoo_log = logging.getLogger("ottla.cluster.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)

# Pauses between attempts to reach one of the servers. They are short: a session may be at stake.
_RETRY: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_PERSISTENT_RECURSIVE: Final = 1
# A length beyond this is none: something else than a ZooKeeper answers.
_LARGEST_ANSWER: Final = 1 << 28
NOT_ZOOKEEPER: Final = "what answers there is not a ZooKeeper"
_KINDS: Final = {1: ChangeKind.CREATED, 2: ChangeKind.DELETED, 3: ChangeKind.SET}


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Asks for every change of a node and of all below it, until the connection ends."""

    path: str

    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(_PERSISTENT_RECURSIVE))

    @classmethod
    def deserialize(cls, _data: bytes, _offset: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Reads several nodes with one request. The answer is a list of (value, stat), or None where
    there is no such node."""

    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        packed = bytearray()
        header = MultiHeader(GetData.type, False, -1).serialize()
        for path in self.paths:
            packed += header
            packed += GetData(path, None).serialize()
        return bytes(packed + multiheader_struct.pack(-1, True, -1))

    def deserialize(self, data: bytes, offset: int) -> list[tuple[bytes | None, Any] | None]:
        results: list[tuple[bytes | None, Any] | None] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return results
            if header.type == GetData.type:
                value, stat = GetData.deserialize(data, offset)
                results.append((value, stat))
                offset += 4 + len(value or b"") + _STAT_SIZE
                continue
            (error,) = int_struct.unpack_from(data, offset)
            offset += int_struct.size
            if error != NoNodeError.code:
                raise EXCEPTIONS[error](self.paths[len(results)])
            results.append(None)


_STAT_SIZE: Final = 68


class StateChange(NamedTuple):
    """The session was connected, suspended or lost, for this reason."""

    event: SessionEvent
    reason: str


class NodeChange(NamedTuple):
    """A watched node has changed."""

    path: str
    kind: ChangeKind


class Answered(NamedTuple):
    """A request has been answered, or never will be."""

    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


Event = StateChange | NodeChange | Answered


class Session:
    """kazoo's client for one session. `hear` gets what happens, in order, on the loop.

    The attributes without an underscore are written by the connection's thread and read by the loop.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        credentials: Credentials | None,
        tls: Tls | None,
        hear: Callable[[Event], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hear = hear
        self._inbox: deque[Event] = deque()
        self._delivery_is_due = False
        self._loop_has_run = True
        self.timeout = timeout  # as negotiated, once connected
        # When what the server last answered was sent (boottime): it had not given us up then.
        self.last_contact = 0.0
        # The same for changes only, which the ensemble's leader and a majority have answered.
        self.last_commit = 0.0
        self.session_id = 0
        self._has_begun = False
        self.over = False
        self.problem = "nothing has been tried yet"  # what last went wrong with a connection
        sasl = None
        if credentials is not None and credentials.scheme is Scheme.SASL:
            sasl = {
                "mechanism": "DIGEST-MD5",
                "username": credentials.user,
                "password": credentials.password,
            }
        handler = _Handler(len(address.servers))
        self._client = _Client(
            self,
            hosts=address.hosts,
            timeout=timeout,
            handler=handler,
            logger=_kazoo_log,
            connection_retry=KazooRetry(sleep_func=handler.sleep_func, **_RETRY),
            auth_data=(
                {("digest", f"{credentials.user}:{credentials.password}")}
                if credentials is not None and credentials.scheme is Scheme.DIGEST
                else None
            ),
            **({} if tls is None else _tls_options(tls)),
        )
        self.connection = _Connection(
            self._client, self._client._conn_retry.copy(), logger=_kazoo_log, sasl_options=sasl
        )
        self.connection.session = self
        self._client._connection = self.connection

    # For the loop

    def begin(self) -> None:
        """Starts to connect. OSError if there is no descriptor for that."""
        self._client.start_async()
        self._has_begun = True

    def send(self, request: Any, future: asyncio.Future[Any]) -> None:
        """Sends a request; `hear` is told when the future is to be settled, and how."""
        self._client._call(request, _Result(self, future))

    def drop_connection(self) -> None:
        """Breaks the connection; kazoo makes another."""
        connection = self.connection._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                # Not that of a TLS socket, which would take its state away from the other thread.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def end(self) -> None:
        """Closes the session if it can, and lets go of the thread. Blocks: not for the loop."""
        self.problem = "the session was closed"
        if not self._has_begun:
            return
        try:
            self._client.stop()
            self._client.close()
        except WriterNotClosedException:
            log.warning("the session 0x%x could not be closed, and will time out", self.session_id)

    # For the connection's thread

    def post(self, event: Event) -> None:
        """Puts an event into the loop's queue; from any thread."""
        self._inbox.append(event)
        if not self._delivery_is_due:
            self._delivery_is_due = True
            self._call_loop(self._deliver)

    def connected(self, begun: float, timeout: float) -> None:
        self.timeout = timeout
        self.session_id = self._client._session_id
        self.last_contact = max(self.last_contact, begun)
        self.post(StateChange(SessionEvent.CONNECTED, ""))

    def suspended(self) -> None:
        self.post(StateChange(SessionEvent.SUSPENDED, self.problem))

    def lost(self, reason: str) -> None:
        self.over = True
        self.post(StateChange(SessionEvent.LOST, reason))

    def loop_is_alive(self) -> bool:
        """Whether the loop has run since the last time somebody asked."""
        alive, self._loop_has_run = self._loop_has_run, False
        self._call_loop(self._note_run)
        return alive

    def _call_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            self.over = True  # the loop is closed: nobody listens any more

    # On the loop again

    def _deliver(self) -> None:
        self._delivery_is_due = (
            False  # first: what is posted from here on asks for another delivery
        )
        while self._inbox:
            self._hear(self._inbox.popleft())

    def _note_run(self) -> None:
        self._loop_has_run = True


class _Result:
    """What kazoo puts an answer into."""

    __slots__ = ("_future", "_session")

    def __init__(self, session: Session, future: asyncio.Future[Any]) -> None:
        self._session = session
        self._future = future

    def set(self, value: Any = None) -> None:
        self._session.post(Answered(self._future, value, None))

    def set_exception(self, error: Exception) -> None:
        self._session.post(Answered(self._future, None, error))


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's way to threads and sockets, without the threads for callbacks."""

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._servers = servers

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(
            target=func, args=args, kwargs=kwargs, name="zookeeper", daemon=True
        )
        thread.start()
        return thread

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        # kazoo would wait a whole session for one server that is cut off, while the others live.
        kwargs["timeout"] /= self._servers
        connection = super().create_connection(*args, **kwargs)
        if connection.getsockname() == connection.getpeername():
            # On one machine, while the server is down: the system has given our end the server's
            # port, and we speak to ourselves.
            connection.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return connection

    def select(
        self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        # What TLS has decrypted already, no system call tells of.
        readable = [each for each in rlist if getattr(each, "pending", int)() > 0]
        poll = select.poll()
        for each in rlist:
            poll.register(each, select.POLLIN)
        for each in wlist:
            poll.register(each, select.POLLOUT)
        wait = 0 if readable else None if timeout is None else timeout * 1000
        found = {descriptor for descriptor, _ in poll.poll(wait)}
        return (
            [each for each in rlist if each.fileno() in found or each in readable],
            [each for each in wlist if each.fileno() in found],
            list(xlist)[:0],
        )


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, which tells of its states before it gives up the requests under way: whoever
    gets no answer finds the session suspended, and what is asked then waits for a connection."""

    def __init__(self, session: Session, **options: Any) -> None:
        self._session = session
        super().__init__(**options)

    def _session_callback(self, state: str) -> None:
        # That a connection stands is told by `connected`: here it has not been authenticated yet.
        if state == KeeperState.CONNECTING:
            self._session.suspended()
        elif state in CLOSED_STATES:
            self._session.lost(self._session.problem)
        super()._session_callback(state)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection; all of it runs on its thread."""

    session: Session

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: deque[float] = deque()  # when each request that waits for its answer was sent
        self._ping_sent = 0.0
        self._heard = 0.0
        self._was_connected = False  # and authenticated, at least once
        self._distrusted = ""  # why a server is not who it should be, in this round of attempts
        self._peer = ""

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        if not found:
            hosts = ", ".join(host for host, _ in self.client.hosts)
            self.session.problem = f"no address is known for {hosts}"
        return found

    def _connect_loop(self, retry: Any) -> Any:
        self._distrusted = ""
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            if not self._distrusted or self._was_connected:
                raise
            # Wrong certificates do not become right by waiting.
            self.session.lost(self._distrusted)
            return STOP_CONNECTING

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        status = super()._connect_attempt(host, hostip, port, retry)
        # kazoo would go on with a new session, which somebody else has to ask for.
        return STOP_CONNECTING if self.session.over else status

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        session = self.session
        self._sent.clear()
        begun = self._heard = boottime()
        self._peer = f"{host}:{port}"
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except Exception as error:
            session.problem = f"{self._peer}: {_sentence(error)}"
            if isinstance(error.__context__, ssl.SSLCertVerificationError):
                self._distrusted = session.problem
            raise
        self._was_connected = True
        # kazoo keeps two thirds of the session's time-out, and not the time-out itself.
        session.connected(begun, read_timeout * 1.5 / 1000)
        return read_timeout, connect_timeout

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except AuthFailedError as error:
            # A server that goes down closes its connections as one that refuses us does. Who was
            # let in before tries again, for as long as the session lives.
            if self._was_connected and isinstance(error.__cause__, ConnectionDropped):
                raise error.__cause__ from error
            raise

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= _LARGEST_ANSWER:
            raise self._dropped(NOT_ZOOKEEPER)
        answer: bytes = super()._read(length, timeout)
        return answer

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        now = boottime()
        if self._sent and now - max(self._heard, self._sent[0]) > read_timeout:
            raise self._dropped("no answer came")
        before = len(self.client._pending)
        super()._send_request(read_timeout, connect_timeout)
        if len(self.client._pending) > before:
            self._sent.append(now)

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        session = self.session
        if self._sent:
            sent = self._sent.popleft()
            session.last_contact = max(session.last_contact, sent)
            pending = self.client._pending
            if pending and pending[0][0].type == Transaction.type and not header.err:
                session.last_commit = max(session.last_commit, sent)
        return super()._read_response(header, buffer, offset)

    def _read_socket(self, read_timeout: float) -> Any:
        pinged = self.ping_outstanding.is_set()
        try:
            response = super()._read_socket(read_timeout)
        except ConnectionDropped as error:
            raise self._dropped(str(error)) from error
        self._heard = boottime()
        if pinged and not self.ping_outstanding.is_set():
            self.session.last_contact = max(self.session.last_contact, self._ping_sent)
        return response

    def _send_ping(self, connect_timeout: float) -> None:
        if self.session.loop_is_alive():
            self._ping_sent = boottime()
            super()._send_ping(connect_timeout)
        else:
            log.warning("the event loop hangs: no heartbeat is sent to ZooKeeper for it")

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(buffer, offset)
        kind = _KINDS.get(watch.type)
        # Some versions tell of children besides; who watches a subtree knows from the children.
        if kind is not None:
            self.session.post(NodeChange(watch.path, kind))

    def _dropped(self, reason: str) -> ConnectionDropped:
        self.session.problem = f"{self._peer}: {reason}"
        return ConnectionDropped(reason)


def _tls_options(tls: Tls) -> dict[str, Any]:
    return {
        "use_ssl": True,
        "ca": tls.ca,
        "certfile": tls.certificate,
        "keyfile": tls.key or tls.certificate,
        "keyfile_password": tls.key_password,
        "verify_certs": tls.verify,
        "check_hostname": tls.verify and tls.check_hostname,
    }


def _sentence(error: Exception) -> str:
    text = str(error).removeprefix("socket connection error: ")
    if isinstance(error, AuthFailedError):
        return "it refuses the user and password"
    if text == "socket connection broken":
        return "it closed the connection without an answer"
    if "time-out" in text or isinstance(error, TimeoutError | socket.timeout):
        return "no answer came"
    return text[:1].lower() + text[1:] if text else type(error).__name__
