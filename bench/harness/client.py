"""A plain blocking connection, and the administrative requests that set a row up."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from bench.harness import wire
from bench.harness.errors import BenchError

ANSWER_TIMEOUT = 180.0  # Kafka takes long over thousands of partitions
LEADER_TIMEOUT = 180.0
# What a client that is there to disturb takes by one call. Some kernels let nobody else have the
# processor while a call copies: half a millisecond for a megabyte, for which no broker is to blame.
SMALL_RECEIVE = 64 << 10

# Errors that a broker answers with while it starts up or elects: worth asking again.
_NOT_YET = {3, 5, 6, 14, 15, 16, 7}


def open_socket(address: tuple[str, int], timeout: float = ANSWER_TIMEOUT) -> socket.socket:
    """A blocking socket; the kernel does the timing out, which costs no system call of its own."""
    connection = socket.create_connection(address, timeout)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return connection


def receive_exactly(
    connection: socket.socket, view: memoryview, at_once: int = sys.maxsize
) -> None:
    received = 0
    while received < len(view):
        try:
            count = connection.recv_into(view[received : received + at_once])
        except BlockingIOError:
            raise BenchError("no answer came in time") from None
        if not count:
            raise BenchError("the broker closed the connection")
        received += count


def receive_frame(connection: socket.socket, at_once: int = sys.maxsize) -> bytearray:
    """The next answer's body, from the correlation id on, so much by one call."""
    size = bytearray(4)
    receive_exactly(connection, memoryview(size))
    body = bytearray(int.from_bytes(size, "big"))
    receive_exactly(connection, memoryview(body), at_once)
    return body


class Client:
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int], timeout: float = ANSWER_TIMEOUT) -> None:
        self._connection = open_socket(address, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def ask(self, request: wire.Buffer) -> bytearray:
        self.send(request)
        return self.receive()

    def send(self, request: wire.Buffer) -> None:
        self._connection.sendall(request)

    def receive(self, at_once: int = sys.maxsize) -> bytearray:
        return receive_frame(self._connection, at_once)

    def topic(self, name: str) -> wire.TopicAnswer:
        return self.metadata([name]).topics[name]

    def metadata(self, topics: Sequence[str]) -> wire.ClusterAnswer:
        return wire.metadata_answer(self.ask(wire.metadata_request(topics)))

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        answer = self.ask(wire.create_topics_request(name, partitions, configs or {}))
        error, message = wire.create_topics_answer(answer)
        if error:
            raise BenchError(f"creating {name} with {partitions} partitions: {error} {message}")
        deadline = time.monotonic() + LEADER_TIMEOUT
        while self.topic(name).leaders < partitions or not self._led(name, partitions):
            if time.monotonic() > deadline:
                raise BenchError(f"{name} has no leaders after {LEADER_TIMEOUT:.0f} s")
            time.sleep(0.02)

    def _led(self, topic: str, partitions: int) -> bool:
        """Whether the broker itself knows already that it leads them; Metadata may be ahead of it."""
        answer = self.ask(wire.list_offsets_request(topic, range(partitions), -1))
        return not any(error for error, _ in wire.list_offsets_answer(answer))

    def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        error, message = wire.alter_topic_answer(self.ask(wire.alter_topic_request(name, configs)))
        if error:
            raise BenchError(f"altering {name}: {error} {message}")

    def delete_topic(self, name: str) -> None:
        error = wire.delete_topics_answer(self.ask(wire.delete_topics_request(name)))
        if error:
            raise BenchError(f"deleting {name}: error {error}")

    def producer_id(self) -> tuple[int, int]:
        """A producer id of our own, and its epoch."""
        deadline = time.monotonic() + LEADER_TIMEOUT
        while True:
            answer = self.ask(wire.init_producer_id_request())
            error, producer_id, epoch = wire.init_producer_id_answer(answer)
            if not error:
                return producer_id, epoch
            if error not in _NOT_YET or time.monotonic() > deadline:
                raise BenchError(f"no producer id: error {error}")
            time.sleep(0.05)

    def offset(self, topic: str, partition: int, timestamp: int = -1) -> int:
        answer = self.ask(wire.list_offsets_request(topic, [partition], timestamp))
        ((error, offset),) = wire.list_offsets_answer(answer)
        if error:
            raise BenchError(f"the offsets of {topic}-{partition}: error {error}")
        return offset

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = 1) -> int:
        """Produce version 7; the error code of the answer."""
        answer = self.ask(wire.produce_request(7, acks, topic, partition, batch))
        at = wire.produce_answer(7, topic).errors_at[0] - 4
        return int.from_bytes(answer[at : at + 2], "big", signed=True)

    def produce_when_ready(
        self, topic: str, partition: int, batch: bytes, *, every: float = 0.005
    ) -> None:
        """Ask again while the broker is not yet ready to lead this partition."""
        deadline = time.monotonic() + LEADER_TIMEOUT
        while error := self.produce(topic, partition, batch):
            if error not in _NOT_YET or time.monotonic() > deadline:
                raise BenchError(f"producing to {topic}-{partition}: error {error}")
            time.sleep(every)
