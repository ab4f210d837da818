"""The parts of the consumer that decide without a broker: assignors, fetch sessions, the queue."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer.group.assignors import (
    ASSIGNORS,
    Member,
    assign_cooperatively,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from ottla.client.consumer.partitions import ReadPartition, ReadyQueue, Result
from ottla.client.consumer.rows import RowsLayout
from ottla.client.consumer.sessions import FetchSession, Wanted
from ottla.client.positions import TopicPartition
from ottla.protocol.messages.fetch import FetchRequest


def parts(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def member(name: str, *topics: str, **others: object) -> Member:
    return Member(name, frozenset(topics), **others)  # type: ignore[arg-type]


def test_range_gives_the_first_members_more() -> None:
    shares = assign_range(
        [member("b", "t"), member("a", "t", "u"), member("c", "t")], {"t": 7, "u": 2}
    )
    assert shares == {
        "a": parts("t", 0, 1, 2) | parts("u", 0, 1),
        "b": parts("t", 3, 4),
        "c": parts("t", 5, 6),
    }


def test_static_members_come_before_others_by_their_names() -> None:
    members = [member("a", "t"), member("z", "t", instance_id="first")]
    assert assign_range(members, {"t": 2}) == {"z": parts("t", 0), "a": parts("t", 1)}


def test_round_robin_goes_through_all_topics() -> None:
    shares = assign_round_robin(
        [member("a", "t", "u"), member("b", "t", "u"), member("c", "u")], {"u": 2, "t": 3}
    )
    # In turn: t-0 a, t-1 b, t-2 a (c does not subscribe), u-0 b, u-1 c.
    assert shares["a"] == parts("t", 0, 2)
    assert shares["b"] == parts("t", 1) | parts("u", 0)
    assert shares["c"] == parts("u", 1)


def test_sticky_keeps_what_is_owned_and_moves_the_least() -> None:
    owned = frozenset(parts("t", 0, 1, 2, 3))
    members = [member("a", "t", owned=owned, generation=1), member("b", "t")]
    shares = assign_sticky(members, {"t": 4})
    assert len(shares["a"]) == len(shares["b"]) == 2
    cooperative = assign_cooperatively(members, {"t": 4})
    assert cooperative["a"] == shares["a"]
    assert cooperative["b"] == set()  # only when a has given them up


def test_an_outdated_claim_gives_way() -> None:
    both = frozenset(parts("t", 0))
    members = [
        member("a", "t", owned=both, generation=1),
        member("b", "t", owned=both, generation=2),
    ]
    assert assign_sticky(members, {"t": 1}) == {"a": set(), "b": parts("t", 0)}


@given(
    st.lists(st.sets(st.sampled_from("tuv"), min_size=1), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.integers(1, 7), min_size=1),
    st.randoms(use_true_random=False),
    st.sampled_from(sorted(ASSIGNORS)),
)
def test_every_assignor_gives_each_partition_to_one_who_wants_it(
    subscriptions: list[set[str]], topics: dict[str, int], dice: object, name: str
) -> None:
    everything = [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count)]
    members = [
        Member(
            f"m{index}",
            frozenset(wanted),
            frozenset(dice.sample(everything, dice.randrange(len(everything) + 1))),  # type: ignore[attr-defined]
            dice.randrange(3),  # type: ignore[attr-defined]
        )
        for index, wanted in enumerate(subscriptions)
    ]
    shares = ASSIGNORS[name](members, topics)
    given_out = [partition for share in shares.values() for partition in share]
    assert len(given_out) == len(set(given_out))
    for each in members:
        assert {partition.topic for partition in shares[each.member_id]} <= each.topics
    wanted = {
        partition for partition in everything if any(partition.topic in m.topics for m in members)
    }
    if name != "cooperative-sticky":  # which holds back what has to change hands
        assert set(given_out) == wanted
    if name == "sticky" and len(set(map(frozenset, subscriptions))) == 1:
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1


def test_a_cooperative_group_settles() -> None:
    """Rebalance upon rebalance, with what each has in hand, until nobody has to give anything up."""
    topics = {"t": 7}
    shares: dict[str, set[TopicPartition]] = {"a": parts("t", *range(7)), "b": set(), "c": set()}
    for generation in range(1, 5):
        members = [
            Member(name, frozenset("t"), frozenset(share), generation)
            for name, share in shares.items()
        ]
        after = assign_cooperatively(members, topics)
        for name, share in after.items():
            others = set().union(*(shares[other] for other in shares if other != name))
            assert not share & others, "taken from somebody who still has it"
        settled = after == shares
        shares = after
        if settled:
            break
    else:
        pytest.fail("it did not settle")
    assert sorted(map(len, shares.values())) == [2, 2, 3]


def filled(session: FetchSession, wanted: dict[TopicPartition, Wanted]) -> FetchRequest:
    request = FetchRequest()
    session.fill(request, wanted, 17)
    return request


def test_sessions_send_what_has_changed() -> None:
    session = FetchSession()
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    want = Wanted(5, 100, 0, b"i" * 16)
    first = filled(session, {a: want, b: want})
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert [part.partition for part in first.topics[0].partitions] == [0, 1]
    session.answered(77)
    second = filled(session, {a: want._replace(offset=6), b: want})
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert [part.partition for part in second.topics[0].partitions] == [0]
    assert not second.forgotten_topics_data
    session.answered(77)
    third = filled(session, {a: want._replace(offset=6)})
    assert third.session_epoch == 2
    assert not third.topics
    assert third.forgotten_topics_data[0].partitions == [1]
    session.reset()
    assert len(filled(session, {a: want}).topics) == 1


def test_sessions_forget_a_topic_that_was_made_anew() -> None:
    session = FetchSession()
    a = TopicPartition("t", 0)
    filled(session, {a: Wanted(0, 1, 0, b"1" * 16)})
    session.answered(5)
    request = filled(session, {a: Wanted(0, 1, 0, b"2" * 16)})
    assert request.forgotten_topics_data[0].topic_id == b"1" * 16
    assert request.topics[0].topic_id == b"2" * 16


async def test_results_of_an_older_turn_are_dropped() -> None:
    queue = ReadyQueue(100)
    state = ReadPartition(TopicPartition("t", 0), 0, 0)
    other = ReadPartition(TopicPartition("t", 1), 0, 0)
    for source in (state, other, state):
        queue.occupy(10)
        queue.put(Result(source, source.turn, None, 1, -1, 10))
    state.begin_turn(50)
    other.paused = True
    assert queue.take() is None
    assert (queue.occupied, state.waiting, other.waiting) == (10, 0, 1)
    other.paused = False
    taken = queue.take()
    assert taken is not None
    assert taken.source is other
    assert queue.occupied == 0


def test_layouts_of_rows() -> None:
    layout = RowsLayout(["value", "topic"])
    rows = pa.record_batch({"value": pa.array([b"a", b"b"])})
    complete = layout.complete(rows, TopicPartition("orders", 3))
    assert complete.to_pylist() == [
        {"value": b"a", "topic": "orders"},
        {"value": b"b", "topic": "orders"},
    ]
    assert RowsLayout(["partition"]).decoded.columns == ("offset",)
    with pytest.raises(ValueError, match="columns are some of"):
        RowsLayout(["nothing"])
