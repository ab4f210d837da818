"""What is deleted on purpose: old segments, records, topics. It goes, only it goes, it does not come
back after a crash, and what a crash interrupted is brought to its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from durability_kit.disk import SMALL_SEGMENTS, assert_sound, await_that, segments
from durability_kit.failing import FailingFiles, InnerBroker
from durability_kit.wire import Wire, a_batch

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.server.disk.topic_logs import DoomedLogs
from ottla.testing import BrokerProcess

Connect = Callable[[BrokerProcess], Wire]

HOUR = 3_600_000
NEVER = {"retention.ms": "-1", "retention.bytes": "-1"}
AT_ONCE = {"file.delete.delay.ms": "0"}


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker(log_retention_check_interval_ms="50")


def write(wire: Wire, topic: str, count: int, first: int = 0, age_ms: int = 0) -> None:
    timestamp = int(time.time() * 1000) - age_ms
    for number in range(first, first + count):
        batch = a_batch([b"%d" % number], timestamp + number)
        answer = wire.produce_batch(topic, 0, batch)
        assert (ErrorCode(answer.error_code), answer.base_offset) == (ErrorCode.NONE, number)


def assert_holds(wire: Wire, topic: str, start: int, end: int) -> None:
    """Exactly these records are left, and no others are given out."""
    assert wire.bounds(topic) == (start, end)
    assert wire.values(topic) == [b"%d" % number for number in range(start, end)]
    if start:
        gone = wire.fetch(topic, 0, start - 1)
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def leftovers(data: Path) -> list[str]:
    """Files and folders that wait for their removal. They may go while one looks, which Python 3.11's
    `glob` does not bear."""
    return [
        name
        for _, folders, files in os.walk(data)
        for name in (*folders, *files)
        if name.endswith((".deleted", "-delete"))
    ]


def await_first_segment(log: Path, offset: int) -> None:
    """Clients are told of the new start before the old files have gone: a crash between the two brings
    them back, until the next round of the retention."""
    await_that(lambda: int(segments(log)[0].stem) == offset, f"the files below {offset} to go")


def test_segments_go_by_size_and_by_age(broker: BrokerProcess, connect: Connect) -> None:
    wire = connect(broker.start())
    data = broker.data
    wire.create_topic("kept", 1, SMALL_SEGMENTS | NEVER)
    for topic in ("by-age", "by-size"):
        wire.create_topic(topic, 1, SMALL_SEGMENTS | NEVER | AT_ONCE)
    for topic in ("kept", "by-size"):
        write(wire, topic, 12, age_ms=1_000 * HOUR)
    write(wire, "by-age", 6, age_ms=2 * HOUR)
    write(wire, "by-age", 6, first=6)
    # Only now: a segment with one old record may go before it gets its second.
    wire.alter_topic("by-age", {"retention.ms": str(HOUR)})
    # Two batches in a segment; the last one that is old goes with its segment only.
    await_that(lambda: wire.bounds("by-age") == (6, 12), "old segments to go")
    assert_holds(wire, "by-age", 6, 12)

    sizes = [path.stat().st_size for path in segments(data / "by-size-0")]
    assert len(sizes) == 6
    assert_holds(wire, "by-size", 0, 12)
    # Room for three segments, and for half of a fourth: a whole one goes only if what stays is enough.
    wire.alter_topic("by-size", {"retention.bytes": str(sum(sizes[-3:]) + sizes[2] // 2)})
    await_that(lambda: wire.bounds("by-size") == (4, 12), "segments that are too much to go")
    assert_holds(wire, "by-size", 4, 12)
    assert_holds(wire, "kept", 0, 12)
    await_first_segment(data / "by-age-0", 6)
    await_first_segment(data / "by-size-0", 4)
    await_that(lambda: not leftovers(data), "the files to be removed")

    # A crash does not bring them back.
    broker.kill()
    wire = connect(broker.start())
    assert_holds(wire, "by-age", 6, 12)
    assert_holds(wire, "by-size", 4, 12)
    assert_holds(wire, "kept", 0, 12)
    # All that is old may go, also the segment that is being written; the offsets go on.
    wire.alter_topic("by-age", {"retention.ms": "1"})
    await_that(lambda: wire.bounds("by-age") == (12, 12), "everything to go")
    await_first_segment(data / "by-age-0", 12)
    broker.kill()
    wire = connect(broker.start())
    assert wire.bounds("by-age") == (12, 12)
    wire.alter_topic("by-age", {"retention.ms": "-1"})
    write(wire, "by-age", 3, first=12)
    assert_holds(wire, "by-age", 12, 15)
    assert broker.stop() == 0
    assert_sound(data)


def test_settings_change_while_running(broker: BrokerProcess, connect: Connect) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, NEVER)
    folder = broker.data / "orders-0"
    values = []

    def megabyte() -> None:
        for _ in range(4):
            values.append(b"%d" % len(values) + bytes(300_000))
            wire.produce("orders", 0, values[-1:])

    megabyte()
    megabyte()
    assert len(segments(folder)) == 1
    wire.alter_topic("orders", {"segment.bytes": str(1 << 20)})
    megabyte()
    smaller = len(segments(folder))
    assert smaller > 1
    wire.alter_topic("orders", {"segment.bytes": str(1 << 30)})
    megabyte()
    assert len(segments(folder)) == smaller
    assert wire.values("orders") == values
    # The change outlives the broker.
    broker.kill()
    wire = connect(broker.start())
    assert wire.values("orders") == values
    megabyte()
    assert len(segments(folder)) == smaller
    wire.alter_topic("orders", {"retention.bytes": str(1 << 20)})
    await_that(lambda: wire.bounds("orders")[0] > 0, "segments to go")
    start, end = wire.bounds("orders")
    assert end == len(values)
    assert wire.values("orders") == values[start:]


def test_deleted_records_stay_deleted(broker: BrokerProcess, connect: Connect) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS | NEVER)
    write(wire, "orders", 10)
    part = DeleteRecordsPartition(partition_index=0, offset=5)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="orders", partitions=[part])], timeout_ms=10_000
    )
    (answer,) = wire.call(request, DeleteRecordsResponse, 2).topics[0].partitions
    assert (answer.error_code, answer.low_watermark) == (0, 5)
    broker.kill()
    wire = connect(broker.start())
    assert_holds(wire, "orders", 5, 10)


def test_a_topic_is_deleted_and_made_again_at_once(
    make_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    broker = make_broker(log_segment_delete_delay_ms="0")
    wire = connect(broker.start())
    for life in range(5):
        wire.create_topic("orders", 2, SMALL_SEGMENTS)
        assert wire.bounds("orders") == (0, 0)
        write(wire, "orders", life + 3)
        assert_holds(wire, "orders", 0, life + 3)
        if life < 4:
            wire.delete_topic("orders")
    assert_holds(wire, "orders", 0, 7)
    await_that(lambda: not leftovers(broker.data), "the folders to be removed")
    broker.kill()
    wire = connect(broker.start())
    assert_holds(wire, "orders", 0, 7)
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_to_be_removed_goes_after_a_restart(
    broker: BrokerProcess, connect: Connect, end: str
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS | NEVER)
    wire.create_topic("doomed", 1, SMALL_SEGMENTS)
    for topic in ("orders", "doomed"):
        write(wire, topic, 10)
    wire.alter_topic("orders", {"retention.bytes": "1"})
    await_that(lambda: wire.bounds("orders")[0] == 8, "segments to go")
    wire.delete_topic("doomed")
    # The files wait for file.delete.delay.ms, a minute.
    gone = [f"{offset:020d}.log.deleted" for offset in (0, 2, 4, 6)]
    await_that(lambda: set(gone) <= set(leftovers(broker.data)), "the files to be renamed")
    assert any(name.startswith("doomed-0.") for name in leftovers(broker.data))
    getattr(broker, end)()
    assert leftovers(broker.data)
    wire = connect(broker.start())
    assert wire.topic_names() == {"orders"}
    assert_holds(wire, "orders", 8, 10)
    await_that(lambda: not leftovers(broker.data), "the leftovers to be removed")
    # The name is free, and nothing of the old topic comes back with it.
    wire.create_topic("doomed", 1, SMALL_SEGMENTS)
    assert wire.bounds("doomed") == (0, 0)
    assert broker.stop() == 0
    assert_sound(broker.data)


def test_a_deletion_that_a_crash_interrupted_is_brought_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        monkeypatch.context() as patch,
        InnerBroker([tmp_path], FailingFiles(), patch) as inner,
        Wire(inner.bootstrap) as wire,
    ):
        wire.create_topic("orders")
        write(wire, "orders", 3)
        # As if the process were killed there.
        patch.setattr(DoomedLogs, "_delete_one", lambda *_: None)
        wire.delete_topic("orders")
    assert (tmp_path / "orders-0").exists()
    with InnerBroker([tmp_path], FailingFiles(), monkeypatch):
        assert not (tmp_path / "orders-0").exists()
        # Kept, as it would be in Kafka: from the folder alone nobody can tell this from a store that
        # has forgotten a topic.
        (stray,) = tmp_path.glob("orders-0.*-stray")
        assert (stray / "00000000000000000000.log").stat().st_size > 0
