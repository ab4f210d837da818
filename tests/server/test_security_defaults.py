"""What holds without anybody asking for it: who is warned, what is logged, who may read the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import batch_of, create_topic, produce
from server_kit.security import Authority, authenticate, jaas, tls_settings
from server_kit.wire import Wire

from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.wire.sasl import Plain

StartBroker = Callable[..., BrokerThread]


def test_the_default_listener_is_loopback_and_warns_of_nothing(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    assert broker.broker.security.open_listeners() == []
    assert "asks nobody" not in caplog.text


@pytest.mark.parametrize(
    ("listeners", "more", "told"),
    [
        ("PLAINTEXT://0.0.0.0:0", {}, "ANYBODY WHO REACHES IT"),
        ("PLAINTEXT://:0", {}, "ANYBODY WHO REACHES IT"),
        ("SSL://0.0.0.0:0", {}, "ANYBODY WHO REACHES IT"),
        ("SSL://0.0.0.0:0", {"ssl.client.auth": "required"}, None),
        ("PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://0.0.0.0:0", {}, None),
        (
            "PLAINTEXT://0.0.0.0:0",
            {"authorizer.class.name": ("org.apache.kafka.metadata.authorizer.StandardAuthorizer")},
            "is User:ANONYMOUS",
        ),
        (
            "SSL://0.0.0.0:0",
            {
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "super.users": "User:admin;User:ANONYMOUS",
            },
            "ANYBODY WHO REACHES IT",
        ),
    ],
)
def test_a_listener_that_is_open_to_the_network_is_told_loudly(
    listeners: str,
    more: dict[str, str],
    told: str | None,
    start_broker: StartBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = tls_settings(Authority(tmp_path / "certificates"), listeners) | more
    start_broker(settings=settings)
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [told in line for line in lines if "asks nobody" in line] == ([True] if told else [])


@pytest.mark.parametrize(
    ("address", "is_told"), [("127.0.0.1:0", False), ("0.0.0.0:0", True), (":0", True)]
)
def test_metrics_that_others_can_read_are_told_of(
    address: str, is_told: bool, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    start_broker(settings={"metrics.listener": address})
    warned = [each for each in caplog.records if each.levelname == "WARNING"]
    assert any("to whoever reaches it" in each.getMessage() for each in warned) is is_told


def test_secrets_of_the_configuration_are_told_to_nobody(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "certificates")
    secrets = {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas(
            "PlainLoginModule", {"user_alice": "s3cret"}
        ),
        "ssl.key.password": "s3cret",
        "ssl.truststore.password": "s3cret",
    }
    settings = tls_settings(authority, "PLAINTEXT://127.0.0.1:0,SASL_SSL://localhost:0")
    broker = start_broker(settings=settings | secrets | {"sasl.enabled.mechanisms": "PLAIN"})
    with broker.wire() as wire:
        own = str(broker.broker.id)
        for name, synonyms in ((own, True), (own, False), ("", True)):
            resource = DescribeConfigsResource(
                resource_type=4, resource_name=name, configuration_keys=None
            )
            answer = wire.call(
                DescribeConfigsRequest(
                    resources=[resource], include_synonyms=synonyms, include_documentation=True
                ),
                DescribeConfigsResponse,
                4,
            )
            (result,) = answer.results
            if name:
                told = {each.name: each for each in result.configs}
                assert {"ssl.key.password", "ssl.truststore.password"} <= set(told)
                for secret in secrets.keys() & told.keys():
                    assert told[secret].is_sensitive
                    assert told[secret].value is None
            assert "s3cret" not in repr(
                [
                    (each.name, each.value, [one.value for one in each.synonyms])
                    for each in result.configs
                ]
            )
    assert "s3cret" not in caplog.text


def test_nobody_else_may_read_the_files(start_broker: StartBroker) -> None:
    before = os.umask(0o022)
    try:
        broker = start_broker()
        with broker.wire() as wire:
            produce(wire, create_topic(wire), batch_of(b"x"))
        broker.stop()
    finally:
        os.umask(before)
    open_to_others = [
        path for path in (broker.data, *broker.data.rglob("*")) if path.stat().st_mode & 0o077
    ]
    assert open_to_others == []


def test_administrative_operations_are_in_the_audit_log(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ottla.audit")
    broker = start_broker(
        settings={
            "listeners": "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": jaas(
                "PlainLoginModule", {"user_alice": "a"}
            ),
        }
    )
    with broker.wire() as wire:
        create_topic(wire, name="by-nobody")
    with Wire("127.0.0.1", broker.broker.bound[1].port) as wire:
        authenticate(wire, Plain("alice", "a"))
        create_topic(wire, name="by-alice")
        wire.call(
            AlterUserScramCredentialsRequest(
                upsertions=[
                    ScramCredentialUpsertion(
                        name="bob",
                        mechanism=1,
                        iterations=4096,
                        salt=b"s" * 16,
                        salted_password=b"secret!!" * 4,
                    )
                ]
            ),
            AlterUserScramCredentialsResponse,
            0,
        )
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla.audit"]
    assert len(lines) == 2
    assert "api=CREATE_TOPICS principal=User:alice" in lines[0]
    assert "'by-alice'" in lines[0]
    assert "api=ALTER_USER_SCRAM_CREDENTIALS principal=User:alice" in lines[1]
    assert "'bob'" in lines[1]
    assert "secret" not in caplog.text
