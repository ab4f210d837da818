"""What a client knows of its cluster: brokers, topics, who leads which partition. No I/O.

Knowledge comes in Metadata answers, which may be older than what is known already: of two leaders of
a partition the one with the higher epoch is the later one, unless the topic was deleted and made
anew, which its id shows. Produce and Fetch answers may name a new leader, too (KIP-951).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and where it is reached."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition as the metadata have it; `leader` is NO_LEADER where there is none."""

    partition: int
    leader: int
    leader_epoch: int  # -1: the broker is too old to tell
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the metadata have it."""

    name: str
    topic_id: bytes  # ZERO_UUID: the broker is too old to tell
    internal: bool
    partitions: dict[int, PartitionInfo]  # complete, in order
    updated_at: float  # on the loop's clock


class Metadata:
    """The cache. It changes only through `learn`, `learn_leader` and `forget`."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self._names: dict[bytes, str] = {}
        # Topics that were asked for and are not there, or cannot be told of: name -> why.
        self.errors: dict[str, ErrorCode] = {}
        self.updated_at = float("-inf")
        self.generation = 0  # grows with every change

    def name_of(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    def __iter__(self) -> Iterator[TopicInfo]:
        return iter(self.topics.values())

    def learn(self, answer: MetadataResponse, asked: Iterable[str] | None, now: float) -> None:
        """Take over an answer. `asked` are the topics asked for, None for all there are."""
        if answer.brokers:
            self.nodes = {
                each.node_id: Node(each.node_id, each.host, each.port, each.rack)
                for each in answer.brokers
            }
        self.cluster_id = answer.cluster_id or self.cluster_id
        self.controller_id = answer.controller_id
        described = set()
        for topic in answer.topics:
            name = topic.name or self._names.get(topic.topic_id)
            if name is None:
                continue
            described.add(name)
            code = error_code(topic.error_code)
            if code is ErrorCode.NONE:
                self._learn_topic(name, topic, now)
            else:
                self.errors[name] = code
                if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                    self.forget(name)
        if asked is None:
            for name in self.topics.keys() - described:
                self.forget(name)
            self.errors = {name: code for name, code in self.errors.items() if name in described}
        self.updated_at = now
        self.generation += 1

    def _learn_topic(self, name: str, topic: MetadataResponseTopic, now: float) -> None:
        self.errors.pop(name, None)
        known = self.topics.get(name)
        same = known is not None and (
            ZERO_UUID in (known.topic_id, topic.topic_id) or known.topic_id == topic.topic_id
        )
        partitions = {}
        for each in sorted(topic.partitions, key=lambda part: part.partition_index):
            info = PartitionInfo(
                each.partition_index,
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(each.offline_replicas),
                error_code(each.error_code),
            )
            if known is not None and same:
                before = known.partitions.get(each.partition_index)
                if before is not None and before.leader_epoch > info.leader_epoch >= 0:
                    info = before
            partitions[each.partition_index] = info
        if known is not None and not same:
            self._names.pop(known.topic_id, None)
        self.topics[name] = TopicInfo(name, topic.topic_id, topic.is_internal, partitions, now)
        if topic.topic_id != ZERO_UUID:
            self._names[topic.topic_id] = name

    def learn_leader(
        self, topic: str, partition: int, leader: int, epoch: int, nodes: Iterable[Node] = ()
    ) -> bool:
        """Take over a leader that a Produce or Fetch answer names; whether that was news."""
        self.nodes.update((node.id, node) for node in nodes)
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is None or known is None or epoch <= known.leader_epoch or leader < 0:
            return False
        if leader not in self.nodes:
            return False
        info.partitions[partition] = dataclasses.replace(
            known, leader=leader, leader_epoch=epoch, error=ErrorCode.NONE
        )
        self.generation += 1
        return True

    def forget(self, topic: str) -> None:
        """A topic that is not there any more."""
        info = self.topics.pop(topic, None)
        if info is not None:
            self._names.pop(info.topic_id, None)
            self.generation += 1

    def forget_nodes(self) -> None:
        """Begin again from the bootstrap servers; what is known of topics stays until then."""
        self.nodes = {}
        self.controller_id = -1
