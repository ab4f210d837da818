"""Nobody can find out which users exist: unknown ones look like the others."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.sasl import (
    MECHANISMS,
    SECRET,
    connect,
)
from server_kit.security import (
    RefusedByBroker,
    agree,
    authenticate,
    step,
)

from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.cluster.security.credentials import ScramCredential
from ottla.protocol.errors import ErrorCode
from ottla.server.security.mechanisms import PlainExchange, Refused, Users


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.name}-{each.username}")
def test_refusals_do_not_tell_who_exists(
    mechanism: Any, sasl_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    told = set()
    before = sasl_broker.run(lambda inside: inside.reactor.failed_authentications)
    for wrong in (
        dataclasses.replace(mechanism, password="wrong-password"),
        dataclasses.replace(mechanism, username="nobody-here"),
    ):
        with connect(sasl_broker) as wire:
            with pytest.raises(RefusedByBroker) as refused:
                authenticate(wire, wrong)
            answer = refused.value.answer
            told.add((answer.error_code, answer.error_message, answer.auth_bytes))
            assert wire.is_closed()
    assert len(told) == 1
    assert told.pop()[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert sasl_broker.run(lambda inside: inside.reactor.failed_authentications) == before + 2
    assert "wrong-password" not in caplog.text
    assert "nobody-here" not in caplog.text


def challenge(broker: BrokerThread, user: str) -> tuple[bytes, int]:
    """The salt and the iterations that a user is told who has proved nothing."""
    with connect(broker) as wire:
        agree(wire, "SCRAM-SHA-256")
        told = step(wire, f"n,,n={user},r=abcdef".encode()).auth_bytes.decode()
    found = re.fullmatch(r"r=[^,]+,s=([^,]+),i=([0-9]+)", told)
    assert found is not None
    return base64.b64decode(found[1]), int(found[2])


def test_an_unknown_user_looks_like_the_others(sasl_broker: BrokerThread) -> None:
    """Always with the same salt, of the length that is usual here, and with as many iterations."""
    known, unknown = challenge(sasl_broker, "alice"), challenge(sasl_broker, "nobody")
    assert challenge(sasl_broker, "nobody") == unknown
    assert challenge(sasl_broker, "nobody-else")[0] != unknown[0]
    assert (len(unknown[0]), unknown[1]) == (len(known[0]), known[1]) == (16, 4096)


def test_what_unknown_users_are_told_cannot_be_computed_from_outside(
    sasl_broker: BrokerThread,
) -> None:
    def forget(inside: Any) -> Any:
        image = inside.image
        assert len(image.secret) == 32
        assert image.cluster_id not in str(image.secret)
        assert str(image.secret) not in repr(image)
        return image

    image = sasl_broker.run(forget)
    users = [
        Users(lambda found=found: found)
        for found in (
            image,
            dataclasses.replace(image),
            dataclasses.replace(image, secret=b"another cluster's"),
            # Of a cluster that has none yet: each broker has its own.
            dataclasses.replace(image, secret=b""),
            dataclasses.replace(image, secret=b""),
        )
    ]
    salts = [each.unknown("nobody", "SCRAM-SHA-256").salt for each in users]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4


def test_unknown_users_look_as_those_who_made_the_others_make_them() -> None:
    def image(**salts: bytes) -> ClusterImage:
        return ClusterImage(
            "id",
            secret=b"x",
            configs={
                (ResourceType.USER, name): {
                    "SCRAM-SHA-512": ScramCredential(salt, bytes(64), bytes(64), 4096).render()
                }
                for name, salt in salts.items()
            },
        )

    def told(found: ClusterImage, count: int = 200) -> list[bytes]:
        users = Users(lambda: found)
        return [users.unknown(f"user-{each}", "SCRAM-SHA-512").salt for each in range(count)]

    # Kafka's tools make text of 130 bits; where all of it is used, it begins with 1.
    kafkas = told(image(one=b"1l7h9mwdd0x1vkn4j6u8f8d1gl"))
    assert {len(each) for each in kafkas} >= {25, 26}
    assert all(re.fullmatch(rb"[0-9a-z]{20,26}", each) for each in kafkas)
    assert {each[:1] for each in kafkas if len(each) == 26} == {b"1"}
    # Others may make text of another length.
    assert all(
        re.fullmatch(rb"[0-9a-z]{16}", each) for each in told(image(one=b"0123456789abcdef"))
    )
    # Of two makers some look like one, some like the other.
    both = told(image(one=b"1l7h9mwdd0x1vkn4j6u8f8d1gl", two=bytes(64)))
    assert sum(each in kafkas for each in both) in range(50, 150)
    assert sum(len(each) == 64 for each in both) in range(50, 150)
    # Nobody is there: as we make them.
    assert {len(each) for each in told(image())} == {24}


def test_every_refusal_of_a_password_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str, int]] = []

    def fits(found: ScramCredential, mechanism: str, _: str) -> bool:
        checked.append((mechanism, found.iterations))
        return False

    monkeypatch.setattr(ScramCredential, "fits", fits)
    stored = ScramCredential.of_password("SCRAM-SHA-256", SECRET, 4096).render()
    configs = {(ResourceType.USER, "alice"): {"SCRAM-SHA-256": stored}}
    users = Users(lambda: ClusterImage("id", configs=configs))
    for user in ("alice", "bob", "nobody"):
        exchange = PlainExchange({"bob": SECRET}, users)
        with pytest.raises(Refused):
            asyncio.run(exchange.step(f"\0{user}\0wrong".encode()))
    assert len(checked) == 3
    assert len(set(checked)) == 1
