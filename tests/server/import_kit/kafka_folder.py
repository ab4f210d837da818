"""A data folder as a Kafka broker in KRaft mode leaves it, made without one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.protocol.message import Message
from ottla.protocol.wiretypes import unsigned_varint
from ottla.record.batch import Record, build_batch
from ottla.server.importing.metadata_log import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.storage.checkpoints import (
    format_checkpoint,
    write_folder_identity,
    write_offsets,
    write_partition_metadata,
)

NODE = 7
NOW = int(time.time() * 1000)
KINDS: Mapping[type[Message], int] = {
    TopicRecord: 2,
    PartitionRecord: 3,
    ConfigRecord: 4,
    PartitionChangeRecord: 5,
    RemoveTopicRecord: 9,
    ProducerIdsRecord: 15,
}


def framed(record: Message, version: int = 0) -> bytes:
    """The value of a record of the metadata log."""
    head = b"".join(map(unsigned_varint, (1, KINDS[type(record)], version)))
    return head + record.encode(version)


def batch_of(
    values: Sequence[bytes],
    base_offset: int = 0,
    keys: Sequence[bytes] | None = None,
    leader_epoch: int = 0,
) -> bytes:
    records = [
        Record(base_offset + at, NOW, None if keys is None else keys[at], value)
        for at, value in enumerate(values)
    ]
    return build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch)


@dataclass
class KafkaFolder:
    """What is added is written by `save`."""

    path: Path
    node: int = NODE
    next_producer_id: int = 4000
    metadata: list[Message] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(
        self,
        topic: str,
        partitions: Sequence[Sequence[bytes]],
        config: Mapping[str, str] | None = None,
        *,
        keys: Sequence[Sequence[bytes]] | None = None,
        replicas: Sequence[int] | None = None,
        isr: Sequence[int] | None = None,
        elr: Sequence[int] = (),
        last_known: Sequence[int] = (),
    ) -> bytes:
        """A topic with these values in its partitions, two leader epochs in each; its id."""
        topic_id = topic.encode().ljust(16, b"\x01")[:16]
        self.metadata.append(TopicRecord(name=topic, topic_id=topic_id))
        holders = list(replicas or [self.node])
        for index, values in enumerate(partitions):
            self.metadata.append(
                PartitionRecord(
                    partition_id=index, topic_id=topic_id, replicas=holders,
                    isr=list(holders if isr is None else isr), leader=holders[0],
                    leader_epoch=3, partition_epoch=3, directories=[b"d" * 16],
                    eligible_leader_replicas=list(elr) or None,
                    last_known_elr=list(last_known) or None,
                )
            )  # fmt: skip
            if self.node in holders:
                self._write_log(topic, index, topic_id, values, keys and keys[index])
        for name, value in (config or {}).items():
            self.metadata.append(
                ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)
            )
        return topic_id

    def _write_log(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None,
    ) -> None:
        folder = self.path / f"{topic}-{index}"
        folder.mkdir(parents=True)
        half = len(values) // 2
        data = b""
        epochs = []
        for epoch, begin, end in ((0, 0, half), (3, half, len(values))):
            if begin < end:
                some = keys[begin:end] if keys is not None else None
                data += batch_of(values[begin:end], begin, some, epoch)
                epochs.append(f"{epoch} {begin}")
        (folder / f"{0:020}.log").write_bytes(data)
        (folder / "leader-epoch-checkpoint").write_bytes(format_checkpoint(epochs))
        write_partition_metadata(str(folder / "partition.metadata"), topic_id)
        self.ends[topic, index] = len(values)

    def save(self, *, clean: bool = True) -> KafkaFolder:
        self.path.mkdir(exist_ok=True)
        (self.path / ".lock").touch()
        identity = {
            "version": "1", "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg",
            "node.id": str(self.node), "directory.id": "KDEkmZ1kTBCQvIYpP2HHqA",
        }  # fmt: skip
        write_folder_identity(str(self.path / "meta.properties"), identity)
        log = self.path / "__cluster_metadata-0"
        log.mkdir(exist_ok=True)
        ids = ProducerIdsRecord(broker_id=self.node, next_producer_id=self.next_producer_id)
        values = [
            framed(each, 2 if isinstance(each, PartitionRecord) else 0)
            for each in (*self.metadata, ids)
        ]
        (log / f"{0:020}.log").write_bytes(batch_of(values))
        write_offsets(str(self.path / "log-start-offset-checkpoint"), self.starts)
        write_offsets(str(self.path / "replication-offset-checkpoint"), self.ends)
        recovery = self.ends if clean else dict.fromkeys(self.ends, 0)
        write_offsets(str(self.path / "recovery-point-offset-checkpoint"), recovery)
        if clean:
            marker = json.dumps({"version": 0, "brokerEpoch": 12})
            (self.path / ".kafka_cleanshutdown").write_text(marker)
        return self
