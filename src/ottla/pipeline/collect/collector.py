"""The collector: rounds of reading and sending, each a transaction of lines and positions.

A round reads what the files have (at most ROUND bytes), writes the lines to the topic and the new
positions to the topic of the positions, and commits both. Whatever goes wrong on the way is dealt with
in one manner: a new producer under the same transactional id ends what its predecessor left open,
either way, and the positions are read again; they say what was sent.

New lines are looked for by asking for files' sizes. Notifications of the kernel would save little
(docs/pipelines.md has figures), and network file systems have none.
"""

from __future__ import annotations

import enum
import json
import os
import resource
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource
from ottla.client.errors import (
    AuthenticationError,
    ConfigurationError,
    Fenced,
    InvalidRecords,
    NotAuthorized,
    OttlaError,
    RecordTooLarge,
    TopicNotFound,
    Unsupported,
)
from ottla.client.producer.blocking import Producer
from ottla.client.producer.errors import TransactionFailed
from ottla.pipeline.collect import positions
from ottla.pipeline.collect.files import FollowedFile, Spot
from ottla.pipeline.collect.following import LET_GO_AFTER, Following
from ottla.pipeline.collect.lines import Lines, cut, table, unfinished
from ottla.pipeline.collect.patterns import Patterns
from ottla.pipeline.collect.positions import Positions

# Lines take many times their bytes of memory until they are sent; these two bound it. Rounds four
# times as large need an eighth less processor time, and 120 MB more.
ROUND: Final = 2 * 1024 * 1024  # bytes of files in a transaction
PIECE: Final = 1024 * 1024  # bytes of one file in a round
FEW_ROWS: Final = 10_000  # a table of fewer is made one piece before it is sent
LOOK_EVERY: Final = (
    0.05,
    0.5,
)  # seconds between looks at sizes: after lines came, when it is quiet
TRANSACTION_TIMEOUT: Final = 60.0  # seconds after which a broker aborts what a dead collector left
DELIVERY_TIMEOUT: Final = 20.0  # seconds; then the round is begun anew
TRY_AGAIN_AFTER: Final = (0.2, 5.0)  # seconds, the first time and at most
TOPIC_PATIENCE: Final = 30.0  # seconds for which a topic that was there may be unknown
LONGEST_LINE: Final = 1_000_000  # bytes, if the topic takes as many
_NAMES: Final = (
    2 * os.pathconf("/", "PC_PATH_MAX") + 512
)  # of a file, its host, and a batch's header

_HOPELESS = (
    AuthenticationError,
    ConfigurationError,
    InvalidRecords,
    NotAuthorized,
    RecordTooLarge,
    Unsupported,
)


Record = tuple[bytes, bytes | None]  # of the topic of the positions: key and value


class NameTaken(Exception):
    """Another collector runs under the same name, and this one has to stop."""


class Incomplete(Exception):
    """Files that are damaged or could not be read; all else was sent. `note` was told why of each."""

    def __init__(self, paths: AbstractSet[str]) -> None:
        files = "1 file was" if len(paths) == 1 else f"{len(paths)} files were"
        super().__init__(f"{files} not sent in full")
        self.paths = frozenset(paths)


class KeyChoice(enum.StrEnum):
    """What the keys of records are. Lines of one key stay in order."""

    FILE = "file"
    HOST = "host"
    NONE = "none"


class ReadLines(NamedTuple):
    """What a round takes from a file, and where the file is then."""

    file: FollowedFile
    lines: Lines
    spot: Spot


class Collector:
    """Follows files and sends their lines to a topic, each exactly once.

    `name` is whose positions they are: a collector that starts again under its name goes on. `note` is
    told what somebody should know; `sent` gets the lines and the bytes of every transaction.
    """

    def __init__(
        self,
        servers: str | Mapping[str, object],
        topic: str,
        paths: Iterable[str],
        *,
        name: str | None = None,
        exclude: Iterable[str] = (),
        from_end: bool = False,
        unfinished: bool = False,
        key: KeyChoice = KeyChoice.FILE,
        headers: bool = True,
        compression: str = "lz4",
        note: Callable[[str], None] = lambda _: None,
        sent: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        self.host = socket.gethostname()
        self.name = name or self.host
        self.topic = topic
        self._options = (
            {"bootstrap.servers": servers} if isinstance(servers, str) else dict(servers)
        )
        self._options.setdefault("client.id", "ottla-collect")
        self._patterns = Patterns(paths, exclude)
        self._following = Following(self._patterns, note)
        self._positions = Positions(self.name, topic)
        self._instance = uuid.uuid4().hex
        self._from_end = from_end
        self._unfinished = unfinished
        self._key = key
        self._headers = headers
        self._compression = compression
        self._note = note
        self._sent = sent
        self._longest = LONGEST_LINE
        self._producer: Producer | None = None
        self._known_owner = False  # the positions say that this instance collects
        self._waiting = False  # for a broker
        self._first: FollowedFile | None = None  # found no room in the last round

    # Life

    def run(
        self, stop: threading.Event, *, once: bool = False, patience: float | None = None
    ) -> None:
        """Collect until `stop` is set; with `once`, until everything there is was sent.

        A cluster that is away is waited for, at most `patience` seconds if that is given. Raises
        Unreadable, NameTaken, and OttlaError where waiting does not help; with `once`, Incomplete in
        the end if some files could not be read, or not to their ends.
        """
        for pattern in self._patterns.check(must_exist=once):
            self._note(f"{pattern} is not there yet; it is collected when it is")
        _allow_many_files()
        pause, longest_pause = LOOK_EVERY
        try:
            while not stop.is_set():
                if not self._connected(stop, patience):
                    break
                try:
                    busy = self._round(last=False)
                    if once and not busy:
                        self._round(last=True)
                        if incomplete := self._following.incomplete:
                            raise Incomplete(incomplete)
                        break
                except OttlaError as error:
                    self._failed(error)
                    continue
                if busy:
                    pause = LOOK_EVERY[0]
                else:
                    stop.wait(pause)
                    pause = min(pause * 1.5, longest_pause)
        finally:
            self._disconnect()
            self._following.close()

    # The cluster

    def _connected(self, stop: threading.Event, patience: float | None) -> bool:
        """Have a producer whose predecessors' work is decided, and all files at their places."""
        delay, longest_delay = TRY_AGAIN_AFTER
        began = time.monotonic()
        while self._producer is None:
            try:
                self._connect()
            except OttlaError as error:
                self._disconnect()
                cause = _cause(error)
                waited = time.monotonic() - began
                missing = isinstance(cause, TopicNotFound) and (
                    not self._known_owner or waited > TOPIC_PATIENCE
                )
                if missing or isinstance(cause, _HOPELESS):
                    raise cause from None
                if patience is not None and waited > patience:
                    raise
                self._tell_waiting(error)
                if stop.wait(delay):
                    return False
                delay = min(delay * 2, longest_delay)
        return True

    def _connect(self) -> None:
        with Admin(self._options) as admin:
            admin.describe_topics(self.topic)
            positions.ensure_topic(admin)
            self._longest = self._longest_line(admin)
            self._producer = producer = Producer(
                self._options,
                transactional_id=f"ottla-collect.{self.name}.{self.topic}",
                compression_type=self._compression,
                transaction_timeout_ms=TRANSACTION_TIMEOUT * 1000,
                delivery_timeout_ms=DELIVERY_TIMEOUT * 1000,
                max_block_ms=DELIVERY_TIMEOUT * 1000,
                message_max_bytes=1_000_000_000,  # the broker judges, not the client
            )
            producer.init_transactions()
            owner, places = self._positions.read(
                admin, self._options, TRANSACTION_TIMEOUT + DELIVERY_TIMEOUT
            )
        if self._known_owner and owner != self._instance:
            raise NameTaken(self.name)
        gone, moved = self._following.restore(places, from_end=self._from_end and owner is None)
        records: list[Record] = [(self._positions.key(place.key), None) for place in gone + moved]
        records += self._unsaved()
        if not self._known_owner:
            # Who finds another's instance here was fenced by it, and not by a timeout.
            instance = json.dumps({"instance": self._instance}).encode()
            records.append((self._positions.owner_key, instance))
        self._commit([], records)
        self._known_owner = True
        for place in gone:
            self._note(
                f"{place.path} (inode {place.inode}) was sent up to byte {place.position} and is gone "
                "from its folder; if it had more, that is lost"
            )
        if self._waiting:
            self._note("the broker is back")
            self._waiting = False

    def _longest_line(self, admin: Admin) -> int:
        topic = Resource.topic(self.topic)
        try:
            settings = admin.describe_configs(topic, names=["max.message.bytes"])[topic]
            allowed = int(settings["max.message.bytes"].value or 0)
        except (NotAuthorized, KeyError):
            return LONGEST_LINE
        return max(1, min(LONGEST_LINE, allowed - _NAMES))

    def _failed(self, error: OttlaError) -> None:
        self._disconnect()
        cause = _cause(error)
        if isinstance(cause, _HOPELESS):
            raise cause from None
        if not isinstance(cause, Fenced):  # by a timeout, or by another: the positions will tell
            self._tell_waiting(cause)

    def _tell_waiting(self, error: OttlaError) -> None:
        if not self._waiting:
            self._note(f"waiting for the broker: {error}")
            self._waiting = True

    def _disconnect(self) -> None:
        if self._producer is not None:
            with suppress(OttlaError):
                self._producer.close(0)
            self._producer = None

    # Rounds

    def _round(self, *, last: bool) -> bool:
        """Send what there is, or a part of it; whether there was anything."""
        self._following.find()
        read = self._take() if not last else self._take_unfinished(list(self._following))
        busy = {each.file.key for each in read}
        ended = [file for file in self._following.to_let_go() if file.key not in busy]
        read += self._take_unfinished(ended)
        for file in ended:
            self._following.release_copies(file.place(), file)
        records: list[Record] = [(self._positions.key(file.key), None) for file in ended]
        gone = {file.key for file in ended}
        records += [self._record(file, spot) for file, _, spot in read if file.key not in gone]
        records += self._unsaved(busy | gone)
        if not records:
            return False
        self._commit(read, records)
        now = time.monotonic()
        for file, _, spot in read:
            file.at, file.quiet_since = spot, now
        for file in ended:
            self._following.let_go(file)
        lines = sum(len(each.lines.values) for each in read)
        self._sent(lines, sum(each.lines.size for each in read))
        return bool(read)

    def _record(self, file: FollowedFile, spot: Spot | None = None) -> tuple[bytes, bytes]:
        return self._positions.key(file.key), positions.written(file.place(spot))

    def _unsaved(self, others: AbstractSet[tuple[int, int]] = frozenset()) -> list[Record]:
        return [
            self._record(file)
            for file in self._following
            if file.unsaved and file.key not in others
        ]

    def _take(self) -> list[ReadLines]:
        """Lines of each file in turn: the next round begins where this one has no room any more, so
        that none has to starve."""
        files = list(self._following)
        begin = next((at for at, file in enumerate(files) if file is self._first), 0)
        self._first = None
        read: list[ReadLines] = []
        left = ROUND
        seen: set[tuple[int, int]] = set()

        def take(file: FollowedFile) -> None:
            nonlocal left
            if file.key in seen:
                return
            seen.add(file.key)
            if file.follows is not None:
                take(file.follows)
                if not file.follows.at_end:
                    return
                if file.follows.quiet_since < time.monotonic() - LET_GO_AFTER:
                    file.follows = None
            if file.copies is not None or left <= 0:
                file.at_end = False
                if left <= 0:
                    self._first = self._first or file
                return
            piece = self._piece(file)
            if piece is not None:
                left -= piece.lines.size
                read.append(piece)

        for file in files[begin:] + files[:begin]:
            take(file)
        return read

    def _piece(self, file: FollowedFile) -> ReadLines | None:
        size, position = file.size, file.at.position
        if size == position:
            file.at_end = True
            return None
        data = file.read(max(PIECE, self._longest + 1)) if size > position else None
        if data is None:
            self._following.begin_anew(file)
            return None
        lines = cut(data, self._longest, file.at.part)
        file.at_end = position + len(data) >= size
        if not lines.size:
            return None
        return ReadLines(file, lines, file.at.after(data[: lines.size], lines.part))

    def _take_unfinished(self, files: list[FollowedFile]) -> list[ReadLines]:
        """Last lines without a newline: of files that are over, or if that is wanted."""
        read = []
        for file in files:
            rest = file.read(self._longest + 1)
            if not rest or not file.at_end or file.copies is not None:
                continue
            if self._unfinished or file.deleted:
                lines = unfinished(rest, file.at.part)
                read.append(ReadLines(file, lines, file.at.after(rest, 0)))
            else:
                self._note(f"{file.path} ends in a line without a newline, which is not sent yet")
        return read

    def _commit(self, read: list[ReadLines], records: list[Record]) -> None:
        if not read and not records:
            return
        producer = self._producer
        assert producer is not None
        producer.begin_transaction()
        if read:
            rows = pa.concat_tables(
                [
                    table(lines, self._key_of(file), self._headers_of(file))
                    for file, lines, _ in read
                ],
                promote_options="default",
            )
            producer.write(self.topic, rows.combine_chunks() if len(rows) < FEW_ROWS else rows)
        for key, value in records:
            producer.send(positions.TOPIC, value, key=key, partition=positions.PARTITION)
        producer.commit_transaction()
        for file in self._following:
            file.unsaved = False

    def _key_of(self, file: FollowedFile) -> bytes | None:
        match self._key:
            case KeyChoice.FILE:
                return os.fsencode(file.path)
            case KeyChoice.HOST:
                return self.host.encode()
            case KeyChoice.NONE:
                return None

    def _headers_of(self, file: FollowedFile) -> list[tuple[str, bytes]]:
        if not self._headers:
            return []
        return [("host", self.host.encode()), ("file", os.fsencode(file.path))]


def _cause(error: OttlaError) -> OttlaError:
    """What broke a transaction, rather than that it is broken."""
    if isinstance(error, TransactionFailed) and error.problem is not None:
        return error.problem
    return error


def _allow_many_files() -> None:
    """Raise the limit on descriptors as far as the system allows: all files stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
