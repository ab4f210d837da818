"""`ottla transaction` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def open_transaction(ottla: Run, bootstrap: str, topic: str) -> Iterator[str]:
    """The id of a transaction that has written to the topic's second partition."""
    ottla("topic", "create", topic, "-p", 2)
    name = f"tx-{topic}"
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    producer.flush(20)
    yield name
    try:
        producer.abort_transaction(30)
    except confluent_kafka.KafkaException:
        pass  # a test has ended it


def test_list_and_describe(ottla: Run, topic: str, open_transaction: str) -> None:
    listed = json.loads(ottla("transaction", "list", "--state", "Ongoing", "--json").stdout)
    [own] = [each for each in listed if each["transactional_id"] == open_transaction]
    assert own["state"] == "Ongoing"
    assert open_transaction in ottla("transaction", "list").stdout
    long = ottla("transaction", "list", "--running-for", "2h").stdout
    assert open_transaction not in long
    one = ottla("transaction", "list", "--producer-id", own["producer_id"], "--json").stdout
    assert [each["transactional_id"] for each in json.loads(one)] == [open_transaction]

    [described] = json.loads(ottla("transaction", "describe", open_transaction, "--json").stdout)
    assert described["partitions"] == [[topic, 1]]
    assert described["producer_id"] == own["producer_id"]
    text = ottla("transaction", "describe", open_transaction).stdout
    assert f"{open_transaction}: Ongoing" in text
    assert "  open since 20" in text
    assert f"  {topic}-1\n" in text


def test_one_that_lives_does_not_hang(ottla: Run, topic: str, open_transaction: str) -> None:
    shown = ottla("transaction", "find-hanging", "--topic", topic, "--longest", "0s")
    assert shown.stdout == "no transaction hangs\n"
    assert json.loads(ottla("transaction", "find-hanging", "--json").stdout) == []


def test_abort(ottla: Run, topic: str, open_transaction: str) -> None:
    place = ("--topic", topic, "--partition", 1, "--start-offset")
    wrong = ottla("transaction", "abort", *place, 7, fails=1)
    assert "no transaction is open that starts at offset 7" in wrong.stderr
    assert f"at {topic}-1, offset 0" in ottla("transaction", "abort", *place, 0).stdout
    [row] = json.loads(ottla("topic", "offsets", topic, "-p", 1, "--json").stdout)
    assert row["latest"] == 2  # readers of committed records get past it


def test_mistakes(ottla: Run, offline: Run) -> None:
    assert ottla("transaction", "describe", "absent", fails=1).stderr == (
        "ottla: there is no transactional id 'absent'; "
        "`ottla transaction list` shows those there are\n"
    )
    assert "Sleeping" in ottla("transaction", "list", "--state", "Sleeping", fails=2).stderr
    absent = ottla("transaction", "find-hanging", "--topic", "absent", fails=1)
    assert "there is no topic 'absent'" in absent.stderr
    for words in (("list", "--running-for", "x"), ("find-hanging", "--longest", "x"), ("abort",)):
        assert offline("transaction", *words).exit_code == 2
