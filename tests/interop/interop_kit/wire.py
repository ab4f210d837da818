"""A client made of a socket and struct: the old requests, and a look at the bytes of the log.

It speaks ApiVersions 0, Metadata 0, Produce 0-7, Fetch 0-10 and ListOffsets 0-1. It checks nothing
and hides nothing: error codes are handed to the test.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from types import TracebackType

from interop_kit.message_sets import Batch, batches

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
LATEST, EARLIEST = -1, -2


class Reader:
    """Takes values off the front of an answer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        number: int = value
        return number

    def string(self) -> str:
        length = self.take("h")
        self.at += max(length, 0)
        return self.data[self.at - max(length, 0) : self.at].decode()

    def bytes(self) -> bytes:
        length = self.take("i")
        self.at += max(length, 0)
        return self.data[self.at - max(length, 0) : self.at]

    def finished(self) -> bool:
        return self.at == len(self.data)


@dataclass(frozen=True, slots=True)
class Produced:
    error: int
    base_offset: int
    log_append_time: int | None  # None before version 2


@dataclass(frozen=True, slots=True)
class Fetched:
    error: int
    high_watermark: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    error: int
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class RawConnection:
    def __init__(self, bootstrap: str, client_id: str | None = "raw") -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.client_id = client_id
        self._correlation = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Send a request without waiting for its answer; its correlation id."""
        self._correlation += 1
        header = struct.pack(">hhi", api_key, version, self._correlation) + string(self.client_id)
        frame = header + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation

    def receive(self, correlation_id: int) -> Reader:
        (size,) = struct.unpack(">i", self._exactly(4))
        answer = Reader(self._exactly(size))
        found = answer.take("i")
        assert found == correlation_id, f"answer {found} came for request {correlation_id}"
        return answer

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)

    def request(self, api_key: int, version: int, body: bytes) -> Reader:
        return self.receive(self.send(api_key, version, body))

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Version 0: the lowest and highest version of each API."""
        answer = self.request(API_VERSIONS, 0, b"")
        error = answer.take("h")
        assert error == 0, error
        ranges = {}
        for _ in range(answer.take("i")):
            key, low, high = answer.take("h"), answer.take("h"), answer.take("h")
            ranges[key] = (low, high)
        assert answer.finished()
        return ranges

    def metadata(
        self, *topics: str
    ) -> tuple[dict[int, tuple[str, int]], dict[str, tuple[int, list[PartitionMetadata]]]]:
        """Version 0: brokers by id; topics by name with their error and partitions."""
        body = struct.pack(">i", len(topics)) + b"".join(string(topic) for topic in topics)
        answer = self.request(METADATA, 0, body)
        brokers = {}
        for _ in range(answer.take("i")):
            broker_id = answer.take("i")
            brokers[broker_id] = (answer.string(), answer.take("i"))
        found = {}
        for _ in range(answer.take("i")):
            topic_error, name = answer.take("h"), answer.string()
            partitions = []
            for _ in range(answer.take("i")):
                error, number, leader = answer.take("h"), answer.take("i"), answer.take("i")
                replicas = tuple(answer.take("i") for _ in range(answer.take("i")))
                in_sync = tuple(answer.take("i") for _ in range(answer.take("i")))
                partitions.append(PartitionMetadata(error, number, leader, replicas, in_sync))
            found[name] = (topic_error, partitions)
        assert answer.finished()
        return brokers, found

    def produce(
        self, version: int, topic: str, partition: int, data: bytes, *, acks: int = -1
    ) -> Produced | None:
        """None for acks=0: no answer comes then."""
        body = struct.pack(">h", -1) if version >= 3 else b""
        body += struct.pack(">hi", acks, 10_000)
        body += struct.pack(">i", 1) + string(topic)
        body += struct.pack(">iii", 1, partition, len(data)) + data
        correlation_id = self.send(PRODUCE, version, body)
        if acks == 0:
            return None
        answer = self.receive(correlation_id)
        assert (answer.take("i"), answer.string(), answer.take("i")) == (1, topic, 1)
        assert answer.take("i") == partition
        error, base_offset = answer.take("h"), answer.take("q")
        time = answer.take("q") if version >= 2 else None
        if version >= 5:
            answer.take("q")  # log start offset
        if version >= 1:
            answer.take("i")  # throttle time
        assert answer.finished()
        return Produced(error, base_offset, time)

    def fetch(
        self,
        version: int,
        topic: str,
        partition: int,
        offset: int,
        *,
        partition_bytes: int = 1 << 20,
        wait_ms: int = 100,
        min_bytes: int = 1,
    ) -> Fetched:
        body = struct.pack(">iii", -1, wait_ms, min_bytes)
        if version >= 3:
            body += struct.pack(">i", 50 << 20)
        if version >= 4:
            body += b"\0"  # read uncommitted
        if version >= 7:
            body += struct.pack(">ii", 0, -1)  # no fetch session
        body += struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, partition)
        if version >= 9:
            body += struct.pack(">i", -1)  # current leader epoch
        body += struct.pack(">q", offset)
        if version >= 5:
            body += struct.pack(">q", -1)  # log start offset
        body += struct.pack(">i", partition_bytes)
        if version >= 7:
            body += struct.pack(">i", 0)  # forgotten topics
        answer = self.request(FETCH, version, body)
        if version >= 1:
            answer.take("i")  # throttle time
        if version >= 7:
            assert (answer.take("h"), answer.take("i")) == (0, 0), "error, or a session unasked for"
        assert (answer.take("i"), answer.string(), answer.take("i")) == (1, topic, 1)
        assert answer.take("i") == partition
        error, high_watermark = answer.take("h"), answer.take("q")
        if version >= 4:
            answer.take("q")  # last stable offset
            if version >= 5:
                answer.take("q")  # log start offset
            for _ in range(max(0, answer.take("i"))):
                answer.take("q"), answer.take("q")  # aborted transactions
        data = answer.bytes()
        assert answer.finished()
        return Fetched(error, high_watermark, data)

    def offsets_before(
        self, topic: str, partition: int, timestamp: int, count: int = 1
    ) -> tuple[int, list[int]]:
        """ListOffsets 0: error and up to `count` offsets, the largest first."""
        body = struct.pack(">ii", -1, 1) + string(topic)
        body += struct.pack(">iiqi", 1, partition, timestamp, count)
        answer = self.request(LIST_OFFSETS, 0, body)
        assert (answer.take("i"), answer.string(), answer.take("i")) == (1, topic, 1)
        assert answer.take("i") == partition
        error = answer.take("h")
        found = [answer.take("q") for _ in range(answer.take("i"))]
        assert answer.finished()
        return error, found

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> tuple[int, int, int]:
        """ListOffsets 1: error, timestamp, offset."""
        body = struct.pack(">ii", -1, 1) + string(topic)
        body += struct.pack(">iiq", 1, partition, timestamp)
        answer = self.request(LIST_OFFSETS, 1, body)
        assert (answer.take("i"), answer.string(), answer.take("i")) == (1, topic, 1)
        assert answer.take("i") == partition
        found = answer.take("h"), answer.take("q"), answer.take("q")
        assert answer.finished()
        return found

    def stored_batches(self, topic: str, partition: int) -> list[Batch]:
        """The headers of all batches in a partition's log (Fetch 10: as they lie there)."""
        found: list[Batch] = []
        error, _, offset = self.offset_for_time(topic, partition, EARLIEST)
        assert error == 0, error
        while True:
            answer = self.fetch(10, topic, partition, offset, wait_ms=0)
            assert answer.error == 0, answer.error
            if offset >= answer.high_watermark:
                return found
            read = batches(answer.data)
            assert read, (
                f"no whole batch at {offset}, though the log ends at {answer.high_watermark}"
            )
            found += read
            offset = found[-1].last_offset + 1


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text.encode())) + text.encode()


def stored_batches(bootstrap: str, topic: str, partition: int = 0) -> list[Batch]:
    with RawConnection(bootstrap) as connection:
        return connection.stored_batches(topic, partition)
