"""The coordination store's interface: a versioned tree of small values, shared by all brokers.

The shape is ZooKeeper's, since that is what stands behind it in a cluster (zookeeper/); a single node
has an embedded one (embedded.py), and tests put one in between that injects faults (faulty.py). One test
suite holds all of them to what is written here.

- A path is `/a/b`; a node holds bytes and may have children. Its parent must exist first, a node
  that has children cannot be deleted, and an ephemeral node has none.
- `multi` is the only way to change anything: all of its operations take effect, or none does.
- A Store object is one session. Ephemeral nodes belong to the session that made them and go with
  it. Once lost, a session does not come back: make a new Store.
- All methods are for the event loop's thread, and none of them blocks it.
"""

from __future__ import annotations

import asyncio
import enum
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

ANY_VERSION: Final = -1
PERSISTENT: Final = 0
# What an operation takes in a multi beside its path and its value.
_OPERATION_BYTES: Final = 64


class Node(NamedTuple):
    """A node as it was read. Transaction numbers grow over the whole life of the store."""

    value: bytes
    version: int  # 0 when created, one more with every Set
    created: int  # the transaction that created it; never two nodes of one path with the same
    modified: int  # the transaction that last set its value; created ≤ modified
    owner: int = PERSISTENT  # the session it belongs to, when it is ephemeral


class Create(NamedTuple):
    """Makes a node that must not exist yet."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    """Replaces the value of a node that must exist, at this version unless any will do."""

    path: str
    value: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Removes a node that must exist and have no children."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing; the whole multi fails unless the node exists at this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check


class Refusal(enum.Enum):
    """Why an operation could not be done."""

    NO_NODE = "there is no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    NO_PARENT = "there is no parent node"
    PARENT_IS_EPHEMERAL = "the parent node is ephemeral"


class Ok(NamedTuple):
    """The multi has taken effect and is durable."""

    # Of each operation's node after it; -1 for a deleted one. Of a Check for any version the store
    # need not know it, and may say -1.
    versions: tuple[int, ...]


class Conflict(NamedTuple):
    """Nothing was done, because one operation could not be."""

    operation: int  # its index
    reason: Refusal


class Unknown(NamedTuple):
    """No answer came, or none that can be trusted: all of it may have been done, or nothing.

    After a `sync` of the same session what is read settles it; what is not there then will not come
    later. ZooKeeper keeps this but for one gap (zookeeper/store.py describes it), and nobody keeps it
    for a session whose end was not heard from the store itself. Therefore every multi that may be in
    doubt must contain a condition which no longer holds once its caller has gone on: the version of a
    node that every change of its kind sets, as the controller's revision is. A late multi is then
    refused. Creates alone are not such a condition, for what they make may have been deleted since;
    neither are unconditional Sets and Deletes.
    """

    reason: str


Answer = Ok | Conflict | Unknown


class SessionEvent(enum.Enum):
    """What happens to a session. LOST is the last event of its stream."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection now; ephemeral nodes still stand
    LOST = "lost"  # the session is over and its ephemeral nodes are gone


class ChangeKind(enum.Enum):
    """What happened to a node."""

    CREATED = "created"
    SET = "set"
    DELETED = "deleted"
    RESYNC = "resync"  # changes may have been missed: read the whole subtree again


class Change(NamedTuple):
    """A node was changed. Changes to one node may be merged into one; the last is never dropped."""

    path: str
    kind: ChangeKind


class StoreError(Exception):
    """The store cannot do its work; the message is for the one who runs the broker."""


class StoreUnavailable(StoreError):
    """A read got no answer. It may be tried again."""


class SessionLost(StoreError):
    """The session is over, and this Store with it."""


T = TypeVar("T")

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Stream(Generic[T]):
    """Events in order, for one reader: `async for event in stream`. It ends once closed and empty.

    Nothing is dropped, however slow the reader.
    """

    def __init__(self) -> None:
        self._events: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once no more events will be added."""
        return self._closed

    def push(self, event: T) -> None:
        """Adds an event; without effect once closed."""
        if not self._closed:
            self._events.append(event)
            self._wake()

    def take(self) -> list[T]:
        """All events that wait, without waiting for more."""
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """Ends the stream after the events that wait in it."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()


class Store(ABC):
    """One session with a store. See the module's docstring for what all of them promise."""

    # Bytes that one multi should have at most; larger changes are made in several.
    largest_multi: int = 1 << 62

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The owner of the ephemeral nodes made here; not 0."""

    @property
    @abstractmethod
    def session_state(self) -> SessionEvent:
        """The last thing that happened to the session."""

    @property
    def session_timeout(self) -> float | None:
        """How many seconds without contact end the session; None if it ends with the store only."""
        return None

    @property
    def last_contact(self) -> float:
        """The moment, by `boottime`, at which the request was sent that was last answered. Unless
        `answers_can_be_stale`, the session was alive then, and ends `session_timeout` later at the
        earliest.

        Any thread may ask. A session that cannot time out is always in contact.
        """
        return boottime()

    @property
    def answers_can_be_stale(self) -> bool:
        """Whether somebody may answer who does not know that the session has ended: then only changes
        and `sync` show that it lives."""
        return False

    @property
    def last_commit(self) -> float:
        """As `last_contact`, of the requests whose answers show that the session was alive."""
        return self.last_contact

    @abstractmethod
    async def start(self) -> None:
        """Connects. StoreError if that is impossible."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the session in good order: its ephemeral nodes go at once."""

    @abstractmethod
    async def get(self, path: str) -> Node | None:
        """The node, or None if there is none."""

    @abstractmethod
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes of several paths, in one go where the store can. Not a snapshot."""

    @abstractmethod
    async def children(self, path: str) -> list[str] | None:
        """The names of a node's children, sorted; None if there is no such node."""

    @abstractmethod
    async def multi(self, operations: Sequence[Operation]) -> Answer:
        """Does all of the operations, each seeing the effect of those before it, or none of them.

        The operations run on to their end even if the caller is cancelled while it waits.
        """

    @abstractmethod
    async def sync(self) -> None:
        """Returns when every multi of this session that was ever begun has taken effect or never
        will, and reads see all that was done before this call."""

    @abstractmethod
    def watch(self, path: str) -> Stream[Change]:
        """The changes of a node and of all below it, from now on, in the order they happened.

        What a read of this Store, begun after this call, does not show yet is told; so watch first,
        then read. Once such a read or a `sync` is answered, the watch stands. The watched node need
        not exist. Close the stream to end the watch.

        After a lost connection RESYNC tells, with the watched path, that changes may be missing.
        """

    @abstractmethod
    def session_events(self) -> Stream[SessionEvent]:
        """What happens to the session from now on."""


def check_path(path: str) -> None:
    """ValueError unless the path is one."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\x00" in path:
        raise ValueError(f"{path!r} is not a path")


def parent_of(path: str) -> str:
    """The path of the parent node."""
    return path[: path.rindex("/")] or "/"


def is_within(path: str, root: str) -> bool:
    """True if `path` is `root` or below it."""
    return root == "/" or path == root or path.startswith(root + "/")


def in_parts(operations: Sequence[Operation], largest: int) -> Iterable[list[Operation]]:
    """Operations in order, in groups that one multi can carry."""
    part: list[Operation] = []
    size = 0
    for operation in operations:
        weight = len(operation.path) + len(getattr(operation, "value", b"")) + _OPERATION_BYTES
        if part and size + weight > largest:
            yield part
            part, size = [], 0
        part.append(operation)
        size += weight
    if part:
        yield part
