"""Tokens by client credentials, from a token server of the test's own."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from wire_kit.kafka import SASL_PLAINTEXT, Kafka

from ottla.client.configuration.clients import ClientSettings, read_settings
from ottla.wire.connection import Connection
from ottla.wire.errors import AuthenticationFailed
from ottla.wire.oidc import ClientCredentials, KeptToken, TokenFile, expiry_of, file_of
from ottla.wire.sasl import BearerToken, RefusedByMechanism


class TokenServer:
    """Hands out unsigned tokens to those who know the secret; `asked` holds what they sent."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.answer: bytes | None = None  # in place of a token
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append(parse_qs(form))
                expected = "Basic " + base64.b64encode(b"robot:s3cret").decode()
                known = self.headers["Authorization"] == expected
                body = (
                    outer.answer
                    or json.dumps({"access_token": token("robot"), "expires_in": 3600}).encode()
                )
                self.send_response(200 if known else 401)
                self.end_headers()
                self.wfile.write(body if known else b'{"error": "invalid_client"}')

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def token(user: str) -> str:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now - 1, 'exp': now + 3600})}."


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer()
    yield server
    server.close()


async def test_a_token_is_asked_for(tokens: TokenServer) -> None:
    source = ClientCredentials(tokens.url, "robot", "s3cret", "read write", {"a": "b"})
    given = await source()
    assert given.value.count(".") == 2
    assert given.extensions == {"a": "b"}
    assert given.expires_at is not None
    assert 3500 < given.expires_at - time.time() <= 3600
    assert tokens.asked == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]


async def test_a_token_is_kept_while_it_lasts(tokens: TokenServer) -> None:
    kept = KeptToken(ClientCredentials(tokens.url, "robot", "s3cret"))
    assert await kept() is await kept()
    assert len(tokens.asked) == 1

    async def short_lived() -> BearerToken:
        return BearerToken("x", time.time() - 1)

    kept = KeptToken(short_lived)
    assert await kept() is not await kept()


async def test_servers_that_refuse(tokens: TokenServer) -> None:
    with pytest.raises(RefusedByMechanism, match=r"status 401.*invalid_client"):
        await ClientCredentials(tokens.url, "robot", "wrong")()
    tokens.answer = b"{}"
    with pytest.raises(RefusedByMechanism, match="no access_token"):
        await ClientCredentials(tokens.url, "robot", "s3cret")()
    tokens.answer = b"<html>"
    with pytest.raises(RefusedByMechanism, match="no token from"):
        await ClientCredentials(tokens.url, "robot", "s3cret")()


async def test_a_token_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    path = file_of(file.as_uri())
    assert path == str(file)
    source = TokenFile(path, {"a": "b"})
    with pytest.raises(RefusedByMechanism, match="No such file"):
        await source()
    for bad in ("", "two words", "t\N{LATIN SMALL LETTER O WITH DIAERESIS}ken"):
        file.write_text(bad)
        with pytest.raises(RefusedByMechanism, match="is no token") as refused:
            await source()
        assert "words" not in str(refused.value)
    file.write_text(f"{token('x')}\n")
    first = await source()
    assert (first.value, first.extensions) == (token_in(file), {"a": "b"})
    assert (first.expires_at or 0) > time.time()
    # Somebody else renews it.
    file.write_text(token("y"))
    assert (await source()).value == token_in(file) != first.value
    assert file_of("https://tokens.example/file:") is None


def token_in(file: Path) -> str:
    return file.read_text().strip()


def test_when_a_token_expires() -> None:
    assert (expiry_of(token("x")) or 0) > time.time()
    for odd in ("", "a.b.c", "no dots", f"a.{base64.b64encode(b'[]').decode()}.c"):
        assert expiry_of(odd) is None


@pytest.mark.interop
@pytest.mark.timeout(120, func_only=True)
@pytest.mark.parametrize("form", ["librdkafka", "java"])
async def test_kafka_takes_it(kafka: Kafka, tokens: TokenServer, form: str) -> None:
    names: dict[str, object] = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
    }
    if form == "java":
        names["sasl.jaas.config"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="robot" clientSecret="s3cret" scope="all";'
        )
    else:
        names |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "robot",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "all",
        }
    settings = read_settings(ClientSettings, kafka.address(SASL_PLAINTEXT), names)
    port = kafka.ports[SASL_PLAINTEXT]
    for _ in range(2):
        connection = await Connection.open("127.0.0.1", port, security=settings.security)
        connection.close()
    assert tokens.asked == [{"grant_type": ["client_credentials"], "scope": ["all"]}]
    tokens.close()
    fresh = read_settings(ClientSettings, "h", names).security
    with pytest.raises(AuthenticationFailed, match="no token from"):
        await Connection.open("127.0.0.1", port, security=fresh)
