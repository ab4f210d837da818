"""A broker with an authorizer: a super user on one listener, alice on the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_kit.access import guarded_settings
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, create_topic
from server_kit.security import authenticate
from server_kit.wire import Wire

from ottla.wire.sasl import Plain


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = guarded_settings(
        {"alice": "a", "bob": "b"},
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
    )
    with BrokerThread(tmp_path_factory.mktemp("acls"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(secured: BrokerThread) -> Iterator[Wire]:
    """A super user."""
    with secured.wire() as wire:
        yield wire


@pytest.fixture(scope="module")
def orders(admin: Wire) -> Topic:
    return create_topic(admin, name="orders")


@pytest.fixture(scope="module")
def alice(secured: BrokerThread) -> Iterator[Wire]:
    with Wire("127.0.0.1", secured.broker.bound[1].port) as wire:
        authenticate(wire, Plain("alice", "a"))
        yield wire
