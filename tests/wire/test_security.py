"""TLS and SASL against Apache Kafka, with the options as users write them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from wire_kit.certificates import PASSWORD
from wire_kit.kafka import (
    SASL_PLAINTEXT,
    SASL_SSL,
    SECRET,
    SESSION_LIFETIME_MS,
    SSL,
    USER,
    Kafka,
)

from ottla.client.configuration.clients import ClientSettings, read_settings
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.connection import Connection
from ottla.wire.errors import AuthenticationFailed, ConnectFailed, TlsFailed
from ottla.wire.sasl import Scram
from ottla.wire.security import Security

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120, func_only=True)]


async def open_with(
    kafka: Kafka, protocol: str, host: str = "localhost", **options: Any
) -> Connection:
    named = {name.replace("_", "."): value for name, value in options.items()}
    settings = read_settings(
        ClientSettings,
        kafka.address(protocol),
        {"security.protocol": protocol.lower(), **named},
    )
    return await Connection.open(
        host,
        kafka.ports[protocol],
        options=settings.connection_options(),
        security=settings.security,
    )


async def works(kafka: Kafka, protocol: str, **options: Any) -> None:
    connection = await open_with(kafka, protocol, **options)
    answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
    assert answer.brokers[0].port == kafka.ports[protocol]
    connection.close()


def file(kafka: Kafka, name: str) -> str:
    return kafka.certificates.path(name)


async def test_tls_with_an_authority_in_a_file(kafka: Kafka) -> None:
    await works(kafka, SSL, ssl_ca_location=file(kafka, "ca.pem"))


async def test_tls_with_an_authority_as_text(kafka: Kafka) -> None:
    await works(kafka, SSL, ssl_ca_pem=kafka.certificates.text("ca.pem"))


async def test_tls_with_a_java_truststore_in_pem(kafka: Kafka) -> None:
    await works(
        kafka, SSL, ssl_truststore_location=file(kafka, "ca.pem"), ssl_truststore_type="PEM"
    )


async def test_tls_with_pkcs12_stores(kafka: Kafka) -> None:
    pytest.importorskip("cryptography")
    await works(
        kafka,
        SSL,
        ssl_truststore_location=file(kafka, "trust.p12"),
        ssl_truststore_password=PASSWORD,
        ssl_keystore_location=file(kafka, "client.p12"),
        ssl_keystore_password=PASSWORD,
    )


@pytest.mark.parametrize("form", ["files", "texts", "java texts", "encrypted key"])
async def test_a_certificate_of_ours(kafka: Kafka, form: str) -> None:
    text = kafka.certificates.text
    options = {
        "files": {
            "ssl.certificate.location": file(kafka, "client.pem"),
            "ssl.key.location": file(kafka, "client.key"),
        },
        "texts": {"ssl.certificate.pem": text("client.pem"), "ssl.key.pem": text("client.key")},
        "java texts": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": text("client.pem"),
            "ssl.keystore.key": text("client.key"),
        },
        "encrypted key": {
            "ssl.certificate.location": file(kafka, "client.pem"),
            "ssl.key.location": file(kafka, "client-encrypted.key"),
            "ssl.key.password": PASSWORD,
        },
    }[form]
    await works(kafka, SSL, ssl_ca_location=file(kafka, "ca.pem"), **options)


async def test_an_authority_that_did_not_sign(kafka: Kafka) -> None:
    with pytest.raises(TlsFailed, match=r"certificate is not accepted.*ssl\.ca\.location"):
        await works(kafka, SSL, ssl_ca_location=file(kafka, "other-ca.pem"))
    with pytest.raises(TlsFailed, match="certificate is not accepted"):
        await works(kafka, SSL)  # the system's authorities
    await works(kafka, SSL, enable_ssl_certificate_verification=False)


async def test_a_certificate_for_another_host(kafka: Kafka) -> None:
    authority = {"ssl.ca.location": file(kafka, "ca.pem")}
    with pytest.raises(TlsFailed, match="certificate is not accepted"):
        await open_with(kafka, SSL, "127.0.0.1", **authority)
    for off in ("none", ""):
        connection = await open_with(
            kafka, SSL, "127.0.0.1", ssl_endpoint_identification_algorithm=off, **authority
        )
        connection.close()


async def test_tls_where_the_broker_has_none(kafka: Kafka) -> None:
    options = {"security.protocol": "ssl", "ssl.ca.location": file(kafka, "ca.pem")}
    settings = read_settings(ClientSettings, kafka.bootstrap, options)
    with pytest.raises(ConnectFailed, match="TLS"):
        await Connection.open("127.0.0.1", kafka.ports["PLAINTEXT"], security=settings.security)


async def test_no_tls_where_the_broker_has_it(kafka: Kafka) -> None:
    with pytest.raises(ConnectFailed, match="kind PLAINTEXT"):
        await Connection.open("localhost", kafka.ports[SSL])


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", [SASL_PLAINTEXT, SASL_SSL])
async def test_sasl(kafka: Kafka, protocol: str, mechanism: str) -> None:
    await works(
        kafka,
        protocol,
        ssl_ca_location=file(kafka, "ca.pem"),
        sasl_mechanism=mechanism,
        sasl_username=USER,
        sasl_password=SECRET,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password(kafka: Kafka, mechanism: str) -> None:
    with pytest.raises(AuthenticationFailed, match=mechanism):
        await works(
            kafka,
            SASL_PLAINTEXT,
            sasl_mechanism=mechanism,
            sasl_username=USER,
            sasl_password="wrong",
        )


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
async def test_java_s_way_to_say_it(kafka: Kafka, mechanism: str, module: str) -> None:
    await works(
        kafka,
        SASL_PLAINTEXT,
        sasl_mechanism=mechanism,
        sasl_jaas_config=f'{module} required username="{USER}" password="{SECRET}";',
    )


async def test_a_mechanism_that_is_not_offered(kafka: Kafka) -> None:
    class Strange:
        name = "STRANGE"

        async def converse(self, step: object) -> None:
            raise AssertionError("never agreed on")

    with pytest.raises(AuthenticationFailed, match=r"not offered there; offered: .*PLAIN"):
        await Connection.open(
            "127.0.0.1", kafka.ports[SASL_PLAINTEXT], security=Security(sasl=Strange())
        )


async def test_a_listener_without_sasl(kafka: Kafka) -> None:
    with pytest.raises((AuthenticationFailed, ConnectFailed)):
        await Connection.open(
            "127.0.0.1", kafka.ports["PLAINTEXT"], security=Security(sasl=Scram("a", "b"))
        )


def unsigned_token(user: str, lifetime: float = 3600.0) -> str:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = time.time()
    claims = {"sub": user, "iat": now - 1, "exp": now + lifetime}
    return f"{part({'alg': 'none'})}.{part(claims)}."


async def test_a_bearer_token(kafka: Kafka) -> None:
    asked = []

    def callback(configuration: str) -> tuple[str, float]:
        asked.append(configuration)
        return unsigned_token(USER), time.time() + 3600

    options = {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_config": "hint",
        "oauth_cb": callback,
    }
    await works(kafka, SASL_PLAINTEXT, **options)
    assert asked == ["hint"]

    async def asynchronous(_: str) -> str:
        return unsigned_token(USER)

    await works(kafka, SASL_PLAINTEXT, sasl_mechanism="OAUTHBEARER", oauth_cb=asynchronous)


async def test_a_bearer_token_that_has_expired(kafka: Kafka) -> None:
    with pytest.raises(AuthenticationFailed, match="OAUTHBEARER"):
        await works(
            kafka,
            SASL_PLAINTEXT,
            sasl_mechanism="OAUTHBEARER",
            oauth_cb=lambda _: unsigned_token(USER, -100),
        )


async def test_the_session_outlives_its_lifetime(kafka: Kafka) -> None:
    """The broker ends sessions that are not renewed; requests go on through three of them."""
    connection = await open_with(
        kafka,
        SASL_PLAINTEXT,
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=USER,
        sasl_password=SECRET,
    )
    loop = asyncio.get_running_loop()
    end = loop.time() + 3 * SESSION_LIFETIME_MS / 1000
    answered = 0
    while loop.time() < end:
        # Always one in flight, so that renewals meet requests.
        await connection.request(MetadataRequest(topics=[]), MetadataResponse)
        answered += 1
        await asyncio.sleep(0.02)
    assert answered > 50
    assert not connection.closed
    connection.close()
