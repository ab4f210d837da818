"""How near Ottla's client is to what cannot be faster: clients that do less than they would have to.

Of consumers: one connection that asks for as much at a time as the consumer does, and receives into
the same buffer again and again. The first one looks at nothing but where to read on; the second one
sums up each batch as every consumer has to, by the package that does so fastest here. Neither makes
anything of records.

Of producers: one that has encoded all its requests before the clock starts, in batches of the size that
Ottla's makes, and sends five ahead of the answers. What it reaches is what the broker takes.

These stand in the column "Kafka" of their rows; the broker is named after the row.
"""

from __future__ import annotations

import time

import pyarrow as pa
from crc32c import crc32c

from bench.harness import wire
from bench.harness.batch import COVERED_FROM, CRC_AT, HEADER_SIZE, next_offset
from bench.harness.client import open_socket, receive_exactly, receive_frame
from bench.harness.errors import BenchError
from bench.harness.load.fetch import SPARE
from ottla.record.columns import encode

_ASKED_FOR = 8 << 20  # bytes; the consumer's default
_BATCH = 1_000_000  # bytes; the producer's default
_AHEAD = 5
_PRODUCE_VERSION = 7


def receive(bootstrap: str, topic: str, records: int) -> float:
    """Receive so many records; the seconds it took."""
    return _read(bootstrap, topic, records, checked=False)


def receive_and_check(bootstrap: str, topic: str, records: int) -> float:
    """The same, with their checksums checked."""
    return _read(bootstrap, topic, records, checked=True)


def _read(bootstrap: str, topic: str, records: int, *, checked: bool) -> float:
    host, _, port = bootstrap.rpartition(":")
    buffer = memoryview(bytearray(_ASKED_FOR + SPARE))
    connection = open_socket((host, int(port)))
    try:
        begin = time.perf_counter()
        offset = 0
        while offset < records:
            connection.sendall(wire.fetch_request(topic, 0, offset, _ASKED_FOR))
            receive_exactly(connection, buffer[:4])
            body = buffer[: int.from_bytes(buffer[:4], "big")]
            receive_exactly(connection, body)
            answer = wire.fetch_answer(body)
            if checked:
                _check(body[answer.start : answer.end])
            following, batches = next_offset(body, answer.start, answer.end, offset)
            if answer.error or not batches:
                raise BenchError(f"fetch at {offset}: error {answer.error}, {batches} batches")
            offset = following
        return time.perf_counter() - begin
    finally:
        connection.close()


def _check(batches: memoryview) -> None:
    at = 0
    while at + HEADER_SIZE <= len(batches):
        end = at + 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
        if end > len(batches):
            break
        if crc32c(batches[at + COVERED_FROM : end]) != int.from_bytes(
            batches[at + CRC_AT : at + CRC_AT + 4], "big"
        ):
            raise BenchError("a checksum is wrong")
        at = end


def send_encoded(bootstrap: str, topic: str, values: pa.Array) -> float:
    """Send the values, encoded beforehand; the seconds until all are acknowledged."""
    host, _, port = bootstrap.rpartition(":")
    requests = [
        wire.produce_request(_PRODUCE_VERSION, -1, topic, 0, bytes(batch.data))
        for batch in encode(values, max_bytes=_BATCH)
    ]
    # The frame as it is received has no length before it.
    (error_at,) = (at - 4 for at in wire.produce_answer(_PRODUCE_VERSION, topic).errors_at)
    connection = open_socket((host, int(port)))

    def take_answer() -> None:
        error = int.from_bytes(
            receive_frame(connection)[error_at : error_at + 2], "big", signed=True
        )
        if error:
            raise BenchError(f"produce: error {error}")

    try:
        begin = time.perf_counter()
        for number, request in enumerate(requests):
            if number >= _AHEAD:
                take_answer()
            connection.sendall(request)
        for _ in requests[-_AHEAD:]:
            take_answer()
        return time.perf_counter() - begin
    finally:
        connection.close()
