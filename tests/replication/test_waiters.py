"""Waiting for an offset: who is called, with what, and once."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.replication.waiters import OffsetWaiters


class Called:
    """Writes down who was called."""

    def __init__(self) -> None:
        self.said: list[tuple[int, ErrorCode]] = []
        self.waiters = OffsetWaiters()

    def wait(self, offset: int) -> object:
        return self.waiters.add(offset, lambda code: self.said.append((offset, code)))


def test_those_that_are_reached_are_called_in_order() -> None:
    called = Called()
    for offset in (5, 9, 7, 5):
        called.wait(offset)
    called.waiters.advance(4)
    assert called.said == []
    called.waiters.advance(7)
    assert called.said == [(5, ErrorCode.NONE), (5, ErrorCode.NONE), (7, ErrorCode.NONE)]
    called.waiters.advance(100)
    called.waiters.advance(200)
    assert called.said[3:] == [(9, ErrorCode.NONE)]


def test_failure_reaches_everybody_once() -> None:
    called = Called()
    called.wait(5)
    called.wait(9)
    called.waiters.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    called.waiters.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    called.waiters.advance(100)
    assert called.said == [
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (9, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]


def test_a_mistake_with_one_is_not_paid_for_by_the_others() -> None:
    called = Called()
    called.wait(5)

    def mistake(_: ErrorCode) -> None:
        raise ZeroDivisionError

    called.waiters.add(5, mistake)
    called.wait(6)
    called.wait(9)
    with pytest.raises(ZeroDivisionError):
        called.waiters.advance(6)
    assert called.said == [(5, ErrorCode.NONE), (6, ErrorCode.NONE)]
    called.waiters.advance(9)
    assert called.said[2:] == [(9, ErrorCode.NONE)]


def test_whoever_gave_up_is_not_called() -> None:
    called = Called()
    first = called.waiters.add(5, lambda code: called.said.append((5, code)))
    called.wait(5)
    called.waiters.remove(first)
    called.waiters.remove(first)
    called.waiters.advance(5)
    assert called.said == [(5, ErrorCode.NONE)]


def test_who_is_called_may_wait_again() -> None:
    called = Called()

    def again(code: ErrorCode) -> None:
        called.said.append((1, code))
        called.wait(2)

    called.waiters.add(1, again)
    called.waiters.advance(2)
    assert called.said == [(1, ErrorCode.NONE)]
    called.waiters.advance(2)
    assert called.said == [(1, ErrorCode.NONE), (2, ErrorCode.NONE)]
