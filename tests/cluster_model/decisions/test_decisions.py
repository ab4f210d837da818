"""What decisions do to the draft when they are allowed to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.cluster.decisions.brokers import (
    allocate_producer_ids,
    fence,
    take_in,
    unregister_broker,
)
from ottla.cluster.decisions.configs import (
    AlteredResource,
    ConfigChange,
    ConfigOperation,
    alter_configs,
    full_change,
)
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.features import FeatureUpdate, UpgradeType, update_features
from ottla.cluster.decisions.topics import (
    DeadTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    create_partitions,
    create_topics,
    delete_topics,
    new_uuid,
)
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    Partition,
    RegisteredBroker,
    ResourceType,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import uuid_text

ImageOf = Callable[..., ClusterImage]


@pytest.fixture
def one(image_of: ImageOf) -> Draft:
    return Draft(image_of(1))


@pytest.fixture
def three(image_of: ImageOf) -> Draft:
    return Draft(image_of(1, 2, 3))


def create(draft: Draft, rules: Any, *topics: NewTopic, seed: int = 1) -> list[Any]:
    results = create_topics(draft, topics, TopicDefaults(4, 2), rules, random.Random(seed))
    return list(results)


def test_automatic_replicas_are_one_for_each_machine(
    broker: Callable[..., RegisteredBroker], rules: Any
) -> None:
    """Three brokers on each of so many machines."""
    for machines, factor in ((1, 1), (2, 2), (3, 3), (4, 3)):
        brokers = {
            number: replace(broker(number), machine=f"machine {number % machines}")
            for number in range(3 * machines)
        }
        draft = Draft(ClusterImage("some cluster", brokers=brokers, version=0))
        (result,) = create_topics(
            draft, [NewTopic("a")], TopicDefaults(12, 0), rules, random.Random(1)
        )
        for partition in result.topic.partitions:
            assert len(partition.replicas) == factor
            assert len({each % machines for each in partition.replicas}) == factor


def test_defaults_fill_what_is_left_open(three: Draft, rules: Any) -> None:
    create(three, rules, NewTopic("open"), NewTopic("six", 6), NewTopic("single", -1, 1))
    shapes = {
        name: (len(topic.partitions), topic.replication_factor)
        for name, topic in three.topics.items()
    }
    assert shapes == {"open": (4, 2), "six": (6, 2), "single": (4, 1)}


def test_a_new_topic_is_led_evenly_and_all_in_sync(three: Draft, rules: Any) -> None:
    (result,) = create(three, rules, NewTopic("t", 9, 3, configs={"retention.ms": "7"}))
    topic = three.topics["t"]
    assert result.topic is topic
    assert result.topic_id == topic.topic_id
    assert three.topics_by_id[topic.topic_id] is topic
    assert Counter(partition.leader for partition in topic.partitions) == {1: 3, 2: 3, 3: 3}
    for index, partition in enumerate(topic.partitions):
        assert partition.index == index
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert three.configs == {(ResourceType.TOPIC, "t"): {"retention.ms": "7"}}


def test_the_same_seed_decides_the_same(image_of: ImageOf, rules: Any) -> None:
    outcomes = []
    for seed in (5, 5, 6):
        draft = Draft(image_of(1, 2, 3))
        create(draft, rules, NewTopic("t", 5, 2), seed=seed)
        outcomes.append(draft.topics["t"])
    assert outcomes[0] == outcomes[1] != outcomes[2]


def test_replicas_assigned_by_hand_are_taken_as_they_are(three: Draft, rules: Any) -> None:
    create(three, rules, NewTopic("t", assignments=[(1, [3, 1]), (0, [2, 3])]))
    assert three.topics["t"].partitions == (
        Partition(0, (2, 3), (2, 3), 2),
        Partition(1, (3, 1), (3, 1), 3),
    )


def test_assignments_must_have_the_same_number_of_replicas(three: Draft, rules: Any) -> None:
    (result,) = create(three, rules, NewTopic("t", assignments=[(0, [1, 2]), (1, [1])]))
    assert result.error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    create(three, rules, NewTopic("two", 1, 2))
    (grown,) = create_partitions(three, [MorePartitions("two", 2, [[1]])], random.Random(1))
    assert grown.error is not None
    assert grown.error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_broker_that_is_away_gets_replicas_too(three: Draft, rules: Any) -> None:
    """As in Kafka: topics can be made while a broker restarts, with as many replicas as ever."""
    fence(three, 2, policy_of=lambda _: ElectionPolicy())
    full, by_hand, nobody = create(
        three,
        rules,
        NewTopic("full", 2, 3),
        NewTopic("hand", assignments=[(0, (2, 1, 3))]),
        NewTopic("nobody", assignments=[(0, (2,))]),
    )
    for partition in full.topic.partitions:
        assert set(partition.replicas) == {1, 2, 3}
        assert set(partition.isr) == {1, 3}
        assert partition.leader in (1, 3)
    (partition,) = by_hand.topic.partitions
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1, 3), (1, 3), 1)
    assert nobody.error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (grown,) = create_partitions(three, [MorePartitions("full", 3)], random.Random(1))
    assert set(grown.topic.partitions[2].isr) == {1, 3}
    assert len(grown.topic.partitions[2].replicas) == 3


def test_without_brokers_nothing_can_be_placed(image_of: ImageOf, rules: Any) -> None:
    (result,) = create(Draft(image_of()), rules, NewTopic("t", 1, 1))
    assert result.error.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_internal_topics_are_marked(one: Draft, rules: Any) -> None:
    create(one, rules, NewTopic("__consumer_offsets", 1, 1), NewTopic("t", 1, 1))
    assert one.topics["__consumer_offsets"].internal
    assert not one.topics["t"].internal


def test_requests_after_each_other_see_collisions(one: Draft, rules: Any) -> None:
    create(one, rules, NewTopic("a.b", 1, 1))
    (result,) = create(one, rules, NewTopic("a_b", 1, 1))
    assert result.error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a.b" in result.error.message
    delete_topics(one, [DeadTopic("a.b")])
    (result,) = create(one, rules, NewTopic("a_b", 1, 1))
    assert result.error is None


def test_topic_ids_are_random_uuids_that_look_like_no_option() -> None:
    chance = random.Random(3)
    ids = [new_uuid(chance) for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert not any(uuid_text(topic_id).startswith("-") for topic_id in ids)
    assert {topic_id[6] >> 4 for topic_id in ids} == {4}
    assert {topic_id[8] >> 6 for topic_id in ids} == {2}
    assert len({topic_id[0] for topic_id in ids}) == 252  # all but those with '-'


def test_new_partitions_go_on_where_the_others_ended(three: Draft, rules: Any) -> None:
    create(three, rules, NewTopic("t", 4, 2))
    before = three.topics["t"]
    (result,) = create_partitions(three, [MorePartitions("t", 9)], random.Random(9))
    after = three.topics["t"]
    assert result.topic is after
    assert after.topic_id == before.topic_id
    assert after.partitions[:4] == before.partitions
    assert [partition.index for partition in after.partitions] == list(range(9))
    assert Counter(partition.leader for partition in after.partitions) == {1: 3, 2: 3, 3: 3}


def test_a_deleted_topic_takes_its_configuration_along(one: Draft, rules: Any) -> None:
    create(
        one,
        rules,
        NewTopic("t", 1, 1, configs={"retention.ms": "1"}),
        NewTopic("u", 1, 1, configs={"retention.ms": "2"}),
    )
    old = one.topics["t"]
    (result,) = delete_topics(one, [DeadTopic(topic_id=old.topic_id)])
    assert (result.name, result.topic_id, result.topic) == ("t", old.topic_id, old)
    assert set(one.topics) == {"u"}
    assert one.configs == {(ResourceType.TOPIC, "u"): {"retention.ms": "2"}}


def alter(draft: Draft, rules: Any, *changes: tuple[str, int, str | None]) -> None:
    altered = AlteredResource(ResourceType.TOPIC, "t", [ConfigChange(*one) for one in changes])
    (result,) = alter_configs(draft, [altered], rules, incremental=True)
    assert result.error is None


def test_incremental_changes(one: Draft, rules: Any) -> None:
    create(one, rules, NewTopic("t", 1, 1))
    resource = (ResourceType.TOPIC, "t")
    add, take = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
    alter(one, rules, ("retention.ms", ConfigOperation.SET, "5"), ("segment.bytes", 0, "6"))
    assert one.configs[resource] == {"retention.ms": "5", "segment.bytes": "6"}
    alter(one, rules, ("segment.bytes", ConfigOperation.DELETE, None))
    assert one.configs[resource] == {"retention.ms": "5"}
    alter(one, rules, ("cleanup.policy", add, "compact,delete"))
    assert one.configs[resource]["cleanup.policy"] == "delete,compact", "appends to the default"
    alter(one, rules, ("cleanup.policy", add, "compact"))
    assert one.configs[resource]["cleanup.policy"] == "delete,compact"
    alter(one, rules, ("cleanup.policy", 0, "compact , delete"), ("leader.throttled", add, "1"))
    alter(one, rules, ("cleanup.policy", take, "compact"))
    assert one.configs[resource]["cleanup.policy"] == "delete"
    alter(one, rules, ("cleanup.policy", take, "delete"))
    assert one.configs[resource]["cleanup.policy"] == ""
    assert one.configs[resource]["leader.throttled"] == "1"


def test_a_full_change_drops_what_it_does_not_name(one: Draft, rules: Any) -> None:
    create(one, rules, NewTopic("t", 1, 1, configs={"retention.ms": "5", "segment.bytes": "6"}))
    altered = full_change(ResourceType.TOPIC, "t", [("segment.bytes", "7")])
    alter_configs(one, [altered], rules, incremental=False)
    assert one.configs[ResourceType.TOPIC, "t"] == {"segment.bytes": "7"}
    alter_configs(one, [full_change(ResourceType.TOPIC, "t", [])], rules, incremental=False)
    assert (ResourceType.TOPIC, "t") not in one.configs


def test_rules_see_the_whole_configuration_and_what_is_altered(one: Draft, rules: Any) -> None:
    create(one, rules, NewTopic("t", 1, 1, configs={"retention.ms": "5", "segment.bytes": "6"}))
    seen: list[tuple[Any, ...]] = []
    rules.check = lambda resource, config, altered: seen.append((dict(config), set(altered)))
    alter(one, rules, ("retention.ms", ConfigOperation.SET, "9"))
    altered = full_change(ResourceType.TOPIC, "t", [("segment.bytes", "7")])
    alter_configs(one, [altered], rules, incremental=False)
    assert seen == [
        ({"retention.ms": "9", "segment.bytes": "6"}, {"retention.ms"}),
        ({"segment.bytes": "7"}, {"segment.bytes", "retention.ms"}),
    ]


def test_an_unchanged_topic_is_not_touched_but_a_broker_is_told_again(
    one: Draft, rules: Any
) -> None:
    create(one, rules, NewTopic("t", 1, 1, configs={"retention.ms": "5"}))
    keystore = [ConfigChange("ssl.keystore.location", 0, "/keys")]
    broker = AlteredResource(ResourceType.BROKER, "1", keystore)
    alter_configs(one, [broker], rules, incremental=True)
    image, _ = one.finish(1)
    draft = Draft(image)
    alter(draft, rules, ("retention.ms", ConfigOperation.SET, "5"))
    assert not draft.is_changed
    alter_configs(draft, [broker], rules, incremental=True)
    assert list(draft.touched_configs) == [(ResourceType.BROKER, "1")]


def test_other_brokers_unless_only_the_receiver_may(three: Draft, rules: Any) -> None:
    change = [ConfigChange("log.retention.ms", 0, "5")]
    altered = [AlteredResource(ResourceType.BROKER, name, change) for name in ("2", "9")]
    known, unknown = alter_configs(three, altered, rules, incremental=True)
    assert known.error is None
    assert unknown.error is not None
    assert unknown.error.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_features_go_up_and_down(image_of: ImageOf, features: Any) -> None:
    draft = Draft(image_of(1, features={"group.version": 1}))
    down = FeatureUpdate("group.version", 0, UpgradeType.SAFE_DOWNGRADE)
    update_features(draft, [down, FeatureUpdate("share.version", 1)], features)
    assert draft.features == {"share.version": 1}
    update_features(draft, [FeatureUpdate("share.version", 1)], features)
    assert list(draft.touched_features) == ["group.version", "share.version"]


def test_producer_ids_come_in_blocks_that_do_not_overlap(one: Draft) -> None:
    blocks = [allocate_producer_ids(one) for _ in range(3)]
    assert [(block.first, block.size) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    one.next_producer_id = 2**63 - 500
    with pytest.raises(ProtocolError):
        allocate_producer_ids(one)


def test_with_another_folder_a_broker_has_lost_everything(
    three: Draft, rules: Any, broker: Callable[..., RegisteredBroker]
) -> None:
    def never(_topic: str) -> ElectionPolicy:
        return ElectionPolicy()

    def life(epoch: int, folder: str) -> RegisteredBroker:
        return replace(broker(2), epoch=epoch, folder_id=folder)

    take_in(three, life(1, "a folder"), lost_data=False, policy_of=never)
    (result,) = create(three, rules, NewTopic("t", assignments=[(0, (2, 1, 3))]))
    assert result.topic.partitions[0].leader == 2
    take_in(three, life(2, "a folder"), lost_data=False, policy_of=never)
    assert three.topics["t"].partitions[0].isr == (2, 1, 3)
    take_in(three, life(3, "another"), lost_data=False, policy_of=never)
    (partition,) = three.topics["t"].partitions
    assert (set(partition.isr), partition.elr) == ({1, 3}, ())
    assert partition.leader in (1, 3)


def test_a_broker_that_is_about_to_stop_leads_no_new_partition(
    three: Draft, rules: Any, broker: Callable[..., RegisteredBroker]
) -> None:
    three.put_broker(replace(broker(2), leaving=True))
    (together, alone) = create(
        three,
        rules,
        NewTopic("t", assignments=[(0, (2, 1, 3))]),
        NewTopic("u", assignments=[(0, (2,))]),
    )
    (partition,) = together.topic.partitions
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1, 3), (1, 3), 1)
    assert alone.topic.partitions[0].leader == 2


def test_a_broker_that_was_forgotten_leads_nothing_for_having_led_last(
    three: Draft, rules: Any, broker: Callable[..., RegisteredBroker]
) -> None:
    """It may come back with an empty folder, of which nobody knows any more that it is another one."""

    def never(_topic: str) -> ElectionPolicy:
        return ElectionPolicy()

    def life(epoch: int, folder: str) -> RegisteredBroker:
        return replace(broker(2), epoch=epoch, folder_id=folder)

    take_in(three, life(1, "a folder"), lost_data=False, policy_of=never)
    create(three, rules, NewTopic("t", assignments=[(0, (2, 1))]))
    fence(three, 1, policy_of=never)
    fence(three, 2, policy_of=never)
    take_in(three, broker(1), lost_data=False, policy_of=never)
    (partition,) = three.topics["t"].partitions
    assert (partition.leader, partition.last_known_leader) == (NO_LEADER, 2)
    unregister_broker(three, 2)
    take_in(three, life(2, "another"), lost_data=True, policy_of=never)
    (partition,) = three.topics["t"].partitions
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ())


def test_a_folder_that_cannot_be_read_is_not_another(
    one: Draft, rules: Any, broker: Callable[..., RegisteredBroker]
) -> None:
    def never(_topic: str) -> ElectionPolicy:
        return ElectionPolicy()

    def life(epoch: int, folders: str) -> RegisteredBroker:
        return replace(broker(1), epoch=epoch, folder_id=folders)

    take_in(one, life(1, "a,b"), lost_data=False, policy_of=never)
    create(one, rules, NewTopic("t", assignments=[(0, (1,))]))
    take_in(one, life(2, "a,"), lost_data=True, policy_of=never)
    assert one.topics["t"].partitions[0].leader == 1
    # An empty one in its place: what it held is not there.
    take_in(one, life(3, "a,c"), lost_data=False, policy_of=never)
    assert one.topics["t"].partitions[0].leader == -1


def test_brokers_come_and_go(one: Draft, broker: Callable[..., RegisteredBroker]) -> None:
    def never(_topic: str) -> ElectionPolicy:
        return ElectionPolicy()

    take_in(one, broker(2), lost_data=False, policy_of=never)
    assert set(one.brokers) == {1, 2}
    with pytest.raises(ProtocolError) as raised:
        unregister_broker(one, 1)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    fence(one, 1, policy_of=never)
    assert (set(one.brokers), set(one.fenced)) == ({2}, {1})
    unregister_broker(one, 1)
    with pytest.raises(ProtocolError) as raised:
        unregister_broker(one, 1)
    assert raised.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(ProtocolError):
        take_in(one, RegisteredBroker(3, -1, None, ()), lost_data=False, policy_of=never)
    with pytest.raises(ProtocolError):
        take_in(one, broker(-3), lost_data=False, policy_of=never)
