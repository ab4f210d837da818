"""Requests at a fixed rate, whatever the broker does, and how long each took.

Nothing waits for an answer before the next request goes out, so a broker that stalls is charged for
every request that the stall delays. `select` keeps the pace: unlike `epoll` it can wait for less
than a millisecond. A request's clock starts just before it is handed to the socket.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bench.harness import wire
from bench.harness.batch import next_offset
from bench.harness.client import open_socket
from bench.harness.errors import BenchError
from bench.harness.load.fetch import FetchSession
from bench.harness.load.produce import SILENCE, Requests


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that `fraction` of all are not above (nearest rank)."""
    rank = max(1, -(-len(ordered) * fraction // 1))
    return ordered[min(len(ordered), int(rank)) - 1]


class Latencies(NamedTuple):
    """In milliseconds."""

    p50: float
    p99: float
    p999: float
    worst: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latencies:
        if not seconds:
            raise BenchError("no request was answered")
        ordered = sorted(seconds)
        return cls(
            percentile(ordered, 0.5) * 1e3,
            percentile(ordered, 0.99) * 1e3,
            percentile(ordered, 0.999) * 1e3,
            ordered[-1] * 1e3,
        )


class Follower(Protocol):
    """A consumer with a fetch that waits; it names what arrived by partition and offset."""

    def request(self) -> bytes: ...

    def arrived(self, body: memoryview) -> list[tuple[int, int, int]]:
        """(partition, first offset, offset after the last) of what an answer brought."""
        ...


class PlainFollower:
    """Follows partition 0 of a topic with Fetch version 4."""

    def __init__(self, topic: str, offset: int) -> None:
        self._topic = topic
        self._offset = offset

    def request(self) -> bytes:
        return wire.fetch_request(self._topic, 0, self._offset, 1 << 20)

    def arrived(self, body: memoryview) -> list[tuple[int, int, int]]:
        answer = wire.fetch_answer(body)
        if answer.error:
            raise BenchError(f"the consumer got error {answer.error}")
        first = self._offset
        self._offset, _ = next_offset(body, answer.start, answer.end, first)
        return [(0, first, self._offset)] if self._offset > first else []


class SessionFollower:
    """Follows all partitions of a topic through one fetch session."""

    def __init__(self, topic_id: bytes, offsets: dict[int, int]) -> None:
        self._session = FetchSession(
            topic_id, offsets, max_bytes=50 << 20, partition_max_bytes=1 << 20
        )

    def request(self) -> bytes:
        return self._session.request()

    def arrived(self, body: memoryview) -> list[tuple[int, int, int]]:
        brought = []
        for each in self._session.answer(body):
            first = self._session.offsets[each.partition]
            following, _ = next_offset(body, each.start, each.end, first)
            self._session.move(each.partition, following)
            brought.append((each.partition, first, following))
        return brought


class _Frames:
    """A non-blocking socket and the frames that come in on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket: socket.socket = open_socket(address)
        self._received = bytearray()

    def whole(self) -> list[memoryview]:
        """Bodies of the frames that are complete now, after one `recv`."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise BenchError("the broker closed the connection")
        self._received += data
        bodies = []
        at, end = 0, len(self._received)
        while end - at >= 4:
            length = int.from_bytes(self._received[at : at + 4], "big")
            if end - at - 4 < length:
                break
            bodies.append(memoryview(bytes(self._received[at + 4 : at + 4 + length])))
            at += 4 + length
        del self._received[:at]
        return bodies


class Paced(NamedTuple):
    """How long requests took until their answer, and records until the consumer had them."""

    acknowledged: list[float]
    delivered: list[float]


def paced_load(
    address: tuple[str, int],
    requests: Requests,
    *,
    rate: float,
    seconds: float,
    follower: Follower | None = None,
    partitions: int = 1,
    start_offset: int = 0,
) -> Paced:
    """Send single-record requests round the partitions; wait for every answer and delivery.

    All partitions must end at `start_offset`, and the number of requests is made a multiple of
    the partitions, so that they do so again afterwards.
    """
    total = max(1, round(rate * seconds / partitions)) * partitions
    interval = 1 / rate
    sent_at: list[float] = []
    acknowledged: list[float] = []
    delivered: list[float] = []
    clock = time.perf_counter
    producer = _Frames(address)
    consumer = _Frames(address) if follower is not None else None
    sources: list[socket.socket] = [producer.socket]
    # Before the length of the frame was cut off, the error stood four bytes further on.
    error_at = requests.answer.errors_at[0] - 4
    try:
        if consumer is not None and follower is not None:
            sources.append(consumer.socket)
            consumer.socket.sendall(follower.request())
            time.sleep(0.05)  # let the first fetch reach its wait
        due = clock()
        heard = due
        while len(acknowledged) < total or (follower and len(delivered) < total):
            now = clock()
            while len(sent_at) < total and now >= due:
                piece = b"".join(requests.take(1))
                sent_at.append(clock())
                producer.socket.sendall(piece)
                due += interval
                now = clock()
            wait = max(0.0, due - now) if len(sent_at) < total else 1.0
            ready, _, _ = select.select(sources, (), (), wait)
            now = clock()
            if not ready:
                if now - heard > SILENCE:
                    raise BenchError(f"no answer for {SILENCE:.0f} s")
                continue
            heard = now
            if consumer is not None and follower is not None and consumer.socket in ready:
                for body in consumer.whole():
                    brought = follower.arrived(body)
                    consumer.socket.sendall(follower.request())
                    for partition, first, following in brought:
                        for offset in range(first, following):
                            index = (offset - start_offset) * partitions + partition
                            delivered.append(now - sent_at[index])
            if producer.socket in ready:
                for body in producer.whole():
                    if body[error_at] or body[error_at + 1]:
                        error = int.from_bytes(body[error_at : error_at + 2], "big")
                        raise BenchError(f"a Produce request was answered with error {error}")
                    acknowledged.append(now - sent_at[len(acknowledged)])
    finally:
        producer.socket.close()
        if consumer is not None:
            consumer.socket.close()
    return Paced(acknowledged, delivered)


def paced_producers(
    addresses: Sequence[tuple[str, int]],
    supplies: Sequence[Requests],
    *,
    rate: float,
    seconds: float,
) -> list[float]:
    """Send at a fixed rate over several connections in turn, one for each supply; the seconds until
    the answer of each request."""
    total = max(1, round(rate * seconds))
    interval = 1 / rate
    clock = time.perf_counter
    connections: dict[socket.socket, _Frames] = {}
    sent_at: dict[socket.socket, deque[float]] = {}
    # Before the length of the frame was cut off, the error stood four bytes further on.
    error_at = supplies[0].answer.errors_at[0] - 4
    acknowledged: list[float] = []
    try:
        for address in addresses:
            opened = _Frames(address)
            connections[opened.socket] = opened
            sent_at[opened.socket] = deque()
        turns = itertools.cycle(zip(connections, supplies, strict=True))
        sent = 0
        heard = due = clock()
        while len(acknowledged) < total:
            now = clock()
            while sent < total and now >= due:
                to, supply = next(turns)
                piece = b"".join(supply.take(1))
                sent_at[to].append(clock())
                to.sendall(piece)
                sent += 1
                due += interval
                now = clock()
            wait = max(0.0, due - now) if sent < total else 1.0
            ready, _, _ = select.select(list(connections), (), (), wait)
            now = clock()
            if not ready:
                if now - heard > SILENCE:
                    raise BenchError(f"no answer for {SILENCE:.0f} s")
                continue
            heard = now
            for source in ready:
                for body in connections[source].whole():
                    if body[error_at] or body[error_at + 1]:
                        error = int.from_bytes(body[error_at : error_at + 2], "big")
                        raise BenchError(f"a Produce request was answered with error {error}")
                    acknowledged.append(now - sent_at[source].popleft())
    finally:
        for each in connections:
            each.close()
    return acknowledged
