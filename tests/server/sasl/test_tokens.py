"""OAUTHBEARER: clients that authenticate by a signed token."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hmac
import json
import logging
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from server_kit.calls import create_topic
from server_kit.sasl import (
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
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.server.observability import limited_log
from ottla.server.security import tokens
from ottla.server.security.tokens import Keys, TokenExchange, TokenRules
from ottla.wire.sasl import BearerToken, OAuthBearer


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
