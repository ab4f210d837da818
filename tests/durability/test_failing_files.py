"""A disk that fails: the log under which it does is offline for good, and says so to clients; the
others go on. A sync that failed is never tried again as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from durability_kit.disk import assert_sound, await_that, stored_recovery_point
from durability_kit.failing import FailingFiles, InnerBroker
from durability_kit.wire import EARLIEST, LATEST, Refused, Wire, a_batch

from ottla.logfiles.names import CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT
from ottla.protocol.errors import ErrorCode

FLUSHED = {"flush.messages": "1"}


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


def values(topic: str, count: int, first: int = 0) -> list[bytes]:
    return [b"%s %d" % (topic.encode(), number) for number in range(first, first + count)]


def write(wire: Wire, topic: str, count: int, first: int = 0) -> list[bytes]:
    written = values(topic, count, first)
    for number, value in enumerate(written, first):
        assert wire.produce(topic, 0, [value]) == number
    return written


def is_offline(wire: Wire, topic: str) -> bool:
    (partition,) = wire.metadata(topic).partitions
    return bool(partition.offline_replicas)


def assert_offline(wire: Wire, topic: str) -> None:
    """Every way to the log says KAFKA_STORAGE_ERROR."""
    answer = wire.produce_batch(topic, 0, a_batch([b"no"]))
    assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
    assert wire.fetch(topic, 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for timestamp in (EARLIEST, LATEST, 0):
        with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
            wire.offset(topic, 0, timestamp)
    assert is_offline(wire, topic)


def assert_lives(wire: Wire, topic: str, count: int) -> None:
    assert wire.values(topic) == values(topic, count)
    write(wire, topic, 1, first=count)
    assert wire.values(topic) == values(topic, count + 1)
    assert not is_offline(wire, topic)


def syncs_below(files: FailingFiles, folder: Path) -> int:
    calls = files.calls["fsync"].items()
    return sum(count for path, count in calls if path.startswith(str(folder)))


@pytest.mark.parametrize("where", ["data", "folder"])
def test_a_failed_sync_takes_the_log_offline_for_good(
    tmp_path: Path,
    files: FailingFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    data = tmp_path / "data"
    orders = data / "orders-0"
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        for topic in ("orders", "healthy"):
            wire.create_topic(topic, 1, FLUSHED)
            write(wire, topic, 3)
        await_that(lambda: stored_recovery_point(data, "orders") == 3, "the recovery point")
        if where == "folder":
            # A new file in it has to be synced: that of the next segment.
            wire.alter_topic("orders", {"segment.ms": "1"})
            files.fail("fsync", f"{orders}/.")
        else:
            files.fail("fsync", orders / "00000000000000000000.log")
        # Not acknowledged: it is in the page cache, where a power loss would take it.
        with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
            write(wire, "orders", 1, first=3)
        await_that(lambda: is_offline(wire, "orders"), "the log to go offline")
        synced = sum(
            files.calls["fsync"][path] for path in files.calls["fsync"] if "orders" in path
        )
        files.mend()
        assert_offline(wire, "orders")
        assert_lives(wire, "healthy", 3)
        await_that(lambda: stored_recovery_point(data, "healthy") == 4, "the recovery point")
        assert_offline(wire, "orders")
        assert "orders-0 is offline" in caplog.text
    # Not when it stopped, either; and it did not say that all was well.
    assert syncs_below(files, orders) == synced
    assert stored_recovery_point(data, "orders") == 3
    assert not (data / CLEAN_SHUTDOWN).exists()

    # The next start looks at what is there, from the last point that is known to be safe.
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        assert_lives(wire, "orders", 4)
        assert_lives(wire, "healthy", 4)
    assert (data / CLEAN_SHUTDOWN).exists()
    assert_sound(data)


def test_a_failed_write_takes_the_log_offline_and_leaves_no_trace(
    tmp_path: Path, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        for topic in ("orders", "healthy"):
            wire.create_topic(topic)
            write(wire, topic, 3)
        files.fail("pwrite", data / "orders-0")
        answer = wire.produce_batch("orders", 0, a_batch([b"lost"]))
        assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        files.mend()
        assert_offline(wire, "orders")
        assert_lives(wire, "healthy", 3)
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        assert_lives(wire, "orders", 3)
        assert_lives(wire, "healthy", 4)
    assert_sound(data)


def test_a_failed_read_takes_the_log_offline(
    tmp_path: Path, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        for topic in ("orders", "healthy"):
            wire.create_topic(topic)
            write(wire, topic, 3)
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        assert wire.bounds("orders") == (0, 3)
        files.fail("pread", data / "orders-0")
        assert wire.fetch("orders", 0, 1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        files.mend()
        assert_offline(wire, "orders")
        assert_lives(wire, "healthy", 3)
    with InnerBroker([data], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        assert_lives(wire, "orders", 3)


def test_a_folder_whose_checkpoints_fail_is_offline_with_all_its_logs(
    tmp_path: Path, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with InnerBroker([one, two], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        for topic in ("a", "b", "c", "d"):
            wire.create_topic(topic, 1, FLUSHED)
            write(wire, topic, 3)
        lost = sorted(path.name[0] for path in two.glob("?-0"))
        kept = sorted(path.name[0] for path in one.glob("?-0"))
        assert (len(lost), len(kept)) == (2, 2)
        for topic in (*lost, *kept):
            write(wire, topic, 1, first=3)
        await_that(
            lambda: all(stored_recovery_point(two, topic) == 4 for topic in lost),
            "the checkpoint of all that was written",
        )
        # The next checkpoint is due with the next flush, and not before: so that one is answered.
        files.fail("fsync", two / RECOVERY_POINT_CHECKPOINT)
        write(wire, lost[0], 1, first=4)
        await_that(lambda: all(is_offline(wire, topic) for topic in lost), "the folder to fail")
        files.mend()
        for topic in lost:
            assert_offline(wire, topic)
        for topic in kept:
            assert_lives(wire, topic, 4)
        folders = wire.log_folders()
        assert folders[str(two)].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert folders[str(one)].error_code == 0
    assert not (two / CLEAN_SHUTDOWN).exists()
    assert (one / CLEAN_SHUTDOWN).exists()
    with InnerBroker([one, two], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        assert_lives(wire, lost[0], 5)
        assert_lives(wire, lost[1], 4)
        for topic in kept:
            assert_lives(wire, topic, 5)
    for folder in (one, two):
        assert_sound(folder)


def test_a_flush_after_each_message_moves_the_recovery_point(
    tmp_path: Path, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InnerBroker([tmp_path], files, monkeypatch) as broker, Wire(broker.bootstrap) as wire:
        wire.create_topic("flushed", 1, FLUSHED)
        wire.create_topic("lazy")
        for number in range(3):
            write(wire, "lazy", 1, first=number)
            write(wire, "flushed", 1, first=number)
            await_that(
                lambda number=number: stored_recovery_point(tmp_path, "flushed") == number + 1,
                "the stored recovery point",
            )
            assert stored_recovery_point(tmp_path, "lazy") == 0
        segment = str(tmp_path / "flushed-0" / "00000000000000000000.log")
        assert files.calls["fsync"][segment] >= 3
