"""One request that changes very many things must not stop the others: what there is, is created,
altered and deleted in portions, what was made for it is let go of in steps, and logs come and go in
turns.

As in test_long_requests, a clock that counts stands in for the time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic, fresh_name
from server_kit.long_requests import (
    LONG,
    LONG_QUESTIONS,
    T,
    Turns,
    count_steps,
    errors_of,
    make_ready,
)

from ottla import turns
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    elect_leaders,
    incremental_alter_configs,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from ottla.server import turns as server_turns
from ottla.server.disk.topic_logs import DoomedLogs
from ottla.server.partitions import Partitions
from ottla.server.portions import PORTION, one_by_one, portions
from ottla.server.turns import Steps
from ottla.storage.config import LogConfig
from ottla.storage.logs import Logs

# So many things there are, and so many functions are called in a turn of the loop at most: each of these
# things alone takes more than a hundred calls.
THERE_ARE = 400
LONGEST = 15_000


@pytest.fixture(autouse=True)
def real_time_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()


@pytest.fixture(scope="module")
def ready(inside: BrokerThread) -> BrokerThread:
    """With the topic of which the long requests speak, and the coordinators at work."""
    make_ready(inside, CHANGING.values())
    return inside


CHANGING = {
    name: {**LONG, **LONG_QUESTIONS}[name]
    for name in (
        "CreateTopics",
        "DeleteTopics",
        "IncrementalAlterConfigs",
        "DeleteRecords",
        "DeleteGroups",
        "OffsetDelete",
        "ElectLeaders",
        "AlterPartitionReassignments",
    )
}


# What is left of a request ------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHANGING)
def test_refusals_leave_nothing_to_the_garbage_collector(ready: BrokerThread, name: str) -> None:
    """It would come by once there are a million of them, and stop everybody for all that time."""
    make, response, version = CHANGING[name]
    count = 2000
    with ready.wire() as wire:
        gc.collect()
        gc.disable()
        try:
            wire.call(make(count), response, version)
            ready.until(lambda broker: all(each.idle for each in broker.reactor.connections))
            assert gc.collect() < count
        finally:
            gc.enable()


class Freed(Turns):
    """The memory blocks that are given back between two turns."""

    def __init__(self, thread: BrokerThread) -> None:
        super().__init__(thread)
        self.most = 0
        self._blocks = sys.getallocatedblocks()

    def _tick(self) -> None:
        blocks = sys.getallocatedblocks()
        self.most = max(self.most, self._blocks - blocks)
        self._blocks = blocks
        super()._tick()


@pytest.mark.parametrize(
    "name",
    [
        "DeleteTopics",
        pytest.param("CreateTopics", marks=pytest.mark.long),
        pytest.param("IncrementalAlterConfigs", marks=pytest.mark.long),
    ],
)
def test_a_long_request_is_let_go_of_in_steps(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """To free all that was made for it at once would take long, too."""
    # Several steps in a turn: to count the blocks of memory takes milliseconds where there are millions
    # of them, as in a process that has run thousands of tests.
    count_steps(monkeypatch)
    monkeypatch.setattr(server_turns, "ITEMS_IN_A_STEP", 5)
    make, _, version = CHANGING[name]
    count = 2000
    with ready.wire() as wire:
        frame = wire.encode(make(count), version)
        # What other tests have left would count, too, if it were collected meanwhile.
        gc.collect()
        gc.disable()
        try:
            with Freed(ready) as seen:
                wire.send_raw(frame)
                wire.frame()
                ready.until(lambda broker: all(each.idle for each in broker.reactor.connections))
        finally:
            gc.enable()
    # All at once it is three blocks and more for each entry.
    assert seen.most < 2 * count


# Things that there are ----------------------------------------------------------------------------


def _names(stem: str) -> list[str]:
    return [f"{stem}-{each}" for each in range(THERE_ARE)]


def _create(stem: str) -> Message:
    return create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in _names(stem)
        ],
        timeout_ms=60_000,
    )


def _grow(stem: str) -> Message:
    return create_partitions.CreatePartitionsRequest(
        topics=[
            create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None)
            for name in _names(stem)
        ],
        timeout_ms=60_000,
    )


def _alter_incrementally(stem: str) -> Message:
    entry = incremental_alter_configs.AlterableConfig(
        name="retention.ms", config_operation=0, value="12345678"
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=2, resource_name=name, configs=[entry]
            )
            for name in _names(stem)
        ]
    )


def _alter(stem: str) -> Message:
    entry = alter_configs.AlterableConfig(name="retention.ms", value="23456789")
    return alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(resource_type=2, resource_name=name, configs=[entry])
            for name in _names(stem)
        ]
    )


def _delete_records(stem: str) -> Message:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=0)
    return delete_records.DeleteRecordsRequest(
        topics=[
            delete_records.DeleteRecordsTopic(name=name, partitions=[partition])
            for name in _names(stem)
        ],
        timeout_ms=60_000,
    )


def _elect(stem: str) -> Message:
    return elect_leaders.ElectLeadersRequest(
        topic_partitions=[
            elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in _names(stem)
        ]
    )


def _reassign(stem: str) -> Message:
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        topics=[
            alter_partition_reassignments.ReassignableTopic(
                name=name,
                partitions=[
                    alter_partition_reassignments.ReassignablePartition(
                        partition_index=0, replicas=[1]
                    )
                ],
            )
            for name in _names(stem)
        ]
    )


def _delete(stem: str) -> Message:
    return delete_topics.DeleteTopicsRequest(topic_names=_names(stem), timeout_ms=60_000)


# In this order: (request, response, version, what is answered for each).
LIFE = {
    "CreateTopics": (_create, create_topics.CreateTopicsResponse, 4, ErrorCode.NONE),
    "CreatePartitions": (_grow, create_partitions.CreatePartitionsResponse, 1, ErrorCode.NONE),
    "IncrementalAlterConfigs": (
        _alter_incrementally,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
        1,
        ErrorCode.NONE,
    ),
    "AlterConfigs": (_alter, alter_configs.AlterConfigsResponse, 1, ErrorCode.NONE),
    "DeleteRecords": (_delete_records, delete_records.DeleteRecordsResponse, 1, ErrorCode.NONE),
    "ElectLeaders": (
        _elect,
        elect_leaders.ElectLeadersResponse,
        1,
        ErrorCode.ELECTION_NOT_NEEDED,
    ),
    "AlterPartitionReassignments": (
        _reassign,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse,
        0,
        ErrorCode.NONE,
    ),
    "DeleteTopics": (_delete, delete_topics.DeleteTopicsResponse, 4, ErrorCode.NONE),
}


@pytest.mark.parametrize("name", LIFE)
def test_the_loop_has_its_turn_while_many_topics_change(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also in what follows from a change: in the logs that come and go."""
    stem = fresh_name()
    make, kind, version, code = LIFE[name]
    with ready.wire() as wire:
        create, created, its_version, _ = LIFE["CreateTopics"]
        delete, deleted, last_version, _ = LIFE["DeleteTopics"]
        if name != "CreateTopics":
            wire.call(create(stem), created, its_version)
            ready.until(lambda broker: _has_logs(broker.partitions, stem))
        count_steps(monkeypatch)
        with Turns(ready) as seen:
            response = wire.call(make(stem), kind, version)
            if name == "CreateTopics":
                ready.until(lambda broker: _has_logs(broker.partitions, stem))
        monkeypatch.undo()
        if name != "DeleteTopics":
            wire.call(delete(stem), deleted, last_version)
        assert errors_of(response) - {0} == {code} - {0}
        assert not ready.run(
            lambda broker: any((topic, 0) in broker.logs for topic in _names(stem))
        )
    assert seen.longest < LONGEST


def _has_logs(known: Partitions, stem: str) -> bool:
    return all(
        each.opened is not None for topic in _names(stem) for each in known.by_name.get(topic, ())
    )


def test_the_loop_has_its_turn_while_all_leaders_are_elected(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem = fresh_name()
    with ready.wire() as wire:
        wire.call(_create(stem), create_topics.CreateTopicsResponse, 4)
        count_steps(monkeypatch)
        request = elect_leaders.ElectLeadersRequest(topic_partitions=None)
        with Turns(ready) as seen:
            response = wire.call(request, elect_leaders.ElectLeadersResponse, 1)
        monkeypatch.undo()
        named = {each.topic for each in response.replica_election_results}
        assert {T, *_names(stem)} <= named
        assert not any(each.partition_result for each in response.replica_election_results)
        wire.call(_delete(stem), delete_topics.DeleteTopicsResponse, 4)
    assert seen.longest < LONGEST


def test_the_loop_has_its_turn_while_many_offsets_and_groups_go(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem, group = fresh_name(), fresh_name("group")
    groups = [f"{group}-{each}" for each in range(THERE_ARE)]
    commit = offset_commit.OffsetCommitRequestTopic
    at_one = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    with ready.wire() as wire:
        wire.call(_create(stem), create_topics.CreateTopicsResponse, 4)
        wire.call(
            offset_commit.OffsetCommitRequest(
                group_id=group,
                topics=[commit(name=name, partitions=[at_one]) for name in _names(stem)],
            ),
            offset_commit.OffsetCommitResponse,
            7,
        )
        for each in groups:
            wire.call(
                offset_commit.OffsetCommitRequest(
                    group_id=each, topics=[commit(name=T, partitions=[at_one])]
                ),
                offset_commit.OffsetCommitResponse,
                7,
            )
        count_steps(monkeypatch)
        forget = offset_delete.OffsetDeleteRequest(
            group_id=group,
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        offset_delete.OffsetDeleteRequestPartition(partition_index=index)
                        for index in (0, 7, 8)
                    ],
                )
                for name in _names(stem)
            ],
        )
        with Turns(ready) as seen:
            forgotten = wire.call(forget, offset_delete.OffsetDeleteResponse, 0)
        with Turns(ready) as also_seen:
            gone = wire.call(
                delete_groups.DeleteGroupsRequest(groups_names=groups),
                delete_groups.DeleteGroupsResponse,
                1,
            )
        monkeypatch.undo()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
            for topic in forgotten.topics
        ] == [(name, [(0, 0), (7, unknown), (8, unknown)]) for name in _names(stem)]
        left = wire.call(
            offset_fetch.OffsetFetchRequest(group_id=group, topics=None),
            offset_fetch.OffsetFetchResponse,
            5,
        )
        assert left.topics == []
        assert [(each.group_id, each.error_code) for each in gone.results] == [
            (each, 0) for each in groups
        ]
        listed = wire.call(list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse, 4)
        assert not {each.group_id for each in listed.groups} & set(groups)
        wire.call(_delete(stem), delete_topics.DeleteTopicsResponse, 4)
    assert max(seen.longest, also_seen.longest) < LONGEST


def test_the_partitions_of_a_request_are_counted_over_its_portions(ready: BrokerThread) -> None:
    stem = fresh_name()
    names = [f"{stem}-{each}" for each in range(3)]
    grown = create_partitions.CreatePartitionsTopic
    with ready.wire() as wire:
        for name in names:
            create_topic(wire, 1, name)
        response = wire.call(
            create_partitions.CreatePartitionsRequest(
                topics=[grown(name=name, count=5001, assignments=None) for name in names],
                timeout_ms=60_000,
                validate_only=True,
            ),
            create_partitions.CreatePartitionsResponse,
            1,
        )
        assert [each.error_code for each in response.results] == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.POLICY_VIOLATION,
        ]


# Portions -----------------------------------------------------------------------------------------


def done(steps: Steps[object]) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def test_portions_are_as_heavy_as_their_items() -> None:
    items = [("light", 1)] * 1 + [(f"heavy-{each}", 30) for each in range(5)]
    found = done(portions(items, lambda each: each[0], weight=lambda each: each[1]))
    assert isinstance(found, list)
    assert [[name for name, _ in some] for some in found] == [
        ["light", "heavy-0", "heavy-1"],
        ["heavy-2", "heavy-3"],
        ["heavy-4"],
    ]
    assert len(list(one_by_one(found))) == 3
    assert not found


def test_what_is_the_same_is_in_one_portion_twice_at_most() -> None:
    items = [str(each) for each in range(3 * PORTION)]
    found = done(portions([*items, "0", "0", "0", "1"], lambda each: each))
    assert isinstance(found, list)
    assert found[0][:4] == ["0", "0", "1", "1"]
    assert [each for some in found for each in some] == ["0", "0", "1", "1", *items[2:]]


# Logs that go -------------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    found = Logs([str(tmp_path)], lambda _: LogConfig())
    found.open()
    yield found
    found.close()


def test_a_log_makes_room_for_its_namesake(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    for index in range(5):
        logs.create("orders", index, b"1" * 16)

    async def scenario() -> None:
        doomed = DoomedLogs(asyncio.get_running_loop(), logs)
        doomed.add("orders", range(7))
        doomed.delete()
        # A slice of one log is over; one of the others is wanted at once.
        assert len(list(logs.keys())) == 4
        doomed.delete_now("orders", 0)
        assert ("orders", 0) not in logs
        logs.create("orders", 0, b"2" * 16)
        await doomed.all_gone()
        assert list(logs.keys()) == [("orders", 0)]
        assert logs.get("orders", 0).topic_id == b"2" * 16
        # Nothing is left to wait for.
        await doomed.all_gone()
        doomed.delete_now("orders", 0)
        assert ("orders", 0) in logs

    asyncio.run(scenario())
    assert (tmp_path / "orders-0").is_dir()
    assert not (tmp_path / "orders-1").exists()


# What is left of messages -------------------------------------------------------------------------


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_array_that_somebody_has_kept_is_not_emptied(is_kept: bool) -> None:
    encoded = delete_topics.DeleteTopicsRequest(topic_names=["a", "b"]).encode(4)
    message, _ = delete_topics.DeleteTopicsRequest.decode(encoded, 0, 4)
    kept = message.topic_names if is_kept else None
    done(server_turns.emptied_message(message))
    assert message.topic_names == (["a", "b"] if is_kept else [])
    assert kept is None or kept == ["a", "b"]
