"""Brokers that talk to each other over TLS, and prove to each other who they are."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

# The kit of the server's tests has the certificates.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import ConfiguredBroker, TokenServer, write_properties
from server_kit.security import Authority, jaas

from ottla import Admin, Consumer, Producer
from ottla.cluster.decisions.users import ScramChange
from ottla.server.security.offline import change_users
from ottla.testing import free_port
from ottla.testing.zookeeper import ZooKeeperProcess

SECRET = "a secret of brokers"
ITERATIONS = 4096


def change(user: str, password: str) -> ScramChange:
    salt = b"salt of sixteen!"
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return ScramChange(user, 2, ITERATIONS, salt, salted)


WAYS = ("SCRAM-SHA-512", "PLAIN", "certificate")


def settings_of(way: str, authority: Authority) -> dict[str, str]:
    """How brokers prove who they are; only `broker` may be one, and the tests may do everything."""
    settings = {
        "inter.broker.listener.name": "INSIDE",
        "ssl.keystore.location": authority.server(),
        "ssl.truststore.location": authority.file,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:broker;User:ANONYMOUS;User:alice",
    }
    if way == "certificate":
        protocol = "SSL"
        settings["listener.name.inside.ssl.client.auth"] = "required"
        settings["ssl.principal.mapping.rules"] = "RULE:^CN=(alice),.*$/$1/,RULE:^.*$/broker/"
    else:
        protocol = "SASL_SSL"
        module = "PlainLoginModule" if way == "PLAIN" else "ScramLoginModule"
        options = {"username": "broker", "password": SECRET}
        if way == "PLAIN":
            options |= {"user_broker": SECRET, "user_alice": "hers"}
        settings["sasl.enabled.mechanisms"] = way
        settings["sasl.mechanism.inter.broker.protocol"] = way
        name = f"listener.name.inside.{way.lower()}.sasl.jaas.config"
        settings[name] = jaas(module, options)
    settings["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,INSIDE:{protocol}"
    return settings


def client_of(way: str, authority: Authority) -> dict[str, str]:
    """The options of a client that comes in by the listener of the brokers."""
    options = {"ssl.ca.location": authority.file}
    if way == "certificate":
        store = authority.client("alice")
        return {
            **options,
            "security.protocol": "SSL",
            "ssl.certificate.location": store,
            "ssl.key.location": store,
        }
    options |= {"security.protocol": "SASL_SSL", "sasl.mechanism": way}
    if way == "OAUTHBEARER":
        return options
    return {**options, "sasl.username": "alice", "sasl.password": "hers"}


def broker_on(
    folder: Path, number: int, zookeeper: str, settings: Mapping[str, str]
) -> SecuredBroker:
    port, inside = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = write_properties(
        folder / f"server-{number}.properties",
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://localhost:{inside}",
            **settings,
        },
    )
    return SecuredBroker(
        folder / f"data-{number}",
        port=port,
        arguments=["--config", str(config), "--node-id", str(number), "--zookeeper", zookeeper],
        inside=inside,
    )


class SecuredBroker(ConfiguredBroker):
    def __init__(self, data: Path, *, port: int, arguments: list[str], inside: int) -> None:
        super().__init__(data, port=port, arguments=arguments)
        self.inside = inside


@contextmanager
def running(
    folder: Path, settings: Mapping[str, str], numbers: tuple[int, ...] = (1, 2)
) -> Iterator[list[SecuredBroker]]:
    """Brokers with these settings, whose users are there before any of them runs."""
    with ZooKeeperProcess(folder / "zookeeper") as zookeeper:
        address = f"{zookeeper.address}/secured"
        results = asyncio.run(
            change_users([change("broker", SECRET), change("alice", "hers")], zookeeper=address)
        )
        assert [each.error for each in results] == [None, None]
        brokers = [broker_on(folder / "brokers", each, address, settings) for each in numbers]
        try:
            for each in brokers:
                each.start()
            yield brokers
            for each in brokers:
                assert SECRET not in each.log_path.read_text()
        finally:
            for each in brokers:
                each.kill()


def replicated(brokers: list[SecuredBroker], client: Mapping[str, str]) -> None:
    """Records are taken by all brokers, and read by a client that comes in by their listener."""
    first, second = brokers[:2]
    with Admin(first.bootstrap) as admin:
        admin.create_topic("orders", partitions=4, replication_factor=len(brokers))
    with Producer(second.bootstrap, acks="all") as producer:
        for number in range(200):
            producer.send("orders", value=str(number))
    options = {**client, "auto.offset.reset": "earliest"}
    with Consumer(f"localhost:{second.inside}", **options) as consumer:
        consumer.subscribe(["orders"])
        found: set[bytes] = set()
        for record in consumer:
            found.add(record.value)
            if len(found) == 200:
                break
    assert_in_sync(brokers)


def assert_in_sync(brokers: list[SecuredBroker]) -> None:
    with Admin(brokers[0].bootstrap) as admin:
        (topic,) = admin.describe_topics("orders").values()
        assert all(len(each.in_sync) == len(brokers) for each in topic.partitions)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_cluster_replicates_over_tls(way: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with running(tmp_path, settings_of(way, authority)) as brokers:
        replicated(brokers, client_of(way, authority))


# Tokens -----------------------------------------------------------------------------------------


def settings_with_tokens(
    authority: Authority, tokens: TokenServer, folder: Path, endpoint: str, login: str
) -> dict[str, str]:
    keys = folder / "jwks.json"
    keys.write_text(tokens.keys())
    prefix = "listener.name.inside"
    return {
        **settings_of("PLAIN", authority),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{prefix}.sasl.oauthbearer.token.endpoint.url": endpoint,
        f"{prefix}.oauthbearer.sasl.jaas.config": (
            f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {login};"
        ),
    }


@pytest.mark.long
@pytest.mark.timeout(180, func_only=True)
def test_three_brokers_prove_who_they_are_by_tokens(tmp_path: Path) -> None:
    """Tokens that last for seconds: the brokers fetch others in time, and stay in sync."""
    authority = Authority(tmp_path / "certificates")
    tokens = TokenServer({("brokers", SECRET): "broker", ("alices", "hers"): "alice"})
    tokens.life = datetime.timedelta(seconds=6)
    login = f'clientId="brokers" clientSecret="{SECRET}" scope="all"'
    settings = settings_with_tokens(authority, tokens, tmp_path, tokens.url, login)
    client = {
        **client_of("OAUTHBEARER", authority),
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
        "sasl.oauthbearer.client.id": "alices",
        "sasl.oauthbearer.client.secret": "hers",
    }
    try:
        with running(tmp_path, settings, (1, 2, 3)) as brokers:
            replicated(brokers, client)
            seen = tokens.given["broker"]
            assert seen >= len(brokers)
            # The tokens of now are none that anybody began with.
            tokens.wait_for("broker", seen + 3 * len(brokers))
            with Producer(brokers[2].bootstrap, acks="all") as producer:
                producer.send("orders", value=b"later").result()
            assert_in_sync(brokers)
    finally:
        tokens.close()


@pytest.mark.long
@pytest.mark.timeout(180, func_only=True)
def test_brokers_prove_who_they_are_by_a_token_in_a_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    tokens = TokenServer()
    try:
        file = tmp_path / "token"
        file.write_text(tokens.token(sub="broker")[0] + "\n")
        hers = tmp_path / "hers"
        hers.write_text(tokens.token(sub="alice")[0])
        settings = settings_with_tokens(authority, tokens, tmp_path, file.as_uri(), "")
        client = {
            **client_of("OAUTHBEARER", authority),
            "sasl.oauthbearer.token.endpoint.url": hers.as_uri(),
        }
        with running(tmp_path, settings) as brokers:
            replicated(brokers, client)
            assert not tokens.given
    finally:
        tokens.close()
