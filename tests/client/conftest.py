"""Fixtures of the client's tests: brokers of our own and, for those marked interop, Apache Kafka."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# The kit of the connection's tests serves here, too.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wire"))

from wire_kit.asynchronous import run_if_coroutine
from wire_kit.kafka import Kafka
from wire_kit.older import OlderBroker

from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

# What `make test` tries against other kinds of brokers: each kind of call. `make test-long` has all.
WITH_OTHER_BROKERS = frozenset(
    {
        "test_topics",
        "test_settings_of_topics",
        "test_list_offsets",
        "test_a_topic_as_a_table",
        "test_commits",
        "test_members_share_and_inherit",
        "test_send",
        "test_what_is_written_is_what_others_read",
        "test_committed_records_are_seen_and_aborted_ones_are_not",
    }
)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).resolve().parent
    for item in items:
        if item.path.is_relative_to(here) and isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            kind = None if callspec is None else callspec.params.get("kind")
            if kind in ("older", "kafka") and item.originalname not in WITH_OTHER_BROKERS:
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_coroutine(pyfuncitem)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests of a worker; topics and groups have names of their own."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        # Members hear of a rebalance with their next heartbeat.
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "auto.create.topics.enable": "false",
        # So that a test can make a transaction that hangs.
        "transaction.partition.verification.enable": "false",
        # Those who test two-phase commit start a broker of their own.
        "transaction.two.phase.commit.enable": "false",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


@pytest.fixture(scope="session")
def older_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OlderBroker]:
    """A broker that looks like Kafka 2.4."""
    data = tmp_path_factory.mktemp("older") / "data"
    with OlderBroker() as proxy:
        settings = {
            "advertised.listeners": f"PLAINTEXT://{proxy.address}",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }
        with BrokerProcess(data, settings=settings) as process:
            proxy.forward_to(process.port)
            yield proxy
    assert proxy.violations == []


@pytest.fixture(
    params=["ottla", "older", pytest.param("kafka", marks=pytest.mark.interop)], scope="session"
)
def kind(request: pytest.FixtureRequest) -> str:
    """The kinds of brokers that everything is tried against."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def bootstrap(kind: str, request: pytest.FixtureRequest) -> str:
    """The address of a broker of the kind."""
    if kind == "ottla":
        process: BrokerProcess = request.getfixturevalue("broker")
        return process.bootstrap
    if kind == "older":
        proxy: OlderBroker = request.getfixturevalue("older_broker")
        return proxy.address
    peer: Kafka = request.getfixturevalue("kafka")
    return peer.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"client-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A name that no other test has."""
    return f"group-{uuid.uuid4().hex[:12]}"
