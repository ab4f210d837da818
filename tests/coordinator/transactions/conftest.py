"""Fixtures of the tests of transactions; those over sockets are the server's own.

TEST_BOOTSTRAP=HOST:PORT names a running broker to be used in place of ours (say Apache Kafka).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from server_kit.broker_thread import (
    BrokerElsewhere,
    BrokerThread,
    broker_or_elsewhere,
    broker_threads,
    skip_elsewhere,
)
from server_kit.fixtures import complaints, connect, inside, wire
from transactions_kit.world import World

from ottla.testing import BrokerProcess

__all__ = ["complaints", "connect", "inside", "wire"]

# Two partitions of the coordinators' topics are enough, and quicker to make than fifty.
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread | BrokerElsewhere]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with broker_or_elsewhere(data, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerThread]]:
    with broker_threads(tmp_path) as start:

        def start_with(**settings: str) -> BrokerThread:
            own = {name.replace("_", "."): value for name, value in settings.items()}
            return start(settings=SETTINGS | own)

        yield start_with


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker in a process of its own, which can be killed."""
    skip_elsewhere()
    running = BrokerProcess(tmp_path / "data", settings=SETTINGS)
    yield running.start()
    running.kill()
