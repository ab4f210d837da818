"""Walking a segment file batch by batch, of any message format.

A walk yields `(position, size, fields)`; `fields` is the header as `record.batch` has it. An entry
of a v0 or v1 message set (formats of old Kafka data folders) is given the same shape: its offset
(of a compressed set: the offset of the last message inside) is base and last offset in one, it has
no producer, and its timestamp (-1 in v0) is base and largest timestamp.

    at   type    entry of a message set
     0   int64   offset
     8   int32   size of what follows
    12   uint32  CRC32 over everything from the magic byte to the end
    16   int8    magic            0 or 1
    17   int8    attributes       bits 0-2 codec, 3 timestamp type (v1)
    18   int64   timestamp        v1 only

What cannot be a batch raises `InvalidBatch` (`Truncated` where the file merely ends too early),
after everything before it was yielded: that is the place where recovery cuts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from ottla.record.batch import (
    ATTRIBUTES_AT,
    BATCH_LENGTH,
    CHECKSUM,
    HEADER,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    MAGIC_AT,
    MAGIC_BYTE,
    Buffer,
    HeaderFields,
    check_batch,
)
from ottla.record.checksum import crc32c
from ottla.record.errors import CorruptBatch, Truncated, UnsupportedMagic

OVERHEAD = 12  # offset and length, which the length does not count
HEADER_CHUNK = 4096  # an index entry per 4 KiB: one read finds what it points near to
CHECK_CHUNK = 1 << 20
SMALLEST_ENTRY = 26  # v0, no key, no value

_LEGACY = struct.Struct(">qiIbb")
_LEGACY_TIMESTAMP_AT = 18
_LEGACY_ATTRIBUTES = 0x0F
_INT64 = struct.Struct(">q")
_unpack = HEADER.unpack_from


def fields_at(buffer: Buffer, at: int) -> HeaderFields:
    """The header at `at`, of any format. The buffer need not hold the whole batch, but as much of
    its header as there is in the file."""
    left = len(buffer) - at
    if left >= HEADER_SIZE:
        fields: HeaderFields = _unpack(buffer, at)
        if fields[MAGIC_BYTE] == 2:
            if fields[BATCH_LENGTH] < HEADER_SIZE - OVERHEAD or fields[LAST_OFFSET_DELTA] < 0:
                raise CorruptBatch(
                    f"batch length {fields[BATCH_LENGTH]}, last offset delta {fields[LAST_OFFSET_DELTA]}"
                )
            return fields
    if left < SMALLEST_ENTRY:
        raise Truncated(f"{left} bytes are no batch")
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(buffer, at)
    timestamp = -1
    if magic == 1:
        if left < SMALLEST_ENTRY + 8:
            raise Truncated(f"{left} bytes are no batch")
        (timestamp,) = _INT64.unpack_from(buffer, at + _LEGACY_TIMESTAMP_AT)
    elif magic == 2:
        raise Truncated(f"a batch header needs {HEADER_SIZE} bytes, {left} are left")
    elif magic != 0:
        raise UnsupportedMagic(f"magic is {magic}")
    if length < SMALLEST_ENTRY - OVERHEAD + (8 if magic else 0):
        raise CorruptBatch(f"message of {length} bytes")
    attributes &= _LEGACY_ATTRIBUTES
    return offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1


class Readable(Protocol):
    """A segment file, or what stands for one."""

    def read(self, size: int, position: int) -> bytes: ...


def walk(
    file: Readable, position: int, end: int, chunk: int = HEADER_CHUNK
) -> Iterator[tuple[int, int, HeaderFields]]:
    """Headers from `position`, which must be a batch's, to `end`; checksums are not looked at."""
    buffer = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_SIZE > len(buffer):
            buffer = file.read(min(chunk, end - position), position)
            start = position
            at = 0
        fields = fields_at(buffer, at)
        size = fields[BATCH_LENGTH] + OVERHEAD
        if position + size > end:
            raise Truncated(f"the batch needs {size} bytes, {end - position} are left")
        yield position, size, fields
        position += size


def walk_checked(
    file: Readable, position: int, end: int, chunk: int = CHECK_CHUNK
) -> Iterator[tuple[int, int, HeaderFields, memoryview]]:
    """As `walk`, but with the bytes of each batch, whose checksum has been verified."""
    buffer = memoryview(b"")
    start = position
    while position < end:
        at = position - start
        left = len(buffer) - at
        if left < HEADER_SIZE:
            buffer = memoryview(file.read(min(chunk, end - position), position))
            start, at, left = position, 0, len(buffer)
        fields = fields_at(buffer, at)
        size = fields[BATCH_LENGTH] + OVERHEAD
        if position + size > end:
            raise Truncated(f"the batch needs {size} bytes, {end - position} are left")
        if size > left:
            buffer = memoryview(file.read(min(max(chunk, size), end - position), position))
            start, at = position, 0
        batch = buffer[at : at + size]
        check(batch, fields)
        yield position, size, fields, batch
        position += size


def only_zeros(read: Callable[[int, int], bytes], position: int, end: int) -> bool:
    """Whether nothing but zeros lies between `position` and `end`: no batch begins with them, so at
    the end of a file they are the unused part of a preallocated one. `read` takes size and position."""
    while position < end:
        data = read(min(CHECK_CHUNK, end - position), position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True


def check_stored(buffer: Buffer, at: int = 0) -> HeaderFields:
    """As `check_batch`, of what another log holds: an entry of an old message set will do, too."""
    try:
        return check_batch(buffer, at)
    except UnsupportedMagic:
        fields = fields_at(buffer, at)
    size = fields[BATCH_LENGTH] + OVERHEAD
    if at + size > len(buffer):
        raise Truncated(f"the message needs {size} bytes, {len(buffer) - at} are left")
    check(memoryview(buffer)[at : at + size], fields)
    return fields


def check(batch: memoryview, fields: HeaderFields) -> None:
    """Raises InvalidBatch unless the batch is undamaged: as it was when it was checked in full."""
    if fields[MAGIC_BYTE] == 2:
        if crc32c(batch[ATTRIBUTES_AT:]) != fields[CHECKSUM]:
            raise CorruptBatch("the CRC32C does not match")
    elif zlib.crc32(batch[MAGIC_AT:]) != fields[CHECKSUM]:
        raise CorruptBatch("the CRC32 does not match")
