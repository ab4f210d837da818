"""What the application answers where nothing of the kind should happen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ottla.client.errors import (
    AuthenticationError,
    BrokerError,
    ClusterUnreachable,
    CorruptRecords,
    Failures,
    OttlaError,
    TimedOut,
    Unsupported,
)
from ottla.client.positions import TopicPartition
from ottla.console.app import make_app
from ottla.console.refusals import refusal_of
from ottla.protocol.errors import ErrorCode


class Broken:
    """Calls of a cluster that do not work."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def health(self) -> None:
        raise self._error


def asked(error: Exception) -> tuple[int, Any, Exception | None]:
    """Status and body of the answer, and what was raised beside it (for the log)."""
    app = make_app("127.0.0.1:1")
    app.state.calls = Broken(error)
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/health",
        "raw_path": b"/api/health",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        await app(scope, receive, send)

    raised: Exception | None = None
    try:
        asyncio.run(run())
    except RuntimeError as problem:
        raised = problem
    body = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], json.loads(body), raised


def test_a_fault_of_our_own_says_nothing_of_our_inside() -> None:
    fault = RuntimeError("the inside of it")
    status, body, raised = asked(fault)
    assert status == 500
    assert "inside" not in json.dumps(body)
    assert body["error"]["code"] == "INTERNAL_SERVER_ERROR"
    assert raised is fault  # for the log


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ClusterUnreachable("nobody there"), 503),
        (TimedOut("too late"), 503),
        (BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS), 503),
        (BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR), 502),
        (BrokerError(ErrorCode.INVALID_REQUEST, "offset 7 is deleted already"), 409),
        (AuthenticationError("wrong password"), 502),
        (Unsupported("a Kafka"), 501),
        (CorruptRecords("damaged"), 502),
        (OttlaError("anything else"), 502),
    ],
)
def test_failures_of_the_client(error: OttlaError, status: int) -> None:
    answered, body, raised = asked(error)
    assert (answered, raised) == (status, None)
    assert body["error"]["status"] == status
    assert body["error"]["message"]


def test_of_several_failures_the_first_partition_s_is_told() -> None:
    several = Failures.of(
        {
            TopicPartition("orders", 2): TimedOut("too late"),
            TopicPartition("orders", 1): BrokerError(ErrorCode.INVALID_REQUEST, "no"),
        },
        {},
    )
    assert refusal_of(several).status == 409


def test_a_long_message_is_cut() -> None:
    assert len(refusal_of(OttlaError("x" * 5000)).message) <= 1000
