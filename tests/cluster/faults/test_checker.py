"""The checker finds each anomaly in a history made to have it, and none in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_kit.checker import Kind, check, report
from cluster_kit.history import History, Outcome, Polled, Reading, Write


def good() -> History:
    """Two producers and two consumers on two partitions, with a control record at offset 2 of each."""
    history = History()
    for partition in (0, 1):
        for number, offset in enumerate((0, 1, 3, 4)):
            write = Write("a", partition, number, Outcome.ACKNOWLEDGED, offset)
            history.writes.append(write)
            history.final.polled.append(Polled(partition, offset, write.value))
        history.writes.append(Write("b", partition, 0, Outcome.UNKNOWN))
        history.final.polled.append(Polled(partition, 5, f"b/{partition}/0"))
        history.writes.append(Write("b", partition, 1, Outcome.UNKNOWN))
        history.writes.append(Write("b", partition, 2, Outcome.ABORTED))
        history.ends[partition] = 7
    history.readings = [
        Reading("one", list(history.final.polled)),
        Reading("two", [polled for polled in history.final.polled if polled.partition == 1][2:]),
    ]
    return history


def test_a_good_history_has_no_anomaly() -> None:
    assert check(good()) == []


def test_writes_that_promise_nothing_may_be_lost() -> None:
    history = good()
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, 5, durable=False))
    assert check(history) == []


def test_two_writes_of_one_value_cannot_be_checked() -> None:
    history = good()
    history.writes.append(history.writes[0])
    with pytest.raises(ValueError, match="one value"):
        check(history)


def lost(history: History) -> None:
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, 6))


def lost_without_an_offset(history: History) -> None:
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, None))


def unseen(history: History) -> None:
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, 7))


def unread_partition(history: History) -> None:
    history.writes.append(Write("c", 2, 0, Outcome.ACKNOWLEDGED, 0))


def duplicate(history: History) -> None:
    history.final.polled.append(Polled(0, 6, "b/0/0"))


def another_value_for_another_consumer(history: History) -> None:
    polled = history.readings[1].polled
    polled[0] = Polled(1, polled[0].offset, "b/1/1")


def acknowledged_at_an_offset_of_another(history: History) -> None:
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, 5))


def found_at_another_offset(history: History) -> None:
    history.writes.append(Write("c", 0, 0, Outcome.ACKNOWLEDGED, 2))
    history.final.polled.append(Polled(0, 6, "c/0/0"))


def aborted(history: History) -> None:
    history.final.polled.append(Polled(1, 6, "b/1/2"))


def aborted_and_read_by_one(history: History) -> None:
    history.readings[1].polled.append(Polled(1, 6, "b/1/2"))


def taken_back(history: History) -> None:
    history.readings[0].polled.append(Polled(1, 6, "b/1/1"))


def phantom(history: History) -> None:
    history.final.polled.append(Polled(1, 6, "nobody/1/0"))


def in_another_partition(history: History) -> None:
    history.final.polled.append(Polled(1, 6, "b/0/1"))


def back(history: History) -> None:
    polled = history.readings[0].polled
    polled.append(polled[-2])


def still(history: History) -> None:
    polled = history.readings[0].polled
    polled.append(polled[-1])


def skipped(history: History) -> None:
    del history.readings[1].polled[1]


def reordered(history: History) -> None:
    history.writes.append(Write("a", 0, 9, Outcome.UNKNOWN))
    history.final.polled = [
        Polled(0, 2, "a/0/9"),
        *history.final.polled,
    ]
    history.final.polled.sort(key=lambda polled: (polled.partition, polled.offset))
    history.readings = []


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lost, {Kind.LOST_WRITE}),
        (lost_without_an_offset, {Kind.LOST_WRITE}),
        (unseen, {Kind.UNSEEN}),
        (unread_partition, {Kind.UNSEEN}),
        (duplicate, {Kind.DUPLICATE}),
        (another_value_for_another_consumer, {Kind.INCONSISTENT_OFFSET, Kind.TAKEN_BACK}),
        (acknowledged_at_an_offset_of_another, {Kind.INCONSISTENT_OFFSET, Kind.LOST_WRITE}),
        (found_at_another_offset, {Kind.INCONSISTENT_OFFSET}),
        (aborted, {Kind.ABORTED_READ}),
        (aborted_and_read_by_one, {Kind.ABORTED_READ, Kind.TAKEN_BACK}),
        (taken_back, {Kind.TAKEN_BACK}),
        (phantom, {Kind.PHANTOM}),
        (in_another_partition, {Kind.PHANTOM}),
        (back, {Kind.NON_MONOTONIC_POLL}),
        (still, {Kind.NON_MONOTONIC_POLL}),
        (skipped, {Kind.SKIPPED_POLL}),
        (reordered, {Kind.REORDERED}),
    ],
)
def test_an_anomaly_is_found(spoil: Callable[[History], None], kinds: set[Kind]) -> None:
    history = good()
    spoil(history)
    found = check(history)
    assert {anomaly.kind for anomaly in found} == kinds, report(found)
    assert all(kind.value in report(found) for kind in kinds)
