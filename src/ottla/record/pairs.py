"""A batch of keys and values of one moment, as coordinators write it: many small ones, all day long.

The same bytes as `build_batch` makes of such records, in a third of the time; with the header, which
whoever appends the batch need not read and check again.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ottla.record.batch import (
    ATTRIBUTES_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    HeaderFields,
)
from ottla.record.checksum import crc32c
from ottla.record.varint import encode_varint

# Of lengths and deltas that are usual.
_VARINTS: Final = [encode_varint(number) for number in range(1024)]
_NO_VALUE: Final = encode_varint(-1)
# The header up to the checksum, and what the checksum covers of it.
_pack_begin = Struct(">qiibI").pack
_pack_rest = Struct(">hiqqqhii").pack
# Of the bytes that the batch length counts, those before that.
_LENGTH_BEFORE: Final = ATTRIBUTES_AT - LENGTH_OVERHEAD


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < len(_VARINTS) else encode_varint(number)


def build_pairs(
    pairs: Sequence[tuple[bytes, bytes | None]],
    timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    *,
    transactional: bool = False,
) -> tuple[bytearray, HeaderFields]:
    """The batch, with base offset 0 and without a sequence, and its header. At least one pair."""
    parts = [b""]
    count = 0
    for key, value in pairs:
        # Attributes and the difference in time are 0, and so is the number of headers at the end.
        body = b"".join(
            (b"\0\0", _varint(count), _varint(len(key)), key, _NO_VALUE, b"\0")
            if value is None
            else (
                b"\0\0",
                _varint(count),
                _varint(len(key)),
                key,
                _varint(len(value)),
                value,
                b"\0",
            )
        )
        parts.append(_varint(len(body)))
        parts.append(body)
        count += 1
    rest = (
        TRANSACTIONAL_BIT if transactional else 0,
        count - 1,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        -1,
        count,
    )
    parts[0] = _pack_rest(*rest)
    covered = b"".join(parts)
    crc = crc32c(covered)
    length = _LENGTH_BEFORE + len(covered)
    batch = bytearray(_pack_begin(0, length, -1, MAGIC, crc))
    batch += covered
    return batch, (0, length, -1, MAGIC, crc, *rest)
