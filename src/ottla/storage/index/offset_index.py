"""The offset index of a segment: from an offset to a position in the log file."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import lt
from struct import Struct

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.entries import NOT_IN_MEMORY, Column, Index

_ENTRY = Struct(">ii")
_OFFSETS = Column("i", _ENTRY.size)
_POSITION = Struct(">i")
_POSITION_AT = 4


class OffsetIndex(Index):
    """Sparse: an entry per `index.interval.bytes` of log, (offset, position of the batch it is in).

    File `<base offset>.index`: entries of 8 bytes, both numbers big-endian and signed,

        int32  offset, relative to the base offset
        int32  position in the `.log` file, in bytes

    strictly increasing in both. Format, padding and crash policy are those of `index.py`: an
    index that a crash left behind is dropped and rebuilt by reading the segment.
    """

    entry_size = _ENTRY.size

    # In memory, slot by slot. Arrays of numbers, because `bisect` searches those without a step of
    # Python. Both of one length; _last_offset is the last of _offsets, -1 if there is none.
    _offsets: array[int]
    _positions: array[int]
    _last_offset: int

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; in memory only, until `write`. Offsets increase, ValueError otherwise;
        OverflowError for an offset or a position too far out for 32 bits (roll before that)."""
        relative = offset - self.base_offset
        if relative <= self._last_offset:
            self._ready_for(offset)
        self._positions.append(position)
        try:
            self._offsets.append(relative)
        except OverflowError:
            self._positions.pop()
            raise
        self._last_offset = relative

    def _ready_for(self, offset: int) -> None:
        if self.sealed:
            raise ValueError(f"{self.path} is sealed")
        self._load()
        if offset - self.base_offset <= self._last_offset:
            raise ValueError(
                f"offset {offset} does not come after {self.last_offset} in {self.path}"
            )

    @property
    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry; (base offset, 0) if there is none."""
        if self.sealed:
            view = self._view()
            return self._sealed_entry(view, (self._sealed_count or 0) - 1)
        self._load()
        return self._entry(len(self._offsets) - 1)

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset if there is none."""
        return self.last_entry[0]

    def lookup(self, target_offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before the target; (base offset, 0) if there
        is none: where to begin to scan for it."""
        relative = target_offset - self.base_offset
        if self.sealed:
            view = self._view()
            count = self._sealed_count or 0
            ends = self._ends
            if ends is None:
                ends = self._ends = _OFFSETS.ends(view, count)
            slot = _OFFSETS.slot_above(view, count, relative, ends)
            return self._sealed_entry(view, slot - 1)
        if not self._loaded:
            self._load()
        return self._entry(bisect_right(self._offsets, relative) - 1)

    def entry_back_from(self, target_offset: int, count: int) -> tuple[int, int]:
        """The offset of the entry that lies `count` entries before the last one at or before the
        target, and how many are missing to that: then it is the base offset."""
        relative = target_offset - self.base_offset
        if self.sealed:
            view = self._view()
            entries = self._sealed_count or 0
            slot = _OFFSETS.slot_above(view, entries, relative, _OFFSETS.ends(view, entries))
            slot -= 1 + count
            return self._sealed_entry(view, slot)[0], max(0, -1 - slot)
        self._load()
        slot = bisect_right(self._offsets, relative) - 1 - count
        return self._entry(slot)[0], max(0, -1 - slot)

    def first_at_or_after_position(self, position: int) -> tuple[int, int] | None:
        """The first entry whose batch begins at `position` or later: all records before
        `position` have offsets not above its offset. None if the index does not reach that
        far."""
        if self.sealed:
            view = self._view()
            count = self._sealed_count or 0
            unpack = _POSITION.unpack_from
            slot = bisect_left(
                range(count), position, key=lambda slot: unpack(view, slot * 8 + _POSITION_AT)[0]
            )
            return self._sealed_entry(view, slot) if slot < count else None
        self._load()
        slot = bisect_left(self._positions, position)
        return self._entry(slot) if slot < len(self._positions) else None

    def entries(self) -> Iterator[tuple[int, int]]:
        """Every (offset, position)."""
        base = self.base_offset
        for relative, position in _ENTRY.iter_unpack(self._content()):
            yield base + relative, position

    def sanity_check(self) -> None:
        if not self.sealed:
            self._load()
            return
        view = self._view()
        count = self._sealed_count or 0
        if count == 0:
            return
        first, first_position = _ENTRY.unpack_from(view, 0)
        last, last_position = _ENTRY.unpack_from(view, (count - 1) * 8)
        if first < 0 or first_position < 0:
            raise CorruptIndex(self.path, f"first entry is ({first}, {first_position})")
        if count > 1 and (last <= first or last_position <= first_position):
            raise CorruptIndex(
                self.path,
                f"last entry ({last}, {last_position}) is not after "
                f"the first ({first}, {first_position})",
            )

    def verify(self) -> None:
        previous = previous_position = -1
        for slot, (relative, position) in enumerate(_ENTRY.iter_unpack(self._content())):
            if relative <= previous or position <= previous_position:
                raise CorruptIndex(
                    self.path,
                    f"entry {slot} ({relative}, {position}) is not after "
                    f"({previous}, {previous_position})",
                )
            previous, previous_position = relative, position

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot < 0:
            return self.base_offset, 0
        return self.base_offset + self._offsets[slot], self._positions[slot]

    def _sealed_entry(self, view: memoryview, slot: int) -> tuple[int, int]:
        if slot < 0:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(view, slot * 8)
        if relative < 0 or position < 0:
            raise CorruptIndex(self.path, f"entry {slot} is ({relative}, {position})")
        return self.base_offset + relative, position

    def _in_memory(self) -> int:
        return len(self._offsets)

    def _remember(self, data: bytes) -> None:
        both = array("i", data)
        if sys.byteorder == "little":
            both.byteswap()
        offsets, positions = both[0::2], both[1::2]
        for numbers in (offsets, positions):
            if numbers and (numbers[0] < 0 or not all(map(lt, numbers, islice(numbers, 1, None)))):
                raise CorruptIndex(self.path, "the entries are out of order")
        self._offsets, self._positions = offsets, positions
        self._last_offset = offsets[-1] if offsets else -1

    def _keep(self, count: int) -> None:
        del self._offsets[count:]
        del self._positions[count:]
        self._last_offset = self._offsets[-1] if count else -1

    def _encode(self, first: int) -> bytes:
        both = array("i", bytes((len(self._offsets) - first) * 8))
        both[0::2] = self._offsets[first:]
        both[1::2] = self._positions[first:]
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    def _below(self, offset: int) -> int:
        return bisect_left(self._offsets, offset - self.base_offset)

    def _forget(self) -> None:
        self._offsets = array("i")
        self._positions = array("i")
        self._last_offset = -1 if self._loaded else NOT_IN_MEMORY


assert array("i").itemsize == 4
