"""Fetch requests at full speed on one connection: by name without a session, and as consumers do it.

The topics that are read were filled with batches of one size (`Filled`), so the next offset follows
from the number of bytes that came; the header of the last whole batch is looked at to be sure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bench.harness import wire
from bench.harness.batch import HEADER_SIZE, LAST_OFFSET_DELTA_AT, Shape, record_batch
from bench.harness.client import Client, open_socket, receive_exactly
from bench.harness.errors import BenchError
from bench.harness.load.produce import (
    DEFAULTS,
    IdempotentRequests,
    Load,
    PlainRequests,
    Requests,
    Setting,
    produce_load,
)

SPARE = 4 << 20  # an answer may hold one batch more than asked for


class Filled(NamedTuple):
    """A topic that holds `batches` batches of one shape in each partition."""

    topic: str
    topic_id: bytes
    partitions: int
    shape: Shape
    batch_size: int
    batches: int

    @property
    def end(self) -> int:
        return self.batches * self.shape.records


def fill(
    address: tuple[str, int], topic: str, shape: Shape, setting: Setting, total_bytes: int
) -> Filled:
    """Put so many bytes into a topic that exists and is empty, spread evenly."""
    batch_size = len(record_batch(shape))
    batches = max(1, total_bytes // batch_size // setting.partitions)
    with Client(address) as client:
        supply: Requests
        if setting.idempotent:
            supply = IdempotentRequests(topic, shape, setting, *client.producer_id())
        else:
            supply = PlainRequests(topic, shape, DEFAULTS)
        produce_load(address, [supply], 5, requests=batches * setting.partitions)
        topic_id = client.topic(topic).topic_id
    return Filled(topic, topic_id, setting.partitions, shape, batch_size, batches)


def _following(body: memoryview, start: int, end: int, offset: int, filled: Filled) -> int:
    """The offset after the last whole batch of an answer that begins at `offset`."""
    whole = (end - start) // filled.batch_size
    if not whole:
        return offset
    last = start + (whole - 1) * filled.batch_size
    base = int.from_bytes(body[last : last + 8], "big")
    delta = int.from_bytes(body[last + LAST_OFFSET_DELTA_AT : last + 27], "big")
    following = base + delta + 1
    if following != offset - offset % filled.shape.records + whole * filled.shape.records:
        raise BenchError(f"asked for offset {offset}, {whole} batches came that end at {following}")
    return following


def fetch_load(
    address: tuple[str, int],
    filled: Filled,
    max_bytes: int,
    seconds: float,
    *,
    offsets: Iterable[int] | None = None,
    broker_cpu: Callable[[], float] = lambda: 0.0,
) -> Load:
    """Read partition 0 from its start again and again, or from the offsets given one after the other."""
    buffer = memoryview(bytearray(max_bytes + SPARE))
    given = iter(offsets) if offsets is not None else None
    offset = next(given) if given is not None else 0
    received = requests = 0
    connection = open_socket(address)
    try:
        cpu_before, broker_before = time.process_time(), broker_cpu()
        began = time.perf_counter()
        deadline = began + seconds
        while time.perf_counter() < deadline:
            connection.sendall(wire.fetch_request(filled.topic, 0, offset, max_bytes))
            receive_exactly(connection, buffer[:4])
            length = int.from_bytes(buffer[:4], "big")
            body = buffer[:length]
            receive_exactly(connection, body)
            received += length
            requests += 1
            answer = wire.fetch_answer(body)
            if answer.error or answer.end - answer.start < HEADER_SIZE:
                raise BenchError(
                    f"fetch at {offset} of {filled.end}: error {answer.error},"
                    f" {answer.end - answer.start} bytes of records"
                )
            following = _following(body, answer.start, answer.end, offset, filled)
            again = following if following < filled.end else 0
            offset = next(given) if given is not None else again
        took = time.perf_counter() - began
    finally:
        connection.close()
    return Load(
        requests=requests,
        bytes=received,
        seconds=took,
        client_cpu=(time.process_time() - cpu_before) / took,
        broker_cpu=(broker_cpu() - broker_before) / took,
    )


class FetchSession:
    """A consumer's fetch session (version 13) over all partitions of a topic.

    After the first request only the partitions whose offset moved are named.
    """

    def __init__(
        self,
        topic_id: bytes,
        offsets: dict[int, int],
        *,
        max_bytes: int,
        partition_max_bytes: int,
        max_wait_ms: int = 500,
    ) -> None:
        self._topic_id = topic_id
        self.offsets = offsets
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._max_wait_ms = max_wait_ms
        self._session_id = 0
        self._epoch = 0
        self._moved: list[int] = list(offsets)

    def request(self) -> bytes:
        encoded = wire.session_fetch_request(
            self._topic_id,
            [(partition, self.offsets[partition]) for partition in self._moved],
            session_id=self._session_id,
            session_epoch=self._epoch,
            max_bytes=self._max_bytes,
            partition_max_bytes=self._partition_max_bytes,
            max_wait_ms=self._max_wait_ms,
        )
        self._moved.clear()
        self._epoch += 1
        return encoded

    def answer(self, body: memoryview) -> list[wire.FetchedPartition]:
        self._session_id, fetched = wire.session_fetch_answer(body)
        if not self._session_id:
            raise BenchError("the broker opened no fetch session")
        for each in fetched:
            if each.error:
                raise BenchError(f"fetching partition {each.partition}: error {each.error}")
        return [each for each in fetched if each.end > each.start]

    def move(self, partition: int, offset: int) -> None:
        self.offsets[partition] = offset
        self._moved.append(partition)


def session_fetch_load(
    address: tuple[str, int],
    filled: Filled,
    max_bytes: int,
    seconds: float,
    *,
    broker_cpu: Callable[[], float] = lambda: 0.0,
) -> Load:
    """Read all partitions through one session; a partition that was read to its end starts anew."""
    session = FetchSession(
        filled.topic_id,
        dict.fromkeys(range(filled.partitions), 0),
        max_bytes=max_bytes,
        partition_max_bytes=max_bytes,
    )
    buffer = memoryview(bytearray(max_bytes + SPARE))
    received = requests = 0
    connection = open_socket(address)
    try:
        cpu_before, broker_before = time.process_time(), broker_cpu()
        began = time.perf_counter()
        deadline = began + seconds
        while time.perf_counter() < deadline:
            connection.sendall(session.request())
            receive_exactly(connection, buffer[:4])
            length = int.from_bytes(buffer[:4], "big")
            body = buffer[:length]
            receive_exactly(connection, body)
            received += length
            requests += 1
            fetched = session.answer(body)
            if not fetched:
                raise BenchError("a fetch session over full partitions brought nothing")
            for each in fetched:
                before = session.offsets[each.partition]
                following = _following(body, each.start, each.end, before, filled)
                if following != before:
                    at_end = following >= filled.end
                    session.move(each.partition, 0 if at_end else following)
        took = time.perf_counter() - began
    finally:
        connection.close()
    return Load(
        requests=requests,
        bytes=received,
        seconds=took,
        client_cpu=(time.process_time() - cpu_before) / took,
        broker_cpu=(broker_cpu() - broker_before) / took,
    )
