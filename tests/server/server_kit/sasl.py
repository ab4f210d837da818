"""Brokers whose clients authenticate by SASL, and their users."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ottla.cluster.decisions.users import ScramChange
from ottla.wire.sasl import Mechanism, Plain, Scram
from server_kit.broker_thread import BrokerThread
from server_kit.security import sasl_settings
from server_kit.wire import Wire

StartBroker = Callable[..., BrokerThread]

SECRET = "correct horse, battery=staple"
BROKERS = "broker's own secret"


def settings_of(mechanisms: str, **more: str) -> dict[str, str]:
    users = {"username": "broker", "password": BROKERS, "user_bob": SECRET}
    return {
        **sasl_settings(mechanisms, users),
        "connection.failed.authentication.delay.ms": "1",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def add_user(broker: BrokerThread, user: str, password: str, *mechanisms: int) -> None:
    changes = []
    for number in mechanisms or (1, 2):
        salt = b"0123456789abcdef"
        algorithm = "sha256" if number == 1 else "sha512"
        salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, 4096)
        changes.append(ScramChange(user, number, 4096, salt, salted))
    for result in broker.run_async(broker.broker.controller.alter_scram(changes)):
        assert result.error is None


def connect(broker: BrokerThread) -> Wire:
    return Wire("127.0.0.1", broker.broker.bound[1].port)


def who(broker: BrokerThread) -> set[str]:
    return broker.run(
        lambda inside: {
            each.principal
            for each in inside.reactor.connections
            if each.authentication is not None and not each.closed
        }
    )


MECHANISMS: list[Mechanism] = [
    Plain("bob", SECRET),  # from the configuration
    Plain("alice", SECRET),  # stored
    Scram("alice", SECRET, "sha256"),
    Scram("alice", SECRET, "sha512"),
]
