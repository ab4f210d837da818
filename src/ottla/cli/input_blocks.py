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

from ottla.cli.interrupts import Interrupts

READ_SIZE = 256 * 1024
BLOCK_SIZE = 4 * 1024 * 1024
GATHERING = 0.005  # seconds after which a block is handed over as it is


def split_input(delimiter: bytes, interrupts: Interrupts) -> Iterator[list[bytes]]:
    """Pieces of standard input; an empty delimiter makes the whole input one piece.

    What follows the last delimiter counts only when it is not empty, as in text files. Ctrl-C ends it
    while it waits; what was read by then has been handed over.
    """
    if not delimiter:
        with interrupts.allowed():
            whole = sys.stdin.buffer.read()
        yield [whole]
        return
    pending: list[bytes] = []
    for block in _blocks(interrupts):
        if len(delimiter) == 1 and delimiter not in block:
            pending.append(block)  # joined once the piece ends: a huge one is not copied each time
            continue
        pieces = b"".join([*pending, block]).split(delimiter)
        pending = [pieces.pop()]
        if pieces:
            yield pieces
    rest = b"".join(pending)
    if rest:
        yield [rest]


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
            _comes_by(None)
        chunk = read(READ_SIZE)
        if not chunk:
            return
        gathered = [chunk]
        size = len(chunk)
        deadline = time.monotonic() + GATHERING
        quick = not sys.stdin.isatty()
        while quick and size < BLOCK_SIZE and _comes_by(deadline) and (chunk := read(READ_SIZE)):
            gathered.append(chunk)
            size += len(chunk)
        yield b"".join(gathered)


def _comes_by(deadline: float | None) -> bool:
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
