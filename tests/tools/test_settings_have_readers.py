"""Every setting of a broker, a topic or a client is read by somebody, not just accepted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.configuration.clients import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
)
from ottla.client.configuration.options import options_of
from ottla.server.configuration.broker_settings import BROKER_SETTINGS
from ottla.storage.config import LOG_BROKER_SETTINGS, TOPIC_SETTINGS

SOURCES = Path(__file__).parents[2] / "src"
# Where settings are declared and checked against each other: there only `self.x` reads one.
DECLARING = {
    SOURCES / "ottla/server/configuration/broker_config.py",
    SOURCES / "ottla/storage/config.py",
    SOURCES / "ottla/client/configuration/clients.py",
}
# Where the name of a setting is a declaration, and not somebody who asks for its value.
TABLES = {
    SOURCES / "ottla/server/configuration/broker_settings.py",
    SOURCES / "ottla/server/configuration/coordinator_settings.py",
    SOURCES / "ottla/server/configuration/security_settings.py",
    *DECLARING,
}
# Settings of which one value is allowed: another is refused, and that is all there is to do.
ONE_VALUE = {"zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.type"}
# Left out where the settings of tokens are asked for.
TOKENS = "sasl.oauthbearer."


def _read_in(path: Path) -> Iterator[str]:
    """Attributes whose values are read, and texts that are names of settings."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of_itself = isinstance(node.value, ast.Name) and node.value.id == "self"
            if path not in DECLARING or of_itself:
                yield node.attr
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            # Where settings are declared, a value that is made into another: `values.pop("log_dirs")`.
            and (path not in TABLES or "." not in node.value)
        ):
            yield node.value


@pytest.fixture(scope="module")
def read() -> set[str]:
    """Everything that is read anywhere in the sources."""
    return {name for path in SOURCES.rglob("*.py") for name in _read_in(path)}


def test_every_setting_of_a_broker_and_of_a_topic(read: set[str]) -> None:
    unread = [
        setting.name
        for table in (BROKER_SETTINGS, TOPIC_SETTINGS)
        for setting in table
        # Those of the broker that are the defaults of topics are read as the topics'.
        if not setting.awaits
        and not (table is BROKER_SETTINGS and setting.name in LOG_BROKER_SETTINGS)
        and not read & {setting.name, setting.attribute, setting.name.removeprefix(TOKENS)}
    ]
    assert set(unread) == ONE_VALUE


def test_every_option_of_a_client(read: set[str]) -> None:
    kinds = (ClientSettings, AdminSettings, ProducerSettings, ConsumerSettings)
    fields = {field for kind in kinds for field in options_of(kind)}
    assert fields - read == set()
