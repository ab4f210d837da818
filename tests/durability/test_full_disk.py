"""A full disk: appends to its logs are refused with KAFKA_STORAGE_ERROR, reads and other disks go on.
With more room, with or without a restart, every acknowledged record is there, none overwritten."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from durability_kit.disk import assert_sound, await_that, stored_recovery_point
from durability_kit.wire import LATEST, Refused, Wire, a_batch

from ottla import Admin
from ottla import Consumer as Reader
from ottla.protocol.errors import ErrorCode
from ottla.testing import BrokerDied, BrokerProcess

Connect = Callable[[BrokerProcess], Wire]
SmallDisk = Callable[[str, int], Path]

MEGABYTE = 1 << 20


def fill(
    wire: Wire, topic: str, partition: int, chance: random.Random, first: int = 0
) -> list[bytes]:
    """Produces until the broker refuses; the values that it took."""
    taken: list[bytes] = []
    for number in range(first, first + 100_000):
        value = b"%d " % number + chance.randbytes(chance.choice((10, 1_000, 100_000)))
        answer = wire.produce_batch(topic, partition, a_batch([value]))
        if answer.error_code:
            assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
            return taken
        assert answer.base_offset == number
        taken.append(value)
    raise AssertionError("the disk does not fill up")


def folder_of(wire: Wire, topic: str) -> dict[str, list[int]]:
    """Partitions by data folder."""
    return {
        path: sorted(
            partition.partition_index
            for found in folder.topics
            if found.name == topic
            for partition in found.partitions
        )
        for path, folder in wire.log_folders().items()
    }


def test_a_full_disk_costs_its_own_logs_only(
    make_broker: Callable[..., BrokerProcess],
    connect: Connect,
    small_disk: SmallDisk,
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    small = small_disk("small", 3 * MEGABYTE)
    roomy = tmp_path / "roomy"
    broker = make_broker(log_dirs=f"{roomy},{small}")
    wire = connect(broker.start())
    wire.create_topic("orders", 4, {"segment.bytes": str(MEGABYTE)})
    placed = folder_of(wire, "orders")
    on_small, on_roomy = placed[str(small)], placed[str(roomy)]
    assert (len(on_small), len(on_roomy)) == (2, 2)
    values = {
        index: [b"first %d" % index, b"second %d" % index] for index in (*on_small, *on_roomy)
    }
    for index, (first, second) in values.items():
        wire.produce("orders", index, [first])
        wire.produce("orders", index, [second])

    full = on_small[0]
    taken = fill(wire, "orders", full, chance, first=len(values[full]))
    values[full] += taken
    assert sum(map(len, taken)) > MEGABYTE

    # It is read from meanwhile, and a batch for which there is no room leaves no trace.
    for _ in range(20):
        again = wire.produce_batch("orders", full, a_batch([chance.randbytes(200_000)]))
        assert ErrorCode(again.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
    # The producer is told why, and so is who reads the broker's log: once.
    assert "No space left on device" in (again.error_message or "")
    (told,) = (line for line in broker.log_text().splitlines() if "appends are refused" in line)
    assert f"topic=orders partition={full} folder={small} No space left on device" in told
    assert wire.values("orders", full) == values[full]
    states = {state.partition_index: state for state in wire.metadata("orders").partitions}
    assert not states[full].offline_replicas
    assert "is offline" not in broker.log_text()
    # The others go on.
    for index in on_roomy:
        values[index].append(b"third %d" % index)
        wire.produce("orders", index, [values[index][-1]])
        assert wire.values("orders", index) == values[index]
        assert not states[index].offline_replicas
    assert wire.values("orders", on_small[1]) == values[on_small[1]]

    # On the same full disk: whatever it does with its logs, the others are served.
    broker.kill()
    wire = connect(broker.start())
    for index in on_roomy:
        assert wire.values("orders", index) == values[index]
    assert broker.stop() == 0

    # With more room everything that was acknowledged is there, and nothing else.
    small_disk("small", 30 * MEGABYTE)
    wire = connect(broker.start())
    for index, expected in values.items():
        assert wire.values("orders", index) == expected
        assert wire.produce("orders", index, [b"behind it"]) == len(expected)
    assert broker.stop() == 0
    assert_sound(small)
    assert_sound(roomy)


def test_deleted_records_are_erased_where_there_is_room_for_a_single_segment(
    make_broker: Callable[..., BrokerProcess], connect: Connect, small_disk: SmallDisk
) -> None:
    """Those of all segments, one after the other."""
    small = small_disk("small", 6 * MEGABYTE)
    broker = make_broker(small / "data")
    broker.settings |= {"log.cleaner.backoff.ms": "10"}
    wire = connect(broker.start())
    wire.create_topic("orders", 1, {"segment.bytes": str(MEGABYTE), "delete.record.erase.ms": "0"})
    chance = random.Random(7)
    values = [b"%d " % each + chance.randbytes(20_000) for each in range(200)]
    for each in values:
        wire.produce("orders", 0, [each])
    deleted = [10, 60, 110, 160]
    with Admin(broker.bootstrap) as admin:
        admin.delete_records_at({("orders", 0): deleted})
    folder = small / "data" / "orders-0"

    def is_erased() -> bool:
        stored = b""
        for path in folder.glob("*.log*"):
            with contextlib.suppress(FileNotFoundError):
                stored += path.read_bytes()
        return not any(values[each] in stored for each in deleted)

    await_that(is_erased, "the bytes are gone from disk")
    assert "erasing in orders-0 is put off" in broker.log_text()
    kept = [each for number, each in enumerate(values) if number not in deleted]
    with Reader(broker.bootstrap) as reader:
        assert reader.read("orders")["value"].to_pylist() == kept
    assert broker.stop() == 0


def test_a_full_disk_under_everything(
    make_broker: Callable[..., BrokerProcess], connect: Connect, small_disk: SmallDisk
) -> None:
    """Logs and metadata on one disk."""
    small = small_disk("small", 2 * MEGABYTE)
    broker = make_broker(small / "data")
    wire = connect(broker.start())
    wire.create_topic("orders")
    wire.create_topic("others")
    wire.produce("others", 0, [b"others"])
    values = fill(wire, "orders", 0, random.Random(2))
    # It still answers.
    assert wire.values("others") == [b"others"]
    assert wire.offset("orders", 0, LATEST) == len(values)
    assert wire.values("orders") == values
    broker.kill()
    assert_right_with_more_room(small, broker, connect, small_disk, {"orders", "others"}, values)


def test_everything_comes_back_by_itself_once_there_is_room(
    make_broker: Callable[..., BrokerProcess], connect: Connect, small_disk: SmallDisk
) -> None:
    """Produce, group commits and flushes, without a restart."""
    small = small_disk("small", 4 * MEGABYTE)
    broker = make_broker(small / "data")
    wire = connect(broker.start())
    flushed = {"flush.messages": "5", "segment.bytes": str(MEGABYTE)}
    wire.create_topic("orders", 1, flushed)
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})

    def commit(offset: int) -> None:
        group.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)

    commit(1)
    values = fill(wire, "orders", 0, random.Random(3))
    # To the last byte: commits fail, too.
    (small / "filler").write_bytes(b"")
    with contextlib.suppress(OSError), (small / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    refusals = 0
    for offset in range(2, 10_000):
        try:
            commit(offset)
        except KafkaException:
            refusals += 1
            break
    assert refusals
    assert wire.values("orders") == values
    refused = wire.produce_batch("orders", 0, a_batch([bytes(100_000)]))
    assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR

    small_disk("small", 30 * MEGABYTE)
    assert wire.produce("orders", 0, [b"there is room"]) == len(values)
    commit(12_345)
    (committed,) = group.committed([TopicPartition("orders", 0)], timeout=20)
    assert committed.offset == 12_345
    wire.create_topic("later")
    for number in range(5):
        wire.produce("orders", 0, [b"%d" % number])
    end = len(values)
    await_that(lambda: stored_recovery_point(small / "data", "orders") > end, "a checkpoint")
    group.close()
    assert "is offline" not in broker.log_text()
    assert broker.stop() == 0
    assert_sound(small / "data")
    wire = connect(broker.start())
    assert wire.values("orders")[:-6] == values


@pytest.mark.soak
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_new_topics_and_a_start_on_a_full_disk(
    make_broker: Callable[..., BrokerProcess], connect: Connect, small_disk: SmallDisk, end: str
) -> None:
    """The controller tries again for some time before it gives up, so this takes long."""
    small = small_disk("small", 2 * MEGABYTE)
    broker = make_broker(small / "data")
    wire = connect(broker.start())
    wire.create_topic("orders")
    wire.create_topic("others")
    wire.produce("others", 0, [b"others"])
    values = fill(wire, "orders", 0, random.Random(2))
    # New topics are refused, and not half made.
    with contextlib.suppress(Refused):
        for number in range(50):
            wire.create_topic(f"new-{number}")
    topics = wire.topic_names()
    assert len(topics) < 50
    getattr(broker, end)()
    try:
        broker.start()
    except BrokerDied:
        # It may refuse to start without any room; then it says why, in a sentence.
        assert broker.process is not None
        assert broker.process.returncode == 1
        assert "Traceback" not in broker.log_text()
    else:
        broker.kill()
    assert_right_with_more_room(small, broker, connect, small_disk, topics, values)


def assert_right_with_more_room(
    small: Path,
    broker: BrokerProcess,
    connect: Connect,
    small_disk: SmallDisk,
    topics: set[str | None],
    values: list[bytes],
) -> None:
    small_disk("small", 30 * MEGABYTE)
    wire = connect(broker.start())
    assert wire.topic_names() == topics
    assert wire.values("orders") == values
    assert wire.values("others") == [b"others"]
    assert wire.produce("orders", 0, [b"behind it"]) == len(values)
    wire.create_topic("later")
    assert broker.stop() == 0
    assert_sound(small / "data")
