"""Producers while partitions are moved: what a move that is held to a rate costs those who write.

Four brokers, one topic of twelve partitions with three replicas each and some hundred megabytes in it.
Producers (idempotent, acks=all, single records to all partitions) are first measured at full speed,
then paced at a quarter of that: until their latency is steady, for a while without a move, and for as
long during one. The move takes
the third replica of every partition to the one broker that has none, so each broker sends to others and
copies from others, and no leader changes: what is measured is the copying. It is held back as
`kafka-reassign-partitions --throttle` does it, by a rate of each broker and the replicas for which that
holds. It lasts longer than the measurement; the rest of it then goes without a limit. The next round
moves all of it back. Both sides get the same requests, bytes and limits, from the same client, and each
a quarter of what it can do.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.cluster.three_brokers import CASES, SPREAD, spread_supplies
from bench.harness.bench import Bench, Row, alternate
from bench.harness.clusters import Cluster
from bench.harness.errors import BenchError
from bench.harness.load.paced import Latencies, paced_producers
from bench.harness.load.produce import produce_load
from bench.harness.results import Measurement, Target
from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource
from ottla.client.admin.topics import NewTopic
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition

ROW = "move-throttled"
BROKERS = 4
PARTITIONS = SPREAD.partitions
THROTTLE = 6_000_000  # bytes/s of each broker, as leader and as follower
# How many seconds longer than the measurement a move would take. Kafka's rate is a mean over the last
# ten or eleven: in the first moments of a move it lets the bytes of as many through.
SPARE = 12.0
SHARE = 0.25  # of saturation
END_TIMEOUT = 180.0
# Latency is steady when the p99 of so many parts of the paced load, one after the other, are within a
# factor of each other. What full speed leaves behind lasts longer on one side than on the other.
STEADY_PARTS = 3
STEADY_FACTOR = 1.5
STEADY_TIMEOUT = 90.0

_FILLING, _SINGLE = CASES[0], CASES[1]
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_SENDING = "leader.replication.throttled.replicas"
_COPYING = "follower.replication.throttled.replicas"


class Round(NamedTuple):
    """Producers without a move and during one."""

    before: Latencies
    during: Latencies
    copied: int  # bytes, while the producers were measured
    seconds: float
    rested: float  # seconds until latency was steady; all of STEADY_TIMEOUT: it was not


class MovedTopic:
    """A cluster's topic, which is moved to and fro."""

    def __init__(self, bench: Bench, cluster: Cluster, seconds: float) -> None:
        self.name = cluster.name
        self.blamed = cluster.blamed
        self._cluster = cluster
        self._seconds = seconds
        self._part = bench.seconds(full=3.0, quick=1.0)
        self._topic = bench.topic_name()
        self._brokers = sorted(cluster.addresses)
        self._data = dict(zip(self._brokers, cluster.data_folders(), strict=True))
        self._is_home = True
        self._create()
        self.bytes = self._fill(int((seconds + SPARE) * THROTTLE * BROKERS / PARTITIONS))
        self.saturation = self._saturation(bench.seconds(full=4.0, quick=1.0))

    def _create(self) -> None:
        homes = {each: self._replicas(each, home=True) for each in range(PARTITIONS)}
        with self._admin() as admin:
            admin.create_topics(NewTopic(self._topic, assignments=homes))
        self._cluster.wait_led(self._topic, PARTITIONS)

    def _fill(self, partition_bytes: int) -> int:
        """The same number of bytes into each partition; how many in all."""
        addresses, supplies = spread_supplies(self._cluster, self._topic, _FILLING, SPREAD)
        written = 0
        for address, supply in zip(addresses, supplies, strict=True):
            count = -(-partition_bytes // supply.size) * (PARTITIONS // BROKERS)
            written += produce_load(address, [supply], _FILLING.depth, requests=count).bytes
        return written

    def _saturation(self, seconds: float) -> float:
        """Requests a second at full speed, after many that do not count: a JVM needs its time."""
        addresses, supplies = spread_supplies(self._cluster, self._topic, _SINGLE, SPREAD)
        produce_load(addresses, supplies, _SINGLE.depth, seconds=3 * seconds)
        load = produce_load(addresses, supplies, _SINGLE.depth, seconds=seconds)
        return load.requests_per_second

    # A round

    def measure(self) -> Round:
        # What full speed or the end of another move has left behind is not to count as before.
        rested = self._rest_until_steady()
        before = self._paced(self._seconds)
        with self._admin() as admin:
            self._limit(admin)
            self._begin(admin)
        at_first = self._copied()
        began = time.perf_counter()
        during = self._paced(self._seconds)
        took = time.perf_counter() - began
        copied = self._copied() - at_first
        with self._admin() as admin:
            if not admin.list_reassignments():
                raise BenchError("the move was over before the measurement was")
            self._lift(admin)
            self._wait_for_end(admin)
        self._is_home = not self._is_home
        self._cluster.wait_in_sync(self._topic, PARTITIONS)
        self._wait_for_deletion()
        return Round(before, during, copied, took, rested)

    def _rest_until_steady(self) -> float:
        """Producers at their pace until latency does not change any more; for how many seconds."""
        began = time.perf_counter()
        parts: list[float] = []
        while (rested := time.perf_counter() - began) < STEADY_TIMEOUT:
            last = parts[-STEADY_PARTS:]
            if len(last) == STEADY_PARTS and max(last) <= STEADY_FACTOR * min(last):
                return rested
            parts.append(self._paced(self._part).p99)
        return STEADY_TIMEOUT

    def _paced(self, seconds: float) -> Latencies:
        addresses, supplies = spread_supplies(self._cluster, self._topic, _SINGLE, SPREAD)
        rate = SHARE * self.saturation
        taken = paced_producers(addresses, supplies, rate=rate, seconds=seconds)
        return Latencies.of(taken)

    # The move

    def _replicas(self, partition: int, *, home: bool) -> list[int]:
        """The first two stay where they are; the third is on one of the two other brokers."""
        steps = (0, 1, 2) if home else (0, 1, 3)
        return [self._brokers[(partition + step) % BROKERS] for step in steps]

    def _limit(self, admin: Admin) -> None:
        for broker in self._brokers:
            rates = dict.fromkeys(_RATES, str(THROTTLE))
            admin.alter_configs(Resource.broker(broker), assign=rates)
        sending, copying = [], []
        for each in range(PARTITIONS):
            sending += [f"{each}:{one}" for one in self._replicas(each, home=self._is_home)]
            copying.append(f"{each}:{self._replicas(each, home=not self._is_home)[-1]}")
        named = {_SENDING: ",".join(sending), _COPYING: ",".join(copying)}
        admin.alter_configs(Resource.topic(self._topic), assign=named)

    def _begin(self, admin: Admin) -> None:
        admin.alter_reassignments(
            {
                TopicPartition(self._topic, each): self._replicas(each, home=not self._is_home)
                for each in range(PARTITIONS)
            }
        )

    def _lift(self, admin: Admin) -> None:
        admin.alter_configs(Resource.topic(self._topic), unset=(_SENDING, _COPYING))
        for broker in self._brokers:
            admin.alter_configs(Resource.broker(broker), unset=_RATES)

    def _wait_for_end(self, admin: Admin) -> None:
        deadline = time.monotonic() + END_TIMEOUT
        while admin.list_reassignments():
            if time.monotonic() > deadline:
                raise BenchError("the move does not come to its end")
            time.sleep(0.1)

    def _where_it_is_not(self) -> Iterator[tuple[Path, str]]:
        """For each partition the broker that is to get it, or has given it away: its data and the
        partition's folder in there."""
        for each in range(PARTITIONS):
            broker = self._replicas(each, home=not self._is_home)[-1]
            yield self._data[broker], f"{self._topic}-{each}"

    def _copied(self) -> int:
        """Bytes that the new replicas have by now."""
        return sum(
            path.stat().st_size
            for data, folder in self._where_it_is_not()
            for path in data.glob(f"{folder}/*.log")
        )

    def _wait_for_deletion(self) -> None:
        """Until the old replicas have gone: nothing of it may fall into the next round."""
        deadline = time.monotonic() + END_TIMEOUT
        while any(
            (data / folder).exists() or any(data.glob(f"{folder}.*"))
            for data, folder in self._where_it_is_not()
        ):
            if time.monotonic() > deadline:
                raise BenchError("a broker does not delete what was moved away")
            time.sleep(0.1)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Admin]:
        """A client for a moment; none of it works beside the producers."""
        servers = ",".join(f"{host}:{port}" for host, port in self._cluster.addresses.values())
        try:
            with Admin(servers) as admin:
                yield admin
        except OttlaError as error:
            raise BenchError(str(error)) from error


def _note(topic: MovedTopic, rounds: list[Round]) -> str:
    def median(which: str, when: str) -> float:
        return statistics.median(float(getattr(getattr(each, when), which)) for each in rounds)

    rate = statistics.median(each.copied / each.seconds for each in rounds)
    return (
        f"{topic.name}: {SHARE * topic.saturation:,.0f} of {topic.saturation:,.0f} requests/s; "
        f"p50 {median('p50', 'before'):.2f} → {median('p50', 'during'):.2f} ms, "
        f"p99 {median('p99', 'before'):.2f} → {median('p99', 'during'):.2f} ms, "
        f"p99.9 {median('p999', 'before'):.2f} → {median('p999', 'during'):.2f} ms, "
        f"worst during a move {max(each.during.worst for each in rounds):.1f} ms; "
        f"{rate / 1e6:.1f} MB/s copied of {topic.bytes / 1e6:.0f} MB; {_rests(rounds)}"
    )


def _rests(rounds: list[Round]) -> str:
    seconds = ", ".join(f"{each.rested:.0f}" for each in rounds)
    restless = sum(each.rested >= STEADY_TIMEOUT for each in rounds)
    ends = f", {restless} of them not steady" if restless else ""
    return f"measured after {seconds} s at that rate, when its p99 was steady{ends}"


def _run(bench: Bench) -> list[Measurement]:
    seconds = bench.seconds(full=10.0, quick=2.0)
    clusters = bench.new_clusters("tmpfs", BROKERS)
    topics = []
    for cluster in clusters:
        with cluster.blamed():
            cluster.start()
            topics.append(MovedTopic(bench, cluster, seconds))
    measured = alternate(topics, bench.rounds, MovedTopic.measure)
    bench.drop_pairs()
    notes = [_note(topic, measured[topic.name]) for topic in topics]

    def of(which: str, target: Target | None, notes: list[str]) -> Measurement:
        factors = {
            name: [
                float(getattr(each.during, which) / getattr(each.before, which)) for each in rounds
            ]
            for name, rounds in measured.items()
        }
        what = f"{which} of producers at {SHARE:.0%} of saturation during a move, against before"
        return Measurement(ROW, "", what, "×", False, factors, target, notes)

    return [of("p50", None, []), of("p99", Target(2.0, 1.0, "figure"), notes)]


ROWS = (Row(ROW, "the p99 of producers while partitions are moved, at most twice", _run, True),)
