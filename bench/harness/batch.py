"""Record batches (format v2) built once and sent many times.

An idempotent producer must count its sequence numbers up, and the sequence stands inside the part
of the batch that the CRC covers. A CRC is linear: flipping given bits of a message of given length
always flips the same bits of its CRC. So four tables of 256 entries, one for each byte of the
sequence, give the CRC of the next batch from the first one's, whatever the size of the batch.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from ottla.record.compression.codecs import Codec, compress

HEADER_SIZE = 61
CRC_AT = 17
COVERED_FROM = 21  # the CRC covers everything from the attributes on
SEQUENCE_AT = 53
LAST_OFFSET_DELTA_AT = 23


class Shape(NamedTuple):
    """What a batch looks like: so many records of so many bytes, compressed or not."""

    records: int
    size: int
    codec: Codec = Codec.NONE

    def __str__(self) -> str:
        size = f"{self.size // 1000} kB" if self.size % 1000 == 0 else f"{self.size} B"
        packed = f", {self.codec.name.lower()}" if self.codec else ""
        return f"{self.records} × {size}{packed}"


def compressible_values(size: int) -> Iterator[bytes]:
    """Texts like JSON events, which LZ4 packs to about a third; the same ones in every run."""
    numbers = random.Random(1)
    names = ("view", "click", "order", "search", "login", "logout", "refund", "signup")
    while True:
        text = bytearray()
        while len(text) < size:
            text += (
                f'{{"user":{numbers.randrange(10**9)},"event":"{numbers.choice(names)}",'
                f'"page":"/shop/items/{numbers.randrange(10**5)}","ms":{numbers.randrange(5000)}}}'
            ).encode()
        yield bytes(text[:size])


def _zigzag_varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record_batch(
    shape: Shape,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    values: Iterator[bytes] | None = None,
    keys: Iterator[bytes] | None = None,
) -> bytes:
    """A batch stamped with the present time; its records have `keys` or none, and `values` or all the
    same (texts where they are compressed: the same bytes again and again would say nothing)."""
    if values is None:
        same = itertools.repeat(b"x" * shape.size)
        values = compressible_values(shape.size) if shape.codec else same
    no_key = _zigzag_varint(-1)
    encoded_keys = (_zigzag_varint(len(key)) + key for key in keys) if keys else None
    body = bytearray()
    for index, value in zip(range(shape.records), values, strict=False):
        key = no_key if encoded_keys is None else next(encoded_keys)
        record = b"\0\0" + _zigzag_varint(index) + key
        record += _zigzag_varint(len(value)) + value + _zigzag_varint(0)
        body += _zigzag_varint(len(record)) + record
    now = int(time.time() * 1000)
    covered = struct.pack(
        ">hiqqqhii",
        shape.codec,
        shape.records - 1,
        now,
        now,
        producer_id,
        producer_epoch,
        base_sequence,
        shape.records,
    )
    covered += compress(shape.codec, body)
    checksum = crc32c.crc32c(covered)
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, checksum) + covered


class SequenceStamp:
    """Puts a base sequence and the CRC that goes with it into the header of a batch.

    Serves every batch of this size: the tables depend on the length alone. `first` is the CRC of
    the batch with sequence 0.
    """

    _FIELD = struct.Struct(">I")

    def __init__(self, batch_size: int) -> None:
        length = batch_size - COVERED_FROM
        at = SEQUENCE_AT - COVERED_FROM
        blank = bytearray(length)
        zero = crc32c.crc32c(bytes(blank))
        self._tables: list[list[int]] = []
        for byte in range(4):
            bits = []
            for bit in range(8):
                blank[at + byte] = 1 << bit
                bits.append(crc32c.crc32c(bytes(blank)) ^ zero)
            blank[at + byte] = 0
            table = [0] * 256
            for number in range(1, 256):
                low = number & -number
                table[number] = table[number ^ low] ^ bits[low.bit_length() - 1]
            self._tables.append(table)

    def apply(self, buffer: bytearray, batch_at: int, sequence: int, first: int) -> None:
        highest, higher, lower, lowest = self._tables
        checksum = (
            first
            ^ highest[sequence >> 24]
            ^ higher[(sequence >> 16) & 255]
            ^ lower[(sequence >> 8) & 255]
            ^ lowest[sequence & 255]
        )
        self._FIELD.pack_into(buffer, batch_at + SEQUENCE_AT, sequence)
        self._FIELD.pack_into(buffer, batch_at + CRC_AT, checksum)


def crc_of(batch: bytes) -> int:
    """The CRC that stands in the batch's header."""
    return int.from_bytes(batch[CRC_AT : CRC_AT + 4], "big")


def next_offset(body: memoryview, start: int, end: int, offset: int) -> tuple[int, int]:
    """The offset after the last whole batch in body[start:end], and how many whole batches there are.

    `offset` when there is none. Costs one step for each batch.
    """
    batches = 0
    while start + HEADER_SIZE <= end:
        size = int.from_bytes(body[start + 8 : start + 12], "big") + 12
        if start + size > end:
            break
        delta = int.from_bytes(body[start + LAST_OFFSET_DELTA_AT : start + 27], "big")
        offset = int.from_bytes(body[start : start + 8], "big") + delta + 1
        start += size
        batches += 1
    return offset, batches
