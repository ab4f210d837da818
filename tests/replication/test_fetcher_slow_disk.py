"""A follower whose disk is slow: its loop goes on, and so do the partitions on other disks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replica_kit import TOPIC_ID, Holder, batch, state
from replica_kit.leader import LEADER, Leader, indexes

from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from ottla.replication.fetcher import Fetcher
from ottla.replication.following import BUSY_WAIT_MS, FetchLimits
from ottla.replication.partition import Role
from ottla.server.disk.lanes import SLOW_WRITE_SECONDS, FollowersDisk, Lanes
from ottla.storage.errors import LogOffline
from ottla.storage.files import Files
from ottla.storage.logs import now_in_ms

PATIENCE = 30.0


class GatedFiles(Files):
    """Syncs of folders stand still while the gate is closed; a truncation makes several."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def fsync_folder(self, path: str) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        super().fsync_folder(path)


class Scene:
    """A broker that follows two partitions, each in a data folder of its own."""

    def __init__(self, path: Path) -> None:
        self.files = GatedFiles()
        self.holders = [
            Holder(
                state(leader=LEADER, index=index),
                data=str(path / f"folder-{index}"),
                files=self.files,
            )
            for index in range(2)
        ]
        self.slow, self.quick = (holder.partition for holder in self.holders)
        self.leader = Leader()
        self.threads = ThreadPoolExecutor(2)
        self.gates: list[threading.Event] = []

    def open(self) -> None:
        self.lanes = Lanes(asyncio.get_running_loop(), self.threads)
        self.fetcher = Fetcher(
            LEADER,
            FetchLimits(),
            self.leader.connect,
            lambda: (1, 10),
            lambda: 0,
            lambda work, name: asyncio.create_task(work, name=name),  # type: ignore[arg-type]
            disk=FollowersDisk(self.lanes),
        )
        for holder in self.holders:
            self.fetcher.put(holder.partition)

    def hold_threads(self) -> threading.Event:
        """Work that is given to a thread waits until the event is set."""
        gate = threading.Event()
        self.gates.append(gate)
        for _ in range(2):
            self.threads.submit(gate.wait, PATIENCE)
        return gate

    def answer(self, *answers: PartitionData) -> None:
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(answers))
        self.leader.answer(FetchResponse(session_id=7, responses=[topic]))

    async def all_done(self) -> None:
        while self.lanes.open:
            await asyncio.wait([lane.task for lane in self.lanes.open], timeout=PATIENCE)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.files.gate.set()
    for gate in made.gates:
        gate.set()
    made.threads.shutdown()


def play(scene: Scene, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        scene.open()
        await asyncio.wait_for(scenario(), PATIENCE)
        scene.fetcher.close()

    asyncio.run(run())


def records(index: int, base: int, count: int = 1, watermark: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=index,
        high_watermark=watermark,
        log_start_offset=0,
        records=batch(count, base=base, epoch=5),
    )


def diverging(index: int, end: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        high_watermark=0,
        log_start_offset=0,
        records=b"",
        diverging_epoch=EpochEndOffset(epoch=5, end_offset=end),
    )


def test_logs_are_told_the_time_of_day(scene: Scene) -> None:
    """The fetcher's own clock says 0."""
    before = now_in_ms()

    async def scenario() -> None:
        await scene.leader.next_request()
        scene.answer(records(0, 0, 3))
        await scene.leader.next_request()

    play(scene, scenario)
    assert scene.slow.log.unflushed_since >= before


def test_an_append_to_a_slow_disk_holds_up_nobody(scene: Scene) -> None:
    async def scenario() -> None:
        leader, slow, quick = scene.leader, scene.slow, scene.quick
        await leader.next_request()
        scene.lanes.mark_slow(slow.log.folder, 1.0)
        gate = scene.hold_threads()
        scene.answer(records(0, 0, 3, watermark=2), records(1, 0, 2, watermark=1))
        second = await leader.next_request()
        # The loop is here although the write is not done. The leader is asked for the other one.
        assert slow.log.log_end_offset == 0
        assert indexes(second) == [1]
        assert second.forgotten_topics_data[0].partitions == [0]
        assert second.max_wait_ms == BUSY_WAIT_MS
        scene.answer(records(1, 2, 2, watermark=3))
        third = await leader.next_request()
        assert quick.log.log_end_offset == 4
        assert indexes(third) == [1]
        gate.set()
        await scene.all_done()
        assert (slow.log.log_end_offset, slow.log.high_watermark) == (3, 2)
        scene.answer()
        fourth = await leader.next_request()
        assert [each.fetch_offset for each in fourth.topics[0].partitions] == [3]
        assert fourth.max_wait_ms == FetchLimits().max_wait_ms

    play(scene, scenario)


def test_nothing_is_asked_for_until_the_only_disk_has_done_its_work(scene: Scene) -> None:
    async def scenario() -> None:
        leader, slow = scene.leader, scene.slow
        await leader.next_request()
        scene.fetcher.remove(scene.quick)
        await leader.next_request()
        scene.lanes.mark_slow(slow.log.folder, 1.0)
        gate = scene.hold_threads()
        scene.answer(records(0, 0, 3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert leader.asked.empty()
        gate.set()
        request = await leader.next_request()
        assert [each.fetch_offset for each in request.topics[0].partitions] == [3]

    play(scene, scenario)


def test_a_disk_that_works_for_a_partition_that_was_taken_away_holds_up_nobody(
    scene: Scene,
) -> None:
    async def scenario() -> None:
        leader, slow = scene.leader, scene.slow
        await leader.next_request()
        scene.lanes.mark_slow(slow.log.folder, 1.0)
        scene.hold_threads()
        scene.answer(records(0, 0, 3))
        assert indexes(await leader.next_request()) == []
        scene.fetcher.remove(slow)
        assert indexes(await leader.next_request()) == [1]
        assert scene.fetcher.following.rest_ms(0) == 0

    play(scene, scenario)


def test_a_write_that_took_long_sends_the_next_ones_to_threads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    pwrite = os.pwrite

    def delayed(fd: int, data: memoryview, position: int) -> int:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            time.sleep(2 * SLOW_WRITE_SECONDS)
        return pwrite(fd, data, position)

    monkeypatch.setattr(scene.slow.log, "_pwrite", delayed)

    async def scenario() -> None:
        await scene.leader.next_request()
        scene.answer(records(0, 0))
        await scene.leader.next_request()
        scene.answer(records(0, 1))
        await scene.leader.next_request()
        await scene.all_done()
        assert scene.slow.log.log_end_offset == 2
        assert threads[0] == threading.get_ident()
        assert threads[1] != threading.get_ident()

    play(scene, scenario)


def test_cutting_a_log_off_holds_up_nobody(scene: Scene) -> None:
    scene.slow.take(batch(2, epoch=5) + batch(3, base=2, epoch=5), 1, 0)

    async def scenario() -> None:
        leader, slow, quick = scene.leader, scene.slow, scene.quick
        await leader.next_request()
        scene.files.gate.clear()
        scene.files.begun.clear()
        scene.answer(diverging(0, 2), records(1, 0, 2))
        assert indexes(await leader.next_request()) == [1]
        assert await asyncio.to_thread(scene.files.begun.wait, PATIENCE)
        assert slow.is_being_cut
        assert quick.log.log_end_offset == 2
        # Nothing else touches the log meanwhile.
        assert not slow.log.due_for_flush(1 << 60)
        assert slow.log.flush_begin(0) is None
        scene.files.gate.set()
        await scene.all_done()
        assert not slow.is_being_cut
        assert slow.log.log_end_offset == 2
        slow.log.flush(0)
        scene.answer()
        request = await leader.next_request()
        assert [each.fetch_offset for each in request.topics[0].partitions] == [2]

    play(scene, scenario)


def test_the_cluster_decides_and_the_disk_is_waited_for(scene: Scene) -> None:
    """A follower that is elected while its log is cut leads once that is done, from its new end."""
    scene.slow.take(batch(2, epoch=5) + batch(3, base=2, epoch=5), 1, 0)

    async def scenario() -> None:
        slow, holder = scene.slow, scene.holders[0]
        await scene.leader.next_request()
        scene.files.gate.clear()
        scene.answer(diverging(0, 2))
        await scene.leader.next_request()
        slow.update(state(leader_epoch=6, leader=3), 0)
        slow.update(state(leader_epoch=7, isr=(1,)), 0)
        assert (slow.role, holder.terms) == (Role.FOLLOWER, 0)
        scene.files.gate.set()
        await scene.all_done()
        assert (slow.role, slow.leader_epoch, holder.terms) == (Role.LEADER, 7, 1)
        assert slow.epoch_start_offset == 2
        assert slow.log.high_watermark == 2
        assert holder.append()[0] == 2

    play(scene, scenario)


def test_a_log_that_is_deleted_while_it_is_cut_leaves_its_namesake_alone(scene: Scene) -> None:
    scene.slow.take(batch(2, epoch=5) + batch(3, base=2, epoch=5), 1, 0)

    async def scenario() -> None:
        holder = scene.holders[0]
        await scene.leader.next_request()
        gate = scene.hold_threads()
        scene.answer(diverging(0, 2))
        await scene.leader.next_request()
        old = scene.slow.log
        holder.partition.removed()
        scene.fetcher.remove(scene.slow)
        holder.logs.delete("t", 0)
        again = holder.logs.create("t", 0, b"n" * 16)
        again.append(bytearray(batch(4)), 0, 0)
        names = sorted(os.listdir(again.folder))
        gate.set()
        await scene.all_done()
        assert sorted(os.listdir(again.folder)) == names
        assert again.log_end_offset == 4
        with pytest.raises(LogOffline):
            old.check_online()

    play(scene, scenario)


def test_a_stop_does_not_wait_for_a_disk_that_stands_still(scene: Scene) -> None:
    scene.slow.take(batch(2, epoch=5) + batch(3, base=2, epoch=5), 1, 0)

    async def scenario() -> None:
        await scene.leader.next_request()
        scene.files.gate.clear()
        scene.answer(diverging(0, 2))
        await scene.leader.next_request()
        scene.fetcher.close()
        assert not await scene.lanes.drained(0.01)
        # The next start looks at what the disk holds.
        assert scene.slow.is_offline
        scene.files.gate.set()

    play(scene, scenario)
