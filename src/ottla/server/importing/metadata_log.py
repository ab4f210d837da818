"""What Kafka knows of its topics, from the metadata log of a broker in KRaft mode.

The folder `__cluster_metadata-0` holds snapshots, `<offset>-<epoch>.checkpoint`, and segments that go on
from there. Both consist of record batches. The value of a record that is no control record is

    uvarint  frame version, 1
    uvarint  kind            the `api_key` of the classes below
    uvarint  version
    …        the record      as Kafka's message format encodes it

Kinds that are not known are passed over, and so are tagged fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.logfiles.folders import Damage, read_batches, read_records, segments_in
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int8,
    Int32,
    Int64,
    MalformedMessage,
    Message,
    String,
    Uuid,
)
from ottla.protocol.message import field as wire_field
from ottla.protocol.wiretypes import unsigned_varint_at
from ottla.record.batch import CONTROL_BIT
from ottla.record.errors import InvalidBatch

_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)
_FRAME_VERSION: Final = 1

# Kind, version and contents of a record.
_Framed = tuple[int, int, bytes]

_TOPIC: Final = 2
_PARTITION: Final = 3
_CONFIG: Final = 4
_PARTITION_CHANGE: Final = 5
_REMOVE_TOPIC: Final = 9
_PRODUCER_IDS: Final = 15
_BEGIN_TRANSACTION: Final = 23
_END_TRANSACTION: Final = 24
_ABORT_TRANSACTION: Final = 25

# Kinds of records that tell of something which is not taken over, and what that is.
_LEFT_OUT: Final = {
    10: "delegation tokens",
    11: "users with SCRAM credentials",
    14: "quotas of clients",
    18: "access control lists",
}

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
GROUP_RESOURCE: Final = 32


class UnreadableMetadataLog(Exception):
    """Why the metadata log cannot be read, in one sentence."""


class TopicRecord(Message, versions=(0, 0), flexible_since=0):
    name: String = ""
    topic_id: Uuid = ZERO_UUID


class PartitionRecord(Message, versions=(0, 2), flexible_since=0):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = EMPTY
    isr: list[Int32] = EMPTY
    removing_replicas: list[Int32] = EMPTY
    adding_replicas: list[Int32] = EMPTY
    leader: Int32 = -1
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = wire_field(default=EMPTY, since=1)
    eligible_leader_replicas: list[Int32] | None = wire_field(default=None, since=2, tag=1)
    last_known_elr: list[Int32] | None = wire_field(default=None, since=2, tag=2)


class PartitionChangeRecord(Message, versions=(0, 2), flexible_since=0):
    """What changes of a partition. A field that is None stays as it was."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = wire_field(default=None, tag=0)
    replicas: list[Int32] | None = wire_field(default=None, tag=2)
    eligible_leader_replicas: list[Int32] | None = wire_field(default=None, since=2, tag=6)
    last_known_elr: list[Int32] | None = wire_field(default=None, since=2, tag=7)


class ConfigRecord(Message, versions=(0, 0), flexible_since=0):
    """No value: the setting is taken away."""

    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = None


class RemoveTopicRecord(Message, versions=(0, 0), flexible_since=0):
    topic_id: Uuid = ZERO_UUID


class ProducerIdsRecord(Message, versions=(0, 0), flexible_since=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@dataclass
class KafkaPartition:
    replicas: list[int]
    isr: list[int]
    # Who has everything that was committed without being in sync (KIP-966): one who was the last in sync
    # when it stopped. Then who led last, where nobody is either.
    eligible: list[int] = field(default_factory=list)
    last_known: list[int] = field(default_factory=list)

    def has_everything(self, node_id: int) -> bool:
        """Whether a broker has all that was committed, or as much as anybody."""
        if self.isr or self.eligible:
            return node_id in self.isr or node_id in self.eligible
        return node_id in self.last_known


@dataclass
class KafkaTopic:
    name: str
    topic_id: bytes
    partitions: dict[int, KafkaPartition] = field(default_factory=dict)


@dataclass
class KafkaMetadata:
    """What the records amount to."""

    topics: dict[bytes, KafkaTopic] = field(default_factory=dict)
    # By type and name of the resource.
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    # What there was that has no place here, in words.
    left_out: set[str] = field(default_factory=set)

    def apply(self, kind: int, version: int, body: bytes) -> None:
        """One record. MalformedMessage if it makes no sense."""
        if kind == _TOPIC:
            topic, _ = TopicRecord.decode(body, 0, 0)
            self.topics[topic.topic_id] = KafkaTopic(topic.name, topic.topic_id)
        elif kind == _PARTITION:
            made, _ = PartitionRecord.decode(body, 0, min(version, PartitionRecord.versions[1]))
            eligible, last_known = made.eligible_leader_replicas, made.last_known_elr
            partition = KafkaPartition(made.replicas, made.isr, eligible or [], last_known or [])
            self._topic(made.topic_id).partitions[made.partition_id] = partition
        elif kind == _PARTITION_CHANGE:
            known = min(version, PartitionChangeRecord.versions[1])
            self._change(PartitionChangeRecord.decode(body, 0, known)[0])
        elif kind == _REMOVE_TOPIC:
            removed, _ = RemoveTopicRecord.decode(body, 0, 0)
            gone = self.topics.pop(removed.topic_id, None)
            if gone is not None:
                self.configs.pop((TOPIC_RESOURCE, gone.name), None)
        elif kind == _CONFIG:
            self._configure(ConfigRecord.decode(body, 0, 0)[0])
        elif kind == _PRODUCER_IDS:
            ids, _ = ProducerIdsRecord.decode(body, 0, 0)
            self.next_producer_id = max(self.next_producer_id, ids.next_producer_id)
        elif kind in _LEFT_OUT:
            self.left_out.add(_LEFT_OUT[kind])

    def _topic(self, topic_id: bytes) -> KafkaTopic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise MalformedMessage("a partition of a topic that there is not")
        return topic

    def _change(self, change: PartitionChangeRecord) -> None:
        partition = self._topic(change.topic_id).partitions.get(change.partition_id)
        if partition is None:
            raise MalformedMessage("a change of a partition that there is not")
        if change.isr is not None:
            partition.isr = change.isr
        if change.replicas is not None:
            partition.replicas = change.replicas
        if change.eligible_leader_replicas is not None:
            partition.eligible = change.eligible_leader_replicas
        if change.last_known_elr is not None:
            partition.last_known = change.last_known_elr

    def _configure(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        config = self.configs.setdefault(resource, {})
        if record.value is None:
            config.pop(record.name, None)
        else:
            config[record.name] = record.value
        if not config:
            del self.configs[resource]


def read_metadata_log(folder: Path) -> KafkaMetadata:
    """What the newest snapshot in a folder and the log after it say. UnreadableMetadataLog."""
    metadata = KafkaMetadata()
    # Records of a transaction of the controller's count when it has ended.
    pending: list[_Framed] | None = None
    for kind, version, body in _records(folder):
        if kind == _BEGIN_TRANSACTION:
            pending = []
        elif kind == _END_TRANSACTION:
            for each in pending or ():
                _apply(metadata, each, folder)
            pending = None
        elif kind == _ABORT_TRANSACTION:
            pending = None
        elif pending is not None:
            pending.append((kind, version, body))
        else:
            _apply(metadata, (kind, version, body), folder)
    return metadata


def _apply(metadata: KafkaMetadata, record: _Framed, folder: Path) -> None:
    try:
        metadata.apply(*record)
    except MalformedMessage as error:
        raise UnreadableMetadataLog(
            f"{folder} has a record that makes no sense: {error}"
        ) from error


def _records(folder: Path) -> Iterator[_Framed]:
    """All records, from the newest snapshot on."""
    begin = 0
    snapshots = sorted(
        (int(match[1]), int(match[2]), path)
        for path in folder.iterdir()
        if (match := _SNAPSHOT.fullmatch(path.name)) is not None
    )
    if snapshots:
        begin, _, snapshot = snapshots[-1]
        yield from _records_of(snapshot, 0)
    segments = segments_in(folder)
    if segments and segments[0].base_offset > begin:
        raise UnreadableMetadataLog(
            f"{folder} begins at offset {segments[0].base_offset}, and no snapshot goes so far"
        )
    for number, segment in enumerate(segments):
        if number + 1 == len(segments) or segments[number + 1].base_offset > begin:
            yield from _records_of(segment.log, begin)


def _records_of(path: Path, begin: int) -> Iterator[_Framed]:
    try:
        for batch in read_batches(path):
            if batch.damage is not None:
                raise Damage(batch.position, batch.damage)
            if batch.header.attributes & CONTROL_BIT or batch.header.last_offset < begin:
                continue
            for record in read_records(batch):
                if record.offset >= begin and record.value is not None:
                    yield _framed(record.value)
    except (Damage, InvalidBatch, MalformedMessage) as error:
        raise UnreadableMetadataLog(f"{path} is damaged: {error}") from error


def _framed(value: bytes) -> _Framed:
    try:
        frame_version, at = unsigned_varint_at(value, 0)
        kind, at = unsigned_varint_at(value, at)
        version, at = unsigned_varint_at(value, at)
    except IndexError:
        raise MalformedMessage("a record ends within its frame") from None
    if frame_version != _FRAME_VERSION:
        raise MalformedMessage(f"frame version {frame_version} is unknown")
    return kind, version, value[at:]
