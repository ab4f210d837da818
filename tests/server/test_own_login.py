"""How a broker proves to others who it is: what it is made of, and what is told at the start if it is
not enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.security import jaas

from ottla.server.broker import Broker, CannotStart
from ottla.wire.oidc import TokenFile
from ottla.wire.sasl import OAuthBearer, Plain

StartBroker = Callable[..., BrokerThread]

ENDPOINT = "listener.name.inside.sasl.oauthbearer.token.endpoint.url"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def settings_of(mechanism: str, login: str, **more: str) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/jwks.json",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.inside.{mechanism.lower()}.sasl.jaas.config": login,
        **more,
    }


def mechanism_of(broker: Broker) -> object:
    return broker.security.between_brokers().sasl


@pytest.mark.parametrize(
    ("mechanism", "login", "endpoint", "told"),
    [
        ("PLAIN", jaas("PlainLoginModule", {"user_a": "x"}), "", "username and password"),
        ("SCRAM-SHA-256", jaas("ScramLoginModule", {"username": "b", "password": "s3cret"}), "",
         "must be one of sasl.enabled.mechanisms of INSIDE"),
        ("OAUTHBEARER", f"{MODULE} clientId='b' clientSecret='s3cret';", "", "it must be set"),
        ("OAUTHBEARER", f"{MODULE} clientId='b';", "http://127.0.0.1:1/token",
         "clientId and clientSecret of this broker"),
        ("OAUTHBEARER", f"{MODULE};", "ftp://127.0.0.1:1/token", "an https:, http: or file: URL"),
        ("OAUTHBEARER", f"{MODULE};", "file:///nowhere/token", "No such file"),
    ],
)  # fmt: skip
def test_a_login_that_is_not_enough_is_told_at_the_start(
    mechanism: str, login: str, endpoint: str, told: str, tmp_path: Path
) -> None:
    settings = settings_of(mechanism, login, **{ENDPOINT: endpoint})
    with pytest.raises(CannotStart, match="cannot connect to other brokers") as refused:
        BrokerThread(tmp_path, settings=settings).start()
    assert told in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_password(start_broker: StartBroker) -> None:
    login = jaas("PlainLoginModule", {"username": "broker", "password": "s3cret"})
    broker = start_broker(settings=settings_of("PLAIN", login))
    assert broker.run(mechanism_of) == Plain("broker", "s3cret")


async def _token(mechanism: object) -> str:
    assert isinstance(mechanism, OAuthBearer)
    return (await mechanism.token()).value


def test_a_token_in_a_file(start_broker: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a.b.c\n")
    settings = settings_of("OAUTHBEARER", f"{MODULE} extension_team='x';")
    broker = start_broker(settings={**settings, ENDPOINT: file.as_uri()})
    mechanism = broker.run(mechanism_of)
    assert broker.run_async(_token(mechanism)) == "a.b.c"
    # It is one for all connections, and keeps its token while that lasts.
    assert broker.run(mechanism_of) is mechanism
    assert TokenFile(str(file)).read().value == "a.b.c"
