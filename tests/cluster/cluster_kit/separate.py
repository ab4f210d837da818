"""Brokers of a cluster that differ from each other: in their settings, or in the program they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster_kit.scene import SETTINGS
from ottla.testing import BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess


@contextmanager
def separate_brokers(
    folder: Path,
    settings_of: Callable[[int], Mapping[str, str]],
    make: Callable[..., BrokerProcess] = BrokerProcess,
    *,
    count: int = 3,
) -> Iterator[list[BrokerProcess]]:
    """Brokers with the numbers from 1 on; the data of broker N are in `broker-N`."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperProcess(folder / "zookeeper"))
        brokers: list[BrokerProcess] = []
        for number in range(1, count + 1):
            settings = {
                **SETTINGS,
                "node.id": str(number),
                "zookeeper.connect": f"{zookeeper.address}/ottla",
                **settings_of(number),
            }
            broker = make(folder / f"broker-{number}", settings=settings)
            broker.spawn()
            stack.callback(broker.kill)
            brokers.append(broker)
        for broker in brokers:
            broker.wait_until_ready()
        yield brokers
