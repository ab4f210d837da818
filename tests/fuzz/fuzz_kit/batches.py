"""Record batches and message sets, right ones and such as lie, most of them under a right checksum."""

from __future__ import annotations

import random
import struct
import time
from zlib import crc32

from crc32c import crc32c

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    Codec,
    Record,
    assemble,
    build_batch,
    read_header,
)
from ottla.record.compression.codecs import compress
from ottla.record.legacy import build_message_set
from ottla.record.varint import encode_varint

INTERESTING = (
    0, 1, -1, 2, -2, 7, 48, 49, 61, 127, 128, 255, 256, 32767, -32768, 65535, 65536,
    2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**62,
)  # fmt: skip
_RANGES = {"b": 8, "h": 16, "i": 32, "q": 64}


def fitting(dice: random.Random, code: str) -> int:
    """An integer for a struct code: one that often makes trouble, or any."""
    bits = _RANGES[code.lower()]
    value = dice.choice(INTERESTING) if dice.random() < 0.7 else dice.getrandbits(bits)
    value &= (1 << bits) - 1
    if code.islower() and value >> (bits - 1):
        value -= 1 << bits
    return value


def some_bytes(dice: random.Random, most: int = 40) -> bytes | None:
    if dice.random() < 0.15:
        return None
    return dice.randbytes(dice.choice((0, 1, 5, most)))


def some_records(dice: random.Random, count: int | None = None) -> list[Record]:
    now = int(time.time() * 1000)
    return [
        Record(
            index,
            now + dice.randint(-1000, 1000),
            some_bytes(dice),
            some_bytes(dice, dice.choice((40, 40, 300))),
            tuple(
                (dice.choice(("", "h", "header")), some_bytes(dice))
                for _ in range(dice.choice((0, 0, 0, 1, 3)))
            ),
        )
        for index in range(count or dice.choice((1, 1, 1, 2, 5, 20)))
    ]


def good_batch(dice: random.Random) -> bytes:
    fields = {}
    if dice.random() < 0.3:
        fields = {
            "producer_id": dice.randint(0, 3),
            "producer_epoch": dice.choice((0, 0, 1)),
            "base_sequence": dice.randint(0, 20),
        }
    return build_batch(some_records(dice), codec=dice.choice(list(Codec)), **fields)  # type: ignore[arg-type]


def with_checksum(batch: bytearray) -> bytes:
    """The batch with a checksum that is right, whatever else is not."""
    if len(batch) >= HEADER_SIZE:
        struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def lying_header(dice: random.Random) -> bytes:
    """Fields of the header that do not fit the rest."""
    batch = bytearray(good_batch(dice))
    header = list(HEADER.unpack_from(batch))
    codes = HEADER.format[1:]
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(header))
        header[at] = fitting(dice, codes[at])
    HEADER.pack_into(batch, 0, *header)
    return with_checksum(batch)


def lying_records(dice: random.Random) -> bytes:
    """Varints inside the records that do not fit, packed by any codec."""
    batch = build_batch(some_records(dice))
    payload = bytearray(batch[HEADER_SIZE:])
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(payload) + 1)
        junk = dice.choice(
            (
                encode_varint(dice.choice((-1, -2, 0, 1, 2**31 - 1, -(2**31), 2**63 - 1))),
                b"\xff" * dice.randint(1, 12),
                b"\x80\x80\x80\x80\x80",
                dice.randbytes(3),
            )
        )
        payload[at : at + dice.choice((0, len(junk)))] = junk
    header = read_header(batch)
    codec = dice.choice(list(Codec))
    if dice.random() < 0.3:
        header = header._replace(
            record_count=dice.choice((1, 2, 1000, 2**31 - 1)),
            last_offset_delta=dice.choice((0, 1, 999, 2**31 - 2)),
        )
    return assemble(header._replace(attributes=int(codec)), compress(codec, bytes(payload)))


def broken_compression(dice: random.Random) -> bytes:
    """A codec in the attributes, something else in the contents."""
    header: BatchHeader = read_header(build_batch(some_records(dice)))
    codec = dice.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
    packed = bytearray(compress(codec, b"".join(b"%d" % each for each in range(60))))
    match dice.randrange(4):
        case 0:
            packed = bytearray(dice.randbytes(dice.choice((0, 1, 8, 60))))
        case 1:
            del packed[dice.randrange(len(packed)) :]
        case 2:
            for _ in range(4):
                packed[dice.randrange(len(packed))] = dice.getrandbits(8)
        case _:
            at = dice.randrange(len(packed))
            packed[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
    return assemble(header._replace(attributes=int(codec)), bytes(packed))


def small_bomb(dice: random.Random) -> bytes:
    """Some hundred bytes that unfold to hundreds of kilobytes."""
    codec = dice.choice((Codec.GZIP, Codec.LZ4, Codec.ZSTD))
    header = read_header(build_batch(some_records(dice)))
    return assemble(
        header._replace(attributes=int(codec)),
        compress(codec, bytes(dice.choice((40_000, 400_000)))),
    )


def message_set(dice: random.Random) -> bytes:
    """A set of an old format, perhaps with a bad entry under a right checksum."""
    magic = dice.choice((0, 1))
    codec = dice.choice((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
    data = bytearray(
        build_message_set(
            [record._replace(headers=()) for record in some_records(dice)], magic, codec
        )
    )
    if dice.random() < 0.6:
        at = dice.randrange(16, len(data))
        junk = dice.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), dice.randbytes(2)))
        data[at : at + len(junk)] = junk[: len(data) - at]
        size = int.from_bytes(data[8:12], "big")
        data[12:16] = struct.pack(">I", crc32(bytes(data[16 : 12 + size])))
    if dice.random() < 0.2:
        at = dice.choice((0, 8, 12, 16, 17))
        data[at : at + 4] = dice.randbytes(4)
    return bytes(data)


def cut(dice: random.Random) -> bytes:
    batch = good_batch(dice)
    return batch[: dice.randrange(len(batch))]


def several(dice: random.Random) -> bytes:
    return b"".join(good_batch(dice) for _ in range(dice.choice((2, 3))))


def noise(dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 17, 60, 61, 62, 200)))


_KINDS = (
    good_batch, good_batch, good_batch, lying_header, lying_header, lying_records, lying_records,
    broken_compression, message_set, message_set, cut, several, noise,
)  # fmt: skip


def any_records(dice: random.Random) -> bytes | None:
    """What a Produce request may carry for a partition."""
    if dice.random() < 0.03:
        return None
    if dice.random() < 0.01:
        return small_bomb(dice)
    return dice.choice(_KINDS)(dice)
