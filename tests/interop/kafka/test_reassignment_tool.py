"""kafka-reassign-partitions.sh of Apache Kafka, unchanged, against three and four brokers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_kit import toolchain

from ottla import Admin
from ottla.client.admin.configs import Resource
from ottla.client.admin.topics import NewTopic
from ottla.testing.cluster import LocalCluster

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPIC = "to-be-moved"
PARTITIONS = 4
RATE = 50_000_000
Assignment = dict[int, list[int]]


class Tool:
    def __init__(self, java: list[str], bootstrap: str, folder: Path) -> None:
        self._command = [*java, TOOL, "--bootstrap-server", bootstrap]
        self._folder = folder

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=90, check=False
        )
        story = f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) == fails, story
        return done.stdout + done.stderr

    def plan(self, assignment: Assignment) -> str:
        """A file as --reassignment-json-file takes it."""
        path = self._folder / "plan.json"
        partitions = [
            {"topic": TOPIC, "partition": index, "replicas": replicas}
            for index, replicas in assignment.items()
        ]
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(path)

    def verify_until(self, plan: str, done: Callable[[str], bool], *more: str) -> str:
        for _ in range(30):
            said = self("--verify", "--reassignment-json-file", plan, *more)
            if done(said):
                return said
        raise AssertionError(said)


def current(cluster: LocalCluster) -> Assignment:
    with Admin(cluster.bootstrap) as admin:
        described = admin.describe_topics([TOPIC])[TOPIC]
    return {each.partition: list(each.replicas) for each in described.partitions}


def proposed(said: str) -> Assignment:
    """What --generate thinks best."""
    plan = json.loads(said[said.index("Proposed partition reassignment") :].split("\n")[1])
    return {each["partition"]: each["replicas"] for each in plan["partitions"]}


def topics_to_move(folder: Path) -> str:
    """A file as --topics-to-move-json-file takes it."""
    path = folder / "topics.json"
    path.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    return str(path)


def is_complete(said: str) -> bool:
    return said.count("is completed.") == PARTITIONS


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("brokers", [3, 4])
def test_generate_execute_verify_cancel(tmp_path: Path, brokers: int) -> None:
    java = toolchain.kafka_tools()
    with LocalCluster(tmp_path / "cluster", brokers=brokers, base_port=None) as cluster:
        tool = Tool(java, cluster.bootstrap, tmp_path)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])
        # What Kafka's tool thinks best: for the last brokers alone.
        last = f"{brokers - 1},{brokers}"
        topics = topics_to_move(tmp_path)
        plan = proposed(
            tool("--generate", "--topics-to-move-json-file", topics, "--broker-list", last)
        )
        assert set(plan) == set(range(PARTITIONS))
        path = tool.plan(plan)
        said = tool("--execute", "--reassignment-json-file", path)
        assert "Successfully started partition reassignments" in said
        tool.verify_until(path, is_complete)
        assert current(cluster) == plan
        # Back to the first two, one by one, held to a rate; --verify lifts it.
        back = {index: [1, 2] for index in range(PARTITIONS)}
        path = tool.plan(back)
        throttled = ("--throttle", str(RATE))
        said = tool("--execute", "--reassignment-json-file", path, *throttled)
        assert f"The inter-broker throttle limit was set to {RATE} B/s" in said
        tool.verify_until(path, is_complete)
        assert current(cluster) == back
        with Admin(cluster.bootstrap) as admin:
            of_topic = admin.describe_configs([Resource.topic(TOPIC)])[Resource.topic(TOPIC)]
        assert of_topic["leader.replication.throttled.replicas"].value in ("", None)
        # A move that cannot end, because it is held to nothing, is taken back.
        with Admin(cluster.bootstrap) as admin:
            names = ("leader", "follower")
            admin.alter_configs(
                Resource.cluster(),
                assign={f"{each}.replication.throttled.rate": "0" for each in names},
            )
            admin.alter_configs(
                Resource.topic(TOPIC),
                assign={f"{each}.replication.throttled.replicas": "*" for each in names},
            )
        away = {index: [2, 3] for index in range(PARTITIONS)}
        path = tool.plan(away)
        keep = "--preserve-throttles"
        tool("--execute", "--reassignment-json-file", path)
        said = tool("--verify", "--reassignment-json-file", path, keep)
        assert "is still in progress" in said
        assert "is completed" not in said
        assert f"{TOPIC}-0: replicas: " in tool("--list")
        said = tool("--cancel", "--reassignment-json-file", path, keep)
        assert "Successfully cancelled" in said
        assert {index: sorted(each) for index, each in current(cluster).items()} == back
        # What no cluster can do.
        path = tool.plan({0: [1, 99]})
        said = tool("--execute", "--reassignment-json-file", path, fails=True)
        assert "99" in said


@pytest.mark.long
@pytest.mark.timeout(300)
def test_generate_keeps_racks_apart(tmp_path: Path) -> None:
    """The tool knows the racks as brokers tell them, and all that it wants is done."""
    java = toolchain.kafka_tools()
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    with LocalCluster(
        tmp_path / "cluster", brokers=4, base_port=None, racks=tuple(racks.values())
    ) as cluster:
        tool = Tool(java, cluster.bootstrap, tmp_path)
        with Admin(cluster.bootstrap) as admin:
            # All in one rack.
            homes = {index: [1 + index % 3, 1 + (index + 1) % 3] for index in range(PARTITIONS)}
            admin.create_topics([NewTopic(TOPIC, assignments=homes)])
        words = ("--topics-to-move-json-file", topics_to_move(tmp_path), "--broker-list", "1,2,3,4")
        plan = proposed(tool("--generate", *words))
        assert all({racks[one] for one in each} == {"a", "b"} for each in plan.values()), plan
        path = tool.plan(plan)
        said = tool("--execute", "--reassignment-json-file", path)
        assert "Successfully started partition reassignments" in said
        tool.verify_until(path, is_complete)
        assert current(cluster) == plan
        assert set(proposed(tool("--generate", *words, "--disable-rack-aware"))) == set(plan)
