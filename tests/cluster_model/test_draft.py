"""Drafts: the base image stays as it is, mappings are copied once, the delta tells all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import (
    ClusterImage,
    ImageDelta,
    Partition,
    RegisteredBroker,
    ResourceType,
    Topic,
    difference,
)

ImageOf = Callable[..., ClusterImage]


def topic(name: str, number: int, partitions: int = 1) -> Topic:
    entries = tuple(Partition(index, (1,), (1,), 1) for index in range(partitions))
    return Topic(name, number.to_bytes(16, "big"), entries)


def test_a_draft_leaves_its_base_alone(
    image_of: ImageOf, broker: Callable[..., RegisteredBroker]
) -> None:
    draft = Draft(image_of(1, 2))
    draft.put_topics([topic("a.b", 1), topic("c", 2)])
    draft.set_config((ResourceType.TOPIC, "c"), {"retention.ms": "1"})
    draft.set_feature("group.version", 1)
    draft.next_producer_id = 1000
    base, _ = draft.finish(1)
    kept = replace(
        base,
        topics=dict(base.topics),
        topics_by_id=dict(base.topics_by_id),
        configs=dict(base.configs),
        features=dict(base.features),
        brokers=dict(base.brokers),
        collisions=dict(base.collisions),
    )

    second = Draft(base)
    assert not second.is_changed
    second.put_topics([topic("d", 3), topic("c", 2, partitions=2)])
    second.remove_topics(["a.b"])
    second.set_config((ResourceType.TOPIC, "c"), {})
    second.set_feature("group.version", 0)
    second.remove_broker(2)
    second.put_broker(broker(3))
    assert second.is_changed
    new, delta = second.finish(2)
    assert base == kept
    assert set(new.topics) == {"c", "d"}
    assert {found.name for found in new.topics_by_id.values()} == {"c", "d"}
    assert new.configs == {}
    assert new.features == {}
    assert new.collisions == {}
    assert set(new.brokers) == {1, 3}
    assert (new.version, new.next_producer_id) == (2, 1000)
    assert delta == ImageDelta(
        created=(topic("d", 3),),
        deleted=(topic("a.b", 1),),
        changed=((topic("c", 2), topic("c", 2, partitions=2)),),
        brokers=frozenset({2, 3}),
        configs=frozenset({(ResourceType.TOPIC, "c")}),
        features=frozenset({"group.version"}),
    )
    found = difference(base, new)
    assert set(found.created) == set(delta.created)
    assert (found.deleted, found.changed) == (delta.deleted, delta.changed)
    assert (found.brokers, found.configs, found.features) == (
        delta.brokers,
        delta.configs,
        delta.features,
    )
    assert not difference(new, new)


def test_a_topic_made_again_is_deleted_and_created(image_of: ImageOf) -> None:
    draft = Draft(image_of(1))
    draft.put_topics([topic("a", 1)])
    base, _ = draft.finish(1)
    draft = Draft(base)
    draft.remove_topics(["a"])
    draft.put_topics([topic("a", 2)])
    new, delta = draft.finish(2)
    assert (delta.deleted, delta.created) == ((topic("a", 1),), (topic("a", 2),))
    assert delta.changed == ()
    replaced = Draft(base)
    replaced.put_topics([topic("a", 2)])
    assert replaced.finish(2) == (new, delta)
    assert list(new.topics_by_id.values()) == [topic("a", 2)]


def test_mappings_are_copied_once_for_a_draft_and_shared_when_untouched(image_of: ImageOf) -> None:
    draft = Draft(image_of(1))
    draft.put_topics(topic(f"t{number}", number) for number in range(100))
    base, _ = draft.finish(1)
    draft = Draft(base)
    assert draft.topics is base.topics
    draft.put_topics([topic("more", 1000)])
    copied = draft.topics
    draft.put_topics([topic("yet.more", 1001)])
    draft.remove_topics(["t5"])
    assert draft.topics is copied
    assert draft.configs is base.configs
    draft.set_config((ResourceType.TOPIC, "t1"), {"a": "b"})
    configs = draft.configs
    draft.set_config((ResourceType.TOPIC, "t2"), {"a": "b"})
    assert draft.configs is configs
    new, _ = draft.finish(2)
    assert new.topics is copied
    assert new.features is base.features
    assert new.brokers is base.brokers
    assert new.topics["t7"] is base.topics["t7"]


def test_collisions_follow_the_topics(image_of: ImageOf) -> None:
    draft = Draft(image_of(1))
    draft.put_topics([topic("a.b", 1), topic("a_b", 2)])
    assert draft.collides_with("a.b") == "a_b"
    assert draft.collides_with("a-b") is None
    draft.remove_topics(["a.b"])
    assert draft.collides_with("a.b") == "a_b"
    assert draft.collides_with("a_b") is None
    draft.remove_topics(["a_b"])
    assert draft.collides_with("a.b") is None


def test_what_an_image_answers(image_of: ImageOf) -> None:
    draft = Draft(image_of(1))
    draft.put_topics([topic("a", 1, partitions=3)])
    draft.set_config((ResourceType.BROKER, ""), {"x": "y"})
    image, _ = draft.finish(1)
    assert image.partition("a", 2) == Partition(2, (1,), (1,), 1)
    assert image.partition("a", 3) is None
    assert image.partition("a", -1) is None
    assert image.partition("b", 0) is None
    assert image.partition_count == 3
    assert image.config(ResourceType.BROKER, "") == {"x": "y"}
    assert image.config(ResourceType.TOPIC, "a") == {}
    endpoint = image.brokers[1].endpoint("PLAINTEXT")
    assert endpoint is not None
    assert endpoint.port == 9092
    assert image.brokers[1].endpoint("SSL") is None
