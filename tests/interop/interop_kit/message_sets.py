"""Message sets v0 and v1, and the outside of record batches v2, written and read by hand.

Nothing of Ottla is used: what these tests say about the bytes on the wire must not rest on the code
that made them.

    message set    (offset int64, size int32, message)*
    message        crc uint32, magic int8, attributes int8, [timestamp int64 when magic is 1],
                   key (int32 length or -1, bytes), value (the same)

A compressed message's value is a message set; in v1 the offsets within are relative and the outer
offset is that of the last message. An LZ4 frame in v0 has a wrong header checksum (the first client
computed it over too much, and so did all after it); the frames of v1 are as they should be.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import cramjam
import lz4.frame
import xxhash
from kafka.codec import lz4_decode_old_kafka, lz4_encode_old_kafka

from interop_kit.records import Record

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODEC_NAMES = {number: name for name, number in CODEC_NUMBERS.items()}

XERIAL_MAGIC = b"\x82SNAPPY\x00"
LOG_APPEND_TIME = 0x08


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a record batch v2 as it lies in the log."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    codec: str
    log_append_time: bool
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")


def batches(data: bytes) -> list[Batch]:
    """The headers of the whole batches in fetched bytes; a cut-off one at the end is left out."""
    found = []
    at = 0
    while at + BATCH_HEADER.size <= len(data):
        fields = BATCH_HEADER.unpack_from(data, at)
        base_offset, length, leader_epoch, magic, _crc, attributes, last_delta = fields[:7]
        if magic != 2:
            raise ValueError(f"magic {magic} at {at} in what should be record batches v2")
        if at + 12 + length > len(data):
            break
        found.append(
            Batch(
                base_offset,
                12 + length,
                leader_epoch,
                magic,
                CODEC_NAMES[attributes & 7],
                bool(attributes & LOG_APPEND_TIME),
                base_offset + last_delta,
                *fields[7:],
            )
        )
        at += 12 + length
    return found


def message(record: Record, magic: int, *, offset: int = 0, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", -1 if record.timestamp is None else record.timestamp)
    body += sized(record.key) + sized(record.value)
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message_set(records: list[Record], magic: int, codec: str = "none") -> bytes:
    """As an old producer writes it: offsets from 0 on, one wrapper around all when compressed."""
    inner = b"".join(message(record, magic, offset=at) for at, record in enumerate(records))
    if codec == "none":
        return inner
    stamps = [record.timestamp for record in records if record.timestamp is not None]
    wrapper = Record(value=compress(codec, inner, magic), timestamp=max(stamps, default=None))
    last = len(records) - 1 if magic == 1 else 0
    return message(wrapper, magic, offset=last, attributes=CODEC_NUMBERS[codec])


def messages(data: bytes, partition: int = 0) -> Iterator[tuple[int, Record]]:
    """(magic, record) of each message in a fetched set, with absolute offsets; CRCs are checked."""
    at = 0
    while at + 12 <= len(data):
        offset, size = struct.unpack_from(">qi", data, at)
        if at + 12 + size > len(data):
            return  # cut off by the size limit of the fetch
        crc, magic, attributes = struct.unpack_from(">Ibb", data, at + 12)
        if zlib.crc32(data[at + 16 : at + 12 + size]) != crc:
            raise ValueError(f"the CRC of message {offset} is wrong")
        if magic not in (0, 1):
            raise ValueError(f"magic {magic} at offset {offset} in what should be a message set")
        where = at + 18
        timestamp = None
        if magic == 1:
            (timestamp,) = struct.unpack_from(">q", data, where)
            where += 8
        key, where = unsized(data, where)
        value, where = unsized(data, where)
        if where != at + 12 + size:
            raise ValueError(f"message {offset} is {size} bytes, its parts end at {where}")
        codec = CODEC_NAMES[attributes & 7]
        if codec == "none":
            record = Record(value, key, (), timestamp, partition, offset)
            yield magic, record
        else:
            yield from inner_messages(
                decompress(codec, value or b"", magic), magic, offset, partition
            )
        at += 12 + size


def inner_messages(
    data: bytes, magic: int, last_offset: int, partition: int
) -> Iterator[tuple[int, Record]]:
    inner = list(messages(data, partition))
    if not inner:
        raise ValueError(f"the wrapper at {last_offset} holds nothing")
    shift = 0
    if magic == 1:
        relative = inner[-1][1].offset
        assert relative is not None
        shift = last_offset - relative
    elif inner[-1][1].offset != last_offset:
        raise ValueError(f"the wrapper at {last_offset} ends with {inner[-1][1].offset}")
    for inner_magic, record in inner:
        assert record.offset is not None
        if inner_magic != magic:
            raise ValueError(f"magic {inner_magic} within a wrapper of magic {magic}")
        yield (
            magic,
            Record(
                record.value, record.key, (), record.timestamp, partition, record.offset + shift
            ),
        )


def unsized(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = struct.unpack_from(">i", data, at)
    if length < 0:
        return None, at + 4
    return data[at + 4 : at + 4 + length], at + 4 + length


def compress(codec: str, data: bytes, magic: int) -> bytes:
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(data))
        return XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == "lz4" and magic == 0:
        return bytes(lz4_encode_old_kafka(data))
    if codec == "lz4":
        # Kafka reads only frames whose blocks stand for themselves.
        return bytes(lz4.frame.compress(data, block_linked=False))
    raise ValueError(codec)


def decompress(codec: str, data: bytes, magic: int) -> bytes:
    if codec == "gzip":
        return gzip.decompress(data)
    if codec == "snappy":
        if not data.startswith(XERIAL_MAGIC):
            return bytes(cramjam.snappy.decompress_raw(data))
        plain, at = b"", 16
        while at < len(data):
            (length,) = struct.unpack_from(">i", data, at)
            plain += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + length]))
            at += 4 + length
        return plain
    if codec == "lz4" and magic == 0:
        end = 14 if data[4] & 0x08 else 6  # of the header, which may hold the content's size
        if data[end] != xxhash.xxh32_intdigest(data[:end]) >> 8 & 0xFF:
            raise ValueError("an LZ4 frame in format v0 whose checksum no client of its time takes")
        return bytes(lz4_decode_old_kafka(data))
    if codec == "lz4":
        return bytes(lz4.frame.decompress(data))
    raise ValueError(codec)
