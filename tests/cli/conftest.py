"""A broker for the commands that need one, and the commands run in this process.

The broker is `ottla serve`, one for each worker of the test run; every test has topics of its own.
TEST_BOOTSTRAP=HOST:PORT takes a broker that runs already, a Kafka for instance.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ottla.cli.app import needed_for
from ottla.testing import BrokerProcess

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | None]:
    """None where the tests are pointed at somebody else's."""
    if "TEST_BOOTSTRAP" in os.environ:
        yield None
        return
    settings = {
        # A member that joins hears with its next heartbeat what it is to read.
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "200",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as broker:
        yield broker


@pytest.fixture
def bootstrap(own_broker: BrokerProcess | None) -> str:
    return os.environ["TEST_BOOTSTRAP"] if own_broker is None else own_broker.bootstrap


@pytest.fixture
def broker_data(own_broker: BrokerProcess | None) -> Path:
    """The data folder of the broker."""
    if own_broker is None:
        pytest.skip("the broker's files are out of reach")
    return own_broker.data


def invoke(*words: Any, stdin: str | bytes = b"", server: str | None = None) -> Result:
    env = {"OTTLA_SERVER": server, "TERM": "dumb", "COLUMNS": "200"}
    given = [str(word) for word in words]
    return CliRunner(env=env).invoke(
        needed_for(given), given, input=stdin, prog_name="ottla", catch_exceptions=False
    )


@pytest.fixture
def run_at() -> Run:
    """Run a command against the broker that `server=` names, whatever comes of it."""
    return invoke


@pytest.fixture
def offline() -> Run:
    """Run a command that needs no broker; none is there for it."""

    def run(*words: Any, stdin: str | bytes = b"") -> Result:
        return invoke(*words, stdin=stdin, server="127.0.0.1:1")

    return run


@pytest.fixture
def ottla(bootstrap: str) -> Run:
    """Run a command against the broker; it must succeed unless `fails` says how it ends."""

    def run(*words: Any, stdin: str | bytes = b"", fails: int = 0) -> Result:
        result = invoke(*words, stdin=stdin, server=bootstrap)
        assert result.exit_code == fails, (words, result.exit_code, result.output)
        return result

    return run


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"cli-{uuid.uuid4().hex[:12]}"
