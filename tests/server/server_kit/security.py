"""What the tests of security share: certificates, sockets that speak TLS, clients that authenticate."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.wire.sasl import Mechanism
from server_kit.wire import Wire


@dataclass
class Authority:
    """A certificate authority with a folder for what it signs."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca.cert_pem.write_to_path(str(self.folder / "ca.pem"))

    @property
    def file(self) -> str:
        return str(self.folder / "ca.pem")

    def server(
        self,
        name: str = "broker",
        *,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        expired: bool = False,
    ) -> str:
        """A key store for these hosts."""
        return self._store(name, self.ca.issue_cert(*hosts, **_life(expired=expired)))

    def client(self, name: str, *, expired: bool = False) -> str:
        """A key store for a client whose subject is `CN=name` and trustme's own."""
        issued = self.ca.issue_cert(
            f"{name}@example.org", common_name=name, **_life(expired=expired)
        )
        return self._store(name, issued)

    def _store(self, name: str, issued: trustme.LeafCert) -> str:
        path = self.folder / f"{name}.pem"
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        # The form of keys that Java reads, too.
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
        return str(path)


def _life(*, expired: bool) -> dict[str, Any]:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return {"not_after": yesterday} if expired else {}


def tls_settings(
    authority: Authority, listeners: str, client_auth: str = "none", **more: str
) -> dict[str, str]:
    """Settings of a broker with these listeners and a certificate of the authority."""
    return {
        "listeners": listeners,
        "ssl.keystore.location": authority.server(),
        "ssl.truststore.location": authority.file,
        "ssl.client.auth": client_auth,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def client_context(authority: Authority, store: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if store is not None:
        context.load_cert_chain(store)
    return context


class TlsWire(Wire):
    """A Wire through TLS."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port)
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


def step(wire: Wire, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
    return wire.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, version)


def agree(wire: Wire, mechanism: str) -> SaslHandshakeResponse:
    return wire.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)


class RefusedByBroker(Exception):
    """An authentication that the broker refused, with its answer."""

    def __init__(self, answer: SaslAuthenticateResponse) -> None:
        super().__init__(answer.error_message)
        self.answer = answer


def authenticate(wire: Wire, mechanism: Mechanism) -> SaslAuthenticateResponse:
    """The whole exchange; the last answer. Raises RefusedByBroker."""
    agreed = agree(wire, mechanism.name)
    assert agreed.error_code == 0, agreed
    last = SaslAuthenticateResponse()

    async def send(message: bytes) -> bytes:
        nonlocal last
        last = step(wire, message)
        if last.error_code:
            raise RefusedByBroker(last)
        return last.auth_bytes

    asyncio.run(mechanism.converse(send))
    return last


def jaas(module: str, options: Mapping[str, Any]) -> str:
    """A line of Kafka's for credentials."""
    package = "scram" if module.startswith("Scram") else "plain"
    written = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{package}.{module} required {written};"


def sasl_settings(mechanisms: str, plain: Mapping[str, Any]) -> dict[str, str]:
    """A listener for everybody, and one for clients that authenticate; `plain` are PLAIN's users."""
    return {
        "listeners": "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": mechanisms,
        "listener.name.clients.plain.sasl.jaas.config": jaas("PlainLoginModule", plain),
    }
