"""How much a micro-batch takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.client.positions import TopicPartition
from pyspark_ottla.limits import TriggerDelay, at_most, waiting

A, B, C = (TopicPartition("orders", number) for number in range(3))

offsets = st.integers(0, 10**12)
PARTITIONS = st.dictionaries(
    st.integers(0, 5).map(lambda number: TopicPartition("orders", number)),
    st.tuples(offsets, offsets),
)


def test_shares_are_in_proportion() -> None:
    start = {A: 0, B: 100, C: 7}
    assert at_most(40, start, {A: 300, B: 200, C: 7}) == {A: 30, B: 110, C: 7}
    assert at_most(1000, start, {A: 300, B: 200, C: 7}) == {A: 300, B: 200, C: 7}
    # A small partition is not starved.
    assert at_most(10, start, {A: 1_000_000, B: 101, C: 7}) == {A: 9, B: 101, C: 7}


def test_what_ends_before_it_begins_is_left_as_it_is() -> None:
    assert waiting({A: 10, B: 0}, {A: 5, B: 3}) == {B: 3}
    assert at_most(2, {A: 10, B: 0}, {A: 5, B: 3}) == {A: 5, B: 2}


@given(PARTITIONS, st.integers(1, 10**9))
def test_a_query_gets_on_and_never_too_far(
    partitions: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    start = {each: min(pair) for each, pair in partitions.items()}
    end = {each: max(pair) for each, pair in partitions.items()}
    limited = at_most(most, start, end)
    assert limited.keys() == end.keys()
    for each, offset in limited.items():
        assert start[each] <= offset <= end[each]
        # Each that has something gets something.
        assert offset > start[each] or start[each] == end[each]
    taken = sum(waiting(start, limited).values())
    assert taken <= most + len(end)


def test_batches_are_held_back() -> None:
    delay = TriggerDelay(least=10, longest=60)
    assert not delay.holds_back(0, now=1000)  # the first never is
    assert delay.holds_back(9, now=1059)
    assert not delay.holds_back(10, now=1059)
    assert delay.holds_back(9, now=1118)
    assert not delay.holds_back(9, now=1119)
