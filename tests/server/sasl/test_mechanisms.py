"""PLAIN and SCRAM: who is let in, which messages are refused, and what a refusal costs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic
from server_kit.sasl import (
    MECHANISMS,
    SECRET,
    StartBroker,
    add_user,
    connect,
    who,
)
from server_kit.security import (
    Authority,
    RefusedByBroker,
    TlsWire,
    agree,
    authenticate,
    client_context,
    step,
    tls_settings,
)
from server_kit.wire import Wire

from ottla import turns
from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.cluster.security.credentials import ScramCredential
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.server.security.mechanisms import PlainExchange, Refused, ScramExchange, Users
from ottla.wire.sasl import Plain, Scram


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.name}-{each.username}")
def test_who_knows_the_password_is_let_in(mechanism: Any, sasl_broker: BrokerThread) -> None:
    with connect(sasl_broker) as wire:
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
        answer = authenticate(wire, mechanism)
        assert answer.session_lifetime_ms == 0
        assert who(sasl_broker) == {f"User:{mechanism.username}"}
        create_topic(wire)


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are(
    sasl_broker: BrokerThread,
) -> None:
    for name in ("GSSAPI", "OAUTHBEARER", "scram-sha-256", ""):
        with connect(sasl_broker) as wire:
            answer = agree(wire, name)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
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
