"""Metadata: brokers, topics, ids, automatic creation, what each listener's clients are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerElsewhere, BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fresh_name, produce, versions_of
from server_kit.wire import Wire

from ottla.cluster.controller import Controller
from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

VERSIONS = versions_of(MetadataRequest)
BAD_NAMES = ["", ".", "..", "a b", "a/b", "a\0b", "ä", "x" * 250, "topic:1"]


def ask(
    wire: Wire, *names: str, version: int = 9, create: bool = False, ids: tuple[bytes, ...] = ()
) -> MetadataResponse:
    return wire.call(
        MetadataRequest(
            topics=[
                *(MetadataRequestTopic(name=name) for name in names),
                *(MetadataRequestTopic(name=None, topic_id=each) for each in ids),
            ],
            # Before v4 there was no choice: such requests create.
            allow_auto_topic_creation=create or version < 4,
        ),
        MetadataResponse,
        version,
    )


def one(response: MetadataResponse) -> MetadataResponseTopic:
    (topic,) = response.topics
    return topic


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(broker: BrokerThread | BrokerElsewhere, wire: Wire, version: int) -> None:
    made = create_topic(wire, partitions=3)
    response = ask(wire, made.name, version=version)
    (node,) = response.brokers
    assert (node.host, node.port) == (broker.host, broker.port)
    if version >= 1:
        assert response.controller_id == node.node_id
    if version >= 2:
        assert response.cluster_id
    topic = one(response)
    assert (topic.error_code, topic.name, topic.is_internal) == (0, made.name, False)
    assert topic.topic_id == (made.id if version >= 10 else ZERO_UUID)
    assert [each.partition_index for each in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert partition.error_code == 0
        assert partition.leader_id == node.node_id
        assert partition.replica_nodes == [node.node_id]
        assert partition.isr_nodes == [node.node_id]
        assert partition.offline_replicas == []
        assert partition.leader_epoch == (0 if version >= 7 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics(wire: Wire, version: int) -> None:
    made = [create_topic(wire).name for _ in range(3)]
    # Null is "all"; in v0, which has no null, an empty list is.
    wanted = None if version >= 1 else []
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
    names = [each.name for each in wire.call(request, MetadataResponse, version).topics]
    assert set(made) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_no_topics(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.call(MetadataRequest(topics=[]), MetadataResponse, version)
    assert response.topics == []
    assert response.brokers


@pytest.mark.parametrize("version", VERSIONS)
def test_automatic_creation(wire: Wire, version: int) -> None:
    name = fresh_name("auto")
    topic = one(ask(wire, name, version=version, create=True))
    assert topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE,
                                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # fmt: skip
    while topic.error_code:
        topic = one(ask(wire, name, version=version, create=True))
    assert len(topic.partitions) == 1


def test_created_at_once(inside: BrokerThread, wire: Wire) -> None:
    """The answer that creates a topic describes it already, and it can be written to."""
    name = fresh_name("auto")
    topic = one(ask(wire, name, version=12, create=True))
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    assert produce(wire, Topic(name, topic.topic_id), batch_of(b"a")).base_offset == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_made_without_a_controller(
    inside: BrokerThread, wire: Wire, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is told all the same."""
    made, absent = create_topic(wire).name, fresh_name("absent")

    async def refuse(*_: object) -> None:
        raise ProtocolError(ErrorCode.NOT_CONTROLLER)

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "create_topics", refuse)
        topics = ask(wire, made, absent, version=version, create=True).topics
    assert [(each.name, each.error_code, len(each.partitions)) for each in topics] == [
        (made, 0, 1), (absent, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS[4:])
def test_no_creation_unless_asked(wire: Wire, version: int) -> None:
    name = fresh_name("absent")
    for _ in range(2):
        topic = one(ask(wire, name, version=version))
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (topic.name, topic.partitions) == (name, [])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("create", [False, True])
def test_bad_names(wire: Wire, version: int, name: str, create: bool) -> None:
    topic = one(ask(wire, name, version=version, create=create))
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert topic.name == name


def test_names_that_collide_are_not_created(inside: BrokerThread, wire: Wire) -> None:
    stem = fresh_name("same").replace(".", "-").replace("_", "-")
    one(ask(wire, f"{stem}.x", create=True))
    topic = one(ask(wire, f"{stem}_x", create=True))
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_new_name_asked_for_twice(inside: BrokerThread, wire: Wire) -> None:
    name = fresh_name("twice")
    response = ask(wire, name, name, create=True)
    assert {each.error_code for each in response.topics} == {0}
    assert {each.name for each in response.topics} == {name}


def test_new_and_known_and_bad_together(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    new = fresh_name("new")
    response = ask(wire, topic.name, new, "bad name", create=True)
    assert {each.name: ErrorCode(each.error_code) for each in response.topics} == {
        topic.name: ErrorCode.NONE,
        new: ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("version", VERSIONS[12:])
def test_by_id(wire: Wire, topic: Topic, version: int) -> None:
    found = one(ask(wire, ids=(topic.id,), version=version))
    assert (found.error_code, found.name, found.topic_id) == (0, topic.name, topic.id)
    stranger = one(ask(wire, ids=(b"\x09" * 16,), version=version))
    assert stranger.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert stranger.topic_id == b"\x09" * 16
    assert stranger.partitions == []


@pytest.mark.parametrize("version", [10, 11])
def test_by_id_before_its_version(
    inside: BrokerThread, wire: Wire, topic: Topic, version: int
) -> None:
    """The field is there, but of no use; the answer has to be one, and no crash."""
    found = one(ask(wire, ids=(topic.id,), version=version))
    assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", VERSIONS[10:])
def test_neither_name_nor_id(inside: BrokerThread, wire: Wire, version: int) -> None:
    found = one(ask(wire, ids=(ZERO_UUID,), version=version))
    assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", VERSIONS[8:])
def test_authorized_operations(wire: Wire, topic: Topic, version: int) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic.name)],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=version <= 10,
    )
    response = wire.call(request, MetadataResponse, version)
    assert one(response).topic_authorized_operations == 0b1101_1111_1000
    if version <= 10:
        assert response.cluster_authorized_operations == 0b1_1111_1010_0000
    assert one(ask(wire, topic.name, version=version)).topic_authorized_operations == -(2**31)


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_creation_switched_off(start_broker: Callable[..., BrokerThread], version: int) -> None:
    broker = start_broker(settings={"auto.create.topics.enable": "false"})
    with broker.wire() as wire:
        topic = one(ask(wire, "absent", version=version, create=True))
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_default_number_of_partitions(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"num.partitions": "4"})
    with broker.wire() as wire:
        assert len(one(ask(wire, "new", create=True)).partitions) == 4


def test_topics_of_coordinators_have_their_own_settings(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Also if a client asks for their metadata before anybody needs a coordinator: retention would take
    the offsets of groups and the state of transactions."""
    broker = start_broker(
        settings={"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "2"}
    )
    counts = {CONSUMER_OFFSETS: 3, TRANSACTION_STATE: 2}
    with broker.wire() as wire:
        made = ask(wire, *counts, version=9, create=True).topics
    assert {each.name: len(each.partitions) for each in made} == counts
    assert all(each.is_internal for each in made)
    for name in counts:
        config = broker.run(lambda broker, name=name: broker.topic_config(name))  # type: ignore[misc]
        assert config.cleanup_policy == ("compact",)


def test_each_listener_has_its_own_address(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(
        settings={
            "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "advertised.listeners": "INSIDE://inside.example:1111,OUTSIDE://outside.example:2222",
        }
    )
    told = {}
    for listener in broker.broker.bound:
        with Wire("127.0.0.1", listener.port) as wire:
            (node,) = ask(wire, version=9).brokers
            told[listener.name] = (node.host, node.port)
            from ottla.protocol.messages.describe_cluster import (
                DescribeClusterRequest,
                DescribeClusterResponse,
            )

            (node,) = wire.call(DescribeClusterRequest(), DescribeClusterResponse, 0).brokers
            assert told[listener.name] == (node.host, node.port)
    assert told == {"INSIDE": ("inside.example", 1111), "OUTSIDE": ("outside.example", 2222)}


def test_rack(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"broker.rack": "attic"})
    with broker.wire() as wire:
        assert ask(wire, version=1).brokers[0].rack == "attic"


def test_ids_last(start_broker: Callable[..., BrokerThread]) -> None:
    """Cluster id and topic ids are the same after a restart."""
    broker = start_broker()
    with broker.wire() as wire:
        made = create_topic(wire, partitions=2)
        before = ask(wire, made.name, version=12)
    broker.restart()
    with broker.wire() as wire:
        after = ask(wire, made.name, version=12)
    assert after.cluster_id == before.cluster_id
    for partition in before.topics[0].partitions:
        partition.leader_epoch += 1  # a start is a new term of every leader
    assert after.topics == before.topics
