"""Many small producers whose records must be on disk before they are acknowledged.

64 connections send one record of 100 B at a time, acks=all, and wait for the answer. Ottla's topic has
`visible.when.flushed`, Kafka's `flush.messages=1`: with either, the answer comes after the sync. Ottla
shares a sync among all that came during the one before.
"""

from __future__ import annotations

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker, OttlaBroker
from bench.harness.produce_load import DEFAULTS, PlainRequests, produce_load
from bench.harness.results import Measurement

SHAPE = Shape(1, 100)
CONNECTIONS = (1, 64)
SETTING = DEFAULTS._replace(name="acks=all", acks=-1)


def _topic(bench: Bench, broker: Broker) -> str:
    own = isinstance(broker, OttlaBroker)
    configs = {"visible.when.flushed": "true"} if own else {"flush.messages": "1"}
    return bench.new_topic(broker, 1, configs)


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
        found.append(
            Measurement(
                "flushed",
                f"{connections} × 1 in flight",
                "single records of 100 B, acknowledged after the sync",
                "requests/s",
                True,
                values,
            )
        )
    for broker in brokers:
        broker.forget(topics[broker.name])
    return found


ROWS = (Row("flushed", "small producers share a sync", _run),)
