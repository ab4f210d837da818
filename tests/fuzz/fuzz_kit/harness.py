"""A whole broker on the test's own event loop, fed frame by frame through socket pairs.

Everything after the accept is the real thing: connection, handlers, controller, logs. The verdict on
each input: the connection is answered with whole, well-formed responses to requests that it sent, or
it waits for the rest of a frame, or it is closed. Anything else is a failure, and so is an error in
the broker's log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from importlib import import_module
from pathlib import Path

from server_kit.broker_thread import Complaints
from storage_kit.memory import verify_log

from fuzz_kit.requests import World
from ottla.cluster.decisions.topics import NewTopic
from ottla.logfiles.walk import walk_checked
from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import has_flexible_response_header, parse_response_header
from ottla.protocol.message import MalformedMessage, Message
from ottla.record.batch import records
from ottla.server.api import DECLARED
from ottla.server.broker import Broker
from ottla.server.configuration.broker_config import load
from ottla.server.network.connection import Connection
from ottla.server.unserved import messages_of

_HEADER = struct.Struct(">ihhi")
# A broker that needs longer for one request hangs.
PATIENCE = 30.0

# Answered when the other members of a group have come: a moment is given to them, no more.
WAITING_APIS = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
MOMENT = 30
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "packed": {"compression.type": "gzip"},
    "unpacked": {"compression.type": "uncompressed"},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "300"},
}
VICTIMS = 6


class Misbehaviour(AssertionError):
    """The broker did what it must not."""


def response_class(key: int) -> type[Message]:
    request = DECLARED[ApiKey(key)].request
    module = import_module(request.__module__)
    found: type[Message] = getattr(module, request.__name__.replace("Request", "Response"))
    return found


class Harness:
    def __init__(self, data: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._data = data
        self._complaints = Complaints()
        self.broker: Broker
        self.world: World
        self._peer: socket.socket | None = None
        self._connection: Connection
        self._responses: dict[int, type[Message]] = {}
        # How inputs ended.
        self.answered = self.closed = self.waiting = 0

    # Its life -----------------------------------------------------------------------------------

    def start(self) -> Harness:
        self.listen()
        self.loop.run_until_complete(self._start())
        return self

    def listen(self) -> None:
        """From now on, what is logged as an error is taken for this broker's."""
        self._complaints.__enter__()
        # A line for each of a hundred thousand malformed requests would be most of the work.
        logging.getLogger("ottla").setLevel(logging.ERROR)

    def pause(self) -> None:
        """Until it listens again, errors are those of other brokers in this process."""
        self._complaints.__exit__()
        logging.getLogger("ottla").setLevel(logging.NOTSET)

    async def _start(self) -> None:
        self.broker = Broker(
            load(
                environment={},
                listen="127.0.0.1:0",
                data=str(self._data),
                assignments=[f"{name}={value}" for name, value in SETTINGS.items()],
            )
        )
        await self.broker.start()
        self._responses = {int(key): response_class(key) for key in DECLARED}
        self.world = World(self.broker.id)
        self.world.victims = [f"victim-{number}" for number in range(VICTIMS)]
        self.world.session = self._some_session
        await self.furnish()

    async def furnish(self) -> None:
        """Make the topics that are missing."""
        wanted = [NewTopic(name, 3, 1, configs=configs) for name, configs in TOPICS.items()]
        wanted += [NewTopic(name, 1, 1) for name in self.world.victims]
        image = self.broker.image
        missing = [each for each in wanted if each.name not in image.topics]
        if missing:
            for result in await self.broker.controller.create_topics(missing):
                assert result.error is None, result.error
        self.world.topics = {name: self.broker.image.topics[name].topic_id for name in TOPICS}

    def _some_session(self) -> tuple[int, int]:
        for session in self.broker.sessions._sessions.values():
            return session.id, session.epoch
        return 0, 0

    def stop(self) -> None:
        """Stop the broker as on SIGTERM, after a look at every log."""
        self.listen()
        try:
            self.hang_up()
            self.verify_logs()
            self.loop.run_until_complete(asyncio.wait_for(self.broker.stop(), PATIENCE))
            self.check_complaints()
        finally:
            self.pause()
            self.loop.close()

    # Feeding ------------------------------------------------------------------------------------

    def feed(self, *pieces: bytes) -> list[bytes]:
        """Send bytes over a connection, each piece read by itself; the response frames, without
        their lengths."""
        return self.loop.run_until_complete(self._feed(pieces))

    async def _feed(self, pieces: tuple[bytes, ...]) -> list[bytes]:
        if self._peer is None:
            self._connect()
        connection = self._connection
        received = bytearray()
        for piece in pieces:
            await self._exchange(piece, received)
        frames = self._frames(received)
        self._check(b"".join(pieces), frames)
        if connection.closed:
            self.closed += 1
            self.hang_up()
        elif connection._partial_filled or connection._stash or connection.slots:
            self.waiting += 1
            self.hang_up()
        else:
            self.answered += 1
        return frames

    async def _exchange(self, data: bytes, received: bytearray) -> None:
        """Send, and take what comes back, until everything was read and answered."""
        peer, connection = self._peer, self._connection
        assert peer is not None
        view = memoryview(data)
        started = time.monotonic()
        spins = 0
        while not connection.closed:
            if view:
                try:
                    view = view[peer.send(view) :]
                except BlockingIOError:
                    pass
                if connection._reading:
                    connection.on_readable()
            self._drain(peer, received)
            if connection.closed:
                break
            if not view and connection.idle and not self._unread(connection):
                return
            spins += 1
            if spins > MOMENT and self._may_wait():
                return
            if spins > 3:
                for fetch in list(self.broker.waiting_fetches):
                    fetch.conclude()
            if time.monotonic() - started > PATIENCE:
                raise Misbehaviour("the broker hangs")
            await asyncio.sleep(0 if spins < 100 else 0.001)
        self._drain(peer, received)

    def _may_wait(self) -> bool:
        """Whether the request that is being handled waits for others by its nature."""
        api = self._connection.last_api
        return api is not None and api.key in WAITING_APIS

    @staticmethod
    def _unread(connection: Connection) -> bool:
        """Whether something that was sent has not been read yet, or not been handled."""
        if connection._stalled or connection._held_up():
            return True
        try:
            return bool(connection.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        reactor = self.broker.reactor
        reactor._by_address["fuzz"] += 1
        self._connection = Connection(reactor, theirs, reactor.listeners[0], "fuzz:0")
        reactor.connections.add(self._connection)
        self._peer = ours

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            if not self._connection.closed:
                self._connection.close("the test hangs up")

    @staticmethod
    def _drain(peer: socket.socket, received: bytearray) -> None:
        try:
            while piece := peer.recv(1 << 20):
                received += piece
        except (BlockingIOError, ConnectionResetError):
            pass

    # The verdict --------------------------------------------------------------------------------

    @staticmethod
    def _frames(received: bytearray) -> list[bytes]:
        frames = []
        at = 0
        while at < len(received):
            size = int.from_bytes(received[at : at + 4], "big", signed=True)
            if size < 4 or at + 4 + size > len(received):
                raise Misbehaviour(f"a response frame of {size} bytes in {bytes(received[at:])!r}")
            frames.append(bytes(received[at + 4 : at + 4 + size]))
            at += 4 + size
        return frames

    def _check(self, data: bytes, frames: list[bytes]) -> None:
        """Every frame is a response to a request among the bytes that were sent, in their order."""
        if not frames:
            return
        expected = self._requests(data)
        for frame in frames:
            for key, version in expected:
                if self._is_response(frame, key, version):
                    break
            else:
                raise Misbehaviour(f"a response that nobody can read: {frame[:200].hex()}")

    def _requests(self, data: bytes) -> list[tuple[int, int]]:
        """Key and version of each whole request that is in the bytes."""
        found = []
        at = 0
        while at + 14 <= len(data):
            size, key, version, _ = _HEADER.unpack_from(data, at)
            if size < 10 or at + 4 + size > len(data):
                break
            found.append((key, version))
            at += 4 + size
        return found

    def _is_response(self, frame: bytes, key: int, version: int) -> bool:
        cls = self._responses.get(key)
        if cls is None:
            # An API that is not served may be refused in its own words.
            found = messages_of(key, version)
            if found is None:
                return False
            return self._holds(frame, key, version, found[1])
        lowest, highest = DECLARED[ApiKey(key)].versions
        if not lowest <= version <= highest:
            if key != ApiKey.API_VERSIONS:
                return False
            version = 0
        return self._holds(frame, key, version, cls)

    def _holds(self, frame: bytes, key: int, version: int, cls: type[Message]) -> bool:
        """Whether a frame is one whole response of this kind."""
        try:
            flexible = has_flexible_response_header(key, version)
            _, at = parse_response_header(frame, 0, flexible)
            _, end = cls.decode(frame, at, version)
        except MalformedMessage:
            return False
        return end == len(frame)

    def check_complaints(self) -> None:
        if self._complaints.lines:
            lines, self._complaints.lines = self._complaints.lines, []
            raise Misbehaviour("the broker complains:\n" + "\n".join(lines))

    def verify_logs(self) -> int:
        """Every batch that was stored is whole, in its place, and known to the indexes; where the
        broker has looked at every record, every record can be read. How many batches there are."""
        batches = 0
        for partition in self.broker.partitions:
            log = partition.opened
            if log is None:
                continue
            assert log.offline is None, log.offline
            problems = list(verify_log(log))
            if problems:
                raise Misbehaviour(f"{log.name}: {problems}")
            for segment in log.segments:
                if not segment.size:
                    continue
                for _, _, _, batch in walk_checked(segment.file(), 0, segment.size):
                    batches += 1
                    if log.topic == "compacted":
                        assert all(record.key is not None for record in records(batch))
        return batches
