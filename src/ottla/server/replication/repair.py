"""Replicas whose logs were found damaged are fetched again from a healthy one.

What a scrub finds in a log that has other replicas is mended in these steps, each of which waits until
the cluster has agreed to the one before it:

1. A leader hands its leadership over, if another replica is in sync. If none is, the log stays as it is:
   it may be the best that there is.
2. A follower stops fetching, and asks the controller to take it out of the in-sync set, and out of those
   that may lead without being in it. The leader epoch rises with that: requests of the follower that are
   still on their way do not count any more.
3. The log is set aside (`…-damaged-stray`), never deleted, and the replica begins anew. All that it
   fetches has its checksums compared, as everything that followers fetch.

While fewer than `min.insync.replicas` would be left in sync, the first two wait for the other replicas
to be back; if all are there, they are done all the same.

A batch that a leader serves with a wrong checksum stops its followers. One that asks for the same offset
again and again makes the leader look at that batch; what it finds counts as a scrub's finding.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.cluster.decisions.partitions import WantedIsr
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import check_batch
from ottla.record.errors import InvalidBatch
from ottla.replication.partition import Partition, Role
from ottla.storage.errors import StorageError
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.cluster.metadata import Partition as PartitionState
    from ottla.server.broker import Broker
    from ottla.storage.folders import Key

log = logging.getLogger("ottla.repair")

# The cluster may have changed without a word about this partition: it is looked at again.
LOOK_AGAIN_SECONDS = 5.0


class Repairs:
    """What is being mended. Belongs to the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._suspected: set[Partition] = set()
        # Partitions that are not followed until their logs have been set aside, each with the leader
        # epoch in which it was followed (or led) last.
        self.withdrawn: dict[Partition, int] = {}
        # Of those it was said that nothing can be done.
        self._reported: set[Partition] = set()
        self._changed = asyncio.Event()
        self.repaired = 0

    def changed(self) -> None:
        """There is a newer image of the cluster."""
        if self._tasks:
            self._changed.set()

    # What is damaged ------------------------------------------------------------------------------

    def found(self, key: Key) -> None:
        """The log of a partition is damaged."""
        partition = self._broker.partitions.get(*key)
        if partition is None or partition in self._tasks or partition.role is Role.ABSENT:
            return
        task = self._broker.spawn(self._repair(partition), f"repair of {key[0]}-{key[1]}")
        self._tasks[partition] = task
        task.add_done_callback(lambda _: self._ended(partition))

    def _ended(self, partition: Partition) -> None:
        del self._tasks[partition]
        self._follow_again(partition)

    def suspected(self, partition: Partition, offset: int) -> None:
        """A follower does not get on at this offset."""
        if partition not in self._suspected:
            self._suspected.add(partition)
            self._broker.spawn(self._look_at(partition, offset), "look at a batch")

    async def _look_at(self, partition: Partition, offset: int) -> None:
        try:
            opened = partition.log
            piece = opened.read(offset, 0, opened.log_end_offset)
            if piece is None:
                return
            batch = await self._broker.reads.read(piece)
            try:
                check_batch(batch)
            except InvalidBatch as error:
                if partition.opened is not opened:
                    return  # set aside meanwhile: the damage is that of the log before
                log.error(
                    "damage at rest, found by a follower: topic=%s partition=%d offset=%d %s",
                    partition.topic, partition.index, offset, error.reason,
                )  # fmt: skip
                self.found((partition.topic, partition.index))
        except (StorageError, OSError) as error:
            log.warning("%s-%d at %d: %s", partition.topic, partition.index, offset, error)
        finally:
            self._suspected.discard(partition)

    # Mending --------------------------------------------------------------------------------------

    def _state(self, partition: Partition) -> PartitionState | None:
        """As the newest image has it; None if the replica is no longer here."""
        topic = self._broker.image.topics_by_id.get(partition.topic_id)
        if topic is None or partition.index >= len(topic.partitions):
            return None
        state = topic.partitions[partition.index]
        return state if self._broker.id in state.replicas else None

    async def _repair(self, partition: Partition) -> None:
        while (state := self._state(partition)) is not None:
            if state.leader == self._broker.id:
                if not self._hand_over(partition, state):
                    return
            elif await self._leave(partition, state):
                self._begin_anew(partition)
                return
            await self._newer_image()

    async def _newer_image(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _hand_over(self, partition: Partition, state: PartitionState) -> bool:
        """Have another replica lead; False if none can."""
        alive = self._broker.image.brokers
        if not any(each in alive for each in state.isr if each != self._broker.id):
            if partition not in self._reported:
                self._reported.add(partition)
                log.error(
                    "a damaged log is left as it is, no other replica is in sync: "
                    "topic=%s partition=%d",
                    partition.topic, partition.index,
                )  # fmt: skip
            return False
        if not self._may_leave(partition, state):
            return True
        if partition.role is Role.LEADER and partition.wanted_isr is None:
            # Before it follows somebody: it would be back in sync at once.
            self._withdraw(partition)
            log.warning(
                "leadership is handed over, the log is damaged: topic=%s partition=%d",
                partition.topic, partition.index,
            )  # fmt: skip
            partition.resign()
        return True

    async def _leave(self, partition: Partition, state: PartitionState) -> bool:
        """Whether nobody counts on this replica any more, and another has all that is committed."""
        own_id = self._broker.id
        if state.leader not in state.isr or state.leader not in self._broker.image.brokers:
            return False
        if (
            own_id not in state.isr
            and own_id not in state.elr
            and state.leader_epoch > self.withdrawn.get(partition, state.leader_epoch)
        ):
            return self._is_at_rest(partition, state)
        if not self._may_leave(partition, state):
            return False
        self._withdraw(partition)
        others = [(each, -1) for each in state.isr if each != own_id]
        wanted = WantedIsr(
            partition.topic_id, partition.index, state.leader_epoch, state.partition_epoch, others
        )
        try:
            (result,) = await self._broker.changes.alter_isr([wanted])
        except (ProtocolError, WireError) as error:
            log.info("the controller did not answer about a damaged replica: %s", error)
            return False
        if result.error is not ErrorCode.NONE:
            log.info("a damaged replica cannot leave yet: %s", result.error.name)
        return False

    def _may_leave(self, partition: Partition, state: PartitionState) -> bool:
        """Whether enough are left in sync, or no more than there are can ever be."""
        others = [each for each in state.isr if each != self._broker.id]
        enough = min(partition.config.min_insync_replicas, len(state.replicas))
        return len(others) >= enough or len(state.isr) == len(state.replicas)

    def _is_at_rest(self, partition: Partition, state: PartitionState) -> bool:
        """Whether this broker has taken over what the cluster knows, and nothing is being written."""
        return (
            partition.role is Role.FOLLOWER
            and partition.leader_epoch == state.leader_epoch
            and partition.lane is None
            and not partition.is_occupied
        )

    def _withdraw(self, partition: Partition) -> None:
        """No longer follow, or the leader would take the replica back into the set at once."""
        if partition not in self.withdrawn:
            self.withdrawn[partition] = partition.leader_epoch
            self._broker.replicas.role_changed(partition)

    def _follow_again(self, partition: Partition) -> None:
        if self.withdrawn.pop(partition, None) is not None:
            self._broker.replicas.role_changed(partition)

    def _begin_anew(self, partition: Partition) -> None:
        broker, key = self._broker, (partition.topic, partition.index)
        if key not in broker.logs:
            return
        try:
            moved = broker.logs.set_aside(*key, damaged=True)
        except StorageError as error:
            log.error("a damaged log cannot be set aside: %s", error)
            return
        partition.forget_log()
        broker.scrubber.forget(key)
        self._reported.discard(partition)
        self.repaired += 1
        log.warning(
            "a damaged log is fetched again from broker %d: topic=%s partition=%d, set aside as %s",
            partition.leader, *key, moved,
        )  # fmt: skip
