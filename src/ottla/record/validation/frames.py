"""Frames that hold batches, checked as a whole by compiled code.

A frame: bytes that are known, a count, and for each batch a number, its size and the batch, with nothing
but empty tags between and after them. A kernel compares what is known, finds the batches, and checks of
each its header, its checksum and its records: what takes some microseconds of Python then takes one. It
says yes to what nearly all batches are: in the second format, outside of transactions, right in every
respect. Whatever it does not say yes to is looked at again by others, who know what to say. The records
of a compressed batch are left to them, too (`checking`).
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from ottla.record.batch import ATTRIBUTES_AT, CHECKSUM, read_header_fields
from ottla.record.checksum import crc32c
from ottla.record.validation.findings import (
    ACCEPTED,
    BEFORE_BYTES,
    FOUND_PLACES,
    FRAME_NUMBERS,
    FRAME_RETURNED,
    MOST_BATCHES,
    SHORT_BATCH,
    Rules,
)

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields

_INT64 = 8
_POLYNOMIAL = 0x82F63B78
_TABLES = 8

_KEEPING = ctypes.PYFUNCTYPE(ctypes.c_int)
_pack_frame = struct.Struct("=3q").pack_into  # FRAME_START to FRAME_NOW
_pack_known = struct.Struct("=7q").pack_into  # BEFORE_BYTES to FRAME_AFTER_MAX
_unpack_first = struct.Struct("=4q").unpack_from  # ACCEPTED and the places of the first batch
_FOUND_AT = ACCEPTED * _INT64
# By how many batches there are: ACCEPTED and the places of all.
_unpack_all = [
    struct.Struct(f"={1 + FOUND_PLACES * count}q").unpack_from for count in range(MOST_BATCHES + 1)
]
_byte_of = ctypes.c_char.from_buffer
_reference = ctypes.byref

# The number before a batch, where the batch begins and ends, its header.
FramedBatch = tuple[int, int, int, "HeaderFields"]


def _tables() -> bytes:
    """For CRC32C, eight bytes at a time: what each byte does to the checksum at each of eight places."""
    first = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        first.append(value)
    tables = [first]
    for _ in range(_TABLES - 1):
        tables.append([first[value & 0xFF] ^ value >> 8 for value in tables[-1]])
    return struct.pack(f"={_TABLES * 256}I", *(value for table in tables for value in table))


class FrameCheck:
    """Checks frames that begin with the same bytes. For one thread at a time."""

    _tables: bytes | None = None

    __slots__ = (
        "_before",
        "_call",
        "_held",
        "_no_exception",
        "_numbers",
        "_numbers_at",
        "_returned_at",
        "_tables_used",
        "rules",
    )

    def __init__(
        self, address: int, before: bytes, is_compact: bool, largest: int, rules: Rules
    ) -> None:
        """`is_compact`: the size is a varint, and empty tags of three levels follow the batch.
        `largest`: bytes that a batch may have."""
        if FrameCheck._tables is None:
            FrameCheck._tables = _tables()
        self.rules = rules
        self._tables_used = FrameCheck._tables
        self._before = before
        self._call: Any = _KEEPING(address)
        self._numbers = bytearray(FRAME_NUMBERS * _INT64)
        _pack_known(self._numbers, BEFORE_BYTES * _INT64, len(before), is_compact, largest, *rules)
        # Held, so that the memory stays where it is.
        self._held = _byte_of(self._numbers)
        numbers_at = ctypes.addressof(self._held)
        self._numbers_at = ctypes.c_void_p(numbers_at)
        self._returned_at = ctypes.c_void_p(numbers_at + FRAME_RETURNED * _INT64)
        self._no_exception = ctypes.c_void_p(None)

    def accept(self, view: memoryview, at: int, stop: int, now_ms: int) -> list[FramedBatch] | None:
        """The batches of the frame view[at:stop], if that is known, and right; else None. Whether a
        header has a codec is to be looked at: then the records have yet to be checked."""
        numbers = self._numbers
        _pack_frame(numbers, 0, at, stop, now_ms)
        self._call(
            self._returned_at, self._no_exception, _reference(_byte_of(view)), self._numbers_at,
            self._before, self._tables_used,
        )  # fmt: skip
        accepted, number, start, end = _unpack_first(numbers, _FOUND_AT)
        if accepted == 1:
            fields = read_header_fields(view, start)
            if end - start > SHORT_BATCH and not _is_undamaged(view, start, end, fields):
                return None
            return [(number, start, end, fields)]
        if not accepted:
            return None
        found = _unpack_all[accepted](numbers, _FOUND_AT)
        batches = []
        for number, start, end in zip(found[1::3], found[2::3], found[3::3], strict=True):
            fields = read_header_fields(view, start)
            if end - start > SHORT_BATCH and not _is_undamaged(view, start, end, fields):
                return None
            batches.append((number, start, end, fields))
        return batches


def _is_undamaged(view: memoryview, start: int, end: int, fields: HeaderFields) -> bool:
    return crc32c(view[start + ATTRIBUTES_AT : end]) == fields[CHECKSUM]
