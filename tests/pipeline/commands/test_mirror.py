"""`ottla mirror`: topics of one cluster at another, and groups that move with them."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla import Admin, Consumer, Producer
from ottla.client.admin.configs import Resource
from ottla.client.positions import TopicPartition
from ottla.pipeline.mirror import offsets as mirror_offsets
from ottla.pipeline.mirror.job import MirrorError, Mirroring, MirrorOptions, mirroring
from ottla.pipeline.mirror.offsets import Boundaries, Boundary
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import write_transactions

FOREVER = {"retention.ms": "-1"}  # the records are of long ago
RECORD = ["partition", "timestamp", "key", "value", "headers"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("target") / "data", settings=settings) as process:
        yield process


def options(source: str, target: str, state: Path, *topics: str, **more: Any) -> MirrorOptions:
    servers = [{"bootstrap.servers": each} for each in (source, target)]
    return MirrorOptions(servers[0], servers[1], state, topics, **more)


def run(spark: SparkSession, chosen: MirrorOptions) -> None:
    with mirroring(spark, chosen, print) as query:
        query.awaitTermination()


def records(servers: str, topic: str) -> list[dict[str, Any]]:
    with Consumer(servers) as consumer:
        table = consumer.read(topic)
    ordered = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    found: list[dict[str, Any]] = ordered.select(RECORD).to_pylist()
    return found


def fill(servers: str, topic: str, numbers: range) -> None:
    with Producer(servers) as producer:
        for number in numbers:
            producer.send(
                topic,
                b"%d" % number,
                key=b"k%d" % number if number % 3 else None,
                partition=number % 2,
                timestamp=1_773_489_600_000 + number,
                headers=[("n", b"%d" % number)] if number % 2 else None,
            )


def read_some(servers: str, group: str, topic: str, count: int) -> list[bytes]:
    """So many records, as a member of the group, which then leaves and has committed them."""
    found: list[bytes] = []
    with Consumer(
        servers, group=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(topic)
        while len(found) < count:
            record = consumer.next_record(timeout=30)
            assert record is not None
            found.append(record.value or b"")
        consumer.commit()
    return found


class Crash(Exception):
    """The driver dies here."""


def test_a_group_that_moves_in_mid_stream(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    target: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches of 40; one of them runs twice. The group has read 100 of 200 records when it moves."""
    admin.create_topic(topic, 2, settings={**FOREVER, "max.message.bytes": "500000"})
    fill(broker.bootstrap, topic, range(100))
    write_transactions(broker.bootstrap, topic)  # what was aborted is not mirrored
    group = f"{topic}-readers"
    chosen = options(
        broker.bootstrap, target.bootstrap, tmp_path, topic,
        groups=re.compile(f"{topic}-.*"), batch_rows=40,
    )  # fmt: skip
    real = Mirroring._boundaries
    crashes = iter([False, False, True])

    def dying(self: Mirroring, sources: Any) -> Any:
        if sources and next(crashes, False):
            raise Crash
        return real(self, sources)

    with monkeypatch.context() as patch:
        patch.setattr(Mirroring, "_boundaries", dying)
        with pytest.raises(Exception, match="Crash"):
            run(spark, chosen)
    fill(broker.bootstrap, topic, range(100, 200))
    before = read_some(broker.bootstrap, group, topic, 100)
    run(spark, chosen)
    assert records(target.bootstrap, topic) == records(broker.bootstrap, topic)
    everything = {row["value"] for row in records(broker.bootstrap, topic)}
    with Admin(target.bootstrap) as there, Consumer(target.bootstrap) as consumer:
        committed = there.committed_offsets(group)
        at = {each.partition: offset.offset for each, offset in committed.items()}
        rest = consumer.read(topic, at).column("value").to_pylist()
        settings = there.describe_configs(Resource.topic(topic))[Resource.topic(topic)]
    assert sorted(at) == [0, 1]
    assert set(before) | set(rest) == everything
    assert len(everything) - len(before) <= len(rest) <= len(everything) - len(before) + 40
    assert settings["retention.ms"].value == "-1"
    assert settings["max.message.bytes"].value == "500000"
    # At the target the group goes its own way.
    read_some(target.bootstrap, group, topic, len(rest))
    run(spark, chosen)
    with Admin(target.bootstrap) as there:
        now = {each.partition: one.offset for each, one in there.committed_offsets(group).items()}
    assert all(now[each] >= at[each] for each in at)
    assert now != at


@pytest.mark.long
def test_a_mirror_of_a_pattern_goes_on_without_its_state(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    target: BrokerProcess,
    topic: str,
    tmp_path: Path,
) -> None:
    """New topics and partitions are mirrored; what the target knows makes up for a lost checkpoint."""
    pattern = f"{topic}\\..*"
    first, second = f"{topic}.a", f"{topic}.b"
    admin.create_topic(first, 2, settings=FOREVER)
    fill(broker.bootstrap, first, range(20))
    run(spark, options(broker.bootstrap, target.bootstrap, tmp_path / "1", pattern=pattern))
    admin.create_topic(second, 2, settings=FOREVER)
    fill(broker.bootstrap, second, range(10))
    admin.create_partitions(first, 3)
    with Producer(broker.bootstrap) as producer:
        producer.send(first, b"new", partition=2)
    run(spark, options(broker.bootstrap, target.bootstrap, tmp_path / "2", pattern=pattern))
    for each in (first, second):
        assert records(target.bootstrap, each) == records(broker.bootstrap, each)


def test_one_cluster_is_not_two(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(MirrorError, match="one cluster"):
        run(spark, options(broker.bootstrap, broker.bootstrap, tmp_path, topic))


@pytest.mark.long
@pytest.mark.interop
def test_from_apache_kafka(
    spark: SparkSession, apache: Any, target: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Kafka runs on meanwhile; one group has read everything when it moves, the other has not."""
    with Admin(apache.bootstrap) as admin:
        admin.create_topic(topic, 2, settings={**FOREVER, "segment.bytes": "2000000"})
    done, halfway = f"{topic}-done", f"{topic}-halfway"
    chosen = options(
        apache.bootstrap, target.bootstrap, tmp_path, topic,
        groups=re.compile(re.escape(topic) + "-.*"), batch_rows=20,
    )  # fmt: skip
    fill(apache.bootstrap, topic, range(50))
    run(spark, chosen)
    fill(apache.bootstrap, topic, range(50, 100))
    assert len(read_some(apache.bootstrap, done, topic, 100)) == 100
    before = read_some(apache.bootstrap, halfway, topic, 60)
    run(spark, chosen)
    assert records(target.bootstrap, topic) == records(apache.bootstrap, topic)
    with Admin(target.bootstrap) as admin, Consumer(target.bootstrap) as consumer:
        lag = admin.group_lag(done)
        committed = admin.committed_offsets(halfway)
        at = {each.partition: offset.offset for each, offset in committed.items()}
        rest = consumer.read(topic, at).column("value").to_pylist()
    assert sum(each.end - (each.committed or 0) for each in lag) <= 2  # marks of transactions
    assert set(before) | set(rest) == {b"%d" % number for number in range(100)}
    assert 40 <= len(rest) <= 40 + 2 * 20


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not within a minute: {what}"
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.interop
def test_from_an_apache_kafka_that_is_written_to(
    spark: SparkSession, apache: Any, target: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """The mirror follows while a producer writes and a group reads there; then the group moves."""
    with Admin(apache.bootstrap) as admin:
        admin.create_topic(topic, 2, settings=FOREVER)
    group = f"{topic}-readers"
    chosen = options(
        apache.bootstrap, target.bootstrap, tmp_path, topic,
        groups=re.compile(re.escape(topic) + "-.*"), follow=True, every="100 milliseconds",
        groups_every=0.5,
    )  # fmt: skip
    is_over = threading.Event()
    written = itertools.count()

    def write() -> None:
        while not is_over.is_set():
            number = next(written)
            fill(apache.bootstrap, topic, range(10 * number, 10 * number + 10))

    def count(servers: str) -> int:
        return len(records(servers, topic))

    def moved() -> dict[int, int]:
        with Admin(target.bootstrap) as admin:
            found = admin.committed_offsets(group)
        return {each.partition: offset.offset for each, offset in found.items()}

    with mirroring(spark, chosen, print) as query, ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            until("the topic there", lambda: topic in topics_of(target.bootstrap))
            until("records there", lambda: count(target.bootstrap) > 100)
            # While both go on.
            before = read_some(apache.bootstrap, group, topic, 60)
            seen = count(target.bootstrap)
            until("more of them", lambda: count(target.bootstrap) > seen)
        finally:
            is_over.set()
        writing.result()
        total = count(apache.bootstrap)
        until("all of them", lambda: count(target.bootstrap) == total)
        until("the group's offsets", lambda: len(moved()) == 2)
        assert query.exception() is None
    assert records(target.bootstrap, topic) == records(apache.bootstrap, topic)
    with Consumer(target.bootstrap) as consumer:
        rest = consumer.read(topic, moved()).column("value").to_pylist()
    assert set(before) | set(rest) == {b"%d" % number for number in range(total)}


def topics_of(servers: str) -> set[str]:
    with Admin(servers) as admin:
        return {each.name for each in admin.list_topics()}


# Topics


def test_a_topic_is_never_there_without_its_settings(
    broker: BrokerProcess,
    admin: Admin,
    target: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mirror dies as soon as the topic is made, and finds it when it is started again."""
    settings = {"cleanup.policy": "compact", "retention.ms": "-1"}
    admin.create_topic(topic, 2, settings=settings)
    chosen = options(broker.bootstrap, target.bootstrap, tmp_path, topic)
    boundaries = Boundaries("source", chosen.target)
    told: list[str] = []
    real = Mirroring._settings

    def stranger(self: Mirroring, name: str) -> dict[str, str]:
        return {"unheard.of": "1", **real(self, name)}

    def dying(*_: Any, **__: Any) -> None:
        raise Crash

    monkeypatch.setattr(Mirroring, "_settings", stranger)
    with Admin(target.bootstrap) as there:
        for _ in range(2):
            work = Mirroring(chosen, admin, there, boundaries, "mirror", told.append)
            with monkeypatch.context() as patch, contextlib.suppress(Crash):
                patch.setattr(there, "alter_configs", dying)
                work._make_topics({TopicPartition(topic, 0): 1})
        found = there.describe_configs(Resource.topic(topic))[Resource.topic(topic)]
        assert len(there.describe_topics(topic)[topic].partitions) == 2
    assert {name: found[name].value for name in settings} == settings
    assert len(told) == 1
    assert told[0].startswith(f"topic {topic} is mirrored without unheard.of=1: ")


# Boundaries


def test_boundaries(target: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is bounded, and what is read again is what was known."""
    monkeypatch.setattr(mirror_offsets, "KEPT", 3)
    monkeypatch.setattr(mirror_offsets, "TOPIC", f"{topic}-offsets")
    client = {"bootstrap.servers": target.bootstrap}
    place = TopicPartition("orders", 0)
    boundaries = Boundaries("source", client)
    boundaries.load()
    assert boundaries.translate(place, 10) is None
    for number in range(6):
        boundaries.add({place: Boundary(number * 10, number * 11)})
    boundaries.add({place: Boundary(50, 55)})  # is known
    for each in (boundaries, Boundaries("source", client)):
        if each is not boundaries:
            each.load()
        assert each.translate(place, 57) == 55
        assert each.translate(place, 50) == 55
        assert each.translate(place, 49) == 44
        assert each.translate(place, 29) == 0  # long ago: the first one is always kept
        assert each.reached(place) == 50
    strange = Boundaries("another", client)
    strange.load()
    assert place not in strange
