"""`ottla group` against a broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from typer.testing import Result

Run = Callable[..., Result]
HOUR = 3_600_000


@pytest.fixture
def group() -> str:
    """A name that no other test has."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled(ottla: Run, topic: str) -> str:
    """A topic of two partitions; the first has a record for each of the last five hours."""
    ottla("topic", "create", topic, "-p", 2)
    now = int(time.time() * 1000)
    records = "".join(
        json.dumps({"value": f"v{hours}", "timestamp": now - hours * HOUR}) + "\n"
        for hours in (5, 4, 3, 2, 1)
    )
    ottla("produce", topic, "--json", "--partition", 0, stdin=records)
    ottla("produce", topic, "--partition", 1, stdin="only\n")
    return topic


def _commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(
        offsets=[
            confluent_kafka.TopicPartition(topic, number, offset)
            for number, offset in enumerate(offsets)
        ],
        asynchronous=False,
    )
    consumer.close()


@pytest.fixture
def member(bootstrap: str, group: str, filled: str) -> Iterator[Any]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "somebody"}
    )
    assigned: list[object] = []
    consumer.subscribe([filled], on_assign=lambda _, some: assigned.extend(some))
    deadline = time.monotonic() + 40
    while not assigned:
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    yield consumer
    consumer.close()


def test_a_group_without_members(ottla: Run, bootstrap: str, group: str, filled: str) -> None:
    _commit(bootstrap, group, filled, 2, 1)
    listed = json.loads(ottla("group", "list", "--json").stdout)
    [own] = [each for each in listed if each["group"] == group]
    assert (own["type"], own["state"]) == ("classic", "Empty")
    assert group in ottla("group", "list", "--quiet", "--state", "empty").stdout.splitlines()
    assert group not in ottla("group", "list", "--quiet", "--state", "stable").stdout
    assert group in ottla("group", "list", "--type", "classic").stdout

    [described] = json.loads(ottla("group", "describe", group, "--json").stdout)
    shown = [
        (each["partition"], each["committed"], each["latest"], each["lag"])
        for each in described["partitions"]
    ]
    assert shown == [(0, 2, 5, 3), (1, 1, 1, 0)]
    text = ottla("group", "describe", group).stdout
    assert f"{group}: classic group, Empty, 0 members" in text
    assert "COMMITTED  LATEST  LAG" in text
    lag = json.loads(ottla("group", "lag", group, "--json").stdout)
    assert lag["lag"] == 3
    assert json.loads(ottla("group", "lag", group, "-t", f"{filled}:1", "--json").stdout)[
        "topics"
    ] == [{"topic": filled, "partitions": 1, "uncommitted": 0, "lag": 0}]
    assert "has no members" in ottla("group", "members", group).stdout

    assert ottla("group", "delete", group).stdout == f"deleted {group}\n"
    assert group not in ottla("group", "list", "--quiet").stdout.splitlines()


def test_a_group_with_a_member(ottla: Run, group: str, filled: str, member: object) -> None:
    [shown] = json.loads(ottla("group", "members", group, "--json").stdout)
    assert shown["client"] == "somebody"
    assert shown["partitions"] == [[filled, 0], [filled, 1]]
    assert f"{filled}-0 {filled}-1" in ottla("group", "members", group).stdout
    [described] = json.loads(ottla("group", "describe", group, "--json").stdout)
    assert described["state"] == "Stable"
    assert [each["client"] for each in described["partitions"]] == ["somebody"] * 2
    sentence = f"ottla: group '{group}' has members"
    assert ottla("group", "delete", group, fails=1).stderr.startswith(sentence)
    words = ("group", "reset-offsets", group, "--topic", filled, "--to-earliest")
    assert ottla(*words, "--execute", fails=1).stderr.startswith(sentence)
    assert "must be stopped first" in ottla(*words).stderr


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        (("--to-earliest",), 0, 0),
        (("--to-latest",), 5, 1),
        (("--to-offset", 1), 1, 1),
        (("--to-offset", 99), 5, 1),
        (("--to-datetime", "-210m"), 2, None),
        (("--by-duration", "PT2H30M"), 3, None),
        (("--by-duration", "150m"), 3, None),
        (("--shift-by", 2), 4, 1),
        (("--shift-by", -1), 1, 0),
        (("--shift-by", -50), 0, 0),
    ],
)
def test_where_offsets_go(
    ottla: Run,
    bootstrap: str,
    group: str,
    filled: str,
    words: tuple[Any, ...],
    first: int,
    second: int | None,
) -> None:
    _commit(bootstrap, group, filled, 2, 1)
    command = ("group", "reset-offsets", group, "--all-topics", *words, "--json")
    plan = json.loads(ottla(*command).stdout)
    # The only record of the second partition is of now: later than all of these times.
    after = [first, 0 if second is None else second]
    assert [each["before"] for each in plan["changes"]] == [2, 1]
    assert [each["after"] for each in plan["changes"]] == after
    assert plan["executed"] is False
    assert _committed(ottla, group) == [2, 1]
    assert json.loads(ottla(*command, "--execute").stdout)["executed"] is True
    assert _committed(ottla, group) == after


def _committed(ottla: Run, group: str) -> list[int]:
    [described] = json.loads(ottla("group", "describe", group, "--json").stdout)
    return [each["committed"] for each in described["partitions"]]


def test_a_plan_is_only_shown(ottla: Run, bootstrap: str, group: str, filled: str) -> None:
    _commit(bootstrap, group, filled, 2, 1)
    command = ("group", "reset-offsets", group, "--topic", f"{filled}:0", "--to-earliest")
    for more in ((), ("--dry-run",)):
        shown = ottla(*command, *more)
        assert [line.split() for line in shown.stdout.splitlines()] == [
            ["TOPIC", "PARTITION", "BEFORE", "AFTER"],
            [filled, "0", "2", "0"],
        ]
        assert shown.stderr == "nothing was changed: --execute does it\n"
    assert _committed(ottla, group) == [2, 1]


def test_offsets_of_a_group_that_is_not_there_yet(ottla: Run, group: str, filled: str) -> None:
    ottla("group", "reset-offsets", group, "--topic", filled, "--to-latest", "--execute")
    assert _committed(ottla, group) == [5, 1]


def test_mistakes(ottla: Run, offline: Run, group: str, filled: str) -> None:
    for words in (("describe",), ("members",), ("lag",), ("delete",)):
        assert ottla("group", *words, group, fails=1).stderr == (
            f"ottla: there is no group '{group}'; `ottla group list` shows those there are\n"
        )
    reset = ("group", "reset-offsets", group)
    assert "there is no topic" in ottla(*reset, "-t", "absent", "--to-latest", fails=1).stderr
    assert "no partition 7" in ottla(*reset, "-t", f"{filled}:7", "--to-latest", fails=1).stderr
    assert "has committed nothing" in ottla(*reset, "--all-topics", "--to-latest", fails=1).stderr
    for options, sentence in (
        (("--to-latest",), "which topics?"),
        (("--all-topics", "-t", "x", "--to-latest"), "which topics?"),
        (("--all-topics",), "where to?"),
        (("--all-topics", "--to-latest", "--to-earliest"), "contradict"),
        (("--all-topics", "--to-latest", "--execute", "--dry-run"), "give one of them"),
        (("--all-topics", "--to-datetime", "soon"), "--to-datetime takes"),
        (("--all-topics", "--to-datetime", "7"), "--to-datetime takes a time"),
        (("--all-topics", "--by-duration", "soon"), "--by-duration takes a length of time"),
        (("--all-topics", "--by-duration", "P"), "--by-duration takes a length of time"),
        (("-t", "x:y", "--to-latest"), "--topic takes"),
    ):
        result = offline(*reset, *options)
        assert result.exit_code == 2, options
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
