"""A broker and a console of it; every test has topics of its own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from console_kit.process import ConsoleProcess

from ottla import Admin, Consumer, Producer
from ottla.testing import BrokerProcess


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One worker runs them: a console takes longer to start than most of them take.
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("console"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def console(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleProcess]:
    log = tmp_path_factory.mktemp("console") / "log"
    with ConsoleProcess(log, broker.bootstrap) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(broker: BrokerProcess, admin: Admin) -> str:
    """Ten records in the first of two partitions, with the keys a and b in turn; one in the second."""
    name = f"console-{uuid.uuid4().hex[:10]}"
    admin.create_topic(name, partitions=2)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            key = "ab"[number % 2]
            producer.send(name, f"value {number}", key=key, partition=0)
        producer.send(name, b"\xff\xfe", key=b"\x00\xff", partition=1)
    return name


@pytest.fixture
def left(broker: BrokerProcess, topic: str) -> Iterator[object]:
    """The offsets of the records that consumers see in a partition."""
    with Consumer(broker.bootstrap) as consumer:

        def offsets(partition: int = 0) -> list[int]:
            rows = consumer.read(topic, {partition: "earliest"})
            found: list[int] = rows.column("offset").to_pylist()
            return found

        yield offsets
