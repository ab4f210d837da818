"""The way along the batches of a buffer: lengths, checksums, and which of them a reader may see.

A walk gives each whole batch once, in order, with all that can be known of it before its records are
touched. A piece of a batch at the end of the buffer is left alone: a Fetch answer and the end of a
segment that is being written look like this. Whatever is wrong is raised at the batch it concerns.

Under read_committed a batch of a transaction is invisible if its producer aborted that transaction.
A Fetch answer lists the aborted ones by producer and first offset; each lasts until that producer's
abort marker, a control batch in the log itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL_BIT,
    records,
)
from ottla.record.control import ABORT, control_type
from ottla.record.errors import CorruptBatch, InvalidBatch, InvalidRecord, UnsupportedMagic

# Base offset, length, magic, checksum, attributes, last offset delta, record count.
_FIELDS = struct.Struct(">qi4xbIhi30xi")
_PRODUCER_ID = struct.Struct(">q")
_LEGACY_OVERHEAD = 12  # offset and size of a message in the old formats
_SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
_LARGEST_OFFSET = 2**63 - 1
# Bytes, whose checksum takes a tenth of a millisecond. Below that the interpreter's lock is kept: it is
# let go for too short a time for anybody to take it, and getting it back has its price.
_LOCK_RELEASED_ABOVE = 1024 * 1024


class AbortedTransaction(NamedTuple):
    """What a Fetch answer says of a transaction whose records are not to be seen."""

    producer_id: int
    first_offset: int


class FoundBatch(NamedTuple):
    """One whole batch, or one message of an older format, in the buffer."""

    start: int
    end: int
    base_offset: int
    last_offset: int
    codec: int
    magic: int
    visible: bool  # neither a control batch nor part of an aborted transaction
    claimed_count: int  # what the header says; 1 for an older message, which may wrap more


def found_at(view: memoryview, at: int) -> FoundBatch:
    """The visible batch of today's format that a walk has given from this position."""
    base_offset, length, _, _, attributes, last_delta, count = _FIELDS.unpack_from(view, at)
    end = at + LENGTH_OVERHEAD + length
    last_offset = base_offset + last_delta
    return FoundBatch(
        at, end, base_offset, last_offset, attributes & CODEC_MASK, MAGIC, True, count
    )


class Walk:
    """Iterates over the batches of `view`, from its start; `position` is after the last one given.

    Whoever has gone past some batches in another way may move it on.
    """

    def __init__(
        self,
        view: memoryview,
        *,
        aborted: Iterable[tuple[int, int]] = (),
        check_crc: bool = True,
    ) -> None:
        self.position = 0
        self.check_crc = check_crc
        self._view = view
        # The next to begin last, so that it can be popped.
        self._to_begin = sorted(
            (AbortedTransaction(*transaction) for transaction in aborted),
            key=lambda transaction: transaction.first_offset,
            reverse=True,
        )
        self._aborting: set[int] = set()
        self._filters = bool(self._to_begin)

    def __iter__(self) -> Iterator[FoundBatch]:
        view = self._view
        size = len(view)
        unpack = _FIELDS.unpack_from
        while size - self.position > MAGIC_AT:
            at = self.position
            if view[at + MAGIC_AT] != MAGIC:
                message = self._older_message(at)
                if message is None:
                    return
                yield message
                continue
            if size - at < HEADER_SIZE:
                return
            base_offset, length, _, checksum, attributes, last_delta, count = unpack(view, at)
            end = at + LENGTH_OVERHEAD + length
            if length < _SMALLEST_LENGTH:
                raise CorruptBatch(located(base_offset, f"its length is {length}"))
            if end > size:
                return
            if self.check_crc and _checksum(view, at, end) != checksum:
                raise CorruptBatch(located(base_offset, "the CRC32C does not match"))
            if base_offset < 0 or last_delta < 0 or base_offset > _LARGEST_OFFSET - last_delta - 1:
                raise InvalidRecord(located(base_offset, f"its last offset delta is {last_delta}"))
            last_offset = base_offset + last_delta
            visible = not attributes & CONTROL_BIT
            if self._filters and attributes & TRANSACTIONAL_BIT:
                visible = self._is_committed(at, end, base_offset, last_offset, visible)
            self.position = end
            yield FoundBatch(
                at, end, base_offset, last_offset, attributes & CODEC_MASK, MAGIC, visible, count
            )

    @property
    def special(self) -> int:
        """The attributes of batches that only the iteration knows what to make of."""
        return CODEC_MASK | CONTROL_BIT | (TRANSACTIONAL_BIT if self._filters else 0)

    def _is_committed(
        self, at: int, end: int, base_offset: int, last_offset: int, has_data: bool
    ) -> bool:
        """Whether a transactional batch is to be seen; keeps track of what is being aborted."""
        (producer_id,) = _PRODUCER_ID.unpack_from(self._view, at + PRODUCER_ID_AT)
        while self._to_begin and self._to_begin[-1].first_offset <= last_offset:
            self._aborting.add(self._to_begin.pop().producer_id)
        if has_data:
            return producer_id not in self._aborting
        try:
            marker = next(records(self._view[at:end]), None)
            if marker is not None and control_type(marker) == ABORT:
                self._aborting.discard(producer_id)
        except InvalidBatch as error:
            raise type(error)(located(base_offset, error.reason)) from None
        return False

    def _older_message(self, at: int) -> FoundBatch | None:
        """A message of format v0 or v1, whose own checks are `legacy`'s; None if it is torn."""
        base_offset, size, magic = struct.unpack_from(">qi4xb", self._view, at)
        if not 0 <= magic < MAGIC:
            raise UnsupportedMagic(located(base_offset, f"magic is {magic}"))
        if size < 0:
            raise CorruptBatch(located(base_offset, f"its length is {size}"))
        end = at + _LEGACY_OVERHEAD + size
        if end > len(self._view):
            return None
        if not 0 <= base_offset < _LARGEST_OFFSET or size <= MAGIC_AT - _LEGACY_OVERHEAD + 1:
            raise CorruptBatch(located(base_offset, f"its length is {size}"))
        self.position = end
        codec = self._view[at + MAGIC_AT + 1] & CODEC_MASK
        return FoundBatch(at, end, base_offset, base_offset, codec, magic, True, 1)


def _checksum(view: memoryview, at: int, end: int) -> int:
    release = end - at > _LOCK_RELEASED_ABOVE
    return crc32c(view[at + ATTRIBUTES_AT : end], gil_release_mode=release)


def located(base_offset: int, reason: str) -> str:
    """The reason of an error, with the place in the log that it concerns."""
    return f"batch at offset {base_offset}: {reason}"


class Reach(NamedTuple):
    """How far the whole batches of a buffer reach; nothing about them has been checked."""

    next_offset: int
    leader_epoch: int  # of the last of them; -1 in older formats
    size: int  # bytes of the whole batches


def reach(view: memoryview, start: int = 0) -> Reach | None:
    """Where the batches in the buffer end, from their lengths alone; None if none is whole.

    Tells where to read on while the batches themselves are still to be decoded. `start` is where one of
    them is known to begin.
    """
    size = len(view)
    at = start
    last = -1
    unpack = _FIELDS.unpack_from
    while size - at >= HEADER_SIZE:
        length = unpack(view, at)[1]
        end = at + LENGTH_OVERHEAD + length
        if end > size or length <= 0:
            break
        last, at = at, end
    else:
        # The rest is shorter than a header of today; a message of an older format may still fit.
        while size - at > MAGIC_AT and view[at + MAGIC_AT] < MAGIC:
            end = at + _LEGACY_OVERHEAD + int.from_bytes(view[at + 8 : at + 12], signed=True)
            if not at < end <= size:
                break
            last, at = at, end
    if last < 0:
        return None
    base_offset = int.from_bytes(view[last : last + 8], signed=True)
    if view[last + MAGIC_AT] < MAGIC:
        return Reach(base_offset + 1, -1, at)
    _, epoch, _, _, _, last_delta = struct.unpack_from(">iibIhi", view, last + 8)
    return Reach(base_offset + last_delta + 1, epoch, at)
