"""`ottla quota`."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

Run = Callable[..., Result]


def test_quotas_are_set_listed_and_deleted(ottla: Run) -> None:
    ottla("quota", "set", "producer_byte_rate=1000000", "--user", "cli-alice")
    said = ottla("quota", "set", "request_percentage=500", "--user", "", "--client-id", "cli-x")
    assert said.output == "set for client-id cli-x, user (default): request_percentage\n"
    listed = json.loads(ottla("quota", "list", "--json").output)
    assert {"entity": {"user": "cli-alice"}, "values": {"producer_byte_rate": 1000000.0}} in listed
    assert "cli-alice" in ottla("quota", "list").output
    ottla("quota", "delete", "producer_byte_rate", "--user", "cli-alice")
    ottla("quota", "delete", "request_percentage", "--user", "", "--client-id", "cli-x")
    assert "cli-" not in ottla("quota", "list").output


def test_mistakes_are_told(ottla: Run) -> None:
    for words, code, sentence in (
        (("set", "producer_byte_rate=1"), 2, "say whose quota"),
        (("set", "producer_byte_rate=x", "--user", "a"), 2, "takes a number"),
        (("set", "nonsense=1", "--user", "a"), 1, "nonsense"),
    ):
        assert sentence in ottla("quota", *words, fails=code).output
