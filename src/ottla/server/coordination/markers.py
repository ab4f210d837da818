"""Markers: the records that end a transaction in each of its partitions.

The coordinator has decided; from here on the outcome only has to reach every partition, however often
that takes. A marker counts as written when it is committed. It queues after the appends of its
partition that are under way (server/disk/lanes.py), so it ends exactly what was written before it. A
partition whose topic was deleted needs none. (One that is not known here may also be of a topic that was
made before this broker became the coordinator, and of which it has not heard: images skip states.)

Leaders on other brokers get theirs by WriteTxnMarkers, one request for each broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.cluster.store import StoreError
from ottla.protocol.errors import ErrorCode, ProtocolError, error_code
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.record.control import build_end_of_transaction
from ottla.record.errors import InvalidBatch
from ottla.replication.partition import Role
from ottla.server.observability.limited_log import LimitedLog
from ottla.storage.errors import InvalidProducerEpoch, StorageError, UnknownLog
from ottla.storage.log.producer_state import Origin
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.coordinator.transactions.ending import Ending
    from ottla.coordinator.transactions.transaction import TopicPartition
    from ottla.replication.partition import Appended, Partition
    from ottla.server.broker import Broker
    from ottla.server.disk.lanes import Batches

log = logging.getLogger("ottla.markers")
limited_log = LimitedLog(log)

# The connections between brokers over which markers and questions about transactions go.
PURPOSE = "transactions"
# Markers written before the loop gets its turn.
AT_ONCE = 100
# How long a marker that could not be written waits for the next try: twice as long each time.
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 5.0


class Marker(NamedTuple):
    """The end of a producer's transaction, as one partition is told of it."""

    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    # The transaction protocol: from 2 on a marker has a higher epoch than what it ends.
    version: int


def append_marker(
    broker: Broker, target: Partition, marker: Marker, done: Callable[[Exception | None], None]
) -> None:
    """Write a marker to a partition that this broker leads; `done` is called on the loop, at once
    or later, with what went wrong or None."""

    def check() -> None:
        target.log.producers.check_marker(
            marker.producer_id,
            marker.epoch,
            marker.coordinator_epoch,
            Origin.COORDINATOR,
            marker.version,
        )

    async def checked(batch: Batches) -> Batches:
        # In the lane, right before the append: what queued up before it counts.
        check()
        return batch

    def finished(result: Appended | Exception) -> None:
        if isinstance(result, Exception):
            done(result)
            return
        if target.topic == CONSUMER_OFFSETS:
            broker.groups.marker_written(
                target.index, marker.producer_id, marker.epoch, marker.committed
            )
        _, _, _, end_offset, _ = result
        target.once_committed(end_offset, committed)

    def committed(code: ErrorCode) -> None:
        done(ProtocolError(code) if code else None)

    now = time.time_ns() // 1_000_000
    batch = bytearray(
        build_end_of_transaction(
            committed=marker.committed,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now,
        )
    )
    try:
        lanes = broker.lanes
        # Coordinators append to their topics at once, so markers there must not be on their way.
        if not target.internal and (target.lane is not None or lanes.is_slow(target.log.folder)):
            lanes.append(target, batch, finished, checked, Origin.COORDINATOR)
            return
        check()
        result: Appended | Exception = target.append(batch, now, Origin.COORDINATOR)
    except (StorageError, InvalidBatch, ProtocolError) as error:
        result = error
    finished(result)


class Markers:
    """Ends transactions in their partitions, then tells the shards that decided on them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # What is under way, by the shard that decided it.
        self._under_way: dict[int, set[_Ending]] = {}

    def write(self, shard: int, ending: Ending) -> None:
        """Have all markers of a transaction written; calls `markers_written` of the shard, at once
        if nothing has to be waited for."""
        work = _Ending(self._broker, ending, partial(self._finished, shard))
        self._under_way.setdefault(shard, set()).add(work)
        work.start()

    def _finished(self, shard: int, work: _Ending) -> None:
        self._under_way[shard].discard(work)
        self._broker.transactions.act(
            shard, lambda held, now: held.markers_written(work.ending, now)
        )

    @property
    def under_way(self) -> int:
        """How many transactions have been decided here and not been ended everywhere."""
        return sum(map(len, self._under_way.values()))

    def forget(self, shard: int) -> None:
        """Stop writing a shard's markers: it is led elsewhere, and its new leader writes what is
        missing."""
        for work in self._under_way.pop(shard, ()):
            work.cancelled = True


class _Ending:
    """One transaction whose markers are being written."""

    __slots__ = ("_broker", "_done", "_left", "_marker", "_waits", "cancelled", "ending")

    def __init__(self, broker: Broker, ending: Ending, done: Callable[[_Ending], None]) -> None:
        self.ending = ending
        self.cancelled = False
        self._broker = broker
        self._done = done
        self._left = len(ending.partitions)
        # How long the next try of a partition waits, if one has failed.
        self._waits: dict[TopicPartition, float] = {}
        self._marker = Marker(
            ending.producer_id,
            ending.epoch,
            ending.committed,
            ending.coordinator_epoch,
            ending.version,
        )

    def start(self) -> None:
        if not self._left:
            self._done(self)
        else:
            self._walk(0)

    def _walk(self, first: int) -> None:
        """Handles some of the partitions, lets the loop run, then goes on with the next ones."""
        if self.cancelled:
            return
        partitions = self.ending.partitions
        end = first + AT_ONCE
        if end < len(partitions):
            self._broker.loop.call_soon(self._walk, end)
        self._write(partitions[first:end])

    def _write(self, partitions: Sequence[TopicPartition]) -> None:
        if self.cancelled:
            return
        elsewhere: dict[int, list[TopicPartition]] = {}
        unknown: list[TopicPartition] = []
        for topic, index in partitions:
            target = self._broker.partitions.get(topic, index)
            if target is None:
                unknown.append((topic, index))
            elif target.role is Role.LEADER:
                written = partial(self._written, topic, index)
                append_marker(self._broker, target, self._marker, written)
            elif target.leader < 0:
                self._again(topic, index)
            else:
                elsewhere.setdefault(target.leader, []).append((topic, index))
        for leader, led in elsewhere.items():
            self._broker.spawn(self._send(leader, led), f"markers for broker {leader}")
        if unknown:
            self._broker.spawn(self._look_for(unknown), "markers for unknown partitions")

    async def _look_for(self, partitions: Sequence[TopicPartition]) -> None:
        """Look for partitions anew, once all changes of the metadata are known here. Those that are not
        there then were deleted, and the transaction's records with them."""
        try:
            await self._broker.membership.follower.caught_up()
        except StoreError as error:
            log.info("markers wait, the metadata store gives no answer: %s", error)
            for topic, index in partitions:
                self._again(topic, index)
            return
        if self.cancelled:
            return
        known = []
        for topic, index in partitions:
            if self._broker.partitions.get(topic, index) is None:
                self._written(topic, index, None)
            else:
                known.append((topic, index))
        self._write(known)

    async def _send(self, leader: int, partitions: list[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        marker = self._marker
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.epoch,
                    transaction_result=marker.committed,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.version,
                    topics=[
                        WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in topics.items()
                    ],
                )
            ]
        )
        codes: dict[TopicPartition, ErrorCode] = {}
        try:
            answer = await self._broker.peers.request(
                leader, PURPOSE, request, WriteTxnMarkersResponse
            )
            for topic_result in answer.markers[0].topics if answer.markers else ():
                for each in topic_result.partitions:
                    codes[topic_result.name, each.partition_index] = error_code(each.error_code)
        except WireError as error:
            log.info("markers not sent, will be tried again: broker=%d %s", leader, error)
        for topic, index in partitions:
            code = codes.get((topic, index), ErrorCode.NETWORK_EXCEPTION)
            if code is ErrorCode.NONE:
                self._written(topic, index, None)
            elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
                log.info("marker not needed: topic=%s partition=%d", topic, index)
                self._written(topic, index, None)
            elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                # Another coordinator has taken over, and ends the transaction itself.
                self.cancelled = True
            else:
                # Also one that does not know the partition: it may only have heard less of the
                # cluster than this broker, whose own image tells when a topic was deleted.
                self._again(topic, index)

    def _written(self, topic: str, index: int, error: Exception | None) -> None:
        if isinstance(error, InvalidProducerEpoch):
            # A newer epoch is there, so an earlier try came through and the producer went on.
            limited_log.info(
                "marker not needed: topic=%s partition=%d id=%s %s",
                topic, index, self.ending.transactional_id, error,
            )  # fmt: skip
        elif error is not None and not isinstance(error, UnknownLog):
            if (topic, index) not in self._waits:
                limited_log.warning(
                    "marker not written, will be tried again: topic=%s partition=%d id=%s %s",
                    topic, index, self.ending.transactional_id, error,
                )  # fmt: skip
            self._again(topic, index)
            return
        self._left -= 1
        if not self._left and not self.cancelled:
            self._done(self)

    def _again(self, topic: str, index: int) -> None:
        wait = self._waits.get((topic, index), FIRST_RETRY_SECONDS)
        self._waits[topic, index] = min(2 * wait, LAST_RETRY_SECONDS)
        self._broker.loop.call_later(wait, self._write, [(topic, index)])
