"""Ways to spoil a request frame. Lengths are made to fit again, unless they are what is spoilt."""

from __future__ import annotations

import random

from fuzz_kit.batches import fitting

HEADER = 14  # length, key, version, correlation id, length of the client id


def mutate(dice: random.Random, frame: bytes, others: list[bytes]) -> bytes:
    """The frame, spoilt in one or a few ways; sometimes as it is."""
    chance = dice.random()
    if chance < 0.12:
        return frame
    data = bytearray(frame)
    if chance < 0.17:
        return _false_length(dice, data)
    if chance < 0.22:
        # A header that is right, and then anything.
        del data[min(len(data), HEADER + 4) :]
        data += dice.randbytes(dice.choice((0, 1, 4, 9, 40, 200)))
        return _fitted(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        dice.choice(_WAYS)(dice, data, others)
    return _fitted(data)


def _fitted(data: bytearray) -> bytes:
    if len(data) < HEADER:
        data += bytes(HEADER - len(data))
    data[:4] = (len(data) - 4).to_bytes(4, "big")
    return bytes(data)


def _false_length(dice: random.Random, data: bytearray) -> bytes:
    match dice.randrange(3):
        case 0:
            length = len(data) - 4 + dice.choice((-1, 1, -5, 5, 100))
        case 1:
            length = dice.choice(
                (0, 9, 10, 11, -1, 2**31 - 1, -(2**31), 100 << 20, (100 << 20) + 1)
            )
        case _:
            length = dice.getrandbits(31)
    data[:4] = (length & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(data)


def _place(dice: random.Random, data: bytearray) -> int:
    """Somewhere after the length; the body more often than the header."""
    if len(data) <= HEADER or dice.random() < 0.1:
        return dice.randrange(4, max(5, len(data)))
    return dice.randrange(HEADER, len(data))


def _flip(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    for _index in range(dice.choice((1, 1, 2, 8))):
        at = min(_place(dice, data), len(data) - 1)
        data[at] ^= 1 << dice.randrange(8)


def _overwrite(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    code = dice.choice("bhiq")
    size = {"b": 1, "h": 2, "i": 4, "q": 8}[code]
    at = _place(dice, data)
    value = fitting(dice, code) & ((1 << 8 * size) - 1)
    data[at : at + size] = value.to_bytes(size, "big")[: len(data) - at]


def _varint(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = _place(dice, data)
    data[at : at + dice.choice((0, 1))] = dice.choice(
        (
            b"\xff\xff\xff\xff\x0f",
            b"\xff\xff\xff\xff\x07",
            b"\x80",
            b"\xff",
            b"\x80\x80\x80\x80\x80\x80",
        )
    )


def _truncate(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[_place(dice, data) :]


def _extend(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    data += dice.randbytes(dice.choice((1, 2, 4, 30)))


def _remove(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = _place(dice, data)
    del data[at : at + dice.choice((1, 2, 4, 8, 20))]


def _insert(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = _place(dice, data)
    data[at:at] = dice.randbytes(dice.choice((1, 2, 4, 8)))


def _repeat(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = _place(dice, data)
    data[at:at] = data[at : at + dice.choice((1, 4, 16, 60))]


def _splice(dice: random.Random, data: bytearray, others: list[bytes]) -> None:
    """The beginning of one, the end of another."""
    other = dice.choice(others)
    at = _place(dice, data)
    data[at:] = other[min(len(other), _place(dice, bytearray(other))) :]


def _other_version(dice: random.Random, data: bytearray, _: list[bytes]) -> None:
    """The body of one version under another's number."""
    data[6:8] = dice.randrange(20).to_bytes(2, "big")


_WAYS = (
    _flip, _flip, _overwrite, _overwrite, _varint, _truncate, _extend, _remove, _insert, _repeat,
    _splice, _other_version,
)  # fmt: skip
