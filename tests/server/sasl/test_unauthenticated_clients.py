"""What clients get before they have authenticated: almost nothing, and little memory."""

from __future__ import annotations

from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.sasl import (
    SECRET,
    StartBroker,
    connect,
    settings_of,
    who,
)
from server_kit.security import (
    agree,
    authenticate,
    step,
)

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.wire.sasl import Plain


@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(topics=None), AlterUserScramCredentialsRequest()],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("after_handshake", [False, True])
def test_nothing_is_served_before_the_authentication(
    request_: Any, after_handshake: bool, sasl_broker: BrokerThread
) -> None:
    with connect(sasl_broker) as wire:
        if after_handshake:
            assert agree(wire, "PLAIN").error_code == 0
        wire.send(request_, request_.versions[1])
        assert wire.is_closed()


def test_nothing_is_served_that_was_sent_along(sasl_broker: BrokerThread) -> None:
    """Requests after a refused authentication, in one packet with it."""
    with connect(sasl_broker) as wire:
        agree(wire, "PLAIN")
        wire.send_raw(
            wire.encode(SaslAuthenticateRequest(auth_bytes=b"\0bob\0wrong"), 2)
            + wire.encode(MetadataRequest(topics=None), 12)
        )
        assert wire.receive(SaslAuthenticateResponse, 2).error_code == 58
        assert wire.is_closed()


def test_requests_sent_along_with_a_good_authentication_are_served(
    sasl_broker: BrokerThread,
) -> None:
    with connect(sasl_broker) as wire:
        agree(wire, "PLAIN")
        wire.send_raw(
            wire.encode(SaslAuthenticateRequest(auth_bytes=f"\0bob\0{SECRET}".encode()), 2)
            + wire.encode(MetadataRequest(topics=None), 12)
        )
        assert wire.receive(SaslAuthenticateResponse, 2).error_code == 0
        assert wire.receive(MetadataResponse, 12).error_code == 0


def test_an_authentication_needs_a_handshake(sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        answer = step(wire, f"\0bob\0{SECRET}".encode())
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed()


def test_a_listener_without_sasl_says_so(sasl_broker: BrokerThread) -> None:
    with sasl_broker.wire() as wire:
        assert agree(wire, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert step(wire, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def test_a_request_before_the_authentication_must_be_small(sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        wire.send_raw((600_000).to_bytes(4, "big") + bytes(20))
        assert wire.is_closed()


def test_memory_that_is_short_is_for_those_who_are_known(start_broker: StartBroker) -> None:
    limits = {"socket_request_max_bytes": "150000", "queued_max_request_bytes": "150000"}
    broker = start_broker(settings=settings_of("PLAIN", **limits))
    half_sent = (140_000).to_bytes(4, "big") + ApiVersionsRequest.api_key.to_bytes(2, "big")
    half_sent += bytes(80_000)
    with connect(broker) as unknown:
        unknown.send_raw(half_sent)
        assert unknown.is_closed()
    with connect(broker) as known:
        authenticate(known, Plain("bob", SECRET))
        known.send_raw(half_sent)
        broker.until(lambda inside: inside.reactor.partial_bytes > 75_000)
        assert who(broker) == {"User:bob"}
