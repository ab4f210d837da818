"""What a benchmark program is handed: the brokers to measure, how long, how often, where."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from bench import peer
from bench.harness.batch import Shape
from bench.harness.broker import Broker, ManagedBroker, OttlaBroker
from bench.harness.clusters import BROKERS, Cluster, KafkaCluster, OttlaCluster
from bench.harness.errors import BenchError
from bench.harness.load.fetch import Filled, fetch_load, fill
from bench.harness.load.produce import (
    DEFAULTS,
    PRODUCTION,
    Load,
    Setting,
    produce_load,
    requests_for,
)
from bench.harness.results import KAFKA, Measurement

Place = Literal["tmpfs", "disk"]
Value = TypeVar("Value")

# A topic is dropped and made anew once it holds this much: memory and disk are finite.
MOST_IN_A_TOPIC = 3 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark: a name to ask for it by, what it claims, and how to measure it.

    A heavy one is left out of quick runs, unless it is asked for by name.
    """

    name: str
    claim: str
    run: Callable[[Bench], list[Measurement]]
    heavy: bool = False


@dataclass(slots=True)
class Bench:
    """One run of the benchmarks."""

    quick: bool = False
    peer_choice: str = "auto"  # auto, none or HOST:PORT
    tmpfs: Path | None = Path("/dev/shm")
    disk: Path = field(default_factory=lambda: peer.cache_folder() / "data")
    settings: Mapping[str, str] = field(default_factory=dict)
    rounds_wanted: int | None = None
    seconds_wanted: float | None = None
    backlog_records: int | None = None
    backlog_gigabytes: float | None = None
    notes: list[str] = field(default_factory=list)
    _folders: list[Path] = field(default_factory=list)
    _pairs: dict[Place, list[Broker]] = field(default_factory=dict)
    _clusters: list[Cluster] = field(default_factory=list)
    _owned: list[ManagedBroker] = field(default_factory=list)
    _counter: Iterator[int] = field(default_factory=itertools.count)
    _alone: str | None = None

    def __post_init__(self) -> None:
        if self.tmpfs is not None and not self.tmpfs.is_dir():
            self.note(f"no tmpfs at {self.tmpfs}: rows that want one use the disk")
            self.tmpfs = None
        if self.peer_choice == "none":
            self._alone = "Kafka was not asked for"
        elif self.peer_choice == "auto" and (reason := peer.unavailable()):
            self._alone = reason
            self.note(f"Ottla is measured alone: {reason}")

    def say(self, text: str) -> None:
        print(f"  … {text}", flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)

    # How long and how often

    @property
    def rounds(self) -> int:
        return self.rounds_wanted or (3 if self.quick else 5)

    def seconds(self, full: float, quick: float) -> float:
        if self.seconds_wanted is not None:
            return self.seconds_wanted
        return quick if self.quick else full

    # Brokers

    @property
    def has_peer(self) -> bool:
        return self._alone is None

    @property
    def manages_peer(self) -> bool:
        """Whether the peer is ours to start and stop, to look into its memory and its files."""
        return self.has_peer and self.peer_choice == "auto"

    def folder(self, place: Place) -> Path:
        base = self.tmpfs if place == "tmpfs" and self.tmpfs is not None else self.disk
        base.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=base))
        self._folders.append(folder)
        return folder

    def own(self, broker: ManagedBroker) -> ManagedBroker:
        """A broker that is ended with the run, whatever happens."""
        self._owned.append(broker)
        return broker

    def new_ottla(self, place: Place) -> OttlaBroker:
        broker = OttlaBroker(self.folder(place), self.settings)
        self.own(broker)
        return broker

    def new_kafka(self, place: Place) -> ManagedBroker:
        return self.own(peer.KafkaBroker(self.folder(place)))

    def new_managed(self, place: Place) -> list[ManagedBroker]:
        """Brokers that a row starts and stops itself: Ottla, and Kafka where that is possible."""
        brokers: list[ManagedBroker] = [self.new_ottla(place)]
        if self.manages_peer:
            brokers.append(self.new_kafka(place))
        elif self.has_peer:
            self.note("a peer that runs already can be neither restarted nor looked into")
        return brokers

    def pair(self, place: Place) -> list[Broker]:
        """Ottla and its peer with their data in this place, up and warm; shared by the rows."""
        if place not in self._pairs:
            self.drop_pairs()  # two JVMs at once would be in each other's way
            ottla = self.new_ottla(place)
            ottla.start()
            brokers: list[Broker] = [ottla]
            if self.manages_peer:
                kafka = self.new_kafka(place)
                kafka.start()
                brokers.append(kafka)
            elif self.has_peer:
                host, _, port = self.peer_choice.rpartition(":")
                brokers.append(Broker(KAFKA, host, int(port)))
            for broker in brokers:
                with broker.blamed():
                    self.warm_up(broker)
            self._pairs[place] = brokers
        return self._pairs[place]

    def drop_pairs(self) -> None:
        for brokers in self._pairs.values():
            for broker in brokers:
                if isinstance(broker, ManagedBroker):
                    self.discard(broker)
        self._pairs.clear()
        self._drop_clusters()

    def _drop_clusters(self) -> None:
        for cluster in self._clusters:
            cluster.discard()
        self._clusters.clear()

    def new_clusters(self, place: Place, brokers: int = BROKERS) -> list[Cluster]:
        """Clusters that a row starts itself; they go when other brokers come."""
        self.drop_pairs()
        if self.has_peer and not self.manages_peer:
            self.note("a peer that runs already is one broker, not a cluster")
        clusters: list[Cluster] = [OttlaCluster(self.folder(place), self.settings, brokers)]
        self._clusters = clusters
        if self.manages_peer:
            clusters.append(KafkaCluster(self.folder(place), brokers))
        return clusters

    @property
    def clusters(self) -> list[Cluster]:
        """Those that there are."""
        return self._clusters

    def discard(self, broker: ManagedBroker) -> None:
        """End a broker, and pass on what it complained about."""
        broker.kill()
        for complaint, times in broker.complaints().items():
            self.note(f"{broker.name} wrote{f' {times} times' if times > 1 else ''}: {complaint}")
        broker.discard()

    def warm_up(self, broker: Broker) -> None:
        """A bit of everything: a JVM compiles what it has seen often, a page cache likes visits."""
        seconds = self.seconds(full=3.0, quick=0.7)
        self.say(f"warming up {broker.name}, {4 * seconds:.0f} s")
        for setting in (DEFAULTS, PRODUCTION):
            with self.topic(broker, setting.partitions) as topic:
                for shape, connections in ((Shape(1, 100), 8), (Shape(64, 1000), 4)):
                    supplies = requests_for(broker.address, topic, shape, setting, connections)
                    produce_load(
                        broker.address, supplies, 5, seconds=seconds * 0.75, max_bytes=1 << 30
                    )
        with self.topic(broker, 1) as topic:
            filled = fill(broker.address, topic, Shape(64, 1000), DEFAULTS, 64 << 20)
            for size in (1 << 20, 1 << 12):
                fetch_load(broker.address, filled, size, seconds * 0.5)

    def close(self) -> None:
        """End every broker and remove every folder of this run."""
        self._drop_clusters()
        for broker in self._owned:
            broker.discard()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.disk)

    # Topics

    def topic_name(self) -> str:
        return f"bench-{next(self._counter)}-{int(time.time())}"

    def new_topic(
        self, broker: Broker, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        name = self.topic_name()
        with broker.blamed(), broker.client() as client:
            client.create_topic(name, partitions, configs)
        return name

    @contextlib.contextmanager
    def topic(
        self, broker: Broker, partitions: int, configs: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """A topic for the length of a block."""
        name = self.new_topic(broker, partitions, configs)
        yield name
        with contextlib.suppress(OSError, BenchError):
            broker.forget(name)

    def filled_topic(
        self, broker: Broker, shape: Shape, setting: Setting, total_bytes: int
    ) -> Filled:
        name = self.new_topic(broker, setting.partitions)
        with broker.blamed():
            return fill(broker.address, name, shape, setting, total_bytes)


class RollingTopic:
    """A topic to produce into, replaced by a new one whenever it has grown large."""

    def __init__(
        self,
        bench: Bench,
        broker: Broker,
        partitions: int,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self._bench = bench
        self._broker = broker
        self._partitions = partitions
        self._configs = configs
        self._name: str | None = None
        self._written = 0

    def name(self, expected_bytes: int) -> str:
        if self._name is not None and self._written + expected_bytes > MOST_IN_A_TOPIC:
            self.drop()
        if self._name is None:
            self._name = self._bench.new_topic(self._broker, self._partitions, self._configs)
            self._written = 0
        return self._name

    def wrote(self, load: Load) -> None:
        self._written += load.bytes

    def drop(self) -> None:
        if self._name is not None:
            with contextlib.suppress(OSError, BenchError):
                # Small remains may go whenever they like.
                self._broker.forget(self._name, wait=self._written > 256 << 20)
        self._name = None


class Measured(Protocol):
    """A broker or a cluster."""

    name: str

    def blamed(self) -> contextlib.AbstractContextManager[None]: ...


Subject = TypeVar("Subject", bound=Measured)


def alternate(
    brokers: list[Subject], rounds: int, measure: Callable[[Subject], Value]
) -> dict[str, list[Value]]:
    """One round that does not count, then `rounds` of each broker in turn; who begins alternates."""
    values: dict[str, list[Value]] = {broker.name: [] for broker in brokers}
    for broker in brokers:
        with broker.blamed():
            measure(broker)
    for number in range(rounds):
        for broker in brokers if number % 2 == 0 else reversed(brokers):
            with broker.blamed():
                values[broker.name].append(measure(broker))
    return values
