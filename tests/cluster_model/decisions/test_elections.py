"""Who leads, who is in sync, who is eligible: the rules of elections, brokers and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from ottla.cluster.decisions import brokers, elections, partitions
from ottla.cluster.decisions.elections import ElectionPolicy, PolicyOf
from ottla.cluster.decisions.partitions import ElectionType, IsrResult, WantedIsr
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    Endpoint,
    Partition,
    RegisteredBroker,
    Topic,
)
from ottla.protocol.errors import ErrorCode, ProtocolError

ONE = ElectionPolicy(min_isr=1)
TWO = ElectionPolicy(min_isr=2)
UNCLEAN = ElectionPolicy(min_isr=2, unclean=True)
ENDPOINTS = (Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),)
TOPIC_ID = b"t" * 16
ALL = (1, 2, 3)


def policy(wanted: ElectionPolicy) -> PolicyOf:
    return lambda _topic: wanted


def state(
    isr: tuple[int, ...] = ALL,
    leader: int = 1,
    elr: tuple[int, ...] = (),
    last: int = NO_LEADER,
    replicas: tuple[int, ...] = ALL,
) -> Partition:
    return Partition(0, replicas, isr, leader, 5, 9, elr=elr, last_known_leader=last)


def epochs(partition: Partition) -> tuple[int, int]:
    return partition.leader_epoch, partition.partition_epoch


def member(
    broker_id: int, epoch: int = 0, folder: str = "", leaving: bool = False
) -> RegisteredBroker:
    return RegisteredBroker(broker_id, epoch or 10 * broker_id, None, ENDPOINTS, folder, leaving)


def draft_of(
    *states: Partition,
    alive: tuple[RegisteredBroker, ...] = (),
    fenced: tuple[RegisteredBroker, ...] = (),
) -> Draft:
    """A draft with one topic. Without other words three brokers are alive, of epochs 10, 20, 30."""
    topic = Topic("t", TOPIC_ID, tuple(replace(each, index=at) for at, each in enumerate(states)))
    alive = alive or tuple(member(each) for each in ALL if each not in {one.id for one in fenced})
    image = ClusterImage(
        "some cluster",
        version=1,
        brokers={each.id: each for each in alive},
        fenced={each.id: each for each in fenced},
        topics={"t": topic},
        topics_by_id={TOPIC_ID: topic},
    )
    return Draft(image)


def of(draft: Draft, index: int = 0) -> Partition:
    partition = draft.topics["t"].partitions[index]
    assert draft.topics_by_id[TOPIC_ID] is draft.topics["t"]
    return partition


# A broker goes --------------------------------------------------------------------------------------


def test_the_next_in_sync_replica_in_the_order_of_assignment_leads() -> None:
    # Replica 3 stands first, but is not in sync; 2 comes before 1.
    before = state(isr=(1, 2, 4), leader=4, replicas=(3, 2, 1, 4))
    after = elections.without_broker(before, 4, {1, 2, 3}, ONE)
    assert (after.leader, after.isr, after.elr) == (2, (1, 2), ())
    assert epochs(after) == (6, 10)


def test_a_follower_that_goes_leaves_the_leader_and_its_epoch() -> None:
    after = elections.without_broker(state(), 3, {1, 2}, TWO)
    assert (after.leader, after.isr, epochs(after)) == (1, (1, 2), (5, 10))


def test_who_leaves_a_set_that_gets_too_small_stays_eligible() -> None:
    after = elections.without_broker(state(isr=(1, 2)), 1, {2, 3}, TWO)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    # Of a set that is still large enough nobody does: the high watermark goes on without it.
    assert elections.without_broker(state(), 1, {2, 3}, TWO).elr == ()
    # A topic with two replicas that wants three in sync is content with two.
    small = state(isr=(1, 2), replicas=(1, 2))
    assert elections.without_broker(small, 1, {2}, ElectionPolicy(3)).elr == (1,)
    alone = state(isr=(1,), replicas=(1,))
    assert elections.without_broker(alone, 1, set(), ElectionPolicy(3)).elr == (1,)


def test_the_last_one_in_sync_stays_eligible_and_nobody_else_leads() -> None:
    after = elections.without_broker(state(isr=(1,)), 1, {2, 3}, ONE)
    assert (after.leader, after.isr, after.elr) == (NO_LEADER, (), (1,))
    assert after.last_known_leader == 1
    assert epochs(after) == (6, 10)


def test_an_eligible_replica_leads_when_nobody_in_sync_is_alive() -> None:
    before = state(isr=(1,), elr=(2, 3))
    after = elections.without_broker(before, 1, {3}, TWO)
    assert (after.leader, after.isr, after.elr) == (3, (3,), (1, 2))
    assert after.last_known_leader == NO_LEADER
    # In the order of assignment, as always.
    assert elections.without_broker(before, 1, {2, 3}, TWO).leader == 2


def test_whoever_is_eligible_under_a_larger_minimum_is_not_under_a_smaller_one() -> None:
    # The minimum was 2 and is 1 now: the leader alone has moved the high watermark on.
    before = state(isr=(1,), elr=(2,))
    after = elections.without_broker(before, 1, {2, 3}, ONE)
    assert (after.leader, after.elr) == (NO_LEADER, (1,))
    # Neither does it lead while who is in sync is alive and leaves.
    assert elections.elected(replace(before, leader=NO_LEADER), {2, 3}, ONE).leader == NO_LEADER


def test_unclean_elections_take_whoever_is_alive_and_forget_who_was_eligible() -> None:
    before = state(isr=(1,), elr=())
    assert elections.without_broker(before, 1, {3}, TWO).leader == NO_LEADER
    after = elections.without_broker(before, 1, {3}, UNCLEAN)
    assert (after.leader, after.isr, after.elr) == (3, (3,), ())
    # But not while somebody has everything.
    assert elections.without_broker(state(isr=(1,), elr=(3,)), 1, {2, 3}, UNCLEAN).leader == 3


def test_a_broker_that_lost_records_is_neither_in_sync_nor_eligible() -> None:
    after = elections.without_broker(state(isr=(1, 2)), 1, {2, 3}, TWO, lost_data=True)
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())
    after = elections.without_broker(
        state(isr=(2,), leader=2, elr=(1,)), 1, {2}, TWO, lost_data=True
    )
    assert (after.leader, after.isr, after.elr, epochs(after)) == (2, (2,), (), (5, 10))


def test_where_nobody_is_eligible_the_last_leader_is_the_best_that_is_left() -> None:
    gone = elections.without_broker(state(isr=(1,)), 1, set(), TWO, lost_data=True)
    assert (gone.isr, gone.elr, gone.last_known_leader) == ((), (), 1)
    assert elections.led_anew(gone, {2, 3}, TWO).leader == NO_LEADER
    back = elections.led_anew(gone, {1, 2, 3}, TWO)
    assert (back.leader, back.isr, back.last_known_leader) == (1, (1,), NO_LEADER)
    # While another is eligible the last leader waits for it.
    waiting = state(isr=(), leader=NO_LEADER, elr=(2,), last=1)
    assert elections.led_anew(waiting, {1, 3}, TWO) is waiting


# Elections ------------------------------------------------------------------------------------------


def test_nothing_changes_while_the_leader_is_alive_and_in_sync() -> None:
    before = state()
    assert elections.led_anew(before, {1, 2, 3}, TWO) is before
    assert elections.led_anew(replace(before, leader=2), {1, 2, 3}, TWO).leader == 2


def test_a_new_life_of_a_leader_gets_a_new_epoch() -> None:
    after = elections.led_anew(state(), {1, 2, 3}, TWO, new_epoch=True)
    assert (after.leader, epochs(after)) == (1, (6, 10))


def test_the_preferred_leader_leads_if_it_may() -> None:
    before = state(leader=2)
    after = elections.led_by_preferred(before, {1, 2})
    assert (after.leader, after.isr, epochs(after)) == (1, ALL, (6, 10))
    assert elections.led_by_preferred(before, {2, 3}) is before
    outside = state(leader=2, isr=(2, 3))
    assert elections.led_by_preferred(outside, {1, 2, 3}) is outside
    led = state()
    assert elections.led_by_preferred(led, {1}) is led


def test_another_in_sync_set_in_the_order_of_assignment() -> None:
    before = state(isr=(2,), leader=2, elr=(1,))
    after = elections.with_isr(before, [3, 2], TWO)
    assert (after.isr, after.elr, epochs(after)) == ((2, 3), (), (5, 10))
    shrunk = elections.with_isr(after, [2], TWO)
    assert (shrunk.isr, shrunk.elr, epochs(shrunk)) == ((2,), (3,), (5, 11))
    # Eligible replicas stay so while the set is too small, and only those that were in sync get so.
    again = elections.with_isr(state(isr=(2,), leader=2, elr=(1,)), [2], ElectionPolicy(3))
    assert again.elr == (1,)


def test_a_smaller_minimum_ends_eligibility() -> None:
    before = state(isr=(1,), elr=(2,))
    after = elections.with_policy(before, ONE)
    assert (after.elr, epochs(after)) == ((), (5, 10))
    assert elections.with_policy(before, TWO) is before
    assert elections.with_policy(before, ElectionPolicy(3)) is before


# Brokers come, go and leave -------------------------------------------------------------------------


def test_fencing_moves_leaders_and_leaves_other_partitions_alone() -> None:
    untouched = state(isr=(2, 3), leader=2)
    draft = draft_of(state(), untouched, state(leader=3))
    before = of(draft, 1)
    brokers.fence(draft, 1, policy_of=policy(TWO))
    assert of(draft, 0).leader == 2
    assert of(draft, 1) is before
    assert (of(draft, 2).leader, of(draft, 2).isr, of(draft, 2).leader_epoch) == (3, (2, 3), 5)
    assert (set(draft.brokers), set(draft.fenced)) == ({2, 3}, {1})


def test_leaders_do_not_move_to_a_broker_that_is_about_to_leave() -> None:
    alive = (member(1), member(2, leaving=True), member(3))
    draft = draft_of(state(), alive=alive)
    brokers.fence(draft, 1, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr) == (3, (2, 3))


def test_a_new_life_with_all_its_records_leads_on_in_a_new_epoch() -> None:
    draft = draft_of(state(), state(leader=2), state(isr=(2,), leader=2))
    followed, outside = of(draft, 1), of(draft, 2)
    brokers.take_in(draft, member(1, 99), lost_data=False, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr, epochs(of(draft))) == (1, ALL, (6, 10))
    assert of(draft, 1) is followed
    assert of(draft, 2) is outside
    assert draft.brokers[1].epoch == 99


def test_a_life_that_lost_records_leaves_every_set() -> None:
    draft = draft_of(state(), state(leader=2), state(isr=(2,), leader=2, elr=(1,)))
    brokers.take_in(draft, member(1, 99), lost_data=True, policy_of=policy(TWO))
    assert (of(draft, 0).leader, of(draft, 0).isr) == (2, (2, 3))
    assert (of(draft, 1).leader, of(draft, 1).isr, of(draft, 1).leader_epoch) == (2, (2, 3), 5)
    assert (of(draft, 2).isr, of(draft, 2).elr) == ((2,), ())


def test_another_folder_counts_as_lost_records() -> None:
    known = member(1, 10, "old disk")
    draft = draft_of(state(), alive=(known, member(2), member(3)))
    brokers.take_in(draft, member(1, 99, "new disk"), lost_data=False, policy_of=policy(TWO))
    assert of(draft).isr == (2, 3)
    fenced = draft_of(state(isr=(2,), leader=2, elr=(1,)), fenced=(known,))
    brokers.take_in(fenced, member(1, 99, "new disk"), lost_data=False, policy_of=policy(TWO))
    assert of(fenced).elr == ()


def test_an_empty_disk_never_leads_for_want_of_another() -> None:
    """It was the last in sync: who has some of the records may lead, if somebody says so."""
    known, new = member(1, 10, "old disk"), member(1, 99, "new disk")
    for before in (
        state(isr=(1,)),
        state(isr=(), leader=NO_LEADER, elr=(1,), last=1),
        state(isr=(), leader=NO_LEADER, last=1),
    ):
        draft = draft_of(before, alive=(known, member(2)))
        brokers.take_in(draft, new, lost_data=False, policy_of=policy(TWO))
        assert (of(draft).leader, of(draft).isr, of(draft).elr) == (NO_LEADER, (), ())
        brokers.settle_all(draft, policy_of=policy(TWO))
        assert of(draft).leader == NO_LEADER
    unclean = draft_of(state(isr=(1,)), alive=(known, member(2)))
    brokers.take_in(unclean, new, lost_data=False, policy_of=policy(UNCLEAN))
    assert of(unclean).leader == 2
    alone = draft_of(state(isr=(1,), replicas=(1,)), alive=(known,))
    brokers.take_in(alone, new, lost_data=False, policy_of=policy(ONE))
    assert of(alone).leader == NO_LEADER


def with_run(broker: RegisteredBroker, run: str, *former: str) -> RegisteredBroker:
    return replace(broker, run=run, former_runs=former)


def test_an_old_copy_of_a_disk_leaves_every_set_and_leads_nothing() -> None:
    known = with_run(member(1, 10, "disk"), "4-d")
    old = with_run(member(1, 99, "disk"), "5-e", "2-b", "3-c")
    draft = draft_of(
        state(), state(isr=(2,), leader=2, elr=(1,)), alive=(known, member(2), member(3))
    )
    brokers.take_in(draft, old, lost_data=False, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr, of(draft).elr) == (2, (2, 3), ())
    assert (of(draft, 1).isr, of(draft, 1).elr) == ((2,), ())
    # What only it was in sync with: others may have more of it, whoever they are.
    for before, minimum in (
        (state(isr=(1,)), ONE),
        (state(isr=(1,), replicas=(1,)), ONE),
        (state(isr=(), leader=NO_LEADER, elr=(1,), last=1), TWO),
        (state(isr=(), leader=NO_LEADER, last=1), TWO),
    ):
        for alive in ((known,), (known, member(2))):
            alone = draft_of(before, alive=alive)
            brokers.take_in(alone, old, lost_data=False, policy_of=policy(minimum))
            assert (of(alone).leader, of(alone).isr, of(alone).elr) == (NO_LEADER, (), ())
            brokers.settle_all(alone, policy_of=policy(minimum))
            assert of(alone).leader == NO_LEADER
    # What is eligible elsewhere waits for that.
    waiting = draft_of(state(isr=(1,), elr=(2, 3)), alive=(known,), fenced=(member(2), member(3)))
    brokers.take_in(waiting, old, lost_data=False, policy_of=policy(TWO))
    assert (of(waiting).leader, of(waiting).isr, of(waiting).elr) == (NO_LEADER, (), (2, 3))
    brokers.take_in(waiting, member(2, 100), lost_data=False, policy_of=policy(TWO))
    assert (of(waiting).leader, of(waiting).isr, of(waiting).elr) == (2, (2,), (3,))
    # It is the broker's last run from now on, and the newer disk would lack what is written in it.
    assert (draft.brokers[1].run, draft.brokers[1].former_runs) == ("5-e", ())
    newer = with_run(member(1, 100, "disk"), "6-f", "4-d")
    assert brokers.has_old_folders(draft.brokers[1], newer)


@pytest.mark.parametrize(
    ("last", "run", "former"),
    [
        pytest.param("4-d", "5-e", ("4-d",), id="a stop and a start"),
        pytest.param("4-d", "4-d", ("3-c",), id="the same run registers again"),
        pytest.param(
            "3-c", "6-f", ("3-c", "4-d", "5-e"), id="starts that ended before they registered"
        ),
        pytest.param("4-d", "6-f", ("3-c", "4-d", "5-e"), id="one of them did"),
        pytest.param("", "5-e", (), id="the cluster was told of no run"),
        pytest.param("4-d", "", (), id="an older version tells of none"),
        pytest.param("3-c", "7-a", ("5-e", "6-f"), id="the metadata are older than the folders"),
    ],
)
def test_a_disk_of_the_last_run_is_complete(last: str, run: str, former: tuple[str, ...]) -> None:
    known = with_run(member(1, 10, "disk"), last)
    new = with_run(member(1, 99, "disk"), run, *former)
    draft = draft_of(state(isr=(1,)), alive=(known, member(2)))
    brokers.take_in(draft, new, lost_data=False, policy_of=policy(ONE))
    assert (of(draft).leader, of(draft).isr) == (1, (1,))
    alone = draft_of(state(isr=(1,), replicas=(1,)), alive=(known,))
    brokers.take_in(alone, new, lost_data=False, policy_of=policy(ONE))
    assert of(alone).leader == 1


@pytest.mark.parametrize(
    ("last", "former"),
    [
        pytest.param("4-d", (), id="a copy from before runs had names"),
        pytest.param("4-d", ("3-c",), id="a copy"),
        pytest.param("4-d", ("3-c", "4-x", "5-y"), id="a copy that was started elsewhere"),
        pytest.param("4-d", ("4-x",), id="another fourth run"),
    ],
)
def test_a_disk_that_does_not_know_the_last_run_is_old(last: str, former: tuple[str, ...]) -> None:
    known = with_run(member(1, 10, "disk"), last)
    assert brokers.has_old_folders(known, with_run(member(1, 99, "disk"), "9-e", *former))
    # Unless one of its folders could not be read then: that one missed it.
    unread = replace(known, folder_id="disk,other,")
    new = with_run(member(1, 99, "disk,other"), "9-e", *former)
    assert not brokers.has_old_folders(unread, new)


def test_one_more_disk_is_no_loss() -> None:
    draft = draft_of(state(isr=(1,)), alive=(member(1, 10, "a"), member(2)))
    brokers.take_in(draft, member(1, 99, "a,b"), lost_data=False, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr) == (1, (1,))
    brokers.take_in(draft, member(1, 100, "b"), lost_data=False, policy_of=policy(TWO))
    assert of(draft).leader == NO_LEADER


def test_the_last_leader_leads_again_after_it_lost_records_unless_unclean_or_eligible() -> None:
    draft = draft_of(state(isr=(1,)))
    brokers.take_in(draft, member(1, 99), lost_data=True, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr, of(draft).elr) == (1, (1,), ())
    assert of(draft).leader_epoch > 5, "what followers have of the former life may be more"
    waiting = draft_of(state(isr=(), leader=NO_LEADER, elr=(1, 3), last=1), fenced=(member(3),))
    brokers.take_in(waiting, member(1, 99), lost_data=True, policy_of=policy(TWO))
    assert (of(waiting).leader, of(waiting).elr) == (NO_LEADER, (3,))


def test_a_broker_that_comes_back_leads_what_nobody_could() -> None:
    draft = draft_of(state(isr=(), leader=NO_LEADER, elr=(1, 2), last=1), fenced=(member(1),))
    brokers.take_in(draft, member(1, 99), lost_data=False, policy_of=policy(TWO))
    assert (of(draft).leader, of(draft).isr, of(draft).elr) == (1, (1,), (2,))


def test_a_registration_is_refused_without_endpoint_or_with_an_older_epoch() -> None:
    draft = draft_of(state(), fenced=(member(3, 30),))
    with pytest.raises(ProtocolError) as raised:
        brokers.take_in(draft, member(1, 9), lost_data=False, policy_of=policy(TWO))
    assert raised.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(ProtocolError) as raised:
        brokers.take_in(draft, member(3, 29), lost_data=False, policy_of=policy(TWO))
    assert raised.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(ProtocolError) as raised:
        brokers.take_in(
            draft, RegisteredBroker(4, 99, None, ()), lost_data=False, policy_of=policy(TWO)
        )
    assert raised.value.code is ErrorCode.INVALID_REGISTRATION
    assert not draft.is_changed


def test_the_only_broker_raises_all_epochs_at_once() -> None:
    alone = state(isr=(1,), replicas=(1,))
    draft = draft_of(alone, alive=(member(1),))
    brokers.take_in(draft, member(1, 99), lost_data=True, policy_of=policy(ONE))
    assert (of(draft).leader, of(draft).isr, of(draft).leader_epoch) == (1, (1,), 6)
    assert draft.leader_epoch_base == 1
    assert not draft.touched_topics
    # Not if there ever was another one.
    other = draft_of(alone, alive=(member(1),), fenced=(member(2),))
    brokers.take_in(other, member(1, 99), lost_data=False, policy_of=policy(ONE))
    assert (other.leader_epoch_base, of(other).leader_epoch) == (0, 6)


def _some_partition(chance: Random, index: int) -> Partition:
    replicas = tuple(chance.sample(range(1, 7), 3))
    isr = tuple(each for each in replicas if chance.random() < 0.6)
    leader = chance.choice(isr) if isr else NO_LEADER
    elr = tuple(each for each in replicas if each not in isr and chance.random() < 0.5)
    last = chance.choice(replicas) if not isr and not elr else NO_LEADER
    return Partition(index, replicas, isr, leader, 5, 9, elr=elr, last_known_leader=last)


@pytest.mark.parametrize("seed", range(40))
def test_brokers_that_come_and_go_together_are_settled_as_one_after_the_other(seed: int) -> None:
    chance = Random(seed)
    states = [_some_partition(chance, index) for index in range(30)]
    alive = tuple(member(each, folder=f"disk {each}") for each in (1, 2, 3, 4))
    fenced = tuple(member(each, folder=f"disk {each}") for each in (5, 6))
    together = draft_of(*states, alive=alive, fenced=fenced)
    in_turn = draft_of(*states, alive=alive, fenced=fenced)
    wanted = policy(chance.choice((ONE, TWO, UNCLEAN)))
    turnover = brokers.Turnover(together)
    for broker_id in chance.sample(range(1, 7), 5):
        if broker_id in together.brokers and chance.random() < 0.5:
            turnover.fence(broker_id, policy_of=wanted)
            brokers.fence(in_turn, broker_id, policy_of=wanted)
            if chance.random() < 0.5:
                continue
        disk = f"disk {broker_id}" if chance.random() < 0.7 else "new disk"
        life, lost = member(broker_id, 99, disk), chance.random() < 0.4
        turnover.take_in(life, lost_data=lost, policy_of=wanted)
        brokers.take_in(in_turn, life, lost_data=lost, policy_of=wanted)
    turnover.settle()
    assert together.topics == in_turn.topics
    assert (together.brokers, together.fenced) == (in_turn.brokers, in_turn.fenced)
    assert list(together.touched_brokers) == list(in_turn.touched_brokers)


def test_brokers_that_come_together_look_at_each_partition_once() -> None:
    """A start of all brokers takes as long as its partitions, not that many times the brokers."""
    looks = []

    class Looked(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            looks.append(tuple(self[:]))
            return super().__iter__()

    apart = Looked((8, 9))  # of brokers that do not come
    draft = draft_of(*[state((8,), 8, replicas=apart)] * 5, fenced=(member(8), member(9)))
    turnover = brokers.Turnover(draft)
    for broker_id in range(20, 60):
        turnover.take_in(member(broker_id), lost_data=True, policy_of=policy(TWO))
    looks.clear()
    turnover.settle()
    assert len(looks) == 5


def test_a_controlled_shutdown_moves_leaders_and_leaves_in_sync_sets() -> None:
    draft = draft_of(state(), state(leader=2), state(isr=(1,)), state(isr=(1, 2), elr=()))
    remaining = brokers.shut_down(draft, 1, 10, policy_of=policy(TWO))
    assert remaining == [("t", 2)]
    assert (of(draft, 0).leader, of(draft, 0).isr) == (2, (2, 3))
    assert (of(draft, 1).leader, of(draft, 1).isr, of(draft, 1).leader_epoch) == (2, (2, 3), 5)
    # Nobody else can lead it: it is served to the end.
    assert (of(draft, 2).leader, of(draft, 2).isr) == (1, (1,))
    # It had everything when it left.
    assert (of(draft, 3).leader, of(draft, 3).isr, of(draft, 3).elr) == (2, (2,), (1,))
    assert draft.brokers[1].leaving
    assert draft.eligible == {2, 3}


def test_a_controlled_shutdown_is_never_unclean() -> None:
    draft = draft_of(state(isr=(1,)))
    assert brokers.shut_down(draft, 1, 10, policy_of=policy(UNCLEAN)) == [("t", 0)]
    assert of(draft).leader == 1


def test_two_brokers_that_leave_do_not_hand_leaders_to_each_other() -> None:
    draft = draft_of(state(isr=(1, 2)))
    assert brokers.shut_down(draft, 1, 10, policy_of=policy(TWO)) == []
    assert brokers.shut_down(draft, 2, 20, policy_of=policy(TWO)) == [("t", 0)]
    assert of(draft).leader == 2


def test_who_has_left_may_come_back() -> None:
    draft = draft_of(state())
    brokers.shut_down(draft, 1, 10, policy_of=policy(TWO))
    brokers.take_in(draft, member(1, 99, leaving=True), lost_data=False, policy_of=policy(TWO))
    assert not draft.brokers[1].leaving


def test_another_life_cannot_shut_a_broker_down() -> None:
    draft = draft_of(state(), fenced=(member(3),))
    for broker_id, epoch, code in (
        (1, 9, ErrorCode.STALE_BROKER_EPOCH),
        (1, 11, ErrorCode.STALE_BROKER_EPOCH),
        (3, 30, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(ProtocolError) as raised:
            brokers.shut_down(draft, broker_id, epoch, policy_of=policy(TWO))
        assert raised.value.code is code
    assert not draft.is_changed


def test_what_a_former_controller_left_open_is_settled() -> None:
    draft = draft_of(
        state(isr=(2, 3), leader=1),  # its leader is not in sync
        state(isr=(2, 3), leader=NO_LEADER),
        state(leader=3),
        fenced=(member(1),),
    )
    fine = of(draft, 2)
    brokers.settle_all(draft, policy_of=policy(TWO))
    assert [of(draft, index).leader for index in range(3)] == [2, 2, 3]
    assert of(draft, 2) is fine
    leaving = draft_of(state(), alive=(member(1, leaving=True), member(2), member(3)))
    brokers.settle_all(leaving, policy_of=policy(TWO))
    assert of(leaving).leader == 1, "it serves until it is gone"


# In-sync sets that leaders ask for ------------------------------------------------------------------


def ask(
    draft: Draft,
    *isr: tuple[int, int],
    leader: int = 1,
    leader_epoch: int = 5,
    partition_epoch: int = 9,
    index: int = 0,
    topic_id: bytes = TOPIC_ID,
    wanted: ElectionPolicy = TWO,
) -> IsrResult:
    request = WantedIsr(topic_id, index, leader_epoch, partition_epoch, isr)
    (result,) = partitions.alter_isr(draft, leader, 10 * leader, [request], policy(wanted))
    return result


def test_a_leader_shrinks_and_grows_its_set() -> None:
    draft = draft_of(state())
    shrunk = ask(draft, (1, -1), (2, 20))
    assert shrunk.error is ErrorCode.NONE
    assert shrunk.state is of(draft)
    assert (of(draft).isr, epochs(of(draft))) == ((1, 2), (5, 10))
    grown = ask(draft, (3, 30), (1, 10), (2, -1), partition_epoch=10)
    assert grown.error is ErrorCode.NONE
    assert (of(draft).isr, epochs(of(draft))) == (ALL, (5, 11))


def test_several_partitions_in_one_request_and_one_of_them_twice() -> None:
    draft = draft_of(state(), state())
    requests = [
        WantedIsr(TOPIC_ID, 0, 5, 9, [(1, 10)]),
        WantedIsr(TOPIC_ID, 7, 5, 9, [(1, 10)]),
        WantedIsr(TOPIC_ID, 1, 5, 9, [(1, 10), (2, 20)]),
        WantedIsr(TOPIC_ID, 0, 5, 9, [(1, 10), (2, 20)]),
        WantedIsr(b"?" * 16, 0, 5, 9, [(1, 10)]),
    ]
    results = partitions.alter_isr(draft, 1, 10, requests, policy(TWO))
    assert [each.error for each in results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert (of(draft, 0).isr, of(draft, 1).isr) == ((1,), (1, 2))
    assert of(draft, 0).elr == (2, 3)


def test_a_former_life_of_the_leader_changes_nothing() -> None:
    draft = draft_of(state(), fenced=(member(3),))
    for broker_id, epoch, code in (
        (1, 9, ErrorCode.STALE_BROKER_EPOCH),
        (3, 30, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        request = WantedIsr(TOPIC_ID, 0, 5, 9, [(1, -1)])
        with pytest.raises(ProtocolError) as raised:
            partitions.alter_isr(draft, broker_id, epoch, [request], policy(TWO))
        assert raised.value.code is code
    assert not draft.is_changed


def test_faults_in_the_order_in_which_kafka_looks_for_them() -> None:
    """Each request has the fault of its line and of all the lines below it."""
    stranger = (9, -1)
    faults = [
        (ask(draft_of(state(leader=2)), stranger, leader_epoch=6, partition_epoch=8), "newer"),
        (ask(draft_of(state(leader=2)), stranger, leader_epoch=4, partition_epoch=10), "newer"),
        (ask(draft_of(state(leader=2)), stranger, leader_epoch=4, partition_epoch=8), "fenced"),
        (ask(draft_of(state(leader=2)), stranger, partition_epoch=8), "not the leader"),
        (ask(draft_of(state()), stranger, partition_epoch=8), "old version"),
        (ask(draft_of(state()), stranger), "no replica"),
        (ask(draft_of(state()), (1, -1), (2, 19)), "another life"),
    ]
    codes = {
        "newer": ErrorCode.NOT_CONTROLLER,
        "fenced": ErrorCode.FENCED_LEADER_EPOCH,
        "not the leader": ErrorCode.INVALID_REQUEST,
        "old version": ErrorCode.INVALID_UPDATE_VERSION,
        "no replica": ErrorCode.INVALID_REQUEST,
        "another life": ErrorCode.INELIGIBLE_REPLICA,
    }
    assert [result.error for result, _ in faults] == [codes[what] for _, what in faults]
    assert all(result.state is not None and result.state.isr == ALL for result, _ in faults)


@pytest.mark.parametrize("epoch", [29, 31])
def test_a_life_that_has_ended_does_not_enter_nor_stay(epoch: int) -> None:
    outside = draft_of(state(isr=(1, 2)))
    assert ask(outside, (1, -1), (2, 20), (3, epoch)).error is ErrorCode.INELIGIBLE_REPLICA
    inside = draft_of(state())
    assert ask(inside, (1, -1), (3, epoch)).error is ErrorCode.INELIGIBLE_REPLICA
    assert of(inside).isr == ALL


def test_nobody_enters_who_is_away_or_about_to_leave() -> None:
    away = draft_of(state(isr=(1, 2)), fenced=(member(3),))
    assert ask(away, (1, -1), (2, -1), (3, 30)).error is ErrorCode.INELIGIBLE_REPLICA
    alive = (member(1), member(2), member(3, leaving=True))
    leaving = draft_of(state(isr=(1, 2)), alive=alive)
    assert ask(leaving, (1, -1), (2, -1), (3, 30)).error is ErrorCode.INELIGIBLE_REPLICA
    # Who is a member may stay one to the end.
    staying = draft_of(state(), alive=alive)
    assert ask(staying, (1, -1), (3, 30)).error is ErrorCode.NONE


def test_a_leader_whose_log_failed_resigns() -> None:
    draft = draft_of(state())
    result = ask(draft, (2, 20), (3, 30))
    assert result.error is ErrorCode.NONE
    assert (of(draft).leader, of(draft).isr, epochs(of(draft))) == (2, (2, 3), (6, 10))
    # Nobody is there to take over: it stays what it is.
    alone = draft_of(state(isr=(1, 2)), alive=(member(1), member(2, leaving=True), member(3)))
    assert ask(alone, (2, 20)).error is ErrorCode.INELIGIBLE_REPLICA
    assert ask(alone).error is ErrorCode.INELIGIBLE_REPLICA
    # Nor is somebody who is not in sync, even where the topic would allow it after a crash.
    outside = draft_of(state(isr=(1,)))
    assert ask(outside, (3, 30), wanted=UNCLEAN).error is ErrorCode.INELIGIBLE_REPLICA
    assert of(outside).leader == 1


def test_a_follower_whose_log_is_damaged_leaves() -> None:
    draft = draft_of(state())
    result = ask(draft, (1, -1), (3, -1), leader=2)
    assert result.error is ErrorCode.NONE
    # The leader stays, and its epoch rises: what the follower asked for before does not count any more.
    assert (of(draft).leader, of(draft).isr, epochs(of(draft))) == (1, (1, 3), (6, 11))
    # Nor may it lead without being in sync, however few are left.
    left = ask(draft, (1, -1), leader=3, leader_epoch=6, partition_epoch=11)
    assert left.error is ErrorCode.NONE
    assert (of(draft).isr, of(draft).elr) == ((1,), ())
    # Also of one that is out of sync already.
    again = ask(draft, (1, -1), leader=2, leader_epoch=7, partition_epoch=13)
    assert again.error is ErrorCode.NONE
    assert (of(draft).leader, epochs(of(draft))) == (1, (8, 14))
    # One that was eligible is not any more.
    eligible = draft_of(state(isr=(1,), elr=(2, 3)))
    assert ask(eligible, (1, -1), leader=2).error is ErrorCode.NONE
    assert (of(eligible).isr, of(eligible).elr) == ((1,), (3,))


def test_a_follower_changes_nothing_but_its_own_membership() -> None:
    draft = draft_of(state(isr=(1, 2)))
    for isr in ([(1, -1), (2, -1), (3, 30)], [(2, -1)], [(1, -1)], []):
        # (Broker 3 is not in sync, so that the set would be as it is.)
        assert ask(draft, *isr, leader=3).error is ErrorCode.INVALID_REQUEST
    assert (
        ask(draft, (1, -1), leader=2, partition_epoch=8).error is ErrorCode.INVALID_UPDATE_VERSION
    )
    # Somebody must be there who has everything.
    alive = (member(1, leaving=True), member(2), member(3))
    going = draft_of(state(isr=(1, 2)), alive=alive)
    assert ask(going, (1, -1), leader=2).error is ErrorCode.INELIGIBLE_REPLICA
    leaderless = draft_of(state(isr=(2,), leader=-1), alive=(member(2), member(3)))
    assert ask(leaderless, leader=2).error is ErrorCode.INELIGIBLE_REPLICA
    for each in (draft, going, leaderless):
        assert not each.is_changed


# Elections on demand --------------------------------------------------------------------------------


def elect(
    draft: Draft,
    kind: ElectionType,
    wanted: list[tuple[str, int]] | None,
    rules: ElectionPolicy = TWO,
) -> list[tuple[int, ErrorCode]]:
    results = partitions.elect_leaders(draft, kind, wanted, policy(rules))
    return [(each.index, each.error.code if each.error else ErrorCode.NONE) for each in results]


def test_preferred_leaders_on_demand() -> None:
    draft = draft_of(state(leader=2), state(), state(leader=2, isr=(2, 3)))
    wanted = [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("unknown", 0)]
    assert elect(draft, ElectionType.PREFERRED, wanted) == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.ELECTION_NOT_NEEDED),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [of(draft, index).leader for index in range(3)] == [1, 1, 2]


def test_of_all_partitions_those_that_need_none_are_not_told_of() -> None:
    draft = draft_of(state(leader=2), state(), state(leader=2, isr=(2, 3)))
    assert elect(draft, ElectionType.PREFERRED, None) == [
        (0, ErrorCode.NONE),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]


def test_unclean_elections_on_demand() -> None:
    draft = draft_of(
        state(),
        state(isr=(), leader=NO_LEADER, elr=(1,), last=1),
        state(isr=(), leader=NO_LEADER, elr=(1,), last=1, replicas=(1, 4)),
        state(isr=(), leader=NO_LEADER, elr=(2, 1), last=1),
        fenced=(member(1),),
        alive=(member(2), member(3)),
    )
    assert elect(draft, ElectionType.UNCLEAN, [("t", index) for index in range(4)]) == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (1, ErrorCode.NONE),
        (2, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (3, ErrorCode.NONE),
    ]
    assert (of(draft, 1).leader, of(draft, 1).isr, of(draft, 1).elr) == (2, (2,), ())
    # Somebody eligible was there: nothing is lost, and the other one stays eligible.
    assert (of(draft, 3).leader, of(draft, 3).elr) == (2, (1,))


def test_settings_that_change_say_who_is_eligible() -> None:
    draft = draft_of(state(isr=(1,), elr=(2,)), state())
    fine = of(draft, 1)
    partitions.follow_policies(draft, ["t", "unknown"], policy(TWO))
    assert not draft.is_changed
    partitions.follow_policies(draft, ["t"], policy(ONE))
    assert of(draft).elr == ()
    assert of(draft, 1) is fine


# Unclean elections are told of ----------------------------------------------------------------------


def unclean(draft: Draft) -> list[tuple[str, int, int, int]]:
    return [
        (topic, before.index, before.leader, after.leader)
        for topic, before, after in draft.unclean_elections
    ]


def test_unclean_elections_are_noted_whatever_the_occasion() -> None:
    gone = draft_of(state(isr=(1,)), state(isr=(1, 2)), state(isr=(1,), elr=(3,)))
    brokers.fence(gone, 1, policy_of=policy(UNCLEAN))
    assert unclean(gone) == [("t", 0, 1, 2)], "the second is in sync, the third eligible"
    refused = draft_of(state(isr=(1,)))
    brokers.fence(refused, 1, policy_of=policy(TWO))
    assert unclean(refused) == []

    leaderless = state(isr=(), leader=NO_LEADER, elr=(1,), last=1)
    settled = draft_of(leaderless, leaderless, fenced=(member(1),))
    brokers.settle_all(settled, policy_of=policy(TWO))
    assert unclean(settled) == []
    brokers.settle_all(settled, policy_of=policy(UNCLEAN), topics=["another"])
    assert unclean(settled) == []
    brokers.settle_all(settled, policy_of=policy(UNCLEAN), topics=["t"])
    assert unclean(settled) == [("t", 0, NO_LEADER, 2), ("t", 1, NO_LEADER, 2)]

    demanded = draft_of(leaderless, state(), fenced=(member(1),))
    partitions.elect_leaders(demanded, ElectionType.UNCLEAN, None, policy(TWO))
    assert unclean(demanded) == [("t", 0, NO_LEADER, 2)]
    preferred = draft_of(state(leader=2))
    partitions.elect_leaders(preferred, ElectionType.PREFERRED, None, policy(TWO))
    assert (of(preferred).leader, unclean(preferred)) == (1, [])

    # The last leader may have lost records, and is the best that is left.
    back = draft_of(state(isr=(1,)), state(), alive=(member(1), member(2)))
    brokers.take_in(back, member(1, 99), lost_data=True, policy_of=policy(TWO))
    assert of(back).leader == 1
    assert unclean(back) == [("t", 0, NO_LEADER, 1)]
    complete = draft_of(state(isr=(), leader=NO_LEADER, elr=(1,), last=1), fenced=(member(1),))
    brokers.take_in(complete, member(1, 99), lost_data=False, policy_of=policy(TWO))
    assert (of(complete).leader, unclean(complete)) == (1, [])
