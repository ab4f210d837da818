"""Authenticated sessions: how they end, are renewed, and leave nothing when a connection is closed."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.sasl import (
    SECRET,
    StartBroker,
    connect,
    settings_of,
)
from server_kit.security import (
    RefusedByBroker,
    agree,
    authenticate,
    step,
)

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
)
from ottla.wire.sasl import Plain


def is_freed(broker: BrokerThread, reference: weakref.ref[Any]) -> None:
    """Wait until the loop has let go of something, at the latest with its next garbage collection."""

    def gone(_: Any) -> bool:
        gc.collect()
        return reference() is None

    broker.until(gone)


def the_connection(broker: BrokerThread) -> weakref.ref[Any]:
    """Connections have no place for weak references, their authentications do."""

    def look(inside: Any) -> weakref.ref[Any]:
        (found,) = (each for each in inside.reactor.connections if each.authentication is not None)
        return weakref.ref(found.authentication)

    return broker.run(look)


def test_who_leaves_while_its_refusal_waits_leaves_nothing(start_broker: StartBroker) -> None:
    settings = settings_of("PLAIN")
    settings["connection.failed.authentication.delay.ms"] = "3600000"
    broker = start_broker(settings=settings)
    with connect(broker) as wire:
        agree(wire, "PLAIN")
        wire.send(SaslAuthenticateRequest(auth_bytes=b"\0bob\0wrong"), 2)
        broker.until(lambda inside: inside.reactor.failed_authentications == 1)
        # The loop serves others meanwhile.
        with connect(broker) as other:
            assert authenticate(other, Plain("bob", SECRET)).error_code == 0
        broker.until(lambda inside: len(inside.reactor.connections) == 1)
        reference = the_connection(broker)
    # What waits for its answer is not read from; whoever is gone is looked for now and then.
    broker.until(lambda inside: inside.reactor.close_hung_up() or not inside.reactor.connections)
    is_freed(broker, reference)


def test_a_closed_connection_does_not_wait_for_the_end_of_its_session(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(settings=settings_of("PLAIN", connections_max_reauth_ms="3600000"))
    with connect(broker) as wire:
        assert authenticate(wire, Plain("bob", SECRET)).session_lifetime_ms == 3_600_000
        reference = the_connection(broker)
    broker.until(lambda inside: not inside.reactor.connections)
    is_freed(broker, reference)


def test_a_session_ends_unless_its_client_authenticates_again(start_broker: StartBroker) -> None:
    broker = start_broker(
        settings=settings_of("PLAIN,SCRAM-SHA-256", connections_max_reauth_ms="400")
    )
    with connect(broker) as wire:
        assert authenticate(wire, Plain("bob", SECRET)).session_lifetime_ms == 400
        # Versions without the session's lifetime are answered, too.
        agree(wire, "PLAIN")
        assert step(wire, f"\0bob\0{SECRET}".encode(), 0).error_code == 0
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            assert authenticate(wire, Plain("bob", SECRET)).session_lifetime_ms == 400
            wire.call(MetadataRequest(topics=[]), MetadataResponse, 12)
        broker.until(lambda inside: bool(_states(inside) & {"expired"}))
        wire.send(MetadataRequest(topics=[]), 12)
        assert wire.is_closed()


def _states(inside: Any) -> set[str]:
    return {
        each.authentication.state.value
        for each in inside.reactor.connections
        if each.authentication is not None
    }


def test_an_expired_session_can_be_renewed(start_broker: StartBroker) -> None:
    broker = start_broker(settings=settings_of("PLAIN", connections_max_reauth_ms="50"))
    with connect(broker) as wire:
        authenticate(wire, Plain("bob", SECRET))
        broker.until(lambda inside: _states(inside) == {"expired"})
        authenticate(wire, Plain("bob", SECRET))
        assert _states(broker.broker) <= {"authenticated", "expired"}


def test_a_session_may_end_while_it_is_renewed(start_broker: StartBroker) -> None:
    """A client may have begun in time, and need some for a token. Nothing else is served meanwhile."""
    broker = start_broker(settings=settings_of("PLAIN", connections_max_reauth_ms="60000"))

    def expire(inside: Any) -> None:
        (found,) = [each for each in inside.reactor.connections if each.authentication is not None]
        found.authentication._expire()
        assert not found.authentication.is_served

    with connect(broker) as wire:
        authenticate(wire, Plain("bob", SECRET))
        assert agree(wire, "PLAIN").error_code == 0
        broker.run(expire)
        assert step(wire, f"\0bob\0{SECRET}".encode()).error_code == 0
        wire.call(MetadataRequest(topics=[]), MetadataResponse, 12)
        assert agree(wire, "PLAIN").error_code == 0
        broker.run(expire)
        wire.send(MetadataRequest(topics=[]), 12)
        assert wire.is_closed()


def test_who_authenticates_again_must_be_the_same(
    sasl_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(sasl_broker) as wire:
        authenticate(wire, Plain("bob", SECRET))
        with pytest.raises(RefusedByBroker, match="Cannot change principals"):
            authenticate(wire, Plain("alice", SECRET))
        assert wire.is_closed()
    # Of refusals no names of users are logged.
    (line,) = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert "another user than before" in line
    assert "alice" not in line
    with connect(sasl_broker) as wire:
        authenticate(wire, Plain("alice", SECRET))
        assert agree(wire, "SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed()
