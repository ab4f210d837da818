"""The task that follows a leader: what ends a request that waits there, and what ends the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from replica_kit import TOPIC_ID, Holder, batch, state
from replica_kit.leader import LEADER, Leader, indexes
from wire_kit.scripted import Asked, serving

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from ottla.replication.fetcher import Fetcher
from ottla.replication.following import FetchLimits
from ottla.wire.connection import Connection
from ottla.wire.errors import ConnectionLost


def answer_for(leader: Leader, base: int = 0, count: int = 0) -> None:
    """With so many records of partition 0, or about nothing."""
    data = PartitionData(
        partition_index=0,
        high_watermark=0,
        log_start_offset=0,
        records=batch(count, base=base, epoch=5) if count else b"",
    )
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data] if count else [])
    leader.answer(FetchResponse(session_id=7, responses=[topic]))


def follow(scenario: Callable[[Leader, Fetcher], Awaitable[None]]) -> None:
    async def run() -> None:
        leader = Leader()
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Awaitable[None], name: str) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(work, name=name))  # type: ignore[arg-type]
            return tasks[-1]

        fetcher = Fetcher(LEADER, FetchLimits(), leader.connect, lambda: (1, 10), lambda: 0, spawn)
        await scenario(leader, fetcher)
        fetcher.close()
        (task,) = tasks
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
        assert all(connection.closed for connection in leader.connections)

    asyncio.run(run())


def test_answers_are_taken_and_the_next_request_tells_so() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()
        data = PartitionData(
            partition_index=0, high_watermark=1, log_start_offset=0, records=batch(3, epoch=5)
        )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        leader.answer(FetchResponse(session_id=7, responses=[topic]))
        request = await leader.next_request()
        assert request.topics[0].partitions[0].fetch_offset == 3
        assert request.session_id == 7
        assert holder.high_watermark == 1
        assert len(leader.connections) == 1

    follow(scenario)


def test_a_request_that_waits_is_given_up_when_there_is_more_to_follow() -> None:
    first, second = (Holder(state(leader=LEADER, index=index)) for index in range(2))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(first.partition)
        assert indexes(await leader.next_request()) == [0]
        fetcher.put(second.partition)
        assert indexes(await leader.next_request()) == [0, 1]
        abandoned, current = leader.connections
        assert abandoned.closed
        assert not current.closed

    follow(scenario)


def test_an_answer_that_came_before_the_change_counts() -> None:
    first, second = (Holder(state(leader=LEADER, index=index)) for index in range(2))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(first.partition)
        await leader.next_request()
        data = PartitionData(
            partition_index=0, high_watermark=0, log_start_offset=0, records=batch(3, epoch=5)
        )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        leader.answer(FetchResponse(session_id=7, responses=[topic]))
        fetcher.put(second.partition)
        # Taken in, and asked for more, in the same turn of the loop.
        assert first.partition.log.log_end_offset == 3
        assert indexes(await leader.next_request()) == [0]
        assert indexes(await leader.next_request()) == [0, 1]

    follow(scenario)


def test_what_cannot_be_read_ends_the_connection() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()
        leader.answer_with(ConnectionLost("broker 2", "it makes no sense"))
        await leader.next_request()
        broken, current = leader.connections
        assert broken.closed
        assert not current.closed

    follow(scenario)


def test_nothing_is_asked_for_while_all_partitions_rest() -> None:
    """The leader would answer a request for no partition at once, again and again."""
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()
        data = PartitionData(partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        leader.answer(FetchResponse(session_id=7, responses=[topic]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert leader.asked.empty()
        fetcher.put(holder.partition)  # an election, say: it need not rest any longer
        assert (await leader.next_request()).session_id == 7

    follow(scenario)


def test_closing_ends_a_request_that_waits() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()

    follow(scenario)


def test_a_sync_that_takes_longer_than_it_is_waited_for_is_told_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record may follow for long: those who wait for this one would wait for it, too."""
    monkeypatch.setattr("ottla.replication.fetcher._FLUSH_SECONDS", 0.0)
    holder = Holder(state(leader=LEADER))
    partition = holder.partition
    partition.configure(replace(partition.config, visible_when_flushed=True))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(partition)
        await leader.next_request()
        answer_for(leader, count=3)
        for _ in range(3):  # told once; what is waited for, and then no longer, changes nothing
            request = await leader.next_request()
            answer_for(leader)
        assert request.topics == []
        await leader.next_request()
        partition.log.flush(0)
        partition.flushed()
        answer_for(leader)
        (told,) = (await leader.next_request()).topics[0].partitions
        assert (told.fetch_offset, told.flushed_offset) == (3, 3)

    follow(scenario)


def test_a_mistake_of_ours_does_not_end_the_task() -> None:
    holder = Holder(state(leader=LEADER))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(holder.partition)
        await leader.next_request()
        leader.answer_with(KeyError("nobody thought of this"))
        fetcher.put(holder.partition)  # cuts the pause short
        await leader.next_request()
        broken, current = leader.connections
        assert broken.closed
        assert not current.closed

    follow(scenario)


def test_a_disk_that_stands_still_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.replication.fetcher._FLUSH_SECONDS", 0.0)
    holder = Holder(state(leader=LEADER))
    partition = holder.partition
    partition.configure(replace(partition.config, visible_when_flushed=True))

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        fetcher.put(partition)
        await leader.next_request()
        answer_for(leader, count=3)
        await leader.next_request()
        monkeypatch.setattr("ottla.replication.fetcher._FLUSH_SECONDS", 1_000_000.0)
        answer_for(leader, base=3, count=2)
        (told,) = (await leader.next_request()).topics[0].partitions
        assert (told.fetch_offset, told.flushed_offset) == (5, 0)
        partition.log.flush(0)
        partition.flushed()
        answer_for(leader)
        (told,) = (await leader.next_request()).topics[0].partitions
        assert (told.fetch_offset, told.flushed_offset) == (5, 5)
        # From now on it is waited for again.
        answer_for(leader, base=5, count=1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert leader.asked.empty()
        partition.log.flush(0)
        partition.flushed()
        (told,) = (await leader.next_request()).topics[0].partitions
        assert (told.fetch_offset, told.flushed_offset) == (6, 6)

    follow(scenario)


def test_an_answer_is_waited_for_so_long() -> None:
    """A leader that takes requests and says nothing: its connection is given up, and made anew."""

    async def run() -> None:
        asked: asyncio.Queue[Asked] = asyncio.Queue()
        async with serving(asked.put) as (port, _):

            async def connect(_: int) -> Connection:
                return await Connection.open("127.0.0.1", port)

            holder = Holder(state(leader=LEADER))
            limits = FetchLimits(max_wait_ms=0, backoff_ms=1, answer_ms=10)
            fetcher = Fetcher(
                LEADER, limits, connect, lambda: (1, 10), lambda: 0,
                lambda work, name: asyncio.create_task(work, name=name),  # type: ignore[arg-type]
            )  # fmt: skip
            fetcher.put(holder.partition)
            first, second = [await asyncio.wait_for(asked.get(), 10) for _ in range(2)]
            assert (first.api_key, second.api_key) == (ApiKey.FETCH, ApiKey.FETCH)
            assert first.writer is not second.writer
            fetcher.close()

    asyncio.run(run())
