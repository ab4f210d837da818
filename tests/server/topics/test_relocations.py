"""AlterReplicaLogDirs: replicas are moved between the data folders of a broker while clients go on."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_kit.network import skip_or_fail
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fill,
    now_ms,
    read_all,
)
from server_kit.wire import Wire

from ottla import Admin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.record.batch import Record, build_batch
from ottla.replication.throttle import Limit
from ottla.server.broker import Broker
from ottla.server.disk import relocations
from ottla.storage.relocation import Relocation


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def broker(folders: tuple[Path, Path]) -> Iterator[BrokerThread]:
    settings = {"log.dirs": ",".join(map(str, folders))}
    thread = BrokerThread(folders[0], settings=settings).start()
    yield thread
    thread.stop()


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with broker.wire() as wire:
        yield wire


def move(wire: Wire, topic: str, to: Path | str, *indexes: int, version: int = 2) -> list[int]:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=str(to), topics=[AlterReplicaLogDirTopic(name=topic, partitions=[*indexes])]
            )
        ]
    )
    answer = wire.call(request, AlterReplicaLogDirsResponse, version)
    return [each.error_code for each in answer.results[0].partitions]


def described(wire: Wire, topic: str) -> dict[str, list[tuple[int, bool]]]:
    """In which folders a topic's partitions are, and whether they are only on their way there."""
    answer = wire.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    return {
        Path(folder.log_dir).name: [
            (each.partition_index, each.is_future_key)
            for found in folder.topics
            if found.name == topic
            for each in found.partitions
        ]
        for folder in answer.results
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def place(folders: tuple[Path, Path], topic: Topic, index: int = 0) -> Path:
    # A look in the middle of a move may find none, or both.
    found: list[Path] = []

    def look() -> bool:
        found[:] = _places(folders, topic, index)
        return len(found) == 1

    until(look)
    return found[0]


def _places(folders: tuple[Path, Path], topic: Topic, index: int) -> list[Path]:
    return [each for each in folders if (each / f"{topic.name}-{index}").exists()]


def other(folders: tuple[Path, Path], folder: Path) -> Path:
    return folders[1] if folder == folders[0] else folders[0]


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_is_moved_under_traffic(
    wire: Wire, broker: BrokerThread, folders: tuple[Path, Path], version: int
) -> None:
    topic = create_topic(wire, 1, **{"segment.bytes": "1048576"})
    written = [b"%d" % number + b"x" * 20_000 for number in range(150)]
    fill(wire, topic, *map(batch_of, written))
    ends = threading.Event()
    later: list[bytes] = []

    def write_on() -> None:
        with broker.wire() as own:
            while not ends.is_set():
                value = b"later %d" % len(later)
                fill(own, topic, batch_of(value))
                later.append(value)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for _ in range(2):
            before = place(folders, topic)
            target = other(folders, before)
            assert move(wire, topic.name, target, 0, version=version) == [0]
            until(lambda to=target: place(folders, topic) == to)  # type: ignore[misc]
            count = len(later)
            until(lambda known=count: len(later) > known)  # type: ignore[misc]
    finally:
        ends.set()
        writer.join()
    assert read_all(wire, topic) == written + later
    assert end_offset(wire, topic) == len(written) + len(later)
    assert described(wire, topic.name)[place(folders, topic).name] == [(0, False)]
    left = [each.name for folder in folders for each in folder.glob("*-future")]
    assert left == []


def test_it_is_there_after_a_restart(broker: BrokerThread, folders: tuple[Path, Path]) -> None:
    with broker.wire() as wire:
        topic = create_topic(wire)
        fill(wire, topic, batch_of(b"one"), batch_of(b"two"))
        target = other(folders, place(folders, topic))
        assert move(wire, topic.name, target, 0) == [0]
        until(lambda: place(folders, topic) == target)
    broker.stop()
    broker.start()
    with broker.wire() as wire:
        assert read_all(wire, topic) == [b"one", b"two"]
        assert place(folders, topic) == target
        fill(wire, topic, batch_of(b"three"))
        assert end_offset(wire, topic) == 3


def test_moves_go_on_after_a_restart(
    broker: BrokerThread, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(relocations.Relocations, "_copy", never)
    with broker.wire() as wire:
        topics = [create_topic(wire) for _ in range(3)]
        for topic in topics:
            fill(wire, topic, batch_of(b"one"), batch_of(b"two"))
        targets = [other(folders, place(folders, topic)) for topic in topics]
        for topic, target in zip(topics, targets, strict=True):
            assert move(wire, topic.name, target, 0) == [0]
        # One was not meant.
        assert move(wire, topics[2].name, place(folders, topics[2]), 0) == [0]
        assert (0, True) in described(wire, topics[0].name)[targets[0].name]
    broker.stop()
    assert [place(folders, topic) for topic in topics[:2]] != targets[:2]
    # What is no longer there does not matter.
    for folder in folders:
        with (folder / relocations.TO_COME).open("a") as file:
            file.write(f"nobody-0 {'00' * 16}\n{topics[2].name}-0 {'00' * 16}\n?\n")
    monkeypatch.undo()
    broker.start()
    for topic, target in zip(topics[:2], targets, strict=False):
        until(lambda topic=topic, target=target: place(folders, topic) == target)  # type: ignore[misc]
    with broker.wire() as wire:
        for topic in topics:
            assert read_all(wire, topic) == [b"one", b"two"]
            where = described(wire, topic.name)
            assert [each for folder in where.values() for each in folder] == [(0, False)]
    assert place(folders, topics[2]) != targets[2]
    until(lambda: not any((folder / relocations.TO_COME).exists() for folder in folders))


def test_a_large_copy_is_synced_on_its_way(
    wire: Wire, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lags: list[int] = []
    sync = Relocation.sync

    def watched(relocation: Relocation, now_ms: int) -> None:
        lags.append(relocation.lag)
        sync(relocation, now_ms)

    monkeypatch.setattr(Relocation, "sync", watched)
    monkeypatch.setattr(relocations, "_SYNC_BYTES", 1 << 20)
    topic = create_topic(wire)
    written = [b"%d" % number + b"x" * 50_000 for number in range(60)]
    fill(wire, topic, *map(batch_of, written))
    target = other(folders, place(folders, topic))
    assert move(wire, topic.name, target, 0) == [0]
    until(lambda: place(folders, topic) == target)
    assert lags[0] > 0
    assert lags[-1] == 0
    assert read_all(wire, topic) == written


def test_a_log_is_not_compacted_while_it_is_copied(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has an old record of a key by then: with the tombstone gone, it would be back."""
    copy = relocations.Relocations._copy
    begun, may_go_on = threading.Event(), threading.Event()

    async def one_at_first(self: relocations.Relocations, relocation: Relocation) -> bool:
        if relocation.copy.log_end_offset:
            begun.set()
            await asyncio.to_thread(may_go_on.wait, 30)
        return await copy(self, relocation)

    async def compact(inside: Broker) -> None:
        await inside.compactor._begin_passes(1)
        while inside.compactor._passes:
            await asyncio.wait(inside.compactor._passes.values())

    monkeypatch.setattr(relocations, "_PORTION", 1)
    monkeypatch.setattr(relocations.Relocations, "_copy", one_at_first)
    settings = {
        "log.dirs": ",".join(map(str, folders)),
        "log.cleaner.enable": "false",
        "log.flush.offset.checkpoint.interval.ms": "50",
    }
    broker = BrokerThread(folders[0], settings=settings).start()
    try:
        with broker.wire() as wire:
            compacted = {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.0",
                "delete.retention.ms": "0",
            }
            topic = create_topic(wire, **compacted)
            log = broker.run(lambda inside: inside.partitions.by_name[topic.name][0].log)

            def put(key: bytes, value: bytes | None) -> None:
                fill(wire, topic, build_batch([Record(0, now_ms(), key, value)]))
                broker.run(lambda _: log.roll(now_ms()))
                broker.until(lambda inside: inside.logs.synced_end(log) == log.log_end_offset)

            put(b"a", b"old")
            target = other(folders, place(folders, topic))
            put(b"a", None)
            put(b"b", b"kept")
            assert move(wire, topic.name, target, 0) == [0]
            assert begun.wait(30)
            for number in range(2):  # one finds the tombstone old enough, the next one drops it
                broker.run_async(compact(broker.broker))
                put(b"c", b"%d" % number)
            may_go_on.set()
            until(lambda: place(folders, topic) == target)
            assert read_all(wire, topic) == [b"old", None, b"kept", b"0", b"1"]
            log = broker.run(lambda inside: inside.partitions.by_name[topic.name][0].log)
            for number in range(2):
                put(b"d", b"%d" % number)
                broker.run_async(compact(broker.broker))
            assert read_all(wire, topic) == [b"kept", b"1", b"1"]
    finally:
        may_go_on.set()
        broker.stop()


def test_a_copy_is_held_to_a_rate(
    wire: Wire, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    wait_ms = Limit.wait_ms

    def watched(limit: Limit, now_ms: int) -> int:
        waits.append(wait_ms(limit, now_ms))
        return waits[-1]

    monkeypatch.setattr(Limit, "wait_ms", watched)
    topic = create_topic(wire)
    written = [b"%d" % number + b"x" * 50_000 for number in range(60)]
    fill(wire, topic, *map(batch_of, written))
    target = other(folders, place(folders, topic))
    set_rate(wire, "1")
    assert move(wire, topic.name, target, 0) == [0]
    until(lambda: any(waits) or place(folders, topic) == target)
    # A portion went, and with it all that may go in days.
    assert described(wire, topic.name)[target.name] == [(0, True)]
    assert place(folders, topic) != target
    set_rate(wire, None)
    until(lambda: place(folders, topic) == target)
    assert read_all(wire, topic) == written


def set_rate(wire: Wire, rate: str | None) -> None:
    """What the broker copies in a second, as `kafka-reassign-partitions.sh` limits it."""
    change = AlterableConfig(
        name="replica.alter.log.dirs.io.max.bytes.per.second",
        config_operation=0 if rate is not None else 1,
        value=rate,
    )
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = wire.call(request, IncrementalAlterConfigsResponse, 1).responses
    assert answer.error_code == 0


@pytest.mark.complains
def test_a_damaged_log_stays_and_others_are_moved(wire: Wire, folders: tuple[Path, Path]) -> None:
    damaged = create_topic(wire)
    fill(wire, damaged, batch_of(b"x" * 100))
    here = place(folders, damaged)
    (segment,) = (here / f"{damaged.name}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.seek(100)
        file.write(b"y")
    sound = create_topic(wire)
    fill(wire, sound, batch_of(b"one"))
    assert move(wire, damaged.name, other(folders, here), 0) == [0]
    target = other(folders, place(folders, sound))
    assert move(wire, sound.name, target, 0) == [0]
    until(lambda: place(folders, sound) == target)
    assert place(folders, damaged) == here
    until(lambda: described(wire, damaged.name)[here.name] == [(0, False)])
    assert described(wire, damaged.name)[other(folders, here).name] == []


def test_what_cannot_be(wire: Wire, folders: tuple[Path, Path]) -> None:
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"one"))
    here = place(folders, topic)
    assert move(wire, topic.name, "/nowhere", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert move(wire, topic.name, "a", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert move(wire, topic.name, here, 0, 1) == [0, ErrorCode.REPLICA_NOT_AVAILABLE]
    assert move(wire, "nobody", here, 0) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert read_all(wire, topic) == [b"one"]
    assert place(folders, topic) == here


def test_a_replica_that_is_yet_to_come_is_made_where_it_is_wanted(
    wire: Wire, folders: tuple[Path, Path]
) -> None:
    for wanted in (*folders, *folders):
        name = f"to-come-in-{wanted.name}-{time.monotonic_ns()}"
        assert move(wire, name, wanted, 0, 1) == [ErrorCode.REPLICA_NOT_AVAILABLE] * 2
        topic = create_topic(wire, 2, name)
        fill(wire, topic, batch_of(b"one"))
        fill(wire, topic, batch_of(b"one"), index=1)
        assert [place(folders, topic, index) for index in (0, 1)] == [wanted, wanted]


def test_a_failed_folder_is_listed_as_such(
    wire: Wire, broker: BrokerThread, folders: tuple[Path, Path]
) -> None:
    """By the client as by Kafka's: whoever wants to move what is left must not fail by it."""
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"one"))
    here = place(folders, topic)
    failed = other(folders, here)

    def declare(reason: str | None) -> None:
        (folder,) = [each for each in broker.broker.logs.folders if each.path == str(failed)]
        folder.offline = reason

    broker.run(lambda _: declare("the test says so"))
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        found = {each.path: each for each in admin.describe_log_folders()}
    broker.run(lambda _: declare(None))
    assert (found[str(failed)].is_offline, found[str(failed)].usable_bytes) == (True, None)
    assert [each.partition.topic for each in found[str(here)].replicas] == [topic.name]
    assert not found[str(here)].is_offline


@pytest.fixture
def small(folders: tuple[Path, Path]) -> Iterator[Path]:
    """The second folder is a file system of its own, with room for 8 MiB."""
    folder = folders[1]
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={8 << 20}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        skip_or_fail(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    # Lazily: the broker ends after this.
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.complains
def test_a_folder_without_room_takes_nothing_and_stays_in_use(
    small: Path, wire: Wire, folders: tuple[Path, Path]
) -> None:
    large_one = f"large-{time.monotonic_ns()}"
    assert move(wire, large_one, folders[0], 0) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    large = create_topic(wire, 1, large_one, **{"segment.bytes": "2097152"})
    written = [b"%d" % number + b"x" * 200_000 for number in range(60)]
    fill(wire, large, *map(batch_of, written))
    assert place(folders, large) == folders[0]
    for _ in range(2):
        assert move(wire, large.name, small, 0) == [0]
        until(lambda: not any(described(wire, large.name)[small.name]))
        until(lambda: not any(small.glob("*-future")) and not any(small.glob("*-delete")))
        assert place(folders, large) == folders[0]
        fill(wire, large, batch_of(b"more"))
        written.append(b"more")
    assert read_all(wire, large) == written
    # What fits goes there, and the logs that are there are written to.
    little = create_topic(wire)
    fill(wire, little, batch_of(b"one"))
    assert move(wire, little.name, small, 0) == [0]
    until(lambda: place(folders, little) == small)
    fill(wire, little, batch_of(b"two"))
    assert read_all(wire, little) == [b"one", b"two"]
