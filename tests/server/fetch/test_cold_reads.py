"""Fetches of what only the disk has: the loop never waits for it, and the bytes are the same.

What is in the page cache cannot be told reliably on every file system that tests run on, so here a
stand-in for the kernel's answer says of every page that it is on the disk until a thread has read it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fetch_request,
    fill,
    list_offsets_request,
    now_ms,
    values_of,
)
from server_kit.wire import Wire

from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.server.broker import Broker
from ottla.server.disk import reads
from ottla.server.network import connection as connection_module
from ottla.storage.files import Files
from ottla.storage.index.maps import SHARED_MAPS
from ottla.storage.segments.file import Slice

PAGE = 4096
START = now_ms()


class Disk:
    """Which pages of which files were read by a thread; and who asked for the others."""

    def __init__(self, loop_thread: int) -> None:
        self._loop_thread = loop_thread
        self._in_memory: set[tuple[int, int]] = set()
        self.asked_by_loop = 0
        self.brought = 0
        self.ahead: list[tuple[int, int]] = []
        self.forgetful = False
        # Closed, it holds up whoever asks the disk; `waited_for` says that somebody does.
        self.gate = threading.Event()
        self.gate.set()
        self.waited_for = threading.Event()
        self._pread = Files.pread

    def _pages(self, fd: int, position: int, size: int) -> set[tuple[int, int]]:
        last = (position + max(size, 1) - 1) // PAGE
        return {(fd, page) for page in range(position // PAGE, last + 1)}

    def seems_in_memory(self, fd: int, position: int, size: int) -> bool:
        return self._pages(fd, position, size) <= self._in_memory

    def pread_in_memory(self, fd: int, size: int, position: int) -> bytes | None:
        if not self.seems_in_memory(fd, position, size):
            return None
        return self._pread(fd, size, position)

    def bring_into_memory(self, fd: int, position: int, size: int) -> bool:
        assert threading.get_ident() != self._loop_thread, "the loop waits for the disk"
        self._pass()
        wanted = self._pages(fd, position, size)
        waited = not wanted <= self._in_memory
        if not self.forgetful:
            self._in_memory |= wanted
        self.brought += 1
        return waited

    def read_ahead(self, fd: int, position: int, size: int) -> bool:
        assert threading.get_ident() != self._loop_thread, "the loop waits for the disk"
        if self.seems_in_memory(fd, position, size):
            return False
        self.ahead.append((position, size))
        return True

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if threading.get_ident() == self._loop_thread:
            self.asked_by_loop += 1
        else:
            self._pass()
        return self._pread(fd, size, position)

    def forget(self) -> None:
        self._in_memory.clear()

    def _pass(self) -> None:
        if not self.gate.is_set():
            self.waited_for.set()
            assert self.gate.wait(30), "nobody opened the gate"


@pytest.fixture
def topic(wire: Wire) -> Topic:
    """Several segments; all but the last are sealed, and not looked at again by the append path."""
    topic = create_topic(wire, segment_bytes=str(1 << 20))
    for number in range(60):
        fill(wire, topic, batch_of(b"%02d" % number * 30_000, timestamp=START + number))
    return topic


@pytest.fixture
def disk(inside: BrokerThread, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Disk:
    thread = inside.run(lambda _: threading.get_ident())
    disk = Disk(thread)

    def forget(broker: Broker) -> None:
        # Files of other tests may have had the descriptors of these.
        broker.reads._cold.clear()
        SHARED_MAPS.clear()
        for segment in inside.broker.partitions.by_name[topic.name][0].log.segments:
            segment.close()

    inside.run(forget)
    # The stand-in knows only of this process.
    inside.run(lambda broker: broker.reads.warming.stop())
    monkeypatch.setattr(Files, "tells_what_is_in_memory", lambda *_: True)
    monkeypatch.setattr(Files, "seems_in_memory", lambda self, *range: disk.seems_in_memory(*range))
    monkeypatch.setattr(Files, "pread_in_memory", lambda self, *range: disk.pread_in_memory(*range))
    monkeypatch.setattr(
        Files, "bring_into_memory", lambda self, *range: disk.bring_into_memory(*range)
    )
    monkeypatch.setattr(Files, "read_ahead", lambda self, *range: disk.read_ahead(*range))
    monkeypatch.setattr(Files, "pread", staticmethod(disk.pread))
    return disk


def test_everything_comes_in_order(wire: Wire, topic: Topic, disk: Disk) -> None:
    offset, values = 0, []
    while offset < 60:
        found = values_of(fetch(wire, topic, offset, max_bytes=200_000).records)
        assert found
        values += found
        offset += len(found)
    assert values == [b"%02d" % number * 30_000 for number in range(60)]
    assert disk.brought
    assert not disk.asked_by_loop


def test_small_pieces(wire: Wire, disk: Disk) -> None:
    """Ranges that are copied rather than sent from the file."""
    small = create_topic(wire, segment_bytes=str(1 << 20))
    fill(wire, small, *(batch_of(b"%03d" % number) for number in range(300)))
    answer = fetch(wire, small, 7, max_bytes=2000)
    assert values_of(answer.records)[0] == b"007"


def test_several_partitions_share_the_limit(wire: Wire, topic: Topic, disk: Disk) -> None:
    request = fetch_request(topic, (0, 0), max_bytes=70_000)
    answer = wire.call(request, FetchResponse, 12)
    (records,) = [each.records for each in answer.responses[0].partitions]
    assert 60_000 < len(records or b"") <= 70_000


def test_memory_that_keeps_nothing(wire: Wire, topic: Topic, disk: Disk) -> None:
    """What a thread has read may be gone before the loop looks: it then waits rather than give up."""
    disk.forgetful = True
    assert values_of(fetch(wire, topic, 5, max_bytes=70_000).records)[0] == b"05" * 30_000


def test_a_reader_that_met_the_disk_goes_by_the_thread_until_all_is_held(
    wire: Wire, topic: Topic, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "TRUSTED_AFTER", 3)
    fetch(wire, topic, 0, max_bytes=200_000)
    # A file that is opened anew meanwhile, as after a flush, begins as one that is not known.
    for _ in range(30):
        before = disk.brought
        fetch(wire, topic, 0, max_bytes=200_000)
        if disk.brought == before:
            return
    pytest.fail("held data still goes by way of the thread")


def test_what_a_reader_of_old_records_wants_next_is_asked_for(
    wire: Wire, topic: Topic, disk: Disk
) -> None:
    # Here and there: nobody knows what comes next.
    for offset in (9, 25, 3):
        fetch(wire, topic, offset, max_bytes=130_000)
    assert disk.ahead == []
    # One after the other. (A file that is opened anew meanwhile begins as one that is not known.)
    for _ in range(30):
        fetch(wire, topic, 3, max_bytes=130_000)
        fetch(wire, topic, 5, max_bytes=130_000)
        if disk.ahead:
            break
    ((position, size),) = disk.ahead
    assert size == reads.AHEAD_BYTES
    assert position > 5 * 60_000
    assert not disk.asked_by_loop


def test_what_follows_is_asked_for_once(inside: BrokerThread, topic: Topic) -> None:
    segment = inside.broker.partitions.by_name[topic.name][0].log.segments[0]

    def ahead(broker: Broker) -> list[range]:
        broker.reads._cold.clear()
        file = segment.file()
        asked: list[range] = []
        for position in range(0, 500_000, 100_000):
            piece = Slice(file, position, 100_000, 60_000, segment)
            asked.append(broker.reads._ahead(piece))
            broker.reads._remember(piece, asked=True, asked_until=asked[-1].stop)
        return asked

    first, second, *others = inside.run(ahead)
    assert not first, "nobody knows yet that somebody goes on"
    assert len(second) == reads.AHEAD_BYTES
    for before, after in pairwise([second, *others]):
        assert (after.start, len(after)) == (before.stop, 100_000)


@pytest.mark.parametrize("expected", [25, 59])
def test_others_are_served_while_a_time_is_searched_for(
    wire: Wire,
    connect: Callable[[], Wire],
    topic: Topic,
    disk: Disk,
    expected: int,
) -> None:
    other = connect()
    # By time, or (-3) the record with the largest one.
    timestamp = START + expected if expected < 59 else -3
    disk.gate.clear()
    wire.send(list_offsets_request(topic, timestamp), 7)
    try:
        assert disk.waited_for.wait(30), "the search asks no disk"
        assert end_offset(other, topic) == 60
        beside = create_topic(other)
        fill(other, beside, batch_of(b"beside"))
        assert end_offset(other, beside) == 1
        assert not select.select([wire.sock], [], [], 0)[0], "the search did not wait"
    finally:
        disk.gate.set()
    (answer,) = wire.receive(ListOffsetsResponse, 7).topics[0].partitions
    assert (answer.error_code, answer.offset) == (0, expected)
    assert not disk.asked_by_loop


def test_what_left_memory_while_its_reader_slept_is_brought_back_by_a_thread(
    connect: Callable[[], Wire],
    inside: BrokerThread,
    topic: Topic,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STALE_SECONDS", 0.0)
    cold = []
    real_sendfile = os.sendfile

    def sendfile(out: int, into: int, at: int, count: int) -> int:
        sent = real_sendfile(out, into, at, count)
        if not disk.seems_in_memory(into, at, sent):
            cold.append((at, sent))
        return sent

    reader = connect()
    other = connect()
    asked = 40
    for _ in range(asked):
        reader.send(fetch_request(topic, (0, 0), max_bytes=900_000), 12)

    def is_stuck(broker: Broker) -> bool:
        """The socket takes no more, and a range waits for it."""
        return any(each.out and each._writing for each in broker.reactor.connections)

    inside.until(is_stuck)
    monkeypatch.setattr(connection_module.os, "sendfile", sendfile)

    def forget(_: Broker) -> int:
        # Both in one turn: what waits may be brought back at once.
        disk.forget()
        return disk.brought

    before = inside.run(forget)
    for _ in range(asked):
        answer = reader.receive(FetchResponse, 12).responses[0].partitions[0]
        assert values_of(answer.records)[0] == b"00" * 30_000
    assert disk.brought > before
    assert not cold, "the loop sent what only the disk had"
    assert end_offset(other, topic) == 60


def test_a_file_that_fails(
    wire: Wire, topic: Topic, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Files, fd: int, position: int, size: int) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Files, "bring_into_memory", fail)
    answer = fetch(wire, topic, 0, max_bytes=200_000)
    assert answer.error_code
    assert not answer.records
