"""What the partitions of this broker need from others: followers fetch, leaders change in-sync sets.

- A partition that follows is put to the fetcher of its leader; there is one for each leader.
- The in-sync sets that leaders want are put to the controller by AlterPartition, all that wait in one
  request, one request at a time. No answer means that nothing is known: the question is put again
  until the controller, or a newer image, settles it.
- Lagging followers are looked for by the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ottla.cluster.decisions.partitions import IsrResult, WantedIsr
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.replication.fetcher import Fetcher
from ottla.replication.following import FetchLimits
from ottla.replication.partition import Partition, Role
from ottla.server.disk.lanes import FollowersDisk
from ottla.server.partitions import monotonic_ms
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.server.broker import Broker
    from ottla.wire.connection import Connection

log = logging.getLogger("ottla.replication")

# Pause before the controller is asked again.
_RETRY_SECONDS = 0.05
# How long its answer is waited for: its broker may stand still, and another be in office by now.
_ANSWER_SECONDS = 10.0
# Asked again, for the controller may be one of the past that has not noticed: it does not know what this
# broker knows. A topic that is no more is asked for only until the image says so.
_ASK_AGAIN = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Replicas:
    """Fetchers, in-sync sets and lags. Belongs to the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._disk = FollowersDisk(broker.lanes)
        self._fetchers: dict[int, Fetcher] = {}
        # Which fetcher a partition is at.
        self._followed: dict[Partition, int] = {}
        self._wanted: dict[Partition, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._lag_timer: asyncio.TimerHandle | None = None
        self.isr_shrinks = 0
        self.isr_expands = 0

    def start(self) -> None:
        """Begin to act on partitions, also on those that are there already."""
        self._broker.partitions.replicas = self
        for partition in self._broker.partitions:
            self.role_changed(partition)
        self._arm()

    def stop(self) -> None:
        self._broker.partitions.replicas = None
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._followed.clear()

    # Following ----------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        broker = self._broker
        leader = partition.leader if partition.role is Role.FOLLOWER else -1
        if not broker.membership.is_member or broker.partitions.replicas is None:
            leader = -1  # the others do not know this broker, or it stops
        if partition in broker.repairs.withdrawn:
            leader = -1
        before = self._followed.get(partition, -1)
        if before >= 0 and before != leader:
            self._fetchers[before].remove(partition)
            del self._followed[partition]
        if leader >= 0:
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = self._fetcher(leader)
            self._followed[partition] = leader
            fetcher.put(partition)
        broker.partition_changed(partition)

    def _fetcher(self, leader: int) -> Fetcher:
        config = self._broker.config

        def spawn(work: Awaitable[None], name: str) -> asyncio.Task[None]:
            return self._broker.spawn(work, name)  # type: ignore[arg-type]

        return Fetcher(
            leader,
            FetchLimits(
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_min_bytes,
                config.replica_fetch_response_max_bytes,
                config.replica_fetch_max_bytes,
                config.replica_fetch_backoff_ms,
                config.replica_socket_timeout_ms,
            ),
            self._connect,
            lambda: (self._broker.id, self._broker.membership.epoch),
            monotonic_ms,
            spawn,
            self._broker.throttle,
            self._disk,
        )

    async def _connect(self, leader: int) -> Connection:
        receive_buffer = self._broker.config.replica_socket_receive_buffer_bytes
        return await self._broker.peers.open(leader, "fetcher", receive_buffer)

    # In-sync sets -------------------------------------------------------------------------------

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._broker.image.brokers

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool:
        known = self._broker.image.brokers.get(broker_id)
        return known is not None and not known.leaving and known.epoch == broker_epoch

    def suspected(self, partition: Partition, offset: int) -> None:
        self._broker.repairs.suspected(partition, offset)

    def isr_wanted(self, partition: Partition) -> None:
        self._wanted[partition] = None
        if self._asking is None:
            self._asking = self._broker.spawn(self._ask(), "in-sync sets")

    async def _ask(self) -> None:
        try:
            while self._wanted:
                asked = [
                    each
                    for each in self._wanted
                    if each.wanted_isr is not None and each.role is Role.LEADER
                ]
                self._wanted.clear()
                if not asked:
                    continue
                try:
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        results = await self._broker.changes.alter_isr(
                            [_wanted_isr(partition) for partition in asked]
                        )
                except (ProtocolError, WireError, TimeoutError) as error:
                    log.info("the controller did not answer about in-sync sets: %s", error)
                    self._wanted.update(dict.fromkeys(asked))
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if self._answered(asked, results):
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._asking = None

    def _answered(self, asked: list[Partition], results: list[IsrResult]) -> bool:
        """Whether some are to be asked for again."""
        again = False
        by_key: dict[tuple[bytes, int], IsrResult] = {
            (each.topic_id, each.index): each for each in results
        }
        for partition in asked:
            result = by_key.get((partition.topic_id, partition.index))
            wanted = partition.wanted_isr
            if result is None or wanted is None:
                continue
            if result.error is ErrorCode.NONE and result.state is not None:
                grows = len(wanted) > len(partition.isr)
                self.isr_expands += grows
                self.isr_shrinks += not grows
                log.info(
                    "in-sync replicas of %s-%d: %s, were %s",
                    partition.topic, partition.index, result.state.isr, partition.isr,
                )  # fmt: skip
                partition.isr_confirmed(result.state, monotonic_ms())
            elif result.error in _ASK_AGAIN:
                self._wanted[partition] = None
                again = True
            else:
                # A newer image, which is on its way, or the next fetch of the follower says more.
                partition.isr_refused(result.error)
        return again

    # Lags ---------------------------------------------------------------------------------------

    def _arm(self) -> None:
        seconds = self._broker.config.replica_lag_time_max_ms / 2000
        self._lag_timer = self._broker.loop.call_later(seconds, self._look_for_lags)

    def _look_for_lags(self) -> None:
        config = self._broker.config
        now = monotonic_ms()
        for partition in self._broker.partitions:
            if partition.role is Role.LEADER and len(partition.isr) > 1:
                partition.drop_lagging(
                    now, config.replica_lag_time_max_ms, config.replica_lag_max_messages
                )
        self._arm()


def _wanted_isr(partition: Partition) -> WantedIsr:
    wanted: dict[int, Any] = partition.wanted_isr or {}
    return WantedIsr(
        partition.topic_id,
        partition.index,
        partition.leader_epoch,
        partition.partition_epoch,
        list(wanted.items()),
    )
