"""A set of offsets against a plain set of numbers."""

from __future__ import annotations

import random

import pytest

from ottla.record.offset_set import STRETCH, OffsetSet


def members(offsets: OffsetSet) -> set[int]:
    return {each for start, end in offsets for each in range(start, end)}


def ranges_of(numbers: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if found and found[-1][1] == each:
            found[-1] = found[-1][0], each + 1
        else:
            found.append((each, each + 1))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_as_a_plain_set(seed: int) -> None:
    chosen = random.Random(seed)
    # Around the border of two stretches, and at the beginning.
    base = chosen.choice((0, STRETCH - 40, 7 * STRETCH - 40))
    offsets = OffsetSet()
    plain: set[int] = set()
    for _ in range(200):
        start = base + chosen.randrange(80)
        end = start + chosen.choice((0, 1, 1, 2, 5, 20))
        if chosen.random() < 0.6:
            offsets.add(start, end)
            plain |= set(range(start, end))
        else:
            offsets.discard(start, end)
            plain -= set(range(start, end))
        assert members(offsets) == plain
        assert offsets.count == len(plain)
        assert bool(offsets) == bool(plain)
        low, high = sorted((base + chosen.randrange(100), base + chosen.randrange(100)))
        within = {each for each in plain if low <= each < high}
        assert offsets.between(low, high) == ranges_of(within)
        assert offsets.first_in(low, high) == min(within, default=None)
        out = low
        while out in plain:
            out += 1
        assert offsets.first_out(low) == out
        assert (low in offsets) == (low in plain)
        copy = OffsetSet.from_bytes(offsets.to_bytes())
        assert members(copy) == plain
        assert copy.count == len(plain)
    middle = base + 40
    offsets.drop_below(middle)
    assert members(offsets) == {each for each in plain if each >= middle}
    assert offsets.count == len(members(offsets))


def test_a_long_range_is_one_range_of_each_stretch() -> None:
    offsets = OffsetSet([(5, 3 * STRETCH + 5)])
    assert (offsets.count, offsets.ranges) == (3 * STRETCH, 4)
    assert offsets.first_out(6) == 3 * STRETCH + 5
    assert offsets.between(0, 1 << 40) == [(5, 3 * STRETCH + 5)]


def test_a_million_single_offsets_cost_eight_bytes_each() -> None:
    offsets = OffsetSet()
    for each in range(0, 2_000_000, 2):
        offsets.add(each, each + 1)
    assert offsets.ranges == 1_000_000
    assert len(offsets.to_bytes()) < 8.1 * 1_000_000


@pytest.mark.parametrize("cut", [1, 5, 13])
def test_damage(cut: int) -> None:
    stored = OffsetSet([(3, 4), (STRETCH + 1, STRETCH + 9)]).to_bytes()
    with pytest.raises(ValueError, match="set of offsets"):
        OffsetSet.from_bytes(stored[:-cut])
    with pytest.raises(ValueError, match="out of order"):
        OffsetSet.from_bytes(stored + stored)


@pytest.mark.parametrize("seed", range(20))
def test_parts_copies_and_many_at_once(seed: int) -> None:
    """What is cut out of a set, and its copies, do not change with it."""
    chosen = random.Random(seed)
    base = chosen.choice((0, STRETCH - 40, 7 * STRETCH - 40))
    offsets = OffsetSet()
    plain: set[int] = set()
    others: list[tuple[OffsetSet, set[int]]] = []
    for _ in range(100):
        some = {base + chosen.randrange(90) for _ in range(chosen.randrange(30))}
        low, high = sorted((base + chosen.randrange(100), base + chosen.randrange(100)))
        match chosen.randrange(6):
            case 0 | 1:
                offsets.add_all(ranges_of(some))
                plain |= some
            case 2:
                offsets.subtract(OffsetSet(ranges_of(some)))
                plain -= some
            case 3:
                part = offsets.within(low, high)
                of_part = {each for each in plain if low <= each < high}
                assert offsets.ranges_in(low, high) == part.ranges
                others.append((part, of_part))
                if chosen.random() < 0.5:
                    offsets.subtract(part)
                    plain -= of_part
            case 4:
                others.append((offsets.copy(), set(plain)))
            case _ if others:
                other, of_other = chosen.choice(others)
                other.add(low, high)
                of_other |= set(range(low, high))
        for each, of_each in [(offsets, plain), *others]:
            assert members(each) == of_each
            assert each.count == len(of_each)
            assert OffsetSet(ranges_of(of_each)) == each  # neighbours are together
        assert len(offsets.to_bytes()) == offsets.stored_size
