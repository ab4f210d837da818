"""Pieces of files to columns of lines, without a loop over the lines.

A line is what ends in a newline, whatever bytes it has; the newline is no part of it. A line longer
than the limit (what the topic takes) is cut into parts of that many bytes and a rest. Where the cuts
are depends on the line alone, not on when its bytes arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

NEWLINE = 10
PART_HEADER = "line-part"  # 1, 2, …: of the records that hold a line that was cut
END_HEADER = "line-end"  # on the last of them

_PAIR = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
HEADERS = pa.list_(_PAIR)


@dataclass(frozen=True, slots=True)
class Lines:
    """What can be sent of a piece of a file."""

    values: pa.Array  # binary
    # For each value its number among the parts of a line, negative for the last; 0: it is whole.
    parts: np.ndarray[Any, Any] | None
    size: int  # bytes of the file that this is
    part: int  # parts of the line after it that were sent already


def cut(data: bytes, limit: int, part: int = 0) -> Lines:
    """The lines of `data`; what follows the last newline waits, unless it is longer than `limit`.

    `part` is how many parts of the first line were sent before.
    """
    view = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(view == NEWLINE)
    size = int(newlines[-1]) + 1 if len(newlines) else 0
    longest = int(np.diff(newlines, prepend=-1).max()) - 1 if len(newlines) else 0
    if longest > limit or len(data) - size > limit or (part and size):
        return _cut_long(data, limit, part)
    if not size:
        return Lines(pa.array([], pa.binary()), None, 0, part)
    content = view[:size]
    content = content[content != NEWLINE]
    offsets = np.zeros(len(newlines) + 1, np.int32)
    offsets[1:] = newlines - np.arange(len(newlines))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return Lines(pa.Array.from_buffers(pa.binary(), len(newlines), buffers), None, size, 0)


def _cut_long(data: bytes, limit: int, part: int) -> Lines:
    values: list[bytes] = []
    parts: list[int] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0 or len(data) - at > limit:
        if end < 0 or end - at > limit:
            part += 1
            values.append(data[at : at + limit])
            parts.append(part)
            at += limit
            continue
        values.append(data[at:end])
        parts.append(-(part + 1) if part else 0)
        part, at = 0, end + 1
    return Lines(pa.array(values, pa.binary()), np.array(parts, np.int64), at, part)


def unfinished(data: bytes, part: int) -> Lines:
    """A line that has no newline, and will not get one."""
    parts = np.array([-(part + 1) if part else 0])
    return Lines(pa.array([data], pa.binary()), parts, len(data), 0)


def table(lines: Lines, key: bytes | None, headers: list[tuple[str, bytes]]) -> pa.Table:
    """Records for `Producer.write`: the lines with the key and the headers of their file."""
    columns: dict[str, pa.Array] = {"value": lines.values}
    count = len(lines.values)
    if key is not None:
        columns["key"] = pa.repeat(pa.scalar(key, pa.binary()), count)
    if lines.parts is not None and lines.parts.any():
        columns["headers"] = pa.array(
            [_with_part(headers, int(part)) for part in lines.parts], HEADERS
        )
    elif headers:
        columns["headers"] = pa.repeat(pa.scalar(_pairs(headers), HEADERS), count)
    return pa.table(columns)


def _pairs(headers: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


def _with_part(headers: list[tuple[str, bytes]], part: int) -> list[dict[str, Any]]:
    more: list[tuple[str, bytes]] = []
    if part:
        more.append((PART_HEADER, b"%d" % abs(part)))
    if part < 0:
        more.append((END_HEADER, b"true"))
    return _pairs(headers + more)
