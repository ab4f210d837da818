"""`ottla acl`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from typer.testing import Result

from ottla.testing import BrokerProcess

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with BrokerProcess(tmp_path_factory.mktemp("acls") / "data", settings=settings) as broker:
        yield broker.bootstrap


def listed(ottla: Run, server: str, *words: str) -> list[tuple[str, ...]]:
    answer = ottla("acl", "list", *words, "--json", "-s", server)
    return [tuple(each.values()) for each in json.loads(answer.output)]


def test_entries_are_added_listed_and_deleted(ottla: Run, secured: str) -> None:
    words = ("-o", "read", "-o", "describe", "--topic", "orders", "--group", "reports")
    added = ottla("acl", "add", "alice", *words, "-s", secured)
    assert added.output == "added 4 entries\n"
    more = ("-o", "all", "--topic", "test-", "--prefixed", "--deny", "--host", "10.0.0.7")
    assert ottla("acl", "add", "User:bob", *more, "-s", secured).output == "added 1 entry\n"
    assert listed(ottla, secured, "--topic", "orders") == [
        ("User:alice", "allow", "describe", "topic", "orders", "literal", "*"),
        ("User:alice", "allow", "read", "topic", "orders", "literal", "*"),
    ]
    assert listed(ottla, secured, "--principal", "bob") == [
        ("User:bob", "deny", "all", "topic", "test-", "prefixed", "10.0.0.7")
    ]
    gone = ottla("acl", "delete", "alice", "-o", "read", "--json", "-s", secured)
    assert len(json.loads(gone.output)) == 2
    assert len(listed(ottla, secured)) == 3
    ottla("acl", "delete", "alice", "bob", "-s", secured)
    assert listed(ottla, secured) == []


def test_mistakes_are_told(ottla: Run, secured: str) -> None:
    for words, sentence in (
        (("add", "alice", "--topic", "x"), "say what they may do"),
        (("add", "alice", "-o", "read"), "say to what"),
        (("add", "alice", "-o", "fly", "--topic", "x"), "--operation takes one of all, read"),
        (("delete",), "say whose entries"),
    ):
        answer = ottla("acl", *words, "-s", secured, fails=2)
        assert sentence in answer.output
    # A broker without an authorizer says so.
    answer = ottla("acl", "list", fails=1)
    assert "authorizer" in answer.output
