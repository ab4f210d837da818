"""The store of a single node: a tree in memory, made durable by SQLite on a thread of its own.

Reads come from memory. A multi is checked against the tree, written and synced on the thread, then
applied and answered; the multis that arrive while a write is on its way go together into the next.
Several sessions of one process may share a tree (`join`). Paths and values are those of layout.py.

docs/adr/0002-embedded-store.md has the reasons.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.cluster.embedded.tree import Staged, Tree
from ottla.cluster.session import SessionStore, settle
from ottla.cluster.store import (
    PERSISTENT,
    Answer,
    Change,
    ChangeKind,
    Conflict,
    Delete,
    Node,
    Ok,
    Operation,
    SessionEvent,
    StoreError,
    Stream,
    Unknown,
    check_path,
    is_within,
)

if TYPE_CHECKING:  # sqlite3 is loaded when a store starts, not when the room is imported
    import sqlite3

_FORMAT: Final = 1  # PRAGMA user_version
_SCHEMA: Final = """
CREATE TABLE node (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('transaction', 0);
"""


class _Waiting(NamedTuple):
    """A multi that waits for the next write. It is done even if the answer is cancelled."""

    operations: Sequence[Operation]
    session: int
    answer: asyncio.Future[Answer]


class EmbeddedStore(SessionStore):
    """A session with the embedded store.

    On disk: one SQLite database in WAL mode with synchronous=FULL. Table `node` holds the persistent
    nodes as they are now; table `counter` the number of the last transaction, which is written with
    every multi, so that numbers are never given twice. Ephemeral nodes are kept in memory only: they
    end with the process, as their sessions do.

    In a crash: a multi that was answered Ok is there whole; one that was not answered is there whole
    or not at all (SQLite's log has a checksum for each frame, and a transaction without its last
    frame does not count). A full disk leaves the multi undone and the store in service. After any
    other I/O error nobody can tell what a restart will find, so the store ends its sessions and the
    broker must be started anew.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._begin(_Database(Path(path)))

    def _begin(self, database: _Database) -> None:
        super().__init__()
        self._database = database
        self._session_id = next(database.session_ids)
        self._watches: list[tuple[str, Stream[Change]]] = []

    def join(self) -> EmbeddedStore:
        """Another session with the same tree, to be started and closed like the first.

        The file is closed with the last of them.
        """
        other = EmbeddedStore.__new__(EmbeddedStore)
        other._begin(self._database)
        return other

    @property
    def session_id(self) -> int:
        return self._session_id

    async def start(self) -> None:
        await self._database.start()
        self._database.sessions.add(self)
        self._become(SessionEvent.CONNECTED)

    async def close(self) -> None:
        if self._state is SessionEvent.CONNECTED:
            await self.expire()
        if not self._database.sessions:
            await self._database.stop()

    async def expire(self) -> None:
        """Ends the session as a time-out would: the ephemeral nodes go, the file stays open."""
        database = self._database
        # From here on the session takes no more calls, so what it owns after this is all of it.
        self._state = SessionEvent.SUSPENDED
        await database.submit((), self._session_id)
        owned = database.tree.owned_by(self._session_id)
        if owned:
            await database.submit([Delete(path) for path in owned], self._session_id)
        self.lose()

    def lose(self, because: str = "the session was closed") -> None:
        """End the session: its watches close, its client hears of it."""
        self._database.sessions.discard(self)
        if self._state is not SessionEvent.LOST:
            self._lost_because = because
            self._become(SessionEvent.LOST)
            for _, watch in self._watches:
                watch.close()

    async def get(self, path: str) -> Node | None:
        self._require_session()
        check_path(path)
        return self._database.tree.nodes.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._require_session()
        nodes = self._database.tree.nodes
        return [nodes.get(path) for path in paths]

    async def children(self, path: str) -> list[str] | None:
        self._require_session()
        check_path(path)
        return self._database.tree.children(path)

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        return await self.begin_multi(operations)

    def begin_multi(self, operations: Sequence[Operation]) -> asyncio.Future[Answer]:
        """Begins a multi, after all that were begun before; the future of its answer."""
        self._require_session()
        for operation in operations:
            check_path(operation.path)
        return self._database.submit(operations, self._session_id)

    async def sync(self) -> None:
        self._require_session()
        # An empty multi is answered after all that were begun before it, and writes nothing.
        await self._database.submit((), self._session_id)

    def watch(self, path: str) -> Stream[Change]:
        stream: Stream[Change] = Stream()
        self.add_watch(path, stream)
        return stream

    def add_watch(self, path: str, stream: Stream[Change]) -> None:
        """The changes of a node and of all below it go to this stream."""
        self._require_session()
        check_path(path)
        self._watches = [entry for entry in self._watches if not entry[1].closed]
        self._watches.append((path, stream))

    def tell(self, changes: Sequence[Change]) -> None:
        """Passes changes on to those who watch."""
        for root, stream in self._watches:
            for change in changes:
                if change.kind is ChangeKind.RESYNC or is_within(change.path, root):
                    stream.push(change)


class _Database:
    """The tree, its file, and the thread that writes it. All but the file belongs to the loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._jobs = SimpleQueue()
        self._file: _File | None = None
        self._starting: asyncio.Lock | None = None
        self._waiting: list[_Waiting] = []
        self._writing = False  # a write is on its way: the tree must stand still until it is done
        self.tree = Tree()
        self.session_ids = itertools.count(1)
        self.sessions: set[EmbeddedStore] = set()
        self.failure: str | None = None  # why the store is out of service, for good

    async def start(self) -> None:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._thread is not None:
                return
            self._loop = asyncio.get_running_loop()
            thread = threading.Thread(target=self._work, name="metadata-store", daemon=True)
            self._thread = thread
            thread.start()
            file = _File(self._path)
            try:
                self.tree = await self.run(file.open)
            except BaseException:
                self.run(file.close)
                self._jobs.put(None)
                self._thread = None
                raise
            self._file = file

    async def stop(self) -> None:
        thread, file = self._thread, self._file
        if thread is None or file is None:
            return
        self._thread = self._file = None
        await self.run(file.close)
        self._jobs.put(None)
        thread.join()

    def run(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Does a job on the store's thread."""
        assert self._loop is not None
        done: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put((job, done))
        return done

    def _work(self) -> None:
        """The thread: one job after the other."""
        loop = self._loop
        assert loop is not None
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it is handed to the loop
                outcome: tuple[Any, BaseException | None] = (None, error)
            else:
                outcome = (result, None)
            try:
                loop.call_soon_threadsafe(settle, done, *outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def submit(self, operations: Sequence[Operation], session: int) -> asyncio.Future[Answer]:
        """Queues a multi and sees to it that it gets written."""
        assert self._loop is not None
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(_Waiting(operations, session, answer))
        if not self._writing:
            self._write_waiting()
        return answer

    def _write_waiting(self) -> None:
        """Stages all that waits, and hands it to the thread as one transaction of SQLite's."""
        batch, self._waiting = self._waiting, []
        if self.failure is not None:
            _answer_all(batch, Unknown(self.failure))
            return
        staged = Staged(self.tree)
        answers: list[Answer] = []
        for waiting in batch:
            outcome = staged.add(waiting.operations, waiting.session) if waiting.operations else ()
            answers.append(outcome if isinstance(outcome, Conflict) else Ok(outcome))
        if staged.transaction == self.tree.transaction:
            _answer_each(batch, answers)
            return
        assert self._file is not None
        self._writing = True
        written = self.run(functools.partial(self._file.write, staged))
        written.add_done_callback(lambda done: self._written(done, staged, batch, answers))

    def _written(
        self,
        done: asyncio.Future[Any],
        staged: Staged,
        batch: list[_Waiting],
        answers: list[Answer],
    ) -> None:
        self._writing = False
        error = done.exception()
        if error is None:
            changes = self.tree.apply(staged)
            _answer_each(batch, answers)
            for session in tuple(self.sessions):
                session.tell(changes)
        elif isinstance(error, _NotWritten):
            _answer_all(batch, Unknown(str(error)))
        else:
            self.failure = f"the metadata store {self._path} failed: {error}"
            _answer_all(batch, Unknown(self.failure))
            for session in tuple(self.sessions):
                session.lose(self.failure)
        if self._waiting:
            self._write_waiting()


class _NotWritten(Exception):
    """The transaction was rolled back for certain; the next one may succeed."""


class _File:
    """The SQLite database; touched by the store's thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.connection: sqlite3.Connection | None = None

    def open(self) -> Tree:
        import sqlite3

        is_new = not self._path.exists()
        try:
            # It has salted passwords in it: nobody but the broker reads it, nor what SQLite puts
            # beside it, which gets the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(self._path, 0o600)
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=True, timeout=0
            )
            try:
                tree = self._load(connection)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            busy = "locked" in str(error)
            reason = "another process has it open" if busy else str(error)
            raise StoreError(f"cannot open the metadata store {self._path}: {reason}") from error
        if is_new:
            _sync_folder(self._path.parent)
        self.connection = connection
        return tree

    def _load(self, connection: sqlite3.Connection) -> Tree:
        # Exclusive, before the log is first touched: no shared memory, and no second process.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: fsync alone does not reach the disk
        connection.execute("BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={_FORMAT}")
        elif found != _FORMAT:
            raise StoreError(
                f"the metadata store {self._path} has format {found}, and this version of Ottla "
                f"reads format {_FORMAT} only"
            )
        connection.execute("COMMIT")
        (transaction,) = connection.execute("SELECT value FROM counter").fetchone()
        rows = connection.execute("SELECT path, value, version, created, modified FROM node")
        return Tree(transaction, [(row[0], Node(*row[1:])) for row in rows])

    def write(self, staged: Staged) -> None:
        import sqlite3

        connection = self.connection
        assert connection is not None
        kept = []
        gone = []
        for path, node in staged.nodes.items():
            if node is not None and node.owner == PERSISTENT:
                kept.append((path, *node[:4]))
            else:
                gone.append((path,))
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM node WHERE path = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?)", kept)
            connection.execute("UPDATE counter SET value = ?", (staged.transaction,))
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_FULL":
                raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise _NotWritten(f"the metadata store {self._path}: {error}") from error

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _answer_each(batch: list[_Waiting], answers: list[Answer]) -> None:
    for waiting, answer in zip(batch, answers, strict=True):
        settle(waiting.answer, answer, None)


def _answer_all(batch: list[_Waiting], answer: Answer) -> None:
    for waiting in batch:
        settle(waiting.answer, answer, None)
