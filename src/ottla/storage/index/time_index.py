"""The time index of a segment: from a timestamp to an offset."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import le, lt
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.entries import NOT_IN_MEMORY, Column, Index

_ENTRY = Struct(">qi")
_TIMESTAMPS = Column("q", _ENTRY.size)

NO_TIMESTAMP = -1


class TimeIndex(Index):
    """Sparse: (timestamp, offset) says that no record up to and including offset is younger than
    the timestamp, and that the record at offset has it.

    File `<base offset>.timeindex`: entries of 12 bytes, big-endian and signed,

        int64  timestamp, milliseconds since 1970
        int32  offset, relative to the base offset

    Timestamps increase strictly, offsets do not decrease. The last entry, written when the
    segment is rolled or closed, holds the segment's largest timestamp; `is_full` keeps a slot
    free for it. Format, padding and crash policy are those of `index.py`.
    """

    entry_size = _ENTRY.size
    # A segment whose records all have the timestamp 0, the largest of them at the base offset.
    may_be_one_zero = True

    # In memory, slot by slot; of one length. _last_timestamp is the last of _timestamps,
    # NO_TIMESTAMP if there is none.
    _timestamps: array[int]
    _offsets: array[int]
    _last_timestamp: int

    @property
    def is_full(self) -> bool:
        count = len(self._offsets) if self._loaded else self.entry_count
        return count >= self.max_bytes // self.entry_size - 1

    def append(self, timestamp: int, offset: int) -> bool:
        """Adds an entry (in memory only, until `write`) if the timestamp is above the last one.

        An equal timestamp adds nothing and is no mistake: False. The caller gives the largest
        timestamp so far and its offset, so a smaller timestamp or offset than the last is one:
        ValueError. OverflowError for an offset too far out for 32 bits.
        """
        if timestamp <= self._last_timestamp and not self._ready_for(timestamp, offset):
            return False
        relative = offset - self.base_offset
        offsets = self._offsets
        if relative < (offsets[-1] if offsets else 0):
            raise ValueError(f"offset {offset} comes before {self.last_entry[1]} in {self.path}")
        offsets.append(relative)
        self._timestamps.append(timestamp)
        self._last_timestamp = timestamp
        return True

    def _ready_for(self, timestamp: int, offset: int) -> bool:
        if self.sealed:
            raise ValueError(f"{self.path} is sealed")
        self._load()
        last, last_offset = self.last_entry
        if timestamp > last:
            return True
        if self._timestamps and (timestamp < last or offset < last_offset):
            raise ValueError(
                f"({timestamp}, {offset}) comes before ({last}, {last_offset}) in {self.path}"
            )
        return False

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (NO_TIMESTAMP, base offset) if there is none."""
        if self.sealed:
            view = self._view()
            return self._sealed_entry(view, (self._sealed_count or 0) - 1)
        self._load()
        return self._entry(len(self._offsets) - 1)

    @property
    def last_timestamp(self) -> int:
        return self.last_entry[0]

    def lookup(self, target_timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry not younger than the target; (NO_TIMESTAMP, base
        offset) if there is none. A record younger than the target lies at or after that offset."""
        if self.sealed:
            view = self._view()
            count = self._sealed_count or 0
            ends = self._ends
            if ends is None:
                ends = self._ends = _TIMESTAMPS.ends(view, count)
            slot = _TIMESTAMPS.slot_above(view, count, target_timestamp, ends)
            return self._sealed_entry(view, slot - 1)
        self._load()
        return self._entry(bisect_right(self._timestamps, target_timestamp) - 1)

    def entries(self) -> Iterator[tuple[int, int]]:
        """Every (timestamp, offset)."""
        base = self.base_offset
        for timestamp, relative in _ENTRY.iter_unpack(self._content()):
            yield timestamp, base + relative

    def sanity_check(self) -> None:
        if not self.sealed:
            self._load()
            return
        view = self._view()
        count = self._sealed_count or 0
        if count == 0:
            return
        first, first_offset = _ENTRY.unpack_from(view, 0)
        last, last_offset = _ENTRY.unpack_from(view, (count - 1) * 12)
        if first < 0 or first_offset < 0:
            raise CorruptIndex(self.path, f"first entry is ({first}, {first_offset})")
        if count > 1 and (last <= first or last_offset < first_offset):
            raise CorruptIndex(
                self.path,
                f"last entry ({last}, {last_offset}) is not after "
                f"the first ({first}, {first_offset})",
            )

    def verify(self) -> None:
        previous, previous_offset = NO_TIMESTAMP, 0
        for slot, (timestamp, relative) in enumerate(_ENTRY.iter_unpack(self._content())):
            if timestamp <= previous or relative < previous_offset:
                raise CorruptIndex(
                    self.path,
                    f"entry {slot} ({timestamp}, {relative}) is not after "
                    f"({previous}, {previous_offset})",
                )
            previous, previous_offset = timestamp, relative

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[slot], self.base_offset + self._offsets[slot]

    def _sealed_entry(self, view: memoryview, slot: int) -> tuple[int, int]:
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        timestamp, relative = _ENTRY.unpack_from(view, slot * 12)
        if timestamp < 0 or relative < 0:
            raise CorruptIndex(self.path, f"entry {slot} is ({timestamp}, {relative})")
        return timestamp, self.base_offset + relative

    def _in_memory(self) -> int:
        return len(self._offsets)

    def _remember(self, data: bytes) -> None:
        timestamps, offsets = array("q"), array("i")
        for timestamp, relative in _ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            offsets.append(relative)
        if timestamps and (
            timestamps[0] < 0
            or offsets[0] < 0
            or not all(map(lt, timestamps, islice(timestamps, 1, None)))
            or not all(map(le, offsets, islice(offsets, 1, None)))
        ):
            raise CorruptIndex(self.path, "the entries are out of order")
        self._timestamps, self._offsets = timestamps, offsets
        self._last_timestamp = timestamps[-1] if timestamps else NO_TIMESTAMP

    def _keep(self, count: int) -> None:
        del self._timestamps[count:]
        del self._offsets[count:]
        self._last_timestamp = self._timestamps[-1] if count else NO_TIMESTAMP

    def _encode(self, first: int) -> bytes:
        pack = _ENTRY.pack
        return b"".join(map(pack, self._timestamps[first:], self._offsets[first:]))

    def _below(self, offset: int) -> int:
        return bisect_left(self._offsets, offset - self.base_offset)

    def _forget(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("i")
        self._last_timestamp = NO_TIMESTAMP if self._loaded else NOT_IN_MEMORY
