"""Fixtures for tests of one module's broker, which the folder's own `broker` fixture starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from server_kit.broker_thread import BrokerElsewhere, BrokerThread, Complaints
from server_kit.wire import Wire


@pytest.fixture(scope="module")
def inside(broker: BrokerThread | BrokerElsewhere) -> BrokerThread:
    """The module's broker, for tests that look at its state."""
    if isinstance(broker, BrokerElsewhere):
        pytest.skip("the broker's inside is out of reach")
    return broker


@pytest.fixture(autouse=True)
def complaints(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """What brokers in this process logged as errors during a test: nothing, unless it says so."""
    with Complaints() as kept:
        yield kept.lines
    if request.node.get_closest_marker("complains") is None:
        assert kept.lines == []


@pytest.fixture
def connect(broker: BrokerThread | BrokerElsewhere) -> Iterator[Callable[[], Wire]]:
    """Opens connections to the module's broker; they are closed after the test."""
    opened: list[Wire] = []

    def open_one(timeout: float = 20.0) -> Wire:
        wire = broker.wire(timeout)
        opened.append(wire)
        return wire

    yield open_one
    for wire in opened:
        wire.close()


@pytest.fixture
def wire(connect: Callable[[], Wire]) -> Wire:
    return connect()
