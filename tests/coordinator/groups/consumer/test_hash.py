"""The hash of a group's topics: numbers that Kafka's library gave for the same bytes."""

from __future__ import annotations

from groups_kit.machine import Topics

from ottla.coordinator.groups.consumer.hash import TopicHashes, topic_hash


class RackedTopics(Topics):
    def racks(self, name: str, partition: int) -> frozenset[str]:
        return frozenset({"rack"}) if partition == 1 else frozenset()


def test_a_topic_with_racks() -> None:
    topics = RackedTopics({"tö😀": 3})
    topics._ids["tö😀"] = bytes.fromhex("01020304050607081112131415161718")
    assert topic_hash(topics, "tö😀") == 5552102350442184113


def test_many_partitions() -> None:
    topics = Topics({"big": 500})
    topics._ids["big"] = (1).to_bytes(8, "big") + (2).to_bytes(8, "big")
    assert topic_hash(topics, "big") == 9035306671184507996


def test_a_group_without_topics_has_none() -> None:
    hashes = TopicHashes(Topics({"t": 1}))
    assert hashes.of_group([]) == hashes.of_group(["unknown"]) == 0
    assert hashes.of_group(["t"]) not in (0, hashes.of_group(["t", "unknown", "t2"]) + 1)


def test_the_order_of_names_does_not_count() -> None:
    hashes = TopicHashes(Topics({"a": 1, "b": 2}))
    assert hashes.of_group(["a", "b"]) == hashes.of_group(["b", "a"]) != hashes.of_group(["a"])


def test_every_change_of_a_topic_is_seen() -> None:
    topics = Topics({"t": 1})
    hashes = TopicHashes(topics)
    seen = {hashes.of_group(["t"])}
    topics.grow("t", 2)
    seen.add(hashes.of_group(["t"]))
    topics.delete("t")
    seen.add(hashes.of_group(["t"]))
    topics.create("t", 2)
    seen.add(hashes.of_group(["t"]))
    assert len(seen) == 4
