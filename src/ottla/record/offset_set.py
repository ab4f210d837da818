"""A set of offsets, kept as ranges: which records of a log are deleted.

Deletions come one at a time or as long runs, millions of them, and are asked for by every reader. So
the ranges are held in arrays of machine numbers, one pair of arrays for each 2²⁰ offsets that have any:
a range costs 8 bytes, however long it is, and an insertion moves the ranges of its own stretch only.

With ten million ranges whatever touches them one by one takes seconds. So a set is copied, cut and
taken out of another by whole stretches, and a copy shares its arrays with the original until one of them
changes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
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
    Arrays of the stretches in `_shared` may be another set's, too: they are replaced, never changed.
    """

    __slots__ = ("_order", "_shared", "_stretches", "count")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._stretches: dict[int, _Stretch] = {}
        self._order: list[int] = []
        self._shared: set[int] = set()
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

    def ranges_in(self, start: int, end: int) -> int:
        """How many of them lie, at least in part, from `start` on and before `end`."""
        return sum(last - first for _, _, first, last, _, _ in self._slots(start, end))

    def copy(self) -> OffsetSet:
        """A set that changes no more with this one; it costs nothing until one of them changes."""
        other = OffsetSet()
        other._stretches = dict(self._stretches)
        other._order = list(self._order)
        other.count = self.count
        self._shared = set(self._order)
        other._shared = set(self._order)
        return other

    def within(self, start: int, end: int) -> OffsetSet:
        """What of the set lies from `start` on and before `end`."""
        found = OffsetSet()
        for number, starts, first, last, low, high in self._slots(start, end):
            ends = self._stretches[number][1]
            if low == 0 and high == STRETCH:
                self._shared.add(number)
                found._shared.add(number)
            else:
                starts, ends = starts[first:last], ends[first:last]
                starts[0] = max(starts[0], low)
                ends[-1] = min(ends[-1], high)
            found._stretches[number] = starts, ends
            found._order.append(number)
            found.count += sum(ends) - sum(starts)
        return found

    def _slots(self, start: int, end: int) -> Iterator[tuple[int, array[int], int, int, int, int]]:
        """The stretches with something between two offsets: number, starts, the slots of the ranges in
        question, and the two offsets as far as they lie in the stretch, relative to it."""
        if start >= end:
            return
        order = self._order
        for at in range(bisect_left(order, start >> STRETCH_BITS), len(order)):
            number = order[at]
            base = number << STRETCH_BITS
            if base >= end:
                return
            starts, ends = self._stretches[number]
            low, high = max(start - base, 0), min(end - base, STRETCH)
            first = bisect_right(ends, low) if low else 0
            last = bisect_left(starts, high) if high < STRETCH else len(starts)
            if first < last:
                yield number, starts, first, last, low, high

    # Changing

    def _own(self, number: int) -> _Stretch:
        """A stretch that is about to change."""
        starts, ends = self._stretches[number]
        if number in self._shared:
            self._shared.discard(number)
            starts, ends = self._stretches[number] = starts[:], ends[:]
        return starts, ends

    def _forget(self, number: int) -> None:
        del self._stretches[number]
        self._order.remove(number)
        self._shared.discard(number)

    def add(self, start: int, end: int) -> None:
        """Put the offsets from `start` to before `end` in."""
        for number, low, high in _parts(start, end):
            self._add(number, low, high)

    def _add(self, number: int, low: int, high: int) -> None:
        if number not in self._stretches:
            self._stretches[number] = array("I", (low,)), array("I", (high,))
            insort(self._order, number)
            self.count += high - low
            return
        starts, ends = self._own(number)
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

    def add_all(self, ranges: Sequence[OffsetRange]) -> None:
        """Put many ranges in, which are in order and of which no two overlap."""
        lows, highs = array("I"), array("I")
        current = -1
        for start, end in ranges:
            for number, low, high in _parts(start, end):
                if number != current:
                    if lows:
                        self._add_all(current, lows, highs)
                    lows, highs = array("I"), array("I")
                    current = number
                if highs and highs[-1] == low:
                    highs[-1] = high
                else:
                    lows.append(low)
                    highs.append(high)
        if lows:
            self._add_all(current, lows, highs)

    def _add_all(self, number: int, lows: array[int], highs: array[int]) -> None:
        if number not in self._stretches:
            self._stretches[number] = lows, highs
            insort(self._order, number)
            self.count += sum(highs) - sum(lows)
            return
        starts, ends = self._own(number)
        first = bisect_left(ends, lows[0])
        last = bisect_right(starts, highs[-1])
        if first < last:
            # Those that lie between or touch: all of them in order, neighbours together.
            old = starts[first:last], ends[first:last]
            self.count -= sum(old[1]) - sum(old[0])
            both = sorted([*zip(*old, strict=True), *zip(lows, highs, strict=True)])
            lows, highs = array("I"), array("I")
            for low, high in both:
                if highs and highs[-1] >= low:
                    highs[-1] = max(highs[-1], high)
                else:
                    lows.append(low)
                    highs.append(high)
        self.count += sum(highs) - sum(lows)
        starts[first:last] = lows
        ends[first:last] = highs

    def discard(self, start: int, end: int) -> None:
        """Take the offsets from `start` to before `end` out, as far as they are in."""
        for number, low, high in _parts(start, end):
            self._discard(number, low, high)

    def _discard(self, number: int, low: int, high: int) -> None:
        if number not in self._stretches:
            return
        starts, ends = self._stretches[number]
        first = bisect_right(ends, low)
        last = bisect_left(starts, high)
        if first >= last:
            return
        starts, ends = self._own(number)
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
            self._forget(number)

    def subtract(self, other: OffsetSet) -> None:
        """Take all offsets of another set out. Quick where it has ranges of this one as they are, as a
        part that was cut out of it does."""
        for number in other._order:
            if number in self._stretches:
                self._subtract(number, *other._stretches[number])

    def _subtract(self, number: int, lows: array[int], highs: array[int]) -> None:
        starts, ends = self._stretches[number]
        first = bisect_right(ends, lows[0])
        last = bisect_left(starts, highs[-1])
        if first >= last:
            return
        old = starts[first:last], ends[first:last]
        gone = lows, highs
        left = (array("I"), array("I")) if old == gone else _difference(old, gone)
        if first == 0 and last == len(starts) and not left[0]:
            self._forget(number)
        else:
            starts, ends = self._own(number)
            starts[first:last], ends[first:last] = left
        self.count += sum(left[1]) - sum(left[0]) - (sum(old[1]) - sum(old[0]))

    def drop_below(self, offset: int) -> None:
        """Forget what lies before an offset. Cheap where there is nothing."""
        order = self._order
        if not order or order[0] << STRETCH_BITS >= offset:
            return
        whole = bisect_left(order, offset >> STRETCH_BITS)
        for number in order[:whole]:
            starts, ends = self._stretches.pop(number)
            self._shared.discard(number)
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

    def stored_parts(self) -> Iterator[bytes | memoryview]:
        """For each stretch its number, how many ranges it has, and their starts and ends; all numbers
        little-endian, so that they are neither converted nor copied on nearly all machines."""
        for number in self._order:
            starts, ends = self._stretches[number]
            yield _HEAD.pack(number, len(starts))
            yield _stored(starts)
            yield _stored(ends)

    @property
    def stored_size(self) -> int:
        """The bytes of all these parts."""
        return _HEAD.size * len(self._order) + 2 * _NUMBER_BYTES * self.ranges

    def to_bytes(self) -> bytes:
        return b"".join(self.stored_parts())

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


def _difference(of: _Stretch, without: _Stretch) -> _Stretch:
    """The ranges of a stretch without what lies in those of another."""
    starts, ends = array("I"), array("I")
    gone = zip(*without, strict=True)
    out, out_end = next(gone)
    for low, high in zip(*of, strict=True):
        while out_end <= low:
            out, out_end = next(gone, (STRETCH, STRETCH + 1))
        while out < high:
            if low < out:
                starts.append(low)
                ends.append(out)
            low = out_end
            if low >= high:
                break
            out, out_end = next(gone, (STRETCH, STRETCH + 1))
        if low < high:
            starts.append(low)
            ends.append(high)
    return starts, ends


def _stored(numbers: array[int]) -> memoryview:
    assert numbers.itemsize == _NUMBER_BYTES
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return memoryview(numbers).cast("B")


def _read(data: memoryview) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
