"""Damage found at start or while running: what can be made anew is, what was flushed and is not there
any more takes that one log offline, and nothing is deleted or overwritten on the way."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from durability_kit.disk import (
    SMALL_SEGMENTS,
    assert_sound,
    await_that,
    batch_positions,
    cut,
    digests,
    segments,
    stored_recovery_point,
)
from durability_kit.wire import LATEST, Refused, Wire, a_batch

from ottla.protocol.errors import ErrorCode
from ottla.storage.checkpoints import (
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from ottla.testing import BrokerProcess

Connect = Callable[[BrokerProcess], Wire]

FIRST_TIMESTAMP = 1_700_000_000_000
# Records of a fixed time must not be old.
FOREVER = {"retention.ms": "-1"}


def write(wire: Wire, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Batches of one record, a second of record time apart; their values."""
    values = []
    for number in range(first, first + count):
        value = b"%s %d" % (topic.encode(), number)
        batch = a_batch([value], FIRST_TIMESTAMP + 1_000 * number)
        answer = wire.produce_batch(topic, 0, batch)
        assert (answer.error_code, answer.base_offset) == (0, number)
        values.append(value)
    return values


@pytest.fixture
def stopped(broker: BrokerProcess, connect: Connect) -> dict[str, list[bytes]]:
    """`broker` was stopped cleanly with two topics, `orders` in several segments; their values."""
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS | FOREVER)
    wire.create_topic("healthy", 1, FOREVER)
    values = {"orders": write(wire, "orders", 20), "healthy": write(wire, "healthy", 5)}
    assert broker.stop() == 0
    assert len(segments(broker.data / "orders-0")) >= 4
    return values


def assert_all_there(wire: Wire, values: dict[str, list[bytes]]) -> None:
    for topic, expected in values.items():
        assert wire.values(topic) == expected


def assert_goes_on(wire: Wire, topic: str, values: list[bytes]) -> None:
    """New records are taken, and found behind the old ones."""
    new = write(wire, topic, 3, first=len(values))
    assert wire.values(topic) == values + new


def assert_offline(wire: Wire, topic: str) -> None:
    """Every way to a log says KAFKA_STORAGE_ERROR."""
    answer = wire.produce_batch(topic, 0, a_batch([b"no"]))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert wire.fetch(topic, 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
        wire.offset(topic, 0, LATEST)
    (partition,) = wire.metadata(topic).partitions
    assert partition.offline_replicas == partition.replica_nodes


# Indexes and other files that follow from the log


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size or 24))


def odd_size(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\1\2\3")


def descending(path: Path) -> None:
    """Entries that may be, in the wrong order."""
    size = 8 if path.suffix == ".index" else 12
    data = path.read_bytes()
    entries = [data[at : at + size] for at in range(0, len(data), size)]
    path.write_bytes(b"".join(reversed(entries)))


def pointing_into_batches(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if path.suffix == ".index":
        for at in range(7, len(data), 8):
            data[at] ^= 0x0F
    path.write_bytes(data)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", [garbage, odd_size, descending, pointing_into_batches, Path.unlink, lambda p: cut(p, 0)],
    ids=["garbage", "odd size", "descending", "into batches", "missing", "empty"],
)  # fmt: skip
def test_a_damaged_index_is_made_anew(
    broker: BrokerProcess,
    connect: Connect,
    stopped: dict[str, list[bytes]],
    damage: Callable[[Path], None],
    suffix: str,
) -> None:
    for path in (broker.data / "orders-0").glob(f"*{suffix}"):
        damage(path)
    wire = connect(broker.start())
    # Each record by its offset and by its time, the oldest last: no lookup helps the next one.
    for number in reversed(range(20)):
        (first, *_) = wire.batches("orders", 0, number)
        assert first.base_offset == number
        assert wire.offset("orders", 0, FIRST_TIMESTAMP + 1_000 * number) == number
    assert_all_there(wire, stopped)
    assert_goes_on(wire, "orders", stopped["orders"])
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.mark.parametrize("damage", [garbage, Path.unlink, lambda path: cut(path, -1)])
@pytest.mark.parametrize(
    "name", ["leader-epoch-checkpoint", "partition.metadata", "*.snapshot"]
)
def test_small_files_of_a_log_are_made_anew(
    broker: BrokerProcess, connect: Connect, name: str, damage: Callable[[Path], None]
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS | FOREVER)
    producer_id, epoch = wire.producer_id()

    def batch(number: int) -> bytes:
        return a_batch(
            [b"%d" % number], producer_id=producer_id, producer_epoch=epoch, base_sequence=number
        )

    for number in range(10):
        assert wire.produce_batch("orders", 0, batch(number)).error_code == 0
    topic_id = wire.metadata("orders").topic_id
    assert broker.stop() == 0
    damaged = list((broker.data / "orders-0").glob(name))
    assert damaged
    for path in damaged:
        damage(path)

    wire = connect(broker.start())
    assert wire.metadata("orders").topic_id == topic_id
    # The producer is still known: a batch that comes again, one that is too early, and the next.
    again = wire.produce_batch("orders", 0, batch(9))
    assert (again.error_code, again.base_offset) == (0, 9)
    early = wire.produce_batch("orders", 0, batch(11))
    assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = wire.produce_batch("orders", 0, batch(10))
    assert (following.error_code, following.base_offset) == (0, 10)
    assert wire.values("orders") == [b"%d" % number for number in range(11)]
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.mark.parametrize("damage", [garbage, Path.unlink, lambda path: cut(path, -1)])
def test_lost_checkpoints_cost_a_recovery_and_nothing_else(
    broker: BrokerProcess,
    connect: Connect,
    stopped: dict[str, list[bytes]],
    damage: Callable[[Path], None],
) -> None:
    for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT):
        damage(broker.data / name)
    (broker.data / LOG_START_CHECKPOINT).write_bytes(b"no checkpoint")
    wire = connect(broker.start())
    assert_all_there(wire, stopped)
    assert_goes_on(wire, "orders", stopped["orders"])
    assert broker.stop() == 0
    assert_sound(broker.data)
    assert stored_recovery_point(broker.data, "orders") == 23


# The tail


@pytest.mark.parametrize("torn", [1, 30, 65])
def test_a_torn_tail_is_cut_at_the_last_whole_batch(
    broker: BrokerProcess, connect: Connect, torn: int
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, FOREVER)
    values = write(wire, "orders", 10)
    broker.kill()
    (segment,) = segments(broker.data / "orders-0")
    cut(segment, -torn)
    wire = connect(broker.start())
    assert wire.values("orders") == values[:9]
    assert_goes_on(wire, "orders", values[:9])
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.mark.parametrize("tail", [bytes(5_000), random.Random(1).randbytes(5_000)])
def test_what_a_crash_left_behind_the_last_batch_is_cut(
    broker: BrokerProcess, connect: Connect, tail: bytes
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, FOREVER)
    values = write(wire, "orders", 10)
    broker.kill()
    (segment,) = segments(broker.data / "orders-0")
    with segment.open("ab") as file:
        file.write(tail)
    wire = connect(broker.start())
    assert wire.values("orders") == values
    assert_goes_on(wire, "orders", values)
    assert broker.stop() == 0
    assert_sound(broker.data)


# Records that were flushed and are gone


def test_a_log_that_lost_flushed_records_is_offline_and_left_as_it_is(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    last = segments(broker.data / "orders-0")[-1]
    copy = last.with_suffix(".copy")
    shutil.copy(last, copy)
    cut(last, -10)
    before = digests(broker.data / "orders-0")
    wire = connect(broker.start())
    assert_offline(wire, "orders")
    assert_all_there(wire, {"healthy": stopped["healthy"]})
    assert_goes_on(wire, "healthy", stopped["healthy"])
    assert "orders-0 is offline" in broker.log_text()
    assert broker.stop() == 0
    after = digests(broker.data / "orders-0")
    assert {name: after.get(name) for name in before if name.endswith(".log")} == {
        name: digest for name, digest in before.items() if name.endswith(".log")
    }

    # Restored from a copy it is as before.
    copy.replace(last)
    wire = connect(broker.start())
    assert_all_there(wire, {"orders": stopped["orders"]})
    assert_goes_on(wire, "orders", stopped["orders"])


@pytest.mark.parametrize("ended", ["stop", "kill"])
def test_a_damaged_sealed_segment_takes_its_log_offline_when_it_is_read(
    broker: BrokerProcess, connect: Connect, ended: str
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, {"index.interval.bytes": "100000", "flush.messages": "1"})
    wire.create_topic("healthy", 1, FOREVER)
    for number in range(10):
        wire.produce("orders", 0, [b"%d" % number])
    healthy = write(wire, "healthy", 3)
    await_that(
        lambda: stored_recovery_point(broker.data, "orders") == 10, "the stored recovery point"
    )
    getattr(broker, ended)()
    (segment,) = segments(broker.data / "orders-0")
    third = batch_positions(segment)[3]
    with segment.open("r+b") as file:
        # No header any more, where readers have to step over the batch.
        file.seek(third)
        file.write(b"\xff" * 61)
    before = digests(broker.data / "orders-0")
    wire = connect(broker.start())
    # Batches before the damage may be served or not; those behind it are not, and nobody is told
    # that they do not exist.
    assert wire.fetch("orders", 0, 5).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert_offline(wire, "orders")
    assert_all_there(wire, {"healthy": healthy})
    assert_goes_on(wire, "healthy", healthy)
    assert broker.stop() == 0
    assert digests(broker.data / "orders-0")[segment.name] == before[segment.name]


# What does not belong there


def test_strange_files_and_folders_are_left_alone(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    data = broker.data
    strange = [
        "notes.txt", "lost+found/inode", "no topic/at all", "orders-0.bak/00000000000000000000.log",
        "orders-/x", "-0/x", "orders/x", "orders-x/x", os.fsdecode(b"\xff\xfe-0/x"),
        "orders-0/notes.txt", "orders-0/00000000000000000000.log.bak", "orders-0/x.index",
        "unknown-0/00000000000000000000.log", "unknown-7/notes.txt", "orders-1/nothing",
    ]  # fmt: skip
    for name in strange:
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_bytes(b"nothing of yours")
    for end in (broker.stop, broker.kill):
        wire = connect(broker.start())
        assert_all_there(wire, stopped)
        assert wire.topic_names() == {"orders", "healthy"}
        end()
        for name in strange:
            if not name.startswith("unknown-0"):
                assert (data / name).read_bytes() == b"nothing of yours", name
    wire = connect(broker.start())
    assert_goes_on(wire, "orders", stopped["orders"])


@pytest.mark.parametrize("name", ["backup-01", "orders-00"])
def test_a_folder_named_almost_like_a_log_is_left_alone(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]], name: str
) -> None:
    (broker.data / name).mkdir()
    (broker.data / name / "notes.txt").write_bytes(b"nothing of yours")
    wire = connect(broker.start())
    assert_all_there(wire, stopped)
    broker.kill()
    wire = connect(broker.start())
    assert_all_there(wire, stopped)
    assert broker.stop() == 0
    log = len(broker.log_text())
    broker.start()
    assert "recovering" not in broker.log_text()[log:]
    assert (broker.data / name / "notes.txt").read_bytes() == b"nothing of yours"


def test_a_file_in_the_way_of_a_new_log_costs_that_log_only(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    (broker.data / "fresh-0").write_bytes(b"in the way")
    wire = connect(broker.start())
    try:
        wire.create_topic("fresh")
    except Refused:
        pass
    answer = wire.produce_batch("fresh", 0, a_batch([b"no"]))
    assert answer.error_code != 0
    assert_all_there(wire, stopped)
    assert_goes_on(wire, "orders", stopped["orders"])
    assert (broker.data / "fresh-0").read_bytes() == b"in the way"


# A folder that is gone


def test_a_partition_whose_folder_was_deleted_begins_anew(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    shutil.rmtree(broker.data / "orders-0")
    wire = connect(broker.start())
    assert wire.bounds("orders") == (0, 0)
    assert_all_there(wire, {"healthy": stopped["healthy"]})
    assert_goes_on(wire, "orders", [])
    broker.kill()
    wire = connect(broker.start())
    assert wire.bounds("orders") == (0, 3)


def test_a_folder_deleted_under_a_running_broker_costs_that_log_only(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    wire = connect(broker.start())
    wire.alter_topic("orders", {"flush.messages": "1"})
    write(wire, "orders", 1, first=20)
    shutil.rmtree(broker.data / "orders-0")
    # Sooner or later, when it has to make a new file or sync its folder, the log notices.
    for _ in range(200):
        if wire.produce_batch("orders", 0, a_batch([b"?"])).error_code:
            break
    assert_offline(wire, "orders")
    assert_all_there(wire, {"healthy": stopped["healthy"]})
    assert_goes_on(wire, "healthy", stopped["healthy"])
    assert broker.stop() == 0
    wire = connect(broker.start())
    assert wire.bounds("orders") == (0, 0)
