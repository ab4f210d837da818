"""Moves of partitions: how they begin, are replaced, end and are taken back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ottla.cluster.decisions import brokers, elections, moves, partitions
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.decisions.partitions import WantedIsr
from ottla.cluster.decisions.topics import MorePartitions, create_partitions
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    Endpoint,
    Partition,
    RegisteredBroker,
    Topic,
)
from ottla.protocol.errors import ErrorCode

TOPIC_ID = b"t" * 16
ENDPOINTS = (Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),)
ONE = ElectionPolicy(min_isr=1)
TWO = ElectionPolicy(min_isr=2)
ALL = frozenset(range(1, 7))


def state(
    replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] | None = None, leader: int = 1
) -> Partition:
    return Partition(0, replicas, replicas if isr is None else isr, leader, 5, 9)


def draft_of(partition: Partition, alive: frozenset[int] = ALL) -> Draft:
    topic = Topic("t", TOPIC_ID, (partition,))
    known = {each: RegisteredBroker(each, 10 * each, None, ENDPOINTS) for each in ALL}
    return Draft(
        ClusterImage(
            "some cluster",
            version=1,
            brokers={each: known[each] for each in alive},
            fenced={each: known[each] for each in ALL - alive},
            topics={"t": topic},
            topics_by_id={TOPIC_ID: topic},
        )
    )


def now(draft: Draft) -> Partition:
    return draft.topics["t"].partitions[0]


def move(
    draft: Draft,
    replicas: tuple[int, ...] | None,
    policy: ElectionPolicy = TWO,
    *,
    may_change_factor: bool = True,
) -> ErrorCode:
    (result,) = moves.alter_moves(
        draft,
        [WantedMove("t", 0, replicas)],
        lambda _: policy,
        may_change_factor=may_change_factor,
    )
    return ErrorCode.NONE if result.error is None else result.error.code


def join(draft: Draft, *members: int, policy: ElectionPolicy = TWO) -> Partition:
    """The leader asks that these be in sync beside those that are."""
    before = now(draft)
    isr = [*before.isr, *members]
    wanted = WantedIsr(
        TOPIC_ID, 0, before.leader_epoch, before.partition_epoch, [(each, -1) for each in isr]
    )
    (result,) = partitions.alter_isr(
        draft, before.leader, 10 * before.leader, [wanted], lambda _: policy
    )
    assert result.error is ErrorCode.NONE
    assert result.state == now(draft)
    return now(draft)


def test_a_move_adds_first_and_drops_when_all_have_joined() -> None:
    draft = draft_of(state())
    assert move(draft, (4, 5, 3)) is ErrorCode.NONE
    begun = now(draft)
    assert begun.replicas == (4, 5, 3, 1, 2)
    assert (begun.adding, begun.removing) == ((4, 5), (1, 2))
    assert (begun.isr, begun.leader, begun.leader_epoch) == ((3, 1, 2), 1, 5)
    halfway = join(draft, 4)
    assert (halfway.adding, halfway.removing) == ((4, 5), (1, 2))
    ended = join(draft, 5)
    assert (ended.replicas, ended.isr) == ((4, 5, 3), (4, 5, 3))
    assert (ended.adding, ended.removing) == ((), ())
    # The leader was to go: the first of the target leads, in a new epoch.
    assert (ended.leader, ended.leader_epoch) == (4, 6)


def test_a_leader_that_stays_enters_a_new_epoch_when_others_are_dropped() -> None:
    """What a dropped replica had fetched must not count for it should it come back without its log."""
    draft = draft_of(state())
    move(draft, (1, 2, 4))
    ended = join(draft, 4)
    assert (ended.replicas, ended.leader, ended.leader_epoch) == ((1, 2, 4), 1, 6)


def test_replicas_that_are_only_dropped_go_at_once() -> None:
    draft = draft_of(state())
    move(draft, (2, 3))
    assert now(draft).replicas == (2, 3)
    assert (now(draft).isr, now(draft).leader) == ((2, 3), 2)


def test_nobody_is_dropped_while_too_few_of_the_target_are_in_sync() -> None:
    draft = draft_of(state(isr=(1, 2)))
    move(draft, (1, 3))
    assert now(draft).removing == (2,)
    assert now(draft).isr == (1, 2)
    ended = join(draft, 3)
    assert (ended.replicas, ended.isr) == ((1, 3), (1, 3))


def test_one_of_the_target_that_is_away_is_not_waited_for() -> None:
    draft = draft_of(state(isr=(1, 2)), ALL - {3})
    move(draft, (1, 4, 3))
    ended = join(draft, 4)
    assert (ended.replicas, ended.isr) == ((1, 4, 3), (1, 4))


def test_one_that_lags_is_waited_for_until_it_dies() -> None:
    draft = draft_of(state(isr=(1, 2)))
    move(draft, (1, 4, 3))
    assert now(draft).removing == (2,)
    assert join(draft, 4).removing == (2,)
    brokers.fence(draft, 3, policy_of=lambda _: TWO)
    moves.end_moves(draft, list(draft.topics.values()), lambda _: TWO)
    assert now(draft).replicas == (1, 4, 3)


def test_only_the_order_changes() -> None:
    draft = draft_of(state())
    move(draft, (3, 1, 2))
    assert now(draft).replicas == (3, 1, 2)
    assert not moves.is_moving(now(draft))
    assert (now(draft).leader, now(draft).leader_epoch, now(draft).partition_epoch) == (1, 5, 10)


@pytest.mark.parametrize("target", [(4, 5, 6), (1, 2)])
def test_partitions_that_are_added_during_a_move_have_as_many_replicas_as_its_target(
    target: tuple[int, ...],
) -> None:
    draft = draft_of(state(isr=(1,)))
    move(draft, target)
    assert now(draft).removing
    (grown,) = create_partitions(draft, [MorePartitions("t", 3)], Random(1))
    assert grown.error is None
    assert [len(each.replicas) for each in draft.topics["t"].partitions[1:]] == [len(target)] * 2


def test_the_same_replicas_are_no_change() -> None:
    draft = draft_of(state())
    assert move(draft, (1, 2, 3)) is ErrorCode.NONE
    assert not draft.is_changed


def test_a_move_is_taken_back() -> None:
    draft = draft_of(state())
    move(draft, (4, 5, 3))
    join(draft, 4)
    assert move(draft, None) is ErrorCode.NONE
    assert set(now(draft).replicas) == {1, 2, 3}
    assert set(now(draft).isr) == {1, 2, 3}
    assert not moves.is_moving(now(draft))
    assert now(draft).leader_epoch == 6  # one was dropped
    assert move(draft, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_is_taken_back_although_a_new_replica_leads() -> None:
    draft = draft_of(state((1, 2)))
    move(draft, (3, 4), TWO)
    join(draft, 3)
    brokers.fence(draft, 1, policy_of=lambda _: TWO)
    led_by_new = replace(now(draft), leader=3)
    draft.put_topics([replace(draft.topics["t"], partitions=(led_by_new,))])
    # Of those before only one is in sync, and two have to be: the new one stays until they are.
    assert move(draft, None) is ErrorCode.NONE
    assert (now(draft).replicas, now(draft).removing) == ((1, 2, 3), (3,))
    assert now(draft).leader == 3


def test_a_second_move_takes_the_place_of_the_first() -> None:
    draft = draft_of(state())
    move(draft, (4, 5, 3))
    join(draft, 4)
    move(draft, (5, 6, 3))
    second = now(draft)
    # 4 was on its way in, and is not wanted any more.
    assert second.replicas == (5, 6, 3, 1, 2)
    assert (second.adding, second.removing) == ((5, 6), (1, 2))
    assert 4 not in second.isr
    ended = join(draft, 5, 6)
    assert ended.replicas == (5, 6, 3)


def test_one_that_alone_is_in_sync_stays_until_the_second_move_ends() -> None:
    draft = draft_of(state((1,)), ALL)
    move(draft, (2, 3))
    join(draft, 2)
    without_first = replace(now(draft), isr=(2,), leader=2)
    draft.put_topics([replace(draft.topics["t"], partitions=(without_first,))])
    move(draft, (4,))
    assert now(draft).replicas == (4, 1, 2)
    assert (now(draft).adding, now(draft).removing) == ((4,), (1, 2))
    assert (now(draft).leader, now(draft).isr) == (2, (2,))
    assert join(draft, 4).replicas == (4,)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 99), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_refusals(target: tuple[int, ...] | None, code: ErrorCode) -> None:
    draft = draft_of(state())
    assert move(draft, target) is code
    assert not draft.is_changed


def test_a_replica_of_a_broker_that_was_forgotten_is_in_nobodys_way() -> None:
    """Brokers 2 and 3 are gone, and there is but one to take the place of a replica."""
    draft = draft_of(state(isr=(1,)), frozenset({1, 4}))
    brokers.unregister_broker(draft, 3)
    assert move(draft, (1, 4, 3), ONE) is ErrorCode.NONE
    assert join(draft, 4, policy=ONE).replicas == (1, 4, 3)


def lose(draft: Draft, broker: int, policy: ElectionPolicy = TWO) -> Partition:
    """A broker dies, and is forgotten."""
    brokers.fence(draft, broker, policy_of=lambda _: policy)
    brokers.unregister_broker(draft, broker)
    moves.move_without_forgotten(draft, lambda _: policy)
    return now(draft)


@pytest.mark.parametrize("target", [(4, 2, 3), (1, 2, 3, 4), (4,)])
def test_a_move_is_taken_back_when_its_only_newcomer_is_forgotten(target: tuple[int, ...]) -> None:
    draft = draft_of(state())
    move(draft, target)
    after = lose(draft, 4)
    assert sorted(after.replicas) == sorted(after.isr) == [1, 2, 3]
    assert (after.adding, after.removing, after.leader) == ((), (), 1)


def test_a_move_goes_on_with_the_newcomers_that_are_left() -> None:
    """As many replicas as it was to end with: one that was to go stays, one that is in sync."""
    draft = draft_of(state(isr=(2, 3), leader=2))
    move(draft, (4, 5, 3))
    after = lose(draft, 4)
    assert after.replicas == (2, 5, 3, 1)
    assert (after.adding, after.removing) == ((5,), (1,))
    assert (set(after.isr), after.leader) == ({2, 3}, 2)
    assert join(draft, 5).replicas == (2, 5, 3)


def test_newcomers_that_have_joined_are_kept_when_another_is_forgotten() -> None:
    draft = draft_of(state((1,)))
    move(draft, (1, 2, 3))
    join(draft, 2)
    after = lose(draft, 3)
    assert (after.replicas, after.isr) == ((1, 2), (1, 2))
    assert (after.adding, after.removing) == ((), ())


def test_a_newcomer_that_may_alone_have_all_records_stays_when_it_is_forgotten() -> None:
    """It is not waited for: it goes once the replica that there was before is in sync."""
    draft = draft_of(state((1,)))
    move(draft, (2, 3))
    join(draft, 2, policy=TWO)
    brokers.fence(draft, 1, policy_of=lambda _: TWO)
    after = lose(draft, 2)
    assert 2 in after.elr
    assert (after.adding, after.removing) == ((3,), (1, 2))


@pytest.mark.parametrize(
    ("target", "adding", "replicas"),
    [((4, 5, 3), (), {1, 2, 3}), ((4, 5, 6), (6,), {1, 2, 6})],
)
def test_a_move_that_several_forgotten_brokers_held_up(
    target: tuple[int, ...], adding: tuple[int, ...], replicas: set[int]
) -> None:
    """They were forgotten at a time when moves were left as they were."""
    draft = draft_of(state(isr=(1, 2)))
    move(draft, target)
    for each in (4, 5):
        brokers.fence(draft, each, policy_of=lambda _: TWO)
        brokers.unregister_broker(draft, each)
    moves.move_without_forgotten(draft, lambda _: TWO)
    after = now(draft)
    assert after.adding == adding
    assert set(after.replicas) - set(after.removing) == replicas
    assert (set(after.isr), after.leader) == ({1, 2}, 1)


def test_a_move_waits_for_brokers_that_are_away() -> None:
    draft = draft_of(state())
    move(draft, (4, 2, 3))
    brokers.fence(draft, 4, policy_of=lambda _: TWO)
    before = now(draft)
    moves.move_without_forgotten(draft, lambda _: TWO)
    assert now(draft) is before


def test_moves_elsewhere_are_left_when_a_broker_is_forgotten() -> None:
    draft = draft_of(state(isr=(1, 2)))
    move(draft, (1, 4, 3))
    before = now(draft)
    assert lose(draft, 6) is before
    assert lose(draft, 3) is before


def test_unknown_partitions() -> None:
    draft = draft_of(state())
    wanted = [WantedMove("nobody", 0, (1,)), WantedMove("t", 1, (1,)), WantedMove("t", -1, None)]
    results = moves.alter_moves(draft, wanted, lambda _: TWO)
    assert [each.error is not None and each.error.code for each in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ] * 3
    assert not draft.is_changed


def test_the_number_of_replicas_may_be_held() -> None:
    draft = draft_of(state())
    assert move(draft, (4, 5), may_change_factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(draft, (4, 5, 6), may_change_factor=False) is ErrorCode.NONE
    # Of the move under way the replicas before it count.
    assert move(draft, (1, 4), may_change_factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(draft, (1, 2, 4), may_change_factor=False) is ErrorCode.NONE


def test_those_on_their_way_in_need_not_be_in_sync() -> None:
    """One replica, of a topic that wants two in sync: it goes on alone until the others have joined."""
    draft = draft_of(state((1,)))
    move(draft, (1, 2, 3))
    assert now(draft).fewest_in_sync(2) == 1
    join(draft, 2)
    assert now(draft).fewest_in_sync(2) == 1
    assert join(draft, 3).fewest_in_sync(2) == 2


def test_an_unclean_election_takes_one_that_had_the_log_before() -> None:
    moving = replace(state((4, 1), isr=(), leader=NO_LEADER), adding=(4,))
    led = elections.elected(moving, ALL, ElectionPolicy(1, unclean=True))
    assert led.leader == 1


def test_a_policy_that_asks_for_less_ends_a_move() -> None:
    draft = draft_of(state(isr=(1, 2)), ALL - {3})
    move(draft, (1, 3), TWO)
    assert moves.is_moving(now(draft))
    moves.end_moves(draft, list(draft.topics.values()), lambda _: ONE)
    assert (now(draft).replicas, now(draft).isr) == ((1, 3), (1,))
