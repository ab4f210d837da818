"""Passwords of users, written to the metadata while no broker runs.

The first ones have to be there before brokers that authenticate by them can talk to each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cluster.controller import Controller, NotElected
from ottla.cluster.decisions.users import ScramChange, UserResult
from ottla.cluster.store import StoreError
from ottla.server.broker import METADATA_FILE, SUPPORTED_FEATURES
from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.configuration.rules import Rules

if TYPE_CHECKING:
    from ottla.cluster.store import Store

# No broker has it.
_NOBODY = -1


class BrokersRun(Exception):
    """The metadata is a running broker's to change."""


async def change_users(
    changes: Sequence[ScramChange],
    *,
    folder: str | None = None,
    zookeeper: str | None = None,
    config: BrokerConfig | None = None,
) -> list[UserResult]:
    """Change users in a data folder, in a ZooKeeper, or in that of a broker with this configuration:
    then nodes are closed to others as the broker's own are. Raises BrokersRun or StoreError."""
    store = _store(folder, zookeeper, config)
    try:
        await store.start()
    except StoreError as error:
        if folder is not None:
            raise BrokersRun(
                str(error)
            ) from error  # or the file is damaged, which the message says
        raise
    rules = Rules(lambda: config or BrokerConfig())
    controller = Controller(store, _NOBODY, rules, SUPPORTED_FEATURES)
    try:
        await controller.open()
        return await controller.alter_scram(changes)
    except NotElected as error:
        raise BrokersRun(str(error)) from error
    finally:
        await controller.close()
        await store.close()


def _store(folder: str | None, zookeeper: str | None, config: BrokerConfig | None) -> Store:
    if config is not None:
        from ottla.server.configuration.zookeeper_access import zookeeper_store

        return zookeeper_store(config)
    if zookeeper is not None:
        from ottla.cluster.zookeeper import ZooKeeperStore

        return ZooKeeperStore(zookeeper)
    from ottla.cluster.embedded.store import EmbeddedStore

    assert folder is not None
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return EmbeddedStore(os.path.join(folder, METADATA_FILE))
