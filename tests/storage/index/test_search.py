"""The search in a sealed index: as a bisection, whatever the entries are spaced like."""

from __future__ import annotations

import struct
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.index.entries import Column

ENTRY = struct.Struct(">qi")
VALUES = Column("q", ENTRY.size)

evenly = st.tuples(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(0, 2000)).map(
    lambda each: [each[0] + each[1] * number for number in range(each[2])]
)
anyhow = st.lists(st.integers(0, 2**62), max_size=300, unique=True).map(sorted)
with_a_jump = st.tuples(evenly, evenly).map(lambda both: sorted({*both[0], *both[1]}))


@given(st.one_of(evenly, anyhow, with_a_jump), st.data())
def test_it_finds_what_a_bisection_finds(values: list[int], data: st.DataObject) -> None:
    view = memoryview(b"".join(ENTRY.pack(value, 7) for value in values))
    ends = VALUES.ends(view, len(values))
    near = data.draw(st.sampled_from(values)) if values else 0
    for target in (-1, 0, near - 1, near, near + 1, data.draw(st.integers(0, 2**62)), 2**63 - 1):
        found = VALUES.slot_above(view, len(values), target, ends)
        assert found == bisect_right(values, target)
