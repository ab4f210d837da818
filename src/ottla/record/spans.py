"""Where the records of a batch lie in its contents, for those who keep some of them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ottla.record.errors import InvalidRecord
from ottla.record.varint import decode_varint, decode_varlong

# Where a record lies in the contents of its batch (start and end), and what the keeper asks of it:
# offset delta, timestamp delta, key, and whether it has a value. A plain tuple, for speed.
RecordSpan: TypeAlias = tuple[int, int, int, int, bytes | None, bool]


def record_spans(data: bytes, count: int) -> Iterator[RecordSpan]:
    """The records in the decompressed contents of a batch; neither value nor headers are unpacked.
    InvalidRecord if lengths make no sense."""
    end = len(data)
    at = 0
    try:
        for _ in range(count):
            start = at
            length = data[at]
            if length < 0x80:
                at += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = decode_varint(data, at)
            record_end = at + length
            if not at < record_end <= end:
                raise InvalidRecord(f"a record of {length} bytes, {end - at} are left")
            at += 1  # attributes
            timestamp_delta = data[at]
            if timestamp_delta < 0x80:
                at += 1
                timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
            else:
                timestamp_delta, at = decode_varlong(data, at)
            offset_delta = data[at]
            if offset_delta < 0x80:
                at += 1
                offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
            else:
                offset_delta, at = decode_varint(data, at)
            length = data[at]
            if length < 0x80:
                at += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = decode_varint(data, at)
            key: bytes | None = None
            if length >= 0:
                key = data[at : at + length]
                at += length
            if at >= record_end:
                raise InvalidRecord("a key runs past the end of its record")
            # Of the value's length only the sign: odd is negative, in the last bit of the first byte.
            has_value = not data[at] & 1
            at = record_end
            yield start, record_end, offset_delta, timestamp_delta, key, has_value
    except IndexError:
        raise InvalidRecord("a record runs past the end of the batch") from None
    if at != end:
        raise InvalidRecord(f"{end - at} bytes are left after {count} records")
