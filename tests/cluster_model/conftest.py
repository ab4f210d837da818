"""What the tests of the cluster room share: stores to run one suite over, rules, brokers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.metadata import Broker, ClusterImage, Endpoint, Resource, ResourceType
from ottla.cluster.store import Store
from ottla.protocol.errors import ErrorCode, ProtocolError


class StoreFamily:
    """Sessions that share one tree. `join` gives another session, started by the caller."""

    def __init__(self, path: Path, wrap: Callable[[Store], Store]) -> None:
        self._first = EmbeddedStore(path)
        self._wrap = wrap
        self._joined = 0

    def join(self) -> Store:
        self._joined += 1
        return self._wrap(self._first if self._joined == 1 else self._first.join())


@pytest.fixture(params=["embedded", "faulty without faults"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFamily:
    """Every implementation of Store is a parameter here, and passes all of test_store.py."""
    path = tmp_path / "metadata.db"
    if request.param == "embedded":
        return StoreFamily(path, lambda store: store)
    return StoreFamily(path, lambda store: FaultyStore(store, 0, Faults()))


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
def broker() -> Callable[..., Broker]:
    def make(broker_id: int, rack: str | None = None, port: int = 9092) -> Broker:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT")
        return Broker(broker_id, -1, rack, (endpoint,))

    return make


@pytest.fixture
def image_of(broker: Callable[..., Broker]) -> Callable[..., ClusterImage]:
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
        return Controller(store, broker_id, rules, FEATURES, **settings)  # type: ignore[arg-type]

    return make
