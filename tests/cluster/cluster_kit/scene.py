"""A cluster with a topic on it, and what may be done to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from cluster_kit.asking import View
from cluster_kit.asking import ask as look_at
from cluster_kit.checker import check, report
from cluster_kit.workload import Workload
from ottla.testing.cluster import LocalCluster
from ottla.testing.process_identity import send

TOPIC: Final = "events"
PARTITIONS: Final = 3
REPLICAS: Final = 3
SESSION_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05

SETTINGS: Final = {
    "zookeeper.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "replica.lag.time.max.ms": "3000",
    "replica.socket.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


def wait_until(what: str, condition: Callable[[], bool], timeout: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(_LOOK_SECONDS)


class Brokers:
    """What clients can ask the brokers of a cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def address(self, *brokers: int) -> str:
        """Where clients reach these brokers."""
        raise NotImplementedError

    def view(self, ask: str | None = None) -> View | None:
        """What the first of these brokers that answers says now; None if none does in time."""
        views = (look_at(each, TOPIC) for each in (ask or self.bootstrap).split(","))
        return next((view for view in views if view is not None), None)

    def create_topic(self, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, config={"min.insync.replicas": "2", **config})
        admin.create_topics([topic])[TOPIC].result(WAIT_SECONDS)
        self.wait_until_in_sync()

    def leader(self, partition: int = 0, *, other_than: int = -1, ask: str | None = None) -> int:
        """The leader of a partition, as soon as it is another than the one given."""
        found = -1

        def look() -> bool:
            nonlocal found
            view = self.view(ask)
            if view is None or partition not in view.partitions:
                return False
            found = view.partitions[partition].leader
            return found not in (-1, other_than)

        wait_until(f"a leader of partition {partition} other than {other_than}", look)
        return found

    def controller(self) -> int:
        found = -1

        def look() -> bool:
            nonlocal found
            view = self.view()
            found = -1 if view is None else view.controller
            return found != -1

        wait_until("a controller", look)
        return found

    def wait_until_in_sync(self) -> None:
        """Until every partition of the topic has a leader and all its replicas in sync, and every
        broker knows it: whichever of them a client asks next, it hears of no former leader."""

        def look() -> bool:
            views = [look_at(each, TOPIC) for each in self.bootstrap.split(",")]
            first = views[0]
            return (
                first is not None
                and len(first.partitions) == PARTITIONS
                and all(
                    each.leader != -1 and len(each.in_sync) == len(each.replicas) == REPLICAS
                    for each in first.partitions.values()
                )
                and all(view is not None and view.partitions == first.partitions for view in views)
            )

        wait_until("all replicas in sync, which every broker knows", look)

    def workload(self, *, producers: int = 2, transactional: int = 0) -> Workload:
        return Workload(
            self.bootstrap, TOPIC, PARTITIONS, producers=producers, transactional=transactional
        )


class Scene(Brokers):
    """A cluster of three brokers on this machine."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster.bootstrap)
        self.cluster = cluster

    @property
    def numbers(self) -> list[int]:
        return list(self.cluster.state.brokers)

    def signal(self, broker: int, number: signal.Signals) -> None:
        process = self.cluster.state.brokers[broker].process
        assert process is not None
        assert send(process, number), f"broker {broker} does not run"

    def address(self, *brokers: int) -> str:
        state = self.cluster.state
        return ",".join(f"127.0.0.1:{state.brokers[each].port}" for each in brokers)

    def others(self, broker: int) -> str:
        return self.address(*(each for each in self.numbers if each != broker))

    def data(self, broker: int) -> Path:
        return self.cluster.data_path(broker)


class AnomalyFound(AssertionError):
    """The cluster broke a promise. It is not tried again for a better result, whatever `RERUNS` says:
    `rerun_except` in pyproject.toml names this class."""


def expect_no_anomaly(workload: Workload) -> None:
    """The verdict on what a workload saw."""
    history = workload.history
    anomalies = check(history)
    if anomalies:
        raise AnomalyFound(report(anomalies))
    assert history.acknowledged() > 0
    print(
        f"{len(history.writes)} writes, {history.acknowledged()} acknowledged, "
        f"{len(workload.write_errors)} errors; {len(history.final.polled)} records read"
    )
