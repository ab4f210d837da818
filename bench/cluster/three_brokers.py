"""Three brokers against three: every topic has three replicas, every write waits for all in sync.

Produce: the shapes of the table for one broker, to one partition (so to one leader with two followers),
and by idempotent producers to twelve partitions that the three brokers lead. Latency at a rate that both
keep up with. Failover is what a producer sees: kill -9 of its leader, until its next record is
acknowledged by whoever leads then, asking for the leader again and again. The stall is how long acks=all
waits for a follower that was killed.

A ZooKeeper belongs to Ottla's cluster; Kafka's nodes keep the metadata themselves. What ZooKeeper takes
counts into the start, and is shown apart for memory and processor time.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from typing import NamedTuple

from bench.harness import process
from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row, alternate
from bench.harness.client import Client
from bench.harness.clusters import Address, Cluster
from bench.harness.errors import BenchError
from bench.harness.load.paced import Latencies, PlainFollower, paced_load
from bench.harness.load.produce import (
    IdempotentRequests,
    Load,
    PlainRequests,
    Requests,
    Setting,
    produce_load,
)
from bench.harness.process import PeakMemory
from bench.harness.results import OTTLA, Measurement, Target
from bench.produce import busy

ONE_PARTITION = Setting("one partition", version=12, acks=-1, idempotent=False, partitions=1)
SPREAD = Setting("12 partitions", version=12, acks=-1, idempotent=True, partitions=12)
SETTINGS = (ONE_PARTITION, SPREAD)

# Three copies of everything; a round ends earlier rather than fill the memory.
MOST_IN_A_ROUND = 1 << 30
RATE = 200.0  # requests/s of the latency row
FAILOVER_TIMEOUT = 120.0
# How often a producer asks who leads while nobody does.
LOOK_AGAIN = 0.005
_ALL_ACKS = -1


class Case(NamedTuple):
    """A shape of load."""

    name: str
    claim: str
    shape: Shape
    connections: int
    depth: int
    in_requests: bool
    settings: tuple[Setting, ...] = SETTINGS


CASES = (
    Case("cluster-64x1kB", "64 × 1 kB, 4 × 5 in flight", Shape(64, 1000), 4, 5, False),
    Case("cluster-single-8x5", "1 × 100 B, 8 connections × 5 in flight", Shape(1, 100), 8, 5, True),
    Case(
        "cluster-single-1x1",
        "1 × 100 B, one connection, one in flight",
        Shape(1, 100),
        1,
        1,
        True,
        (ONE_PARTITION,),
    ),
)


def _clusters(bench: Bench) -> list[Cluster]:
    """The clusters that the rows of load share, up and warm."""
    if bench.clusters:
        return bench.clusters
    clusters = bench.new_clusters("tmpfs")
    seconds = bench.seconds(full=6.0, quick=1.0)
    for cluster in clusters:
        with cluster.blamed():
            cluster.start()
    for cluster in clusters:
        bench.say(f"warming up {cluster.name}'s cluster, {2 * seconds:.0f} s")
        with cluster.blamed():
            for case in CASES[:2]:
                _load(bench, case, SPREAD, seconds, cluster)
    return clusters


def spread_supplies(
    cluster: Cluster, topic: str, case: Case, setting: Setting
) -> tuple[list[Address], list[Requests]]:
    """Where each connection goes, and what it sends there: to partitions that are led there."""
    leaders = cluster.leaders(topic)
    if not setting.idempotent:
        plain = PlainRequests(topic, case.shape, setting)
        return [leaders[0]] * case.connections, [plain] * case.connections
    led: dict[Address, list[int]] = {}
    for partition, address in leaders.items():
        led.setdefault(address, []).append(partition)
    where = list(led)
    addresses = [where[number % len(where)] for number in range(case.connections)]
    supplies: list[Requests] = []
    for address in addresses:
        with Client(address) as client:
            producer_id, epoch = client.producer_id()
        supplies.append(
            IdempotentRequests(
                topic, case.shape, setting, producer_id, epoch, partitions=led[address]
            )
        )
    return addresses, supplies


def _load(bench: Bench, case: Case, setting: Setting, seconds: float, cluster: Cluster) -> Load:
    """One round, to a topic of its own."""
    topic = bench.topic_name()
    cluster.create_topic(topic, setting.partitions)
    addresses, supplies = spread_supplies(cluster, topic, case, setting)
    load = produce_load(
        addresses,
        supplies,
        case.depth,
        seconds=seconds,
        max_bytes=MOST_IN_A_ROUND,
        broker_cpu=cluster.cpu_seconds,
    )
    with contextlib.suppress(OSError, BenchError):
        cluster.forget(topic)
    return load


def _run_case(case: Case, bench: Bench) -> list[Measurement]:
    clusters = _clusters(bench)
    seconds = bench.seconds(full=3.0, quick=0.6)
    found = []
    for setting in case.settings:
        measure = functools.partial(_load, bench, case, setting, seconds)
        loads = alternate(clusters, bench.rounds, measure)
        found.append(
            Measurement(
                row=case.name,
                setting=setting.name,
                what=f"{case.claim}, RF 3, acks=all",
                unit="requests/s" if case.in_requests else "MB/s",
                higher_is_better=True,
                values={
                    name: [
                        each.requests_per_second if case.in_requests else each.megabytes_per_second
                        for each in rounds
                    ]
                    for name, rounds in loads.items()
                },
                target=Target(1.0, 2.0),
                notes=[busy(f"{name}, three brokers", rounds) for name, rounds in loads.items()],
            )
        )
    return found


# Latency -------------------------------------------------------------------------------------------


def _paced(bench: Bench, cluster: Cluster, seconds: float) -> tuple[Latencies, Latencies]:
    """Until the acknowledgement, and until a consumer that waits has the record."""
    topic = bench.topic_name()
    cluster.create_topic(topic, 1)
    paced = paced_load(
        cluster.leaders(topic)[0],
        PlainRequests(topic, Shape(1, 100), ONE_PARTITION),
        rate=RATE,
        seconds=seconds,
        follower=PlainFollower(topic, 0),
    )
    with contextlib.suppress(OSError, BenchError):
        cluster.forget(topic)
    return Latencies.of(paced.acknowledged), Latencies.of(paced.delivered)


def _run_latency(bench: Bench) -> list[Measurement]:
    clusters = _clusters(bench)
    seconds = bench.seconds(full=5.0, quick=1.0)
    measured = alternate(clusters, bench.rounds, lambda each: _paced(bench, each, seconds))

    def of(which: str, at: int, what: str, target: Target | None) -> Measurement:
        values = {
            name: [float(getattr(pair[at], which)) for pair in rounds]
            for name, rounds in measured.items()
        }
        what = f"{what}, acks=all at {RATE:.0f} requests/s"
        return Measurement("cluster-latency", "", what, "ms", False, values, target)

    return [
        of("p50", 0, "acknowledgement p50", Target(1.0, 0.5)),
        of("p99", 0, "acknowledgement p99", Target(1.0, 0.5)),
        of("p50", 1, "end to end p50", None),
        of("p99", 1, "end to end p99", None),
    ]


# Start and memory ----------------------------------------------------------------------------------


class _Life(NamedTuple):
    """One start of a cluster, and what it took."""

    start: float  # seconds
    first_record: float
    idle: float  # MB
    loaded: float
    coordination_idle: float
    coordination_loaded: float
    coordination_cpu: float  # seconds, from its start to the end of the load
    brokers_cpu: float


def _one_life(bench: Bench, cluster: Cluster, topic: str) -> _Life:
    began = time.perf_counter()
    start = cluster.start()
    _produce_once(cluster, topic, record_batch(Shape(1, 100)), began + FAILOVER_TIMEOUT)
    first_record = time.perf_counter() - began
    time.sleep(bench.seconds(full=4.0, quick=1.0))
    idle = cluster.resident_bytes() / 1e6
    pid = cluster.coordination_pid()
    apart = [pid] if pid is not None else []
    apart_idle = sum(process.resident_bytes(each) for each in apart) / 1e6
    with PeakMemory(*cluster.pids()) as memory, PeakMemory(*apart) as memory_apart:
        for case in CASES[:2]:
            for setting in case.settings:
                _load(bench, case, setting, bench.seconds(full=3.0, quick=0.5), cluster)
    life = _Life(
        start,
        first_record,
        idle,
        memory.peak / 1e6,
        apart_idle,
        memory_apart.peak / 1e6,
        sum(process.cpu_seconds(each) for each in apart),
        cluster.cpu_seconds(),
    )
    cluster.stop()
    return life


def _run_start(bench: Bench) -> list[Measurement]:
    clusters = bench.new_clusters("tmpfs")
    lives: dict[str, list[_Life]] = {}
    topic = bench.topic_name()
    for cluster in clusters:
        with cluster.blamed():
            cluster.start()
            cluster.create_topic(topic, 1)
            cluster.stop()
    # Each needs new processes, and memory hardly differs from one to the next.
    for _ in range(min(bench.rounds, 3)):
        for cluster in clusters:
            with cluster.blamed():
                lives.setdefault(cluster.name, []).append(_one_life(bench, cluster, topic))
    bench.drop_pairs()

    def of(field: str, row: str, what: str, unit: str, target: Target | None) -> Measurement:
        values = {
            name: [float(getattr(each, field)) for each in rounds] for name, rounds in lives.items()
        }
        return Measurement(row, "", what, unit, False, values, target)

    def apart(field: str, what: str, unit: str) -> Measurement:
        values = {OTTLA: [float(getattr(each, field)) for each in lives[OTTLA]]}
        return Measurement("cluster-memory", "ZooKeeper", what, unit, False, values)

    memory = Target(0.25, 0.1)
    return [
        of("start", "cluster-start", "start until all brokers know each other", "s", None),
        of("first_record", "cluster-start", "start to the first record, acks=all", "s", None),
        of("idle", "cluster-memory", "three brokers, resident, idle", "MB", memory),
        of("loaded", "cluster-memory", "three brokers, resident, under load", "MB", memory),
        of("brokers_cpu", "cluster-memory", "three brokers, processor time", "s", None),
        apart("coordination_idle", "resident, idle", "MB"),
        apart("coordination_loaded", "resident, under load", "MB"),
        apart("coordination_cpu", "processor time, start and load", "s"),
    ]


# Failover ------------------------------------------------------------------------------------------


def _produce_once(
    cluster: Cluster, topic: str, batch: bytes, deadline: float, but: int | None = None
) -> None:
    """Have one record acknowledged by all in sync, whoever leads; `but` is known to be dead."""
    while True:
        if time.perf_counter() > deadline:
            raise BenchError(f"no write to {topic} was acknowledged for {FAILOVER_TIMEOUT:.0f} s")
        known = cluster.metadata(topic)
        leader = known.partitions[0].leader if known is not None and known.partitions else -1
        address = cluster.addresses.get(leader)
        if address is not None and leader != but:
            with contextlib.suppress(OSError, BenchError), Client(address, 40.0) as client:
                if client.produce(topic, 0, batch, _ALL_ACKS) == 0:
                    return
        time.sleep(LOOK_AGAIN)


def _leader_and_followers(cluster: Cluster, topic: str) -> tuple[int, list[int]]:
    known = cluster.metadata(topic)
    if known is None or not known.partitions:
        raise BenchError(f"nobody knows {topic}")
    leader = known.partitions[0].leader
    return leader, [number for number in cluster.addresses if number != leader]


def _come_back(cluster: Cluster, topic: str) -> None:
    cluster.start()
    cluster.wait_in_sync(topic, 1)


def _failover(bench: Bench, cluster: Cluster, topic: str) -> float:
    """Seconds from kill -9 of the leader to the next acknowledged write."""
    batch = record_batch(Shape(1, 100))
    leader, _ = _leader_and_followers(cluster, topic)
    _write_for_a_while(bench, cluster, leader, topic, batch)
    began = time.perf_counter()
    killing = cluster.kill_soon(leader)
    _produce_once(cluster, topic, batch, began + FAILOVER_TIMEOUT, but=leader)
    took = time.perf_counter() - began
    killing.join()
    _come_back(cluster, topic)
    return took


def _stall(bench: Bench, cluster: Cluster, topic: str) -> float:
    """Seconds from kill -9 of a follower to the acknowledgement of a write that came after it."""
    batch = record_batch(Shape(1, 100))
    leader, followers = _leader_and_followers(cluster, topic)
    _write_for_a_while(bench, cluster, leader, topic, batch)
    began = time.perf_counter()
    cluster.kill(followers[0])
    _produce_once(cluster, topic, batch, began + FAILOVER_TIMEOUT)
    took = time.perf_counter() - began
    _come_back(cluster, topic)
    return took


def _write_for_a_while(
    bench: Bench, cluster: Cluster, leader: int, topic: str, batch: bytes
) -> None:
    until = time.perf_counter() + bench.seconds(full=1.0, quick=0.3)
    with Client(cluster.addresses[leader]) as client:
        while time.perf_counter() < until:
            if error := client.produce(topic, 0, batch, _ALL_ACKS):
                raise BenchError(f"a write before the kill was answered with error {error}")


def _run_failover(bench: Bench) -> list[Measurement]:
    clusters = _clusters(bench)
    topic = bench.topic_name()
    values: dict[str, dict[str, list[float]]] = {"leader": {}, "follower": {}}
    rounds = bench.rounds_wanted or (1 if bench.quick else 5)
    for cluster in clusters:
        with cluster.blamed():
            cluster.create_topic(topic, 1)
    for _ in range(rounds):
        for cluster in clusters:
            with cluster.blamed():
                took = _failover(bench, cluster, topic)
                values["leader"].setdefault(cluster.name, []).append(took)
                took = _stall(bench, cluster, topic)
                values["follower"].setdefault(cluster.name, []).append(took)
    for cluster in clusters:
        with contextlib.suppress(OSError, BenchError):
            cluster.forget(topic)
    worst = [
        f"{name}: the longest took {max(taken):.1f} s, the middle {statistics.median(taken):.2f}"
        for name, taken in values["leader"].items()
    ]
    return [
        Measurement(
            "cluster-failover",
            "",
            "kill -9 of the leader to the next acknowledged write",
            "s",
            False,
            values["leader"],
            Target(5.0, 1.0, of="figure"),
            worst,
        ),
        Measurement(
            "cluster-failover",
            "",
            "stall of acks=all after kill -9 of a follower",
            "s",
            False,
            values["follower"],
        ),
    ]


ROWS = (
    *(
        Row(case.name, f"{case.claim}, three brokers", functools.partial(_run_case, case), True)
        for case in CASES
    ),
    Row("cluster-latency", "acks=all at a fixed rate, three brokers", _run_latency, True),
    Row("cluster-failover", "kill -9 of a leader, and of a follower", _run_failover, True),
    Row("cluster-start", "start and memory of three brokers", _run_start, True),
)
