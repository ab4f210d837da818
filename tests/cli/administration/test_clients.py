"""`ottla client list` against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from typer.testing import Result

from ottla import Admin, Producer
from ottla.client.admin.client import AsyncAdmin
from ottla.client.errors import NotAuthorized, Unsupported
from ottla.protocol.errors import ErrorCode

Run = Callable[..., Result]


def test_the_table(ottla: Run, bootstrap: str, topic: str) -> None:
    ottla("topic", "create", topic)
    with Producer(bootstrap, client_id="shop 7") as producer:
        producer.send(topic, b"x").result(20)
        heading, line = ottla("client", "list", "--topic", topic).stdout.splitlines()
        assert heading.split("  ")[0] == "CLIENT ID"
        assert heading.split()[2:] == ["SOFTWARE", "ADDRESS", "USER", "BROKER", "DOING", "SINCE"]
        # Each stands below its heading.
        cells = [line[heading.index(name) :] for name in heading.split()[2:]]
        assert line.startswith("shop 7  ")
        for cell, begins in zip(
            cells,
            ("ottla 0.", "127.0.0.1:", "ANONYMOUS ", "", f"produces to {topic} "),
            strict=False,
        ):
            assert cell.startswith(begins)
        assert cells[-1].endswith("Z")
        assert "shop 7" in ottla("client", "list").stdout
    assert ottla("client", "list", "--topic", topic).stdout.splitlines() == [
        "CLIENT ID  SOFTWARE  ADDRESS  USER  BROKER  DOING  SINCE"
    ]


def test_documents_for_scripts(ottla: Run, bootstrap: str, topic: str) -> None:
    ottla("topic", "create", topic)
    with Producer(bootstrap, client_id=topic) as producer:
        producer.send(topic, b"x").result(20)
        (found,) = json.loads(ottla("client", "list", "--topic", topic, "--json").stdout)
        assert (found["client_id"], found["software_name"]) == (topic, "ottla")
        assert (found["role"], found["producing"], found["groups"]) == ("client", [topic], [])
        assert found["doing"] == f"produces to {topic}"

        def count(*options: str) -> int:
            return len(json.loads(ottla("client", "list", "--json", "-t", topic, *options).stdout))

        assert count("--client-id", topic) == 1
        assert count("--client-id", "another") == 0
        assert count("--user", "ANONYMOUS") == count("--user", "User:ANONYMOUS") == 1
        assert count("--user", "alice") == 0
        assert count("--address", "127.0.0.1") == 1
        assert count("--address", "127.0.0.2") == 0
        assert count("--group", "another") == 0


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_names_do_nothing_to_the_terminal(
    ottla: Run, bootstrap: str, topic: str, options: tuple[str, ...]
) -> None:
    """Ids of clients and transactions may be any text."""
    bad = "\x1b[2J\x9b31m\r\n\t\x7f\u202e☃ü"
    ottla("topic", "create", topic)
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "client.id": bad, "transactional.id": f"{topic}{bad}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    assert producer.flush(20) == 0
    told = ottla("client", "list", "--topic", topic, *options).stdout
    for each in "\x1b\x9b\r\x7f":
        assert each not in told
    assert "☃ü" in told
    if options:
        (found,) = json.loads(told)
        assert (found["client_id"], found["transactional_id"]) == (bad, f"{topic}{bad}")
    else:
        assert len(told.splitlines()) == 2
        assert "\\x1b[2J\\x9b31m\\r\\n\\t\\x7f\\u202e☃ü" in told
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            Unsupported("127.0.0.1:9092 does not offer ListClients"),
            "the broker is too old for this: 127.0.0.1:9092 does not offer ListClients",
        ),
        (
            NotAuthorized(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
            "the broker refused: Cluster authorization failed",
        ),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    ottla: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    async def list_clients(*_: object, **__: object) -> None:
        raise error

    def blocking(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(AsyncAdmin, "list_clients", list_clients)
    monkeypatch.setattr(Admin, "list_clients", blocking)
    assert told in ottla("client", "list", fails=1).stderr
