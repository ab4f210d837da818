"""Produce at full speed: the shapes and depths of the table in docs/benchmarks.md, two settings each."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from bench.harness import process
from bench.harness.batch import Shape
from bench.harness.bench import Bench, Place, RollingTopic, Row, alternate
from bench.harness.broker import Broker
from bench.harness.load.produce import (
    PRODUCTION,
    SETTINGS,
    Load,
    Setting,
    produce_load,
    requests_for,
)
from bench.harness.results import Measurement, Target
from ottla.record.compression.codecs import Codec

# Producers as they are configured by default today, with a sync that all of them share.
ONE_PARTITION = PRODUCTION._replace(name="one partition", partitions=1)

# Most that one round may write; a round ends earlier rather than fill the memory.
MOST_IN_A_ROUND = 2 << 30


class Case(NamedTuple):
    """A shape of load."""

    name: str
    claim: str
    shape: Shape
    connections: int
    depth: int
    place: Place
    in_requests: bool  # requests/s are what counts, not MB/s
    target: Target | None
    settings: tuple[Setting, ...] = SETTINGS
    together: int = 1  # partitions in one request
    configs: Mapping[str, str] = {}  # of the topic


CASES = (
    Case(
        "produce-64x1kB-tmpfs",
        "64 × 1 kB, 4 connections × 5 in flight, tmpfs",
        Shape(64, 1000),
        4,
        5,
        "tmpfs",
        False,
        Target(1.5, 3.0),
    ),
    Case(
        "produce-100x100B",
        "100 × 100 B, 8 connections × 5 in flight",
        Shape(100, 100),
        8,
        5,
        "tmpfs",
        False,
        None,
    ),
    *(
        Case(
            f"produce-64x1kB-{codec.name.lower()}",
            f"64 × 1 kB of text in {codec.name.lower()}, 4 connections × 5 in flight, MB/s of records",
            Shape(64, 1000, codec),
            4,
            5,
            "tmpfs",
            False,
            Target(1.0, 1.5),
        )
        for codec in (Codec.LZ4, Codec.ZSTD)
    ),
    Case(
        "produce-single-8x5",
        "1 × 100 B, 8 connections × 5 in flight",
        Shape(1, 100),
        8,
        5,
        "tmpfs",
        True,
        Target(1.5, 3.0),
    ),
    Case(
        "produce-single-1x1",
        "1 × 100 B, one connection, one in flight",
        Shape(1, 100),
        1,
        1,
        "tmpfs",
        True,
        Target(1.0, 1.5),
    ),
    Case(
        "produce-single-64x1",
        "1 × 100 B, 64 connections, one in flight on each",
        Shape(1, 100),
        64,
        1,
        "tmpfs",
        True,
        None,
    ),
    Case(
        "produce-20-partitions",
        "10 × 100 B for each of 20 partitions in a request, 4 × 5 in flight",
        Shape(10, 100),
        4,
        5,
        "tmpfs",
        False,
        None,
        (PRODUCTION,),
        20,
    ),
    Case(
        "produce-synced",
        "1 × 100 B, 8 connections × 5 in flight, each synced before its answer (flush.messages=1)",
        Shape(1, 100),
        8,
        5,
        "disk",
        True,
        None,
        (ONE_PARTITION,),
        configs={"flush.messages": "1"},
    ),
    Case(
        "produce-64x1kB-disk",
        "64 × 1 kB, 4 connections × 5 in flight, disk",
        Shape(64, 1000),
        4,
        5,
        "disk",
        False,
        Target(1.0, 1.3),
    ),
)


def _one_setting(bench: Bench, case: Case, setting: Setting) -> Measurement:
    on_disk = case.place == "disk"
    seconds = bench.seconds(full=3.0, quick=0.8) if on_disk else bench.seconds(2.0, 0.4)
    brokers = bench.pair(case.place)
    topics = {
        broker.name: RollingTopic(bench, broker, setting.partitions, case.configs)
        for broker in brokers
    }
    fastest = dict.fromkeys(topics, 0.0)  # bytes/s, to know when a topic is going to overflow

    def measure(broker: Broker) -> Load:
        topic = topics[broker.name]
        name = topic.name(int(min(fastest[broker.name] * seconds, MOST_IN_A_ROUND)))
        supplies = requests_for(
            broker.address, name, case.shape, setting, case.connections, case.together
        )
        if on_disk:
            process.settle_disk()
        load = produce_load(
            broker.address,
            supplies,
            case.depth,
            seconds=seconds,
            max_bytes=MOST_IN_A_ROUND,
            broker_cpu=broker.cpu_seconds,
        )
        topic.wrote(load)
        fastest[broker.name] = max(fastest[broker.name], load.bytes / load.seconds)
        return load

    loads = alternate(brokers, bench.rounds, measure)
    for topic in topics.values():
        topic.drop()
    return Measurement(
        row=case.name,
        setting=setting.name,
        what=case.claim,
        unit="requests/s" if case.in_requests else "MB/s",
        higher_is_better=True,
        values={name: [_value(case, load) for load in rounds] for name, rounds in loads.items()},
        target=case.target,
        notes=[busy(name, rounds) for name, rounds in loads.items()],
    )


def _value(case: Case, load: Load) -> float:
    if case.in_requests:
        return load.requests_per_second
    if case.shape.codec:
        # What producers have to say, not what is left of it on the wire.
        per_request = case.shape.records * case.shape.size * case.together
        return load.requests_per_second * per_request / 1e6
    return load.megabytes_per_second


def busy(name: str, rounds: list[Load]) -> str:
    """Who was the limit: cores that the broker and the client kept busy, as medians."""
    broker = statistics.median(load.broker_cpu for load in rounds)
    client = statistics.median(load.client_cpu for load in rounds)
    cost = statistics.median(load.broker_cost for load in rounds)
    if not broker:  # its processes are not ours to look into
        return f"{name}: client {client:.2f} cores"
    return (
        f"{name}: broker {broker:.2f} cores, client {client:.2f},"
        f" {cost:.1f} µs of the broker's processor time for a request"
    )


def _run(case: Case, bench: Bench) -> list[Measurement]:
    return [_one_setting(bench, case, setting) for setting in case.settings]


def _rows(place: Place) -> tuple[Row, ...]:
    return tuple(
        Row(case.name, case.claim, functools.partial(_run, case))
        for case in CASES
        if case.place == place
    )


ROWS_ON_TMPFS = _rows("tmpfs")
ROWS_ON_DISK = _rows("disk")
