"""Clusters of three brokers (or more) on this machine, to be measured beside each other.

Ottla's is the one of `ottla cluster`: broker processes and a ZooKeeper. Kafka's are nodes in KRaft mode,
three of them broker and controller, as its own quick start for a cluster has them; any more are brokers.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench import peer
from bench.harness import process, wire
from bench.harness.broker import HOST, HOUSEKEEPING, ManagedBroker
from bench.harness.client import Client
from bench.harness.errors import BenchError
from bench.harness.results import KAFKA, OTTLA
from ottla.testing.cluster import ClusterError, LocalCluster
from ottla.testing.ports import free_port

BROKERS = 3
READY_TIMEOUT = 120.0
# A broker that was killed answers nothing; one that hangs must not hold up the search for a leader.
LOOK_TIMEOUT = 1.0
Address = tuple[str, int]

# What is the same on both sides and differs from the defaults.
SETTINGS = {
    **HOUSEKEEPING,
    "offsets.topic.replication.factor": str(BROKERS),
    "transaction.state.log.replication.factor": str(BROKERS),
}


class Cluster(ABC):
    """Brokers 1 to N. Their data lives until `discard`."""

    def __init__(self, name: str, folder: Path, brokers: int) -> None:
        self.name = name
        self.folder = folder
        self.brokers = brokers

    @abstractmethod
    def launch(self) -> None:
        """Start whatever of it does not run; it need not answer yet."""

    @abstractmethod
    def kill(self, broker: int) -> None:
        """End a broker as a crash would."""

    @abstractmethod
    def stop(self) -> None:
        """End all of it in good order."""

    @abstractmethod
    def kill_all(self) -> None: ...

    @property
    @abstractmethod
    def addresses(self) -> dict[int, Address]: ...

    @abstractmethod
    def pids(self) -> list[int]:
        """Of the brokers that run."""

    def coordination_pid(self) -> int | None:
        """Of the process that keeps the cluster's metadata, where that is not a broker."""
        return None

    @abstractmethod
    def data_folders(self) -> list[Path]: ...

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in this block is told with the cluster's name."""
        try:
            yield
        except (BenchError, OSError, ClusterError) as problem:
            raise BenchError(f"{self.name}: {problem}") from problem

    # Starting and ending

    def start(self) -> float:
        """Start all of it; the seconds until every broker has answered and knows all the others."""
        began = time.perf_counter()
        self.launch()
        deadline = began + READY_TIMEOUT
        for address in self.addresses.values():
            while self._known_to(address) < self.brokers:
                if time.perf_counter() > deadline:
                    raise BenchError(f"{self.name}'s brokers did not find each other")
                time.sleep(0.002)
        return time.perf_counter() - began

    def kill_soon(self, broker: int) -> threading.Thread:
        """Kill a broker while the caller goes on."""
        thread = threading.Thread(target=self.kill, args=(broker,))
        thread.start()
        return thread

    def discard(self) -> None:
        self.kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _known_to(address: Address) -> int:
        try:
            with Client(address, LOOK_TIMEOUT) as client:
                return len(client.metadata([]).brokers)
        except (OSError, BenchError):
            return 0

    # What it takes

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds(pid) for pid in self.pids())

    def resident_bytes(self) -> int:
        return sum(process.resident_bytes(pid) for pid in self.pids())

    # Topics

    def metadata(self, topic: str) -> wire.TopicAnswer | None:
        """What a broker that answers says of a topic."""
        for address in self.addresses.values():
            try:
                with Client(address, LOOK_TIMEOUT) as client:
                    return client.topic(topic)
            except (OSError, BenchError):
                continue
        return None

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Three replicas of each partition; returns when all are in sync, and led in truth."""
        with Client(self.addresses[1]) as client:
            request = wire.create_topics_request(name, partitions, configs or {}, replicas=BROKERS)
            error, message = wire.create_topics_answer(client.ask(request))
            if error:
                raise BenchError(f"creating {name}: {error} {message}")
        self.wait_led(name, partitions)

    def wait_led(self, name: str, partitions: int) -> None:
        """Until all replicas of a new topic are in sync, and its leaders know that they lead."""
        self.wait_in_sync(name, partitions)
        for partition, address in self.leaders(name).items():
            with Client(address) as client:
                deadline = time.monotonic() + READY_TIMEOUT
                request = wire.list_offsets_request(name, [partition], -1)
                while wire.list_offsets_answer(client.ask(request))[0][0]:
                    if time.monotonic() > deadline:
                        raise BenchError(f"{name}-{partition} is not led")
                    time.sleep(0.01)

    def wait_in_sync(self, name: str, partitions: int) -> None:
        """Until all replicas of a topic are in sync."""
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            known = self.metadata(name)
            if known is not None and len(known.partitions) == partitions == known.leaders:
                fewest = min(each.in_sync for each in known.partitions.values())
                if fewest == BROKERS:
                    return
            if time.monotonic() > deadline:
                raise BenchError(f"the replicas of {name} are not in sync")
            time.sleep(0.02)

    def leaders(self, name: str) -> dict[int, Address]:
        """Partition → where its leader is reached."""
        known = self.metadata(name)
        if known is None:
            raise BenchError(f"no broker of {self.name} answers")
        addresses = self.addresses
        return {
            partition: addresses[each.leader]
            for partition, each in sorted(known.partitions.items())
            if each.leader in addresses
        }

    def forget(self, topic: str) -> None:
        """Delete a topic, and wait until its files are gone."""
        with Client(self.addresses[1]) as client:
            client.delete_topic(topic)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not any(any(folder.glob(f"{topic}-*")) for folder in self.data_folders()):
                return
            time.sleep(0.05)


class OttlaCluster(Cluster):
    """`ottla cluster start`."""

    def __init__(self, folder: Path, settings: Mapping[str, str], brokers: int = BROKERS) -> None:
        super().__init__(OTTLA, folder, brokers)
        # With metrics, as production runs it.
        own = {**SETTINGS, "metrics.listener": f"{HOST}:0", **settings}
        self._cluster = LocalCluster(
            folder / "cluster", brokers=brokers, base_port=None, settings=own
        )

    def launch(self) -> None:
        self._cluster.start()

    def kill(self, broker: int) -> None:
        self._cluster.kill(broker)

    def stop(self) -> None:
        self._cluster.stop()

    def kill_all(self) -> None:
        if not self._cluster.exists:
            return
        state = self._cluster.state
        running: list[int | str] = [
            number for number, broker in state.brokers.items() if broker.running
        ]
        if state.zookeeper is not None and state.zookeeper.running:
            running.append("zookeeper")
        for name in running:
            with contextlib.suppress(ClusterError):
                self._cluster.kill(name)

    @property
    def addresses(self) -> dict[int, Address]:
        return {
            number: (HOST, broker.port) for number, broker in self._cluster.state.brokers.items()
        }

    def pids(self) -> list[int]:
        return [
            broker.process.pid
            for broker in self._cluster.state.brokers.values()
            if broker.process is not None and broker.running
        ]

    def coordination_pid(self) -> int | None:
        own = self._cluster.state.zookeeper
        return None if own is None or own.process is None else own.process.pid

    def data_folders(self) -> list[Path]:
        return [self._cluster.data_path(number) for number in self._cluster.state.brokers]


class _KafkaNode(peer.KafkaBroker):
    """One of the nodes; the first of them are controllers, too."""

    def __init__(self, folder: Path, number: int, cluster_id: str, controllers: list[int]) -> None:
        self._number = number
        self._controllers = controllers
        self._cluster_id = cluster_id
        super().__init__(folder)

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def settings(self) -> Mapping[str, str]:
        host, port = self.address
        voters = [f"{n}@{HOST}:{port}" for n, port in enumerate(self._controllers, start=1)]
        roles, listeners = "broker", [f"PLAINTEXT://{host}:{port}"]
        if self._number <= len(self._controllers):
            roles = "broker,controller"
            listeners.append(f"CONTROLLER://{HOST}:{self._controllers[self._number - 1]}")
        return {
            **super().settings(),
            "process.roles": roles,
            "node.id": str(self._number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(listeners),
            "transaction.state.log.min.isr": "2",
            "share.coordinator.state.topic.replication.factor": str(BROKERS),
            "share.coordinator.state.topic.min.isr": "2",
            **SETTINGS,
        }


class KafkaCluster(Cluster):
    """Three nodes that are broker and controller each; any more are brokers alone."""

    def __init__(self, folder: Path, brokers: int = BROKERS) -> None:
        super().__init__(KAFKA, folder, brokers)
        cluster_id = peer.new_cluster_id()
        controllers = [free_port() for _ in range(min(brokers, BROKERS))]
        self._nodes = {
            number: _KafkaNode(folder / str(number), number, cluster_id, controllers)
            for number in range(1, brokers + 1)
        }

    def launch(self) -> None:
        for node in self._nodes.values():
            if not node.running:
                node.launch()

    def kill(self, broker: int) -> None:
        self._nodes[broker].kill()

    def stop(self) -> None:
        # All at once: the last of them alone would wait in vain for a quorum.
        threads = [threading.Thread(target=_stop, args=(node,)) for node in self._nodes.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def kill_all(self) -> None:
        for node in self._nodes.values():
            node.kill()

    @property
    def addresses(self) -> dict[int, Address]:
        return {number: node.address for number, node in self._nodes.items()}

    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes.values() if node.running]

    def data_folders(self) -> list[Path]:
        return [node.data for node in self._nodes.values()]


def _stop(node: ManagedBroker) -> None:
    try:
        node.stop()
    except BenchError:
        node.kill()
