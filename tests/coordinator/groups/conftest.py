"""Fixtures of the tests of consumer groups."""

from __future__ import annotations

import sys
from pathlib import Path

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from collections.abc import Callable, Iterator

import pytest

from ottla.testing import BrokerProcess

# No delay before the first rebalance, and sessions short enough for a test to wait for their end.
QUICK = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    """start_broker(settings) gives a running broker; it ends with the module's tests."""
    from groups_kit.sockets import prepare

    started: list[BrokerProcess] = []

    def start(settings: dict[str, str] | None = None) -> BrokerProcess:
        folder = tmp_path_factory.mktemp("broker")
        process = BrokerProcess(folder / "data", settings={**QUICK, **(settings or {})}).start()
        started.append(process)
        prepare(process.host, process.port)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker()
