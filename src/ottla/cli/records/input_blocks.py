"""Standard input in pieces, as many at once as there are.

What comes quickly (a file, another program's output) is gathered into blocks of some megabytes. What
comes slowly must not wait for that: a block is handed over once nothing more has come for an instant,
and a terminal's lines one by one.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from ottla.cli.interrupts import Interrupts

if TYPE_CHECKING:
    import pyarrow as pa

READ_SIZE = 256 * 1024
BLOCK_SIZE = 4 * 1024 * 1024
GATHERING = 0.005  # seconds after which a block is handed over as it is


class Block:
    """Pieces of input that came together."""

    def __init__(self, data: bytes, delimiter: bytes) -> None:
        """`data` are the pieces with the delimiter between them, not after the last."""
        self.data = data
        self.delimiter = delimiter

    @property
    def size(self) -> int:
        """Bytes, with the delimiters."""
        return len(self.data) + len(self.delimiter)

    @cached_property
    def pieces(self) -> list[bytes]:
        return self.data.split(self.delimiter) if self.delimiter else [self.data]

    @cached_property
    def count(self) -> int:
        return self.data.count(self.delimiter) + 1 if self.delimiter else 1

    def column(self) -> pa.Array:
        """The pieces as a column of binary."""
        import numpy as np

        from ottla.cli.records.plain_columns import binary_column

        if len(self.delimiter) != 1:
            ends = np.cumsum(np.fromiter(map(len, self.pieces), np.int64, len(self.pieces)))
            return binary_column(b"".join(self.pieces), ends)
        found = np.flatnonzero(np.frombuffer(self.data, np.uint8) == self.delimiter[0])
        # Each delimiter that is taken out moves what follows by one.
        ends = np.append(found - np.arange(len(found)), len(self.data) - len(found))
        return binary_column(self.data.replace(self.delimiter, b""), ends)


def split_input(delimiter: bytes, interrupts: Interrupts) -> Iterator[Block]:
    """Pieces of standard input; an empty delimiter makes the whole input one piece.

    What follows the last delimiter counts only when it is not empty, as in text files. Ctrl-C ends it
    while it waits; what was read by then has been handed over.
    """
    if not delimiter:
        with interrupts.allowed():
            whole = sys.stdin.buffer.read()
        yield Block(whole, b"")
        return
    pending: list[bytes] = []
    for block in _blocks(interrupts):
        if len(delimiter) == 1 and delimiter not in block:
            pending.append(block)  # joined once the piece ends: a huge one is not copied each time
            continue
        data = b"".join([*pending, block])
        # Not by looking from the end: ends of one delimiter may be beginnings of another.
        rest = (
            data[data.rfind(delimiter) + 1 :] if len(delimiter) == 1 else data.split(delimiter)[-1]
        )
        pending = [rest]
        if len(rest) < len(data):
            yield Block(data[: len(data) - len(rest) - len(delimiter)], delimiter)
    rest = b"".join(pending)
    if rest:
        yield Block(rest, delimiter)


def input_size() -> int | None:
    """How much there is to read, where that is known: a file, not a pipe."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _blocks(interrupts: Interrupts) -> Iterator[bytes]:
    source = sys.stdin.buffer
    # read1 hands over what is there.
    read = getattr(source, "read1", source.read)
    while True:
        with interrupts.allowed():
            _can_read_before(None)
        chunk = read(READ_SIZE)
        if not chunk:
            return
        gathered = [chunk]
        size = len(chunk)
        deadline = time.monotonic() + GATHERING
        quick = not sys.stdin.isatty()
        while (
            quick
            and size < BLOCK_SIZE
            and _can_read_before(deadline)
            and (chunk := read(READ_SIZE))
        ):
            gathered.append(chunk)
            size += len(chunk)
        yield b"".join(gathered)


def _can_read_before(deadline: float | None) -> bool:
    """Whether more (or the end) is there before this time (monotonic; None: however late)."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        return True  # bytes in memory
    wait = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        return bool(select.select([descriptor], [], [], wait)[0])
    except OSError:
        return False  # where pipes cannot be waited for (Windows), nothing is held back
