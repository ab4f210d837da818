"""Exactly once in a cluster: leaders and coordinators are killed in the middle of transactions.

As ../test_exactly_once.py, with three brokers and every partition on each of them. The broker that leads
a partition of the input or the output, or coordinates the relays' group or a transaction, is killed
with -9. The relays have to go on while it is away; then it comes back, and the next one may be killed.

A few rounds are part of `make test-long`, thirty of each client and protocol of `make soak`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from interop_kit.course import (
    COMMANDS,
    GROUP,
    INPUT,
    KINDS,
    OUTPUT,
    PARTITIONS,
    SETTINGS,
    Course,
    Fault,
)
from interop_kit.running_cluster import RunningCluster, running_cluster

pytestmark = pytest.mark.long


class ClusterCourse(Course):
    relay_settings: ClassVar = {"gives_up": True}

    def __init__(
        self, cluster: RunningCluster, command: list[str], protocol: str, folder: Path, seed: int
    ) -> None:
        self.cluster = cluster
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, PARTITIONS)
        super().__init__(cluster.bootstrap, command, protocol, folder, seed)

    def faults(self) -> list[Fault]:
        return [
            self.kill_a_relay,
            self.replace_a_living_relay,
            self.kill_a_leader,
            self.kill_the_group_coordinator,
            self.kill_a_transaction_coordinator,
            self.kill_a_transaction_coordinator_and_its_relay,
        ]

    def without(self, broker: int) -> None:
        """The others do its work until it is back."""
        with self.cluster.without(broker):
            self.await_transactions(self.chance.randint(1, 5))

    def kill_a_leader(self, number: int) -> None:
        topic = self.chance.choice((INPUT, OUTPUT))
        self.without(self.cluster.leader(topic, self.chance.randrange(PARTITIONS)))

    def kill_the_group_coordinator(self, number: int) -> None:
        self.without(self.cluster.group_coordinator(GROUP))

    def kill_a_transaction_coordinator(self, number: int) -> None:
        self.without(self.cluster.transaction_coordinator(f"relay-{number}"))

    def kill_a_transaction_coordinator_and_its_relay(self, number: int) -> None:
        with self.cluster.without(self.cluster.transaction_coordinator(f"relay-{number}")):
            self.kill_a_relay(number)
            self.await_transactions(1)


@pytest.fixture(params=KINDS, ids="-".join)
def course(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterCourse]:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")
    client, protocol = request.param
    command = COMMANDS[client]()
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with running_cluster(tmp_path / "cluster", **settings) as cluster:
        course = ClusterCourse(cluster, command, protocol, tmp_path, seed)
        yield course
        course.close()
        print(course.figures())


@pytest.mark.timeout(600, func_only=True)
def test_each_kind_of_broker_is_killed_once(course: ClusterCourse) -> None:
    course.feeder.start()
    for fault in (
        course.kill_a_leader,
        course.kill_the_group_coordinator,
        course.kill_a_transaction_coordinator,
        course.kill_a_transaction_coordinator_and_its_relay,
    ):
        course.await_transactions(3)
        course.done[fault.__name__] += 1
        fault(course.chance.randrange(2))
    course.catch_up()
    course.finish()


@pytest.mark.soak
@pytest.mark.timeout(7_200, func_only=True)
def test_thirty_rounds(course: ClusterCourse) -> None:
    for number in range(30):
        course.round()
        print(f"round {number + 1}: {course.figures()}", flush=True)
    course.finish()
