"""`ottla topic` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

Run = Callable[..., Result]


def test_create_list_describe_delete(ottla: Run, topic: str) -> None:
    assert ottla("topic", "create", topic, "-p", 3, "-c", "retention.ms=86400000").stdout == (
        f"created {topic}\n"
    )
    listed = json.loads(ottla("topic", "list", "--json").stdout)
    assert {"name": topic, "partitions": 3, "replication_factor": 1, "internal": False} in listed
    assert topic in ottla("topic", "list", "--quiet").stdout.splitlines()
    assert topic in ottla("topic", "list").stdout

    [described] = json.loads(ottla("topic", "describe", topic, "--json").stdout)
    assert described["name"] == topic
    assert len(described["topic_id"]) == 22
    assert described["settings"] == {"retention.ms": "86400000"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    for each in described["partitions"]:
        assert each["replicas"] == each["in_sync"] == [each["leader"]]
        assert (each["earliest"], each["latest"]) == (0, 0)
    text = ottla("topic", "describe", topic).stdout
    assert "3 partitions" in text
    assert "retention.ms=86400000" in text

    assert ottla("topic", "delete", topic).stdout == f"deleted {topic}\n"
    assert topic not in ottla("topic", "list", "--quiet").stdout.splitlines()


def test_create_several_and_existing_ones(ottla: Run, topic: str) -> None:
    other = topic + "-b"
    answer = json.loads(ottla("topic", "create", topic, other, "--json").stdout)
    assert answer == {"created": [topic, other], "dry_run": False}
    again = ottla("topic", "create", topic, fails=1)
    assert again.stderr == (
        f"ottla: topic '{topic}' exists already; change it with `ottla topic alter {topic}`\n"
    )
    assert ottla("topic", "create", topic, "--if-not-exists").stdout == ""


def test_dry_run_creates_nothing(ottla: Run, topic: str) -> None:
    assert "could be created" in ottla("topic", "create", topic, "--dry-run").stdout
    assert topic not in ottla("topic", "list", "--quiet").stdout.splitlines()


def test_alter(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-c", "retention.ms=1000000000")
    ottla("topic", "alter", topic, "--partitions", 4, "-c", "max.message.bytes=5000")
    ottla("topic", "alter", topic, "--unset", "retention.ms")
    [described] = json.loads(ottla("topic", "describe", topic, "--json").stdout)
    assert len(described["partitions"]) == 4
    assert described["settings"] == {"max.message.bytes": "5000"}
    fewer = ottla("topic", "alter", topic, "--partitions", 2, fails=1)
    assert fewer.stderr.startswith("ottla: the broker refused: ")


def test_offsets(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 2)
    records = '{"value":"a","timestamp":1000000}\n{"value":"b","timestamp":2000000}\n'
    ottla("topic", "alter", topic, "-c", "retention.ms=-1")
    ottla("produce", topic, "--json", "--partition", 1, stdin=records)
    rows = json.loads(ottla("topic", "offsets", topic, "--json").stdout)
    assert rows == [
        {"topic": topic, "partition": 0, "earliest": 0, "latest": 0, "span": 0},
        {"topic": topic, "partition": 1, "earliest": 0, "latest": 2, "span": 2},
    ]
    [row] = json.loads(
        ottla("topic", "offsets", topic, "-p", 1, "--at", "@1500000", "--json").stdout
    )
    assert (row["offset"], row["timestamp"]) == (1, 2000000)
    [row] = json.loads(
        ottla("topic", "offsets", topic, "-p", 1, "--at", "max-timestamp", "--json").stdout
    )
    assert row["offset"] == 1
    [row] = json.loads(
        ottla("topic", "offsets", topic, "-p", 0, "--at", "@1500000", "--json").stdout
    )
    assert row["offset"] is None
    assert "PARTITION  EARLIEST  LATEST  SPAN" in ottla("topic", "offsets", topic).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe"),
        ("topic", "delete"),
        ("topic", "offsets"),
        ("topic", "alter", "--partitions", 2),
        ("config", "describe", "topic"),
        ("consume",),
    ],
)
def test_a_topic_that_is_not_there(ottla: Run, topic: str, words: tuple[str, ...]) -> None:
    result = ottla(*words, topic, fails=1)
    assert result.stderr == (
        f"ottla: there is no topic '{topic}'; `ottla topic list` shows those there are, "
        f"`ottla topic create {topic}` makes it\n"
    )
    assert result.stdout == ""
    # Looking at a topic must not create it.
    assert topic not in ottla("topic", "list", "--quiet").stdout.splitlines()


def test_a_misspelt_name_deletes_nothing(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("topic", "delete", topic, topic + "-misspelt", fails=1)
    assert topic in ottla("topic", "list", "--quiet").stdout.splitlines()
    ottla("topic", "delete", topic, topic + "-misspelt", "--if-exists")
    assert topic not in ottla("topic", "list", "--quiet").stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-c", "no.such.setting=1"), "no.such.setting"),
        (("-c", "retention.ms=soon"), "retention.ms"),
        (("-r", "7"), "the broker refused"),
    ],
)
def test_what_the_broker_refuses(
    ottla: Run, topic: str, words: tuple[str, ...], sentence: str
) -> None:
    result = ottla("topic", "create", topic, *words, fails=1)
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "x", "--partitions", "many"), "--partitions"),
        (("create", "x", "--partitions", "0"), "--partitions"),
        (("create", "x", "--config", "nothing"), "--config takes name=value, not 'nothing'"),
        (("create",), "TOPIC"),
        (("create", "no spaces here"), "cannot be a topic's name"),
        (("create", "ok", ".."), "cannot be a topic's name"),
        (("create", "x" * 250), "cannot be a topic's name"),
        (("alter", "x"), "nothing to alter"),
        (("offsets", "x", "--at", "7"), "--at takes earliest"),
        (("offsets", "x", "--at", "soon"), "--at takes earliest"),
        (("list", "--jsn"), "--jsn"),
        (("lst",), "lst"),
    ],
)
def test_mistakes_on_the_command_line(offline: Run, words: tuple[str, ...], sentence: str) -> None:
    result = offline("topic", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("ottla: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_partition_that_is_not_there(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    result = ottla("topic", "offsets", topic, "-p", 5, fails=1)
    assert "has no partition 5; it has 1 partition, counted from 0" in result.stderr


def test_nobody_answers(offline: Run) -> None:
    result = offline("topic", "list")
    assert result.exit_code == 1
    assert result.stderr == (
        "ottla: nothing answers at 127.0.0.1:1; start one with `ottla serve`, "
        "or name another with --server HOST:PORT\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topic", "create", "x", "--partitions", "99999999999"), "a number is larger than any"),
        (("topic", "create", "x", "--replication-factor", "32768"), "a number is larger than any"),
        (("cluster", "upgrade", "ottla.version=32768"), "a number is larger than any"),
        (("group", "lag", "\udcff"), "a name or a value is not UTF-8"),
        (("group", "lag", "x" * 70_000), "a string of 70000 bytes is too long"),
    ],
)
def test_what_fits_into_no_request(ottla: Run, words: tuple[str, ...], sentence: str) -> None:
    result = ottla(*words, fails=2)
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9092", "here:there", "127.0.0.1:0", "127.0.0.1:99999", ":9092", ","],
)
def test_bad_addresses(offline: Run, address: str) -> None:
    result = offline("topic", "list", "--server", address)
    assert result.exit_code == 2
    assert "--server takes HOST:PORT" in result.stderr
