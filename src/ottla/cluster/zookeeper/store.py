"""The store of a cluster: a session with ZooKeeper.

What was in doubt is settled by `sync`
    A multi whose connection broke may be anywhere: in a buffer, at a server, on its way to the leader.
    ZooKeeper keeps the order of requests only within one connection, and its own `sync` is answered by
    a leader that need not be the leader any more. So `sync` here is a change, of nothing: a multi with
    one Check, which the leader and a majority must log. Once that is answered on a new connection,
    an older multi of this session

    - either reached the same leader before: it stands before the sync in the one order of all changes,
      and reads on this connection see it;
    - or reaches the leader later by another server: refused, for the leader knows that the session has
      moved (SESSIONMOVED), or that it is over;
    - or waits in the buffers of an old connection to this server: the server has closed that one
      before it took the session over.

    One gap is left that no client can close: a server's thread that has taken a request from an old
    connection and is held up right there until after the session came back to that same server and the
    sync was done. Therefore what may be in doubt has to be conditional: see `Unknown`.

Sizes
    A server closes the connection of who sends more than its jute.maxbuffer (1,048,575 bytes unless
    set otherwise), and nothing can be learned from that. So a multi above `largest_request` bytes is
    not sent, but raises StoreError. That many bytes hold all of a multi: its paths, values and ACLs.

Watches
    One persistent recursive watch for each watched node. A connection's watches end with it; after
    each reconnect they are set again, and then RESYNC is told.

Time
    `last_contact` is when the request that was last answered had been sent. The server that answered
    had not given up the session at that moment; the ensemble may yet have done so if that server was
    cut off from it. `last_commit` is the same for changes, which the leader itself has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from ottla.cluster.layout import OWN_NAMES, REVISION
from ottla.cluster.session import SessionStore, settle
from ottla.cluster.store import (
    ANY_VERSION,
    Answer,
    Change,
    ChangeKind,
    Conflict,
    Create,
    Delete,
    Node,
    Ok,
    Operation,
    Refusal,
    SessionEvent,
    SessionLost,
    Set,
    StoreError,
    StoreUnavailable,
    Stream,
    Unknown,
    check_path,
    is_within,
)
from ottla.cluster.zookeeper.address import Address, parse_address
from ottla.cluster.zookeeper.security import Credentials, Scheme, Tls

if TYPE_CHECKING:
    from ottla.cluster.zookeeper.session import Event, Session

log = logging.getLogger("ottla.cluster.zookeeper")

SESSION_TIMEOUT: Final = 6.0
START_TIMEOUT: Final = 15.0
LARGEST_REQUEST: Final = 1_000_000
# Half a MiB at most, so that a multi never meets the limit of a server.
LARGEST_MULTI: Final = 400 << 10
# Requests that kazoo has at one time. Each costs it a byte in a socket pair's buffer, and a full
# buffer would block the loop.
_WINDOW: Final = 64
_PATHS_IN_A_READ: Final = 64  # with values as large as they may be, a server has to hold them
_OPERATION_OVERHEAD: Final = 64  # bytes; above what any operation takes besides path and value
_RESERVED: Final = "zookeeper"  # ZooKeeper's own node in the root


class ZooKeeperStore(SessionStore):
    """A session with ZooKeeper, as the module's docstring describes it."""

    largest_multi = LARGEST_MULTI

    def __init__(
        self,
        connect: str | Address,
        *,
        session_timeout: float = SESSION_TIMEOUT,
        start_timeout: float = START_TIMEOUT,
        credentials: Credentials | None = None,
        closes_nodes: bool = True,
        tls: Tls | None = None,
        largest_request: int = LARGEST_REQUEST,
    ) -> None:
        """`connect` is `host:port,…/path`; the path is made if it is not there. ValueError if it is
        no address. Times are in seconds. `closes_nodes`: what is made with credentials is open to
        their user only."""
        super().__init__()
        self.address = parse_address(connect) if isinstance(connect, str) else connect
        self._chroot = self.address.chroot
        self._asked_timeout = session_timeout
        self._start_timeout = start_timeout
        self._credentials = credentials
        self._closes_nodes = closes_nodes
        self._node_acl: Any = None  # made when it is first needed
        self._tls = tls
        self._largest_request = largest_request
        self._session: Session | None = None
        self._watches: list[tuple[str, Stream[Change]]] = []  # by full path
        self._first_event: asyncio.Future[None] | None = None
        # Requests that wait for the window or for a connection, and those that kazoo has.
        self._held: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._sent: set[asyncio.Future[Any]] = set()
        # What to do at once when a watch is set, before any change that it tells of.
        self._watch_answers: dict[asyncio.Future[Any], Callable[[Exception | None], None]] = {}
        self._disconnected_timer: asyncio.TimerHandle | None = None
        self._disconnected_for_long = False

    # The session

    @property
    def session_id(self) -> int:
        return 0 if self._session is None else self._session.session_id

    @property
    def session_timeout(self) -> float:
        """As negotiated with the server; what was asked for, until it is."""
        return self._asked_timeout if self._session is None else self._session.timeout

    @property
    def last_contact(self) -> float:
        return 0.0 if self._session is None else self._session.last_contact

    @property
    def answers_can_be_stale(self) -> bool:
        """A server answers for a while when it is cut off from the others, who end the session."""
        return True

    @property
    def last_commit(self) -> float:
        """As `last_contact`, for the last change (or `sync`) that the ensemble has made."""
        return 0.0 if self._session is None else self._session.last_commit

    async def start(self) -> None:
        if self._session is not None:
            raise RuntimeError("the store was started before")
        if (
            self._credentials is not None
            and self._credentials.scheme is Scheme.SASL
            and find_spec("puresasl") is None
        ):
            raise StoreError(
                "SASL with ZooKeeper needs pure-sasl: `pip install 'ottla[zookeeper-sasl]'`"
            )
        from ottla.cluster.zookeeper.session import Session

        self._session = session = Session(
            self.address, self._asked_timeout, self._credentials, self._tls, self._hear
        )
        self._first_event = asyncio.get_running_loop().create_future()
        try:
            try:
                session.begin()
            except OSError as error:
                raise StoreError(
                    f"cannot connect to ZooKeeper: {error.strerror or error}"
                ) from error
            try:
                await asyncio.wait_for(self._first_event, self._start_timeout)
            except TimeoutError:
                raise StoreError(await self._why_nobody_answers()) from None
            if self._state is not SessionEvent.CONNECTED:
                raise StoreError(f"cannot connect to ZooKeeper: {self._lost_because}")
            async with asyncio.timeout(self._start_timeout):
                await self._open_chroot()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError | StoreUnavailable | SessionLost):
                raise StoreError(
                    f"the ZooKeeper at {self.address.hosts} took the connection, and then did not "
                    f"answer: {session.problem}"
                ) from error
            raise

    async def close(self) -> None:
        session = self._session
        if session is not None:
            if self._held and self._state is SessionEvent.CONNECTED:
                # What was begun goes to the server before the session's end does.
                with contextlib.suppress(StoreError):
                    await self.get("/")
            if self._state is not SessionEvent.LOST:
                self._state = SessionEvent.SUSPENDED  # from here on nothing more is sent
            await asyncio.to_thread(session.end)
        self._lose("the session was closed")

    # Reads

    async def get(self, path: str) -> Node | None:
        from kazoo.exceptions import NoNodeError
        from kazoo.protocol.serialization import GetData

        self._require_session()
        check_path(path)
        try:
            return _node(*await self._read(GetData(self._full(path), None)))
        except NoNodeError:
            return None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        from ottla.cluster.zookeeper.session import MultiRead

        self._require_session()
        full = []
        for path in paths:
            check_path(path)
            full.append(self._full(path))
        parts = await asyncio.gather(
            *(
                self._read(MultiRead(full[first : first + _PATHS_IN_A_READ]))
                for first in range(0, len(full), _PATHS_IN_A_READ)
            )
        )
        return [None if found is None else _node(*found) for part in parts for found in part]

    async def children(self, path: str) -> list[str] | None:
        from kazoo.exceptions import NoNodeError
        from kazoo.protocol.serialization import GetChildren

        self._require_session()
        check_path(path)
        try:
            names: list[str] = sorted(await self._read(GetChildren(self._full(path), None)))
        except NoNodeError:
            return None
        if path == "/" and not self._chroot and _RESERVED in names:
            names.remove(_RESERVED)
        return names

    # Changes

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        from kazoo.exceptions import KazooException
        from kazoo.protocol.serialization import Transaction

        self._require_session()
        size = 0
        for operation in operations:
            check_path(operation.path)
            size += len(operation.path.encode()) + len(self._chroot) + _OPERATION_OVERHEAD
            if isinstance(operation, Create | Set):
                size += len(operation.value)
        if size > self._largest_request:
            raise StoreError(
                f"a change of {size} bytes is too large for ZooKeeper, which takes up to "
                f"{self._largest_request} (see its jute.maxbuffer)"
            )
        if not operations:
            return Ok(())
        request = Transaction([self._translate(operation) for operation in operations])
        try:
            results = await self._submit(request)
        except (KazooException, StoreError) as error:
            return Unknown(self._reason(error))
        return self._answer(operations, results)

    async def sync(self) -> None:
        from kazoo.protocol.serialization import CheckVersion, Transaction

        self._require_session()
        await self._read(Transaction([CheckVersion(self._full("/"), ANY_VERSION)]))

    def _translate(self, operation: Operation) -> Any:
        from kazoo.protocol import serialization

        path = self._full(operation.path)
        if isinstance(operation, Create):
            return serialization.Create(
                path, operation.value, self._acl(), int(operation.ephemeral)
            )
        if isinstance(operation, Set):
            return serialization.SetData(path, operation.value, operation.version)
        if isinstance(operation, Delete):
            return serialization.Delete(path, operation.version)
        return serialization.CheckVersion(path, operation.version)

    def _answer(self, operations: Sequence[Operation], results: Sequence[Any]) -> Answer:
        from kazoo import exceptions

        refusals = {
            exceptions.NoNodeError: Refusal.NO_NODE,
            exceptions.NodeExistsError: Refusal.NODE_EXISTS,
            exceptions.BadVersionError: Refusal.BAD_VERSION,
            exceptions.NotEmptyError: Refusal.NOT_EMPTY,
            exceptions.NoChildrenForEphemeralsError: Refusal.PARENT_IS_EPHEMERAL,
        }
        # Those before the one that failed were rolled back, those after it were not tried.
        bystanders = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        known: dict[str, int] = {}
        versions = []
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            path = operation.path
            if isinstance(result, bystanders):
                continue
            if isinstance(result, Exception):
                reason = refusals.get(type(result))
                if reason is None:
                    raise StoreError(self._forbidden(result, path)) from result
                if reason is Refusal.NO_NODE and isinstance(operation, Create):
                    reason = Refusal.NO_PARENT
                return Conflict(index, reason)
            if isinstance(operation, Create):
                known[path] = 0
            elif isinstance(operation, Set):
                known[path] = result.version
            elif isinstance(operation, Delete):
                known[path] = -1
            elif operation.version != ANY_VERSION:
                known[path] = operation.version
            versions.append(known.get(path, ANY_VERSION))
        return Ok(tuple(versions))

    def _acl(self) -> Any:
        """Who may do what with a node of ours. The user is named, and it is not left to ZooKeeper to say
        who we are: to it a client's certificate is somebody, too."""
        from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

        if self._node_acl is None:
            known = self._credentials if self._closes_nodes else None
            if known is None:
                self._node_acl = OPEN_ACL_UNSAFE
            elif known.scheme is Scheme.SASL:
                self._node_acl = [make_acl("sasl", known.user, all=True)]
            else:
                self._node_acl = [make_digest_acl(known.user, known.password, all=True)]
        return self._node_acl

    # Watches

    def watch(self, path: str) -> Stream[Change]:
        self._require_session()
        check_path(path)
        stream: Stream[Change] = Stream()
        self._watches = [entry for entry in self._watches if not entry[1].closed]
        root = self._full(path)
        self._watches.append((root, stream))
        if self._state is SessionEvent.CONNECTED:
            self._set_watch(root)  # otherwise with the next connection
        return stream

    def _set_watch(self, root: str, *, first: bool = False, resync: bool = False) -> None:
        """Sets a watch on the server; then tells of RESYNC if changes may have been missed."""
        from kazoo.exceptions import ConnectionLoss, SessionExpiredError

        from ottla.cluster.zookeeper.session import AddWatch

        lost = (StoreError, ConnectionLoss, SessionExpiredError)

        def is_set(error: Exception | None) -> None:
            if error is None:
                if resync:
                    self._tell(Change(self._own(root), ChangeKind.RESYNC))
            elif not isinstance(error, lost):  # then it is set with the next connection
                log.error("ZooKeeper did not take a watch of %s: %s", root, self._reason(error))
                if self._session is not None:
                    self._session.drop_connection()

        answer = self._submit(AddWatch(root), first=first)
        answer.add_done_callback(asyncio.Future.exception)  # nobody else looks at it
        self._watch_answers[answer] = is_set

    def _tell(self, change: Change) -> None:
        for root, stream in self._watches:
            if change.kind is ChangeKind.RESYNC:
                if self._own(root) == change.path:
                    stream.push(change)
            elif is_within(change.path, self._own(root)):
                stream.push(change)

    # Requests and their answers

    async def _read(self, request: Any) -> Any:
        """Asks, and raises what the interface knows if there is no answer, or NoNodeError."""
        from kazoo.exceptions import InvalidACLError, KazooException, NoAuthError, NoNodeError

        try:
            return await self._submit(request)
        except NoNodeError:
            raise
        except (NoAuthError, InvalidACLError) as error:
            raise StoreError(self._forbidden(error, getattr(request, "path", "/"))) from error
        except KazooException as error:
            self._require_session()
            raise StoreUnavailable(self._reason(error)) from error

    def _submit(self, request: Any, *, first: bool = False) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._disconnected_for_long:
            future.set_exception(StoreUnavailable(self._reason(None)))
        elif first:
            self._held.appendleft((request, future))
        else:
            self._held.append((request, future))
        self._pump()
        return future

    def _pump(self) -> None:
        """Hands over to kazoo what it may have now."""
        session = self._session
        assert session is not None
        connected = self._state is SessionEvent.CONNECTED
        while connected and self._held and len(self._sent) < _WINDOW:
            request, future = self._held.popleft()
            # A multi is sent even if its caller does not wait any more; see Store.multi.
            self._sent.add(future)
            session.send(request, future)

    def _hear(self, event: Event) -> None:
        """Whatever comes from the connection's thread, in order."""
        from ottla.cluster.zookeeper.session import Answered, StateChange

        if isinstance(event, Answered):
            self._sent.discard(event.future)
            settle(event.future, event.result, event.error)
            is_set = self._watch_answers.pop(event.future, None)
            if is_set is not None:
                is_set(event.error)
            self._pump()
        elif isinstance(event, StateChange):
            self._change(event.event, event.reason)
        elif is_within(event.path, self._chroot or "/"):
            path = self._own(event.path)
            if self._chroot or not is_within(path, f"/{_RESERVED}"):
                self._tell(Change(path, event.kind))

    def _change(self, event: SessionEvent, reason: str) -> None:
        if self._state is SessionEvent.LOST:
            return
        assert self._session is not None
        starting = self._first_event is not None and not self._first_event.done()
        if event is SessionEvent.LOST:
            self._lose(reason)
        elif event is SessionEvent.SUSPENDED:
            if starting or self._state is SessionEvent.SUSPENDED:
                return
            log.warning("the connection to ZooKeeper is lost: %s", reason)
            self._become(event)
            self._disconnected_timer = asyncio.get_running_loop().call_later(
                self.session_timeout, self._give_up_held
            )
        else:
            self._become(event)
            self._stop_disconnected_timer()
            if not starting:
                log.info("connected to ZooKeeper again, with session 0x%x", self.session_id)
            for root in dict.fromkeys(root for root, stream in self._watches if not stream.closed):
                self._set_watch(root, first=True, resync=True)
            self._pump()
        if starting and self._first_event is not None:
            self._first_event.set_result(None)

    def _lose(self, reason: str) -> None:
        if self._state is SessionEvent.LOST:
            return
        log.info("the session 0x%x with ZooKeeper is over: %s", self.session_id, reason)
        self._lost_because = reason
        self._become(SessionEvent.LOST)
        self._stop_disconnected_timer()
        # kazoo answers all it had, but for what was handed to it in the moment of the end.
        error = SessionLost(self._lost_because)
        for future in (*self._sent, *(future for _, future in self._held)):
            settle(future, None, error)
        self._sent.clear()
        self._held.clear()
        self._watch_answers.clear()
        for _, watch in self._watches:
            watch.close()

    def _give_up_held(self) -> None:
        """Fail the requests that wait for a connection: there was none for the time of a session."""
        self._disconnected_for_long = True
        held, self._held = self._held, deque()
        for _, future in held:
            self._watch_answers.pop(future, None)  # it is set with the next connection
            settle(future, None, StoreUnavailable(self._reason(None)))

    def _stop_disconnected_timer(self) -> None:
        self._disconnected_for_long = False
        if self._disconnected_timer is not None:
            self._disconnected_timer.cancel()
            self._disconnected_timer = None

    def _require_session(self) -> None:
        # Requests wait while there is no connection.
        if self._session is None or self._state is SessionEvent.LOST:
            raise SessionLost(self._lost_because)

    # The start, and words for what went wrong

    async def _open_chroot(self) -> None:
        """Makes the node that our tree stands below, and sees whether the server is new enough."""
        from kazoo import exceptions
        from kazoo.protocol.serialization import Create, Exists
        from kazoo.security import OPEN_ACL_UNSAFE

        from ottla.cluster.zookeeper.session import AddWatch

        await self._check_not_inside_another()
        made = ""
        if self._chroot and await self._read(Exists(self._chroot, None)) is None:
            for name in self._chroot.split("/")[1:]:
                made = f"{made}/{name}"
                # What is above our tree may be above the trees of others, too.
                acl = self._acl() if made == self._chroot else OPEN_ACL_UNSAFE
                try:
                    await self._submit(Create(made, b"", acl, 0))
                except exceptions.NodeExistsError:
                    continue
                except exceptions.NoAuthError as error:
                    raise StoreError(self._forbidden(error, made)) from error
                except exceptions.NoChildrenForEphemeralsError as error:
                    raise StoreError(
                        f"'{self._chroot}' cannot be made in ZooKeeper, for a node above it is "
                        "ephemeral: choose another path"
                    ) from error
                except exceptions.KazooException as error:
                    raise StoreUnavailable(self._reason(error)) from error
        try:
            # On a node that nobody makes, so that nothing comes of it.
            await self._submit(AddWatch(f"{self._chroot}/{_RESERVED}-3.6"))
        except exceptions.UnimplementedError as error:
            raise StoreError(
                f"the ZooKeeper at {self.address.hosts} is too old: 3.6 or later is needed"
            ) from error
        except exceptions.KazooException as error:
            raise StoreUnavailable(self._reason(error)) from error

    async def _check_not_inside_another(self) -> None:
        """StoreError if our path lies below a node of another cluster (its /brokers, say), where ours
        would be taken for its topics, brokers and so on. Beside such a node there is room: a cluster may
        stand in the root, and others in paths of their own."""
        from kazoo.protocol.serialization import Exists

        async def is_cluster(path: str) -> bool:
            return await self._read(Exists(path + REVISION, None)) is not None

        above = ""
        for name in self._chroot.split("/")[1:]:
            if name in OWN_NAMES and await is_cluster(above) and not await is_cluster(self._chroot):
                raise StoreError(
                    f"'{self._chroot}' is inside of the cluster at '{above or '/'}' in ZooKeeper: "
                    "choose another path"
                )
            above = f"{above}/{name}"

    async def _why_nobody_answers(self) -> str:
        assert self._session is not None
        problem = self._session.problem
        if self._tls is None:
            for host, port in self.address.servers:
                said = await asyncio.to_thread(_ask_server, host, port)
                if said is not None:
                    return f"cannot connect to ZooKeeper: {host}:{port}: {said}"
        return (
            f"no ZooKeeper answers at {self.address.hosts} within {self._start_timeout:g} s "
            f"({problem})"
        )

    def _forbidden(self, error: Exception, path: str) -> str:
        from kazoo.exceptions import InvalidACLError, NoAuthError

        path = error.args[0] if error.args else path
        if isinstance(error, NoAuthError):
            who = "anybody without a user and password"
            if self._credentials is not None:
                who = f"the {self._credentials.scheme.value} user '{self._credentials.user}'"
            return f"ZooKeeper does not let {who} read or change {path}: its ACL is for others"
        if isinstance(error, InvalidACLError):
            return "ZooKeeper does not know who we are, and so takes no nodes of ours"
        return f"ZooKeeper cannot change {path}: {self._reason(error)}"

    def _reason(self, error: BaseException | None) -> str:
        from kazoo import exceptions

        if isinstance(error, StoreError):
            return str(error)
        if error is None or isinstance(error, exceptions.ConnectionLoss):
            problem = "" if self._session is None else f" ({self._session.problem})"
            return f"there is no connection to ZooKeeper{problem}"
        if isinstance(error, exceptions.SessionExpiredError):
            return "the session with ZooKeeper has expired"
        return f"ZooKeeper: {type(error).__name__.removesuffix('Error')} {error}".rstrip()

    # Paths

    def _full(self, path: str) -> str:
        return (self._chroot if path == "/" else self._chroot + path) or "/"

    def _own(self, full: str) -> str:
        return full[len(self._chroot) :] or "/"


def _node(value: bytes | None, stat: Any) -> Node:
    return Node(value or b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def _ask_server(host: str, port: int) -> str | None:
    """What is wrong with a server that takes connections and no sessions; None if it takes none."""
    from ottla.cluster.zookeeper.session import NOT_ZOOKEEPER

    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            connection.sendall(b"srvr")
            said = connection.recv(4096)
    except TimeoutError:
        return None
    except ConnectionResetError:
        return NOT_ZOOKEEPER
    except OSError:
        return None
    if b"not currently serving" in said:
        return "it serves nobody at present; its ensemble has no majority"
    if b"Zookeeper version" in said or b"whitelist" in said:
        return None
    return NOT_ZOOKEEPER
