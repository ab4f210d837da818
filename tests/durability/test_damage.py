"""Damage to one log's files, found at start: what can be made anew is, what was flushed and is not
there any more takes that log offline, and nothing is deleted or overwritten on the way.

One broker serves all cases, a topic for each: it is ended, the files are damaged, it is started, and
each topic is looked at. The tests then tell what was found in theirs.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from durability_kit.disk import (
    SMALL_SEGMENTS,
    await_that,
    batch_positions,
    cut,
    digests,
    problems_in,
    segments,
    stored_recovery_point,
)
from durability_kit.failing import FailingFiles, InnerBroker
from durability_kit.wire import Wire, a_batch

from ottla.protocol.errors import ErrorCode

COUNT = 12
FIRST_TIMESTAMP = 1_700_000_000_000
# Records of a fixed time must not be old.
FOREVER = {"retention.ms": "-1"}
SEGMENTED = SMALL_SEGMENTS | FOREVER
ONE_SEGMENT = FOREVER | {"index.interval.bytes": "100000"}
FLUSHED = ONE_SEGMENT | {"flush.messages": "1"}
SEGMENTED_AND_FLUSHED = SEGMENTED | {"flush.messages": "1"}


class Topic(NamedTuple):
    """A topic of `COUNT` batches of one record, written by one producer."""

    name: str
    topic_id: bytes
    producer_id: int
    epoch: int

    def batch(self, number: int) -> bytes:
        """The record with that number: a second of record time after the one before it."""
        return a_batch(
            [self.value(number)],
            FIRST_TIMESTAMP + 1_000 * number,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=number,
        )

    def value(self, number: int) -> bytes:
        return b"%s %d" % (self.name.encode(), number)

    def values(self, count: int) -> list[bytes]:
        return [self.value(number) for number in range(count)]

    def write(self, wire: Wire, first: int, count: int) -> None:
        for number in range(first, first + count):
            answer = wire.produce_batch(self.name, 0, self.batch(number))
            found = ErrorCode(answer.error_code), answer.base_offset
            assert found == (ErrorCode.NONE, number), answer.error_message


class Case(NamedTuple):
    config: Mapping[str, str]
    damage: Callable[[Path], None]  # to the folder of the log
    probe: Callable[[Wire, Topic], None]
    # The files are right again afterwards. (Garbage that might be index entries is noticed only where
    # it leads a reader astray: no checksum protects an index, in Kafka's format.)
    mended: bool = True


class Finding(NamedTuple):
    """What became of one topic."""

    error: BaseException | None  # of its probe
    problems: list[str]  # in its files, after the broker was stopped


# Damage


def each(pattern: str, damage: Callable[[Path], object]) -> Callable[[Path], None]:
    """Damages all files of that name."""

    def apply(folder: Path) -> None:
        paths = list(folder.glob(pattern))
        assert paths
        for path in paths:
            damage(path)

    return apply


def last_segment(damage: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda folder: (damage(segments(folder)[-1]), None)[1]


def middle_segment(folder: Path) -> None:
    """Removes a segment with all its files."""
    found = segments(folder)
    base = found[len(found) // 2].stem
    for path in folder.glob(f"{base}.*"):
        path.unlink()


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size or 24))


def append(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(path.read_bytes() + data), None)[1]


def reverse_entries(path: Path) -> None:
    """Entries that may be, in the wrong order."""
    size = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    entries = [data[at : at + size] for at in range(0, len(data), size)]
    path.write_bytes(b"".join(reversed(entries)))


def point_into_batches(path: Path) -> None:
    """Offset entries in order, with positions at which no batch begins."""
    data = bytearray(path.read_bytes())
    for at in range(7, len(data), 8):
        data[at] ^= 0x0F
    path.write_bytes(data)


def break_fourth_header(path: Path) -> None:
    """No header any more, where readers have to step over a batch that was flushed."""
    position = batch_positions(path)[3]
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff" * 61)


# What is expected


def all_there(wire: Wire, topic: Topic, count: int = COUNT) -> None:
    """Every record by its offset and by its time, the newest first: no lookup helps the next one.
    And the log goes on where it ended, for its producer too."""
    for number in reversed(range(count)):
        found = wire.batches(topic.name, 0, number)
        assert found[0].base_offset == number
        assert wire.offset(topic.name, 0, FIRST_TIMESTAMP + 1_000 * number) == number
    assert wire.values(topic.name) == topic.values(count)
    assert wire.metadata(topic.name).topic_id == topic.topic_id
    again = wire.produce_batch(topic.name, 0, topic.batch(count - 1))
    assert (ErrorCode(again.error_code), again.base_offset) == (ErrorCode.NONE, count - 1)
    early = wire.produce_batch(topic.name, 0, topic.batch(count + 1))
    assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    topic.write(wire, count, 3)
    assert wire.values(topic.name) == topic.values(count + 3)


def all_but_the_last(wire: Wire, topic: Topic) -> None:
    all_there(wire, topic, COUNT - 1)


def begun_anew(wire: Wire, topic: Topic) -> None:
    assert wire.bounds(topic.name) == (0, 0)
    assert wire.produce(topic.name, 0, [b"new"]) == 0
    assert wire.values(topic.name) == [b"new"]


def offline(wire: Wire, topic: Topic) -> None:
    """Every way to the log says KAFKA_STORAGE_ERROR."""
    # A read after the damage; those before it may be served or not.
    assert wire.fetch(topic.name, 0, 5).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    answer = wire.produce_batch(topic.name, 0, topic.batch(COUNT))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert wire.fetch(topic.name, 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (partition,) = wire.metadata(topic.name).partitions
    assert partition.offline_replicas == partition.replica_nodes


INDEX_DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "garbage": garbage,
    "odd-size": append(b"\1\2\3"),
    "reversed": reverse_entries,
    "missing": Path.unlink,
    "empty": lambda path: cut(path, 0),
}
FILE_DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "garbage": garbage,
    "missing": Path.unlink,
    "cut": lambda path: cut(path, -1),
}
AFTER_A_STOP: dict[str, Case] = {
    "healthy": Case(SEGMENTED, lambda folder: None, all_there),
    **{
        f"{suffix}-{name}": Case(
            SEGMENTED, each(f"*.{suffix}", damage), all_there, mended=damage is not garbage
        )
        for suffix in ("index", "timeindex")
        for name, damage in INDEX_DAMAGE.items()
    },
    "index-into-batches": Case(SEGMENTED, each("*.index", point_into_batches), all_there),
    **{
        f"{file.strip('*.')}-{name}": Case(SEGMENTED, each(file, damage), all_there)
        for file in ("leader-epoch-checkpoint", "partition.metadata", "*.snapshot")
        for name, damage in FILE_DAMAGE.items()
    },
    "flushed-records-cut": Case(SEGMENTED, last_segment(lambda path: cut(path, -10)), offline),
    "flushed-records-gone": Case(SEGMENTED, last_segment(lambda path: cut(path, 0)), offline),
    "middle-segment-gone": Case(SEGMENTED, middle_segment, offline),
    "sealed-segment-broken": Case(ONE_SEGMENT, last_segment(break_fourth_header), offline),
    "folder-gone": Case(SEGMENTED, shutil.rmtree, begun_anew),
}
AFTER_A_CRASH: dict[str, Case] = {
    "healthy": Case(SEGMENTED, lambda folder: None, all_there),
    **{
        f"tail-torn-{torn}": Case(
            ONE_SEGMENT, last_segment(lambda path, torn=torn: cut(path, -torn)), all_but_the_last
        )
        for torn in (1, 20, 70)
    },
    "tail-of-zeros": Case(ONE_SEGMENT, last_segment(append(bytes(5_000))), all_there),
    "tail-of-garbage": Case(
        ONE_SEGMENT, last_segment(append(random.Random(1).randbytes(5_000))), all_there
    ),
    "index-garbage": Case(SEGMENTED, each("*.index", garbage), all_there, mended=False),
    "timeindex-garbage": Case(SEGMENTED, each("*.timeindex", garbage), all_there, mended=False),
    "flushed-records-cut": Case(FLUSHED, last_segment(lambda path: cut(path, -10)), offline),
    "flushed-records-broken": Case(FLUSHED, last_segment(break_fourth_header), offline),
    "middle-segment-gone": Case(SEGMENTED_AND_FLUSHED, middle_segment, offline),
    "folder-gone": Case(SEGMENTED, shutil.rmtree, begun_anew),
}


def survey(folder: Path, cases: Mapping[str, Case], *, crash: bool) -> dict[str, Finding]:
    data = folder / "data"
    topics = {}
    files = FailingFiles()
    with (
        pytest.MonkeyPatch.context() as patch,
        InnerBroker([data], files, patch) as broker,
        Wire(broker.bootstrap) as wire,
    ):
        producer_id, epoch = wire.producer_id()
        for name, case in cases.items():
            wire.create_topic(name, 1, case.config)
            topic_id = wire.metadata(name).topic_id
            topics[name] = Topic(name, topic_id, producer_id, epoch)
            topics[name].write(wire, 0, COUNT)
        if crash:
            for name, case in cases.items():
                if case.config.get("flush.messages"):
                    await_that(
                        lambda name=name: stored_recovery_point(data, name) == COUNT,
                        "the stored recovery point",
                    )
            # What a process that is killed now would leave behind.
            shutil.copytree(data, folder / "left")
    if crash:
        data = folder / "left"
    logs = {name: data / f"{name}-0" for name in cases}
    for name, case in cases.items():
        case.damage(logs[name])
    before = {name: digests(log) for name, log in logs.items()}
    errors: dict[str, BaseException] = {}
    with pytest.MonkeyPatch.context() as patch, InnerBroker([data], files, patch) as broker:
        for name, case in cases.items():
            with Wire(broker.bootstrap) as wire:
                try:
                    case.probe(wire, topics[name])
                except (AssertionError, OSError) as error:
                    errors[name] = error
    problems = problems_in(data)
    for name, case in cases.items():
        if case.probe is offline and name not in errors:
            try:
                untouched(before[name], digests(logs[name]))
            except AssertionError as error:
                errors[name] = error
    return {name: Finding(errors.get(name), problems.get(f"{name}-0", [])) for name in cases}


def untouched(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """No record of an offline log was cut off, overwritten or removed."""
    logs = {name: digest for name, digest in before.items() if name.endswith(".log")}
    assert {name: after.get(name) for name in logs} == logs


@pytest.fixture(scope="module")
def after_a_stop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return survey(tmp_path_factory.mktemp("stop"), AFTER_A_STOP, crash=False)


@pytest.fixture(scope="module")
def after_a_crash(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return survey(tmp_path_factory.mktemp("crash"), AFTER_A_CRASH, crash=True)


def judge(finding: Finding, case: Case) -> None:
    if finding.error is not None:
        raise finding.error
    if case.mended and case.probe is not offline:
        assert not finding.problems


@pytest.mark.xdist_group("damage after a stop")
@pytest.mark.parametrize("name", AFTER_A_STOP)
def test_damage_after_a_stop(after_a_stop: dict[str, Finding], name: str) -> None:
    judge(after_a_stop[name], AFTER_A_STOP[name])


@pytest.mark.xdist_group("damage after a crash")
@pytest.mark.parametrize("name", AFTER_A_CRASH)
def test_damage_after_a_crash(after_a_crash: dict[str, Finding], name: str) -> None:
    judge(after_a_crash[name], AFTER_A_CRASH[name])
