"""Committed offsets of all groups of a shard, and those of transactions that have not ended.

All of it is lasting state: it changes only when records and markers are replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.protocol.records.offsets import OffsetCommitKey


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int  # -1: not told
    metadata: str
    commit_timestamp: int  # wall time
    expire_timestamp: int  # wall time; -1 unless an old client asked for a time of its own
    topic_id: bytes  # zero if the record is of an older version
    # Where its record stands in the log: of two commits, the later one counts.
    record_offset: int


ByPartition = dict[int, CommittedOffset]
ByTopic = dict[str, ByPartition]


class Offsets:
    def __init__(self) -> None:
        # Invariant: no empty dictionaries inside.
        self._committed: dict[str, ByTopic] = {}
        # producer id -> group -> ...; a group stays until the transaction ends, even without offsets.
        self._pending: dict[int, dict[str, ByTopic]] = {}
        # group -> producers with open transactions. Invariant: the inverse of `_pending`.
        self._open: dict[str, set[int]] = {}

    # Looking ------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        topics = self._committed.get(group_id)
        if topics is None:
            return None
        partitions = topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def of_group(self, group_id: str) -> ByTopic:
        """The committed offsets of a group by topic and partition; not to be changed."""
        return self._committed.get(group_id) or {}

    def group_ids(self) -> list[str]:
        """Every group with offsets, committed or in a transaction."""
        return list(self._committed.keys() | self._open.keys())

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended may change this offset."""
        for producer_id in self._open.get(group_id, ()):
            topics = self._pending[producer_id][group_id]
            if partition in topics.get(topic, ()):
                return True
        return False

    def newest(self, group_id: str, topic: str, partition: int) -> int:
        """Where the last commit of an offset stands in the log, also one in a transaction that is
        open; -1: there is none."""
        committed = self.get(group_id, topic, partition)
        newest = -1 if committed is None else committed.record_offset
        for producer_id in self._open.get(group_id, ()):
            pending = self._pending[producer_id][group_id].get(topic, {}).get(partition)
            if pending is not None:
                newest = max(newest, pending.record_offset)
        return newest

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open

    def partitions(self, group_id: str, topic: str | None = None) -> Iterator[tuple[str, int]]:
        """What a group has offsets for, committed or pending; of all topics, or of one."""
        seen: set[tuple[str, int]] = set()
        stores = [self._committed.get(group_id, {})]
        stores += (self._pending[each][group_id] for each in self._open.get(group_id, ()))
        for store in stores:
            for name in list(store) if topic is None else [topic]:
                for partition in list(store.get(name, ())):
                    if (name, partition) not in seen:
                        seen.add((name, partition))
                        yield name, partition

    def is_of_topic(
        self, group_id: str, topic: str, partition: int, topic_id: bytes | None
    ) -> bool:
        """Whether an offset, committed or pending, is known to be of the topic with this id."""
        stores = [self._committed.get(group_id, {})]
        stores += (self._pending[each][group_id] for each in self._open.get(group_id, ()))
        found = (store.get(topic, {}).get(partition) for store in stores)
        return any(each is not None and each.topic_id == topic_id for each in found)

    # Replaying ----------------------------------------------------------------------------------

    def put(self, key: OffsetCommitKey, committed: CommittedOffset, producer_id: int) -> None:
        """Replay a committed offset. `producer_id`: whose transaction it belongs to; -1: none."""
        topics: ByTopic | None
        if producer_id < 0:
            topics = self._committed.get(key.group)
            if topics is None:
                topics = self._committed[key.group] = {}
        else:
            topics = self._pending.setdefault(producer_id, {}).setdefault(key.group, {})
            self._open.setdefault(key.group, set()).add(producer_id)
        partitions = topics.get(key.topic)
        if partitions is None:
            partitions = topics[key.topic] = {}
        partitions[key.partition] = committed

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """A tombstone: nothing is committed, and what is pending will not be."""
        topics = self._committed.get(group_id)
        if topics is not None:
            _discard(topics, topic, partition)
            if not topics:
                del self._committed[group_id]
        for producer_id in self._open.get(group_id, ()):
            _discard(self._pending[producer_id][group_id], topic, partition)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for group_id, topics in self._pending.pop(producer_id, {}).items():
            producers = self._open[group_id]
            producers.remove(producer_id)
            if not producers:
                del self._open[group_id]
            if not committed or not topics:
                continue
            kept = self._committed.setdefault(group_id, {})
            for topic, partitions in topics.items():
                mine = kept.setdefault(topic, {})
                for partition, offset in partitions.items():
                    other = mine.get(partition)
                    if other is None or other.record_offset < offset.record_offset:
                        mine[partition] = offset


def _discard(topics: ByTopic, topic: str, partition: int) -> None:
    partitions = topics.get(topic)
    if partitions is not None:
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
