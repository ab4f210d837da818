"""Admin calls beyond creating and deleting a topic, as the clients make them."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, OffsetSpec
from interop_kit.clients.client import Start
from interop_kit.clients.driver import DriverClient
from interop_kit.clients.kcat import KcatClient
from interop_kit.records import assert_same, numbered, plain_records


@pytest.fixture
def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def kcat(make_client) -> KcatClient:
    return make_client("kcat")


@pytest.fixture
def kafkajs(make_client) -> DriverClient:
    return make_client("kafkajs")


@pytest.fixture
def platformatic(make_client, has_groups) -> DriverClient:
    if not has_groups:
        pytest.skip("the stream of @platformatic/kafka needs consumer groups, which come later")
    return make_client("platformatic")


def test_describe_cluster_and_topics(admin, reference, broker, topic) -> None:
    reference.create_topic(topic, 2)
    cluster = admin.describe_cluster(request_timeout=20).result()
    assert len(cluster.cluster_id) == 22
    assert f"{cluster.controller.host}:{cluster.controller.port}" == broker.bootstrap
    assert len(cluster.nodes) == 1
    answer = admin.describe_topics(TopicCollection([topic]), request_timeout=20)
    described = answer[topic].result()
    assert not described.is_internal
    assert [one.id for one in described.partitions] == [0, 1]
    assert all(one.leader.id == cluster.nodes[0].id for one in described.partitions)


def test_create_partitions(admin, reference, topic) -> None:
    reference.create_topic(topic)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    reference.await_topic(topic)
    records = [record for number in range(3) for record in plain_records(5, partition=number)]
    reference.produce(topic, records)
    for partition in range(3):
        expected = numbered([record for record in records if record.partition == partition])
        assert_same(reference.consume(topic, partition, 5), expected)


def test_list_offsets(admin, reference, topic) -> None:
    reference.create_topic(topic)
    records = numbered(plain_records(10, step=1000))
    reference.produce(topic, records)

    def offset(spec: OffsetSpec) -> int:
        place = TopicPartition(topic, 0)
        return admin.list_offsets({place: spec}, request_timeout=20)[place].result().offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(records[6].timestamp - 1)) == 6


def test_delete_records(admin, reference, topic) -> None:
    reference.create_topic(topic)
    reference.produce(topic, plain_records(10))
    answer = admin.delete_records([TopicPartition(topic, 0, 4)], request_timeout=20)
    ((_, future),) = answer.items()
    assert future.result().low_watermark == 4
    assert reference.offsets(topic, 0) == (4, 10)


def test_describe_configs_of_the_broker(admin, reference) -> None:
    node = admin.describe_cluster(request_timeout=20).result().nodes[0].id
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    settings = admin.describe_configs([resource])[resource].result(20)
    assert settings["log.retention.hours"].value == "168"
    assert settings["log.segment.bytes"].value == str(1 << 30)
    assert settings["log.retention.hours"].is_default


def test_kcat_lists_brokers_and_topics(kcat, reference, broker, topic) -> None:
    reference.create_topic(topic, 2)
    listing = kcat.listing()
    assert [one["name"] for one in listing["brokers"]] == [broker.bootstrap]
    (found,) = [one for one in listing["topics"] if one["topic"] == topic]
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    assert all(one["leader"] == listing["brokers"][0]["id"] for one in found["partitions"])


def test_kafkajs_describes_and_alters(kafkajs, reference, broker, topic) -> None:
    kafkajs.create_topic(topic, 2, {"retention.ms": "7200000"})
    described = kafkajs.request(command="describe", topic=topic)
    assert described["listed"]
    assert described["partitions"] == [0, 1]
    assert described["config"]["retention.ms"] == "7200000"
    assert described["brokers"] == [broker.bootstrap]
    wanted = {"retention.ms": "3600000", "segment.ms": "600000"}
    kafkajs.request(command="alter", topic=topic, config=wanted, partitions=3)
    reference.await_topic(topic)
    described = kafkajs.request(command="describe", topic=topic)
    assert described["partitions"] == [0, 1, 2]
    assert described["config"].items() >= wanted.items()
    records = numbered(plain_records(10))
    reference.produce(topic, records)
    kafkajs.request(command="delete_records", topic=topic, partition=0, offset=6)
    assert reference.offsets(topic, 0) == (6, 10)
    assert_same(reference.consume(topic, 0, 4, Start(offset=6)), records[6:])


def test_platformatic_reads_as_a_member(platformatic, reference, topic) -> None:
    """Its stream of messages; its `fetch`, which needs no group, is what the other tests use."""
    reference.create_topic(topic)
    records = numbered(plain_records(20))
    reference.produce(topic, records, "gzip")
    found = platformatic.request(
        command="consume_group",
        topic=topic,
        partition=0,
        count=15,
        start={"offset": 5},
        timeout=30_000,
    )
    assert [record["offset"] for record in found] == list(range(5, 20))
