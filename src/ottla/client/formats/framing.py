"""Confluent's framing: a zero byte, the schema's id in four bytes (big-endian), then the data.

Protobuf data has a list of message indexes in between, which tells which of the schema's messages it
is: a count and the indexes as zigzag varints, where the single byte 0 stands for [0], the first message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = struct.Struct(">bI")
MAGIC = 0


@dataclass(frozen=True, slots=True)
class Framed:
    """Values split by schema: for each id the positions of its values; the rest has reasons."""

    positions: dict[int, np.ndarray[Any, Any]]
    reasons: dict[int, str]


def split_by_schema(values: pa.Array) -> Framed:
    """Read the header of every value that is there."""
    present = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
    offsets, data = _offsets_and_bytes(values)
    starts, lengths = offsets[present], offsets[present + 1] - offsets[present]
    whole = lengths >= HEADER.size
    good, starts = present[whole], starts[whole]
    reasons = {int(at): "too short for a schema id" for at in present[~whole]}
    marked = data[starts] == MAGIC if len(starts) else np.zeros(0, np.bool_)
    for at, start in zip(good[~marked], starts[~marked], strict=True):
        reasons[int(at)] = f"the first byte is {int(data[start])}, not 0: no schema id follows"
    good, starts = good[marked], starts[marked]
    ids = np.zeros(len(starts), np.uint32)
    for byte in range(1, HEADER.size):
        ids = (ids << np.uint32(8)) | data[starts + byte]
    return Framed({int(each): good[ids == each] for each in np.unique(ids)}, reasons)


def without_header(values: pa.Array) -> pa.Array:
    """The data after the header."""
    return without_prefix(values, HEADER.size)


def without_prefix(values: pa.Array, size: int) -> pa.Array:
    """The values without their first bytes. (Arrow 26's binary_slice fails on short values.)"""
    return pc.binary_replace_slice(values, 0, size, b"")


def with_header(schema_id: int, data: pa.Array, indexes: bytes = b"") -> pa.Array:
    """The data after a header; null rows stay null."""
    header = pa.scalar(HEADER.pack(MAGIC, schema_id) + indexes, pa.binary())
    return pc.binary_join_element_wise(header, data, pa.scalar(b"", pa.binary()))


def encode_indexes(indexes: tuple[int, ...]) -> bytes:
    """Protobuf's message indexes as they stand on the wire."""
    if indexes == (0,):
        return b"\x00"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def decode_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The message indexes at the start of a value, and how many bytes they take."""
    numbers = _zigzags(value)
    count = next(numbers)[0]
    if count == 0:
        return (0,), 1
    # A message cannot be nested deeper than the value has bytes.
    if not 0 < count <= len(value):
        raise ValueError(f"{count} message indexes make no sense")
    found = [next(numbers) for _ in range(count)]
    return tuple(number for number, _ in found), found[-1][1]


def _zigzag(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _zigzags(value: bytes) -> Iterator[tuple[int, int]]:
    number = shift = 0
    for at, byte in enumerate(value):
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield (number >> 1) ^ -(number & 1), at + 1
            number = shift = 0
        elif shift > 35:
            break
    raise ValueError("the message indexes are cut off")


def _offsets_and_bytes(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    _, offsets, data = values.buffers()
    if offsets is None:
        return np.zeros(len(values) + 1, np.int64), np.zeros(0, np.uint8)
    start, end = values.offset, values.offset + len(values) + 1
    numbers = np.frombuffer(offsets, np.int32)[start:end].astype(np.int64)
    return numbers, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
