"""Produce requests at full speed: many connections, several requests in flight on each.

One thread, one epoll. What differs from request to request is stamped into a copy of a small
prefix; the records themselves are the same bytes every time and are never copied in Python. The
processor time that this client and the broker took is measured along: it says who was the limit.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bench.harness import wire
from bench.harness.batch import HEADER_SIZE, SequenceStamp, Shape, crc_of, record_batch
from bench.harness.client import Client, open_socket
from bench.harness.errors import BenchError

# Below this a joined copy is cheaper than a scatter list.
JOIN_BELOW = 32 << 10
SILENCE = 30.0  # seconds without any answer: something hangs


class Setting(NamedTuple):
    """How the producers are configured."""

    name: str
    version: int
    acks: int
    idempotent: bool
    partitions: int


DEFAULTS = Setting("defaults", version=7, acks=1, idempotent=False, partitions=1)
PRODUCTION = Setting("production", version=12, acks=-1, idempotent=True, partitions=100)
SETTINGS = (DEFAULTS, PRODUCTION)


class Requests(Protocol):
    """An endless supply of encoded Produce requests for one connection."""

    size: int  # of one request, in bytes
    answer: wire.ProduceAnswer

    def take(self, count: int) -> list[bytes]:
        """The bytes of the next requests, in pieces to be sent one after the other."""
        ...


class PlainRequests:
    """The same request for ever: no producer id, so nothing counts up."""

    def __init__(
        self,
        topic: str,
        shape: Shape,
        setting: Setting,
        *,
        partition: int = 0,
    ) -> None:
        version, acks = setting.version, setting.acks
        self._one = wire.produce_request(version, acks, topic, partition, record_batch(shape))
        self.size = len(self._one)
        self.answer = wire.produce_answer(setting.version, topic)

    def take(self, count: int) -> list[bytes]:
        return [self._one] * count


class IdempotentRequests:
    """Goes round the partitions, counting the sequence numbers of each.

    A request carries a batch for each of the next `together` partitions.
    """

    def __init__(
        self,
        topic: str,
        shape: Shape,
        setting: Setting,
        producer_id: int,
        epoch: int,
        together: int = 1,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """`partitions` are those to go round; by default all of the topic."""
        batch = record_batch(shape, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        version = setting.version
        around = wire.ProduceFrame.build(version, setting.acks, topic, len(batch), together)
        self._records = shape.records
        self._first_crc = crc_of(batch)
        self._stamp = SequenceStamp(len(batch))
        self._together = together
        # For each partition what stands before its records, and where in it the batch begins; then
        # the records with what comes after them. A frame's head and end go with its first and
        # last partition.
        self._parts: list[tuple[bytearray, int, bytes]] = []
        records = batch[HEADER_SIZE:] + around.after
        last_records = records + around.end
        for number, partition in enumerate(partitions or range(setting.partitions)):
            place = number % together
            before = around.before(partition)
            if place == 0:
                before = around.head + before
            stamped = bytearray(before + batch[:HEADER_SIZE])
            rest = last_records if place == together - 1 else records
            self._parts.append((stamped, len(before), rest))
        self._partition = 0
        self._sequence = 0  # the same for all partitions within one turn
        self.size = sum(len(head) + len(rest) for head, _, rest in self._parts[:together])
        self.answer = wire.produce_answer(version, topic, together)

    def take(self, count: int) -> list[bytes]:
        pieces = []
        stamp, first, parts = self._stamp.apply, self._first_crc, self._parts
        for _ in range(count * self._together):
            head, batch_at, rest = parts[self._partition]
            stamp(head, batch_at, self._sequence, first)
            pieces.append(bytes(head))
            pieces.append(rest)
            self._partition += 1
            if self._partition == len(parts):
                self._partition = 0
                self._sequence = (self._sequence + self._records) & 0x7FFFFFFF
        return pieces


def requests_for(
    address: tuple[str, int],
    topic: str,
    shape: Shape,
    setting: Setting,
    connections: int,
    together: int = 1,
) -> list[Requests]:
    """What each of the connections is going to send; `together` is for idempotent producers."""
    if not setting.idempotent:
        plain = PlainRequests(topic, shape, setting)
        return [plain] * connections
    with Client(address) as client:
        return [
            IdempotentRequests(topic, shape, setting, *client.producer_id(), together)
            for _ in range(connections)
        ]


class _Connection:
    """One socket, what it still has to send, and what came in so far of the next answer."""

    __slots__ = ("in_flight", "pending", "received", "requests", "socket")

    def __init__(self, address: tuple[str, int], requests: Requests) -> None:
        self.socket: socket.socket = open_socket(address)
        self.socket.setblocking(False)
        self.requests = requests
        self.pending: memoryview | None = None
        self.received = b""
        self.in_flight = 0

    def send(self, count: int) -> None:
        pieces = self.requests.take(count)
        total = self.requests.size * count
        self.in_flight += count
        if self.pending is not None:
            self.pending = memoryview(b"".join((self.pending, *pieces)))
            return
        try:
            if total < JOIN_BELOW:
                sent = self.socket.send(b"".join(pieces))
            else:
                sent = self.socket.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        if sent < total:
            self.pending = memoryview(b"".join(pieces))[sent:]

    def flush(self) -> None:
        assert self.pending is not None
        try:
            sent = self.socket.send(self.pending)
        except BlockingIOError:
            return
        self.pending = self.pending[sent:] if sent < len(self.pending) else None

    def answered(self) -> int:
        """How many answers have come in; all are looked at for errors."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return 0
        if not data:
            raise BenchError("the broker closed a producer's connection")
        if self.received:
            data = self.received + data
        frame_size, errors_at = self.requests.answer
        count, rest = divmod(len(data), frame_size)
        start = 0
        for _ in range(count):
            for error_at in errors_at:
                if data[start + error_at] or data[start + error_at + 1]:
                    raise BenchError(_complaint(data, start, error_at))
            start += frame_size
        self.received = data[len(data) - rest :] if rest else b""
        self.in_flight -= count
        return count


def _complaint(data: bytes, at: int, error_at: int) -> str:
    length = int.from_bytes(data[at : at + 4], "big")
    error = int.from_bytes(data[at + error_at : at + error_at + 2], "big", signed=True)
    return f"a Produce request was answered with error {error} (an answer of {length} bytes)"


@dataclass(frozen=True, slots=True)
class Load:
    """What one round of load came to."""

    requests: int
    bytes: int  # of record batches with their request around
    seconds: float
    client_cpu: float  # cores kept busy
    broker_cpu: float  # the same; 0 when the broker's processes are not ours to look at

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def broker_cost(self) -> float:
        """Microseconds of the broker's processor time for a request."""
        return self.broker_cpu * self.seconds / self.requests * 1e6

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6


def produce_load(
    address: tuple[str, int] | list[tuple[str, int]],
    supplies: list[Requests],
    depth: int,
    *,
    seconds: float = float("inf"),
    requests: int | None = None,
    max_bytes: int | None = None,
    broker_cpu: Callable[[], float] = lambda: 0.0,
) -> Load:
    """Keep `depth` requests in flight on a connection for each supply until a limit is reached.

    `address` is where all connections go, or has one for each of them.
    Every request that was sent is waited for. `requests` is exact, the other limits are rounded up
    by what is in flight.
    """
    size = supplies[0].size
    addresses = address if isinstance(address, list) else [address] * len(supplies)
    limit = requests if requests is not None else 1 << 62
    if max_bytes is not None:
        limit = min(limit, max_bytes // size + 1)
    poller = select.epoll()
    connections: dict[int, _Connection] = {}
    try:
        for supply, where in zip(supplies, addresses, strict=True):
            connection = _Connection(where, supply)
            connections[connection.socket.fileno()] = connection
            poller.register(connection.socket.fileno(), select.EPOLLIN)
        cpu_before, broker_before = time.process_time(), broker_cpu()
        began = time.perf_counter()
        deadline = began + seconds
        sent = done = 0
        for fd, connection in connections.items():
            count = min(depth, limit - sent)
            if count > 0:
                connection.send(count)
                sent += count
                if connection.pending is not None:
                    poller.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        while done < sent:
            events = poller.poll(SILENCE)
            if not events:
                raise BenchError(f"no answer for {SILENCE:.0f} s, {sent - done} requests waiting")
            for fd, event in events:
                connection = connections[fd]
                had_pending = connection.pending is not None
                if event & ~select.EPOLLOUT:
                    count = connection.answered()
                    done += count
                    if count and time.perf_counter() < deadline:
                        count = min(count, limit - sent)
                        if count > 0:
                            connection.send(count)
                            sent += count
                if event & select.EPOLLOUT and connection.pending is not None:
                    connection.flush()
                if (connection.pending is not None) != had_pending:
                    writing = select.EPOLLOUT if connection.pending is not None else 0
                    poller.modify(fd, select.EPOLLIN | writing)
        took = time.perf_counter() - began
        return Load(
            requests=done,
            bytes=done * size,
            seconds=took,
            client_cpu=(time.process_time() - cpu_before) / took,
            broker_cpu=(broker_cpu() - broker_before) / took,
        )
    finally:
        for connection in connections.values():
            connection.socket.close()
        poller.close()
