"""Zigzag variable-length integers, as record batches use them.

Seven bits per byte, low bits first, the top bit set on all bytes but the last; the sign sits in the
lowest bit (0, -1, 1, -2 … become 0, 1, 2, 3 …). Lengths, counts and offset deltas have at most
32 bits (5 bytes), timestamp deltas 64 (10 bytes). Longer than needed is allowed up to these limits,
as Kafka allows it; longer than the limit, or with bits beyond it, is an error.
"""

from __future__ import annotations

from ottla.record.errors import InvalidRecord

_INT32_BYTES = 5
_INT64_BYTES = 10


def encode_varint(value: int) -> bytes:
    """The bytes of `value`, which must fit into 64 bits."""
    rest = (value << 1) ^ (value >> 63)
    if not 0 <= rest < 1 << 64:
        raise ValueError(f"{value} does not fit into 64 bits")
    if rest < 0x80:
        return _ONE_BYTE[rest]
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def decode_varint(buffer: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The 32-bit integer at `at` and the position after it."""
    try:
        value = buffer[at]
        if value < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        second = buffer[at + 1]
    except IndexError:
        raise InvalidRecord("the bytes end inside a varint") from None
    if second < 0x80:
        value = value & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), at + 2
    return _decode(buffer, at, _INT32_BYTES, 32)


def decode_varlong(buffer: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The 64-bit integer at `at` and the position after it."""
    return _decode(buffer, at, _INT64_BYTES, 64)


def _decode(
    buffer: bytes | bytearray | memoryview, at: int, most_bytes: int, bits: int
) -> tuple[int, int]:
    encoded = buffer[at : at + most_bytes]
    value = 0
    shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), at + shift // 7
    else:
        if len(encoded) < most_bytes:
            raise InvalidRecord("the bytes end inside a varint")
    raise InvalidRecord(f"a varint has more than {bits} bits")


_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
