"""Fixtures of the interop tests: a broker, and the clients that talk to it.

TEST_BOOTSTRAP=HOST:PORT names a running broker to be used in place of one of our own (say
Apache Kafka, to see that a test asks for what Kafka does). TEST_DATA may name its data folder.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from interop_kit.clients.client import Client
from interop_kit.clients.registry import CLIENTS, IN_SHORT_RUNS, OLD_CLIENTS
from interop_kit.clients.wire_client import WireClient
from interop_kit.message_sets import Batch
from interop_kit.proxy import RecordingProxy
from interop_kit.wire import RawConnection, stored_batches

from ottla.testing import BrokerProcess

JOIN_GROUP = 11


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is interop. A test's time is its own: what fixtures build on a cold machine
    (minutes, once) does not count."""
    here = Path(__file__).resolve().parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(120, func_only=True))
            client = _client_of(item)
            if client is not None and item.get_closest_marker("xdist_group") is None:
                # What starts the client of a name, a JVM say, does so once.
                item.add_marker(pytest.mark.xdist_group(f"client-{client}"))
            if client is not None and not _is_in_short_runs(item, client):
                item.add_marker(pytest.mark.long)


def _client_of(item: pytest.Item) -> str | None:
    """The name of the client that a test is about."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    named = (callspec.params.get(each) for each in ("client", "watched", "writer", "reader"))
    return next((name for name in named if name in CLIENTS | OLD_CLIENTS), None)


def _is_in_short_runs(item: pytest.Item, client: str) -> bool:
    """`make test` has one codec for each client, another one for each of its neighbours; the whole
    matrix is for `make test-long`."""
    if client in OLD_CLIENTS and client not in IN_SHORT_RUNS:
        return False
    codec = item.callspec.params.get("codec")  # type: ignore[attr-defined]
    kinds = CLIENTS | OLD_CLIENTS
    codecs = sorted(kinds[client].codecs)
    return codec is None or codec == codecs[list(kinds).index(client) % len(codecs)]


@dataclass(frozen=True)
class RunningBroker:
    bootstrap: str
    data: Path | None  # None where the broker's files are out of sight

    def stored_batches(self, topic: str, partition: int = 0) -> list[Batch]:
        """The headers of all batches in a partition's log."""
        return stored_batches(self.bootstrap, topic, partition)

    def log_folder(self, topic: str, partition: int = 0) -> Path:
        if self.data is None:
            pytest.skip("the data folder of the broker is not known (TEST_DATA)")
        found = [path for path in self.data.rglob(f"{topic}-{partition}") if path.is_dir()]
        assert len(found) == 1, f"{topic}-{partition} under {self.data}: {found}"
        return found[0]


def running_elsewhere() -> RunningBroker | None:
    bootstrap = os.environ.get("TEST_BOOTSTRAP")
    if not bootstrap:
        return None
    data = os.environ.get("TEST_DATA")
    return RunningBroker(bootstrap, Path(data) if data else None)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all tests of a worker; topics have names of their own."""
    elsewhere = running_elsewhere()
    if elsewhere is not None:
        yield elsewhere
        return
    data = tmp_path_factory.mktemp("broker") / "data"
    # Groups of one member need not wait for more of them.
    with BrokerProcess(data, settings={"group.initial.rebalance.delay.ms": "0"}) as process:
        yield RunningBroker(process.bootstrap, data)


@pytest.fixture
def fresh_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers for one test: fresh_broker(**settings of BrokerProcess)."""
    if running_elsewhere() is not None:
        pytest.skip("this test starts brokers of its own; TEST_BOOTSTRAP is set")
    started: list[BrokerProcess] = []

    def start(**settings: object) -> BrokerProcess:
        data = tmp_path / f"broker-{len(started)}" / "data"
        process = BrokerProcess(data, **settings)  # type: ignore[arg-type]
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.kill()


@dataclass(frozen=True)
class WatchedBroker:
    """A broker that sends its clients to a proxy, which writes down what they ask."""

    process: BrokerProcess
    proxy: RecordingProxy


@pytest.fixture(scope="session")
def one_watched_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    if running_elsewhere() is not None:
        pytest.skip("this test starts a broker of its own; TEST_BOOTSTRAP is set")
    data = tmp_path_factory.mktemp("watched") / "data"
    with RecordingProxy() as proxy:
        advertised = f"PLAINTEXT://{proxy.address}"
        with BrokerProcess(data, settings={"advertised.listeners": advertised}) as process:
            proxy.forward_to(process.port)
            yield WatchedBroker(process, proxy)


@pytest.fixture
def watched_broker(one_watched_broker: WatchedBroker) -> WatchedBroker:
    """One for all tests of a worker, which may stop and start it; the proxy's list is empty."""
    if not one_watched_broker.process.running:
        one_watched_broker.process.start()
    one_watched_broker.proxy.begin()
    return one_watched_broker


@pytest.fixture(scope="session")
def make_client(
    broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Client]]:
    """The client of a name, kept for the session: a JVM that runs is quicker than one that starts."""
    logs = tmp_path_factory.mktemp("clients")
    known: dict[str, Client] = {}

    def make(name: str) -> Client:
        if name not in known:
            known[name] = (CLIENTS | OLD_CLIENTS)[name].client(broker.bootstrap, logs)
        return known[name]

    yield make
    for client in known.values():
        client.close()


@pytest.fixture(scope="session")
def reference(broker: RunningBroker) -> WireClient:
    """The client with which the tests look at what another one did."""
    return WireClient(broker.bootstrap)


_numbers = itertools.count()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, in this run or in another one against the same broker."""
    kind = request.node.originalname.removeprefix("test_").replace("_", "-")[:60]
    return f"{kind}.{os.getpid()}-{next(_numbers)}-{os.urandom(3).hex()}"


@pytest.fixture(scope="session")
def has_groups(broker: RunningBroker) -> bool:
    """Whether the broker has consumer groups: it says so in ApiVersions."""
    with RawConnection(broker.bootstrap) as connection:
        return JOIN_GROUP in connection.api_versions()
