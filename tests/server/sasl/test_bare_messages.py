"""Clients older than Kafka 1.0, which send the messages of a mechanism without requests around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic
from server_kit.sasl import (
    MECHANISMS,
    SECRET,
    connect,
    who,
)
from server_kit.wire import Wire

from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def bare(wire: Wire, message: bytes) -> bytes:
    wire.send_raw(len(message).to_bytes(4, "big") + message)
    return wire.frame()


def agree_barely(wire: Wire, mechanism: str) -> None:
    answer = wire.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 0)
    assert answer.error_code == 0


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.name}-{each.username}")
def test_messages_may_come_without_requests(mechanism: Any, sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        agree_barely(wire, mechanism.name)

        async def send(message: bytes) -> bytes:
            return bare(wire, message)

        asyncio.run(mechanism.converse(send))
        assert who(sasl_broker) == {f"User:{mechanism.username}"}
        create_topic(wire)


def test_messages_without_requests_may_come_in_pieces(sasl_broker: BrokerThread) -> None:
    message = f"\0bob\0{SECRET}".encode()
    framed = len(message).to_bytes(4, "big") + message
    with connect(sasl_broker) as wire:
        agree_barely(wire, "PLAIN")
        for at in range(len(framed)):
            wire.send_raw(framed[at : at + 1])
        assert wire.frame() == b""
        create_topic(wire)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x0b\0bob\0wrong!!",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00",
        # A request after a refused message.
        b"\x00\x00\x00\x0b\0bob\0wrong!!" + bytes(40),
    ],
)
def test_a_bad_message_without_a_request_closes_the_connection(
    sent: bytes, sasl_broker: BrokerThread
) -> None:
    with connect(sasl_broker) as wire:
        agree_barely(wire, "PLAIN")
        wire.send_raw(sent)
        assert wire.is_closed()


def test_a_long_message_without_a_request_is_not_waited_for(sasl_broker: BrokerThread) -> None:
    """Nobody counts the memory for it, and clients of that time have short ones."""
    for message in ((20_000).to_bytes(4, "big"), (100).to_bytes(4, "big") + bytes(20_000)):
        with connect(sasl_broker) as wire:
            agree_barely(wire, "SCRAM-SHA-256")
            wire.send_raw(message)
            assert wire.is_closed()


def test_nothing_is_served_that_was_sent_along_with_a_bare_message(
    sasl_broker: BrokerThread,
) -> None:
    message = f"\0bob\0{SECRET}".encode()
    with connect(sasl_broker) as wire:
        agree_barely(wire, "PLAIN")
        wire.send_raw(
            len(message).to_bytes(4, "big")
            + message
            + wire.encode(MetadataRequest(topics=None), 12)
        )
        assert wire.is_closed()
