"""Ctrl-C ends waiting at once, and work when it is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ottla.cli.interrupts import Interrupts


def _press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """As in a command; other tests of this process may have left one of their own (Spark does)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_waiting_is_ended_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        with interrupts.allowed():
            _press()
        raise AssertionError("it was not interrupted")
    assert not interrupts.repeated


def test_work_is_finished_first() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        for item in range(5):
            with interrupts.allowed():
                pass
            if item == 2:
                _press()
            done.append(item)
    assert done == [0, 1, 2]


def test_whoever_presses_twice_does_not_want_to_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        _press()
        done.append("first")
        _press()
        done.append("second")
    assert done == ["first"]
    assert interrupts.repeated


def test_work_without_another_wait_is_interrupted_at_its_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        _press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            _press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
