"""What is put into an encoded batch in the end: its producer, and the checksum over it all.

A large batch is not summed up again for its producer. Checksums are linear: bits that change in a header
change the same bits of the sum whatever the records are, and all that has to be known of these is how
many bytes of them follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from crc32c import crc32c

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_SIZE,
    PRODUCER_ID_AT,
    TRANSACTIONAL_BIT,
)

# Bytes of a batch from which on its checksum is changed and not made anew.
_CHANGED_ABOVE = 64 * 1024
# CRC32C's polynomial without its highest power. The lowest power is in the highest bit, here and below.
POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_ALL_ONES = 0xFFFFFFFF


def set_producer(
    batch: memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Give an encoded batch its producer, when this is known only as it is sent.

    The batch is sealed already; so it is afterwards.
    """
    before = bytes(batch[ATTRIBUTES_AT:HEADER_SIZE])
    attributes = int.from_bytes(batch[ATTRIBUTES_AT : ATTRIBUTES_AT + 2]) & CODEC_MASK
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    batch[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2)
    batch[PRODUCER_ID_AT : PRODUCER_ID_AT + 14] = (
        producer_id.to_bytes(8, signed=True)
        + producer_epoch.to_bytes(2, signed=True)
        + base_sequence.to_bytes(4, signed=True)
    )
    if len(batch) < _CHANGED_ABOVE:
        seal(batch)
        return
    changes = int.from_bytes(before) ^ int.from_bytes(batch[ATTRIBUTES_AT:HEADER_SIZE])
    bits = crc32c(changes.to_bytes(len(before)), _ALL_ONES) ^ _ALL_ONES  # begun with 0
    bits = _product(power_of_bytes(len(batch) - HEADER_SIZE), bits)
    checksum = int.from_bytes(batch[CRC_AT : CRC_AT + 4]) ^ bits
    batch[CRC_AT : CRC_AT + 4] = checksum.to_bytes(4)


def seal(batch: memoryview) -> None:
    """Write the checksum of what stands after it."""
    batch[CRC_AT : CRC_AT + 4] = crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4)


# What does the same in compiled code, once that is loaded.
compiled_product: Callable[[int, int], int] | None = None


def _product(one: int, other: int) -> int:
    """The product of two polynomials, modulo the checksum's."""
    if compiled_product is not None:
        return compiled_product(one, other)
    result = 0
    for power in range(31, -1, -1):
        if one >> power & 1:
            result ^= other
        other = other >> 1 ^ POLYNOMIAL if other & 1 else other >> 1
    return result


@lru_cache(256)
def power_of_bytes(count: int) -> int:
    """The power of x that so many zero bytes multiply a sum with: eight for each."""
    result = _ONE
    place = 0
    while count:
        digit = count & 0xFF
        if digit:
            result = _product(_power_of_digit(digit, place), result)
        count >>= 8
        place += 1
    return result


@lru_cache(1024)
def _power_of_digit(digit: int, place: int) -> int:
    """The power for one digit of the count, in base 256. Few of these make all lengths there are."""
    if digit == 1:
        if place == 0:
            return _ONE >> 8
        power = _power_of_digit(128, place - 1)
        return _product(power, power)
    half = _power_of_digit(digit >> 1, place)
    power = _product(half, half)
    return _product(_power_of_digit(1, place), power) if digit & 1 else power
