"""What generated decoders and encoders call: varints, tagged fields, tables of struct layouts."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final

from ottla.protocol.message import Buffer, MalformedMessage, UnencodableMessage

BYTE: Final = tuple(bytes((value,)) for value in range(256))

# A string's length is an int16 in the old encoding, and the compact one keeps that bound.
LONGEST_STRING: Final = 32767

# Tables of struct layouts keep what is common; a long array's layout is made and dropped again.
_KEPT_ELEMENTS: Final = 64
_KEPT_LAYOUTS: Final = 512


def unsigned_varint(value: int) -> bytes:
    """An unsigned varint: seven bits to a byte, low bits first."""
    if value < 128:
        return BYTE[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def unsigned_varint_at(buffer: Buffer, at: int) -> tuple[int, int]:
    """The unsigned varint at a position, of at most five bytes, and the position after it."""
    byte = buffer[at]
    at += 1
    if byte < 128:
        return byte, at
    value = byte & 127
    shift = 7
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 28:
            raise MalformedMessage("an unsigned varint is longer than five bytes")


def long_string_length(buffer: Buffer, at: int) -> tuple[int, int]:
    """The compact length (plus one) of a string of more than 126 bytes."""
    length, at = unsigned_varint_at(buffer, at)
    if length > LONGEST_STRING + 1:
        raise MalformedMessage(f"a string of {length - 1} bytes")
    return length, at


def long_string_prefix(length: int) -> bytes:
    """The compact length (plus one) of such a string, encoded."""
    if length > LONGEST_STRING + 1:
        raise UnencodableMessage(f"a string of {length - 1} bytes")
    return unsigned_varint(length)


def skip_tags(buffer: Buffer, at: int, count: int, limit: int) -> int:
    """The position after `count` tagged fields that nobody here knows."""
    if count > 127:
        count, at = unsigned_varint_at(buffer, at - 1)
    for _ in range(count):
        _, at = unsigned_varint_at(buffer, at)
        size, at = unsigned_varint_at(buffer, at)
        at += size
        if at > limit:
            raise MalformedMessage("a tagged field is cut short")
    return at


def tagged_section(tags: list[tuple[int, list[bytes]]]) -> bytes:
    """The tagged fields at the end of a part, in the order of their tags."""
    pieces = [unsigned_varint(len(tags))]
    for tag, value in tags:
        data = b"".join(value)
        pieces += (unsigned_varint(tag), unsigned_varint(len(data)), data)
    return b"".join(pieces)


class ArrayUnpackers(dict[int, Callable[[Buffer, int], tuple[Any, ...]]]):
    """Number of elements -> what unpacks an array of so many."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, count: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
        unpack = Struct(">" + _repeated(self._code, count)).unpack_from
        if count <= _KEPT_ELEMENTS:
            self[count] = unpack
        return unpack


def pack_elements(code: str, values: list[Any]) -> bytes:
    """Elements of fixed size, without their number."""
    return Struct(">" + _repeated(code, len(values))).pack(*values)


class Shapes(dict[Any, Callable[..., bytes]]):
    """Numbers of elements of the arrays in a run -> what packs the run when it has so many.

    The key is the number itself where the run has one array, else a tuple of numbers. The
    arguments are the values in wire order, each array preceded by its length as it is written
    (its count plus one in flexible versions).
    """

    def __init__(self, codes: tuple[str, ...], flexible: bool) -> None:
        super().__init__()
        self._codes = codes
        self._flexible = flexible

    def __missing__(self, key: Any) -> Callable[..., bytes]:
        counts = (key,) if isinstance(key, int) else key
        pack: Callable[..., bytes]
        if self._flexible and max(counts) > 126:
            pack = _LongShape(self._codes, counts)
        else:
            length = "B" if self._flexible else "i"
            remaining = iter(counts)
            pack = Struct(
                ">"
                + "".join(
                    length + _repeated(code[1:], next(remaining)) if code[0] == "*" else code
                    for code in self._codes
                )
            ).pack
        if max(counts) <= _KEPT_ELEMENTS and len(self) < _KEPT_LAYOUTS:
            self[key] = pack
        return pack


class _LongShape:
    """Packs a run in which a compact length takes more than one byte."""

    __slots__ = ("_codes", "_counts")

    def __init__(self, codes: tuple[str, ...], counts: tuple[int, ...]) -> None:
        self._codes = codes
        self._counts = counts

    def __call__(self, *values: Any) -> bytes:
        pieces: list[bytes] = []
        counts = iter(self._counts)
        at = 0
        for code in self._codes:
            if code[0] == "*":
                pieces.append(unsigned_varint(values[at]))
                at += 1
                count = next(counts)
                code = _repeated(code[1:], count)
            else:
                count = 1
            pieces.append(Struct(">" + code).pack(*values[at : at + count]))
            at += count
        if at != len(values):
            raise error("an array changed while it was packed")
        return b"".join(pieces)


def _repeated(code: str, count: int) -> str:
    # "3i" is three integers, but "316s" would be one string of 316 bytes.
    return code * count if len(code) > 1 else f"{count}{code}"
