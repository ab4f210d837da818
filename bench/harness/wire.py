"""The few requests and answers of Kafka's protocol that the benchmarks need, encoded by hand.

Every encoder returns a whole frame, its four bytes of length included. Every frame carries the same
correlation id: answers on one connection come in the order of the requests, and nothing here needs
more than that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.harness.errors import BenchError

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 18, 19, 20, 22
INCREMENTAL_ALTER_CONFIGS = 44

CORRELATION_ID = 1
CLIENT_ID = b"ottla-bench"

Buffer = bytes | bytearray | memoryview


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


def request_header(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    header = struct.pack(">hhih", api_key, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    return header + b"\0" if flexible else header


def frame(*parts: Buffer) -> bytes:
    return struct.pack(">i", sum(len(part) for part in parts)) + b"".join(parts)


class Reader:
    """Walks through an answer."""

    def __init__(self, buffer: Buffer, at: int = 0) -> None:
        self.buffer = buffer
        self.at = at

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.buffer, self.at)
        self.at += layout.size
        return values

    def _number(self, size: int) -> int:
        value = int.from_bytes(self.buffer[self.at : self.at + size], "big", signed=True)
        self.at += size
        return value

    def int8(self) -> int:
        return self._number(1)

    def int16(self) -> int:
        return self._number(2)

    def int32(self) -> int:
        return self._number(4)

    def int64(self) -> int:
        return self._number(8)

    def skip(self, count: int) -> None:
        self.at += count

    def take(self, count: int) -> bytes:
        piece = bytes(self.buffer[self.at : self.at + count])
        self.at += count
        return piece

    def string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self.take(length).decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.buffer[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact_string(self) -> str | None:
        length = self.varint() - 1
        return None if length < 0 else self.take(length).decode()

    def compact_count(self) -> int:
        """Of an array or of bytes; a null one counts as empty."""
        return max(0, self.varint() - 1)

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def api_versions_request() -> bytes:
    return frame(request_header(API_VERSIONS, 0))


def metadata_request(topics: Sequence[str]) -> bytes:
    """Version 12: knows topic ids; nothing is created by asking."""
    names = [b"\0" * 16 + compact_string(name) + b"\0" for name in topics]
    return frame(
        request_header(METADATA, 12, flexible=True),
        unsigned_varint(len(names) + 1),
        *names,
        b"\0\0\0",
    )


class PartitionAnswer(NamedTuple):
    """What Metadata says of a partition; brokers by their numbers, −1 where nobody leads."""

    leader: int
    in_sync: int  # how many


class TopicAnswer(NamedTuple):
    """What Metadata says of a topic; `leaders` counts the partitions with a leader."""

    error: int
    topic_id: bytes
    leaders: int
    partitions: dict[int, PartitionAnswer]


class ClusterAnswer(NamedTuple):
    """A whole Metadata answer: the brokers by number, and the topics asked for."""

    brokers: dict[int, tuple[str, int]]
    topics: dict[str, TopicAnswer]


_PARTITION = struct.Struct(">hiii")


def metadata_answer(body: Buffer) -> ClusterAnswer:
    reader = Reader(body, 4)
    reader.tags()
    reader.int32()
    brokers = {}
    for _ in range(reader.compact_count()):
        number = reader.int32()
        host = reader.compact_string() or ""
        brokers[number] = (host, reader.int32())
        reader.compact_string()
        reader.tags()
    reader.compact_string()
    reader.int32()
    topics = {}
    for _ in range(reader.compact_count()):
        error = reader.int16()
        name = reader.compact_string()
        topic_id = reader.take(16)
        reader.int8()
        leaders = 0
        partitions = {}
        for _ in range(reader.compact_count()):
            partition_error, index, leader, _epoch = reader.unpack(_PARTITION)
            leaders += partition_error == 0 and leader >= 0
            reader.skip(4 * reader.compact_count())  # replicas
            in_sync = reader.compact_count()
            reader.skip(4 * in_sync)
            reader.skip(4 * reader.compact_count())  # those that are offline
            reader.tags()
            partitions[index] = PartitionAnswer(leader, in_sync)
        reader.int32()
        reader.tags()
        topics[name or ""] = TopicAnswer(error, topic_id, leaders, partitions)
    return ClusterAnswer(brokers, topics)


def create_topics_request(
    topic: str,
    partitions: int,
    configs: Mapping[str, str],
    replicas: int = 1,
    timeout_ms: int = 60_000,
) -> bytes:
    settings = b"".join(string(name) + string(value) for name, value in configs.items())
    return frame(
        request_header(CREATE_TOPICS, 4),
        struct.pack(">i", 1),
        string(topic),
        struct.pack(">ihii", partitions, replicas, 0, len(configs)),
        settings,
        struct.pack(">ib", timeout_ms, 0),
    )


def create_topics_answer(body: Buffer) -> tuple[int, str]:
    reader = Reader(body, 12)  # correlation id, throttle time, a count of one
    reader.string()
    return reader.int16(), reader.string() or ""


def alter_topic_request(topic: str, configs: Mapping[str, str]) -> bytes:
    """IncrementalAlterConfigs: set these of one topic."""
    settings = b"".join(string(name) + b"\0" + string(value) for name, value in configs.items())
    return frame(
        request_header(INCREMENTAL_ALTER_CONFIGS, 0),
        struct.pack(">ib", 1, 2),  # one resource, which is a topic
        string(topic),
        struct.pack(">i", len(configs)),
        settings,
        b"\0",
    )


def alter_topic_answer(body: Buffer) -> tuple[int, str]:
    reader = Reader(body, 12)  # correlation id, throttle time, a count of one
    return reader.int16(), reader.string() or ""


def delete_topics_request(topic: str, timeout_ms: int = 30_000) -> bytes:
    return frame(
        request_header(DELETE_TOPICS, 3),
        struct.pack(">i", 1),
        string(topic),
        struct.pack(">i", timeout_ms),
    )


def delete_topics_answer(body: Buffer) -> int:
    reader = Reader(body, 12)
    reader.string()
    return reader.int16()


def init_producer_id_request() -> bytes:
    return frame(request_header(INIT_PRODUCER_ID, 1), string(None), struct.pack(">i", 60_000))


def init_producer_id_answer(body: Buffer) -> tuple[int, int, int]:
    """Error, producer id, epoch."""
    reader = Reader(body, 8)
    return reader.int16(), reader.int64(), reader.int16()


def list_offsets_request(topic: str, partitions: Sequence[int], timestamp: int) -> bytes:
    """Version 1; a timestamp of −1 asks for the end, −2 for the start."""
    return frame(
        request_header(LIST_OFFSETS, 1),
        struct.pack(">ii", -1, 1),
        string(topic),
        struct.pack(">i", len(partitions)),
        *(struct.pack(">iq", partition, timestamp) for partition in partitions),
    )


_LISTED = struct.Struct(">ihqq")


def list_offsets_answer(body: Buffer) -> list[tuple[int, int]]:
    """Error and offset of each partition."""
    reader = Reader(body, 8)
    reader.string()
    listed = [reader.unpack(_LISTED) for _ in range(reader.int32())]
    return [(error, offset) for _partition, error, _timestamp, offset in listed]


class ProduceFrame(NamedTuple):
    """The pieces around the batches of a Produce request whose batches all have one size.

    A frame is `head`, then for each partition `before(partition)`, its batch and `after`, then `end`.
    """

    version: int
    head: bytes
    batch_size: int
    after: bytes
    end: bytes

    def before(self, partition: int) -> bytes:
        if self.version < 9:
            return struct.pack(">ii", partition, self.batch_size)
        return struct.pack(">i", partition) + unsigned_varint(self.batch_size + 1)

    @classmethod
    def build(
        cls, version: int, acks: int, topic: str, batch_size: int, partitions: int = 1
    ) -> ProduceFrame:
        timeout_ms = 30_000
        if version < 9:
            head = request_header(PRODUCE, version) + struct.pack(">hhii", -1, acks, timeout_ms, 1)
            head += string(topic) + struct.pack(">i", partitions)
            after = end = b""
        else:
            head = request_header(PRODUCE, version, flexible=True) + b"\0"
            head += struct.pack(">hi", acks, timeout_ms) + b"\2" + compact_string(topic)
            head += unsigned_varint(partitions + 1)
            after, end = b"\0", b"\0\0"  # the tags of partition; of topic and request
        pieces = cls(version, head, batch_size, after, end)
        each = len(pieces.before(0)) + batch_size + len(after)
        length = len(head) + partitions * each + len(end)
        return pieces._replace(head=struct.pack(">i", length) + head)


def produce_request(version: int, acks: int, topic: str, partition: int, batch: bytes) -> bytes:
    pieces = ProduceFrame.build(version, acks, topic, len(batch))
    return pieces.head + pieces.before(partition) + batch + pieces.after + pieces.end


class ProduceAnswer(NamedTuple):
    """Where things stand in the frame that answers a Produce request, when all is well."""

    frame_size: int
    errors_at: tuple[int, ...]  # one for each partition of the request


def produce_answer(version: int, topic: str, partitions: int = 1) -> ProduceAnswer:
    name = len(topic.encode())
    if version < 9:
        first = 4 + 4 + 4 + 2 + name + 4
        each, rest = 4 + 2 + 8 + 8 + 8, 4
    else:
        name += len(unsigned_varint(name + 1))
        first = 4 + 4 + 1 + 1 + name + len(unsigned_varint(partitions + 1))
        # Behind the three numbers: no record errors, no message, no tags; then the tags of the
        # topic, the throttle time, the tags of the whole.
        each, rest = 4 + 2 + 8 + 8 + 8 + 3, 1 + 4 + 1
    errors_at = tuple(first + index * each + 4 for index in range(partitions))
    return ProduceAnswer(first + partitions * each + rest, errors_at)


def fetch_request(
    topic: str, partition: int, offset: int, max_bytes: int, *, max_wait_ms: int = 500
) -> bytes:
    """Version 4: one partition by its name, no session."""
    return frame(
        request_header(FETCH, 4),
        struct.pack(">iiiibi", -1, max_wait_ms, 1, max_bytes, 0, 1),
        string(topic),
        struct.pack(">iiqi", 1, partition, offset, max_bytes),
    )


class FetchedPartition(NamedTuple):
    """One partition of a Fetch answer; `start` and `end` bound its records in the body."""

    partition: int
    error: int
    high_watermark: int
    start: int
    end: int


def fetch_answer(body: Buffer) -> FetchedPartition:
    """Of version 4; the correlation id is part of the body."""
    reader = Reader(body, 12)
    reader.string()
    reader.int32()
    partition, error, high_watermark = reader.int32(), reader.int16(), reader.int64()
    reader.int64()
    reader.skip(16 * max(0, reader.int32()))
    size = max(0, reader.int32())
    return FetchedPartition(partition, error, high_watermark, reader.at, reader.at + size)


_SESSION_PARTITION = struct.Struct(">iiqiqi")


def session_fetch_request(
    topic_id: bytes,
    offsets: Iterable[tuple[int, int]],
    *,
    session_id: int,
    session_epoch: int,
    max_bytes: int,
    partition_max_bytes: int,
    max_wait_ms: int = 500,
) -> bytes:
    """Version 13: topics by id, sessions; `offsets` are (partition, offset) that are new or moved."""
    wanted = [
        _SESSION_PARTITION.pack(partition, -1, offset, -1, -1, partition_max_bytes) + b"\0"
        for partition, offset in offsets
    ]
    topics = b"\1"
    if wanted:
        topics = b"\2" + topic_id + unsigned_varint(len(wanted) + 1) + b"".join(wanted) + b"\0"
    return frame(
        request_header(FETCH, 13, flexible=True),
        struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, 0, session_id, session_epoch),
        topics,
        b"\1\1\0",  # nothing forgotten, no rack, no tags
    )


_SESSION_ANSWER_PARTITION = struct.Struct(">ihqqq")


def session_fetch_answer(body: Buffer) -> tuple[int, list[FetchedPartition]]:
    """Session id and partitions of a version 13 answer."""
    reader = Reader(body, 4)
    reader.tags()
    reader.int32()
    error, session_id = reader.int16(), reader.int32()
    if error:
        raise BenchError(f"a fetch session was answered with error {error}")
    fetched = []
    for _ in range(reader.compact_count()):
        reader.skip(16)
        for _ in range(reader.compact_count()):
            partition, error, high_watermark, _, _ = reader.unpack(_SESSION_ANSWER_PARTITION)
            for _ in range(reader.compact_count()):
                reader.skip(16)
                reader.tags()
            reader.int32()
            size = reader.compact_count()
            start = reader.at
            reader.skip(size)
            reader.tags()
            fetched.append(FetchedPartition(partition, error, high_watermark, start, start + size))
        reader.tags()
    return session_id, fetched
