"""Many small producers whose records must be on disk before they are acknowledged.

64 connections send one record of 100 B at a time, acks=all, and wait for the answer; then a single one
does. Ottla's topic has `visible.when.flushed`, Kafka's `flush.messages=1`: with either, the answer comes
after the sync. Ottla shares a sync among all that came during the one before.

*cluster-flushed* is the same with three brokers and three replicas. There a record is acknowledged once
every in-sync replica has synced it. All three brokers have their data on the same disk, so that one
record waits for two syncs, of the leader and of a follower, and the third competes with them.
"""

from __future__ import annotations

import functools

from bench.cluster.three_brokers import ONE_PARTITION
from bench.harness.batch import Shape
from bench.harness.bench import Bench, Measured, Row, alternate
from bench.harness.broker import Broker
from bench.harness.clusters import Cluster
from bench.harness.load.produce import DEFAULTS, PlainRequests, produce_load
from bench.harness.results import OTTLA, Measurement

SHAPE = Shape(1, 100)
CONNECTIONS = (1, 64)
SETTING = DEFAULTS._replace(name="acks=all", acks=-1)


def _configs(measured: Measured) -> dict[str, str]:
    own = measured.name == OTTLA
    return {"visible.when.flushed": "true"} if own else {"flush.messages": "1"}


def _topic(bench: Bench, broker: Broker) -> str:
    return bench.new_topic(broker, 1, _configs(broker))


def _run(bench: Bench) -> list[Measurement]:
    seconds = bench.seconds(full=3.0, quick=0.5)
    brokers = bench.pair("disk")
    topics = {broker.name: _topic(bench, broker) for broker in brokers}
    found = []
    for connections in CONNECTIONS:
        values: dict[str, list[float]] = {broker.name: [] for broker in brokers}
        for _ in range(bench.rounds):
            for broker in brokers:
                supply = PlainRequests(topics[broker.name], SHAPE, SETTING)
                with broker.blamed():
                    load = produce_load(broker.address, [supply] * connections, 1, seconds=seconds)
                values[broker.name].append(load.requests_per_second)
        found.append(_measurement("flushed", connections, values))
    for broker in brokers:
        broker.forget(topics[broker.name])
    return found


def _load(topics: dict[str, str], connections: int, seconds: float, cluster: Cluster) -> float:
    topic = topics[cluster.name]
    supply = PlainRequests(topic, SHAPE, ONE_PARTITION)
    addresses = [cluster.leaders(topic)[0]] * connections
    return produce_load(addresses, [supply] * connections, 1, seconds=seconds).requests_per_second


def _run_cluster(bench: Bench) -> list[Measurement]:
    seconds = bench.seconds(full=3.0, quick=1.0)
    clusters = bench.new_clusters("disk")
    topics: dict[str, str] = {}
    for cluster in clusters:
        with cluster.blamed():
            cluster.start()
            topics[cluster.name] = bench.topic_name()
            cluster.create_topic(topics[cluster.name], 1, _configs(cluster))
            bench.say(f"warming up {cluster.name}'s cluster, {2 * seconds:.0f} s")
            _load(topics, CONNECTIONS[-1], 2 * seconds, cluster)
    found = []
    for connections in CONNECTIONS:
        measure = functools.partial(_load, topics, connections, seconds)
        values = alternate(clusters, bench.rounds, measure)
        found.append(_measurement("cluster-flushed", connections, values))
    bench.drop_pairs()
    return found


def _measurement(row: str, connections: int, values: dict[str, list[float]]) -> Measurement:
    return Measurement(
        row,
        f"{connections} × 1 in flight",
        "single records of 100 B, acknowledged after the sync",
        "requests/s",
        True,
        values,
    )


ROWS = (Row("flushed", "small producers share a sync", _run),)
CLUSTER_ROWS = (
    Row("cluster-flushed", "small producers share the syncs of three brokers", _run_cluster),
)
