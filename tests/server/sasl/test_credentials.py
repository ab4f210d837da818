"""The credentials of users: how they are stored, set, described and deleted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.sasl import (
    BROKERS,
    SECRET,
    StartBroker,
    add_user,
    connect,
    settings_of,
)
from server_kit.security import (
    authenticate,
)
from server_kit.wire import Wire

from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.credentials import ScramCredential
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.wire.sasl import Plain, Scram


def test_what_is_stored_of_a_password_is_salted(sasl_broker: BrokerThread) -> None:
    stored = sasl_broker.broker.image.config(ResourceType.USER, "alice")
    credential = ScramCredential.parse(stored["SCRAM-SHA-256"])
    assert credential.fits("SCRAM-SHA-256", SECRET)
    assert not credential.fits("SCRAM-SHA-256", SECRET + "x")
    assert SECRET not in str(stored)
    assert "stored" not in repr(credential)


def alter(wire: Wire, **lists: Any) -> list[tuple[str, int]]:
    answer = wire.call(
        AlterUserScramCredentialsRequest(**lists), AlterUserScramCredentialsResponse, 0
    )
    return [(each.user, each.error_code) for each in answer.results]


def upsertion(name: str, mechanism: int = 1, **fields: Any) -> ScramCredentialUpsertion:
    given = {"iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32, **fields}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **given)


def described(wire: Wire, *users: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    answer = wire.call(
        DescribeUserScramCredentialsRequest(users=[UserName(name=each) for each in users] or None),
        DescribeUserScramCredentialsResponse,
        0,
    )
    assert answer.error_code == 0
    return {
        each.user: (
            each.error_code,
            [(one.mechanism, one.iterations) for one in each.credential_infos],
        )
        for each in answer.results
    }


def test_credentials_are_set_described_and_deleted(sasl_broker: BrokerThread) -> None:
    with sasl_broker.wire() as wire:
        assert alter(wire, upsertions=[upsertion("dave"), upsertion("dave", 2)]) == [("dave", 0)]
        assert described(wire, "dave") == {"dave": (0, [(1, 4096), (2, 4096)])}
        assert set(described(wire)) >= {"alice", "dave"}
        gone = [ScramCredentialDeletion(name="dave", mechanism=1)]
        assert alter(wire, deletions=gone) == [("dave", 0)]
        assert described(wire, "dave") == {"dave": (0, [(2, 4096)])}
        assert alter(wire, deletions=gone) == [("dave", ErrorCode.RESOURCE_NOT_FOUND)]
        assert described(wire, "nobody")["nobody"][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_bad_credentials_change_nothing(sasl_broker: BrokerThread) -> None:
    bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
    with sasl_broker.wire() as wire:
        for change, code in (
            (upsertion(""), bad),
            (upsertion("erin\ndenied: principal=User:bob"), bad),
            (upsertion("ANONYMOUS"), bad),
            (upsertion("erin", iterations=4095), bad),
            (upsertion("erin", iterations=16385), bad),
            (upsertion("erin", salt=b"short"), bad),
            (upsertion("erin", salted_password=b""), bad),
            (upsertion("erin", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
            (upsertion("erin", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ):
            assert alter(wire, upsertions=[change]) == [(change.name, code)]
            # With a good one of the same user beside it.
            if change.name == "erin" and change.mechanism:
                changes = [upsertion("erin", 2), change]
                assert alter(wire, upsertions=changes) == [("erin", code)]
        twice = [upsertion("erin"), upsertion("erin"), upsertion("frank")]
        assert alter(wire, upsertions=twice) == [
            ("erin", ErrorCode.DUPLICATE_RESOURCE),
            ("frank", 0),
        ]
        assert described(wire, "erin")["erin"][0] == ErrorCode.RESOURCE_NOT_FOUND
        assert described(wire, "erin", "erin")["erin"][0] == ErrorCode.DUPLICATE_RESOURCE


def test_credentials_survive_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker(settings=settings_of("SCRAM-SHA-512"))
    add_user(broker, "alice", SECRET)
    broker.restart()
    with connect(broker) as wire:
        authenticate(wire, Scram("alice", SECRET))


def test_passwords_are_in_no_log(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = start_broker(settings=settings_of("PLAIN,SCRAM-SHA-256"))
    add_user(broker, "alice", SECRET)
    for mechanism in (Plain("bob", SECRET), Scram("alice", SECRET, "sha256")):
        with connect(broker) as wire:
            authenticate(wire, mechanism)
    with broker.wire() as wire:
        alter(wire, upsertions=[upsertion("dave", salted_password=b"salted-secret" * 4)])
    stored = broker.broker.image.configs
    hidden = [SECRET, BROKERS, "salted-secret"]
    hidden += [
        text.partition("stored_key=")[2][:20] for each in stored.values() for text in each.values()
    ]
    assert not [text for text in hidden if text and text in caplog.text]
