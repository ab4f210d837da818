"""The data folder as a whole: who may use it, what else may lie in it, and what happens when it or the
metadata in it is gone, damaged or not writable."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from durability_kit.disk import (
    SMALL_SEGMENTS,
    assert_sound,
    await_that,
    cut,
    digests,
    segments,
)
from durability_kit.wire import Refused, Wire, a_batch

from ottla.logfiles.names import SET_ASIDE_AT
from ottla.protocol.errors import ErrorCode
from ottla.testing import BrokerProcess

Connect = Callable[[BrokerProcess], Wire]
MakeBroker = Callable[..., BrokerProcess]

METADATA = "metadata.db"


def write(wire: Wire, topic: str, count: int, partition: int = 0, first: int = 0) -> list[bytes]:
    """Batches of one record; their values."""
    values = [b"%s %d" % (topic.encode(), number) for number in range(first, first + count)]
    for number, value in enumerate(values, first):
        assert wire.produce(topic, partition, [value]) == number
    return values


@pytest.fixture
def stopped(broker: BrokerProcess, connect: Connect) -> dict[str, list[bytes]]:
    """`broker` was stopped cleanly with two topics, `orders` in several segments; their values."""
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS)
    wire.create_topic("healthy")
    values = {"orders": write(wire, "orders", 8), "healthy": write(wire, "healthy", 3)}
    assert broker.stop() == 0
    assert len(segments(broker.data / "orders-0")) > 2
    return values


def assert_all_there(wire: Wire, values: dict[str, list[bytes]]) -> None:
    for topic, expected in values.items():
        assert wire.values(topic) == expected
        assert wire.values(topic) + write(wire, topic, 2, first=len(expected)) == wire.values(topic)


def refusal_to_start(broker: BrokerProcess) -> str:
    """What a broker that must not start says: one line, exit status 1."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ottla: ")
    return line


# One owner


def test_two_brokers_do_not_share_a_data_folder(
    make_broker: MakeBroker, connect: Connect, tmp_path: Path
) -> None:
    first = make_broker(log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}")
    wire = connect(first.start())
    wire.create_topic("orders", 2)
    values = write(wire, "orders", 3)
    before = digests(tmp_path / "one" / "orders-0")
    assert "another" in refusal_to_start(make_broker(tmp_path / "one"))
    # Also if only the second of its folders is taken.
    line = refusal_to_start(make_broker(log_dirs=f"{tmp_path / 'three'},{tmp_path / 'two'}"))
    assert str(tmp_path / "two") in line
    assert digests(tmp_path / "one" / "orders-0") == before
    assert wire.values("orders") == values
    assert write(wire, "orders", 3, first=3)
    # The lock goes with the process that held it, however that ends.
    first.kill()
    second = make_broker(log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}")
    wire = connect(second.start())
    assert wire.bounds("orders") == (0, 6)


def test_a_port_that_is_taken(make_broker: MakeBroker, tmp_path: Path) -> None:
    first = make_broker(tmp_path / "one").start()
    line = refusal_to_start(BrokerProcess(tmp_path / "two", port=first.port))
    assert str(first.port) in line
    assert first.running


# Strange files, and folders that are gone


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(100))


def test_strange_files_and_folders_are_left_alone(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]]
) -> None:
    data = broker.data
    strange = [
        "notes.txt", "lost+found/inode", "no topic/at all", "orders-0.bak/00000000000000000000.log",
        "orders-/x", "-0/x", "orders/x", "orders-x/x", os.fsdecode(b"\xff\xfe-0/x"),
        "orders-0/notes.txt", "orders-0/00000000000000000000.log.bak", "orders-0/x.index",
        "unknown-0/notes.txt", "unknown-7/00000000000000000000.log", "orders-1/nothing",
    ]  # fmt: skip
    for name in strange:
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_bytes(b"nothing of yours")
    for end in (broker.stop, broker.kill, broker.stop):
        wire = connect(broker.start())
        assert wire.topic_names() == {"orders", "healthy"}
        for topic, expected in stopped.items():
            assert wire.values(topic) == expected
        end()
        for name in strange:
            # What looks like a log in full is treated as one: its torn tail is cut after a crash.
            if not name.startswith("unknown-7"):
                assert (data / name).read_bytes() == b"nothing of yours", name
            assert (data / name).exists()


def test_a_folder_deleted_under_a_running_broker_costs_that_log_only(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]], tmp_path: Path
) -> None:
    wire = connect(broker.start())
    wire.alter_topic("orders", {"flush.messages": "1"})
    write(wire, "orders", 1, first=8)
    # In one step: the broker may be making files in it.
    (broker.data / "orders-0").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    # Sooner or later, when it has to make a new file or sync its folder, the log notices.
    await_that(
        lambda: (
            wire.produce_batch("orders", 0, a_batch([b"?"])).error_code
            == ErrorCode.KAFKA_STORAGE_ERROR
        ),
        "an error",
        every=0,
    )
    assert wire.fetch("orders", 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert_all_there(wire, {"healthy": stopped["healthy"]})
    assert broker.stop() == 0
    wire = connect(broker.start())
    assert wire.bounds("orders") == (0, 0)


# Metadata


@pytest.mark.parametrize(
    "damage",
    [garbage, lambda path: cut(path, 5_000)],
    ids=["garbage", "cut"],
)
def test_a_corrupt_metadata_store_is_told_and_nothing_is_touched(
    broker: BrokerProcess,
    connect: Connect,
    stopped: dict[str, list[bytes]],
    damage: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    store = broker.data / METADATA
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    damage(store)
    before = digests(broker.data)
    assert str(store) in refusal_to_start(broker)
    assert digests(broker.data) == before
    # With the file restored, all is as it was: the logs were shut down cleanly, and still count so.
    shutil.copy(copy, store)
    logged = len(broker.log_text())
    wire = connect(broker.start())
    assert "recovering" not in broker.log_text()[logged:]
    assert_all_there(wire, stopped)


def remove_store(broker: BrokerProcess) -> None:
    for path in broker.data.glob(f"{METADATA}*"):
        path.unlink()


def strays(data: Path, log: str) -> list[Path]:
    return sorted(data.glob(f"{log}.*-stray"))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_logs_whose_topic_is_not_known_any_more_are_kept(
    broker: BrokerProcess, connect: Connect, end: str
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 2, SMALL_SEGMENTS)
    for partition in (0, 1):
        write(wire, "orders", 8, partition)
    getattr(broker, end)()
    remove_store(broker)
    logs = ("orders-0", "orders-1")
    before = {log: digests(broker.data / log) for log in logs}

    wire = connect(broker.start())
    assert "unknown topic" in broker.log_text()
    assert wire.topic_names() == set()
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        wire.offset("orders", 0, -1)
    for log in logs:
        assert segments(broker.data / log)

    # A new topic of that name gets new logs; the old ones are set aside.
    wire.create_topic("orders", 2)
    for partition in (0, 1):
        assert wire.bounds("orders", partition) == (0, 0)
        assert write(wire, "orders", 1, partition)
    for end_again in (broker.stop, broker.kill):
        end_again()
        for log in logs:
            (stray,) = strays(broker.data, log)
            kept = digests(stray)
            records = [name for name in before[log] if name.endswith(".log")]
            assert {name: kept.get(name) for name in records} == {
                name: before[log][name] for name in records
            }
        wire = connect(broker.start())
        assert wire.values("orders", 0) == [b"orders 0"]


def test_a_store_that_is_put_back_finds_everything_in_its_place(
    broker: BrokerProcess, connect: Connect, stopped: dict[str, list[bytes]], tmp_path: Path
) -> None:
    """However often the broker was started without it: the folder says whose logs it has."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in broker.data.glob(f"{METADATA}*"):
        shutil.move(path, kept)
    for start in range(2):
        wire = connect(broker.start())
        wire.create_topic(f"new-{start}")
        assert "Put the right store back" in broker.log_text()
        broker.kill()
    remove_store(broker)
    for path in kept.iterdir():
        shutil.move(path, broker.data)
    wire = connect(broker.start())
    assert_all_there(wire, stopped)


def test_a_topic_that_an_old_copy_of_the_store_does_not_know_comes_back_with_the_new_one(
    broker: BrokerProcess, connect: Connect, tmp_path: Path
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders")
    values = {"orders": write(wire, "orders", 3)}
    assert broker.stop() == 0
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    shutil.copy(broker.data / METADATA, old)
    wire = connect(broker.start())
    wire.create_topic("younger")
    values["younger"] = write(wire, "younger", 5)
    assert broker.stop() == 0
    shutil.copy(broker.data / METADATA, new)

    remove_store(broker)
    shutil.copy(old, broker.data / METADATA)
    wire = connect(broker.start())
    assert wire.topic_names() == {"orders"}
    assert not (broker.data / "younger-0").exists()
    (stray,) = strays(broker.data, "younger-0")
    assert stray.name in broker.log_text()
    broker.kill()

    remove_store(broker)
    shutil.copy(new, broker.data / METADATA)
    wire = connect(broker.start())
    assert_all_there(wire, values)
    assert not strays(broker.data, "younger-0")
    assert broker.stop() == 0
    assert_sound(broker.data)


def test_strays_go_when_their_time_is_over(
    make_broker: MakeBroker, connect: Connect, tmp_path: Path
) -> None:
    """Only where that is asked for, and not before they were seen for so long."""
    broker = make_broker()
    wire = connect(broker.start())
    wire.create_topic("orders")
    write(wire, "orders", 1)
    assert broker.stop() == 0
    old = tmp_path / "old.db"
    shutil.copy(broker.data / METADATA, old)
    wire = connect(broker.start())
    wire.create_topic("younger")
    write(wire, "younger", 5)
    assert broker.stop() == 0
    remove_store(broker)
    shutil.copy(old, broker.data / METADATA)
    connect(broker.start())
    assert broker.stop() == 0
    (stray,) = strays(broker.data, "younger-0")
    note = stray / SET_ASIDE_AT
    assert not note.exists()

    patient = make_broker(log_stray_retention_ms="3600000", log_retention_check_interval_ms="20")
    connect(patient.start())
    await_that(note.exists, "the time at which it was seen is noted")
    seen_at = int(note.read_bytes())
    assert patient.stop() == 0
    connect(patient.start())
    assert patient.stop() == 0
    assert int(note.read_bytes()) == seen_at

    note.write_bytes(b"%d" % (seen_at - 3_600_000))
    wire = connect(patient.start())
    await_that(lambda: not list(broker.data.glob("younger-0*")), "the stray is removed")
    assert stray.name in patient.log_text()
    assert wire.values("orders") == [b"orders 0"]


def test_a_stray_that_is_taken_back_and_set_aside_again_begins_anew(
    make_broker: MakeBroker, connect: Connect, tmp_path: Path
) -> None:
    broker = make_broker(log_stray_retention_ms="3600000", log_retention_check_interval_ms="20")
    connect(broker.start())
    assert broker.stop() == 0
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    shutil.copy(broker.data / METADATA, old)
    wire = connect(broker.start())
    wire.create_topic("younger")
    values = {"younger": write(wire, "younger", 5)}
    assert broker.stop() == 0
    shutil.copy(broker.data / METADATA, new)
    remove_store(broker)
    shutil.copy(old, broker.data / METADATA)
    connect(broker.start())
    (stray,) = strays(broker.data, "younger-0")
    await_that((stray / SET_ASIDE_AT).exists, "the time at which it was seen is noted")
    assert broker.stop() == 0
    remove_store(broker)
    shutil.copy(new, broker.data / METADATA)
    wire = connect(broker.start())
    assert_all_there(wire, values)
    assert not (broker.data / "younger-0" / SET_ASIDE_AT).exists()


def test_retention_leaves_the_logs_of_unknown_topics_alone(
    make_broker: MakeBroker, connect: Connect
) -> None:
    broker = make_broker(log_retention_check_interval_ms="50", log_retention_bytes="1")
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS | {"retention.bytes": "-1"})
    write(wire, "orders", 8)
    assert broker.stop() == 0
    (broker.data / METADATA).unlink()
    before = [path.name for path in segments(broker.data / "orders-0")]
    wire = connect(broker.start())
    # A topic that is known loses segments: retention has been at work.
    wire.create_topic("witness", 1, SMALL_SEGMENTS)
    write(wire, "witness", 8)
    await_that(lambda: wire.bounds("witness")[0] > 0, "retention")
    assert [path.name for path in segments(broker.data / "orders-0")] == before


# Folders that cannot be written


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written in a folder that was mounted for this test, or (not as root) that is
    ours."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)
        return
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def test_a_read_only_folder_costs_its_own_logs_only(
    make_broker: MakeBroker,
    connect: Connect,
    small_disk: Callable[[str, int], Path],
    tmp_path: Path,
) -> None:
    disk = small_disk("disk", 10 << 20)
    broker = make_broker(log_dirs=f"{tmp_path / 'one'},{disk}")
    wire = connect(broker.start())
    wire.create_topic("orders", 2)
    placed = {
        path: result.topics[0].partitions[0].partition_index
        for path, result in wire.log_folders().items()
    }
    writable, locked = placed[str(tmp_path / "one")], placed[str(disk)]
    values = {index: write(wire, "orders", 3, index) for index in (0, 1)}
    assert broker.stop() == 0
    before = digests(disk)
    with read_only(disk):
        wire = connect(broker.start())
        assert wire.values("orders", writable) == values[writable]
        values[writable] += write(wire, "orders", 2, writable, first=3)
        refused = wire.produce_batch("orders", locked, a_batch([b"no"]))
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert wire.fetch("orders", locked, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert wire.log_folders()[str(disk)].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert f"data folder {disk} is offline" in broker.log_text()
        assert broker.stop() == 0
    assert digests(disk) == before
    wire = connect(broker.start())
    for index in (0, 1):
        assert wire.values("orders", index) == values[index]
    assert broker.stop() == 0
    for folder in (tmp_path / "one", disk):
        assert_sound(folder)


def test_new_topics_find_their_place_while_a_folder_is_offline(
    make_broker: MakeBroker,
    connect: Connect,
    small_disk: Callable[[str, int], Path],
    tmp_path: Path,
) -> None:
    disk = small_disk("disk", 10 << 20)
    broker = make_broker(log_dirs=f"{tmp_path / 'one'},{disk}")
    with read_only(disk):
        wire = connect(broker.start())
        wire.create_topic("new", 2)
        for index in (0, 1):
            assert write(wire, "new", 1, index)
        assert broker.stop() == 0
    wire = connect(broker.start())
    for index in (0, 1):
        assert wire.values("new", index) == [b"new 0"]


def test_a_broker_with_read_only_folders_alone_says_so(
    make_broker: MakeBroker, small_disk: Callable[[str, int], Path]
) -> None:
    disk = small_disk("disk", 10 << 20)
    broker = make_broker(disk)
    broker.start()
    assert broker.stop() == 0
    before = digests(disk)
    with read_only(disk):
        assert str(disk) in refusal_to_start(broker)
    assert digests(disk) == before
