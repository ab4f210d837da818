"""Brokers come and go: `ottla cluster add`, `rebalance` and `remove`, as a user types them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_kit.commands import ottla

from ottla import Admin, Producer
from ottla.cli.cluster import moving
from ottla.cli.cluster.failures import failures_reported
from ottla.cli.commands.cluster import moves
from ottla.cli.failures import Failure
from ottla.client.admin.cluster import Reassignment
from ottla.client.admin.configs import Resource
from ottla.client.moves import running
from ottla.client.moves.plan import BrokerRoom, Move, PlacedPartition, drained
from ottla.client.positions import TopicPartition
from ottla.testing.cluster import LocalCluster

PARTITIONS = 12
RECORDS = 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", brokers=3, base_port=None) as cluster:
        yield cluster


def held(cluster: LocalCluster) -> Counter[int]:
    """Replicas of each broker."""
    with Admin(cluster.bootstrap) as admin:
        return Counter(
            broker
            for topic in admin.list_topics(internal=True)
            for each in topic.partitions
            for broker in each.replicas
        )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_grow_and_shrink(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("orders", PARTITIONS, 2)
        admin.create_topic("everywhere", 1, 3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send("orders", value=b"x" * 1000, partition=number % PARTITIONS)
    # Nothing to do, and nothing that can be done.
    told = ottla("cluster", "rebalance", "--data", cluster.folder, "--sample", 0)
    assert "nothing has to be moved" in told
    told = ottla("cluster", "remove", 3, "--data", cluster.folder, "--yes", fails=True)
    assert "everywhere-0 has 3 replicas, and only 2 brokers would be left" in told
    assert "Traceback" not in told
    # One more, and its share.
    assert "ottla cluster rebalance" in ottla("cluster", "add", "--data", cluster.folder)
    assert held(cluster)[4] == 0
    planned = json.loads(
        ottla("cluster", "rebalance", "--data", cluster.folder, "--dry-run", "--json")
    )
    assert planned["moves"]
    assert held(cluster)[4] == 0
    # Not while another command is at it.
    with cluster.moving():
        for words in (
            ("cluster", "rebalance", "--yes"),
            ("topic", "alter", "orders", "-r", 3, "-c", "retention.ms=1000"),
            ("topic", "alter", "--all", "-r", 3),
        ):
            told = ottla(*words, "--server", cluster.bootstrap, fails=True)
            assert "another command moves partitions of the cluster" in told
    with Admin(cluster.bootstrap) as admin:
        settings = admin.describe_configs(Resource.topic("orders"), names=["retention.ms"])
        assert all(each.is_default for each in settings[Resource.topic("orders")].values())
    assert held(cluster)[4] == 0
    told = ottla(
        "cluster", "rebalance", "--server", cluster.bootstrap, "--throttle", 100_000_000, "--yes"
    )
    assert "partitions to change" in told
    assert "moved" in told
    assert held(cluster)[4] in range(5, 9)
    with Admin(cluster.bootstrap) as admin:
        (orders,) = admin.describe_topics("orders").values()
        leaders = Counter(each.leader for each in orders.partitions)
    assert set(leaders) == {1, 2, 3, 4}
    assert max(leaders.values()) - min(leaders.values()) <= 1
    # Another one goes, with nothing left on it.
    told = ottla("cluster", "remove", 2, "--data", cluster.folder, "--yes")
    assert "removed broker 2" in told
    assert held(cluster)[2] == 0
    with Admin(cluster.bootstrap) as admin:
        assert [each.id for each in admin.describe_cluster().brokers] == [1, 3, 4]
        ends = admin.list_offsets(
            {TopicPartition("orders", index): "latest" for index in range(PARTITIONS)}
        )
    assert sum(each.offset for each in ends.values()) == RECORDS
    left = {each.name for each in cluster.data_path(2).glob("orders-*")}
    assert all(each.endswith("-delete") for each in left)


def test_progress_tells_rate_and_time_left() -> None:
    progress = running.MoveProgress(3, 10, 50_000_000, 200_000_000, 5e6)
    line = "3 of 10 done, 47.7 MiB of 190.7 MiB, 4.8 MiB/s, 0:30 left"
    assert moving._progress(progress) == line
    assert moving._progress(running.MoveProgress(10, 10, 200, 200, 50.0)).endswith("200 B, 50 B/s")
    assert moving._progress(running.MoveProgress(1, 2, 0, 0, 0.0)) == "1 of 2 done"


def test_bad_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ottla("cluster", "rebalance", "--data", tmp_path / "nowhere", fails=True)
    assert "there is no cluster" in told
    # What the environment names is another cluster than the one that was asked for.
    monkeypatch.setenv("OTTLA_SERVER", "127.0.0.1:1")
    told = ottla("cluster", "rebalance", "--data", tmp_path / "nowhere", fails=True)
    assert "there is no cluster" in told
    told = ottla("cluster", "rebalance", "--data", tmp_path, "--server", "127.0.0.1:1", fails=True)
    assert "take either --data or --server" in told


@pytest.mark.parametrize("force", [False, True])
def test_a_dry_run_removes_no_broker_that_holds_nothing(
    force: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Removable:
        def check_removable(self, broker: int) -> None:
            assert broker == 3

        def replicas_of(self, broker: int) -> list[str]:
            return []

        def remove(self, broker: int, *, force: bool) -> None:
            raise AssertionError("it was removed")

    monkeypatch.setattr(moves, "local_cluster", lambda _: Removable())
    moves.remove(3, force=force, dry_run=True)
    assert "broker 3 would be removed" in capsys.readouterr().out


class Leaving:
    """A cluster in which an interrupted command has left one partition on its way from broker 3."""

    def __init__(self) -> None:
        self.admin = self
        self.bootstrap = "127.0.0.1:9092"
        self.looks_left = 3  # then the move has come to its end
        self.limits: list[str] = ["leader.replication.throttled.replicas"]
        self.removed = False

    def failures_reported(self) -> AbstractContextManager[None]:
        return failures_reported(self.bootstrap)

    def moving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check_removable(self, broker: int) -> None:
        assert broker == 3

    def replicas_of(self, broker: int) -> list[str]:
        return ["orders-0"] if self.looks_left else []

    def remove(self, broker: int, *, force: bool) -> str:
        assert not self.replicas_of(broker)
        self.removed = True
        return "broker-3"

    # Of the admin client

    def list_reassignments(self) -> list[Reassignment]:
        if not self.looks_left:
            return []
        self.looks_left -= 1
        return [Reassignment(TopicPartition("orders", 0), (1, 2, 3), (2,), (3,))]

    def list_topics(self, *, internal: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="orders")]

    def describe_configs(self, topics: list[Resource], *, names: list[str]) -> dict[Resource, Any]:
        return {topics[0]: {name: SimpleNamespace(value="0:3") for name in self.limits}}

    def describe_cluster(self) -> SimpleNamespace:
        return SimpleNamespace(brokers=[SimpleNamespace(id=each) for each in (1, 2, 3)])

    def alter_configs(self, resource: Resource, *, unset: list[str]) -> None:
        self.limits = [each for each in self.limits if each not in unset]


def test_a_broker_is_removed_after_a_removal_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Leaving()
    monkeypatch.setattr(moves, "local_cluster", lambda _: cluster)
    monkeypatch.setattr(moves, "servers", lambda *_: cluster)
    monkeypatch.setattr(running, "_LOOK_SECONDS", 0.0)
    moves.remove(3, data=tmp_path, yes=True)
    assert cluster.removed
    assert cluster.limits == []  # this time no --throttle was given
    told = capsys.readouterr()
    assert "1 partition on the way from broker 3 already" in told.err
    assert "removed broker 3" in told.out


class Moved:
    """A cluster in which somebody moves a partition while a plan is carried out, some times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, disturbed: int, limited: tuple[int, ...] = ()
    ) -> None:
        """`limited`: brokers that are away in the end, and keep the limit of the plan."""
        self.admin = None
        self.plans: list[list[Move]] = []
        self.left = [Move(TopicPartition("orders", 0), (1, 2), (1, 3), 0)]

        def carry_out(_: object, moves: list[Move], **__: object) -> list[int]:
            self.plans.append(moves)
            if len(self.plans) <= disturbed:
                raise running.MovesFailed("1 partitions are not where the plan wanted them")
            return list(limited)

        monkeypatch.setattr(running, "carry_out", carry_out)
        monkeypatch.setattr(running, "survey", lambda _, *, seconds: ([], []))

    def failures_reported(self) -> AbstractContextManager[None]:
        return failures_reported("127.0.0.1:9092")

    def carry_out(self) -> None:
        moving.carry_out(self, self.left, None, lambda *_: self.left)  # type: ignore[arg-type]


def test_what_somebody_moved_meanwhile_is_planned_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Moved(monkeypatch, disturbed=2)
    cluster.carry_out()
    assert len(cluster.plans) == 3
    assert capsys.readouterr().err.count("planning again for what is left") == 2
    # Nothing is left to do.
    cluster = Moved(monkeypatch, disturbed=1)
    moving.carry_out(cluster, cluster.left, None, lambda *_: [])  # type: ignore[arg-type]
    assert len(cluster.plans) == 1


def test_no_limit_is_to_be_lifted_on_the_broker_that_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Moved(monkeypatch, disturbed=0, limited=(2, 3))
    moving.carry_out(cluster, cluster.left, 1, lambda *_: [], removed=3)  # type: ignore[arg-type]
    told = capsys.readouterr().err
    assert "`ottla config unset broker 2 " in told
    assert "broker 3" not in told


def test_somebody_who_moves_the_same_partitions_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Moved(monkeypatch, disturbed=99)
    with pytest.raises(Failure, match="try again when nobody else moves partitions"):
        cluster.carry_out()
    assert len(cluster.plans) == 3


def test_one_command_at_a_time_moves_partitions(tmp_path: Path) -> None:
    """What one moves to a broker that another drains would keep both from their ends."""
    cluster = LocalCluster(tmp_path / "cluster", brokers=2, base_port=None)
    cluster.folder.mkdir()
    cluster._new_state()
    with cluster.moving():
        for words in (("rebalance", "--yes"), ("remove", "1"), ("remove", "1", "--force", "--yes")):
            told = ottla("cluster", *words, "--data", cluster.folder, fails=True)
            assert "another command moves partitions" in told


@pytest.mark.parametrize("rack", ["", " "])
@pytest.mark.parametrize("words", [("start", "--rack", "east"), ("add",)])
def test_a_rack_without_a_name(tmp_path: Path, words: tuple[str, ...], rack: str) -> None:
    cluster = LocalCluster(tmp_path / "cluster", brokers=1, base_port=None)
    if words[0] == "add":
        cluster.folder.mkdir()
        cluster._new_state()
    told = ottla("cluster", *words, "--rack", rack, "--data", cluster.folder, fails=True)
    assert "a rack has a name" in told
    assert cluster.folder.exists() is (words[0] == "add")
    if cluster.exists:
        assert list(cluster.state.brokers) == [1]


@pytest.mark.parametrize("name", ["node.id", "log.dirs", "zookeeper.connect"])
def test_settings_that_cannot_be_those_of_all_brokers(tmp_path: Path, name: str) -> None:
    told = ottla(
        "cluster", "start", "--data", tmp_path / "cluster", "--set", f"{name}=1", fails=True
    )
    assert told.count(name) == 1
    assert not (tmp_path / "cluster" / "cluster.json").exists()


def test_a_plan_that_drains_a_broker_that_is_away_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    partition = PlacedPartition(TopicPartition("orders", 0), (5, 2), 1000)
    brokers = [BrokerRoom(each) for each in (1, 2)]
    moving.show(drained([partition], brokers, [5]), [partition], brokers)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["orders-0", "5,2", "1,2", "1000"] in lines
    (away,) = (line for line in lines if line[:1] == ["5"])
    assert away[:5] == ["5", "1", "0", "1", "0"]
