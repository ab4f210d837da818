"""One partition on one broker: roles, the high watermark, the in-sync set, and who waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replica_kit import BROKER, Holder, batch, state

from ottla.cluster.metadata import NO_LEADER
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.replication.partition import SUSPICIOUS_REPEATS, UNKNOWN, Partition, Role
from ottla.storage.errors import LogOffline
from ottla.storage.log.log import Log


def isr_wanted(partition: Partition) -> set[int] | None:
    return None if partition.wanted_isr is None else set(partition.wanted_isr)


def test_a_partition_that_was_moved_away_and_back_begins_with_a_new_log() -> None:
    holder = Holder(state())
    holder.append()
    before = holder.partition.log
    away = replace(state(), replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=6)
    holder.partition.update(away, 0)
    assert holder.partition.role is Role.ABSENT
    holder.logs.delete("t", 0)
    # Whoever still has an append under way finds the log that is no more, and makes no other.
    assert holder.partition.log is before
    assert before.offline is not None
    assert ("t", 0) not in holder.logs
    back = replace(away, replicas=(2, 3, 1), leader_epoch=7)
    holder.partition.update(back, 0)
    assert holder.partition.role is Role.FOLLOWER
    assert holder.partition.log.log_end_offset == 0
    assert not holder.partition.is_offline


def test_a_partition_that_was_moved_away_and_back_while_the_disk_worked_begins_with_a_new_log() -> (
    None
):
    holder = Holder(FOLLOWED)
    holder.partition.take(batch(3), 0, 0)
    holder.partition.occupy()
    away = replace(FOLLOWED, replicas=(2, 3), isr=(2, 3), leader_epoch=6)
    holder.partition.update(away, 0)
    holder.logs.delete("t", 0)
    holder.partition.update(replace(away, replicas=(2, 3, 1), leader_epoch=7), 0)
    holder.partition.release(0)
    assert (holder.partition.role, holder.partition.leader_epoch) == (Role.FOLLOWER, 7)
    assert holder.partition.log.log_end_offset == 0
    assert not holder.partition.is_offline


def test_who_waits_for_a_flush_is_told_when_the_log_lies_elsewhere() -> None:
    holder, elsewhere = Holder(ALONE), Holder(ALONE)
    told: list[ErrorCode] = []
    for each in (holder, elsewhere):
        each.partition.configure(replace(each.config, flush_messages=1))
        each.append(3)
    holder.partition.when_flushed(3, told.append)
    holder.partition.when_committed(3, told.append)
    elsewhere.partition.log.flush(0)
    holder.partition.replace_log(elsewhere.partition.log)
    assert told == [ErrorCode.NONE] * 2


# Roles ----------------------------------------------------------------------------------------------

LED = state(leader=BROKER)
ALONE = state(replicas=(BROKER,), isr=(BROKER,))
FOLLOWED = state(leader=2)
ELSEWHERE = state(leader=2, replicas=(2, 3), isr=(2, 3))


@pytest.mark.parametrize("before", [LED, FOLLOWED, ELSEWHERE])
@pytest.mark.parametrize(
    ("after", "role"),
    [(LED, Role.LEADER), (FOLLOWED, Role.FOLLOWER), (ELSEWHERE, Role.ABSENT)],
)
@pytest.mark.parametrize("newer_epoch", [False, True])
def test_the_image_decides_the_role(
    before: object, after: object, role: Role, newer_epoch: bool
) -> None:
    holder = Holder(before)  # type: ignore[arg-type]
    partition = holder.partition
    was = partition.role
    told: list[ErrorCode] = []
    partition.when_committed(100, told.append)
    now = replace(after, leader_epoch=5 + newer_epoch, partition_epoch=10)  # type: ignore[type-var]
    partition.update(now, 0)
    assert partition.role is role
    begins = newer_epoch or role is not was
    assert holder.terms == begins
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * begins
    others = {2, 3} if role is Role.LEADER else set()
    assert set(partition.followers) == others
    if role is not Role.LEADER:
        with pytest.raises(ProtocolError) as raised:
            partition.check_leader()
        assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_partitions_that_are_not_here_share_what_they_do_not_need() -> None:
    """A broker knows every partition of its cluster, and holds few of them."""
    first, second = Holder(ELSEWHERE).partition, Holder(ELSEWHERE).partition
    shared = ("waiters", "replica_waiters", "followers", "_awaiting_commit", "_awaiting_flush")
    assert all(getattr(first, each) is getattr(second, each) for each in shared)
    told: list[ErrorCode] = []
    second.when_flushed(1, told.append)
    first.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told == []
    for each in (first, second):
        each.update(replace(LED, leader_epoch=6), 0)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not any(getattr(first, each) is getattr(second, each) for each in shared)
    first.waiters.add(_Reader())
    assert not second.waiters


class _Reader:
    def progressed(self, partition: Partition, appended_bytes: int) -> None:
        raise AssertionError("nothing was written")


def test_an_older_image_is_passed_over() -> None:
    holder = Holder(LED)
    partition = holder.partition
    partition.update(state(leader=2, leader_epoch=4, partition_epoch=99), 0)
    partition.update(state(leader=1, isr=(1,), leader_epoch=5, partition_epoch=8), 0)
    assert (partition.role, partition.leader_epoch, partition.isr) == (Role.LEADER, 5, (1, 2, 3))
    assert holder.terms == 0


def test_a_leader_without_a_successor_follows_nobody() -> None:
    holder = Holder(LED)
    holder.partition.update(state(leader=NO_LEADER, leader_epoch=6, partition_epoch=10), 0)
    assert (holder.partition.role, holder.partition.leader) == (Role.FOLLOWER, NO_LEADER)
    with pytest.raises(ProtocolError):
        holder.append()


def test_a_removed_replica_leads_nothing() -> None:
    holder = Holder(LED)
    told: list[ErrorCode] = []
    holder.partition.when_committed(1, told.append)
    holder.partition.when_flushed(1, told.append)
    holder.partition.removed()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert holder.partition.role is Role.ABSENT
    assert holder.partition.followers == {}


def test_a_new_term_knows_nothing_of_what_followers_fetched_in_the_last_one() -> None:
    holder = Holder(LED)
    holder.append(3)
    holder.fetched(2, 3)
    holder.fetched(3, 2)
    assert holder.high_watermark == 2
    holder.partition.update(replace(LED, leader_epoch=6, partition_epoch=10), 0)
    assert {each.end_offset for each in holder.partition.followers.values()} == {UNKNOWN}
    assert holder.partition.epoch_start_offset == 3
    assert not holder.partition.has_caught_up
    holder.fetched(2, 3)
    assert holder.high_watermark == 2, "another member has not told where it is"
    holder.fetched(3, 3)
    assert holder.high_watermark == 3
    assert holder.partition.has_caught_up


# The high watermark ---------------------------------------------------------------------------------


def test_committed_is_what_every_member_has() -> None:
    holder = Holder(LED)
    told: list[tuple[int, ErrorCode]] = []
    for end in (1, 2, 3):
        holder.append()
        holder.partition.once_committed(end, lambda code, end=end: told.append((end, code)))  # type: ignore[misc]
    assert holder.high_watermark == 0
    holder.fetched(2, 3)
    assert holder.high_watermark == 0
    holder.fetched(3, 2)
    assert holder.high_watermark == 2
    assert told == [(1, ErrorCode.NONE), (2, ErrorCode.NONE)]
    holder.fetched(3, 1)  # it was cut off, and asks again
    assert holder.high_watermark == 2
    holder.fetched(3, 3)
    assert told[2:] == [(3, ErrorCode.NONE)]
    assert holder.partition.is_committed(3)


def test_who_is_not_in_sync_does_not_count() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.append(2)
    holder.fetched(3, 2)
    assert holder.high_watermark == 0
    holder.fetched(2, 2)
    assert holder.high_watermark == 2


def test_a_member_that_leaves_counts_until_that_is_confirmed() -> None:
    holder = Holder(LED)
    holder.append(2)
    holder.now = 2000
    holder.fetched(2, 2)
    holder.partition.drop_lagging(2000, 1000)
    assert isr_wanted(holder.partition) == {1, 2}
    holder.append()
    holder.fetched(2, 3)
    assert holder.high_watermark == 0
    holder.partition.update(replace(LED, isr=(1, 2), partition_epoch=10), holder.now)
    assert holder.partition.wanted_isr is None
    assert holder.high_watermark == 3


def test_a_smaller_set_counts_with_the_minimum_it_was_decided_by() -> None:
    """Somebody raises `min.insync.replicas` while acks=all waits for a follower that is gone. The
    controller drops the follower by the new minimum, so that it may be elected: the leader must not
    commit alone by the old one."""
    holder = Holder(state(isr=(1, 2), replicas=(1, 2)))
    holder.append()
    told: list[ErrorCode] = []
    holder.partition.once_committed(1, told.append)
    holder.partition.drop_lagging(2000, 1000)
    assert isr_wanted(holder.partition) == {1}
    smaller = state(isr=(1,), replicas=(1, 2), partition_epoch=10)
    holder.partition.isr_confirmed(smaller, 2000)
    assert (holder.high_watermark, told) == (0, [])
    # The image, with both.
    raised = replace(holder.config, min_insync_replicas=2)
    holder.partition.update(smaller, 2000, raised)
    assert holder.partition.under_min_isr
    assert holder.partition.wanted_isr is None
    assert (holder.high_watermark, told) == (0, [])
    # It was not raised after all.
    holder.configure(min_isr=1)
    assert (holder.high_watermark, told) == (1, [ErrorCode.NONE])


def test_a_larger_set_counts_and_a_new_leader_is_believed_at_once() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.fetched(3, 0)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.partition.isr_confirmed(state(isr=(1, 2, 3), partition_epoch=10), 0)
    assert (holder.partition.isr, holder.partition.wanted_isr) == ((1, 2, 3), None)
    # An answer that comes after the image it speaks of.
    holder.partition.isr_confirmed(state(isr=(1, 2, 3), partition_epoch=8), 0)
    assert holder.partition.partition_epoch == 10
    elsewhere = state(isr=(2, 3), leader=2, leader_epoch=6, partition_epoch=11)
    holder.partition.isr_confirmed(elsewhere, 0)
    assert holder.partition.role is Role.FOLLOWER


def test_a_member_that_joins_counts_from_the_moment_it_is_asked_for() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.append(2)
    holder.fetched(2, 2)
    holder.fetched(3, 2)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.append()
    holder.fetched(2, 3)
    assert holder.high_watermark == 2
    # An earlier request of the same may have been granted: the larger set counts on.
    holder.partition.isr_refused(ErrorCode.INVALID_UPDATE_VERSION)
    holder.partition.isr_refused(ErrorCode.FENCED_LEADER_EPOCH)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    assert holder.high_watermark == 2
    holder.partition.isr_refused(ErrorCode.INELIGIBLE_REPLICA)
    assert holder.partition.wanted_isr is None
    assert holder.high_watermark == 3


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_member_counts_on_when_the_controller_knows_more(code: ErrorCode) -> None:
    """The answer to the first request was lost: that it comes too late the second time may mean that
    the first one was heard, and that the controller would elect the new member."""
    holder = Holder(state(isr=(1, 2)))
    holder.append(2)
    holder.fetched(2, 2)
    holder.fetched(3, 2)
    holder.partition.isr_refused(code)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.append()
    holder.fetched(2, 3)
    assert holder.high_watermark == 2
    newer = replace(state(isr=(1, 2, 3)), partition_epoch=holder.partition.partition_epoch + 1)
    holder.partition.update(newer, holder.now)
    assert holder.partition.wanted_isr is None
    assert holder.high_watermark == 2
    holder.fetched(3, 3)
    assert holder.high_watermark == 3


def test_one_alone_that_takes_another_in_no_longer_commits_alone() -> None:
    holder = Holder(state(isr=(1,), replicas=(1, 2)))
    assert holder.append()[-1]
    holder.fetched(2, 1)
    assert isr_wanted(holder.partition) == {1, 2}
    assert not holder.append()[-1]
    assert holder.high_watermark == 1
    holder.partition.update(
        state(isr=(1, 2), replicas=(1, 2), partition_epoch=10, leader=1), holder.now
    )
    assert holder.high_watermark == 1
    holder.fetched(2, 2)
    assert holder.high_watermark == 2


def test_nothing_is_committed_with_fewer_members_than_the_minimum() -> None:
    holder = Holder(LED, min_isr=2)
    holder.append()
    holder.partition.update(replace(LED, isr=(1,), partition_epoch=10), 0)
    assert holder.partition.under_min_isr
    assert holder.high_watermark == 0
    told: list[ErrorCode] = []
    holder.partition.once_committed(1, told.append)
    assert not holder.append()[-1]
    assert (holder.high_watermark, told) == (0, [])
    holder.configure(min_isr=1)
    assert (holder.high_watermark, told) == (2, [ErrorCode.NONE])
    # A topic is content with the replicas it has.
    single = Holder(state(isr=(1,), replicas=(1,)), min_isr=3)
    assert single.append()[-1]


def test_the_high_watermark_does_not_go_back() -> None:
    holder = Holder(state(isr=(1,), replicas=(1, 2)))
    holder.append(3)
    assert holder.high_watermark == 3
    holder.partition.update(state(isr=(1, 2), replicas=(1, 2), partition_epoch=10), 0)
    holder.fetched(2, 1)
    assert holder.high_watermark == 3


def test_a_follower_that_comes_to_lead_keeps_what_it_knew_to_be_committed() -> None:
    holder = Holder(FOLLOWED)
    holder.partition.take(batch(4, epoch=5), 2, 0)
    assert (holder.partition.log.log_end_offset, holder.high_watermark) == (4, 2)
    holder.partition.update(state(leader=1, leader_epoch=6, partition_epoch=10), 0)
    assert holder.high_watermark == 2
    assert holder.partition.epoch_start_offset == 4
    assert not holder.partition.has_caught_up


def test_a_follower_does_not_believe_in_more_than_it_has() -> None:
    holder = Holder(FOLLOWED)
    holder.partition.take(batch(2, epoch=5), 100, 0)
    assert holder.high_watermark == 2


def test_waiters_of_a_term_that_ended_are_told_and_those_who_gave_up_are_not() -> None:
    holder = Holder(LED)
    holder.append()
    told: list[object] = []
    holder.partition.when_committed(1, told.append)
    patient = holder.partition.when_committed(1, lambda _: told.append("called"))
    holder.partition.stop_waiting(patient)
    holder.partition.update(state(leader=2, leader_epoch=6, partition_epoch=10), 0)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    holder.partition.once_committed(1, told.append)
    assert told[1:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_the_same_term_with_another_set_fails_nobody() -> None:
    holder = Holder(LED)
    holder.append()
    told: list[ErrorCode] = []
    holder.partition.when_committed(1, told.append)
    holder.fetched(2, 1)
    holder.partition.update(replace(LED, isr=(1, 2), partition_epoch=10), 0)
    assert told == [ErrorCode.NONE]


def test_where_logs_part_although_the_term_has_no_record_yet() -> None:
    holder = Holder(FOLLOWED)
    for offset in range(3):
        holder.partition.take(batch(1, base=offset, epoch=2), 0, 0)
    log = holder.partition.log
    assert holder.partition.end_offset_for_epoch(4) == (-1, -1), "it does not lead"
    holder.partition.update(state(leader=1, leader_epoch=7, partition_epoch=10), 0)
    # Whoever has records of the terms 3 to 6 has nothing of them in common with this log.
    assert [holder.partition.end_offset_for_epoch(each) for each in (1, 2, 4, 6, 7, 8)] == [
        (1, 0),
        (2, 3),
        (2, 3),
        (2, 3),
        (7, 3),
        (-1, -1),
    ]
    assert log.end_offset_for_epoch(4) == (-1, -1)
    holder.append(2)
    assert holder.partition.end_offset_for_epoch(4) == (2, 3)
    assert holder.partition.end_offset_for_epoch(7) == (7, 5)
    empty = Holder(state(leader_epoch=7))
    assert empty.partition.end_offset_for_epoch(4) == (4, 0)


# Who joins ------------------------------------------------------------------------------------------


def test_joining_needs_the_high_watermark_and_the_start_of_the_term() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.append(3)
    holder.fetched(2, 2)
    assert holder.high_watermark == 2
    holder.fetched(3, 1)
    assert holder.partition.wanted_isr is None
    holder.fetched(3, 2)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.partition.update(state(isr=(1, 2), leader_epoch=6, partition_epoch=10), 0)
    assert holder.partition.epoch_start_offset == 3
    # It has what is below the high watermark, but the leader's own term begins at 3.
    holder.fetched(3, 2)
    assert holder.partition.wanted_isr is None
    holder.fetched(3, 3)
    assert isr_wanted(holder.partition) == {1, 2, 3}


def test_the_life_that_fetched_is_named_and_must_be_known() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.known = {2: 20, 3: 31}
    holder.fetched(3, 0)
    assert holder.partition.wanted_isr is None, "the controller has another life of it"
    holder.partition.fetched(3, 0, 31, 0)
    assert holder.partition.wanted_isr == {1: UNKNOWN, 2: UNKNOWN, 3: 31}
    assert holder.asked == [{1: UNKNOWN, 2: UNKNOWN, 3: 31}]


def test_what_a_former_life_asked_for_counts_no_more_once_the_next_one_has_asked() -> None:
    """The former life had more, lost it with its machine, and its last request comes late. The next one
    is in sync again meanwhile."""
    holder = Holder(LED)
    holder.append(5)
    holder.partition.fetched(2, 2, 21, 0)
    holder.fetched(3, 5)
    assert holder.high_watermark == 2
    with pytest.raises(ProtocolError) as raised:
        holder.partition.fetched(2, 5, 20, 0)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert holder.high_watermark == 2
    # Who does not say in which life it asks, an older version, is believed.
    holder.partition.fetched(2, 3, UNKNOWN, 0)
    assert holder.high_watermark == 3


def test_one_change_at_a_time() -> None:
    holder = Holder(state(isr=(1,)))
    holder.fetched(2, 0)
    holder.fetched(3, 0)
    holder.partition.drop_lagging(10**9, 1)
    assert len(holder.asked) == 1
    holder.partition.update(state(isr=(1, 2), partition_epoch=10), 0)
    holder.fetched(3, 0)
    assert [set(each) for each in holder.asked] == [{1, 2}, {1, 2, 3}]


def test_strangers_and_offsets_out_of_range_change_nothing() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.append()
    with pytest.raises(ProtocolError) as raised:
        holder.fetched(9, 0)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    holder.fetched(2, 7)
    assert holder.partition.followers[2].end_offset == UNKNOWN
    assert holder.high_watermark == 0


# Who leaves -----------------------------------------------------------------------------------------


def test_who_lags_for_too_long_leaves() -> None:
    holder = Holder(LED)
    holder.fetched(2, 0)
    holder.fetched(3, 0)
    holder.now = 1000
    holder.append()
    holder.partition.drop_lagging(1001, 1000)
    assert isr_wanted(holder.partition) == {1}
    assert holder.high_watermark == 0


def test_who_has_everything_stays_however_long_ago_it_asked() -> None:
    holder = Holder(LED)
    holder.append()
    holder.fetched(2, 1)
    holder.fetched(3, 1)
    holder.partition.drop_lagging(10**9, 1000)
    assert holder.partition.wanted_isr is None


def test_who_keeps_up_with_a_leader_that_never_rests_stays() -> None:
    holder = Holder(LED)
    had = 0
    for now in range(0, 5000, 100):
        holder.now = now
        # They never have all, but always what there was when they last asked.
        holder.append(2)
        for member in (2, 3):
            holder.fetched(member, had)
        had = holder.partition.log.log_end_offset
    holder.partition.drop_lagging(holder.now, 1000)
    assert holder.partition.wanted_isr is None


def test_who_never_asked_has_the_time_of_the_term() -> None:
    holder = Holder(LED)
    holder.append()
    holder.partition.drop_lagging(1000, 1000)
    assert holder.partition.wanted_isr is None
    holder.fetched(2, 1)
    holder.partition.drop_lagging(1001, 1000)
    assert isr_wanted(holder.partition) == {1, 2}


def test_too_many_records_behind() -> None:
    holder = Holder(LED)
    holder.append(10)
    holder.fetched(2, 6)
    holder.fetched(3, 5)
    holder.partition.drop_lagging(1, 1000)
    assert holder.partition.wanted_isr is None, "off by default"
    holder.partition.drop_lagging(1, 1000, 5)
    assert holder.partition.wanted_isr is None
    holder.partition.drop_lagging(1, 1000, 4)
    assert isr_wanted(holder.partition) == {1, 2}


def test_a_follower_drops_nobody() -> None:
    holder = Holder(FOLLOWED)
    holder.partition.take(batch(1, epoch=5), 1, 0)
    holder.partition.drop_lagging(10**9, 1)
    holder.partition.resign()
    assert holder.asked == []


def test_a_leader_with_a_failed_log_leaves_itself_out() -> None:
    holder = Holder(LED)
    holder.partition.resign()
    assert isr_wanted(holder.partition) == {2, 3}
    alone = Holder(state(isr=(1,)))
    alone.partition.resign()
    assert alone.asked == []


def test_a_leader_does_not_resign_over_a_change_that_may_have_been_made() -> None:
    """Who was to join counts until that is settled: it may have been elected."""
    holder = Holder(state(isr=(1, 2)))
    holder.append(3)
    holder.fetched(2, 3)
    holder.fetched(3, 3)
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.append(1)
    holder.partition.resign()
    holder.fetched(2, 4)
    assert (isr_wanted(holder.partition), holder.high_watermark) == ({1, 2, 3}, 3)


def test_a_leader_with_a_failed_log_resigns_as_soon_as_it_can() -> None:
    holder = Holder(state(isr=(1, 2)))
    holder.append(3)
    holder.fetched(2, 3)
    holder.fetched(3, 3)
    holder.partition.log.go_offline("the disk failed")
    holder.partition.resign()
    assert isr_wanted(holder.partition) == {1, 2, 3}
    holder.partition.update(state(partition_epoch=10), 0)
    assert isr_wanted(holder.partition) == {2, 3}
    # Nobody was there to take its place: it is tried again by the clock, and drops none of them.
    holder.partition.isr_refused(ErrorCode.INELIGIBLE_REPLICA)
    assert isr_wanted(holder.partition) is None
    holder.partition.drop_lagging(1000, 100)
    assert isr_wanted(holder.partition) == {2, 3}


def test_a_leader_whose_log_cannot_be_opened_leaves_itself_out() -> None:
    """Such as after a start: recovery has found damage below the recovery point, and the broker is
    elected all the same, for it was in sync."""
    holder = Holder(LED)
    holder.load = unreadable  # type: ignore[method-assign]
    with pytest.raises(LogOffline):
        holder.append()
    assert isr_wanted(holder.partition) == {2, 3}
    # Nobody was there to take its place: it is tried again by the clock.
    holder.partition.isr_refused(ErrorCode.INELIGIBLE_REPLICA)
    holder.partition.drop_lagging(1000, 100)
    assert isr_wanted(holder.partition) == {2, 3}
    holder.partition.update(state(leader=2, isr=(2, 3), leader_epoch=6, partition_epoch=10), 0)
    assert isr_wanted(holder.partition) is None
    # It is elected once more: nobody has to ask for its log first.
    holder.partition.update(state(isr=(1, 2), leader_epoch=7, partition_epoch=11), 0)
    assert isr_wanted(holder.partition) == {2}
    # One that nobody has asked for anything does not know, and one whose log is there has no reason to.
    sound = Holder(LED)
    sound.partition.drop_lagging(0, 100)
    assert sound.partition._log is None
    sound.append()
    assert sound.asked == []


def unreadable(partition: Partition) -> Log:
    raise LogOffline(f"{partition.topic}-{partition.index}", "records are gone")


def test_a_follower_whose_log_has_failed_resigns_when_it_is_elected() -> None:
    holder = Holder(FOLLOWED)
    assert holder.partition.log.log_end_offset == 0
    holder.partition.log.go_offline("the disk failed")
    holder.partition.update(state(leader_epoch=6, partition_epoch=10), 0)
    assert isr_wanted(holder.partition) == {2, 3}


def test_a_follower_that_does_not_get_on_makes_its_leader_suspicious() -> None:
    holder = Holder(state())
    holder.append(3)
    holder.fetched(2, 0)
    for _ in range(SUSPICIOUS_REPEATS - 1):
        holder.fetched(2, 0)
    assert holder.suspects == []
    holder.fetched(2, 0)
    assert holder.suspects == [0]
    # Who gets on, and who has everything, is not suspicious.
    for _ in range(3 * SUSPICIOUS_REPEATS):
        holder.fetched(3, 3)
    for _ in range(3):
        holder.append()
        holder.fetched(2, holder.partition.log.log_end_offset)
        for _ in range(SUSPICIOUS_REPEATS - 1):
            holder.fetched(2, holder.partition.log.log_end_offset)
    assert holder.suspects == [0]


def test_deleted_is_what_no_live_replica_has() -> None:
    holder = Holder(state())
    holder.append(5)
    for member in (2, 3):
        holder.partition.fetched(member, 5, 10 * member, 0, start_offset=0)
    reached: list[ErrorCode] = []
    holder.partition.delete_before(3)
    assert holder.partition.low_watermark == 0
    holder.partition.when_deleted(3, reached.append)
    holder.partition.fetched(2, 5, 20, 0, start_offset=3)
    assert (holder.partition.low_watermark, reached) == (0, [])
    del holder.known[3]
    holder.partition.look_at_starts()
    assert (holder.partition.low_watermark, reached) == (3, [ErrorCode.NONE])
