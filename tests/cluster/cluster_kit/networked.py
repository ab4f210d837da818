"""A cluster each process of which is on a host of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Final

from cluster_kit.network import Network
from cluster_kit.scene import SETTINGS, Brokers
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

NUMBERS: Final = (1, 2, 3)
ZOOKEEPER: Final = "zookeeper"
_CLIENT: Final = "client"
_BROKER_PORT: Final = 9092
_ZOOKEEPER_PORT: Final = 2181


class NetworkedScene(Brokers):
    """Three brokers, a ZooKeeper and the clients; whoever enters it is on the clients' host."""

    def __init__(self, folder: Path) -> None:
        self.network = Network([ZOOKEEPER, *map(str, NUMBERS), _CLIENT])
        addresses = [f"{self.network.address(str(each))}:{_BROKER_PORT}" for each in NUMBERS]
        super().__init__(",".join(addresses))
        self._zookeeper = ZooKeeperProcess(
            folder / "zookeeper", host=self.network.address(ZOOKEEPER), port=_ZOOKEEPER_PORT
        )
        self._brokers = {
            number: BrokerProcess(
                folder / f"broker-{number}",
                host=self.network.address(str(number)),
                port=_BROKER_PORT,
                settings={
                    "node.id": str(number),
                    "zookeeper.connect": f"{self._zookeeper.address}/ottla",
                    **SETTINGS,
                },
            )
            for number in NUMBERS
        }
        self._left = contextlib.ExitStack()

    def __enter__(self) -> NetworkedScene:
        with contextlib.ExitStack() as left:
            left.enter_context(self.network)
            left.enter_context(self.network.inside(_CLIENT))
            left.callback(self._end)
            with self.network.inside(ZOOKEEPER):
                self._zookeeper.spawn()
            self._zookeeper.wait_until_ready()
            for number, broker in self._brokers.items():
                with self.network.inside(str(number)):
                    broker.spawn()
            for broker in self._brokers.values():
                broker.wait_until_ready()
            self.create_topic()
            self._left = left.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.close()

    def _end(self) -> None:
        for broker in self._brokers.values():
            broker.kill()
        self._zookeeper.kill()

    def address(self, *brokers: int) -> str:
        return ",".join(self._brokers[each].bootstrap for each in brokers)

    def others(self, broker: int) -> str:
        return self.address(*(each for each in self._brokers if each != broker))
