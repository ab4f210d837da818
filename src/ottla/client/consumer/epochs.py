"""Leader epochs of what was fetched (KIP-320): how a reader finds out that a log was cut off.

A partition's leader changes, and each time its epoch grows by one; batches carry the epoch in which
they were written. A leader that was elected although it lacked records goes on from where its own log
ends: what readers have read after that point is not in the log any more, and other records may stand
there. So a position goes with the epoch of the record before it. Whoever fetches tells that epoch; the
leader says where it ends in its own log, if that is before the position or the epoch is unknown to it.

Brokers up to Kafka 2.6 do not take the epoch with a fetch. There OffsetForLeaderEpoch is asked once a
partition is fetched from a new leader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.positions import TopicPartition
from ottla.client.spreading import by_topic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.record.batch import LENGTH_OVERHEAD, MAGIC, MAGIC_AT
from ottla.record.columns import Reach
from ottla.wire.connection import Connection

NO_EPOCH: Final = -1
EPOCH_IN_FETCH_SINCE: Final = 12  # Fetch
# Before this version only those who may alter the cluster may ask.
_CONSUMERS_MAY_ASK_SINCE: Final = 3  # OffsetForLeaderEpoch
_EPOCH_AT: Final = 12  # in a batch
_LENGTH_AT: Final = 8


class Epochs:
    """The epochs of the batches of one answer. Nearly always it is one."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, starts: list[int], epochs: list[int]) -> None:
        self._starts = starts  # offsets at which an epoch begins
        self._epochs = epochs

    def before(self, offset: int) -> int:
        """The epoch of the last record before this offset."""
        if len(self._epochs) == 1:
            return self._epochs[0]
        slot = bisect_left(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_EPOCH


UNKNOWN_EPOCH: Final = Epochs([0], [NO_EPOCH])


def epochs_of(batches: memoryview, reached: Reach) -> Epochs:
    """The epochs of whole batches; nothing about them has been checked but their lengths."""
    first = _epoch(batches, 0)
    if first == reached.leader_epoch:
        # They never become less within a log, so that those in between are the same.
        return Epochs([0], [first])
    starts: list[int] = []
    epochs: list[int] = []
    at = 0
    while at < reached.size:
        epoch = _epoch(batches, at)
        if not epochs or epochs[-1] != epoch:
            starts.append(_number(batches, at, 8))
            epochs.append(epoch)
        at += LENGTH_OVERHEAD + _number(batches, at + _LENGTH_AT, 4)
    return Epochs(starts, epochs)


def _epoch(batches: memoryview, at: int) -> int:
    """The epoch of the batch at this place; older formats have none."""
    if batches[at + MAGIC_AT] < MAGIC:
        return NO_EPOCH
    return _number(batches, at + _EPOCH_AT, 4)


def _number(batches: memoryview, at: int, size: int) -> int:
    return int.from_bytes(batches[at : at + size], signed=True)


class InEpoch(NamedTuple):
    """Which epoch is asked about, in the view of which leader."""

    epoch: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch up to the one asked for that the leader knows, and where it ends; -1: none."""

    error_code: int
    epoch: int
    end_offset: int


async def ends_of_epochs(
    connection: Connection, asked: Mapping[TopicPartition, InEpoch], timeout: float
) -> dict[TopicPartition, EpochEnd] | None:
    """Where epochs end in the logs of the broker; None if it does not tell consumers."""
    version = connection.version_of(OffsetForLeaderEpochRequest)
    if version < _CONSUMERS_MAY_ASK_SINCE:
        return None
    answer = await connection.request(
        OffsetForLeaderEpochRequest(replica_id=-1, topics=_topics(asked)),
        OffsetForLeaderEpochResponse,
        version=version,
        timeout=timeout,
    )
    return {
        TopicPartition(topic.topic, each.partition): EpochEnd(
            each.error_code, each.leader_epoch, each.end_offset
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def _topics(asked: Mapping[TopicPartition, InEpoch]) -> list[OffsetForLeaderTopic]:
    return [
        OffsetForLeaderTopic(
            topic=topic,
            partitions=[
                OffsetForLeaderPartition(
                    partition=index,
                    current_leader_epoch=asked[TopicPartition(topic, index)].leader_epoch,
                    leader_epoch=asked[TopicPartition(topic, index)].epoch,
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(asked).items()
    ]
