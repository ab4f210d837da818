"""`ottla record delete` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from ottla import Producer

Run = Callable[..., Result]


@pytest.fixture
def filled(ottla: Run, topic: str) -> str:
    """Ten records with the keys a and b in turn, in two partitions."""
    ottla("topic", "create", topic, "-p", 2)
    for partition in (0, 1):
        lines = "".join(f"{'ab'[each % 2]}:{partition}{each}\n" for each in range(5))
        ottla("produce", topic, "--partition", partition, "-K", ":", stdin=lines)
    return topic


def values(ottla: Run, topic: str, partition: int) -> list[str]:
    return ottla("consume", topic, "-p", partition).stdout.splitlines()


def test_by_offset(ottla: Run, filled: str) -> None:
    done = ottla("record", "delete", filled, 0, 1, "3-4")
    assert done.stdout == f"deleted 3 records of {filled}\n"
    assert values(ottla, filled, 0) == ["00", "02"]
    assert len(values(ottla, filled, 1)) == 5
    answer = json.loads(ottla("record", "delete", filled, 1, 0, "--json").stdout)
    assert answer == {"topic": filled, "deleted": 1, "partitions": {"1": 1}}


def test_by_key(ottla: Run, filled: str) -> None:
    would = ottla("record", "delete", filled, "--key", "a", "--dry-run")
    assert would.stdout == f"would delete 6 records of {filled}\n"
    assert len(values(ottla, filled, 0)) == 5
    assert ottla("record", "delete", filled, "--key", "a").stdout.startswith("deleted 6 records")
    assert values(ottla, filled, 0) == ["01", "03"]
    assert values(ottla, filled, 1) == ["11", "13"]
    assert ottla("record", "delete", filled, "--key", "a").stdout.startswith("deleted 0 records")


def test_by_key_while_a_transaction_is_open(ottla: Run, filled: str, bootstrap: str) -> None:
    """What it may hold cannot be looked into, which is told."""
    with Producer(bootstrap, transactional_id=f"writer of {filled}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(filled, b"open", key=b"a", partition=1)
        producer.flush()
        done = ottla("record", "delete", filled, "--key", "a")
        assert done.stdout == f"deleted 6 records of {filled}\n"
        assert done.stderr == (
            f"not looked at: offsets 5 to 5 of partition 1 of {filled}, from where a transaction is "
            "open; repeat this when it has ended\n"
        )
        producer.commit_transaction()
    done = ottla("record", "delete", filled, "--key", "a")
    assert (done.stdout, done.stderr) == (f"deleted 1 record of {filled}\n", "")


def test_dump_and_verify(ottla: Run, filled: str, broker_data: Path) -> None:
    """Offline, what is deleted is named, not shown."""
    ottla("record", "delete", filled, 0, 1, "3-4")
    folder = broker_data / f"{filled}-0"
    lines = ottla("log", "dump", folder, "--records").stdout.splitlines()
    assert lines[2:5] == ["  1 deleted", lines[3], "  3 deleted"]
    assert 'value="02"' in lines[3]
    assert lines[-1].endswith("control: deletion of 1, 3-4")
    assert "01" not in "".join(each for each in lines if "deleted" in each)
    shown = [
        json.loads(each)
        for each in ottla("log", "dump", folder, "-r", "--json").stdout.splitlines()
    ]
    assert [each["offset"] for each in shown if each.get("deleted")] == [1, 3, 4]
    assert "3 deleted but not erased" in ottla("log", "verify", folder).stdout


def test_offsets_from_standard_input(ottla: Run, filled: str) -> None:
    done = ottla("record", "delete", filled, 0, "-", stdin="0\n3-4 0\n\n")
    assert done.stdout == f"deleted 3 records of {filled}\n"
    assert values(ottla, filled, 0) == ["01", "02"]
    for nothing in ("", " \n", "x", b"\xff\xfe"):
        ottla("record", "delete", filled, 0, "-", stdin=nothing, fails=2)


def test_keys_of_all_kinds(ottla: Run, topic: str) -> None:
    """Without a key, with an empty one, one that is no text, and a very long one."""
    ottla("topic", "create", topic)
    long = "x" * 70_000
    rows = [
        {"value": "none"},
        {"key": "", "value": "empty"},
        {"key_base64": "AP8=", "value": "binary"},
        {"key": long, "value": "long"},
        {"key": "null", "value": "text"},
    ]
    ottla("produce", topic, "--json", stdin="".join(f"{json.dumps(each)}\n" for each in rows))

    def left() -> list[str]:
        return ottla("consume", topic).stdout.splitlines()

    assert left() == ["none", "empty", "binary", "long", "text"]
    ottla("record", "delete", topic, "--key", "")
    assert left() == ["none", "binary", "long", "text"]
    ottla("record", "delete", topic, "--key", "null")
    assert left() == ["none", "binary", "long"]
    ottla("record", "delete", topic, "--key", long)
    assert left() == ["none", "binary"]
    ottla("record", "delete", topic, "--key", "\x00\udcff")
    assert left() == ["none"]


def test_all_of_a_topic(ottla: Run, filled: str) -> None:
    assert ottla("record", "delete", filled, 0, "0-4").stdout.startswith("deleted 5 records")
    assert values(ottla, filled, 0) == []
    ottla("produce", filled, "--partition", 0, stdin="after\n")
    assert values(ottla, filled, 0) == ["after"]


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (("7",), "offset 7 is out of range: the log ends at 5"),
        (("1", "1000-2000"), "offset 1000 is out of range"),
        (("0-9223372036854775807",), "offset 5 is out of range"),
        (("9223372036854775807",), "offset 9223372036854775807 is out of range"),
    ],
)
def test_offsets_that_are_not_there(
    ottla: Run, filled: str, offsets: tuple[str, ...], words: str
) -> None:
    failed = ottla("record", "delete", filled, 0, *offsets, fails=1)
    assert failed.stderr.startswith(f"ottla: nothing was deleted: {words}")
    assert len(values(ottla, filled, 0)) == 5
    # To be told so, nothing has to be deleted.
    assert words in ottla("record", "delete", filled, 0, *offsets, "--dry-run", fails=1).stderr


def test_deleted_already(ottla: Run, filled: str) -> None:
    ottla("record", "delete", filled, 0, 2)
    failed = ottla("record", "delete", filled, 0, 2, fails=1)
    assert failed.stderr == "ottla: nothing was deleted: offset 2 is deleted already\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "give a partition and offsets"),
        ((0,), "give a partition and offsets"),
        ((0, "x"), "'x' is no offset"),
        ((0, "9-3"), "'9-3' ends before it begins"),
        ((0, "9223372036854775808"), "beyond the largest offset"),
        ((0, "99999999999999999999"), "is no offset"),
        ((0, "٣"), "is no offset"),
        ((0, "1-"), "is no offset"),
        ((0, "-", "1"), "'-' is no offset"),
        ((0, "1", "--key", "a"), "one of them"),
        ((0, "--key", "a"), "leave the number away"),
        (("--key", "a", "--master", "local[1]"), "--where"),
    ],
)
def test_misuse(ottla: Run, topic: str, words: tuple[object, ...], complaint: str) -> None:
    assert complaint in ottla("record", "delete", topic, *words, fails=2).stderr


def test_no_such_topic_or_partition(ottla: Run, filled: str) -> None:
    assert "no partition 7" in ottla("record", "delete", filled, 7, 0, fails=1).stderr
    assert "nowhere" in ottla("record", "delete", "nowhere", 0, 0, fails=1).stderr
