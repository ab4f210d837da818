"""From one node to three brokers, to five, and back to three, while clients write and read.

A single node becomes the first broker of a cluster (`ottla cluster adopt`), others are added, everything
is copied to three of them, spread over five, and drained from two, one of which is the node with which
it began. All of it by the commands that a user has. Clients with default settings, which write
idempotently, are told of no error, and every record that was acknowledged is there in the end, once and
in order. (While the node is adopted there is no broker at all for some seconds; franz-go tells those who
poll of the connections that are refused then.)

SOAK_SECONDS is about how long it takes (15 minutes); growing and shrinking are repeated until then.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interop_kit.steady_load import KINDS, PARTITIONS, SteadyLoad

from ottla import Admin
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess
from ottla.testing.cluster import HOST, LocalCluster
from ottla.testing.guardian import end_with_this_program
from ottla.testing.ports import free_ports_in_a_row

SECONDS = int(os.environ.get("SOAK_SECONDS", "900"))
COMMAND_TIMEOUT = 300
# Below those that systems give out by themselves, so that no other test is given one in between.
MANY_PORTS = 60
THROTTLE = 20_000_000
SETTINGS = {
    "offsets.topic.num.partitions": "6",
    "log.segment.delete.delay.ms": "1000",
}
Replicas = dict[TopicPartition, tuple[int, ...]]


@dataclass(frozen=True)
class Step:
    name: str
    brokers: int
    moved: int  # partitions whose replicas are others than before
    copied: int  # bytes of the replicas that were not there before
    seconds: float


@dataclass
class Journey:
    """One cluster from its beginning as a single node, with what was done to it."""

    folder: Path
    load: SteadyLoad | None = None
    dwell: float = 0.0  # seconds after each step
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base_port = free_ports_in_a_row(MANY_PORTS)
        self.cluster = LocalCluster(self.folder / "cluster")
        self.node = BrokerProcess(
            self.folder / "node", host=HOST, port=self.base_port + 1, settings=SETTINGS
        )

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap if self.cluster.exists else self.node.bootstrap

    def stop(self) -> None:
        if self.cluster.exists:
            self.cluster.stop()
        self.node.kill()

    def ottla(self, *words: object) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=COMMAND_TIMEOUT,
        )
        print(f"$ ottla {' '.join(map(str, words))}\n{done.stdout}{done.stderr}", flush=True)
        assert done.returncode == 0, done.stdout + done.stderr
        if self.cluster.exists:
            # What a command starts outlives it, but not this test.
            state = self.cluster.state
            for server in (state.zookeeper, *state.brokers.values()):
                if server is not None and server.process is not None:
                    end_with_this_program(server.process.pid)

    def placed(self) -> tuple[Replicas, dict[tuple[TopicPartition, int], int]]:
        """Who has what, and how many bytes each broker has of it."""
        with Admin(self.servers) as admin:
            replicas = {
                TopicPartition(topic.name, each.partition): tuple(each.replicas)
                for topic in admin.list_topics(internal=True)
                for each in topic.partitions
            }
            sizes = {
                (each.partition, folder.broker): each.size
                for folder in admin.describe_log_folders()
                for each in folder.replicas
            }
        return replicas, sizes

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Something is done; afterwards clients go on as before."""
        before, _ = self.placed()
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        after, sizes = self.placed()
        changed = {each for each in after if set(after[each]) != set(before.get(each, after[each]))}
        copied = sum(
            sizes.get((each, broker), 0)
            for each in changed
            for broker in set(after[each]) - set(before[each])
        )
        assert self.load is not None
        self.load.wait_for_progress(self.dwell)
        with Admin(self.servers) as admin:
            brokers = len(admin.describe_cluster().brokers)
        self.steps.append(Step(name, brokers, len(changed), copied, took))

    def in_cluster(self, command: str, *words: object) -> None:
        self.ottla("cluster", command, *words, "--data", self.cluster.folder)

    # The ways

    def become_a_cluster(self) -> None:
        assert self.load is not None
        # Of the commands this is the only one with a pause, for there is but one broker.
        with (
            self.load.without_any_broker(),
            self.step("one node becomes a cluster (adopt)"),
        ):
            self.node.stop()
            settings = itertools.chain.from_iterable(
                ("--set", f"{n}={v}") for n, v in SETTINGS.items()
            )
            port = self.base_port + 1  # ZooKeeper has the one before
            self.in_cluster("adopt", self.node.data, "--base-port", port, *settings)

    def grow_to_three(self) -> None:
        with self.step("three brokers, three replicas of everything (add, topic alter)"):
            self.in_cluster("add")
            self.in_cluster("add")
            self.ottla(
                "topic", "alter", "--all", "--replication-factor", 3, "--server", self.servers
            )

    def grow_to_five(self) -> None:
        with self.step("five brokers (add, rebalance)"):
            self.in_cluster("add")
            self.in_cluster("add")
            self.in_cluster("rebalance", "--yes", "--throttle", THROTTLE)

    def shrink_to_three(self, leaving: Sequence[int]) -> None:
        with self.step("back to three (remove)"):
            for broker in leaving:
                self.in_cluster("remove", broker, "--yes")

    def table(self) -> list[str]:
        rows = [
            f"| {each.name} | {each.brokers} | {each.moved} | {each.copied:,} | {each.seconds:.0f} |"
            for each in self.steps
        ]
        head = "| step | brokers | partitions moved | bytes copied | seconds |"
        return [head, "|---|---:|---:|---:|---:|", *rows]


def travel(
    folder: Path, kinds: Sequence[str], seconds: float, *, rate: float = 60.0, size: int = 500
) -> None:
    began = time.monotonic()
    journey = Journey(folder, dwell=seconds / 8)
    ports = range(journey.base_port + 1, journey.base_port + 4)
    bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
    try:
        journey.node.start()
        with Admin(journey.servers) as admin:
            for topic in SteadyLoad.topics_of(kinds):
                admin.create_topic(topic, PARTITIONS, 1)
        # The brokers to be are named from the beginning; only the first of them is there now.
        load = SteadyLoad(bootstrap, kinds, folder / "clients", rate=rate, size=size)
        with load as running:
            journey.load = running
            journey.load.wait_for_progress(journey.dwell)
            journey.become_a_cluster()
            journey.grow_to_three()
            journey.grow_to_five()
            # The node with which all of it began leaves, too.
            brokers = sorted(journey.cluster.state.brokers)
            journey.shrink_to_three(leaving=(brokers[0], brokers[3]))
            while time.monotonic() - began < seconds:
                before = set(journey.cluster.state.brokers)
                journey.grow_to_five()
                journey.shrink_to_three(sorted(set(journey.cluster.state.brokers) - before))
        checked = running.check(journey.servers)
    finally:
        journey.stop()
        for path in sorted((folder / "cluster" / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            print(f"{path.name}:", *lines[-30:], sep="\n  ")
    moves = sum(each.moved for each in journey.steps)
    copied = sum(each.copied for each in journey.steps)
    print(
        *journey.table(),
        "",
        *running.table(),
        "",
        f"{time.monotonic() - began:.0f} s, {moves} moves of partitions, {copied:,} bytes copied, "
        f"{checked:,} records written and each checked {len(kinds) + 1} times, 0 errors",
        sep="\n",
    )
    assert [each.brokers for each in journey.steps[:4]] == [1, 3, 5, 3]
    assert moves
    assert copied


@pytest.mark.long
@pytest.mark.timeout(600, func_only=True)
@pytest.mark.parametrize(
    "kinds", [("confluent-kafka", "ottla"), ("java", "franz-go")], ids="+".join
)
def test_from_one_to_five_and_back(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    travel(tmp_path, kinds, seconds=24)


@pytest.mark.soak
@pytest.mark.timeout(7200, func_only=True)
def test_from_one_to_five_and_back_with_every_client(tmp_path: Path) -> None:
    travel(tmp_path, KINDS, seconds=SECONDS, rate=150.0, size=1000)
