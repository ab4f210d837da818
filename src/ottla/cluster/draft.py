"""A draft: an image in the making, which the decisions read and change before anything is written.

It begins as a view of a base image. A mapping is copied when it is first changed, once for a draft,
however many entries change; the base image is never touched. The draft remembers what it changed, so
that the operations on the store and the delta follow from it without comparing images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    ImageDelta,
    Partition,
    RegisteredBroker,
    Resource,
    Topic,
    delta_of,
)
from ottla.cluster.names import collision_key
from ottla.turns import Steps, at_once


class Draft:
    """An image that may be changed until it is finished."""

    def __init__(self, base: ClusterImage) -> None:
        self.base = base
        # What was touched, in order; entries that ended as they began do no harm.
        self.touched_topics: dict[str, None] = {}
        self.touched_brokers: dict[int, None] = {}
        self.touched_configs: dict[Resource, None] = {}
        self.touched_features: dict[str, None] = {}
        # Elections of replicas that were neither in sync nor eligible: topic, before and after.
        self.unclean_elections: list[tuple[str, Partition, Partition]] = []
        self.next_producer_id = base.next_producer_id
        self._brokers = base.brokers
        # With the brokers of which it is true.
        self._eligible: tuple[Mapping[int, RegisteredBroker], frozenset[int]] = ({}, frozenset())
        self._fenced = base.fenced
        self.leader_epoch_base = base.leader_epoch_base
        self._configs = base.configs
        self._features = base.features
        self._topics = base.topics
        self._topics_by_id = base.topics_by_id
        self._collisions = base.collisions

    # Reading

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    @property
    def topics_by_id(self) -> Mapping[bytes, Topic]:
        return self._topics_by_id

    @property
    def brokers(self) -> Mapping[int, RegisteredBroker]:
        return self._brokers

    @property
    def eligible(self) -> frozenset[int]:
        """The brokers that may lead and join in-sync sets: alive, and not about to leave."""
        brokers, eligible = self._eligible
        if brokers is not self._brokers:  # asked for each partition of a request
            eligible = frozenset(each.id for each in self._brokers.values() if not each.leaving)
            self._eligible = (self._brokers, eligible)
        return eligible

    @property
    def fenced(self) -> Mapping[int, RegisteredBroker]:
        return self._fenced

    @property
    def configs(self) -> Mapping[Resource, Mapping[str, str]]:
        return self._configs

    @property
    def features(self) -> Mapping[str, int]:
        return self._features

    @property
    def is_changed(self) -> bool:
        """True if anything was touched."""
        return bool(
            self.touched_topics
            or self.touched_brokers
            or self.touched_configs
            or self.touched_features
            or self.next_producer_id != self.base.next_producer_id
            or self.leader_epoch_base != self.base.leader_epoch_base
        )

    # Changing

    def note_election(self, topic: str, before: Partition, after: Partition) -> None:
        """Take note of an election if it was an unclean one."""
        leader = after.leader
        if leader not in (NO_LEADER, before.leader, *before.isr, *before.elr):
            self.unclean_elections.append((topic, before, after))

    def put_topics(self, topics: Iterable[Topic]) -> None:
        """Adds topics, or replaces those with the same name."""
        by_name, by_id, collisions = self._own_topics()
        for topic in topics:
            before = by_name.get(topic.name)
            if before is not None and before.topic_id != topic.topic_id:
                del by_id[before.topic_id]
            by_name[topic.name] = topic
            by_id[topic.topic_id] = topic
            self.touched_topics[topic.name] = None
            key = collision_key(topic.name)
            if key is not None and before is None:
                collisions[key] = (*collisions.get(key, ()), topic.name)

    def remove_topics(self, names: Iterable[str]) -> None:
        """Removes topics, which must be there."""
        by_name, by_id, collisions = self._own_topics()
        for name in names:
            topic = by_name.pop(name)
            del by_id[topic.topic_id]
            self.touched_topics[name] = None
            key = collision_key(name)
            if key is not None:
                rest = tuple(other for other in collisions[key] if other != name)
                if rest:
                    collisions[key] = rest
                else:
                    del collisions[key]

    def _own_topics(
        self,
    ) -> tuple[dict[str, Topic], dict[bytes, Topic], dict[str, tuple[str, ...]]]:
        """The mappings about topics as this draft's own dicts, copied the first time."""
        if self._topics is self.base.topics:
            self._topics = dict(self._topics)
            self._topics_by_id = dict(self._topics_by_id)
            self._collisions = dict(self._collisions)
        assert isinstance(self._topics, dict)
        assert isinstance(self._topics_by_id, dict)
        assert isinstance(self._collisions, dict)
        return self._topics, self._topics_by_id, self._collisions

    def put_broker(self, broker: RegisteredBroker) -> None:
        """A broker is alive, in place of an earlier one with its id."""
        self._brokers = {**self._brokers, broker.id: broker}
        self._fenced = _without(self._fenced, broker.id)
        self.touched_brokers[broker.id] = None

    def fence_broker(self, broker_id: int) -> None:
        """A broker that was alive is away from now on; its registration stays known."""
        broker = self._brokers[broker_id]
        self._brokers = _without(self._brokers, broker_id)
        self._fenced = {**self._fenced, broker_id: broker}
        self.touched_brokers[broker_id] = None

    def remove_broker(self, broker_id: int) -> None:
        """Forgets a broker, alive or away, which must be known."""
        if broker_id not in self._brokers and broker_id not in self._fenced:
            raise KeyError(broker_id)
        self._brokers = _without(self._brokers, broker_id)
        self._fenced = _without(self._fenced, broker_id)
        self.touched_brokers[broker_id] = None

    def raise_leader_epochs(self) -> None:
        """Every partition enters its next leader epoch, at the cost of one write.

        For a single node, whose every start is a new life of every leader.
        """
        raised: dict[int, tuple[Partition, ...]] = {}
        by_name, by_id, _ = self._own_topics()
        for topic in list(by_name.values()):
            partitions = raised.get(id(topic.partitions))
            if partitions is None:
                partitions = raised[id(topic.partitions)] = tuple(
                    replace(each, leader_epoch=each.leader_epoch + 1) for each in topic.partitions
                )
            newer = replace(topic, partitions=partitions)
            by_name[topic.name] = newer
            by_id[topic.topic_id] = newer
        self.leader_epoch_base += 1

    def set_config(self, resource: Resource, config: Mapping[str, str]) -> None:
        """Replaces all that is set for a resource."""
        if self._configs is self.base.configs:
            self._configs = dict(self._configs)
        assert isinstance(self._configs, dict)
        if config:
            self._configs[resource] = config
        else:
            self._configs.pop(resource, None)
        self.touched_configs[resource] = None

    def set_feature(self, name: str, level: int) -> None:
        """Finalizes a feature at a level; level 0 switches it off."""
        features = dict(self._features)
        if level:
            features[name] = level
        else:
            features.pop(name, None)
        self._features = features
        self.touched_features[name] = None

    def collides_with(self, name: str) -> str | None:
        """A topic whose name differs from this one only in '.' and '_'."""
        key = collision_key(name)
        if key is None:
            return None
        for other in self._collisions.get(key, ()):
            if other != name:
                return other
        return None

    # The end of it

    def finish(self, version: int) -> tuple[ClusterImage, ImageDelta]:
        """The new image and what is new about it. The draft must not be changed afterwards."""
        return at_once(self.finishing(version))

    def finishing(self, version: int) -> Steps[tuple[ClusterImage, ImageDelta]]:
        """Does what `finish` does, in steps."""
        image = replace(
            self.base,
            version=version,
            brokers=self._brokers,
            fenced=self._fenced,
            leader_epoch_base=self.leader_epoch_base,
            topics=self._topics,
            topics_by_id=self._topics_by_id,
            configs=self._configs,
            features=self._features,
            next_producer_id=self.next_producer_id,
            collisions=self._collisions,
        )
        keeps_epochs = self.leader_epoch_base == self.base.leader_epoch_base
        delta = yield from delta_of(
            self.base,
            image,
            self.touched_topics if keeps_epochs else self._topics,
            frozenset(self.touched_brokers),
            frozenset(self.touched_configs),
            frozenset(self.touched_features),
        )
        return image, delta


def _without(
    brokers: Mapping[int, RegisteredBroker], broker_id: int
) -> dict[int, RegisteredBroker]:
    return {key: value for key, value in brokers.items() if key != broker_id}
