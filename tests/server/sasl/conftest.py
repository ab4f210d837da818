"""A broker with a listener for SASL, and one user, alice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.sasl import (
    SECRET,
    add_user,
    settings_of,
)


@pytest.fixture(scope="module")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = settings_of("PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
    with BrokerThread(tmp_path_factory.mktemp("sasl"), settings=settings) as running:
        add_user(running, "alice", SECRET)
        yield running
