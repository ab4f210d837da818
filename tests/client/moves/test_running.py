"""Carrying out a plan of moves: limits stay as long as moves go on that have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.admin.cluster import LogFolder, Reassignment, ReplicaInFolder
from ottla.client.admin.configs import Resource, ResourceKind
from ottla.client.errors import BrokerError, ClusterUnreachable, Failures, TopicNotFound
from ottla.client.moves import running
from ottla.client.moves.plan import Move, NoPlan
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode

PARTITIONS = tuple(TopicPartition("orders", index) for index in range(3))
RATES = {f"{side}.replication.throttled.rate" for side in ("leader", "follower")}
NAMED = {f"{side}.replication.throttled.replicas" for side in ("leader", "follower")}


class Cluster:
    """As much of an Admin as a plan needs; moves come to their ends when they are let."""

    def __init__(self) -> None:
        self.replicas = dict.fromkeys(PARTITIONS, (1, 2))
        self.moving: dict[TopicPartition, tuple[int, ...]] = {}
        self.settings: dict[Resource, dict[str, str]] = {}
        self.goes_on = True
        self.brokers = {1, 2, 3}
        # Where partitions were in the beginning, and how often the controller, too, tells of that.
        self.before = dict(self.replicas)
        self.behind = 0

    def end_moves(self) -> None:
        self.replicas.update(self.moving)
        self.moving.clear()

    def alter_reassignments(self, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        self.moving.update({key: to for key, to in wanted.items() if key in self.replicas})
        gone = {key: unknown(str(key)) for key in wanted if key not in self.replicas}
        if gone:
            raise Failures.of(gone, {})

    def list_reassignments(self) -> list[Reassignment]:
        if self.goes_on:
            self.end_moves()
        return [Reassignment(each, self.replicas[each], to, ()) for each, to in self.moving.items()]

    def list_topics(self, *, internal: bool, from_controller: bool = False) -> list[Any]:
        assert internal
        # What was before is told by a broker that has not heard of the last changes yet.
        told = self.replicas if from_controller and not self.behind else self.before
        self.behind = max(0, self.behind - 1)
        partitions = [
            SimpleNamespace(partition=each.partition, replicas=replicas, leader=replicas[0])
            for each, replicas in told.items()
        ]
        return [SimpleNamespace(name="orders", partitions=partitions)]

    def describe_cluster(self) -> Any:
        return SimpleNamespace(
            brokers=[SimpleNamespace(id=number, rack=None) for number in self.brokers], away=[]
        )

    def describe_log_folders(self, _: Iterable[int] = ()) -> list[Any]:
        return []

    def describe_configs(self, resources: Iterable[Resource], *, names: Iterable[str]) -> Any:
        return {
            each: {
                name: SimpleNamespace(value=value)
                for name, value in self.settings.get(each, {}).items()
                if name in names
            }
            for each in resources
        }

    def alter_configs(
        self,
        resource: Resource,
        *,
        assign: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
    ) -> None:
        if resource.kind is ResourceKind.BROKER and int(resource.name) not in self.brokers:
            raise ClusterUnreachable(f"{resource} is away")
        if resource.kind is ResourceKind.TOPIC and not self.replicas:
            raise unknown(str(resource))
        settings = self.settings.setdefault(resource, {})
        settings.update(assign or {})
        for name in unset:
            settings.pop(name, None)
        if not settings:
            del self.settings[resource]

    def elect_leaders(self, _: object) -> None:
        raise AssertionError("nobody was to lead")


def unknown(about: str) -> TopicNotFound:
    return TopicNotFound(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, about)


def moves() -> list[Move]:
    return [Move(each, (1, 2), (1, 3), 100) for each in PARTITIONS]


def carry_out(cluster: Cluster, **more: Any) -> list[int]:
    return running.carry_out(cluster, moves(), **more)  # type: ignore[arg-type]


def test_limits_are_lifted_at_the_end() -> None:
    cluster = Cluster()
    seen: list[dict[Resource, dict[str, str]]] = []
    carry_out(cluster, throttle=1000, tell=lambda _: seen.append(deepcopy(cluster.settings)))
    assert set(seen[0][Resource.topic("orders")]) == NAMED
    assert set(seen[0][Resource.broker(3)]) == RATES
    assert cluster.settings == {}


def test_limits_stay_with_moves_that_go_on_when_the_plan_is_interrupted() -> None:
    cluster = Cluster()
    cluster.goes_on = False

    def interrupt(_: running.MoveProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(cluster, throttle=1000, tell=interrupt)
    assert cluster.moving
    limited = deepcopy(cluster.settings)
    assert set(limited[Resource.topic("orders")]) == NAMED
    # Not by somebody else while they are under way ...
    assert not running.lift_left_limits(cluster)  # type: ignore[arg-type]
    assert cluster.settings == limited
    # ... but by the next plan, and by one without moves.
    cluster.end_moves()
    again = deepcopy(cluster.settings)
    assert running.lift_left_limits(cluster)  # type: ignore[arg-type]
    assert cluster.settings == {}
    cluster.settings = again
    cluster.goes_on = True
    carry_out(cluster)
    assert cluster.settings == {}


def test_limits_of_a_plan_that_never_began_are_lifted() -> None:
    cluster = Cluster()

    def refuse(_: object) -> None:
        raise KeyboardInterrupt

    cluster.alter_reassignments = refuse  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        carry_out(cluster, throttle=1000)
    assert cluster.settings == {}


def test_somebodys_own_limit_stays() -> None:
    cluster = Cluster()
    own = {Resource.topic("orders"): dict.fromkeys(NAMED, "*")}
    cluster.settings = deepcopy(own)
    carry_out(cluster)
    assert cluster.settings == own


def test_a_broker_that_is_away_or_goes_does_not_keep_limits_in_place() -> None:
    cluster = Cluster()
    cluster.brokers = {1, 3, 4}

    def die(_: running.MoveProgress) -> None:
        cluster.brokers.discard(3)

    assert carry_out(cluster, throttle=1000, tell=die) == [3]
    # What is left is the rate of the one that died, which is for replicas that nobody names.
    assert set(cluster.settings) == {Resource.broker(3)}
    cluster.brokers.add(3)


def test_topics_that_are_deleted_meanwhile_are_left_out() -> None:
    cluster = Cluster()
    del cluster.replicas[PARTITIONS[1]]
    told: list[running.MoveProgress] = []
    carry_out(cluster, throttle=1000, tell=told.append)
    assert cluster.replicas == dict.fromkeys((PARTITIONS[0], PARTITIONS[2]), (1, 3))
    assert told[-1].moves_done == 2
    assert cluster.settings == {}
    cluster.replicas.clear()
    carry_out(cluster, throttle=1000)
    assert cluster.settings == {}


def test_what_is_refused_is_told() -> None:
    cluster = Cluster()

    def refuse(_: object) -> None:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Broker 3 has room for 0 bytes")

    cluster.alter_reassignments = refuse  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="has room for 0 bytes"):
        carry_out(cluster)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Move(PARTITIONS[2], (1, 2), (1, 9), 100), "broker 9"),
        (Move(PARTITIONS[2], (1, 2), (1, 3), 900), "broker 3 has room for 1000 bytes"),
        (Move(PARTITIONS[1], (1, 2), (1, 3), 100), "orders-1 twice"),
        (Move(PARTITIONS[2], (1, 2), (), 100), "without a replica"),
    ],
)
def test_nothing_begins_if_a_later_move_of_the_plan_cannot_be_made(bad: Move, words: str) -> None:
    cluster = Cluster()
    folder = SimpleNamespace(broker=3, usable_bytes=1000, is_offline=False, replicas=())
    cluster.describe_log_folders = lambda _=(): [folder]  # type: ignore[method-assign]
    plan = [*moves()[:2], bad]
    with pytest.raises(NoPlan, match=words):
        running.carry_out(cluster, plan, throttle=1000, at_once=1)  # type: ignore[arg-type]
    assert cluster.replicas == cluster.before
    assert (cluster.moving, cluster.settings) == ({}, {})


def test_traffic_is_what_came_in_meanwhile() -> None:
    cluster = Cluster()
    sizes = iter(({0: 100, 1: 100, 2: 100}, {0: 100, 1: 5100, 2: 1100}))

    def describe_log_folders(_: Iterable[int] = ()) -> list[Any]:
        replicas = [
            SimpleNamespace(partition=PARTITIONS[index], size=size)
            for index, size in next(sizes).items()
        ]
        return [SimpleNamespace(broker=1, usable_bytes=None, is_offline=False, replicas=replicas)]

    cluster.describe_log_folders = describe_log_folders  # type: ignore[method-assign]
    found, _ = running.survey(cluster, seconds=0.01)  # type: ignore[arg-type]
    none, much, some = (each.traffic for each in found)
    assert none == 0
    assert some > 0
    assert much == pytest.approx(5 * some)
    assert [each.size for each in found] == [100, 5100, 1100]


def test_a_failed_disk_has_no_room() -> None:
    cluster = Cluster()
    cluster.brokers = [1, 2, 3]
    folders = [
        LogFolder(1, "/a", (), None, None, is_offline=True),
        LogFolder(1, "/b", (ReplicaInFolder(PARTITIONS[0], 7, 0, False),), 900, 500),
        LogFolder(2, "/a", (), None, None, is_offline=True),
        LogFolder(3, "/a", (), None, None),  # of an old Kafka, which does not tell
    ]
    cluster.describe_log_folders = lambda _=(): folders  # type: ignore[method-assign]
    placed, brokers = running.survey(cluster, seconds=0)  # type: ignore[arg-type]
    assert {each.id: each.usable_bytes for each in brokers} == {1: 500, 2: 0, 3: None}
    assert [each.size for each in placed] == [7, 0, 0]


@pytest.mark.parametrize(
    "code", [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.NOT_CONTROLLER]
)
def test_a_preferred_leader_that_died_meanwhile_is_no_failure(code: ErrorCode) -> None:
    cluster = Cluster()
    asked: list[object] = []

    def elect(partitions: object) -> None:
        asked.append(partitions)
        raise Failures.of({PARTITIONS[0]: BrokerError(code)}, {})

    cluster.elect_leaders = elect  # type: ignore[method-assign]
    plan = [Move(PARTITIONS[0], (1, 2), (2, 1), 100)]
    if code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE:
        running.carry_out(cluster, plan)  # type: ignore[arg-type]
    else:
        with pytest.raises(Failures):
            running.carry_out(cluster, plan)  # type: ignore[arg-type]
    assert asked == [[PARTITIONS[0]]]


def test_brokers_that_have_not_heard_of_the_end_are_not_believed() -> None:
    cluster = Cluster()
    carry_out(cluster)
    # A controller that was elected meanwhile may be one of them, for a moment.
    cluster = Cluster()
    cluster.behind = 3
    carry_out(cluster)
    assert cluster.behind == 0
    assert set(cluster.replicas.values()) == {(1, 3)}


def test_partitions_that_somebody_moved_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SETTLE_SECONDS", 0.0)
    cluster = Cluster()
    listed = cluster.list_reassignments

    def move_back() -> list[Reassignment]:
        found = listed()
        cluster.replicas[PARTITIONS[1]] = (1, 2)
        return found

    cluster.list_reassignments = move_back  # type: ignore[method-assign]
    with pytest.raises(running.MovesFailed, match=r"1 partitions .*orders-1"):
        carry_out(cluster)
    # One that was deleted meanwhile is nobody's fault.
    cluster = Cluster()
    listed = cluster.list_reassignments

    def delete() -> list[Reassignment]:
        found = listed()
        cluster.replicas.pop(PARTITIONS[1], None)
        return found

    cluster.list_reassignments = delete  # type: ignore[method-assign]
    carry_out(cluster)


def test_a_move_that_ends_while_partitions_are_looked_at() -> None:
    """Its partition lies where the move led to, and not in both places."""
    cluster = Cluster()
    cluster.goes_on = False
    first = PARTITIONS[0]
    topics = cluster.list_topics
    # With the new replica beside those of before, as long as the move lasts.
    cluster.replicas[first] = (1, 2, 3)
    cluster.moving = {first: (1, 3)}

    def moves_under_way() -> list[Reassignment]:
        return [Reassignment(each, (1, 2, 3), (3,), (2,)) for each in cluster.moving]

    def end_after_looking(**asked: bool) -> list[Any]:
        found = topics(**asked)
        cluster.end_moves()
        return found

    cluster.list_reassignments = moves_under_way  # type: ignore[method-assign]
    cluster.list_topics = end_after_looking  # type: ignore[method-assign]
    placed, _ = running.survey(cluster, seconds=0)  # type: ignore[arg-type]
    assert {each.partition: each.replicas for each in placed} == {
        first: (1, 3),
        PARTITIONS[1]: (1, 2),
        PARTITIONS[2]: (1, 2),
    }
