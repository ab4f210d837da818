"""A set of offsets, kept as ranges: which records of a log are deleted.

Deletions come one at a time or as long runs, millions of them, and are asked for by every reader. So
the ranges are held in arrays of machine numbers, one pair of arrays for each 2²⁰ offsets that have any:
a range costs 8 bytes, however long it is, and an insertion moves the ranges of its own stretch only.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

# First offset, and the one after the last.
OffsetRange: TypeAlias = tuple[int, int]

STRETCH_BITS: Final = 20
STRETCH: Final = 1 << STRETCH_BITS
_MASK: Final = STRETCH - 1
# In the stored form, of each stretch: its number, and how many ranges it has.
_HEAD = struct.Struct("<qI")
_NUMBER_BYTES: Final = 4

_Stretch: TypeAlias = tuple["array[int]", "array[int]"]


class OffsetSet:
    """Offsets from 0 on.

    Invariants: `_order` has the keys of `_stretches` in order, and no stretch is empty. In a stretch
    starts[i] < ends[i] < starts[i + 1], relative to its first offset. `count` is the number of offsets.
    """

    __slots__ = ("_order", "_stretches", "count")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._stretches: dict[int, _Stretch] = {}
        self._order: list[int] = []
        self.count = 0
        for start, end in ranges:
            self.add(start, end)

    def __bool__(self) -> bool:
        return self.count > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self._stretches == other._stretches

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __contains__(self, offset: int) -> bool:
        stretch = self._stretches.get(offset >> STRETCH_BITS)
        if stretch is None:
            return False
        starts, ends = stretch
        at = offset & _MASK
        slot = bisect_right(starts, at) - 1
        return slot >= 0 and at < ends[slot]

    def __iter__(self) -> Iterator[OffsetRange]:
        """All ranges in order; one that goes over the end of a stretch comes in parts."""
        for number in self._order:
            base = number << STRETCH_BITS
            for start, end in zip(*self._stretches[number], strict=True):
                yield base + start, base + end

    @property
    def ranges(self) -> int:
        """How many ranges are held: what the set costs."""
        return sum(len(starts) for starts, _ in self._stretches.values())

    # Changing

    def add(self, start: int, end: int) -> None:
        """Put the offsets from `start` to before `end` in."""
        for number, low, high in _parts(start, end):
            self._add(number, low, high)

    def _add(self, number: int, low: int, high: int) -> None:
        stretch = self._stretches.get(number)
        if stretch is None:
            self._stretches[number] = array("I", (low,)), array("I", (high,))
            insort(self._order, number)
            self.count += high - low
            return
        starts, ends = stretch
        # Those that it touches become one with it.
        first = bisect_left(ends, low)
        last = bisect_right(starts, high)
        if first < last:
            low = min(low, starts[first])
            high = max(high, ends[last - 1])
        for slot in range(first, last):
            self.count -= ends[slot] - starts[slot]
        self.count += high - low
        starts[first:last] = array("I", (low,))
        ends[first:last] = array("I", (high,))

    def discard(self, start: int, end: int) -> None:
        """Take the offsets from `start` to before `end` out, as far as they are in."""
        for number, low, high in _parts(start, end):
            self._discard(number, low, high)

    def _discard(self, number: int, low: int, high: int) -> None:
        stretch = self._stretches.get(number)
        if stretch is None:
            return
        starts, ends = stretch
        first = bisect_right(ends, low)
        last = bisect_left(starts, high)
        if first >= last:
            return
        left = array("I")
        left_ends = array("I")
        if starts[first] < low:
            left.append(starts[first])
            left_ends.append(low)
        if ends[last - 1] > high:
            left.append(high)
            left_ends.append(ends[last - 1])
        for slot in range(first, last):
            self.count -= ends[slot] - starts[slot]
        for each_start, each_end in zip(left, left_ends, strict=True):
            self.count += each_end - each_start
        starts[first:last] = left
        ends[first:last] = left_ends
        if not starts:
            del self._stretches[number]
            self._order.remove(number)

    def drop_below(self, offset: int) -> None:
        """Forget what lies before an offset. Cheap where there is nothing."""
        order = self._order
        if not order or order[0] << STRETCH_BITS >= offset:
            return
        whole = bisect_left(order, offset >> STRETCH_BITS)
        for number in order[:whole]:
            starts, ends = self._stretches.pop(number)
            self.count -= sum(ends) - sum(starts)
        del order[:whole]
        self.discard(offset & ~_MASK, offset)

    # Asking

    def first_in(self, start: int, end: int) -> int | None:
        """The first offset of the set from `start` on and before `end`."""
        order = self._order
        number = start >> STRETCH_BITS
        for slot in range(bisect_left(order, number), len(order)):
            found = order[slot]
            base = found << STRETCH_BITS
            if base >= end:
                return None
            starts, ends = self._stretches[found]
            low = start - base if found == number else 0
            at = bisect_right(ends, low)
            if at < len(starts):
                offset = base + max(low, starts[at])
                return offset if offset < end else None
        return None

    def first_out(self, start: int) -> int:
        """The first offset from `start` on that is not in the set."""
        while True:
            stretch = self._stretches.get(start >> STRETCH_BITS)
            if stretch is None:
                return start
            starts, ends = stretch
            at = start & _MASK
            slot = bisect_right(starts, at) - 1
            if slot < 0 or at >= ends[slot]:
                return start
            start += ends[slot] - at
            if start & _MASK:
                return start

    def between(self, start: int, end: int) -> list[OffsetRange]:
        """What of the set lies from `start` on and before `end`, as ranges in order."""
        found: list[OffsetRange] = []
        if start >= end:
            return found
        order = self._order
        for slot in range(bisect_left(order, start >> STRETCH_BITS), len(order)):
            number = order[slot]
            base = number << STRETCH_BITS
            if base >= end:
                break
            starts, ends = self._stretches[number]
            first = bisect_right(ends, start - base) if start > base else 0
            last = bisect_left(starts, end - base) if end - base < STRETCH else len(starts)
            for at in range(first, last):
                low, high = max(base + starts[at], start), min(base + ends[at], end)
                if found and found[-1][1] == low:
                    low = found.pop()[0]
                found.append((low, high))
        return found

    # Stored

    def to_bytes(self) -> bytes:
        """For each stretch its number, how many ranges it has, and their starts and ends; all numbers
        little-endian, so that they are copied and not converted on nearly all machines."""
        parts = []
        for number in self._order:
            starts, ends = self._stretches[number]
            parts += [_HEAD.pack(number, len(starts)), _stored(starts), _stored(ends)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> OffsetSet:
        """ValueError if that is no set."""
        found = cls()
        view = memoryview(data)
        at = 0
        while at < len(view):
            if len(view) - at < _HEAD.size:
                raise ValueError("a set of offsets ends too early")
            number, count = _HEAD.unpack_from(view, at)
            at += _HEAD.size
            size = count * _NUMBER_BYTES
            if len(view) - at < 2 * size:
                raise ValueError("a set of offsets ends too early")
            starts, ends = _read(view[at : at + size]), _read(view[at + size : at + 2 * size])
            at += 2 * size
            if not count or (found._order and number <= found._order[-1]):
                raise ValueError("the stretches of a set of offsets are out of order")
            found._stretches[number] = starts, ends
            found._order.append(number)
            found.count += sum(ends) - sum(starts)
        return found


def _parts(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """A range by stretches: number, first and end in it."""
    while start < end:
        number = start >> STRETCH_BITS
        base = number << STRETCH_BITS
        stop = min(end, base + STRETCH)
        yield number, start - base, stop - base
        start = stop


def _stored(numbers: array[int]) -> bytes:
    assert numbers.itemsize == _NUMBER_BYTES
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _read(data: memoryview) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
