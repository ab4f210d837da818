"""Message sets: the formats v0 and v1 that came before record batches, and the ways between them.

Clients older than Kafka 0.11 know nothing else. The log holds v2 only: what such a client sends is
upgraded before it is appended, what it fetches is downgraded on the way out. A set is a sequence of
messages, all numbers big-endian:

    at   type    field
     0   int64   offset
     8   int32   size         of what follows
    12   uint32  CRC32        (the zlib one) over everything from the magic to the end
    16   int8    magic        0 or 1
    17   int8    attributes   bits 0-2 codec, bit 3 timestamp type (v1)
    18   int64   timestamp    v1 only
     …   bytes   key          int32 length, -1 for null
     …   bytes   value        int32 length, -1 for null

A message with a codec is a wrapper: its value is a compressed set, one level deep. The wrapper has
the offset of its last inner message. In v0 the inner offsets are absolute, so a broker had to
recompress to assign them; in v1 they count from the first inner message, and the wrapper alone
places them. With log append time in a v1 wrapper its timestamp holds for all inner messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from ottla.record.batch import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    TIMESTAMP_TYPE_BIT,
    Buffer,
    Record,
    build_batch,
    check_batch,
    records,
)
from ottla.record.compression.codecs import DEFAULT_LIMIT, Codec, compress, decompress
from ottla.record.compression.stream_frames import (
    with_kafka_v0_lz4_checksum,
    with_right_lz4_checksum,
)
from ottla.record.errors import (
    CorruptBatch,
    InvalidRecord,
    Truncated,
    UnsupportedMagic,
    WrongTimestampType,
)

NO_TIMESTAMP = -1
NO_TIMESTAMP_TYPE = -1

_ENTRY = struct.Struct(">qi")  # offset, size
_HEAD = struct.Struct(">Ibb")  # CRC, magic, attributes
_HEAD_AFTER_CRC = struct.Struct(">bb")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")

_CRC_SIZE = 4
# Head and the two lengths; v1 has the timestamp on top.
_SMALLEST_SIZE = {0: _HEAD.size + 8, 1: _HEAD.size + 16}
_NULL = b"\xff\xff\xff\xff"


class _Message(NamedTuple):
    """One message as it stands in a set, its checksum verified, its value still packed."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        if self.magic == 0:
            return CREATE_TIME
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    def record(self, offset: int, timestamp: int) -> Record:
        return Record(
            offset,
            timestamp,
            None if self.key is None else bytes(self.key),
            None if self.value is None else bytes(self.value),
        )


def timestamp_type(message: Buffer) -> int:
    """0 the producer's time, 1 the broker's, -1 in format v0, which has none."""
    if message[MAGIC_AT] == 0:
        return NO_TIMESTAMP_TYPE
    return (message[MAGIC_AT + 1] & TIMESTAMP_TYPE_BIT) >> 3


def messages(
    message_set: Buffer, limit: int = DEFAULT_LIMIT, *, partial: bool = False
) -> Iterator[Record]:
    """The messages of a set with their absolute offsets, those inside wrappers included.

    Checksums, lengths and nesting are checked; InvalidBatch says what is wrong. A broker may end
    what it sends with a piece of a message: `partial` lets that pass. `limit` bounds each wrapper.
    """
    for message in _shallow(memoryview(message_set), partial=partial):
        if message.codec == Codec.NONE:
            yield message.record(message.offset, message.timestamp)
        else:
            yield from _unwrap(message, limit)


def _shallow(view: memoryview, *, partial: bool) -> Iterator[_Message]:
    at = 0
    end = len(view)
    while at < end:
        try:
            offset, size = _ENTRY.unpack_from(view, at)
            start = at + _ENTRY.size
            if size < _SMALLEST_SIZE[0]:
                raise CorruptBatch(f"a message of {size} bytes")
            if size > end - start:
                raise Truncated(f"a message of {size} bytes, {end - start} are left")
        except struct.error:
            if partial:
                return
            raise Truncated("the message set ends inside a message") from None
        except Truncated:
            if partial:
                return
            raise
        at = start + size
        yield _read_message(view[start:at], offset)


def _read_message(body: memoryview, offset: int) -> _Message:
    """The message in `body`, which starts with its CRC."""
    checksum, magic, attributes = _HEAD.unpack_from(body)
    if magic not in _SMALLEST_SIZE:
        raise UnsupportedMagic(f"magic is {magic}, not 0 or 1")
    if len(body) < _SMALLEST_SIZE[magic]:
        raise CorruptBatch(f"a message of {len(body)} bytes with magic {magic}")
    if crc32(body[_CRC_SIZE:]) != checksum:
        raise CorruptBatch("the CRC32 of a message does not match")
    at = _HEAD.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _INT64.unpack_from(body, at)
        at += _INT64.size
    key, at = _read_bytes(body, at)
    value, at = _read_bytes(body, at)
    if at != len(body):
        raise InvalidRecord(f"{len(body) - at} bytes are left after a message")
    return _Message(offset, magic, attributes, timestamp, key, value)


def _read_bytes(body: memoryview, at: int) -> tuple[memoryview | None, int]:
    if len(body) - at < _INT32.size:
        raise InvalidRecord("a message ends before its value")
    (length,) = _INT32.unpack_from(body, at)
    at += _INT32.size
    if length == -1:
        return None, at
    if not 0 <= length <= len(body) - at:
        raise InvalidRecord(f"a key or value of {length} bytes, {len(body) - at} are left")
    return body[at : at + length], at + length


def _unwrap(wrapper: _Message, limit: int) -> Iterator[Record]:
    """The messages inside a wrapper, with absolute offsets and the timestamps that hold."""
    codec = wrapper.codec
    packed: Buffer | None = wrapper.value
    if packed is None:
        raise InvalidRecord("a compressed message without a value")
    if codec > Codec.LZ4:
        raise InvalidRecord(f"messages cannot have compression codec {codec}")
    if wrapper.magic == 0 and codec == Codec.LZ4:
        packed = with_right_lz4_checksum(memoryview(packed))
    inner = list(_shallow(memoryview(decompress(codec, packed, limit)), partial=False))
    if not inner:
        raise InvalidRecord("a compressed message with nothing inside")
    first_offset = 0
    # Some clients leave the wrapper's offset at 0 in what they produce; the inner ones then hold.
    if wrapper.magic == 1 and wrapper.offset != 0:
        first_offset = wrapper.offset - inner[-1].offset
        if first_offset < 0:
            raise InvalidRecord(
                f"offset {wrapper.offset} of a wrapper is below its last message's"
                f" {inner[-1].offset}"
            )
    append_time = wrapper.timestamp if wrapper.timestamp_type == LOG_APPEND_TIME else None
    for message in inner:
        if message.codec != Codec.NONE:
            raise InvalidRecord("a compressed message inside a compressed message")
        if message.magic != wrapper.magic:
            raise InvalidRecord(f"magic {message.magic} inside a wrapper of {wrapper.magic}")
        yield message.record(
            first_offset + message.offset,
            message.timestamp if append_time is None else append_time,
        )


def upgrade(message_set: Buffer, limit: int = DEFAULT_LIMIT) -> bytearray:
    """A produced message set as v2 batches, ready to be appended: writable, base offsets 0.

    Order is kept. Each wrapper becomes a batch of the same codec, each run of plain messages
    between them one uncompressed batch. The offsets in a produced set mean nothing and are counted
    anew. v0 has no timestamps, its records get -1. A partial message at the end is an error here.
    """
    batches = bytearray()
    plain: list[Record] = []
    for message in _shallow(memoryview(message_set), partial=False):
        if message.timestamp_type == LOG_APPEND_TIME:
            raise WrongTimestampType("producers may not set the timestamp type to log append time")
        if message.codec == Codec.NONE:
            plain.append(message.record(len(plain), message.timestamp))
            continue
        if plain:
            batches += build_batch(plain)
            plain = []
        unwrapped = [
            record._replace(offset=index) for index, record in enumerate(_unwrap(message, limit))
        ]
        batches += build_batch(unwrapped, codec=message.codec)
    if plain:
        batches += build_batch(plain)
    return batches


def downgrade(
    batches: Buffer, magic: int, first_offset: int = 0, limit: int = DEFAULT_LIMIT
) -> bytes:
    """v2 batches as a message set of `magic` 0 or 1, for a client that knows no better.

    Offsets stay what they are, and headers get lost; to v0 timestamps, too. Control batches are
    left out: such a client would take them for data. So are plain records below `first_offset`,
    the one that was asked for; a compressed batch is kept whole. These formats have no zstd: gzip
    takes its place. A partial batch at the end is left out, as a client would do. Messages that
    are in an older format already, in a log taken over from an older broker, stay as they are if
    the client knows them.
    """
    view = memoryview(batches)
    parts: list[bytes] = []
    at = 0
    while at < len(view):
        if len(view) - at > MAGIC_AT and view[at + MAGIC_AT] < MAGIC:
            message = next(_shallow(view[at:], partial=True), None)
            if message is None:
                break
            size = _ENTRY.size + _ENTRY.unpack_from(view, at)[1]
            parts.append(_downgrade_message(view[at : at + size], message, magic, limit))
            at += size
            continue
        try:
            header = check_batch(view, at)
        except Truncated:
            break
        batch = view[at : at + header.size]
        at += header.size
        if header.is_control:
            continue
        found = list(records(batch, limit))
        codec = header.codec
        if codec == Codec.NONE:
            found = [record for record in found if record.offset >= first_offset]
        elif codec == Codec.ZSTD:
            codec = Codec.GZIP
        if found:
            try:
                parts.append(build_message_set(found, magic, codec, header.timestamp_type))
            except struct.error:
                raise InvalidRecord("an offset or a timestamp does not fit into 64 bits") from None
    return b"".join(parts)


def _downgrade_message(entry: memoryview, message: _Message, magic: int, limit: int) -> bytes:
    """A message that the log took over from an older broker; as it is, if the client knows it."""
    if message.magic <= magic:
        return bytes(entry)
    return build_message_set(list(messages(entry, limit)), magic, message.codec)


def build_message_set(
    records: Sequence[Record],
    magic: int,
    codec: int = Codec.NONE,
    timestamp_type: int = CREATE_TIME,
) -> bytes:
    """A message set of these records: one message each, with a codec all of them in one wrapper."""
    if magic not in _SMALLEST_SIZE:
        raise UnsupportedMagic(f"magic is {magic}, not 0 or 1")
    if codec == Codec.NONE:
        return _join_messages(records, magic, timestamp_type, 0)
    if codec > Codec.LZ4:
        raise InvalidRecord(f"messages cannot have compression codec {codec}")
    if not records:
        return b""
    base_offset = records[0].offset if magic == 1 else 0
    packed = compress(codec, _join_messages(records, magic, timestamp_type, base_offset))
    if magic == 0 and codec == Codec.LZ4:
        packed = with_kafka_v0_lz4_checksum(memoryview(packed))
    wrapper = Record(records[-1].offset, max(record.timestamp for record in records), None, packed)
    return _message(wrapper, wrapper.offset, magic, _attributes(magic, codec, timestamp_type))


def _join_messages(
    records: Iterable[Record], magic: int, timestamp_type: int, base_offset: int
) -> bytes:
    attributes = _attributes(magic, Codec.NONE, timestamp_type)
    return b"".join(
        _message(record, record.offset - base_offset, magic, attributes) for record in records
    )


def _attributes(magic: int, codec: int, timestamp_type: int) -> int:
    if magic == 1 and timestamp_type == LOG_APPEND_TIME:
        return codec | TIMESTAMP_TYPE_BIT
    return codec


def _message(record: Record, offset: int, magic: int, attributes: int) -> bytes:
    key, value = record.key, record.value
    body = b"".join(
        (
            _HEAD_AFTER_CRC.pack(magic, attributes),
            _INT64.pack(record.timestamp) if magic == 1 else b"",
            *((_NULL,) if key is None else (_INT32.pack(len(key)), key)),
            *((_NULL,) if value is None else (_INT32.pack(len(value)), value)),
        )
    )
    return b"".join((_ENTRY.pack(offset, _CRC_SIZE + len(body)), _UINT32.pack(crc32(body)), body))
