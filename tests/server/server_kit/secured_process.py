"""A broker in a process of its own with a listener of every kind, and those who know their way in.

TLS with client certificates, SASL in the clear and over TLS by every mechanism, and a plain listener on
loopback, by which tests look at what became of it. Tokens come from a server that asks for a client's
id and secret.
"""

from __future__ import annotations

import base64
import datetime
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from ottla import Admin
from ottla.testing import BrokerProcess
from ottla.testing.ports import free_ports
from server_kit.security import Authority, jaas

SECRET: Final = "alice-secret"
USER: Final = "alice"
PLAINTEXT, TLS, SASL_PLAIN, SASL_TLS = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS: Final = ("PLAIN", *SCRAM)
# Ways that need no token: (security.protocol, sasl.mechanism).
WAYS: Final = [
    (TLS, ""),
    *((protocol, name) for protocol in (SASL_PLAIN, SASL_TLS) for name in PASSWORDS),
]
TOKENS: Final = "OAUTHBEARER"
_CLIENT_ID, _CLIENT_SECRET = "robot", "robot-secret"
# What must be nowhere but where it belongs.
SECRETS: Final = (SECRET, _CLIENT_SECRET)


class TokenServer:
    """Hands out signed tokens, over HTTP, to those who know a client's secret."""

    def __init__(self, clients: Mapping[tuple[str, str], str] | None = None) -> None:
        """`clients`: whose tokens they are, by id and secret."""
        self.signing_key = rsa.generate_private_key(65537, 2048)
        # How long tokens last, and how many each user got.
        self.life = datetime.timedelta(hours=1)
        self.given: Counter[str] = Counter()
        self._changed = threading.Condition()
        users = {
            f"Basic {base64.b64encode(':'.join(each).encode()).decode()}": user
            for each, user in (clients or {(_CLIENT_ID, _CLIENT_SECRET): USER}).items()
        }
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                user = users.get(self.headers["Authorization"])
                body: dict[str, Any] = {"error": "no"}
                if user is not None:
                    with outer._changed:
                        outer.given[user] += 1
                        outer._changed.notify_all()
                    token, _ = outer.token(sub=user)
                    seconds = int(outer.life.total_seconds())
                    body = {"access_token": token, "token_type": "Bearer", "expires_in": seconds}
                answer = json.dumps(body).encode()
                self.send_response(401 if user is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def keys(self) -> str:
        """The public part, as a set of keys."""
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.signing_key.public_key()))
        return json.dumps({"keys": [{**public, "kid": "k"}]})

    def token(self, **claims: Any) -> tuple[str, float]:
        now = datetime.datetime.now(datetime.UTC)
        expiry = now + self.life
        given = {"sub": USER, "iat": now, "exp": expiry, "scope": "kafka", **claims}
        return jwt.encode(given, self.signing_key, "RS256", {"kid": "k"}), expiry.timestamp()

    def wait_for(self, user: str, count: int, patience: float = 90) -> None:
        """Until the user has got so many tokens."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.given[user] >= count, patience), self.given

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class Secured:
    broker: BrokerProcess
    ports: dict[str, int]
    authority: Authority
    tokens: TokenServer
    certificate: str

    def address(self, protocol: str) -> str:
        return f"localhost:{self.ports[protocol]}"

    def options(self, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, str]:
        """As librdkafka names them."""
        given = {
            "bootstrap.servers": self.address(protocol),
            "security.protocol": protocol,
        }
        if protocol.endswith("SSL"):
            given["ssl.ca.location"] = self.authority.file
        if protocol == TLS:
            given |= {
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.certificate,
            }
        if mechanism == TOKENS:
            given |= {
                "sasl.mechanism": mechanism,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                "sasl.oauthbearer.client.id": _CLIENT_ID,
                "sasl.oauthbearer.client.secret": _CLIENT_SECRET,
            }
        elif mechanism:
            given |= {
                "sasl.mechanism": mechanism,
                "sasl.username": USER,
                "sasl.password": password,
            }
        return given

    def java_options(self, protocol: str, mechanism: str) -> dict[str, str]:
        """As Java names them."""
        given = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        if protocol == TLS:
            given |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if mechanism == TOKENS:
            handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            given |= {
                "sasl.mechanism": mechanism,
                "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                "sasl.login.callback.handler.class": handler,
                "sasl.jaas.config": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
                    f'clientId="{_CLIENT_ID}" clientSecret="{_CLIENT_SECRET}";'
                ),
            }
        elif mechanism:
            module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
            given |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": jaas(module, {"username": USER, "password": SECRET}),
            }
        return given

    def file(self, path: Path, protocol: str, mechanism: str) -> Path:
        """A file of properties for `--client-config`, with all but the address."""
        options = self.options(protocol, mechanism)
        del options["bootstrap.servers"]
        return write_properties(path, options)


def write_properties(path: Path, options: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    path.chmod(0o600)
    return path


class ConfiguredBroker(BrokerProcess):
    """Its listeners are in its file."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--listen")
        return command[:at] + command[at + 2 :]


@contextmanager
def secured_process(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Secured]:
    """Runs the broker; at its end no secret is in its log."""
    authority = Authority(folder / "certificates")
    tokens = TokenServer()
    keys = folder / "jwks.json"
    keys.write_text(tokens.keys())
    names = (PLAINTEXT, TLS, SASL_PLAIN, SASL_TLS)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    listeners = ",".join(
        f"{name}://{'127.0.0.1' if name == PLAINTEXT else 'localhost'}:{port}"
        for name, port in ports.items()
    )
    users = jaas("PlainLoginModule", {f"user_{USER}": SECRET})
    config = write_properties(
        folder / "server.properties",
        {
            "listeners": listeners,
            "ssl.keystore.location": authority.server(),
            "ssl.truststore.location": authority.file,
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*PASSWORDS, TOKENS)),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": users
                for name in (SASL_PLAIN, SASL_TLS)
            },
            **(settings or {}),
        },
    )
    broker = ConfiguredBroker(
        folder / "data", port=ports[PLAINTEXT], arguments=["--config", str(config)]
    )
    try:
        with broker:
            with Admin(broker.bootstrap) as admin:
                for mechanism in SCRAM:
                    admin.set_scram_password(USER, SECRET, mechanism)  # type: ignore[arg-type]
            yield Secured(broker, ports, authority, tokens, authority.client(USER))
            for secret in SECRETS:
                assert secret not in broker.log_path.read_text()
    finally:
        tokens.close()
