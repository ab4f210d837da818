"""Zigzag varints: round trips, limits, and what must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.errors import InvalidRecord
from ottla.record.varint import decode_varint, decode_varlong, encode_varint

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_known_encodings(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)
    assert decode_varlong(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(INT32, st.binary(max_size=3), st.binary(max_size=3))
def test_32_bits_round_trip_anywhere_in_a_buffer(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    buffer = memoryview(before + encoded + after)
    assert decode_varint(buffer, len(before)) == (value, len(before) + len(encoded))


@given(INT64)
def test_64_bits_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varlong(encoded, 0) == (value, len(encoded))
    if not -(2**31) <= value < 2**31:
        with pytest.raises(InvalidRecord):
            decode_varint(encoded, 0)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70, -(2**70)])
def test_more_than_64_bits_are_not_encoded(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode_varint(value)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_padding_within_the_limit_is_read(size: int) -> None:
    assert decode_varint(b"\x80" * size + b"\x00", 0) == (0, size + 1)


@pytest.mark.parametrize(
    "encoded", ["8080808080" + "00", "ffffffff10", "ffffffff7f", "ffffffffff0f"]
)
def test_more_than_32_bits_are_refused(encoded: str) -> None:
    with pytest.raises(InvalidRecord):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["80" * 10 + "00", "ff" * 9 + "02"])
def test_more_than_64_bits_are_refused(encoded: str) -> None:
    with pytest.raises(InvalidRecord):
        decode_varlong(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "80", "8080", "ffffffff"])
def test_an_end_inside_a_varint_is_refused(encoded: str) -> None:
    for decode in (decode_varint, decode_varlong):
        with pytest.raises(InvalidRecord):
            decode(bytes.fromhex(encoded), 0)
