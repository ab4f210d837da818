"""Log lines that clients cause: a few a second for each cause, with a count of the others."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.wire import Wire

from ottla.server.network import connection
from ottla.server.observability import limited_log as limited_log_module
from ottla.server.observability.limited_log import LINES, PERIOD_SECONDS, LimitedLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(request: pytest.FixtureRequest, lines: Lines, clock: Clock) -> LimitedLog:
    log = logging.getLogger(f"test.{request.node.name}")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False
    return LimitedLog(log, clock=clock)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a broker: conftest lifts the limit for the other tests."""
    monkeypatch.setattr(limited_log_module, "LINES", LINES)


def total(lines: list[str]) -> int:
    """How many events the lines stand for."""
    return len(lines) + sum(int(n) for n in re.findall(r"and (\d+) more like it", "\n".join(lines)))


def test_few_lines_and_a_count(limited: LimitedLog, lines: Lines, clock: Clock) -> None:
    for number in range(1000):
        limited.warning("bad peer=%d", number)
    assert lines.lines == [f"bad peer={number}" for number in range(LINES)]
    clock.now += PERIOD_SECONDS
    limited.warning("bad peer=%d", 1000)
    assert lines.lines[LINES:] == [
        f"bad peer=999 (and {1000 - LINES - 1} more like it)",
        "bad peer=1000",
    ]
    assert total(lines.lines) == 1001


def test_each_cause_has_its_own_lines(limited: LimitedLog, lines: Lines) -> None:
    for number in range(100):
        limited.warning("bad peer=%d", number)
    limited.error("something else: %s", "seen")
    assert lines.lines[-1] == "something else: seen"


def test_slow_events_are_all_written(limited: LimitedLog, lines: Lines, clock: Clock) -> None:
    for number in range(50):
        limited.info("now and then %d", number)
        clock.now += PERIOD_SECONDS / LINES
    assert lines.lines == [f"now and then {number}" for number in range(50)]


def test_a_traceback_is_written_and_not_kept(limited: LimitedLog, lines: Lines) -> None:
    import gc
    import weakref

    class Payload:
        pass

    def fail() -> weakref.ref[Payload]:
        payload = Payload()
        try:
            raise ValueError("no good")
        except ValueError as error:
            limited.error("failed", exc_info=error)
        return weakref.ref(payload)

    gc.disable()
    try:
        # The lines that are written are also kept by pytest.
        assert [fail()() for _ in range(10)][LINES:] == [None] * (10 - LINES)
    finally:
        gc.enable()


def test_a_loop_that_ends_takes_no_later_report_with_it(limited: LimitedLog, lines: Lines) -> None:
    async def flood() -> None:
        for number in range(10):
            limited.warning("bad peer=%d", number)

    asyncio.run(flood())  # which is over before the timer

    async def flood_again() -> None:
        await flood()
        await asyncio.sleep(PERIOD_SECONDS)

    asyncio.run(flood_again())
    assert total(lines.lines) == 20


def test_a_flood_of_malformed_requests(
    inside: BrokerThread,
    connect: Callable[[], Wire],
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after it ended, the log says how many there were."""
    # One that owes no lines about what other tests have sent.
    monkeypatch.setattr(connection, "limited_log", LimitedLog(connection.log))
    log = logging.getLogger("ottla")
    log.addHandler(lines)
    before = inside.run(lambda broker: broker.reactor.malformed)
    try:
        for _ in range(200):
            wire = connect()
            wire.send_raw(b"\xff\xff\xff\xff")
            assert wire.is_closed()
        assert inside.run(lambda broker: broker.reactor.malformed) - before == 200
        written = [line for line in lines.lines if "malformed request" in line]
        # However long the two hundred took, they were spread over few periods.
        assert len(written) < 100
        inside.until(
            lambda _: total([each for each in lines.lines if "malformed request" in each]) == 200
        )
    finally:
        log.removeHandler(lines)


def test_a_flood_of_refused_connections(
    start_broker: Callable[..., BrokerThread], lines: Lines
) -> None:
    broker = start_broker(settings={"max.connections": "1"})
    log = logging.getLogger("ottla")
    log.addHandler(lines)
    try:
        with broker.wire():
            broker.until(lambda b: len(b.reactor.connections) == 1)
            for _ in range(200):
                with broker.wire() as refused:
                    assert refused.is_closed()
            refusals = [each for each in lines.lines if "too many connections" in each]
            assert len(refusals) < 100
            broker.until(
                lambda _: total([each for each in lines.lines if "too many" in each]) == 200
            )
    finally:
        log.removeHandler(lines)
