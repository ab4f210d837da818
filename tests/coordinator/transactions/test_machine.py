"""The transaction coordinator's answers, state by state, without a broker around it."""

from __future__ import annotations

import pytest
from transactions_kit.world import World

from ottla.coordinator.shard import Replayed
from ottla.coordinator.transactions.records import key_of, read_key, read_value, value_of
from ottla.coordinator.transactions.settings import TransactionSettings
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.states import AT_REST, BY_NAME, FOLLOWING, State
from ottla.coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_TIMEOUT,
    NOBODY,
    Identity,
    Transaction,
)
from ottla.protocol.errors import ErrorCode

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
WRONG_STATE = ErrorCode.INVALID_TXN_STATE
WRONG_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_table_of_states_knows_every_state() -> None:
    assert set(FOLLOWING) == set(State)
    assert {state for state, following in FOLLOWING.items() if State.DEAD in following} == AT_REST
    assert list(BY_NAME) == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


# A producer takes over


def test_a_new_id_begins_with_epoch_0_and_each_producer_gets_the_next(world: World) -> None:
    first = world.begun()
    assert first.epoch == 0
    assert world.begun() == Identity(first.producer_id, 1)
    assert world.begun("other").producer_id != first.producer_id
    assert world.state() is State.EMPTY
    world.stored_is_kept()


@pytest.mark.parametrize("timeout", [0, -1, 900_001])
def test_a_timeout_beyond_the_limit_is_refused(world: World, timeout: int) -> None:
    assert world.init(timeout=timeout).code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not world.records


def test_an_open_transaction_is_aborted_before_a_new_producer_begins(world: World) -> None:
    old = world.ongoing()
    assert world.init().code is BUSY
    assert world.state() is State.PREPARE_ABORT
    assert world.init().code is BUSY
    (ending,) = world.write_markers()
    assert (ending.producer_id, ending.epoch, ending.committed) == (
        old.producer_id,
        old.epoch + 1,
        False,
    )
    assert ending.partitions == (("a", 0), ("b", 1))
    assert world.state() is State.COMPLETE_ABORT
    new = world.begun()
    assert new == Identity(old.producer_id, old.epoch + 2)
    assert world.add(old) is FENCED
    assert world.end(old).code is FENCED
    assert world.add(new) is NONE


def test_a_producer_that_names_itself_keeps_its_claim(world: World) -> None:
    first = world.begun()
    second = world.init(expected=first)
    assert second.holder == Identity(first.producer_id, first.epoch + 1)
    # The answer was lost, and the request comes again.
    assert world.init(expected=first) == second
    # Somebody else came in between.
    other = world.begun()
    assert world.init(expected=second.holder).code is FENCED
    assert world.init(expected=Identity(first.producer_id + 5, 0)).code is FENCED
    assert world.transaction().holder == other


def test_the_former_epoch_is_forgotten_as_soon_as_another_producer_takes_over(
    world: World,
) -> None:
    """And not only once that is committed, or the two would have the same identity."""
    first = world.begun()
    second = world.init(expected=first).holder
    with world.uncommitted():
        other = world.init_later()
        # Its answer was lost, and the request comes again: too late.
        again = world.init_later(expected=first)
        # One of the producer of before is as late, and was never one of an earlier epoch.
        late = world.init_later(expected=second)
    assert other().holder == Identity(first.producer_id, second.epoch + 1)
    assert again().code is FENCED
    assert late().code is FENCED


def test_the_former_epoch_is_known_before_the_new_one_is_committed(world: World) -> None:
    first = world.begun()
    with world.uncommitted():
        answer = world.init_later(expected=first)
        again = world.init_later(expected=first)
    assert answer().holder == again().holder == Identity(first.producer_id, first.epoch + 1)
    # The same of the epoch that an end takes.
    producer = answer().holder
    assert world.add(producer) is NONE
    assert world.end(producer).code is NONE
    world.write_markers()
    assert world.init(expected=producer).holder == Identity(
        producer.producer_id, producer.epoch + 1
    )


def test_an_unknown_producer_that_names_itself_is_new(world: World) -> None:
    assert world.init(expected=Identity(77, 5)).holder.epoch == 0


def test_when_epochs_are_used_up_there_is_a_new_producer_id(world: World) -> None:
    first = world.begun()
    _put(world, world.transaction().begun(Identity(first.producer_id, LAST_EPOCH - 2), 60_000, 1))
    last = world.begun()
    assert last == Identity(first.producer_id, LAST_EPOCH - 1)
    rotated = world.init(expected=last)
    assert rotated.holder.epoch == 0
    assert rotated.holder.producer_id != first.producer_id
    # A retry of it, and a stranger with the old id.
    assert world.init(expected=last) == rotated
    assert world.init(expected=Identity(first.producer_id, 3)).code is FENCED
    world.stored_is_kept()


def test_the_last_epoch_is_given_to_nobody(world: World) -> None:
    """It is for fencing. Whoever had it could neither end a transaction nor be fenced, for there is no
    epoch after it."""
    first = world.begun()
    _put(world, world.transaction().begun(Identity(first.producer_id, LAST_EPOCH - 1), 60_000, 1))
    last = world.transaction().holder
    assert world.add(last) is NONE
    world.pass_time(80_000)
    world.write_markers()
    assert world.transaction().holder == Identity(last.producer_id, LAST_EPOCH)
    # Its producer, which may go on after a timeout, has no epoch to go on with.
    assert world.end(last, False).code is FENCED
    going_on = world.init(expected=last)
    assert going_on.code is NONE
    assert going_on.holder.epoch == 0
    assert going_on.holder.producer_id != last.producer_id
    assert world.init(expected=last) == going_on
    assert world.add(going_on.holder) is NONE
    assert world.end(going_on.holder).code is NONE
    world.stored_is_kept()


# Partitions


def test_partitions_begin_the_transaction(world: World) -> None:
    producer = world.begun()
    world.pass_time(500)
    assert world.add(producer, ("a", 0)) is NONE
    began = world.wall
    world.pass_time(500)
    assert world.add(producer, ("b", 0), ("a", 0)) is NONE
    transaction = world.transaction()
    assert transaction.state is State.ONGOING
    assert transaction.partitions == {("a", 0), ("b", 0)}
    assert (transaction.started, transaction.updated) == (began, world.wall)


def test_partitions_that_are_in_already_write_nothing(world: World) -> None:
    producer = world.ongoing()
    written = len(world.records)
    assert world.add(producer, ("b", 1)) is NONE
    assert len(world.records) == written


def test_who_may_not_add(world: World) -> None:
    assert world.add(Identity(1, 0), transactional_id="nobody") is WRONG_ID
    producer = world.begun()
    assert world.add(Identity(producer.producer_id + 1, 0)) is WRONG_ID
    assert world.add(Identity(producer.producer_id, 1)) is FENCED
    assert world.add(producer) is NONE
    world.end(producer, version=0)
    assert world.add(producer, version=0) is BUSY
    world.write_markers()
    assert world.add(producer, version=0) is NONE
    assert world.transaction().partitions == {("a", 0)}


def test_verification_tells_members_from_others(world: World) -> None:
    producer = world.ongoing()
    assert world.verify(producer, ("a", 0), ("c", 0)) == {
        ("a", 0): NONE,
        ("c", 0): ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert world.verify(Identity(producer.producer_id, 9), ("a", 0)) == {("a", 0): FENCED}
    assert world.verify(Identity(9, 0), ("a", 0)) == {("a", 0): WRONG_ID}
    assert world.verify(producer, ("a", 0), transactional_id="x") == {("a", 0): WRONG_ID}
    world.end(producer, version=0)
    assert world.verify(producer, ("a", 0)) == {("a", 0): BUSY}
    world.write_markers()
    assert world.verify(producer, ("a", 0)) == {("a", 0): ErrorCode.TRANSACTION_ABORTABLE}


# The end


@pytest.mark.parametrize("committed", [True, False])
def test_the_first_protocol_keeps_the_epoch(world: World, committed: bool) -> None:
    producer = world.ongoing(version=0)
    assert world.end(producer, committed, version=0) == (NONE, NOBODY, NOBODY)
    prepared = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
    assert world.state() is prepared
    # While markers are written.
    assert world.end(producer, committed, version=0).code is BUSY
    assert world.end(producer, not committed, version=0).code is WRONG_STATE
    (ending,) = world.write_markers()
    assert (ending.epoch, ending.committed, ending.version) == (producer.epoch, committed, 0)
    assert world.transaction().holder == producer
    assert world.transaction().partitions == frozenset()
    # Once more.
    assert world.end(producer, committed, version=0).code is NONE
    assert world.end(producer, not committed, version=0).code is WRONG_STATE
    world.stored_is_kept()


def test_the_first_protocol_refuses_to_end_nothing(world: World) -> None:
    producer = world.begun()
    assert world.end(producer, True, version=0).code is WRONG_STATE
    assert world.end(producer, False, version=0).code is WRONG_STATE
    assert world.end(Identity(producer.producer_id, 1), version=0).code is FENCED
    assert world.end(Identity(producer.producer_id + 1, 0), version=0).code is WRONG_ID
    assert world.end(producer, transactional_id="x", version=0).code is WRONG_ID


@pytest.mark.parametrize("committed", [True, False])
def test_the_second_protocol_bumps_the_epoch_at_each_end(world: World, committed: bool) -> None:
    producer = world.ongoing()
    answer = world.end(producer, committed)
    following = Identity(producer.producer_id, producer.epoch + 1)
    assert answer == (NONE, following, NOBODY)
    assert world.end(producer, committed).code is BUSY
    assert world.end(producer, not committed).code is WRONG_STATE
    # It may have begun the next transaction, which has to wait.
    assert world.end(following, committed).code is BUSY
    assert world.end(following, not committed).code is BUSY
    assert world.end(Identity(producer.producer_id, producer.epoch + 2)).code is FENCED
    (ending,) = world.write_markers()
    assert (ending.epoch, ending.version) == (following.epoch, 2)
    # The answer was lost.
    assert world.end(producer, committed) == answer
    assert world.end(producer, not committed).code is WRONG_STATE
    # The producer goes on with its new epoch.
    assert world.add(producer) is FENCED
    assert world.add(following) is NONE
    assert world.end(producer, committed).code is FENCED
    world.stored_is_kept()


@pytest.mark.parametrize(
    ("before", "committed", "current", "retried"),
    [
        ("nothing", False, NONE, FENCED),
        ("nothing", True, WRONG_STATE, FENCED),
        ("abort", False, NONE, NONE),
        ("abort", True, WRONG_STATE, WRONG_STATE),
        ("commit", False, NONE, WRONG_STATE),
        ("commit", True, WRONG_STATE, NONE),
    ],
)
def test_the_second_protocol_with_no_transaction_open(
    world: World, before: str, committed: bool, current: ErrorCode, retried: ErrorCode
) -> None:
    producer = world.ongoing()
    if before == "nothing":
        world.init()
        world.write_markers()
        holder = world.begun()
    else:
        holder = world.end(producer, before == "commit").holder
        world.write_markers()
    assert world.end(Identity(holder.producer_id, holder.epoch - 1), committed).code is retried
    answer = world.end(holder, committed)
    assert answer.code is current
    if current is NONE:
        assert answer.holder == Identity(holder.producer_id, holder.epoch + 1)
        (ending,) = world.write_markers()
        assert ending.partitions == ()
        assert world.state() is State.COMPLETE_ABORT
        # It can be told from a transaction that never began.
        assert world.transaction().started == world.wall


def test_the_second_protocol_changes_the_producer_id_when_epochs_are_used_up(world: World) -> None:
    first = world.begun()
    _put(world, world.transaction().begun(Identity(first.producer_id, LAST_EPOCH - 1), 60_000, 1))
    last = world.transaction().holder
    assert world.add(last) is NONE
    answer = world.end(last)
    assert answer.code is NONE
    assert answer.holder.epoch == 0
    assert answer.holder.producer_id != first.producer_id
    assert world.end(last).code is BUSY
    # A crash in between: the new id is not forgotten.
    world.crash()
    (ending,) = world.write_markers()
    assert (ending.producer_id, ending.epoch) == (first.producer_id, LAST_EPOCH)
    assert world.transaction().holder == answer.holder
    assert world.end(last) == answer
    assert world.end(last, False).code is WRONG_STATE
    assert world.add(answer.holder) is NONE
    world.stored_is_kept()


def test_who_was_told_a_new_producer_id_waits_for_the_markers_as_with_a_new_epoch(
    world: World,
) -> None:
    first = world.begun()
    _put(world, world.transaction().begun(Identity(first.producer_id, LAST_EPOCH - 1), 60_000, 1))
    last = world.transaction().holder
    assert world.add(last) is NONE
    following = world.end(last).holder
    assert following.producer_id != first.producer_id
    # Its next transaction begins before the markers of the last one are written.
    assert world.add(following, ("c", 0)) is BUSY
    assert set(world.verify(following, ("c", 0)).values()) == {BUSY}
    assert world.add(last) is FENCED
    world.write_markers()
    assert world.add(last) is WRONG_ID
    assert world.add(following, ("c", 0)) is NONE


def test_an_old_client_may_go_on_after_a_new_one(world: World) -> None:
    producer = world.ongoing()
    following = world.end(producer).holder
    world.write_markers()
    assert world.add(following, version=0) is NONE
    assert world.end(following, version=0).code is NONE
    (ending,) = world.write_markers()
    assert ending.epoch == following.epoch


# Failures, crashes


def test_a_record_that_was_not_taken_leaves_everything_as_it_was(world: World) -> None:
    producer = world.ongoing()
    before = world.transaction()
    world.failing = True
    assert world.end(producer).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.init().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.add(producer, ("c", 0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.init("new").code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.transaction() == before
    assert not world.endings
    world.failing = False
    assert world.end(producer).code is NONE


def test_the_last_record_is_tried_again(world: World) -> None:
    producer = world.ongoing()
    world.end(producer)
    world.failing = True
    world.write_markers()
    assert world.state() is State.PREPARE_COMMIT
    world.pass_time(1_000)
    world.failing = False
    world.pass_time(1_000)
    assert world.state() is State.COMPLETE_COMMIT


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_decided_is_ended_after_a_crash(world: World, committed: bool) -> None:
    producer = world.ongoing()
    world.end(producer, committed)
    world.crash()
    (ending,) = world.endings
    assert (ending.producer_id, ending.epoch, ending.committed, ending.coordinator_epoch) == (
        producer.producer_id,
        producer.epoch + 1,
        committed,
        1,
    )
    assert ending.partitions == (("a", 0), ("b", 1))
    world.write_markers()
    assert world.state() in AT_REST


def test_a_decision_is_acted_on_only_once_it_is_committed(world: World) -> None:
    """The record may be lost with the leader that finds it at its log's end: another one would decide
    anew, and a part of the partitions have the markers of a decision that was never made."""
    world.end(world.ongoing())
    shard = TransactionShard(
        world.settings,
        coordinator_epoch=1,
        level=lambda: 2,
        write_markers=lambda ending: world.endings.append(ending),
    )
    for offset, (key, value) in enumerate(world.records):
        shard.replay(Replayed(key, value, offset, world.wall))
    world.endings.clear()
    effects = shard.loaded(world.now)
    assert world.endings == []
    assert effects.then is not None
    effects.then()
    assert len(world.endings) == 1


def test_late_news_of_markers_change_nothing(world: World) -> None:
    producer = world.ongoing()
    following = world.end(producer).holder
    (old,) = world.write_markers()
    assert world.add(following) is NONE
    world.run(world.shard.markers_written(old, world.now))
    assert world.state() is State.ONGOING
    world.end(following, False)
    world.run(world.shard.markers_written(old, world.now))
    assert world.state() is State.PREPARE_ABORT


# Time


def test_a_transaction_past_its_timeout_is_aborted(world: World) -> None:
    producer = world.ongoing(timeout=30_000)
    world.pass_time(29_000)
    assert world.state() is State.ONGOING
    world.pass_time(15_000)
    assert world.state() is State.PREPARE_ABORT
    (ending,) = world.write_markers()
    assert ending.epoch == producer.epoch + 1
    assert world.add(producer) is FENCED
    assert world.end(producer, True).code is WRONG_STATE
    # With the second protocol its producer finds back by itself.
    assert world.end(producer, False).holder == Identity(producer.producer_id, producer.epoch + 1)


def test_a_transaction_is_aborted_in_time_though_the_clock_was_set_back(world: World) -> None:
    world.ongoing(timeout=30_000)
    world.pass_time(15_000)
    world.wall -= 3_600_000
    world.pass_time(14_000)
    assert world.state() is State.ONGOING
    world.pass_time(12_000)
    assert world.state() is State.PREPARE_ABORT


def test_a_transaction_that_began_in_the_future_is_aborted_after_its_timeout(world: World) -> None:
    """The clock was set back while the coordinator was away."""
    world.ongoing(timeout=30_000)
    world.wall -= 3_600_000
    world.crash()
    world.pass_time(20_000)
    assert world.state() is State.ONGOING
    world.pass_time(32_000)
    assert world.state() is State.PREPARE_ABORT


def test_timeouts_of_many_count_from_the_beginning_also_after_a_crash(world: World) -> None:
    for number in range(5):
        world.ongoing(f"t{number}", timeout=30_000)
    world.pass_time(15_000)
    world.crash()
    world.ongoing("young", timeout=30_000)
    world.pass_time(25_000)
    assert {ending.transactional_id for ending in world.write_markers()} == {
        f"t{number}" for number in range(5)
    }
    assert world.state("young") is State.ONGOING


def test_an_abort_that_fails_is_tried_again(world: World) -> None:
    world.ongoing(timeout=5_000)
    world.failing = True
    world.pass_time(30_000)
    assert world.state() is State.ONGOING
    world.failing = False
    world.pass_time(10_000)
    assert world.state() is State.PREPARE_ABORT


def test_ids_that_are_not_used_are_forgotten() -> None:
    world = World(settings=TransactionSettings(transactional_id_expiration_ms=10_000_000))
    world.begun("empty")
    finished = world.ongoing("finished")
    world.end(finished, transactional_id="finished")
    world.write_markers()
    world.ongoing("open", timeout=900_000)
    prepared = world.ongoing("prepared")
    world.end(prepared, transactional_id="prepared")
    world.settings = TransactionSettings()
    world.pass_time(9_000_000)
    assert len(world.shard.transactions) == 4
    world.pass_time(6_000_000)
    # The open one timed out, and its markers are not written yet, nor are those of the other.
    assert set(world.shard.transactions) == {"open", "prepared"}
    assert world.shard.describe("empty") is None
    world.stored_is_kept()
    assert world.begun("empty").epoch == 0


def test_more_expire_than_go_into_one_batch() -> None:
    world = World(settings=TransactionSettings(transactional_id_expiration_ms=1_000))
    for number in range(1_201):
        world.begun(f"t{number}")
    world.pass_time(3_600_000)
    assert not world.shard.transactions
    world.stored_is_kept()


# Two-phase commit


def test_two_phase_commit_has_to_be_allowed() -> None:
    world = World(settings=TransactionSettings(transaction_two_phase_commit_enable=False))
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert world.init(two_phase=True).code is refused
    assert world.init(keep=True).code is refused


def test_a_prepared_transaction_outlives_its_timeout_and_its_producer(world: World) -> None:
    old = world.ongoing(two_phase=True, timeout=1)
    assert world.transaction().timeout_ms == NO_TIMEOUT
    world.pass_time(30 * 24 * 3_600_000)
    assert world.state() is State.ONGOING
    answer = world.init(two_phase=True, keep=True)
    new = Identity(old.producer_id, old.epoch + 1)
    assert answer == (NONE, new, old)
    world.crash()
    assert world.init(two_phase=True, keep=True) == (
        NONE,
        Identity(old.producer_id, old.epoch + 2),
        old,
    )
    holder = world.transaction().holder
    assert world.end(old).code is FENCED
    assert world.end(new).code is FENCED
    assert world.add(holder, ("c", 0)) is WRONG_STATE
    assert world.add(old, ("c", 0)) is FENCED
    ended = world.end(holder)
    assert ended == (NONE, Identity(holder.producer_id, holder.epoch + 1), NOBODY)
    assert world.end(holder).code is BUSY
    (ending,) = world.write_markers()
    assert (ending.producer_id, ending.epoch, ending.committed) == (
        old.producer_id,
        old.epoch + 1,
        True,
    )
    assert world.transaction().holder == ended.holder
    assert world.end(holder) == ended
    assert world.add(ended.holder) is NONE
    world.stored_is_kept()


@pytest.mark.parametrize("start", [LAST_EPOCH - 2, LAST_EPOCH - 3])
@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_may_change_producer_ids(
    world: World, start: int, committed: bool
) -> None:
    first = world.begun(two_phase=True)
    _put(world, world.transaction().begun(Identity(first.producer_id, start), NO_TIMEOUT, 1))
    assert world.add(Identity(first.producer_id, start)) is NONE
    world.init(two_phase=True, keep=True)
    holder = world.init(two_phase=True, keep=True).holder
    ended = world.end(holder, committed)
    assert ended.code is NONE
    (ending,) = world.write_markers()
    assert (ending.producer_id, ending.epoch) == (first.producer_id, start + 1)
    final = world.transaction().holder
    assert final == ended.holder
    assert final.producer_id != first.producer_id
    # Three steps were taken altogether, one of them over the end of the epochs.
    assert final.epoch + LAST_EPOCH - start == 3
    assert world.end(holder, committed) == ended
    world.stored_is_kept()


def test_only_a_prepared_transaction_can_be_kept(world: World) -> None:
    world.ongoing()
    assert world.init(two_phase=True, keep=True).code is WRONG_STATE
    assert world.state() is State.ONGOING
    expected = Identity(1, 1)
    assert world.init(keep=True, two_phase=True, expected=expected).code is (
        ErrorCode.INVALID_REQUEST
    )


def test_to_keep_nothing_is_to_begin(world: World) -> None:
    answer = world.init(two_phase=True, keep=True)
    assert (answer.code, answer.ongoing) == (NONE, NOBODY)


def test_who_has_ended_a_prepared_transaction_waits_for_the_markers(world: World) -> None:
    world.ongoing(two_phase=True)
    kept = world.init(two_phase=True, keep=True).holder
    following = world.end(kept).holder
    assert world.add(following, ("c", 0)) is BUSY
    world.write_markers()
    assert world.add(following, ("c", 0)) is NONE


def test_a_prepared_transaction_that_is_not_kept_is_aborted(world: World) -> None:
    old = world.ongoing(two_phase=True)
    kept = world.init(two_phase=True, keep=True).holder
    assert world.init(two_phase=True).code is BUSY
    (ending,) = world.write_markers()
    assert (ending.epoch, ending.committed) == (old.epoch + 1, False)
    new = world.begun(two_phase=True)
    assert new.epoch > kept.epoch + 1
    assert world.end(kept).code is FENCED


# Records


@pytest.mark.parametrize("level", [0, 1, 2])
def test_records_come_back_as_they_were(level: int) -> None:
    transaction = Transaction(
        "tränsaktion",
        12,
        3,
        60_000,
        State.ONGOING,
        frozenset({("a", 0), ("a", 7), ("b", 1)}),
        started=5,
        updated=6,
        version=2 if level else 0,
        previous_producer_id=12 if level else -1,
        next_producer_id=12 if level else -1,
        next_epoch=4 if level else -1,
    )
    value = value_of(transaction, level)
    assert value[:2] == (b"\0\0" if level == 0 else b"\0\1")
    assert read_key(key_of("tränsaktion")) == "tränsaktion"
    assert read_value("tränsaktion", value) == transaction


# The records of one transaction as Apache Kafka 4.3.1 wrote them: producer 40, topic.9763-13-9f2a71.
KAFKAS = {
    State.EMPTY: """
        0001 0000000000000028 0000 0000ea60 00 00 000001a1dea3f80a ffffffffffffffff
        01 00080000000000000028
    """,
    State.ONGOING: """
        0001 0000000000000028 0000 0000ea60
        01 02 15746f7069632e393736332d31332d396632613731 0200000000 00
        000001a1dea3f80b 000001a1dea3f80b 02 00080000000000000028 02020002
    """,
    State.PREPARE_COMMIT: """
        0001 0000000000000028 0001 0000ea60
        02 02 15746f7069632e393736332d31332d396632613731 0200000000 00
        000001a1dea3f81e 000001a1dea3f80b 02 00080000000000000028 02020002
    """,
    State.COMPLETE_COMMIT: """
        0001 0000000000000028 0001 0000ea60 04 01
        000001a1dea3f81e 000001a1dea3f80b 02 00080000000000000028 02020002
    """,
}


def test_records_are_kafkas() -> None:
    steps = {state: read_value("t", bytes.fromhex(value)) for state, value in KAFKAS.items()}
    for state, transaction in steps.items():
        assert transaction.state is state
        assert value_of(transaction, 2) == bytes.fromhex(KAFKAS[state])
    partitions = [("topic.9763-13-9f2a71", 0)]
    ongoing = steps[State.EMPTY].added(partitions, 2, steps[State.ONGOING].updated)
    assert ongoing == steps[State.ONGOING]
    ended = ongoing.ended(True, 2, -1, steps[State.PREPARE_COMMIT].updated)
    assert ended == steps[State.PREPARE_COMMIT]
    assert ended.completed(ended.updated) == steps[State.COMPLETE_COMMIT]
    assert key_of("t") == b"\0\0\0\1t"


def test_what_is_not_understood_is_skipped(world: World, complaints: list[str]) -> None:
    from ottla.coordinator.shard import Replayed

    world.begun()
    for key, value in (
        (b"\0\5\0\1t", b"?"),  # a kind of a later version
        (b"\0", None),
        (key_of("t"), b"\0\7"),
        (key_of("t"), b"\0\0\0"),
    ):
        world.shard.replay(Replayed(key, value, 0, 0))
    assert world.state() is State.EMPTY
    assert len(complaints) == 3
    complaints.clear()


def _put(world: World, transaction: Transaction) -> None:
    """Make a state that would take thousands of requests."""
    from ottla.coordinator.shard import Replayed

    record = key_of(transaction.transactional_id), value_of(transaction, world.level)
    world.records.append(record)
    world.shard.replay(Replayed(*record, len(world.records), world.wall))
