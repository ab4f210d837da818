"""Admin against Ottla, against a broker that looks like Kafka 2.4, and against Apache Kafka."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from wire_kit.kafka import Kafka

from ottla import Admin, AsyncAdmin
from ottla.client.admin.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclResource,
    ClientQuota,
)
from ottla.client.admin.configs import Resource, SettingSource
from ottla.client.admin.offsets import CommittedOffset
from ottla.client.admin.topics import NewTopic
from ottla.client.errors import (
    ConfigurationError,
    Failures,
    GroupNotEmpty,
    GroupNotFound,
    InvalidPartitions,
    InvalidReplication,
    InvalidSetting,
    InvalidTopic,
    OffsetOutOfRange,
    SecurityDisabled,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
    Unsupported,
)
from ottla.client.positions import Position, TopicPartition

HOUR = 3_600_000


def produce(bootstrap: str, topic: str, partition: int, timestamps: list[int]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number, timestamp in enumerate(timestamps):
        producer.produce(topic, f"value {number}", partition=partition, timestamp=timestamp)
        producer.flush(20)


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(
        offsets=[
            confluent_kafka.TopicPartition(topic, partition, offset)
            for (topic, partition), offset in offsets.items()
        ],
        asynchronous=False,
    )
    consumer.close()


def eventually(holds: Callable[[], bool]) -> None:
    """Kafka's brokers take over what its controller has acknowledged a moment later."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def member(bootstrap: str, admin: Admin, topic: str, group: str) -> Iterator[str]:
    """A group with one live member that reads the topic's two partitions."""
    admin.create_topic(topic, 2)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "somebody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
        }
    )
    assigned: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    deadline = time.monotonic() + 40
    while not assigned:
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    yield group
    consumer.close()


def test_every_call_has_its_blocking_twin() -> None:
    for name, method in inspect.getmembers(AsyncAdmin, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            twin = getattr(Admin, name)
            assert not inspect.iscoroutinefunction(twin)
            assert twin.__doc__ == method.__doc__ or name == "close"
            assert method.__doc__, name


# Topics


def test_topics(admin: Admin, kind: str, topic: str) -> None:
    created = admin.create_topic(topic, 3, settings={"retention.ms": "86400000"})
    assert (created.name, created.partitions, created.replication_factor) == (topic, 3, 1)
    [listed] = [each for each in admin.list_topics() if each.name == topic]
    described = admin.describe_topics(topic)[topic]
    assert described == listed
    assert [each.partition for each in described.partitions] == [0, 1, 2]
    for each in described.partitions:
        assert each.replicas == each.in_sync == (each.leader,)
    if kind == "older":
        assert described.topic_id is None
    else:
        assert described.topic_id == created.topic_id
        assert len(described.topic_id or "") == 22
    admin.create_partitions(topic, 5)
    eventually(lambda: len(admin.describe_topics(topic)[topic].partitions) == 5)
    admin.delete_topics(topic)
    eventually(lambda: topic not in {each.name for each in admin.list_topics()})
    with pytest.raises(TopicNotFound, match=topic):
        admin.describe_topics(topic)


def test_what_cannot_be_done_with_topics(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(TopicExists):
        admin.create_topic(topic)
    with pytest.raises(InvalidTopic):
        admin.create_topic("no spaces, please")
    with pytest.raises(InvalidReplication):
        admin.create_topic(topic + "-b", replication_factor=7)
    with pytest.raises(InvalidSetting, match=r"no\.such\.setting"):
        admin.create_topic(topic + "-b", settings={"no.such.setting": "1"})
    with pytest.raises(InvalidPartitions):
        admin.create_partitions(topic, 1)
    with pytest.raises(TopicNotFound):
        admin.delete_topics(topic + "-b")
    with pytest.raises(TopicNotFound):
        admin.create_partitions(topic + "-b", 5)


def test_several_of_which_some_fail(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(Failures) as caught:
        admin.create_topics([topic, NewTopic(topic + "-b", 2), "not allowed!"])
    assert set(caught.value.errors) == {topic, "not allowed!"}
    assert set(caught.value.results) == {topic + "-b"}
    assert isinstance(caught.value.errors[topic], TopicExists)
    assert len(admin.describe_topics([topic + "-b"])[topic + "-b"].partitions) == 2
    seen = []
    try:
        admin.describe_topics([topic, topic + "-c", topic + "-d"])
    except* TopicNotFound as missing:
        seen = [error.about for error in missing.exceptions]  # type: ignore[attr-defined]
    assert seen == [f"topic '{topic}-c'", f"topic '{topic}-d'"]


def test_validation_creates_nothing(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2, validate_only=True)
    assert topic not in {each.name for each in admin.list_topics()}


def test_replica_assignment(admin: Admin, topic: str) -> None:
    node = admin.describe_cluster().brokers[0].id
    admin.create_topics([NewTopic(topic, assignments={0: [node], 1: [node]})])
    assert len(admin.describe_topics(topic)[topic].partitions) == 2


def test_delete_records(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, 2)
    now = int(time.time() * 1000)
    for partition in (0, 1):
        produce(bootstrap, topic, partition, [now] * 5)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.delete_records({first: 2, second: None}) == {first: 2, second: 5}
    starts = admin.list_offsets({first: "earliest", second: "earliest"})
    assert {key: found.offset for key, found in starts.items()} == {first: 2, second: 5}
    with pytest.raises(OffsetOutOfRange):
        admin.delete_records({first: 99})
    with pytest.raises(TopicNotFound):
        admin.delete_records({TopicPartition(topic, 7): 1})


# Settings


def test_settings_of_topics(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    resource = Resource.topic(topic)
    admin.alter_configs(resource, assign={"retention.ms": "1000", "cleanup.policy": "delete"})
    admin.alter_configs(resource, append={"cleanup.policy": "compact"})
    _await_setting(admin, resource, "cleanup.policy", "delete,compact")
    settings = admin.describe_configs(resource, synonyms=True)[resource]
    assert settings["retention.ms"].value == "1000"
    assert settings["retention.ms"].source is SettingSource.TOPIC
    assert settings["retention.ms"].synonyms[0].value == "1000"
    assert settings["cleanup.policy"].value == "delete,compact"
    assert settings["segment.bytes"].is_default
    admin.alter_configs(resource, unset=["retention.ms"], subtract={"cleanup.policy": "compact"})
    _await_setting(admin, resource, "cleanup.policy", "delete")
    again = admin.describe_configs(resource, names=["retention.ms", "cleanup.policy"])[resource]
    assert set(again) == {"retention.ms", "cleanup.policy"}
    assert again["retention.ms"].source is not SettingSource.TOPIC
    assert again["cleanup.policy"].value == "delete"
    with pytest.raises(InvalidSetting):
        admin.alter_configs(resource, assign={"retention.ms": "soon"})
    with pytest.raises(TopicNotFound):
        admin.describe_configs(Resource.topic(topic + "-b"))


def test_settings_of_brokers(admin: Admin) -> None:
    node = admin.describe_cluster().brokers[0].id
    resource = Resource.broker(node)
    assert admin.describe_configs(resource)[resource]["node.id"].value == str(node)
    name = "log.cleaner.delete.retention.ms"
    admin.alter_configs(Resource.cluster(), assign={name: "111111111"})
    admin.alter_configs(resource, assign={name: "222222222"})
    changed = _await_setting(admin, resource, name, "222222222")
    assert changed is SettingSource.BROKER
    admin.alter_configs(resource, unset=[name])
    assert _await_setting(admin, resource, name, "111111111") is SettingSource.CLUSTER
    admin.alter_configs(Resource.cluster(), unset=[name])


def _await_setting(admin: Admin, resource: Resource, name: str, value: str) -> SettingSource:
    eventually(lambda: admin.describe_configs(resource)[resource][name].value == value)
    return admin.describe_configs(resource)[resource][name].source


# Groups


def test_a_group_with_a_member(admin: Admin, kind: str, member: str, topic: str) -> None:
    described = admin.describe_groups(member)[member]
    assert (described.type, described.state, described.assignor) == ("classic", "Stable", "range")
    [only] = described.members
    assert only.client_id == "somebody"
    assert only.host == "127.0.0.1"
    assert only.topics == (topic,)
    assert only.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    [listed] = [each for each in admin.list_groups() if each.group == member]
    assert listed.coordinator == described.coordinator
    if kind == "older":
        assert (listed.state, listed.type) == (None, None)
        with pytest.raises(Unsupported):
            admin.list_groups(states=["stable"])
    else:
        assert (listed.state, listed.type) == ("Stable", "classic")
        stable = {each.group for each in admin.list_groups(states=["stable"], types=["classic"])}
        assert member in stable
        assert member not in {each.group for each in admin.list_groups(states=["empty"])}
        assert member not in {each.group for each in admin.list_groups(types=["consumer"])}
    with pytest.raises(GroupNotEmpty):
        admin.delete_groups(member)
    with pytest.raises(GroupNotEmpty, match="stop them first"):
        admin.alter_offsets(member, {TopicPartition(topic, 0): 0})
    with pytest.raises(GroupNotEmpty):
        admin.delete_offsets(member, [TopicPartition(topic, 0)])
    removed = admin.remove_members(member)
    assert removed == [only.member_id]


@pytest.mark.interop
def test_a_group_of_the_consumer_protocol(kafka: Kafka, topic: str, group: str) -> None:
    """KIP-848; against Kafka, because the kinds of brokers above do not all have it."""
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(topic, 2)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "client.id": "somebody",
                "group.protocol": "consumer",
            }
        )
        assigned: list[object] = []
        consumer.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return len(assigned) == 2

        eventually(is_assigned)
        both = (TopicPartition(topic, 0), TopicPartition(topic, 1))
        eventually(lambda: admin.describe_groups(group)[group].state == "Stable")
        described = admin.describe_groups(group)[group]
        assert (described.type, described.assignor) == ("consumer", "uniform")
        assert described.epoch == described.assignment_epoch
        [member] = described.members
        assert (member.client_id, member.topics) == ("somebody", (topic,))
        assert member.assignment == member.target == both
        assert group in {each.group for each in admin.list_groups(types=["consumer"])}
        with pytest.raises(GroupNotEmpty):
            admin.alter_offsets(group, {both[0]: 0})
        consumer.close()


def test_groups_that_are_not_there(admin: Admin, group: str) -> None:
    with pytest.raises(GroupNotFound):
        admin.describe_groups(group)
    with pytest.raises(GroupNotFound):
        admin.delete_groups(group)
    assert admin.committed_offsets(group) == {}


def test_offsets_of_a_group(admin: Admin, bootstrap: str, topic: str, group: str) -> None:
    admin.create_topic(topic, 3)
    now = int(time.time() * 1000)
    produce(bootstrap, topic, 0, [now - 3 * HOUR, now - 2 * HOUR, now - HOUR, now])
    produce(bootstrap, topic, 1, [now] * 2)
    first, second, third = (TopicPartition(topic, index) for index in range(3))
    commit(bootstrap, group, {first: 3, second: 1})
    assert admin.committed_offsets(group) == {
        first: CommittedOffset(3),
        second: CommittedOffset(1),
    }
    assert admin.committed_offsets(group, [second]) == {second: CommittedOffset(1)}
    lags = {each.partition: each.lag for each in admin.group_lag(group)}
    assert lags == {first: 1, second: 1}
    assert [each.lag for each in admin.group_lag(group, [first, third])] == [1, None]

    def plan(**how: object) -> list[tuple[int, int | None, int]]:
        made = admin.plan_offsets(group, **how)  # type: ignore[arg-type]
        return [(each.partition.partition, each.before, each.after) for each in made.changes]

    assert plan(to="earliest") == [(0, 3, 0), (1, 1, 0)]
    assert plan(to="latest", topics=[topic]) == [(0, 3, 4), (1, 1, 2), (2, None, 0)]
    assert plan(to=1, partitions=[first]) == [(0, 3, 1)]
    assert plan(to=77) == [(0, 3, 4), (1, 1, 2)]  # beyond the end
    assert plan(to=Position.time(now - 2 * HOUR), partitions=[first]) == [(0, 3, 1)]
    assert plan(to=Position.time(now + HOUR)) == [(0, 3, 4), (1, 1, 2)]  # after the last
    assert plan(to=-1) == [(0, 3, 3), (1, 1, 1)]
    assert plan(shift=-2) == [(0, 3, 1), (1, 1, 0)]
    with pytest.raises(ValueError, match="either a position or a shift"):
        admin.plan_offsets(group)
    # Nothing was changed by any of these.
    assert admin.committed_offsets(group)[first].offset == 3

    admin.apply_offsets(admin.plan_offsets(group, "latest", topics=[topic]))
    assert {key: value.offset for key, value in admin.committed_offsets(group).items()} == {
        first: 4,
        second: 2,
        third: 0,
    }
    admin.alter_offsets(group, {first: CommittedOffset(2, None, "noted")})
    assert admin.committed_offsets(group, [first])[first].metadata == "noted"
    admin.delete_offsets(group, [first, second])
    assert set(admin.committed_offsets(group)) == {third}
    assert group in {each.group for each in admin.list_groups()}
    admin.delete_groups(group)
    assert admin.committed_offsets(group) == {}


def test_list_offsets(admin: Admin, kind: str, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, 2)
    now = int(time.time() * 1000)
    produce(bootstrap, topic, 0, [now - 3 * HOUR, now, now - HOUR])
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def at(position: object) -> list[int | None]:
        found = admin.list_offsets({full: position, empty: position})  # type: ignore[dict-item]
        return [found[full].offset, found[empty].offset]

    assert at("earliest") == [0, 0]
    assert at("latest") == [3, 0]
    assert at(Position.time(now - 2 * HOUR)) == [1, None]
    assert at(Position.time(now + HOUR)) == [None, None]
    assert at(-2) == [1, 0]
    assert at(-50) == [0, 0]
    assert at(17) == [17, 17]
    found = admin.list_offsets({full: Position.time(now - 2 * HOUR)})[full]
    assert found.timestamp == now
    committed = admin.list_offsets({full: "latest"}, isolation="read_committed")
    assert committed[full].offset == 3
    if kind == "older":
        with pytest.raises(Unsupported):
            at(Position.max_timestamp())
    else:
        assert at(Position.max_timestamp()) == [1, None]
    with pytest.raises(TopicNotFound):
        admin.list_offsets({TopicPartition(topic + "-b", 0): "latest"})
    with pytest.raises(ValueError, match="is no position"):
        admin.list_offsets({full: "somewhere"})


# Transactions


def test_transactions(admin: Admin, kind: str, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, 2)
    name = f"tx-{topic}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    producer.flush(20)
    partition = TopicPartition(topic, 1)
    if kind == "older":
        with pytest.raises(Unsupported):
            admin.list_transactions()
        with pytest.raises(Unsupported):
            admin.describe_producers([partition])
        producer.abort_transaction(30)
        return
    described = admin.describe_transactions(name)[name]
    assert (described.state, described.partitions) == ("Ongoing", (partition,))
    assert described.started_ms is not None
    [listed] = [each for each in admin.list_transactions() if each.transactional_id == name]
    assert (listed.state, listed.producer_id) == ("Ongoing", described.producer_id)
    assert listed.coordinator == described.coordinator
    ongoing = admin.list_transactions(states=["Ongoing"], producer_ids=[listed.producer_id])
    assert [each.transactional_id for each in ongoing] == [name]
    assert admin.list_transactions(producer_ids=[listed.producer_id], running_for=HOUR) == []
    with pytest.raises(ValueError, match="no transaction is ever in state Sleeping"):
        admin.list_transactions(states=["Sleeping"])

    [state] = admin.describe_producers([partition])[partition]
    assert state.producer_id == described.producer_id
    assert state.transaction_start == 0
    # Its coordinator knows it: however long it may be open, it does not hang.
    assert admin.find_hanging_transactions(topics=[topic], longest=-60) == []
    admin.abort_transaction(partition, 0)
    [state] = admin.describe_producers([partition])[partition]
    assert state.transaction_start is None
    with pytest.raises(Exception, match="no transaction is open that starts at offset 0"):
        admin.abort_transaction(partition, 0)
    assert (
        admin.list_offsets({partition: "latest"}, isolation="read_committed")[partition].offset == 2
    )
    producer_id, epoch = admin.fence_producer(name)
    assert producer_id >= 0
    assert epoch >= 0
    with pytest.raises(TransactionNotFound):
        admin.describe_transactions(name + "-b")


def test_a_hanging_transaction_is_found(
    admin: Admin, kind: str, bootstrap: str, topic: str
) -> None:
    """One whose coordinator has ended it while a partition still waits: it is made by hand."""
    if kind == "older":
        pytest.skip("the calls are newer than Kafka 2.4")
    admin.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    _leave_a_transaction_hanging(bootstrap, topic)
    [found] = admin.find_hanging_transactions([partition], longest=-60)
    assert found.partition == partition
    assert found.transactional_id is None
    assert found.producer.transaction_start == 0
    assert admin.find_hanging_transactions([partition], longest=3600) == []
    admin.abort_transaction(partition, 0)
    assert admin.find_hanging_transactions([partition], longest=-60) == []


def _leave_a_transaction_hanging(bootstrap: str, topic: str) -> None:
    """Transactional records of a producer that no coordinator knows, by an old kind of request."""
    import asyncio

    from ottla.protocol.messages.produce import (
        PartitionProduceData,
        ProduceRequest,
        ProduceResponse,
        TopicProduceData,
    )
    from ottla.record.batch import Record, build_batch
    from ottla.wire.connection import Connection

    async def send() -> int:
        host, _, port = bootstrap.partition(":")
        connection = await Connection.open(host, int(port))
        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, b"hangs")],
            producer_id=987654,
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        data = [PartitionProduceData(index=0, records=batch)]
        answer = await connection.request(
            ProduceRequest(
                transactional_id="nobody",
                acks=-1,
                timeout_ms=5000,
                topic_data=[TopicProduceData(name=topic, partition_data=data)],
            ),
            ProduceResponse,
            version=9,
        )
        connection.close()
        return answer.responses[0].partition_responses[0].error_code

    assert asyncio.run(send()) == 0


# Access, cluster


def test_acls(admin: Admin, kind: str, topic: str) -> None:
    if kind != "kafka":
        with pytest.raises(SecurityDisabled if kind == "ottla" else Unsupported):
            admin.describe_acls()
        return
    rule = Acl(AclResource.TOPIC, topic, "User:bob", AclOperation.READ)
    admin.create_acls([rule])
    wanted = AclFilter(resource=AclResource.TOPIC, name=topic)
    eventually(lambda: admin.describe_acls(wanted) == [rule])
    assert admin.delete_acls(wanted) == [rule]
    eventually(lambda: admin.describe_acls(wanted) == [])


@pytest.mark.interop
def test_quotas_and_users(kafka: Kafka) -> None:
    with Admin(kafka.bootstrap) as admin:
        entity = {"user": "bob", "client-id": None}
        admin.alter_quotas(entity, assign={"producer_byte_rate": 1000.0})
        wanted = [ClientQuota(entity, {"producer_byte_rate": 1000.0})]
        eventually(lambda: admin.describe_quotas(entity) == wanted)
        assert entity in [each.entity for each in admin.describe_quotas(kinds=["user"])]
        admin.alter_quotas(entity, unset=["producer_byte_rate"])

        users = {(each.user, each.mechanism) for each in admin.describe_scram_users()}
        assert ("alice", "SCRAM-SHA-256") in users
        admin.set_scram_password("carol", "secret", "SCRAM-SHA-256")
        eventually(lambda: "carol" in {each.user for each in admin.describe_scram_users()})
        [carol] = admin.describe_scram_users("carol")
        assert (carol.mechanism, carol.iterations) == ("SCRAM-SHA-256", 8192)
        # The password works.
        port = kafka.ports["SASL_PLAINTEXT"]
        with Admin(
            f"127.0.0.1:{port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="carol",
            sasl_password="secret",
        ) as carols:
            assert carols.describe_cluster().brokers
        admin.delete_scram_password("carol", "SCRAM-SHA-256")


def test_the_cluster(admin: Admin, kind: str, bootstrap: str, topic: str) -> None:
    described = admin.describe_cluster()
    assert described.cluster_id
    [node] = described.brokers
    assert f"{node.host}:{node.port}" == bootstrap
    assert described.controller == node.id
    features = admin.describe_features()
    if kind == "older":
        assert features == {}
    else:
        assert features["transaction.version"].level == 2
        assert (features["transaction.version"].highest or 0) >= 2
    admin.create_topic(topic, 2)
    wanted = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    eventually(
        lambda: (
            wanted
            <= {
                each.partition
                for folder in admin.describe_log_folders()
                for each in folder.replicas
            }
        )
    )
    if kind == "kafka":
        assert admin.elect_leaders([TopicPartition(topic, 0)]) == []
        assert admin.list_reassignments() == []
        with pytest.raises(InvalidReplication):
            admin.alter_reassignments({TopicPartition(topic, 0): [99]})


def test_options_are_checked_before_anything_is_tried() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean request\.timeout\.ms"):
        Admin("localhost:9092", request_timeout_mss=5)
    with pytest.raises(ConfigurationError, match="no servers were given"):
        Admin()
