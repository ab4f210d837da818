"""Fixtures of the server's tests: one broker for each test module, in a thread of the test process.

TEST_BOOTSTRAP=HOST:PORT names a running broker to be used in its place (say Apache Kafka, to
see whether a test asks for what Kafka does); tests that look inside are skipped then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_kit.broker_thread import (
    BrokerElsewhere,
    BrokerThread,
    broker_or_elsewhere,
    broker_threads,
    skip_elsewhere,
)
from server_kit.calls import Topic, create_topic
from server_kit.fixtures import complaints, connect, inside, wire
from server_kit.gated_files import files
from server_kit.wire import Wire

from ottla.server.observability import limited_log
from ottla.testing import BrokerProcess

__all__ = ["complaints", "connect", "files", "inside", "wire"]

StartBroker = Callable[..., BrokerThread]
StartProcess = Callable[..., BrokerProcess]


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "complains: the broker is expected to log errors in this test",
        "differs(how): Kafka does something else, which is known",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where Ottla and Kafka are known to differ, a test of Ottla's way may fail against Kafka."""
    if "TEST_BOOTSTRAP" not in os.environ:
        return
    for item in items:
        known = item.get_closest_marker("differs")
        if known is not None:
            item.add_marker(pytest.mark.xfail(reason=known.args[0]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread | BrokerElsewhere]:
    with broker_or_elsewhere(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def is_kafka(broker: BrokerThread | BrokerElsewhere) -> bool:
    return isinstance(broker, BrokerElsewhere)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers for one test: start_broker(**settings of BrokerThread)."""
    with broker_threads(tmp_path) as start:
        yield start


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts brokers in processes of their own: start_process(**settings of BrokerProcess)."""
    skip_elsewhere()
    started: list[BrokerProcess] = []

    def start(**settings: object) -> BrokerProcess:
        data = tmp_path / f"process-{len(started)}" / "data"
        process = BrokerProcess(data, **settings)  # type: ignore[arg-type]
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.kill()


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit on log lines: what one test makes a broker say must not silence the next one's."""
    monkeypatch.setattr(limited_log, "LINES", 1_000_000)


@pytest.fixture
def topic(wire: Wire) -> Topic:
    """A new topic of one partition."""
    return create_topic(wire)
