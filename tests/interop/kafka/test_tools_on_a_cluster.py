"""Kafka's tools, and `ottla cluster status`, on a cluster one broker of which is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop_kit import toolchain
from interop_kit.running_cluster import BROKERS, RunningCluster, running_cluster

from ottla import Admin
from ottla.client.admin.topics import NewTopic

pytestmark = [pytest.mark.long, pytest.mark.timeout(300, func_only=True)]

TOOLS = "org.apache.kafka.tools"
VICTIM = 1
EVERYWHERE, STRICT, ALONE = "everywhere", "strict", "alone"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools") / "cluster"


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[RunningCluster]:
    """With topics on all brokers, one of which asks for all of them, and one on the victim alone."""
    with running_cluster(folder) as cluster:
        all_of_them = [
            [each % BROKERS + 1, (each + 1) % BROKERS + 1, (each + 2) % BROKERS + 1]
            for each in range(BROKERS)
        ]
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic(EVERYWHERE, assignments=dict(enumerate(all_of_them))),
                    NewTopic(
                        STRICT,
                        assignments={0: all_of_them[1]},
                        settings={"min.insync.replicas": "3"},
                    ),
                    NewTopic(
                        ALONE,
                        assignments={0: [VICTIM]},
                        settings={"min.insync.replicas": "1"},
                    ),
                ]
            )
        cluster.until_in_sync()
        yield cluster


@pytest.fixture
def tool(cluster: RunningCluster) -> Callable[..., str]:
    java = toolchain.kafka_tools()

    def run(name: str, *arguments: str) -> str:
        command = [*java, f"{TOOLS}.{name}", *arguments, "--bootstrap-server", cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def rows(described: str) -> dict[tuple[str, int], tuple[str, list[int]]]:
    """Topic and partition -> who leads, and who is in sync; of what kafka-topics describes."""
    found = re.findall(
        r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\S+)\s+Replicas: \S+\s+Isr: ?(\S*)", described
    )
    return {
        (topic, int(partition)): (leader, sorted(map(int, in_sync.split(",") if in_sync else [])))
        for topic, partition, leader, in_sync in found
    }


def fenced_brokers(listed: str) -> dict[int, bool]:
    """Brokers -> whether they are away; of what kafka-cluster lists."""
    found = re.findall(r"^(\d+)\s+\S+\s+\d+\s.*\b(fenced|unfenced)\b", listed, re.M)
    return {int(broker): state == "fenced" for broker, state in found}


def status(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "status", "--data", folder, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_what_is_shown_of_a_cluster_without_one_broker(
    cluster: RunningCluster, tool: Callable[..., str], folder: Path
) -> None:
    def described(which: str) -> dict[tuple[str, int], tuple[str, list[int]]]:
        return rows(tool("TopicCommand", "--describe", which))

    others = sorted({1, 2, 3} - {VICTIM})
    everywhere = {(EVERYWHERE, 0), (EVERYWHERE, 1), (EVERYWHERE, 2), (STRICT, 0)}
    with cluster.without(VICTIM):
        for place in everywhere:
            cluster.leader(*place, other_than=VICTIM)
        under_replicated = described("--under-replicated-partitions")
        assert under_replicated.keys() == everywhere | {(ALONE, 0)}
        for place in everywhere:
            leader, in_sync = under_replicated[place]
            assert int(leader) in others
            assert in_sync == others
        assert described("--unavailable-partitions").keys() == {(ALONE, 0)}
        assert described("--under-min-isr-partitions").keys() == {(STRICT, 0), (ALONE, 0)}

        # With the one that is away only if that is asked for.
        endpoints = ("ClusterTool", "list-endpoints")
        known = fenced_brokers(tool(*endpoints, "--include-fenced-brokers"))
        assert known == {**dict.fromkeys(others, False), VICTIM: True}
        listed = re.findall(r"^(\d+)\s", tool(*endpoints), re.M)
        assert sorted(map(int, listed)) == others

        document = json.loads(status(folder, "--json"))
        assert document["offline"] == [f"{ALONE}-0"]
        assert sorted(document["under_replicated"]) == sorted(
            f"{topic}-{index}" for topic, index in under_replicated
        )
        assert document["healthy"] is False
        shown = status(folder)
        assert "5 partitions, 1 offline, 5 under-replicated" in shown
        assert f"  offline: {ALONE}-0\n" in shown
        assert f"  under-replicated: {STRICT}-0\n" in shown

    assert described("--under-replicated-partitions") == {}
    assert described("--unavailable-partitions") == {}
    assert described("--under-min-isr-partitions") == {}
    assert "5 partitions, 0 offline, 0 under-replicated" in status(folder)
    assert json.loads(status(folder, "--json"))["healthy"] is True


def test_preferred_leaders_on_demand(cluster: RunningCluster, tool: Callable[..., str]) -> None:
    """kafka-leader-election, after a broker that led was away."""
    with Admin(cluster.bootstrap) as admin:
        (led,) = (
            each.partition
            for each in admin.describe_topics(EVERYWHERE)[EVERYWHERE].partitions
            if each.replicas[0] == VICTIM
        )
    with cluster.without(VICTIM):
        assert cluster.leader(EVERYWHERE, led, other_than=VICTIM) != VICTIM
    assert cluster.leader(EVERYWHERE, led) != VICTIM, "nobody asked for it"
    place = ["--topic", EVERYWHERE, "--partition", str(led)]
    said = tool("LeaderElectionCommand", "--election-type", "preferred", *place)
    assert re.search(rf"Successfully completed .*PREFERRED.*{EVERYWHERE}-{led}", said), said
    assert cluster.leader(EVERYWHERE, led) == VICTIM
    again = tool("LeaderElectionCommand", "--election-type", "preferred", *place)
    assert f"Valid replica already elected for partitions {EVERYWHERE}-{led}" in again
