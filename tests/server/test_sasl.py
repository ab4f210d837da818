"""Clients that authenticate by SASL: each mechanism, what is refused, and what is served before."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import gc
import hashlib
import hmac
import itertools
import json
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic
from server_kit.security import (
    Authority,
    RefusedByBroker,
    TlsWire,
    agree,
    authenticate,
    client_context,
    jaas,
    step,
    tls_settings,
)
from server_kit.wire import Wire

from ottla import turns
from ottla.cluster.credentials import ScramCredential
from ottla.cluster.decisions.users import ScramChange
from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.server.observability import limited_log
from ottla.server.security import tokens
from ottla.server.security.mechanisms import PlainExchange, Refused, ScramExchange, Users
from ottla.server.security.tokens import Keys, TokenExchange, TokenRules
from ottla.wire.sasl import BearerToken, Mechanism, OAuthBearer, Plain, Scram

StartBroker = Callable[..., BrokerThread]

SECRET = "correct horse, battery=staple"
BROKERS = "broker's own secret"
BOTH = "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0"


def settings_of(mechanisms: str, **more: str) -> dict[str, str]:
    return {
        "listeners": BOTH,
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": mechanisms,
        "connection.failed.authentication.delay.ms": "1",
        "listener.name.clients.plain.sasl.jaas.config": jaas(
            "PlainLoginModule", {"username": "broker", "password": BROKERS, "user_bob": SECRET}
        ),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def add_user(broker: BrokerThread, user: str, password: str, *mechanisms: int) -> None:
    changes = []
    for number in mechanisms or (1, 2):
        salt = b"0123456789abcdef"
        algorithm = "sha256" if number == 1 else "sha512"
        salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, 4096)
        changes.append(ScramChange(user, number, 4096, salt, salted))
    for result in broker.run_async(broker.broker.controller.alter_scram(changes)):
        assert result.error is None


@pytest.fixture(scope="module")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = settings_of("PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    with BrokerThread(tmp_path_factory.mktemp("sasl"), settings=settings) as running:
        add_user(running, "alice", SECRET)
        yield running


def connect(broker: BrokerThread) -> Wire:
    return Wire("127.0.0.1", broker.broker.bound[1].port)


def who(broker: BrokerThread) -> set[str]:
    return broker.run(
        lambda inside: {
            each.principal
            for each in inside.reactor.connections
            if each.authentication is not None and not each.closed
        }
    )


MECHANISMS: list[Mechanism] = [
    Plain("bob", SECRET),  # from the configuration
    Plain("alice", SECRET),  # stored
    Scram("alice", SECRET, "sha256"),
    Scram("alice", SECRET, "sha512"),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.name}-{each.username}")
def test_who_knows_the_password_is_let_in(mechanism: Any, sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
        answer = authenticate(wire, mechanism)
        assert answer.session_lifetime_ms == 0
        assert who(sasl_broker) == {f"User:{mechanism.username}"}
        create_topic(wire)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.name}-{each.username}")
def test_refusals_do_not_tell_who_exists(
    mechanism: Any, sasl_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    told = set()
    before = sasl_broker.run(lambda inside: inside.reactor.failed_authentications)
    for wrong in (
        dataclasses.replace(mechanism, password="wrong-password"),
        dataclasses.replace(mechanism, username="nobody-here"),
    ):
        with connect(sasl_broker) as wire:
            with pytest.raises(RefusedByBroker) as refused:
                authenticate(wire, wrong)
            answer = refused.value.answer
            told.add((answer.error_code, answer.error_message, answer.auth_bytes))
            assert wire.is_closed()
    assert len(told) == 1
    assert told.pop()[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert sasl_broker.run(lambda inside: inside.reactor.failed_authentications) == before + 2
    assert "wrong-password" not in caplog.text
    assert "nobody-here" not in caplog.text


def challenge(broker: BrokerThread, user: str) -> tuple[bytes, int]:
    """The salt and the iterations that a user is told who has proved nothing."""
    with connect(broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        told = step(wire, f"n,,n={user},r=abcdef".encode()).auth_bytes.decode()
    found = re.fullmatch(r"r=[^,]+,s=([^,]+),i=([0-9]+)", told)
    assert found is not None
    return base64.b64decode(found[1]), int(found[2])


def test_an_unknown_user_looks_like_the_others(sasl_broker: BrokerThread) -> None:
    """Always with the same salt, of the length that is usual here, and with as many iterations."""
    known, unknown = challenge(sasl_broker, "alice"), challenge(sasl_broker, "nobody")
    assert challenge(sasl_broker, "nobody") == unknown
    assert challenge(sasl_broker, "nobody-else")[0] != unknown[0]
    assert (len(unknown[0]), unknown[1]) == (len(known[0]), known[1]) == (16, 4096)


def test_what_unknown_users_are_told_cannot_be_computed_from_outside(
    sasl_broker: BrokerThread,
) -> None:
    def forget(inside: Any) -> Any:
        image = inside.image
        assert len(image.secret) == 32
        assert image.cluster_id not in str(image.secret)
        assert str(image.secret) not in repr(image)
        return image

    image = sasl_broker.run(forget)
    users = [
        Users(lambda found=found: found)
        for found in (
            image,
            dataclasses.replace(image),
            dataclasses.replace(image, secret=b"another cluster's"),
            # Of a cluster that has none yet: each broker has its own.
            dataclasses.replace(image, secret=b""),
            dataclasses.replace(image, secret=b""),
        )
    ]
    salts = [each.unknown("nobody", "SCRAM-SHA-256").salt for each in users]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4


def test_unknown_users_look_as_those_who_made_the_others_make_them() -> None:
    def image(**salts: bytes) -> ClusterImage:
        return ClusterImage(
            "id",
            secret=b"x",
            configs={
                (ResourceType.USER, name): {
                    "SCRAM-SHA-512": ScramCredential(salt, bytes(64), bytes(64), 4096).render()
                }
                for name, salt in salts.items()
            },
        )

    def told(found: ClusterImage, count: int = 200) -> list[bytes]:
        users = Users(lambda: found)
        return [users.unknown(f"user-{each}", "SCRAM-SHA-512").salt for each in range(count)]

    # Kafka's tools make text of 130 bits; where all of it is used, it begins with 1.
    kafkas = told(image(one=b"1l7h9mwdd0x1vkn4j6u8f8d1gl"))
    assert {len(each) for each in kafkas} >= {25, 26}
    assert all(re.fullmatch(rb"[0-9a-z]{20,26}", each) for each in kafkas)
    assert {each[:1] for each in kafkas if len(each) == 26} == {b"1"}
    # Others may make text of another length.
    assert all(
        re.fullmatch(rb"[0-9a-z]{16}", each) for each in told(image(one=b"0123456789abcdef"))
    )
    # Of two makers some look like one, some like the other.
    both = told(image(one=b"1l7h9mwdd0x1vkn4j6u8f8d1gl", two=bytes(64)))
    assert sum(each in kafkas for each in both) in range(50, 150)
    assert sum(len(each) == 64 for each in both) in range(50, 150)
    # Nobody is there: as we make them.
    assert {len(each) for each in told(image())} == {24}


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
    """Requests behind a refused authentication, in one packet with it."""
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


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(
    sasl_broker: BrokerThread,
) -> None:
    for name in ("GSSAPI", "OAUTHBEARER", "scram-sha-256", ""):
        with connect(sasl_broker) as wire:
            answer = agree(wire, name)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
            assert wire.is_closed()


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


class Tape:
    """Keeps what a client sent."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.sent: list[bytes] = []

    async def __call__(self, message: bytes) -> bytes:
        self.sent.append(message)
        answer = step(self.wire, message)
        assert answer.error_code == 0, answer
        return answer.auth_bytes


def final_message(password: str, first: str, challenge: str, nonce: str) -> bytes:
    """A client's last message, for a nonce of its choice."""
    fields = dict(part.partition("=")[::2] for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    final = f"c=biws,r={nonce}"
    stored_key = hashlib.sha256(client_key).digest()
    signature = hmac.digest(stored_key, f"{first},{challenge},{final}".encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("before", "password", "code"),
    [
        ("", SECRET, 0),
        ("abcdef", SECRET, 0),  # as librdkafka up to 2.6.0 has it
        ("abcdef", "wrong", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("abcdefabcdef", SECRET, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("other", SECRET, ErrorCode.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_a_client_may_repeat_its_nonce_once(
    before: str, password: str, code: int, sasl_broker: BrokerThread
) -> None:
    with connect(sasl_broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        first = "n=alice,r=abcdef"
        challenge = step(wire, f"n,,{first}".encode()).auth_bytes.decode()
        nonce = before + challenge.split(",")[0].removeprefix("r=")
        assert step(wire, final_message(password, first, challenge, nonce)).error_code == code


def test_scram_messages_cannot_be_replayed(sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        tape = Tape(wire)
        asyncio.run(Scram("alice", SECRET, "sha256").converse(tape))
    with connect(sasl_broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        first, final = tape.sent
        challenge = step(wire, first).auth_bytes.decode()
        assert step(wire, final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()
    with connect(sasl_broker) as wire:
        # With the new nonce, and the proof for the old one.
        agree(wire, "SCRAM-SHA-256")
        challenge = step(wire, first).auth_bytes.decode()
        nonce = challenge.split(",")[0]
        proof = final.decode().rpartition(",")[2]
        answer = step(wire, f"c=biws,{nonce},{proof}".encode())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with connect(sasl_broker) as wire:
        # The final message of an exchange, twice.
        agree(wire, "SCRAM-SHA-256")
        tape = Tape(wire)
        asyncio.run(Scram("alice", SECRET, "sha256").converse(tape))
        assert step(wire, tape.sent[1]).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed()


def test_a_refusal_is_told_however_slow_the_machine(
    sasl_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer leaves before the connection is closed, also if it takes several turns of the loop."""
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    with connect(sasl_broker) as wire:
        with pytest.raises(RefusedByBroker):
            authenticate(wire, Plain("bob", "wrong-password"))
        assert wire.is_closed()


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"n,,", b"n,,n=,r=", b"y,,n=alice,r=x,m=1", b"\0" * 9000]
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_garbage_is_refused(mechanism: str, garbage: bytes, sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        agree(wire, mechanism)
        assert step(wire, garbage).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
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


def test_a_name_that_takes_long_to_prepare_is_not_looked_at(sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        answer = step(wire, b"n,,n=" + b"a" * 3000 + b",r=abcdef")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "too long" in (answer.error_message or "")
        assert wire.is_closed()


def test_an_exchange_cannot_be_begun_again_and_again(sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        assert agree(wire, "SCRAM-SHA-256").error_code == 0
        assert step(wire, b"n,,n=alice,r=abcdef").error_code == 0
        assert agree(wire, "SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_closed()


def test_every_refusal_of_a_password_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, int]] = []

    def fits(found: ScramCredential, mechanism: str, _: str) -> bool:
        checked.append((mechanism, found.iterations))
        return False

    monkeypatch.setattr(ScramCredential, "fits", fits)
    stored = ScramCredential.of_password("SCRAM-SHA-256", SECRET, 4096).render()
    configs = {(ResourceType.USER, "alice"): {"SCRAM-SHA-256": stored}}
    users = Users(lambda: ClusterImage("id", configs=configs))
    for user in ("alice", "bob", "nobody"):
        exchange = PlainExchange({"bob": SECRET}, users)
        with pytest.raises(Refused):
            asyncio.run(exchange.step(f"\0{user}\0wrong".encode()))
    assert len(checked) == 3
    assert len(set(checked)) == 1


def test_no_password_is_checked_for_a_client_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    go_on = threading.Event()

    async def flood() -> list[bool]:
        loop, all_busy = asyncio.get_running_loop(), asyncio.Event()

        def fits(_: ScramCredential, mechanism: str, password: str) -> bool:
            begun.append(password)
            if len(begun) == 4:
                loop.call_soon_threadsafe(all_busy.set)
            return go_on.wait(10)

        monkeypatch.setattr(ScramCredential, "fits", fits)
        users = Users(lambda: ClusterImage("id"))
        left = False
        checks = [
            asyncio.ensure_future(users.has_password("x", str(number), lambda: left))
            for number in range(100)
        ]
        await all_busy.wait()
        left = True
        go_on.set()
        return await asyncio.gather(*checks)

    assert asyncio.run(flood()) == [True] * 4 + [False] * 96
    assert len(begun) == 4


# Connections that are closed meanwhile ------------------------------------------------------------


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


# The way of clients older than Kafka 1.0 ---------------------------------------------------------


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
        # A request behind a refused message.
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


# Sessions ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["mallory\ndenied: principal=User:bob", "ANONYMOUS"])
def test_some_names_are_nobodys(name: str) -> None:
    """Those with lines of a log in them, and that of clients who proved nothing, which may be a super
    user. Not even where they were stored, as by an older version."""
    credential = ScramCredential.of_password("SCRAM-SHA-256", SECRET)
    stored = {"SCRAM-SHA-256": credential.render()}

    users = Users(lambda: ClusterImage("id", configs={(ResourceType.USER, name): stored}))
    assert users.credential(name, "SCRAM-SHA-256") is not None
    with pytest.raises(Refused):
        asyncio.run(PlainExchange({}, users).step(f"\0{name}\0{SECRET}".encode()))
    exchange = ScramExchange("SCRAM-SHA-256", users)

    async def step(message: bytes) -> bytes:
        return (await exchange.step(message)).message

    with pytest.raises(Refused):
        asyncio.run(Scram(name, SECRET, "sha256").converse(step))


# Over TLS ---------------------------------------------------------------------------------------


def test_sasl_goes_over_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    settings = tls_settings(authority, "SASL_SSL://localhost:0,PLAINTEXT://127.0.0.1:0")
    settings["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
    settings["connection.failed.authentication.delay.ms"] = "1"
    broker = start_broker(settings=settings)
    add_user(broker, "alice", SECRET)
    context = client_context(authority)
    with TlsWire("localhost", broker.port, context) as wire:
        authenticate(wire, Scram("alice", SECRET))
        assert who(broker) == {"User:alice"}
        create_topic(wire)
    with TlsWire("localhost", broker.port, context) as wire:
        wire.send(MetadataRequest(topics=[]), 12)
        assert wire.is_closed()


# Tokens -----------------------------------------------------------------------------------------


class Issuer:
    """Signs tokens; its public keys are in a file."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.keys = {name: rsa.generate_private_key(65537, 2048) for name in names}
        self.file = folder / "jwks.json"
        self.publish(*names)

    def publish(self, *names: str) -> None:
        documents = [
            {
                **json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[name].public_key())),
                "kid": name,
            }
            for name in names
        ]
        self.file.write_text(json.dumps({"keys": documents}))

    def token(self, key: str, seconds: float = 60, **claims: Any) -> str:
        now = datetime.datetime.now(datetime.UTC)
        expiry = now + datetime.timedelta(seconds=seconds)
        claims = {"sub": "carol", "exp": expiry, "aud": "ottla", "iss": "me", **claims}
        return jwt.encode(
            {name: value for name, value in claims.items() if value is not None},
            self.keys[key],
            "RS256",
            headers={"kid": key},
        )


def bearer(token: str) -> OAuthBearer:
    async def source() -> BearerToken:
        return BearerToken(token)

    return OAuthBearer(source)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path, "one", "two")


def token_settings(issuer: Issuer) -> dict[str, str]:
    settings = settings_of("OAUTHBEARER")
    settings["sasl.oauthbearer.jwks.endpoint.url"] = issuer.file.as_uri()
    settings["sasl.oauthbearer.expected.audience"] = "ottla"
    settings["sasl.oauthbearer.expected.issuer"] = "me"
    settings["sasl.oauthbearer.clock.skew.seconds"] = "0"
    return settings


def test_a_token_says_who_the_client_is_and_for_how_long(
    issuer: Issuer, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=token_settings(issuer))
    with connect(broker) as wire:
        answer = authenticate(wire, bearer(issuer.token("two")))
        assert 50_000 < answer.session_lifetime_ms <= 60_000
        assert who(broker) == {"User:carol"}
        create_topic(wire)


def encoded(*parts: dict[str, Any]) -> bytes:
    return b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
    )


CLAIMS = {"sub": "carol", "exp": 4_000_000_000, "aud": "ottla", "iss": "me"}


def unsigned() -> str:
    return encoded({"alg": "none"}, CLAIMS).decode() + "."


def nested() -> str:
    """JSON that no parser likes."""
    return base64.urlsafe_b64encode(b"[" * 40_000).decode().rstrip("=") + ".e30."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """Where a broker takes the public key for a shared secret, anybody can make tokens."""
    public = issuer.keys["one"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    message = encoded({"alg": "HS256", "kid": "one"}, CLAIMS)
    signature = base64.urlsafe_b64encode(hmac.digest(pem, message, "sha256")).rstrip(b"=")
    return (message + b"." + signature).decode()


def test_tokens_that_are_not_good_are_refused(
    issuer: Issuer, start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker(settings=token_settings(issuer))
    (tmp_path / "stranger").mkdir()
    stranger = Issuer(tmp_path / "stranger", "one")  # another key of the same name
    for bad in (
        issuer.token("one", -10),
        issuer.token("one", aud="others"),
        issuer.token("one", iss="somebody"),
        issuer.token("one", sub=None),
        issuer.token("one", sub="carol\nadministrative: principal=User:admin"),
        issuer.token("one", sub="ANONYMOUS"),
        issuer.token("one", sub=["carol"]),
        issuer.token("one", nbf=4_000_000_000),
        issuer.token("one", exp=None),
        issuer.token("one", exp=10**400),
        stranger.token("one"),
        unsigned(),
        signed_with_the_public_key(issuer),
        "nonsense",
        nested(),
    ):
        with connect(broker) as wire:
            agree(wire, "OAUTHBEARER")
            answer = step(wire, f"n,,\x01auth=Bearer {bad}\x01\x01".encode())
            assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
            wire.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
            refused = wire.receive(SaslAuthenticateResponse, 2)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wire.is_closed()
        assert bad not in caplog.text


def test_a_token_that_takes_long_to_read_is_not_looked_at(
    issuer: Issuer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker(settings=token_settings(issuer))
    read: list[str] = []
    monkeypatch.setattr(jwt, "get_unverified_header", read.append)
    header = encoded({"alg": "RS256", "kid": "one", "more": [{}] * 30_000}).decode()
    with connect(broker) as wire:
        agree(wire, "OAUTHBEARER")
        answer = step(wire, f"n,,\x01auth=Bearer {header}.e30.e30\x01\x01".encode())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "too long" in str(answer.error_message)
        assert wire.is_closed()
    assert not read


def test_a_flood_of_bad_tokens_fills_no_log(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = TokenRules(issuer.file.as_uri(), 3600, (), None, "sub", 0)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(limited_log, "LINES", 3)
    # One that has not written anything before.
    monkeypatch.setattr(tokens, "log", limited_log.LimitedLog(logging.getLogger("ottla.security")))

    async def flood() -> None:
        keys = Keys(rules)
        for number in range(500):
            header = encoded({"alg": "RS256", "crit": ["x\nadministrative: y"], "kid": "one"}, {})
            message = f"n,,\x01auth=Bearer {header.decode()}.{number}\x01\x01"
            assert (await TokenExchange(rules, keys).step(message.encode())).user is None

    asyncio.run(flood())
    lines = caplog.text.splitlines()
    assert 0 < len(lines) < 50
    assert not any(line.startswith("administrative") for line in lines)


def test_a_shared_secret_is_no_key(issuer: Issuer) -> None:
    document = json.loads(issuer.file.read_text())
    document["keys"].append({"kty": "oct", "kid": "shared", "alg": "HS256", "k": "c2VjcmV0"})
    issuer.file.write_text(json.dumps(document))
    rules = TokenRules(issuer.file.as_uri(), 3600, (), None, "sub", 0)

    async def found() -> list[bool]:
        keys = Keys(rules)
        return [await keys.key(name) is not None for name in ("one", "two", "shared")]

    assert asyncio.run(found()) == [True, True, False]


# Credentials ------------------------------------------------------------------------------------


def test_what_is_stored_of_a_password_is_salted(sasl_broker: BrokerThread) -> None:
    stored = sasl_broker.broker.image.config(ResourceType.USER, "alice")
    credential = ScramCredential.parse(stored["SCRAM-SHA-256"])
    assert credential.fits("SCRAM-SHA-256", SECRET)
    assert not credential.fits("SCRAM-SHA-256", SECRET + "x")
    assert SECRET not in str(stored)
    assert "stored" not in repr(credential)


def alter(wire: Wire, **lists: Any) -> list[tuple[str, int]]:
    answer = wire.call(
        AlterUserScramCredentialsRequest(**lists), AlterUserScramCredentialsResponse, 0
    )
    return [(each.user, each.error_code) for each in answer.results]


def upsertion(name: str, mechanism: int = 1, **fields: Any) -> ScramCredentialUpsertion:
    given = {"iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32, **fields}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **given)


def described(wire: Wire, *users: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    answer = wire.call(
        DescribeUserScramCredentialsRequest(users=[UserName(name=each) for each in users] or None),
        DescribeUserScramCredentialsResponse,
        0,
    )
    assert answer.error_code == 0
    return {
        each.user: (
            each.error_code,
            [(one.mechanism, one.iterations) for one in each.credential_infos],
        )
        for each in answer.results
    }


def test_credentials_are_set_described_and_deleted(sasl_broker: BrokerThread) -> None:
    with sasl_broker.wire() as wire:
        assert alter(wire, upsertions=[upsertion("dave"), upsertion("dave", 2)]) == [("dave", 0)]
        assert described(wire, "dave") == {"dave": (0, [(1, 4096), (2, 4096)])}
        assert set(described(wire)) >= {"alice", "dave"}
        gone = [ScramCredentialDeletion(name="dave", mechanism=1)]
        assert alter(wire, deletions=gone) == [("dave", 0)]
        assert described(wire, "dave") == {"dave": (0, [(2, 4096)])}
        assert alter(wire, deletions=gone) == [("dave", ErrorCode.RESOURCE_NOT_FOUND)]
        assert described(wire, "nobody")["nobody"][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_bad_credentials_change_nothing(sasl_broker: BrokerThread) -> None:
    bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
    with sasl_broker.wire() as wire:
        for change, code in (
            (upsertion(""), bad),
            (upsertion("erin\ndenied: principal=User:bob"), bad),
            (upsertion("ANONYMOUS"), bad),
            (upsertion("erin", iterations=4095), bad),
            (upsertion("erin", iterations=16385), bad),
            (upsertion("erin", salt=b"short"), bad),
            (upsertion("erin", salted_password=b""), bad),
            (upsertion("erin", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
            (upsertion("erin", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ):
            assert alter(wire, upsertions=[change]) == [(change.name, code)]
            # With a good one of the same user beside it.
            if change.name == "erin" and change.mechanism:
                changes = [upsertion("erin", 2), change]
                assert alter(wire, upsertions=changes) == [("erin", code)]
        twice = [upsertion("erin"), upsertion("erin"), upsertion("frank")]
        assert alter(wire, upsertions=twice) == [
            ("erin", ErrorCode.DUPLICATE_RESOURCE),
            ("frank", 0),
        ]
        assert described(wire, "erin")["erin"][0] == ErrorCode.RESOURCE_NOT_FOUND
        assert described(wire, "erin", "erin")["erin"][0] == ErrorCode.DUPLICATE_RESOURCE


def test_credentials_survive_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker(settings=settings_of("SCRAM-SHA-512"))
    add_user(broker, "alice", SECRET)
    broker.restart()
    with connect(broker) as wire:
        authenticate(wire, Scram("alice", SECRET))


def test_passwords_are_in_no_log(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = start_broker(settings=settings_of("PLAIN,SCRAM-SHA-256"))
    add_user(broker, "alice", SECRET)
    for mechanism in (Plain("bob", SECRET), Scram("alice", SECRET, "sha256")):
        with connect(broker) as wire:
            authenticate(wire, mechanism)
    with broker.wire() as wire:
        alter(wire, upsertions=[upsertion("dave", salted_password=b"salted-secret" * 4)])
    stored = broker.broker.image.configs
    hidden = [SECRET, BROKERS, "salted-secret"]
    hidden += [
        text.partition("stored_key=")[2][:20] for each in stored.values() for text in each.values()
    ]
    assert not [text for text in hidden if text and text in caplog.text]
