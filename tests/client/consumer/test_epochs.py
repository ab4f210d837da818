"""Leader epochs (KIP-320): leaders that move, logs that are cut off, replicas that are closer."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from consumer_kit.two_replicas import (
    FETCH_OF_KAFKA_2_4,
    NEWEST_FETCH,
    PLACE,
    TOPIC,
    Fetched,
    TwoReplicas,
    two_replicas,
    value_of,
)

from ottla import AsyncConsumer, AsyncProducer
from ottla.client.consumer.epochs import epochs_of
from ottla.client.errors import LogTruncated, OffsetOutOfRange
from ottla.protocol.errors import ErrorCode
from ottla.record.batch import Record, build_batch
from ottla.record.columns import reach

PATIENCE = 20  # seconds
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5}

both_ages = pytest.mark.parametrize(
    "version", [NEWEST_FETCH, FETCH_OF_KAFKA_2_4], ids=["epochs in Fetch", "Kafka 2.4"]
)


def consumer_of(world: TwoReplicas, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(world.bootstrap, **{**QUICK, **options})


async def take(consumer: AsyncConsumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        rows = await consumer.next_batch(timeout=PATIENCE)
        assert rows is not None
        values += rows.column("value").to_pylist()
    return values


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - of lists that the brokers fill
            await asyncio.sleep(0.005)


def values(*epochs: int, start: int = 0) -> list[bytes]:
    return [value_of(start + number, epoch) for number, epoch in enumerate(epochs)]


def test_epochs_of_an_answer() -> None:
    def batch(offset: int, epoch: int) -> bytes:
        kept = [Record(offset + each, 0, None, b"") for each in range(3)]
        return build_batch(kept, base_offset=offset, leader_epoch=epoch)

    def found(*batches: bytes) -> Callable[[int], int]:
        view = memoryview(b"".join(batches) + batch(100, 9)[:-1])  # the last one is cut off
        reached = reach(view)
        assert reached is not None
        return epochs_of(view, reached).before

    assert [found(batch(5, 2), batch(8, 2))(each) for each in (6, 8, 11)] == [2, 2, 2]
    before = found(batch(5, 2), batch(8, 2), batch(20, 4), batch(23, 7))
    assert [before(each) for each in (6, 11, 20, 21, 23, 24, 26)] == [2, 2, 2, 4, 4, 7, 7]


@both_ages
async def test_a_position_goes_with_its_epoch(version: int) -> None:
    async with two_replicas(fetch_version=version) as world:
        world.append(3)
        world.elect(2)
        world.append(3)
        async with consumer_of(world, group="g", auto_offset_reset="earliest") as consumer:
            await consumer.assign([PLACE])
            committed = []
            for _ in range(6):
                record = await consumer.next_record(timeout=PATIENCE)
                assert record is not None
                await consumer.commit()
                committed.append(world.commits["g"])
            assert committed == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
        world.elect(1)
        world.append(2)
        world.fetches.clear()
        world.validations.clear()
        async with consumer_of(world, group="g") as consumer:
            await consumer.assign([PLACE])
            assert (await consumer.committed(PLACE))[PLACE].leader_epoch == 2
            assert await take(consumer, 2) == values(3, 3, start=6)
        # What auto-commit commits has its epoch as well.
        assert world.commits["g"] == (8, 3)
        first = world.fetches[0].wanted
        assert (first.fetch_offset, first.current_leader_epoch) == (6, 3)
        if version == NEWEST_FETCH:
            assert first.last_fetched_epoch == 2
        else:
            assert world.validations == [2]


async def test_auto_commit_commits_the_epoch_of_what_is_dealt_with() -> None:
    async with two_replicas(at_once=2) as world:
        world.append(2)
        world.elect(2)
        world.append(2)
        options = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 10}
        async with consumer_of(world, group="g", **options) as consumer:
            await consumer.assign([PLACE])
            assert await take(consumer, 2) == values(1, 1)
            assert await take(consumer, 2) == values(2, 2, start=2)
            # The second batch was handed out, and the first one is dealt with.
            await until(lambda: world.commits.get("g"))
            assert world.commits["g"] == (2, 1)


@both_ages
@pytest.mark.parametrize("leader", [1, 2], ids=["the same leader", "another leader"])
async def test_a_new_epoch_without_loss(version: int, leader: int) -> None:
    async with two_replicas(fetch_version=version) as world:
        world.append(3)
        async with consumer_of(world, auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 3) == values(1, 1, 1)
            world.elect(leader)
            world.append(2)
            assert await take(consumer, 2) == values(2, 2, start=3)
        last = world.fetches[-1]
        assert (last.node, last.wanted.current_leader_epoch) == (leader, 2)


@pytest.mark.parametrize("tells", [True, False], ids=["answer names it", "metadata name it"])
async def test_a_bounded_read_goes_on_at_a_new_leader(tells: bool) -> None:
    """That nothing comes of the old one does not mean that nothing is left."""
    async with two_replicas(at_once=2, tells_leader=tells) as world:
        world.append(8)

        def moved(fetched: Fetched) -> ErrorCode | None:
            if fetched.wanted.fetch_offset == 4 and world.leader == 1:
                world.elect(2)
            return None

        world.refuse = moved
        async with consumer_of(world) as consumer, await consumer.scan(TOPIC, 0, 8) as scan:
            found = [each async for rows in scan for each in rows.column("offset").to_pylist()]
            assert found == list(range(8))


async def test_a_bounded_read_ends_behind_records_that_are_not_to_be_seen() -> None:
    """Also after an error that has passed."""
    async with two_replicas(at_once=2) as world:
        world.append(4)
        refused: list[Fetched] = []

        def once(fetched: Fetched) -> ErrorCode | None:
            if fetched.wanted.fetch_offset == 2 and not refused:
                refused.append(fetched)
                return ErrorCode.KAFKA_STORAGE_ERROR
            return None

        world.refuse = once
        world.compacted_from = 3
        async with consumer_of(world) as consumer, await consumer.scan(TOPIC, 0, 4) as scan:
            found = [each async for rows in scan for each in rows.column("offset").to_pylist()]
            assert found == [0, 1, 2]
        assert refused


async def test_a_bounded_read_of_a_broker_that_throttles() -> None:
    """It answers with nothing, at once, to a client that is over its quota."""
    async with two_replicas(at_once=2) as world:
        world.append(6)
        throttled: list[Fetched] = []

        def throttle(fetched: Fetched) -> bool:
            throttled.append(fetched)
            return len(throttled) % 2 == 0

        world.throttle = throttle
        async with consumer_of(world) as consumer, await consumer.scan(TOPIC, 0, 6) as scan:
            found = [each async for rows in scan for each in rows.column("offset").to_pylist()]
            assert found == list(range(6))


async def test_a_broker_that_does_not_know_the_epoch_yet() -> None:
    async with two_replicas() as world:
        world.append(1)
        refused: list[Fetched] = []

        def behind(fetched: Fetched) -> ErrorCode | None:
            if len(refused) == 3:
                return None
            refused.append(fetched)
            return ErrorCode.UNKNOWN_LEADER_EPOCH

        world.refuse = behind
        async with consumer_of(world, auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 1) == values(1)
        assert len(refused) == 3


async def cut_off_behind(world: TwoReplicas, consumer: AsyncConsumer) -> None:
    """Five records are read, of which the next leader has three."""
    world.append(3)
    world.append(2, replicated=False)
    await consumer.assign({PLACE: 0})
    assert await take(consumer, 5) == values(1, 1, 1, 1, 1)
    world.elect(2)
    world.append(4)


@both_ages
async def test_a_log_that_was_cut_off_is_told(version: int) -> None:
    async with (
        two_replicas(fetch_version=version) as world,
        consumer_of(world, auto_offset_reset="none") as consumer,
    ):
        await cut_off_behind(world, consumer)
        with pytest.raises(LogTruncated, match=r"replicated-0: .* cut off at 3, before 5") as told:
            await consumer.next_batch(timeout=PATIENCE)
        assert (told.value.offset, told.value.diverging_offset) == (5, 3)
        assert pickle.loads(pickle.dumps(told.value)).diverging_offset == 3
        with pytest.raises(LogTruncated):  # until the user says where to go on
            await consumer.next_batch(timeout=PATIENCE)
        assert consumer.position(PLACE) == 5
        await consumer.seek(PLACE, told.value.diverging_offset)
        assert await take(consumer, 4) == values(2, 2, 2, 2, start=3)


@both_ages
async def test_with_a_reset_policy_reading_goes_on_where_the_logs_part(version: int) -> None:
    async with (
        two_replicas(fetch_version=version) as world,
        consumer_of(world, auto_offset_reset="latest", group="g") as consumer,
    ):
        await cut_off_behind(world, consumer)
        assert await take(consumer, 4) == values(2, 2, 2, 2, start=3)
        await consumer.commit()
        assert world.commits["g"] == (7, 2)


@both_ages
async def test_a_read_between_offsets_does_not_go_on_by_itself(version: int) -> None:
    async with two_replicas(fetch_version=version, at_once=2) as world:
        world.append(3)
        world.append(5, replicated=False)
        # It gets no further until the other one leads, which has three.
        world.refuse = lambda fetched: (
            ErrorCode.KAFKA_STORAGE_ERROR
            if fetched.wanted.fetch_offset >= 4 and world.leader == 1
            else None
        )
        async with consumer_of(world) as consumer, await consumer.scan(TOPIC, 0, 8) as scan:
            for start in (0, 2):
                rows = await scan.next_batch()
                assert rows is not None
                assert rows.column("offset").to_pylist() == [start, start + 1]
            world.elect(2)
            world.append(5)
            with pytest.raises(LogTruncated, match="cut off at 3, before 4"):
                await scan.next_batch()


@both_ages
async def test_what_was_not_handed_out_yet_is_fetched_again(version: int) -> None:
    async with (
        two_replicas(fetch_version=version) as world,
        consumer_of(world, auto_offset_reset="none") as consumer,
    ):
        world.append(3)
        world.append(2, replicated=False)
        await consumer.assign({PLACE: 0})
        # All five have been fetched, and the reader has none of them.
        await until(lambda: world.fetches and world.fetches[-1].wanted.fetch_offset == 5)
        world.elect(2)
        world.append(4)
        await until(lambda: world.fetches[-1].wanted.fetch_offset == 7)
        assert await take(consumer, 7) == values(1, 1, 1, 2, 2, 2, 2)


@both_ages
async def test_a_read_between_offsets_gives_nothing_twice(version: int) -> None:
    async with two_replicas(fetch_version=version, at_once=2) as world:
        world.append(5)
        world.append(3, replicated=False)
        world.refuse = lambda fetched: (
            ErrorCode.KAFKA_STORAGE_ERROR
            if fetched.wanted.fetch_offset >= 6 and world.leader == 1
            else None
        )
        async with consumer_of(world) as consumer, await consumer.scan(TOPIC, 0, 8) as scan:
            await until(lambda: world.fetches and world.fetches[-1].wanted.fetch_offset == 6)
            found = []
            for _ in range(2):
                rows = await scan.next_batch()
                assert rows is not None
                found += rows.column("value").to_pylist()
            world.elect(2)
            world.append(3)
            # It knows where the logs part: before that it would hand out what is gone.
            await until(
                lambda: any(
                    each.wanted.current_leader_epoch == 2 and each.wanted.fetch_offset < 6
                    for each in world.fetches
                )
            )
            while len(found) < 8:
                rows = await scan.next_batch()
                assert rows is not None
                found += rows.column("value").to_pylist()
            assert found == values(1, 1, 1, 1, 1, 2, 2, 2)


@both_ages
async def test_a_commit_of_a_log_that_was_cut_off_since(version: int) -> None:
    async with two_replicas(fetch_version=version) as world:
        world.append(4)
        world.epoch = 3
        world.commits["g"] = (6, 2)
        async with consumer_of(world, group="g", auto_offset_reset="none") as consumer:
            await consumer.assign([PLACE])
            with pytest.raises(LogTruncated) as told:
                await consumer.next_batch(timeout=PATIENCE)
            assert (told.value.offset, told.value.diverging_offset) == (6, 4)


@both_ages
async def test_other_records_at_the_same_offsets(version: int) -> None:
    """The new leader has records of an older epoch where others were read."""
    async with two_replicas(fetch_version=version) as world:
        world.logs = {1: [1] * 6, 2: [1] * 6}
        world.epoch = 5
        world.commits["g"] = (4, 3)
        async with consumer_of(world, group="g", auto_offset_reset="none") as consumer:
            await consumer.assign([PLACE])
            with pytest.raises(LogTruncated):
                await consumer.next_batch(timeout=PATIENCE)
        async with consumer_of(world, group="g", auto_offset_reset="earliest") as consumer:
            await consumer.assign([PLACE])
            assert await take(consumer, 2) == values(1, 1, start=4)


@both_ages
async def test_an_epoch_that_the_cluster_never_had(version: int) -> None:
    """The topic was made anew under the group's commits: they say nothing about this log."""
    async with two_replicas(fetch_version=version) as world:
        world.append(2)
        world.commits["g"] = (50, 7)
        async with consumer_of(world, group="g", auto_offset_reset="none") as consumer:
            await consumer.assign([PLACE])
            with pytest.raises(OffsetOutOfRange):
                await consumer.next_batch(timeout=PATIENCE)
        async with consumer_of(world, group="g", auto_offset_reset="earliest") as consumer:
            await consumer.assign([PLACE])
            assert await take(consumer, 2) == values(1, 1)


async def test_an_old_leader_is_not_asked_by_who_has_read_in_a_later_epoch() -> None:
    """It does not know the epoch, and would say that the offset is out of range."""
    async with two_replicas() as world:
        world.append(2)
        async with consumer_of(world, group="g", auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 2) == values(1, 1)
            await consumer.unsubscribe()
            world.elect(2)
            world.append(1)
            world.commits["g"] = (3, 2)
            world.fetches.clear()
            await consumer.assign([PLACE])
            world.append(1)
            assert await take(consumer, 1) == values(2, start=3)
        assert {each.node for each in world.fetches} == {2}


async def test_a_reset_moves_the_position() -> None:
    async with two_replicas() as world:
        world.append(2)
        world.commits["g"] = (50, -1)
        async with consumer_of(world, group="g", auto_offset_reset="latest") as consumer:
            await consumer.assign([PLACE])
            await until(lambda: any(each.wanted.fetch_offset == 2 for each in world.fetches))
            assert await consumer.next_batch(timeout=0) is None
            assert consumer.position(PLACE) == 2
            await consumer.commit()
        assert world.commits["g"] == (2, -1)


# The closest replica


async def test_the_lease_of_a_closer_replica_ends() -> None:
    async with two_replicas(closest=2) as world:
        world.append(1)
        async with consumer_of(world, client_rack="here", metadata_max_age_ms=30) as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 1) == values(1)
            # Each time it is over, the leader is asked whether it still is the closest.
            await until(lambda: [each.node for each in world.fetches].count(1) >= 3)
            world.append(1)
            assert await take(consumer, 1) == values(1, start=1)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
    ids=lambda code: code.name,
)
async def test_an_error_of_a_closer_replica_sends_back_to_the_leader(code: ErrorCode) -> None:
    async with two_replicas(closest=2) as world:
        world.append(1)

        def refuse(fetched: Fetched) -> ErrorCode | None:
            if fetched.node == 2:
                world.closest = None
                return code
            return None

        world.refuse = refuse
        async with consumer_of(world, client_rack="here", auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 1) == values(1)
        assert [each.node for each in world.fetches][:3] == [1, 2, 1]
        assert world.fetches[0].rack == "here"


async def test_a_closer_replica_that_does_not_answer() -> None:
    async with two_replicas(closest=2, silent={2}) as world:
        world.append(1)
        async with consumer_of(world, client_rack="here") as consumer:
            await consumer.assign({PLACE: 0})
            await until(lambda: len(world.fetches) >= 3)
            assert {each.node for each in world.fetches} == {1}
            world.closest = None
            assert await take(consumer, 1) == values(1)


async def test_a_closer_replica_that_the_metadata_do_not_name() -> None:
    async with two_replicas(closest=2, hidden={2}) as world:
        world.append(1)
        async with consumer_of(world, client_rack="here") as consumer:
            await consumer.assign({PLACE: 0})
            await until(lambda: len(world.fetches) >= 2)
            world.hidden = set()
            assert await take(consumer, 1) == values(1)
        assert world.fetches[-1].node == 2


async def test_a_leader_that_calls_itself_the_closest() -> None:
    async with two_replicas(closest=1) as world:
        world.append(1)
        async with consumer_of(world, client_rack="here") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 1) == values(1)


async def test_a_closer_replica_does_not_decide_that_the_log_was_cut_off() -> None:
    async with two_replicas(closest=2) as world:
        world.append(3)
        async with consumer_of(world, client_rack="here", auto_offset_reset="none") as consumer:
            await consumer.assign({PLACE: 0})
            assert await take(consumer, 3) == values(1, 1, 1)
            world.logs[2] = [1, 1]  # it has lost some, the leader has not
            before = len(world.fetches)
            await until(lambda: any(each.node == 1 for each in world.fetches[before:]))
            world.closest = None
            world.append(1)
            assert await take(consumer, 1) == values(1, start=3)


# Producers


async def test_a_leader_that_moves_under_a_producer() -> None:
    async with (
        two_replicas() as world,
        AsyncProducer(world.bootstrap, linger_ms=0, batch_size=100, **QUICK) as producer,
    ):
        sent = []
        for number in range(60):
            sent.append(await producer.send(TOPIC, b"%050d" % number))
            if number % 20 == 10:
                world.elect(3 - world.leader)
            await asyncio.sleep(0)
        delivered = [(await each).offset for each in sent]
    assert delivered == list(range(60))
    assert [int(world.values[offset]) for offset in range(60)] == list(range(60))
    assert world.log[-1] == 4
