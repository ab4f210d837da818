"""What the tests of the cluster room share: stores to run one suite over, rules, brokers."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from store_kit.ensemble import AtOnce, Ensemble, EnsembleStore
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.metadata import ClusterImage, Endpoint, RegisteredBroker, Resource, ResourceType
from ottla.cluster.shared import SharedStore, StoreServer
from ottla.cluster.store import Create, Delete, Store
from ottla.cluster.zookeeper import ZooKeeperStore
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.testing.zookeeper import ZooKeeperProcess

_chroots = itertools.count(1)


class StoreFamily:
    """Sessions that share one tree. `join` gives another session, started by the caller."""

    def __init__(self, path: Path, wrap: Callable[[Store], Store]) -> None:
        self._first = EmbeddedStore(path)
        self._wrap = wrap
        self._joined = 0

    def join(self) -> Store:
        self._joined += 1
        return self._wrap(self._first if self._joined == 1 else self._first.join())


class ZooKeeperFamily:
    """The same for ZooKeeper: sessions below one node."""

    def __init__(self, address: str, wrap: Callable[[Store], Store]) -> None:
        self._address = address
        self._wrap = wrap

    def join(self) -> Store:
        return self._wrap(ZooKeeperStore(self._address))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper that nobody harms."""
    if find_spec("pyspark") is None:
        pytest.skip("PySpark, whose jars hold a ZooKeeper, is not installed")
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def chroot(zookeeper: ZooKeeperProcess) -> str:
    """An address that no other test uses."""
    return f"{zookeeper.address}/tests/{next(_chroots)}"


class SharedFamily:
    """The same for a store that is served over a unix socket, from a thread with a loop of its own.

    The first session's start opens the file. As with ZooKeeper, the store outlives its sessions.
    """

    def __init__(self, path: Path, socket: Path, wrap: Callable[[Store], Store]) -> None:
        self._wrap = wrap
        self.socket = socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._store = EmbeddedStore(path)
        self.server = StoreServer(self._store, socket)
        self._run(self._store.start())
        self._run(self.server.start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def join(self) -> Store:
        return self._wrap(SharedStore(self.socket))

    def stop(self) -> None:
        self._run(self.server.stop())
        self._run(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class EnsembleFamily:
    """The same for the ensemble of the simulator."""

    def __init__(self, wrap: Callable[[Store], Store]) -> None:
        self._ensemble = Ensemble()
        self._wrap = wrap

    def join(self) -> Store:
        return self._wrap(EnsembleStore(self._ensemble, AtOnce(), random.Random(1)))


STORES = (
    "embedded",
    "ensemble",
    "faulty embedded without faults",
    "faulty ensemble without faults",
    "shared",
    pytest.param("faulty shared without faults", marks=pytest.mark.long),
    "zookeeper",
    pytest.param("faulty zookeeper without faults", marks=pytest.mark.long),
)


@pytest.fixture(params=STORES)
def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[StoreFamily | ZooKeeperFamily | SharedFamily | EnsembleFamily]:
    """Every implementation of Store is a parameter here, and passes all of test_store.py."""

    def wrap(store: Store) -> Store:
        return FaultyStore(store, 0, Faults()) if request.param.startswith("faulty") else store

    if "zookeeper" in request.param:
        yield ZooKeeperFamily(request.getfixturevalue("chroot"), wrap)
    elif "ensemble" in request.param:
        yield EnsembleFamily(wrap)
    elif "shared" in request.param:
        # The path of a socket has at most some hundred characters.
        with tempfile.TemporaryDirectory(prefix="ottla-") as folder:
            family = SharedFamily(tmp_path / "metadata.db", Path(folder, "s", "store"), wrap)
            yield family
            family.stop()
    else:
        yield StoreFamily(tmp_path / "metadata.db", wrap)


class SomeRules:
    """A few settings, checked as the server would."""

    NUMBERS = ("retention.ms", "segment.bytes", "log.retention.ms", "consumer.session.timeout.ms")
    LISTS: Mapping[str, str | None] = {"cleanup.policy": "delete", "leader.throttled": None}

    def check(
        self, resource: Resource, config: Mapping[str, str], altered: Collection[str]
    ) -> None:
        is_broker = resource[0] is ResourceType.BROKER
        code = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.INVALID_CONFIG
        for name, value in config.items():
            if name in self.NUMBERS:
                if not value.lstrip("-").isdigit():
                    raise ProtocolError(code, f"'{value}' is not a number, which {name} must be")
            elif name not in self.LISTS and not is_broker:
                raise ProtocolError(code, f"there is no setting '{name}'")
        if is_broker and "node.id" in altered:
            raise ProtocolError(code, "node.id cannot be changed")

    def is_list(self, resource_type: ResourceType, name: str) -> bool:
        return name in self.LISTS

    def list_default(self, resource_type: ResourceType, name: str) -> str | None:
        return self.LISTS[name]


FEATURES = {
    "group.version": FeatureRange(0, 1, 1),
    "transaction.version": FeatureRange(0, 2, 2),
    "share.version": FeatureRange(0, 1, 0),
    "metadata.version": FeatureRange(7, 30, 30, only_up=True),
}


@pytest.fixture
def rules() -> SomeRules:
    return SomeRules()


@pytest.fixture
def features() -> Mapping[str, FeatureRange]:
    return FEATURES


@pytest.fixture
def broker() -> Callable[..., RegisteredBroker]:
    def make(broker_id: int, rack: str | None = None, port: int = 9092) -> RegisteredBroker:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT")
        return RegisteredBroker(broker_id, -1, rack, (endpoint,))

    return make


@pytest.fixture
def image_of(broker: Callable[..., RegisteredBroker]) -> Callable[..., ClusterImage]:
    """An image with some brokers and nothing else."""

    def make(*broker_ids: int, features: Mapping[str, int] | None = None) -> ClusterImage:
        brokers = {broker_id: broker(broker_id) for broker_id in broker_ids}
        return ClusterImage("some cluster", brokers=brokers, features=features or {}, version=0)

    return make


@pytest.fixture
def controller_of(rules: SomeRules) -> Callable[..., Controller]:
    """A controller over a store, which is not slow to try again."""

    def make(store: Store, broker_id: int = 1, seed: int = 0, **options: object) -> Controller:
        settings: dict[str, object] = {"random": random.Random(seed), "pauses": (0.0,) * 12}
        settings.update(options)
        return JoinedController(store, broker_id, rules, FEATURES, **settings)  # type: ignore[arg-type]

    return make


class JoinedController(Controller):
    """A controller that stands against whoever is in office, and registers its broker too."""

    async def open(self, broker: RegisteredBroker | None = None) -> ClusterImage:  # type: ignore[override]
        holder = await self._retries.read(partial(self._store.get, layout.CONTROLLER))
        image = await super().open(replacing=holder)
        if broker is not None:
            await self.register(broker)
            image = self.image
        return image

    async def register(self, broker: RegisteredBroker) -> RegisteredBroker:
        """Registers a broker with this session, and has it taken in."""
        path = layout.broker_path(broker.id)
        value = layout.encode_broker(broker)
        while True:
            node = await self._retries.read(partial(self._store.get, path))
            if node is not None and node.value == value and node.owner == self._store.session_id:
                break
            replaced = [] if node is None else [Delete(path, node.version)]
            await self._store.multi([*replaced, Create(path, value, ephemeral=True)])
            await self._retries.read(self._store.sync)
        taken_in = asyncio.Event()
        unsubscribe = self.subscribe(lambda _old, _new, _delta: taken_in.set())
        while broker.id not in self.image.brokers or (
            self.image.brokers[broker.id].epoch != node.created
        ):
            self.registrations_changed()
            await asyncio.wait_for(taken_in.wait(), 10)
            taken_in.clear()
        unsubscribe()
        return self.image.brokers[broker.id]
