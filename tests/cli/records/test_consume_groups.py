"""`ottla consume --group`: a member like any other, that commits what it has printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ottla import Consumer, Producer
from ottla.cli.app import app
from ottla.cli.records import reader as record_reader
from ottla.testing import BrokerProcess

Run = Callable[..., Result]

COMMAND = [sys.executable, "-m", "ottla.cli.main"]
TIMEOUT = 60


@pytest.fixture
def group() -> str:
    """A name that no other test has."""
    return f"group-{uuid.uuid4().hex[:12]}"


def _lag(ottla: Run, group: str) -> int:
    lag: int = json.loads(ottla("group", "lag", group, "--json").stdout)["lag"]
    return lag


def test_it_goes_on_where_it_was(ottla: Run, topic: str, group: str) -> None:
    ottla("topic", "create", topic, "-p", 2)
    ottla("produce", topic, "-p", 0, stdin="a\nb\n")
    ottla("produce", topic, "-p", 1, stdin="c\n")
    first = ottla("consume", topic, "--group", group).stdout
    assert sorted(first.split()) == ["a", "b", "c"]
    assert ottla("consume", topic, "--group", group).stdout == ""
    ottla("produce", topic, "-p", 0, stdin="d\n")
    assert ottla("consume", topic, "--group", group).stdout == "d\n"
    # Alone it reads what it is asked for, whatever groups have read.
    assert len(ottla("consume", topic).stdout.split()) == 4


def test_no_more_is_committed_than_was_printed(ottla: Run, topic: str, group: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin="a\nb\nc\n")
    assert ottla("consume", topic, "-g", group, "--count", 1).stdout == "a\n"
    assert _lag(ottla, group) == 2
    assert ottla("consume", topic, "-g", group).stdout == "b\nc\n"
    assert _lag(ottla, group) == 0


def test_a_group_that_begins_at_the_end(ottla: Run, topic: str, group: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin="old\n")
    assert ottla("consume", topic, "-g", group, "--from", "latest").stdout == ""
    ottla("produce", topic, stdin="new\n")
    assert ottla("consume", topic, "-g", group).stdout == "new\n"


def test_transactions_leave_no_lag(ottla: Run, bootstrap: str, topic: str, group: str) -> None:
    ottla("topic", "create", topic)
    with Producer(bootstrap, transactional_id=f"writer of {topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"seen")
    assert ottla("consume", topic, "-g", group).stdout == "seen\n"
    assert ottla("consume", topic).stdout == "seen\n"
    assert _lag(ottla, group) == 0


def test_interrupted_it_has_committed_and_leaves(bootstrap: str, topic: str, ottla: Run) -> None:
    group = f"{topic}-group"
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin="first\n")
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--group", group, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OTTLA_SERVER": bootstrap},
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"first\n"
        ottla("produce", topic, stdin="second\n")
        assert consumer.stdout.readline() == b"second\n"
        ottla("produce", topic, stdin="third\n")
        assert consumer.stdout.readline() == b"third\n"
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(TIMEOUT) == 130
        assert consumer.stderr.read() == b""
    assert json.loads(ottla("group", "members", group, "--json").stdout) == []
    # The commit of the third may have been interrupted; those before it are done.
    assert _lag(ottla, group) <= 1


def test_others_have_all_partitions(
    ottla: Run, bootstrap: str, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reader, "ASSIGNMENT_PATIENCE", 0.1)
    ottla("topic", "create", topic)
    with Consumer(bootstrap, group=group) as other:
        other.subscribe(topic)
        assert other.assignment
        result = ottla("consume", topic, "-g", group, fails=1)
    assert result.stderr.startswith(f"ottla: the members of group '{group}' have all partitions")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def classic_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "group.coordinator.rebalance.protocols": "classic",
        "group.initial.rebalance.delay.ms": "0",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process


def test_a_broker_with_classic_groups_only(classic_broker: BrokerProcess) -> None:
    def run(*words: str, stdin: str = "") -> str:
        environment = {"OTTLA_SERVER": classic_broker.bootstrap}
        result = CliRunner(env=environment).invoke(app, words, input=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    run("produce", "t", stdin="a\nb\n")
    assert run("consume", "t", "--group", "g") == "a\nb\n"
    assert run("consume", "t", "--group", "g") == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--until", "5"), "leave --until and --partition away"),
        (("--partition", "0"), "leave --until and --partition away"),
        (("--from", "5"), "--from is earliest or latest"),
        (("--from", "-15m"), "--from is earliest or latest"),
    ],
)
def test_what_a_group_decides_itself(offline: Run, words: tuple[str, ...], sentence: str) -> None:
    result = offline("consume", "x", "--group", "g", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_group_without_a_name(offline: Run) -> None:
    result = offline("consume", "x", "--group", "")
    assert result.exit_code == 2
    assert result.stderr == "ottla: --group cannot be empty\n"
