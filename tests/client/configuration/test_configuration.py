"""Options: names, synonyms, values, and what is refused with which words."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from wire_kit.certificates import Certificates

from ottla.client.configuration.clients import (
    IGNORED_OPTIONS,
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    parse_servers,
    read_settings,
)
from ottla.client.configuration.options import options_of
from ottla.client.errors import ConfigurationError
from ottla.wire.jaas import UnreadableJaas, parse_jaas
from ottla.wire.sasl import OAuthBearer, Plain, Scram

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def client(**options: Any) -> ClientSettings:
    return read_settings(ClientSettings, "localhost:9092", options)


def test_both_ways_to_give_options() -> None:
    as_words = read_settings(
        ConsumerSettings, "h:1,[::1]:2", {"group_id": "g", "fetch_wait_max_ms": 100}
    )
    as_dictionary = read_settings(
        ConsumerSettings,
        {"bootstrap.servers": "h:1,[::1]:2", "group.id": "g", "fetch.wait.max.ms": "100"},
    )
    assert as_words == as_dictionary
    assert as_words.servers == (("h", 1), ("::1", 2))
    assert as_words.bootstrap == "h:1,[::1]:2"
    assert as_words.group_id == "g"
    assert as_words.fetch_wait == 0.1
    mixed = read_settings(ConsumerSettings, {"bootstrap.servers": "h"}, {"group.id": "later"})
    assert (mixed.group_id, mixed.servers) == ("later", (("h", 9092),))


@pytest.mark.parametrize(
    ("kind", "one", "other", "value"),
    [
        (ClientSettings, "topic.metadata.refresh.interval.ms", "metadata.max.age.ms", 1000),
        (ClientSettings, "receive.buffer.bytes", "socket.receive.buffer.bytes", 65536),
        (ProducerSettings, "queue.buffering.max.ms", "linger.ms", 7),
        (ProducerSettings, "compression.codec", "compression.type", "zstd"),
        (ProducerSettings, "max.request.size", "message.max.bytes", 5000),
        (ProducerSettings, "message.timeout.ms", "delivery.timeout.ms", 5000),
        (ConsumerSettings, "fetch.max.wait.ms", "fetch.wait.max.ms", 10),
        (ConsumerSettings, "fetch.message.max.bytes", "max.partition.fetch.bytes", 1000),
    ],
)
def test_the_java_client_s_names(
    kind: type[ClientSettings], one: str, other: str, value: object
) -> None:
    same = [read_settings(kind, "h", {name: value}) for name in (one, other)]
    assert same[0] == same[1] != read_settings(kind, "h")


def test_the_option_s_own_name_wins_over_its_synonym() -> None:
    for given in (
        {"linger.ms": 5, "queue.buffering.max.ms": 900},
        {"queue.buffering.max.ms": 900, "linger.ms": 5},
    ):
        assert read_settings(ProducerSettings, "h", given).linger == 0.005


def test_no_name_means_two_things() -> None:
    for kind in (ClientSettings, AdminSettings, ProducerSettings, ConsumerSettings):
        names = [
            name for option in options_of(kind).values() for name in (option.name, *option.also)
        ]
        assert len(names) == len(set(names))
        assert not set(names) & set(IGNORED_OPTIONS)


def test_what_has_no_meaning_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text("utf-8")
    assert [name for name in IGNORED_OPTIONS if f"`{name}`" not in page] == []


def test_values() -> None:
    producer = read_settings(ProducerSettings, "h", {"acks": "all", "enable.idempotence": "true"})
    assert (producer.acks, producer.idempotence) == (-1, True)
    assert read_settings(ProducerSettings, "h", {"acks": 1}).acks == 1
    consumer = read_settings(ConsumerSettings, "h", {"auto.offset.reset": "smallest"})
    assert consumer.offset_reset == "earliest"
    assert read_settings(ProducerSettings, "h", {"message.timeout.ms": 0}).delivery_timeout == (
        float("inf")
    )
    assert read_settings(ProducerSettings, "h", {"buffer.memory": 123}).buffer_limit == 123
    assert client(client_id=None).client_id == "ottla"  # None: not given


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (ClientSettings, {"request.timeout.ms": "soon"}, "takes a number of milliseconds from 1"),
        (ClientSettings, {"request.timeout.ms": 0}, "takes a number of milliseconds from 1"),
        (ProducerSettings, {"acks": 2}, "acks takes one of -1, 0, 1, not 2"),
        (ProducerSettings, {"enable.idempotence": "maybe"}, "takes true or false, not 'maybe'"),
        (ProducerSettings, {"batch.size": 1.5}, "takes a whole number from 1"),
        (ConsumerSettings, {"group.id": ""}, "takes a text that is not empty"),
        (ConsumerSettings, {"isolation.level": "none"}, "one of read_committed, read_unc"),
        (ConsumerSettings, {"auto.ofset.reset": "x"}, "did you mean auto.offset.reset?"),
        (ProducerSettings, {"lingr.ms": 5}, "lingr.ms is no option of a producer; did you mean li"),
        (ClientSettings, {"zzzzzz": 5}, "zzzzzz is no option of a client"),
        (ClientSettings, {"ssl.ca.locaton": "x"}, "did you mean ssl.ca.location?"),
    ],
)
def test_what_is_refused(
    kind: type[ClientSettings], options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(kind, "h", options)
    assert sentence in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_what_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ottla.client"):
        read_settings(ConsumerSettings, "h", {"acks": "all", "statistics.interval.ms": 5})
    assert "acks has no meaning for a consumer" in caplog.text
    assert "statistics.interval.ms has no meaning here" in caplog.text


@pytest.mark.parametrize("text", ["", ",", "h:", "h:0", "h:99999", ":1", "h:x", "::1:5", "a:b:1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers takes host:port"):
        parse_servers(text)


def test_addresses() -> None:
    assert parse_servers(" a , b:1,PLAINTEXT://c:2,[fe80::1]:3,[::1]") == (
        ("a", 9092),
        ("b", 1),
        ("c", 2),
        ("fe80::1", 3),
        ("::1", 9092),
    )
    assert parse_servers(["a:1", "b:2"]) == (("a", 1), ("b", 2))
    with pytest.raises(ConfigurationError):
        parse_servers(5)


# Security


def sasl(**options: Any) -> object:
    return client(security_protocol="SASL_PLAINTEXT", **options).security.sasl


def test_mechanisms() -> None:
    named = {"sasl_username": "u", "sasl_password": "p"}
    assert sasl(sasl_mechanism="PLAIN", **named) == Plain("u", "p")
    assert sasl(sasl_mechanisms="scram-sha-256", **named) == Scram("u", "p", "sha256")
    line = f'{PLAIN_MODULE} required username="u" password="p";'
    assert sasl(sasl_jaas_config=line) == Plain("u", "p")
    line = f"{SCRAM_MODULE} required username='u' password='p' tokenauth=\"true\";"
    assert sasl(sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=line) == Scram(
        "u", "p", "sha512", token=True
    )
    line = f'{BEARER_MODULE} required clientId="i" clientSecret="s" scope="all" extension_a="b";'
    bearer = sasl(
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=line,
        sasl_oauthbearer_token_endpoint_url="https://example.invalid/token",
    )
    assert isinstance(bearer, OAuthBearer)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "sasl.mechanism takes one of PLAIN"),
        ({"sasl_mechanism": "GSSAPI"}, "Kerberos is not supported"),
        ({"sasl_mechanism": "PLAIN"}, "PLAIN needs sasl.username and sasl.password"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs oauth_cb"),
        ({"sasl_mechanism": "OAUTHBEARER", "oauth_cb": 5}, "oauth.cb takes a function"),
        ({"sasl_jaas_config": "x.Krb5LoginModule required a=b;"}, "names Krb5LoginModule"),
        ({"sasl_jaas_config": f"{SCRAM_MODULE} required a=b;"}, "sasl.mechanism takes one of"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"{SCRAM_MODULE} required a=b;"},
            "does not go with the login module ScramLoginModule",
        ),
        ({"sasl_jaas_config": f"{PLAIN_MODULE} required a=b"}, "must end with ';'"),
        ({"sasl_jaas_config": f'{PLAIN_MODULE} required a="b;'}, "never closed"),
    ],
)
def test_sasl_options_that_make_no_sense(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sasl(**options)
    assert sentence in str(caught.value)


def test_a_password_is_never_shown() -> None:
    settings = client(
        security_protocol="sasl_plaintext",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="hush-hush",
    )
    assert "hush-hush" not in repr(settings)
    line = f"{PLAIN_MODULE} required password=hush-hush"
    with pytest.raises(ConfigurationError) as caught:
        sasl(sasl_jaas_config=line)
    assert "hush-hush" not in str(caught.value)


def test_jaas_lines() -> None:
    module = parse_jaas('a.b.Some required\n  one="x=\\"y\\";z" two=\'q\'\n  three=plain ;')
    assert module.name == "Some"
    assert module.options == {"one": 'x="y";z', "two": "q", "three": "plain"}
    bad = ["", ";", "A required", "A b=c;", "A required b;", "A required b c d;"]
    for line in (*bad, "A required b=c; B required d=e;"):
        with pytest.raises(UnreadableJaas, match=r"sasl\.jaas\.config cannot be read"):
            parse_jaas(line)


def tls(**options: Any) -> Any:
    return client(security_protocol="ssl", **options).security.tls


def test_tls_options(certificates: Certificates) -> None:
    path = certificates.path
    assert tls().context().verify_mode is ssl.CERT_REQUIRED
    strict = tls(ssl_ca_location=path("ca.pem"), ssl_enabled_protocols="TLSv1.3")
    assert strict.context().minimum_version is ssl.TLSVersion.TLSv1_3
    assert strict.context().check_hostname
    assert not tls(ssl_endpoint_identification_algorithm="").context().check_hostname
    assert tls(enable_ssl_certificate_verification="false").context().verify_mode is ssl.CERT_NONE
    assert tls(ssl_cipher_suites="ECDHE-RSA-AES128-GCM-SHA256,TLS_AES_128_GCM_SHA256").ciphers == (
        "ECDHE-RSA-AES128-GCM-SHA256"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ssl.ca.location": "absent.pem"}, "No such file"),
        ({"ssl.ca.location": "{client.key}"}, "holds no certificates in PEM"),
        ({"ssl.ca.pem": "nonsense"}, "holds no certificates in PEM"),
        ({"ssl.truststore.location": "{store.jks}"}, "keytool -importkeystore"),
        ({"ssl.keystore.location": "{store.jks}", "ssl.keystore.type": "JKS"}, "is a JKS store"),
        ({"ssl.keystore.location": "absent.p12"}, "No such file"),
        ({"ssl.keystore.location": "{client.p12}", "ssl.keystore.password": "x"}, "password right"),
        ({"ssl.key.location": "{client.key}"}, "without a certificate"),
        (
            {"ssl.certificate.location": "{client.pem}", "ssl.key.location": "{server.key}"},
            "belong together",
        ),
        (
            {
                "ssl.certificate.location": "{client.pem}",
                "ssl.key.location": "{client-encrypted.key}",
                "ssl.key.password": "wrong",
            },
            "ssl.key.password must fit",
        ),
        ({"ssl.enabled.protocols": "SSLv3"}, "takes TLSv1.2, TLSv1.3, not SSLv3"),
        ({"ssl.cipher.suites": "NONSENSE"}, "no cipher of 'NONSENSE'"),
        ({"security.protocol": "tls"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_tls_options_that_make_no_sense(
    certificates: Certificates, options: dict[str, str], sentence: str
) -> None:
    pytest.importorskip("cryptography")
    filled = {
        name: certificates.path(value[1:-1]) if value.startswith("{") else value
        for name, value in options.items()
    }
    with pytest.raises(ConfigurationError) as caught:
        client(**{"security.protocol": "ssl", **filled})
    assert sentence in str(caught.value)


def test_a_jks_store_that_is_pkcs12_in_truth(certificates: Certificates, tmp_path: Path) -> None:
    """Java has written PKCS #12 under the name of JKS since version 9."""
    pytest.importorskip("cryptography")
    store = tmp_path / "truststore.jks"
    store.write_bytes(Path(certificates.path("trust.p12")).read_bytes())
    tls(
        ssl_truststore_location=str(store),
        ssl_truststore_password="changeit",
        ssl_truststore_type="JKS",
    )


def test_options_that_the_protocol_makes_no_use_of(caplog: pytest.LogCaptureFixture) -> None:
    client(sasl_username="u", ssl_ca_location="x")
    assert "security.protocol=PLAINTEXT makes no use of ssl.ca.location" in caplog.text
    assert "makes no use of sasl.username" in caplog.text
