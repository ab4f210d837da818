"""The broker's assignors: what they promise, and Kafka's answers to the same questions.

Of `range` the answer is the same. Of `uniform` several are right: ours has shares of the same sizes
and moves as little.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
from groups_kit.assignments import (
    Assignment,
    Group,
    Recorded,
    assert_complete,
    lives,
    loads,
    moved,
    recorded,
    topic_id,
    unfairness,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.groups.assignors import ASSIGNORS, MemberSubscription

TOPICS = st.dictionaries(st.integers(1, 6).map(topic_id), st.integers(0, 9), max_size=5)
NAMES = st.sampled_from("abcdefgh")


@st.composite
def groups(draw: st.DrawFn, alike: bool | None = None) -> Group:
    """Any group, with whatever is left over from before: what is gone, grown, or owned twice."""
    group = Group(draw(TOPICS))
    ids = st.frozensets(st.integers(1, 7).map(topic_id), max_size=5)
    same = draw(ids) if alike or (alike is None and draw(st.booleans())) else None
    assigned = st.dictionaries(
        st.integers(1, 7).map(topic_id), st.frozensets(st.integers(0, 10), min_size=1), max_size=4
    )
    for name in draw(st.sets(NAMES, max_size=8)):
        instance = draw(st.none() | st.just(f"i-{name}"))
        group.join(name, same if same is not None else draw(ids), draw(assigned), instance)
    return group


def of_other_order(group: Group, seed: int) -> Group:
    chance = random.Random(seed)
    members, topics = list(group.members.items()), list(group.topics.items())
    chance.shuffle(members)
    chance.shuffle(topics)
    return Group(dict(topics), dict(members))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups(), seed=st.integers(0, 99))
def test_every_partition_has_one_owner(name: str, group: Group, seed: int) -> None:
    assignment = group.assign(name)
    assert_complete(group, assignment)
    assert of_other_order(group, seed).assign(name) == assignment


@given(group=groups())
def test_uniform_is_fair(group: Group) -> None:
    assert unfairness(group, group.assign("uniform")) <= 1


@given(group=groups())
def test_uniform_leaves_what_is_fair_alone(group: Group) -> None:
    first = group.assign("uniform")
    group.take(first)
    assert group.assign("uniform") == first


@given(group=groups(alike=True))
def test_uniform_moves_the_least_when_subscriptions_are_alike(group: Group) -> None:
    before = group.assign("uniform")
    group.take(before)
    count = len(group.members)
    if not count:
        return
    # One comes: the others give up what is its share, and nothing else.
    topics = next(iter(group.members.values())).topic_ids
    group.join("z", topics)
    after = group.assign("uniform")
    assert moved(group, after) == loads(after)["z"]
    # It leaves again: everybody keeps what it has.
    group.take(after)
    del group.members["z"]
    assert moved(group, group.assign("uniform")) == 0


@given(group=groups())
def test_uniform_moves_nothing_when_a_member_leaves(group: Group) -> None:
    group.take(group.assign("uniform"))
    if not group.members:
        return
    del group.members[min(group.members)]
    after = group.assign("uniform")
    if are_alike(group):
        assert moved(group, after) == 0
    assert unfairness(group, after) <= 1


def test_uniform_spreads_each_topic() -> None:
    """Not one member all of one topic, though its share would be equal."""
    group = Group({topic_id(1): 4, topic_id(2): 4})
    group.join("a", frozenset(group.topics))
    group.take(group.assign("uniform"))
    group.join("b", frozenset(group.topics))
    for partitions in group.assign("uniform").values():
        assert [len(numbers) for numbers in partitions.values()] == [2, 2]


def test_uniform_follows_a_chain_of_subscriptions() -> None:
    """Only when b has given to c can it take from a."""
    group = Group({topic_id(1): 8, topic_id(2): 4})
    left, right = frozenset([topic_id(1)]), frozenset([topic_id(2)])
    group.join("a", left, {topic_id(1): frozenset(range(8))})
    group.join("b", left | right, {topic_id(2): frozenset(range(4))})
    group.join("c", right)
    assert loads(group.assign("uniform")) == {"a": 5, "b": 4, "c": 3}


def test_range_gives_the_same_numbers_of_like_topics() -> None:
    group = Group({topic_id(1): 7, topic_id(2): 7})
    for name in "abc":
        group.join(name, frozenset(group.topics))
    assignment = group.assign("range")
    for partitions in assignment.values():
        assert partitions[topic_id(1)] == partitions[topic_id(2)]
    assert [sorted(assignment[name][topic_id(1)]) for name in "abc"] == [[0, 1, 2], [3, 4], [5, 6]]


def test_range_puts_static_members_first() -> None:
    group = Group({topic_id(1): 3})
    topics = frozenset(group.topics)
    group.join("a", topics)
    group.join("z-of-this-start", topics, instance="one")
    group.join("y-of-this-start", topics, instance="two")
    assert group.assign("range") == {
        "z-of-this-start": {topic_id(1): {0}},
        "y-of-this-start": {topic_id(1): {1}},
        "a": {topic_id(1): {2}},
    }


@cache
def kafkas() -> list[Recorded]:
    return list(recorded())


def test_the_record_is_worth_comparing_with() -> None:
    groups = [each.group for each in kafkas()]
    assert len(groups) >= 200
    assert 50 < sum(map(are_alike, groups)) < len(groups) - 50
    assert sum(any(m.assigned for m in g.members.values()) for g in groups) > 150


def test_range_answers_as_kafka() -> None:
    for each in kafkas():
        assert each.group.assign("range") == each.answers["range"]


def test_uniform_is_as_good_as_kafkas_when_subscriptions_are_alike() -> None:
    for group, ours, theirs in answers(alike=True):
        assert sorted(loads(ours).values()) == sorted(loads(theirs).values())
        assert moved(group, ours) <= moved(group, theirs)


def test_uniform_is_as_good_as_kafkas_when_subscriptions_differ() -> None:
    """Here both stop where no single move helps, which is not one place: sums are compared."""
    pairs = answers(alike=False)
    for group, ours, theirs in pairs:
        assert unfairness(group, ours) <= max(1, unfairness(group, theirs))
    assert sum(moved(group, ours) for group, ours, _ in pairs) <= sum(
        moved(group, theirs) for group, _, theirs in pairs
    )
    inequality = sum(squares(ours) for _, ours, _ in pairs)
    assert inequality <= 1.001 * sum(squares(theirs) for _, _, theirs in pairs)


def answers(alike: bool) -> list[tuple[Group, Assignment, Assignment]]:
    """Groups with our answer and Kafka's."""
    return [
        (each.group, each.group.assign("uniform"), each.answers["uniform"])
        for each in kafkas()
        if are_alike(each.group) == alike
    ]


def are_alike(group: Group) -> bool:
    return len({member.topic_ids for member in group.members.values()}) == 1


def squares(assignment: Assignment) -> int:
    return sum(load * load for load in loads(assignment).values())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_long_life(seed: int) -> None:
    for group in lives(seed, histories=2, length=25):
        assignment = group.assign("uniform")
        assert_complete(group, assignment)
        assert unfairness(group, assignment) <= 1


def test_a_thousand_members() -> None:
    """Large enough that an algorithm of the wrong order would run into the time limit."""
    topics = {topic_id(number): 100 for number in range(100)}
    everything = frozenset(topics)
    members = {f"{number:04}": MemberSubscription(everything, {}) for number in range(1_000)}
    group = Group(topics, members)
    for name in ASSIGNORS:
        assert_complete(group, group.assign(name))
