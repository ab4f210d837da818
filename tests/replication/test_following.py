"""What a follower asks for, and what it does with each kind of answer."""

from __future__ import annotations

from typing import Any

import pytest
from replica_kit import TOPIC_ID, Holder, batch, state
from replica_kit.wire import next_request, take_answer

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.record.batch import Record
from ottla.record.legacy import build_message_set
from ottla.replication import following
from ottla.replication.following import (
    Disk,
    FetchLimits,
    Following,
    cut_off,
    follow_start,
    settle_out_of_range,
    whole_batches,
)
from ottla.replication.partition import Partition
from ottla.storage.errors import LogOffline
from ottla.storage.log.log import Log
from ottla.storage.log.truncation import do_all

LEADER = 2
LIMITS = FetchLimits(max_wait_ms=500, backoff_ms=1000)


class Follower:
    """A broker that follows partitions of one topic at one leader."""

    def __init__(self, count: int = 1) -> None:
        self.now = 0
        self.holders = [Holder(state(leader=LEADER, index=index)) for index in range(count)]
        self.following = Following(LEADER, LIMITS)
        for holder in self.holders:
            self.following.put(holder.partition)

    @property
    def partition(self) -> Partition:
        return self.holders[0].partition

    def ask(self) -> FetchRequest:
        return next_request(self.following, 1, 10, self.now)

    def answer(self, *answers: PartitionData, session: int = 0, error: int = 0) -> list[Partition]:
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(answers))
        response = FetchResponse(error_code=error, session_id=session, responses=[topic])
        return take_answer(self.following, response, self.now)

    def ends(self) -> list[int]:
        return [holder.partition.log.log_end_offset for holder in self.holders]


def data(records: bytes = b"", *, index: int = 0, watermark: int = 0, **fields: Any) -> Any:
    return PartitionData(
        partition_index=index,
        records=records,
        high_watermark=watermark,
        log_start_offset=fields.pop("start", 0),
        aborted_transactions=None,
        **fields,
    )


def asked(request: FetchRequest) -> list[tuple[int, int, int, int]]:
    """(partition, offset, leader epoch, epoch of the last batch)"""
    return [
        (each.partition, each.fetch_offset, each.current_leader_epoch, each.last_fetched_epoch)
        for topic in request.topics
        for each in topic.partitions
    ]


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


# Clocks ---------------------------------------------------------------------------------------------


class TimeOfDay(Disk):
    def log_time(self, now_ms: int) -> int:
        return 1_700_000_000_000 + now_ms


def test_logs_go_by_the_time_of_day_and_followers_by_their_own_clock() -> None:
    """By the followers' clock every log would seem to have waited for its flush for decades."""
    follower = Follower()
    follower.following = Following(LEADER, LIMITS, disk=TimeOfDay())
    follower.following.put(follower.partition)
    follower.now = 7
    follower.ask()
    follower.answer(data(batch(2, epoch=5)))
    opened = follower.partition.log
    assert opened.unflushed_since == 1_700_000_000_007
    assert not opened.due_for_flush(1_700_000_000_008)
    follower.ask()
    follower.answer(data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert follower.following.rest_ms(7) == LIMITS.backoff_ms


# Sessions -------------------------------------------------------------------------------------------


def test_a_session_is_told_everything_once_and_then_what_changed() -> None:
    follower = Follower(3)
    first = follower.ask()
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert asked(first) == [(index, 0, 5, -1) for index in range(3)]
    assert first.replica_state is not None
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (1, 10)
    follower.answer(data(batch(2, epoch=5), index=1, watermark=1), session=77)
    second = follower.ask()
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert asked(second) == [(1, 2, 5, 5)]
    assert follower.holders[1].high_watermark == 1
    follower.answer(session=77)
    third = follower.ask()
    assert (third.session_epoch, asked(third)) == (2, [])


def test_a_leader_without_sessions_is_told_everything_each_time() -> None:
    follower = Follower(2)
    follower.ask()
    follower.answer(data(batch(1, epoch=5)))
    again = follower.ask()
    assert (again.session_id, again.session_epoch) == (0, 0)
    assert asked(again) == [(0, 1, 5, 5), (1, 0, 5, -1)]


def test_the_epoch_of_a_session_goes_round() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(session=7)
    follower.following._session_epoch = 0x7FFFFFFF
    follower.ask()
    follower.answer(session=7)
    assert follower.ask().session_epoch == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_session_that_is_refused_begins_anew(error: ErrorCode) -> None:
    follower = Follower(2)
    follower.ask()
    follower.answer(session=7)
    follower.ask()
    assert follower.answer(error=error) == []
    anew = follower.ask()
    assert (anew.session_id, anew.session_epoch, len(asked(anew))) == (0, 0, 2)


def test_a_request_that_is_refused_as_a_whole_is_not_sent_again_at_once() -> None:
    follower = Follower(2)
    follower.ask()
    follower.answer(error=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert follower.following.rest_ms(follower.now) == LIMITS.backoff_ms
    follower.now += LIMITS.backoff_ms
    assert len(asked(follower.ask())) == 2


def test_partitions_come_and_go_in_a_session() -> None:
    follower = Follower(2)
    follower.ask()
    follower.answer(session=7)
    follower.following.remove(follower.partition)
    request = follower.ask()
    assert (asked(request), forgotten(request)) == ([], [0])
    follower.answer(session=7)
    assert forgotten(follower.ask()) == []
    follower.answer(session=7)
    follower.following.put(follower.partition)
    assert asked(follower.ask()) == [(0, 0, 5, -1)]
    # One that is not followed here is not removed by another of its name.
    stranger = Holder(state(leader=LEADER)).partition
    follower.following.remove(stranger)
    assert not follower.following.is_idle
    assert follower.partition in follower.following.partitions.values()


def test_a_new_leader_epoch_is_told() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(session=7)
    follower.partition.update(state(leader=LEADER, leader_epoch=6, partition_epoch=10), 0)
    follower.following.put(follower.partition)
    assert asked(follower.ask()) == [(0, 0, 6, -1)]


# Rests ----------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_served_rests_and_the_others_go_on() -> None:
    follower = Follower(2)
    follower.ask()
    follower.now = 100
    refused = data(index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    follower.answer(refused, data(batch(1, epoch=5), index=1), session=7)
    request = follower.ask()
    assert (asked(request), forgotten(request)) == ([(1, 1, 5, 5)], [0])
    assert request.max_wait_ms == 500
    follower.now = 900
    follower.answer(session=7)
    request = follower.ask()
    # No longer than the rest, which ends in 200 ms.
    assert (asked(request), forgotten(request), request.max_wait_ms) == ([], [], 128)
    follower.now = 1100
    follower.answer(session=7)
    request = follower.ask()
    assert (asked(request), request.max_wait_ms) == ([(0, 0, 5, -1)], 500)


def test_news_of_the_partition_end_its_rest() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(error_code=ErrorCode.FENCED_LEADER_EPOCH), session=7)
    assert asked(follower.ask()) == []
    follower.answer(session=7)
    follower.following.put(follower.partition)
    assert asked(follower.ask()) == [(0, 0, 5, -1)]


def test_a_damaged_batch_is_not_stored_and_is_asked_for_again_later() -> None:
    follower = Follower(2)
    follower.ask()
    broken = bytearray(batch(1, epoch=5))
    broken[-1] ^= 1
    follower.answer(data(bytes(broken)), data(batch(1, epoch=5), index=1), session=7)
    assert follower.ends() == [0, 1]
    assert asked(follower.ask()) == [(1, 1, 5, 5)]
    follower.now = LIMITS.backoff_ms
    follower.answer(session=7)
    assert asked(follower.ask()) == [(0, 0, 5, -1)]


# Answers --------------------------------------------------------------------------------------------


def test_only_whole_batches_are_taken() -> None:
    one, two = batch(1, epoch=5), batch(2, base=1, epoch=5)
    assert bytes(whole_batches(one + two, 5)) == one + two
    assert bytes(whole_batches(one + two[:-1], 5)) == one
    assert bytes(whole_batches(one + two[:11], 5)) == one
    assert bytes(whole_batches(one + two[:15], 5)) == one
    assert bytes(whole_batches(one[:-1], 5)) == b""
    assert bytes(whole_batches(b"", 5)) == b""
    # An entry of an old message set has a checksum where batches have their epoch.
    old = build_message_set([Record(0, 0, None, b"any")], 1)
    while not 5 < int.from_bytes(old[12:16], "big") < 1 << 31:
        old = build_message_set([Record(0, 0, None, old)], 1)
    assert bytes(whole_batches(old + one, 5)) == old + one
    # A length that would lead backwards ends it.
    assert bytes(whole_batches(one + b"\0" * 8 + b"\xff\xff\xff\xf0" + b"\0" * 99, 5)) == one
    follower = Follower()
    follower.ask()
    follower.answer(data(one + two[:-1], watermark=3), session=7)
    assert (follower.ends(), follower.holders[0].high_watermark) == ([1], 1)
    assert asked(follower.ask()) == [(0, 1, 5, 5)]


@pytest.mark.parametrize("is_slow", [False, True], ids=["quick disk", "slow disk"])
def test_records_of_a_later_term_than_the_leaders_are_not_taken(is_slow: bool) -> None:
    """A leader that was deposed while its answer was on the way has cut its log off and taken others'
    records: they do not follow on what was read before them. With an epoch like theirs at its end, the
    follower would seem to have all that is before it."""
    follower = Follower()
    follower.following = Following(LEADER, LIMITS, disk=SlowDisk() if is_slow else None)
    follower.following.put(follower.partition)
    follower.ask()
    ours, theirs = batch(2, epoch=5), batch(1, base=2, epoch=6)
    follower.answer(data(ours + theirs, watermark=3), session=7)
    assert (follower.ends(), follower.holders[0].high_watermark) == ([2], 2)
    assert asked(follower.ask()) == [(0, 2, 5, 5)]
    follower.answer(data(theirs + batch(1, base=3, epoch=5), watermark=4), session=7)
    assert follower.ends() == [2]
    assert follower.partition.log.epochs.latest_epoch == 5


class SlowDisk(Disk):
    def is_slow(self, _partition: Partition) -> bool:
        return True


def stale_end(follower: Follower) -> None:
    follower.partition.take(batch(1, base=2, epoch=5), 0, 0)


def stale_term(follower: Follower) -> None:
    follower.partition.update(state(leader=LEADER, leader_epoch=6, partition_epoch=10), 0)


def stale_leader(follower: Follower) -> None:
    follower.partition.update(state(leader=3, leader_epoch=6, partition_epoch=10), 0)


def stale_role(follower: Follower) -> None:
    follower.partition.update(state(leader=1, leader_epoch=6, partition_epoch=10), 0)


def removed(follower: Follower) -> None:
    follower.following.remove(follower.partition)


def reset(follower: Follower) -> None:
    follower.following.reset()


@pytest.mark.parametrize(
    "happens", [stale_end, stale_term, stale_leader, stale_role, removed, reset]
)
@pytest.mark.parametrize(
    "answer",
    [
        data(batch(3, epoch=5), watermark=3),
        data(diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)),
        data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
        data(start=2, watermark=3),
    ],
    ids=["records", "diverging", "out of range", "start"],
)
def test_an_answer_to_a_question_of_the_past_changes_nothing(happens: Any, answer: Any) -> None:
    follower = Follower()
    follower.partition.take(batch(2, epoch=3), 1, 0)
    follower.ask()
    happens(follower)
    before = follower.ends()
    assert follower.answer(answer, session=7) == []
    log = follower.partition.log
    assert follower.ends() == before
    assert (log.high_watermark, log.log_start_offset) == (1, 0)


def test_answers_about_what_was_not_asked_are_passed_over() -> None:
    follower = Follower()
    follower.ask()
    assert follower.answer(data(batch(1, epoch=5), index=9), session=7) == []
    assert follower.ends() == [0]


def test_the_leaders_start_is_followed_up_to_the_high_watermark() -> None:
    follower = Follower()
    follower.partition.take(batch(1, epoch=5) + batch(1, base=1, epoch=5), 1, 0)
    follow_start(follower.partition, 2)
    assert follower.partition.log.log_start_offset == 1
    follow_start(follower.partition, 0)
    assert follower.partition.log.log_start_offset == 1


# Where the logs part --------------------------------------------------------------------------------


def with_epochs(*lengths: tuple[int, int]) -> Follower:
    """A follower whose log has so many records of each epoch, as (epoch, records): one in a batch, so
    that a cut is where it is asked for."""
    follower = Follower()
    epochs = [epoch for epoch, count in lengths for _ in range(count)]
    for offset, epoch in enumerate(epochs):
        follower.partition.take(batch(1, base=offset, epoch=epoch), 0, 0)
    return follower


@pytest.mark.parametrize(
    ("own", "epoch", "end", "expected"),
    [
        # The leader has the same epoch and less of it.
        ([(1, 5), (3, 5)], 3, 7, 7),
        # The leader has more of an epoch than is here: what came after it goes.
        ([(1, 5), (3, 5)], 1, 9, 5),
        # The leader has less of an epoch before the last.
        ([(1, 5), (3, 5)], 1, 4, 4),
        # The leader names an epoch that is not here: the one before it, as far as it goes here.
        ([(1, 5), (3, 5)], 2, 8, 5),
        # Not a record in common.
        ([(3, 5)], 1, 2, 0),
        # Nothing to cut.
        ([(1, 5)], 1, 9, 5),
    ],
)
def test_where_a_log_is_cut_off(
    own: list[tuple[int, int]], epoch: int, end: int, expected: int
) -> None:
    follower = with_epochs(*own)
    do_all(cut_off(follower.partition, epoch, end, 0))
    assert follower.ends() == [expected]
    assert asked(follower.ask())[0][1] == expected


def test_a_diverging_epoch_is_cut_off_and_asked_again() -> None:
    follower = with_epochs((1, 2), (3, 2))
    assert asked(follower.ask()) == [(0, 4, 5, 3)]
    follower.answer(data(diverging_epoch=EpochEndOffset(epoch=1, end_offset=9)), session=7)
    assert asked(follower.ask()) == [(0, 2, 5, 1)]
    follower.answer(data(diverging_epoch=EpochEndOffset(epoch=1, end_offset=1)), session=7)
    assert asked(follower.ask()) == [(0, 1, 5, 1)]
    follower.answer(data(batch(2, base=1, epoch=4), watermark=2), session=7)
    assert asked(follower.ask()) == [(0, 3, 5, 4)]
    assert follower.holders[0].high_watermark == 2


def test_out_of_range_is_looked_up_and_rests_meanwhile() -> None:
    follower = Follower()
    follower.partition.take(batch(1, epoch=5) + batch(1, base=1, epoch=5), 0, 0)
    follower.ask()
    lost = follower.answer(data(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), session=7)
    assert lost == [follower.partition]
    position = follower.following.position_asked(follower.partition)
    assert position is not None
    assert (position.offset, follower.following.is_current(follower.partition, position)) == (
        2,
        True,
    )
    assert asked(follower.ask()) == []


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(0, 1, (0, 1)), (7, 9, (7, 7)), (1, 9, (0, 2)), (0, 2, (0, 2))]
)
def test_a_log_out_of_range_begins_or_ends_with_the_leaders(
    start: int, end: int, expected: tuple[int, int]
) -> None:
    follower = Follower()
    follower.partition.take(batch(1, epoch=5) + batch(1, base=1, epoch=5), 0, 0)
    do_all(settle_out_of_range(follower.partition, start, end, 0))
    log = follower.partition.log
    assert (log.log_start_offset, log.log_end_offset) == expected


def test_a_new_replica_begins_with_the_batch_that_the_leaders_log_begins_in() -> None:
    """Records were deleted up to the middle of a batch: the leader sends it whole."""
    follower = Follower()
    do_all(settle_out_of_range(follower.partition, 5, 12, 0))
    assert follower.ends() == [5]
    follower.ask()
    sent = batch(10, base=2) + batch(1, base=12)
    follower.answer(data(sent, watermark=13, start=5))
    log = follower.partition.log
    assert (log.log_start_offset, log.log_end_offset) == (5, 13)
    # Only an empty log begins anew.
    follower.ask()
    follower.answer(data(batch(3, base=11), watermark=14))
    assert follower.ends() == [13]


def test_a_mistake_over_one_partition_stops_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follower = Follower(2)
    follower.ask()

    append = Log.append_replicated

    def append_or_fail(log: Log, *arguments: Any) -> None:
        if log is follower.partition.log:
            raise KeyError("nobody thought of this")
        append(log, *arguments)

    monkeypatch.setattr(Log, "append_replicated", append_or_fail)
    follower.answer(data(batch(2)), data(batch(3), index=1), session=7)
    assert follower.ends() == [0, 3]
    request = follower.ask()
    assert asked(request) == [(1, 3, 5, 0)]
    assert forgotten(request) == [0]


def test_a_partition_without_a_log_is_not_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader would send its records with every answer, and they could not be taken."""
    follower = Follower(2)
    follower.ask()
    follower.answer(session=7)
    holder = follower.holders[0]

    def fail(partition: Partition) -> Log:
        raise LogOffline("t-0", "the disk failed")

    monkeypatch.setattr(holder, "load", fail)
    holder.partition.forget_log()
    follower.following.changed(holder.partition)
    assert forgotten(follower.ask()) == [0]


def test_a_mistake_of_ours_while_a_log_is_cut_stops_that_partition_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(following, "cut_off", broken)
    follower = Follower(2)
    follower.ask()
    parted = data(diverging_epoch=EpochEndOffset(epoch=4, end_offset=0))
    follower.answer(parted, data(batch(2, epoch=5), index=1), session=7)
    assert follower.ends() == [0, 2]
    assert [index for index, *_ in asked(follower.ask())] == [1]  # the other one rests


# Requests that repeat the one before them ----------------------------------------------------------


def repeats(follower: Follower) -> bool:
    """Whether the next request is made of the one before it; both ways make the same."""
    before = follower.following._repeated
    request = follower.ask()
    assert request.session_id == follower.following._session_id
    assert request.session_epoch == follower.following._session_epoch
    return before is not None and follower.following._repeated is before


def test_a_follower_of_one_partition_repeats_its_request() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(batch(1, epoch=5)), session=7)
    assert not repeats(follower)  # the first one of the session
    for base in range(1, 4):
        follower.answer(data(batch(1, base=base, epoch=5), watermark=base), session=7)
        assert repeats(follower)
        assert follower.ends() == [base + 1]
        assert follower.holders[0].high_watermark == base
    # Nothing new: no partition is named then.
    follower.answer(session=7)
    assert asked(follower.ask()) == []


def test_requests_are_repeated_while_another_partition_rests() -> None:
    follower = Follower(2)
    follower.ask()
    refused = data(index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    follower.answer(data(batch(1, epoch=5)), refused, session=7)
    follower.ask()
    base = 1

    def went_on(now: int) -> bool:
        nonlocal base
        follower.now = now
        follower.answer(data(batch(1, base=base, epoch=5)), session=7)
        base += 1
        return repeats(follower)

    assert not went_on(10)  # the one before it has forgotten the other partition
    assert went_on(20)
    assert not went_on(600)  # the rest ends before the wait would
    assert went_on(700)
    # The rest is over: the request asks for both.
    follower.now = 1000
    follower.answer(data(batch(1, base=base, epoch=5)), session=7)
    assert sorted(asked(follower.ask())) == [(0, base + 1, 5, 5), (1, 0, 5, -1)]


def test_the_end_of_a_rest_is_noticed_by_requests_that_do_not_wait() -> None:
    follower = Follower(2)
    follower.following.limits = FetchLimits(max_wait_ms=0, backoff_ms=100)
    follower.ask()
    refused = data(index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    follower.answer(data(batch(1, epoch=5)), refused, session=7)
    for base in range(1, 4):
        follower.ask()
        follower.answer(data(batch(1, base=base, epoch=5)), session=7)
    follower.now = 100
    assert sorted(asked(follower.ask())) == [(0, 4, 5, 5), (1, 0, 5, -1)]


@pytest.mark.parametrize("change", ["epoch", "start", "other", "broker", "session", "rest"])
def test_whatever_else_changes_makes_another_request(change: str) -> None:
    follower = Follower(2)
    _, second = follower.holders
    follower.following.remove(second.partition)
    follower.ask()
    for base in range(3):
        follower.answer(data(batch(1, base=base, epoch=4)), session=7)
        follower.ask()
    broker_epoch = 10
    if change == "epoch":
        follower.answer(data(batch(1, base=3, epoch=5)), session=7)
    elif change == "start":
        follower.answer(data(batch(1, base=3, epoch=4), watermark=3, start=2), session=7)
    elif change == "other":
        follower.answer(data(batch(1, base=3, epoch=4)), session=7)
        follower.following.put(second.partition)
    elif change == "session":
        follower.answer(data(batch(1, base=3, epoch=4)), session=0)
    elif change == "rest":
        follower.answer(data(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), session=7)
    else:
        follower.answer(data(batch(1, base=3, epoch=4)), session=7)
        broker_epoch = 11
    request = next_request(follower.following, 1, broker_epoch, follower.now)
    assert request.replica_state is not None
    assert request.replica_state.replica_epoch == broker_epoch
    expected = {
        "epoch": [(0, 4, 5, 5)],
        "start": [(0, 4, 5, 4)],
        "other": [(0, 4, 5, 4), (1, 0, 5, -1)],
        "broker": [(0, 4, 5, 4)],
        "session": [(0, 4, 5, 4)],
        "rest": [],
    }
    assert sorted(asked(request)) == expected[change]
    assert (request.session_epoch == 0) == (change == "session")
    if change == "start":
        assert request.topics[0].partitions[0].log_start_offset == 2
    assert forgotten(request) == ([0] if change == "rest" else [])
