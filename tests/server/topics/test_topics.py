"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fill,
    fresh_name,
    produce,
    read_all,
    versions_of,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

CREATE = versions_of(CreateTopicsRequest, first=2)
DELETE = versions_of(DeleteTopicsRequest, first=1)
GROW = versions_of(CreatePartitionsRequest)


def create(
    wire: Wire, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=20_000, validate_only=validate_only
    )
    return wire.call(request, CreateTopicsResponse, version).topics


def plain(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


def assigned(name: str, *replicas: tuple[int, list[int]]) -> CreatableTopic:
    return plain(
        name,
        -1,
        -1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in replicas
        ],
    )


def partitions_of(wire: Wire, name: str) -> int:
    """How many there are; 0 if there is no such topic."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return len(wire.call(request, MetadataResponse, 12).topics[0].partitions)


def node_id(wire: Wire) -> int:
    return wire.call(MetadataRequest(topics=[]), MetadataResponse, 1).brokers[0].node_id


# CreateTopics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(CreateTopicsRequest))
def test_create(wire: Wire, version: int) -> None:
    names = [fresh_name("made") for _ in range(2)]
    results = create(wire, plain(names[0], 1), plain(names[1], 3), version=version)
    assert [each.error_code for each in results] == [0, 0]
    by_name = {each.name: each for each in results}
    assert set(by_name) == set(names)
    if version >= 5:
        assert by_name[names[1]].num_partitions == 3
        assert by_name[names[1]].replication_factor == 1
    if version >= 7:
        assert by_name[names[0]].topic_id != ZERO_UUID
        assert by_name[names[0]].topic_id != by_name[names[1]].topic_id


def test_usable_when_answered(inside: BrokerThread, wire: Wire) -> None:
    name = fresh_name("made")
    (made,) = create(wire, plain(name, 3))
    assert partitions_of(wire, name) == 3
    for index in range(3):
        assert (
            produce(wire, Topic(name, made.topic_id), batch_of(b"a"), index=index).error_code == 0
        )


@pytest.mark.parametrize("version", CREATE)
def test_exists_already(wire: Wire, topic: Topic, version: int) -> None:
    (result,) = create(wire, plain(topic.name), version=version)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert result.error_message


@pytest.mark.parametrize("version", CREATE)
@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_bad_name(wire: Wire, version: int, name: str) -> None:
    (result,) = create(wire, plain(name), version=version)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.name == name


@pytest.mark.parametrize("version", CREATE)
@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_bad_counts(
    wire: Wire, version: int, partitions: int, factor: int, code: ErrorCode
) -> None:
    name = fresh_name("bad")
    (result,) = create(wire, plain(name, partitions, factor), version=version)
    assert result.error_code == code
    assert partitions_of(wire, name) == 0


@pytest.mark.parametrize("version", versions_of(CreateTopicsRequest, first=4))
def test_defaults(wire: Wire, version: int) -> None:
    (result,) = create(wire, plain(fresh_name("made"), -1, -1), version=version)
    assert result.error_code == 0
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (1, 1)


@pytest.mark.parametrize("version", CREATE)
def test_the_same_name_twice(wire: Wire, version: int) -> None:
    name, other = fresh_name("twice"), fresh_name("other")
    results = create(wire, plain(name), plain(other), plain(name, 2), version=version)
    codes = {each.name: ErrorCode(each.error_code) for each in results}
    assert codes == {name: ErrorCode.INVALID_REQUEST, other: ErrorCode.NONE}
    assert len(results) == 2


@pytest.mark.parametrize("version", CREATE)
def test_validate_only(wire: Wire, topic: Topic, version: int) -> None:
    name = fresh_name("never")
    results = create(
        wire, plain(name, 2), plain(topic.name), plain("bad name"),
        version=version, validate_only=True,
    )  # fmt: skip
    assert {each.name: ErrorCode(each.error_code) for each in results} == {
        name: ErrorCode.NONE,
        topic.name: ErrorCode.TOPIC_ALREADY_EXISTS,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert partitions_of(wire, name) == 0


@pytest.mark.parametrize("version", CREATE)
def test_assignments(wire: Wire, version: int) -> None:
    me = node_id(wire)
    name = fresh_name("assigned")
    (result,) = create(wire, assigned(name, (1, [me]), (0, [me])), version=version)
    assert result.error_code == 0
    bad = {
        "strange broker": assigned(fresh_name(), (0, [me + 70])),
        "twice": assigned(fresh_name(), (0, [me, me])),
        "nobody": assigned(fresh_name(), (0, [])),
        "gap": assigned(fresh_name(), (0, [me]), (2, [me])),
        "not from 0": assigned(fresh_name(), (1, [me])),
    }
    for why, request in bad.items():
        (result,) = create(wire, request, version=version)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, why
    both = assigned(fresh_name(), (0, [me]))
    both.num_partitions = 1
    (result,) = create(wire, both, version=version)
    assert result.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", CREATE)
def test_settings(wire: Wire, version: int) -> None:
    configs = [
        CreatableTopicConfig(name="retention.ms", value="12345"),
        CreatableTopicConfig(name="cleanup.policy", value="compact"),
    ]
    (result,) = create(wire, plain(fresh_name("made"), configs=configs), version=version)
    assert result.error_code == 0
    if version >= 5:
        assert result.configs is not None
        told = {each.name: (each.value, each.config_source) for each in result.configs}
        assert told["retention.ms"] == ("12345", 1)
        assert told["cleanup.policy"] == ("compact", 1)
        assert told["max.message.bytes"] == ("1048588", 5)


@pytest.mark.parametrize("version", CREATE)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", None),
        ("cleanup.policy", "burn"),
        ("no.such.setting", "1"),
        ("compression.type", "rar"),
    ],
)
def test_bad_settings(wire: Wire, version: int, key: str, value: str | None) -> None:
    name = fresh_name("bad")
    configs = [CreatableTopicConfig(name=key, value=value)]
    (result,) = create(wire, plain(name, configs=configs), version=version)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert partitions_of(wire, name) == 0


def test_names_that_collide(wire: Wire) -> None:
    stem = fresh_name("same").replace(".", "-").replace("_", "-")
    assert create(wire, plain(f"{stem}.a"))[0].error_code == 0
    (result,) = create(wire, plain(f"{stem}_a"))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.differs("Kafka has other codes for some of these")
def test_very_long_things(wire: Wire) -> None:
    """Error messages with a name of 32 KiB in them must not burst the answer."""
    for version in CREATE:
        (result,) = create(wire, plain("n" * 32767), version=version)
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        configs = [CreatableTopicConfig(name="k" * 32767, value="v" * 32767)]
        (result,) = create(wire, plain(fresh_name(), configs=configs), version=version)
        assert result.error_code == ErrorCode.INVALID_CONFIG
        twice = "t" * 32767
        (result,) = create(wire, plain(twice), plain(twice), version=version)
        assert result.error_code in (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


def test_too_many_partitions_at_once(wire: Wire) -> None:
    (result,) = create(wire, plain(fresh_name(), 2_000_000_000))
    assert result.error_code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PARTITIONS)


# DeleteTopics -----------------------------------------------------------------------------------


def delete(wire: Wire, *topics: str | bytes, version: int = 6) -> list[DeletableTopicResult]:
    if version < 6:
        request = DeleteTopicsRequest(
            topic_names=[each for each in topics if isinstance(each, str)], timeout_ms=20_000
        )
    else:
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicState(name=each)
                if isinstance(each, str)
                else DeleteTopicState(name=None, topic_id=each)
                for each in topics
            ],
            timeout_ms=20_000,
        )
    return wire.call(request, DeleteTopicsResponse, version).responses


@pytest.mark.parametrize("version", versions_of(DeleteTopicsRequest))
def test_delete(wire: Wire, version: int) -> None:
    first, second = create_topic(wire), create_topic(wire)
    missing = fresh_name("missing")
    results = delete(wire, first.name, missing, second.name, version=version)
    assert {each.name: ErrorCode(each.error_code) for each in results} == {
        first.name: ErrorCode.NONE,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        second.name: ErrorCode.NONE,
    }
    if version >= 6:
        assert {each.name: each.topic_id for each in results}[first.name] == first.id


def test_delete_by_id(wire: Wire, topic: Topic) -> None:
    results = delete(wire, topic.id, b"\x05" * 16)
    by_id = {each.topic_id: each for each in results}
    assert (by_id[topic.id].name, by_id[topic.id].error_code) == (topic.name, 0)
    assert by_id[b"\x05" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_delete_oddities(wire: Wire, topic: Topic) -> None:
    (result,) = delete(wire, ZERO_UUID)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    results = delete(wire, topic.name, topic.name)
    assert {each.error_code for each in results} == {ErrorCode.INVALID_REQUEST}
    results = delete(wire, topic.name, topic.id)
    assert {each.error_code for each in results} == {ErrorCode.INVALID_REQUEST}
    assert partitions_of(wire, topic.name) == 1


def test_deleted_and_made_again(inside: BrokerThread, wire: Wire) -> None:
    """At once, with nothing of the old records left."""
    first = create_topic(wire, partitions=2)
    fill(wire, first, batch_of(b"old"), index=1)
    for _ in range(3):
        assert delete(wire, first.name)[0].error_code == 0
        assert partitions_of(wire, first.name) == 0
        second = create_topic(wire, partitions=2, name=first.name)
        assert second.id != first.id
        assert read_all(wire, second, index=1) == []
        answer = produce(wire, second, batch_of(b"new"), index=1, version=13)
        assert answer.base_offset == 0
        answer = produce(wire, first, batch_of(b"lost"), index=1, version=13)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_deletion_disabled(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"delete.topic.enable": "false"})
    with broker.wire() as wire:
        topic = create_topic(wire)
        for version in DELETE:
            (result,) = delete(wire, topic.name, version=version)
            assert result.error_code == (
                ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
            )
        assert partitions_of(wire, topic.name) == 1


def test_very_long_names_to_delete(wire: Wire) -> None:
    for version in DELETE:
        (result,) = delete(wire, "n" * 32767, version=version)
        assert result.error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


# CreatePartitions -------------------------------------------------------------------------------


def grow(
    wire: Wire,
    *topics: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    validate_only: bool = False,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=each) for each in assignments],
            )
            for name, count, assignments in topics
        ],
        timeout_ms=20_000,
        validate_only=validate_only,
    )
    return wire.call(request, CreatePartitionsResponse, version).results


@pytest.mark.parametrize("version", GROW)
def test_grow(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"before"))
    (result,) = grow(wire, (topic.name, 4, None), version=version)
    assert (result.name, result.error_code) == (topic.name, 0)
    while partitions_of(wire, topic.name) != 4:
        assert wire.is_elsewhere, "the answer came before the partitions"
    assert read_all(wire, topic) == [b"before"]


def test_new_partitions_are_usable(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    grow(wire, (topic.name, 3, None))
    for index in range(3):
        assert produce(wire, topic, batch_of(b"a"), index=index).base_offset == 0


@pytest.mark.parametrize("version", GROW)
def test_grow_with_assignments(wire: Wire, topic: Topic, version: int) -> None:
    me = node_id(wire)
    (result,) = grow(wire, (topic.name, 3, [[me], [me]]), version=version)
    assert result.error_code == 0
    for bad in ([[me]], [[me], [me + 50]], [[me], []], [[me, me], [me]]):
        (result,) = grow(wire, (topic.name, 5, bad), version=version)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("version", GROW)
@pytest.mark.parametrize("count", [0, -1, 1, 2])
def test_only_upwards(wire: Wire, version: int, count: int) -> None:
    topic = create_topic(wire, partitions=2)
    (result,) = grow(wire, (topic.name, count, None), version=version)
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert partitions_of(wire, topic.name) == 2


@pytest.mark.parametrize("version", GROW)
def test_grow_oddities(wire: Wire, topic: Topic, version: int) -> None:
    (result,) = grow(wire, (fresh_name("missing"), 3, None), version=version)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    results = grow(wire, (topic.name, 3, None), (topic.name, 4, None), version=version)
    assert {each.error_code for each in results} == {ErrorCode.INVALID_REQUEST}
    (result,) = grow(wire, (topic.name, 3, None), version=version, validate_only=True)
    assert result.error_code == 0
    assert partitions_of(wire, topic.name) == 1


def test_all_of_it_lasts(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with broker.wire() as wire:
        kept, gone, grown = (create_topic(wire) for _ in range(3))
        fill(wire, kept, batch_of(b"kept"))
        delete(wire, gone.name)
        grow(wire, (grown.name, 5, None))
        fill(wire, grown, batch_of(b"late"), index=4)
    broker.restart()
    with broker.wire() as wire:
        assert [partitions_of(wire, each.name) for each in (kept, gone, grown)] == [1, 0, 5]
        assert read_all(wire, kept) == [b"kept"]
        assert read_all(wire, grown, index=4) == [b"late"]
        assert produce(wire, kept, batch_of(b"more"), version=13).base_offset == 1
