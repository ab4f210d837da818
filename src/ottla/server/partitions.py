"""The partitions of this broker, under every name a request may use for them.

The tables are plain dictionaries that the hot path reads directly: by name, by name as it stands on
the wire (bytes), by topic id. Each gives the list of a topic's partitions by index. They follow the
cluster's image: `apply` is called with every change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ottla.cluster.metadata import NO_LEADER
from ottla.replication.partition import Partition, Role
from ottla.server.configuration.record_rules import needs_checks, record_rules
from ottla.storage.errors import TopicIdMismatch

if TYPE_CHECKING:
    from ottla.cluster.metadata import Partition as PartitionState
    from ottla.cluster.metadata import Topic
    from ottla.server.delayed import Wakeups
    from ottla.storage.config import LogConfig
    from ottla.storage.log.log import Log
    from ottla.storage.logs import Logs

log = logging.getLogger("ottla.partitions")


def monotonic_ms() -> int:
    """For lags and time-outs: a clock that never jumps."""
    return time.monotonic_ns() // 1_000_000


class ReplicaWork(Protocol):
    """Who acts on what partitions want: see server/replication/replicas.py."""

    def is_alive(self, broker_id: int) -> bool: ...

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool: ...

    def suspected(self, partition: Partition, offset: int) -> None: ...

    def isr_wanted(self, partition: Partition) -> None: ...

    def role_changed(self, partition: Partition) -> None: ...


class Partitions:
    """The partitions of the cluster as this broker sees them; also what each of them asks for (the
    `Owner` of replication/partition.py)."""

    def __init__(
        self,
        broker_id: int,
        logs: Logs,
        wakeups: Wakeups,
        config_of: Callable[[str], LogConfig],
        *,
        validates_records: bool = True,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._config_of = config_of
        self.appended = wakeups.appended
        self.advanced = wakeups.advanced
        # Told of a log that is about to be opened or made.
        self.before_load: Callable[[str, int], None] | None = None
        # Whether it is this process that the cluster knows by the broker's number, and this life of it.
        self.is_member: Callable[[], bool] = lambda: True
        # Set once it can do something: when the broker is part of its cluster.
        self.replicas: ReplicaWork | None = None
        # Whether producers' records are looked at where the topic does not ask for it.
        self._validates_records = validates_records
        self.by_name: dict[str, list[Partition]] = {}
        self.by_raw_name: dict[bytes, list[Partition]] = {}
        self.by_id: dict[bytes, list[Partition]] = {}

    def is_alive(self, broker_id: int) -> bool:
        return self.replicas is not None and self.replicas.is_alive(broker_id)

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool:
        return self.replicas is not None and self.replicas.may_be_in_sync(broker_id, broker_epoch)

    def suspected(self, partition: Partition, offset: int) -> None:
        if self.replicas is not None:
            self.replicas.suspected(partition, offset)

    def isr_wanted(self, partition: Partition) -> None:
        if self.replicas is not None:
            self.replicas.isr_wanted(partition)

    def role_changed(self, partition: Partition) -> None:
        # Here too: an image that was held back until a disk had done its work comes by itself.
        partition.open_to_clients = partition.role is Role.LEADER and not partition.internal
        if self.replicas is not None:
            self.replicas.role_changed(partition)

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            yield from partitions

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self.by_name.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def put(self, topic: Topic, *, is_new: bool = False) -> None:
        """A topic was created, or something about its partitions changed. `is_new`: partitions that
        are not known yet have just been made, so no log of theirs can lie anywhere."""
        known = self.by_name.get(topic.name)
        if known is not None and known and known[0].topic_id != topic.topic_id:
            self.remove(topic.name)
            known = None
        if known is None:
            known = []
            self.by_name[topic.name] = known
            self.by_raw_name[topic.name.encode()] = known
            self.by_id[topic.topic_id] = known
        config = self._config_of(topic.name)
        for state in map(self._as_led, topic.partitions):
            if state.index < len(known):
                known[state.index].update(state, monotonic_ms(), config)
            else:
                partition = Partition(
                    self._broker_id, topic.name, topic.topic_id, state, self, monotonic_ms()
                )
                partition.internal = topic.internal
                partition.is_new = is_new
                known.append(partition)
                self.role_changed(partition)
        self._configure(topic.name, config)

    def _as_led(self, state: PartitionState) -> PartitionState:
        """What the cluster has decided, as it is for this process. A broker that was thought to be dead
        may have a successor with its number: what that one leads is not led here."""
        if state.leader == self._broker_id and not self.is_member():
            return replace(state, leader=NO_LEADER)
        return state

    def lead_or_not(self, topics: Iterable[Topic]) -> None:
        """Begin or stop leading the partitions of these topics, as this broker has become part of its
        cluster or is no longer."""
        for topic in topics:
            known = self.by_name.get(topic.name, ())
            for state in topic.partitions:
                if state.leader == self._broker_id and state.index < len(known):
                    known[state.index].update(self._as_led(state), monotonic_ms())

    def remove(self, name: str) -> None:
        """Remove a deleted topic: it is found no more, and who waits for it gets an error."""
        partitions = self.by_name.pop(name, None)
        if partitions is None:
            return
        del self.by_raw_name[name.encode()]
        if partitions:
            self.by_id.pop(partitions[0].topic_id, None)
        for partition in partitions:
            partition.removed()
            self.role_changed(partition)

    def settle(self, name: str) -> None:
        """Updates what depends on a topic's configuration."""
        self._configure(name, self._config_of(name))

    def _configure(self, name: str, config: LogConfig) -> None:
        trusted = not self._validates_records and not needs_checks(config)
        rules = None if trusted else record_rules(config)
        for partition in self.by_name.get(name, ()):
            partition.configure(config)
            partition.record_rules = rules
            partition.open_to_clients = partition.role is Role.LEADER and not partition.internal
            if partition.role is Role.LEADER and partition.opened is None:
                self._take_recovered(partition)

    def _take_recovered(self, partition: Partition) -> None:
        """Take over, as its leader, a log that recovery has read after a crash, with the high watermark
        that was stored before it. At once: until then what came after the watermark does not count as
        committed, so neither erasing nor retention would touch it in a topic that nobody uses. (After a
        clean stop the stored one is that of the log's end.)"""
        found = self._logs.find_loaded(partition.topic, partition.index)
        if found is not None and found.offline is None and found.topic_id == partition.topic_id:
            partition.log  # noqa: B018

    def flushed(self, flushed: Log) -> None:
        """A flush of a log came to its end: appends that it covers may be acknowledged."""
        partition = self.get(flushed.topic, flushed.partition)
        if partition is not None and partition.opened is flushed:
            partition.flushed()

    def load(self, partition: Partition) -> Log:
        topic, index = partition.topic, partition.index
        if self.before_load is not None:
            self.before_load(topic, index)
        try:
            return self._logs.get_or_create(
                topic,
                index,
                partition.topic_id,
                is_new=partition.is_new,
                leads=partition.role is Role.LEADER,
            )
        except TopicIdMismatch as error:
            # What lies there belongs to another topic of this name. It may be all that is left of
            # somebody's data, so it is moved out of the way and not deleted.
            moved = self._logs.set_aside(topic, index)
            log.error("%s; moved to %s", error, moved)
            return self._logs.create(topic, index, partition.topic_id)
