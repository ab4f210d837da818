"""The record batch (message format v2): its header, its checks, its records.

On disk and on the wire a batch is, all numbers big-endian:

    at   type    field
     0   int64   base offset              offset of the first record; outside the checksum
     8   int32   batch length             bytes that follow this field (whole batch minus 12)
    12   int32   partition leader epoch   outside the checksum, so a leader can stamp it in place
    16   int8    magic                    2
    17   uint32  CRC32C                   over everything from the attributes to the end
    21   int16   attributes               bits 0-2 codec, 3 timestamp type, 4 transactional,
                                          5 control, 6 delete horizon
    23   int32   last offset delta        last offset minus base offset; compaction never lowers it
    27   int64   base timestamp           records carry deltas to it; with bit 6 the delete horizon
    35   int64   max timestamp
    43   int64   producer id              -1 without idempotence
    51   int16   producer epoch
    53   int32   base sequence
    57   int32   record count             may be less than last offset delta + 1 after compaction
    61   …       records                  compressed as one block when a codec is set

The header functions run once per batch on the produce path, so they are plain functions over a
buffer: one struct unpack, one native checksum, no object per record. Three ways in, by what is
known:

    read_header     no checks beyond the length of the buffer: for bytes that were checked before
    check_batch     everything that must hold of any batch, also a compacted or a control batch
    check_produced  what must hold of a batch that a client sends; the hot one, gives a plain tuple

A plain tuple of header fields is indexed by the names that stand beside `HeaderFields`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from ottla.record.checksum import crc32c
from ottla.record.compression.codecs import DEFAULT_LIMIT, Codec, compress, decompress
from ottla.record.errors import (
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    TooLarge,
    Truncated,
    UnsupportedMagic,
    WrongTimestampType,
)
from ottla.record.varint import decode_varint, decode_varlong, encode_varint

__all__ = [
    "HEADER",
    "HEADER_SIZE",
    "BatchHeader",
    "Codec",
    "CorruptBatch",
    "HeaderFields",
    "InvalidBatch",
    "InvalidRecord",
    "Record",
    "TooLarge",
    "Truncated",
    "UnsupportedMagic",
    "WrongTimestampType",
    "build_batch",
    "check_batch",
    "check_produced",
    "headers",
    "read_header",
    "read_header_fields",
    "records",
    "set_log_append_time",
    "set_max_timestamp",
    "stamp",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
assert HEADER.size == HEADER_SIZE

BASE_OFFSET_AT = 0
BATCH_LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57
RECORDS_AT = HEADER_SIZE

# Base offset and batch length: the bytes before those that batch length counts.
LENGTH_OVERHEAD = 12
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

# Attributes that only a broker sets.
_BROKERS_BITS = TIMESTAMP_TYPE_BIT | CONTROL_BIT | DELETE_HORIZON_BIT

LAST_CODEC = 4
_SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
_MAX_SEQUENCE = 0x7FFFFFFF
# Length, attributes, timestamp delta, offset delta, key length, value length, header count.
SMALLEST_RECORD = 7
# A record begins with its length as a varint, in which the lowest bit is the sign: no negative one,
# and none that is less than the rest of the smallest record.
_NO_RECORD_BEGINS_WITH = frozenset(
    byte for byte in range(256) if byte & 1 or byte < 2 * (SMALLEST_RECORD - 1)
)

_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__  # a named tuple without the detour through its Python constructor
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_pack_int64 = _INT64.pack_into
_pack_int32 = _INT32.pack_into

# The header as it comes out of the struct, in the order of BatchHeader: half the price of the named
# form. `BatchHeader._make(fields)` names them.
HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

# Positions in HeaderFields.
BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 1
LEADER_EPOCH: Final = 2
MAGIC_BYTE: Final = 3
CHECKSUM: Final = 4
ATTRIBUTES: Final = 5
LAST_OFFSET_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
RECORD_COUNT: Final = 12


class BatchHeader(NamedTuple):
    """The 61 bytes before the records; the module docstring has the layout."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME (0) or LOG_APPEND_TIME (1)."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record: sequences wrap from 2^31 - 1 to 0; -1 when there is none."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def read_header_fields(buffer: Buffer, at: int = 0) -> HeaderFields:
    """The header at `at` as a plain tuple; nothing is checked but the length of the buffer."""
    try:
        return _unpack_header(buffer, at)
    except struct.error:
        raise Truncated(
            f"a batch header needs {HEADER_SIZE} bytes, {len(buffer) - at} are left"
        ) from None


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at `at`; nothing is checked but the length of the buffer."""
    return _new_tuple(BatchHeader, read_header_fields(buffer, at))


def check_batch(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check all that can be known of any batch without touching its records, and give its header.

    Holds for batches of clients, of replication, of coordinators, and for compacted ones: length,
    magic, CRC32C, codec, offset delta and count in their ranges.
    """
    fields = _check(buffer, at)
    last_offset_delta = fields[LAST_OFFSET_DELTA]
    if last_offset_delta < 0:
        raise InvalidRecord(f"last offset delta is {last_offset_delta}")
    if not 0 <= fields[RECORD_COUNT] <= last_offset_delta + 1:
        raise InvalidRecord(
            f"record count is {fields[RECORD_COUNT]}, but last offset delta is {last_offset_delta}"
        )
    return _new_tuple(BatchHeader, fields)


def check_produced(buffer: Buffer, at: int = 0) -> HeaderFields:
    """Check a batch that a client sends, as far as that goes without touching its records.

    Beyond `check_batch`: base offset 0, at least one record, as many records as offsets, room for so
    many, a first byte that a record can begin with, no control batch, no delete horizon, timestamps
    of the producer's own, and a sequence where there is a producer id. What is inside is checked
    after that (`ottla.record.validation`).
    """
    try:
        fields: HeaderFields = _unpack_header(buffer, at)
    except struct.error:
        raise _too_short(buffer, at) from None
    (base_offset, length, _, magic, crc, attributes, last_offset_delta, _, _,
     producer_id, epoch, sequence, count) = fields  # fmt: skip
    end = at + LENGTH_OVERHEAD + length
    room = length - _SMALLEST_LENGTH
    # All in one expression, because nearly every batch passes; what does not is looked at again.
    if (
        magic == MAGIC
        and base_offset == 0
        and count > 0
        and count == last_offset_delta + 1
        and end <= len(buffer)
        and not attributes & _BROKERS_BITS
        and (
            count * SMALLEST_RECORD <= room
            and buffer[at + RECORDS_AT] not in _NO_RECORD_BEGINS_WITH
            if not attributes & CODEC_MASK
            else room > 0 and attributes & CODEC_MASK <= LAST_CODEC
        )
        and (
            sequence >= 0 and epoch >= 0 if producer_id >= 0 else not attributes & TRANSACTIONAL_BIT
        )
    ):
        if type(buffer) is not memoryview:
            buffer = memoryview(buffer)  # slicing anything else copies
        if crc32c(buffer[at + ATTRIBUTES_AT : end]) == crc:
            return fields
    raise _refusal(buffer, at)


def _refusal(buffer: Buffer, at: int) -> InvalidBatch:
    """What is wrong with a batch that `check_produced` does not let pass."""
    try:
        fields = _check(buffer, at)
    except InvalidBatch as error:
        return error
    (base_offset, length, _, _, _, attributes, last_offset_delta, _, _,
     producer_id, epoch, sequence, count) = fields  # fmt: skip
    if count != last_offset_delta + 1 or count <= 0:
        return InvalidRecord(
            f"record count is {count}, but last offset delta is {last_offset_delta}"
        )
    if base_offset != 0:
        return InvalidRecord(f"base offset of a produced batch is {base_offset}, not 0")
    if attributes & TIMESTAMP_TYPE_BIT:
        return WrongTimestampType("producers may not set the timestamp type to log append time")
    if attributes & _BROKERS_BITS:
        return InvalidRecord("producers may not write control batches or delete horizons")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        return InvalidRecord(f"producer {producer_id} sent epoch {epoch} and sequence {sequence}")
    if producer_id < 0 and attributes & TRANSACTIONAL_BIT:
        return InvalidRecord("a transactional batch without a producer id")
    room = length - _SMALLEST_LENGTH
    return InvalidRecord(f"{count} records cannot be in {room} bytes that begin like these")


def _check(buffer: Buffer, at: int) -> HeaderFields:
    """Length, magic, checksum and codec, in the order in which they make sense of each other."""
    try:
        fields: HeaderFields = _unpack_header(buffer, at)
    except struct.error:
        raise _too_short(buffer, at) from None
    length = fields[BATCH_LENGTH]
    end = at + LENGTH_OVERHEAD + length
    if fields[MAGIC_BYTE] != MAGIC:
        raise UnsupportedMagic(f"magic is {fields[MAGIC_BYTE]}, not {MAGIC}")
    if length < _SMALLEST_LENGTH:
        raise CorruptBatch(f"batch length is {length}, less than a header's")
    if end > len(buffer):
        raise Truncated(f"the batch needs {end - at} bytes, {len(buffer) - at} are left")
    if type(buffer) is not memoryview:
        buffer = memoryview(buffer)  # slicing anything else copies
    if crc32c(buffer[at + ATTRIBUTES_AT : end]) != fields[CHECKSUM]:
        raise CorruptBatch("the CRC32C does not match")
    if fields[ATTRIBUTES] & CODEC_MASK > LAST_CODEC:
        raise InvalidRecord(f"unknown compression codec {fields[ATTRIBUTES] & CODEC_MASK}")
    return fields


def _too_short(buffer: Buffer, at: int) -> InvalidBatch:
    """The error for a buffer that cannot hold a header; an older format may be shorter than one."""
    left = len(buffer) - at
    if left > MAGIC_AT and buffer[at + MAGIC_AT] != MAGIC:
        magic = buffer[at + MAGIC_AT]
        return UnsupportedMagic(f"magic is {magic}, not {MAGIC}")
    return Truncated(f"a batch header needs {HEADER_SIZE} bytes, {left} are left")


def headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in a buffer of whole batches; checks lengths, not CRCs."""
    at = 0
    while at < len(buffer):
        header = _framed_header(buffer, at)
        yield at, header
        at += header.batch_length + LENGTH_OVERHEAD


def _framed_header(buffer: Buffer, at: int) -> BatchHeader:
    """The header of a batch that lies whole in the buffer; the checksum is not looked at."""
    if len(buffer) - at < HEADER_SIZE:
        raise _too_short(buffer, at)
    header = read_header(buffer, at)
    if header.magic != MAGIC:
        raise UnsupportedMagic(f"magic is {header.magic}, not {MAGIC}")
    if header.batch_length < _SMALLEST_LENGTH:
        raise CorruptBatch(f"batch length is {header.batch_length}, less than a header's")
    if header.size > len(buffer) - at:
        raise Truncated(f"the batch needs {header.size} bytes, {len(buffer) - at} are left")
    return header


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `at` its place in the log. The checksum does not cover these fields."""
    _pack_int64(buffer, at, base_offset)
    _pack_int32(buffer, at + LEADER_EPOCH_AT, leader_epoch)


def set_log_append_time(buffer: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Let every record of the batch at `at` have the timestamp `now_ms`, and renew the checksum.

    Readers take the max timestamp for all records once the attribute bit is set, so the records
    themselves, compressed or not, stay as they are.
    """
    view = memoryview(buffer)
    length = _INT32.unpack_from(view, at + BATCH_LENGTH_AT)[0]
    attributes = _INT16.unpack_from(view, at + ATTRIBUTES_AT)[0]
    _INT16.pack_into(view, at + ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_BIT)
    _pack_int64(view, at + MAX_TIMESTAMP_AT, now_ms)
    checksum = crc32c(view[at + ATTRIBUTES_AT : at + LENGTH_OVERHEAD + length])
    _UINT32.pack_into(view, at + CRC_AT, checksum)


def set_max_timestamp(buffer: bytearray | memoryview, at: int, max_timestamp: int) -> None:
    """Let the header of the batch at `at` tell this max timestamp, and renew the checksum."""
    view = memoryview(buffer)
    length = _INT32.unpack_from(view, at + BATCH_LENGTH_AT)[0]
    _pack_int64(view, at + MAX_TIMESTAMP_AT, max_timestamp)
    checksum = crc32c(view[at + ATTRIBUTES_AT : at + LENGTH_OVERHEAD + length])
    _UINT32.pack_into(view, at + CRC_AT, checksum)


class Record(NamedTuple):
    """One record, with its absolute offset and its timestamp in milliseconds (-1: none).

    A header's key is text; bytes in it that are no UTF-8 are kept as surrogate escapes, so that
    writing the record again yields the same bytes.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def readable_key(key: str) -> str:
    """A header's key as text that can be encoded: replacement characters for bytes that are no UTF-8."""
    if key.isascii():
        return key
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def records(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Iterator[Record]:
    """The records of one v2 batch; `batch` holds it and nothing else.

    Every length is checked, so a record is given out only if it is whole; the checksum is not
    looked at (`check_batch` does). InvalidBatch comes at the call for the header and the
    compression, and while iterating for the records. `limit` bounds the decompressed size.
    """
    view = memoryview(batch)
    header = one_header(view)
    return parse_records(contents(view, header, limit), header)


def one_header(batch: memoryview) -> BatchHeader:
    """The header of a batch that fills the view exactly."""
    header = _framed_header(batch, 0)
    if header.size != len(batch):
        raise CorruptBatch(f"the batch has {header.size} bytes, the buffer {len(batch)}")
    return header


def contents(batch: memoryview, header: BatchHeader, limit: int) -> bytes:
    """The bytes of the records, decompressed. A batch emptied by compaction has none to unpack."""
    if header.record_count == 0 and len(batch) == HEADER_SIZE:
        return b""
    return decompress(header.codec, batch[RECORDS_AT:], limit)


def parse_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records in `data`, the decompressed contents of the batch with this header.

    A record is: length, attributes (one unused byte), timestamp delta, offset delta, key length and
    key, value length and value, header count and headers (key length and key, value length and
    value); all numbers but the attributes are varints, and a length of -1 stands for null.
    """
    count = header.record_count
    end = len(data)
    if not 0 <= count * SMALLEST_RECORD <= end:
        raise InvalidRecord(f"{count} records cannot be in {end} bytes")
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    last_delta = header.last_offset_delta
    previous_delta = -1
    at = 0
    try:
        for _ in range(count):
            # Most varints have one byte, so that case is spelled out here: it halves the time.
            length = data[at]
            if length < 0x80:
                at += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = decode_varint(data, at)
            record_end = at + length
            if not at < record_end <= end:
                raise InvalidRecord(f"a record of {length} bytes, {end - at} are left")
            at += 1  # the attributes, unused so far
            delta = data[at]
            if delta < 0x80:
                at += 1
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, at = decode_varlong(data, at)
            timestamp = base_timestamp + delta if append_time is None else append_time
            delta = data[at]
            if delta < 0x80:
                at += 1
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, at = decode_varint(data, at)
            if not previous_delta < delta <= last_delta:
                raise InvalidRecord(
                    f"offset delta {delta} after {previous_delta}, with {last_delta} as the last"
                )
            previous_delta = delta
            length = data[at]
            if length < 0x80:
                at += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = decode_varint(data, at)
            key: bytes | None = None
            if length >= 0:
                key = data[at : at + length]
                at += length
            elif length != -1:
                raise InvalidRecord(f"a key of {length} bytes")
            length = data[at]
            if length < 0x80:
                at += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = decode_varint(data, at)
            value: bytes | None = None
            if length >= 0:
                value = data[at : at + length]
                at += length
            elif length != -1:
                raise InvalidRecord(f"a value of {length} bytes")
            record_headers: tuple[tuple[str, bytes | None], ...] = ()
            if data[at] == 0:
                at += 1
            else:
                record_headers, at = _parse_headers(data, at, record_end)
            # Whatever ran past its record has been noticed here at the latest, before it is used.
            if at != record_end:
                raise InvalidRecord(f"a record ends {record_end - at} bytes before its length")
            yield _new_tuple(Record, (base_offset + delta, timestamp, key, value, record_headers))
    except IndexError:
        raise InvalidRecord("a record runs past the end of the batch") from None
    if at != end:
        raise InvalidRecord(f"{end - at} bytes are left after {count} records")


def _parse_headers(
    data: bytes, at: int, record_end: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """The headers of one record and the position after them."""
    count, at = decode_varint(data, at)
    if not 0 <= count * 2 <= record_end - at:  # a header has two lengths at least
        raise InvalidRecord(f"{count} headers cannot be in {record_end - at} bytes")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = decode_varint(data, at)
        if not 0 <= length <= record_end - at:
            raise InvalidRecord(f"a header key of {length} bytes")
        key = str(data[at : at + length], "utf-8", "surrogateescape")
        length, at = decode_varint(data, at + length)
        if length == -1:
            found.append((key, None))
            continue
        if not 0 <= length <= record_end - at:
            raise InvalidRecord(f"a header value of {length} bytes")
        found.append((key, data[at : at + length]))
        at += length
    return tuple(found), at


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
    last_offset: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon: int | None = None,
) -> bytes:
    """A v2 batch of these records, whose offsets start at `base_offset` or above and increase.

    The last three arguments serve compaction, which keeps what a batch once spanned: `last_offset`
    (without it, the last record's) and `max_timestamp` (without it, the largest of the records')
    allow a batch of fewer or of no records; `delete_horizon` marks when tombstones may go.
    """
    encoded: list[bytes] = []
    base_timestamp = delete_horizon
    latest: int | None = None
    previous = base_offset - 1
    for offset, timestamp, key, value, record_headers in records:
        if offset <= previous:
            raise ValueError(f"offset {offset} follows {previous}")
        previous = offset
        if base_timestamp is None:
            base_timestamp = timestamp
        if latest is None or timestamp > latest:
            latest = timestamp
        parts = [
            b"\x00",
            encode_varint(timestamp - base_timestamp),
            encode_varint(offset - base_offset),
        ]
        _add_bytes(parts, key)
        _add_bytes(parts, value)
        parts.append(encode_varint(len(record_headers)))
        for header_key, header_value in record_headers:
            _add_bytes(parts, header_key.encode("utf-8", "surrogateescape"))
            _add_bytes(parts, header_value)
        body = b"".join(parts)
        encoded.append(encode_varint(len(body)))
        encoded.append(body)
    if last_offset is None:
        if not encoded:
            raise ValueError("a batch without records needs to be told its last offset")
        last_offset = previous
    elif last_offset < max(previous, base_offset):
        raise ValueError(f"last offset {last_offset} is below {max(previous, base_offset)}")
    if max_timestamp is None:
        max_timestamp = -1 if latest is None else latest
    if not encoded:
        codec = Codec.NONE
    payload = b"".join(encoded)
    if codec != Codec.NONE:
        payload = compress(codec, payload, level)
    attributes = (
        codec
        | (TIMESTAMP_TYPE_BIT if timestamp_type == LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon is not None else 0)
    )
    return assemble(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_offset - base_offset,
            base_timestamp=-1 if base_timestamp is None else base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(encoded) // 2,
        ),
        payload,
    )


def _add_bytes(parts: list[bytes], data: bytes | None) -> None:
    if data is None:
        parts.append(b"\x01")  # -1
    else:
        parts.append(encode_varint(len(data)))
        parts.append(data)


def assemble(header: BatchHeader, payload: bytes) -> bytes:
    """A batch of this header, with length and checksum made to fit, and these (packed) records."""
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *header)
    batch[RECORDS_AT:] = payload
    _pack_int32(batch, BATCH_LENGTH_AT, len(batch) - LENGTH_OVERHEAD)
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)
