"""The partitions in which a transaction begins with a Produce request: its coordinator is asked.

The first batch of a transaction in a partition is written only if the coordinator knows of it; see
server/coordination/verification.py. Between that, or a look that found the transaction open, and the
append the loop may have its turn: then a marker may end the transaction in the partition, and the batch
would open one that nobody ends. So where the producer's last marker is has to be the same at the append.

The log is told with which sequence the producer wants to begin there: where this request is refused for
now, one that was sent after it must not be taken for the first.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    read_header,
)
from ottla.server.coordination.verification import (
    ProducerProtocol,
    answer_code,
    is_open,
    last_marker,
    verify,
)
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.coordination.verification import LastMarker, Verdict
    from ottla.server.disk.lanes import Batches, Transform
    from ottla.server.handlers.records.produce.request import TopicParts

    # Partitions that hold no batch of the transaction yet, by its producer; one, usually.
    Begins = dict[Identity, list[tuple[str, int]]]
    # Where a producer's last marker was in a partition when its next batch was found to be allowed: by
    # the producer's id, the topic and the index.
    Markers = dict[tuple[int, str, int], LastMarker]


def beginning(
    known: Mapping[bytes, Sequence[Partition]],
    topics: list[TopicParts],
    body: memoryview,
    markers: Markers,
) -> Begins:
    """The partitions of a request in which its transaction begins; of the others the last markers are
    put into `markers`. `known`: the partitions of this broker by their topics, as the request names
    them."""
    begins: Begins = {}
    for key, parts in topics:
        found = known.get(key, ())
        for index, start, end in parts:
            records = body[start:end]
            if (
                not 0 <= index < len(found)
                or len(records) < HEADER_SIZE
                or records[MAGIC_AT] != MAGIC
                or not records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
            ):
                continue
            target = found[index]
            header = read_header(records)
            producer = Identity(header.producer_id, header.producer_epoch)
            try:
                if is_open(target, producer):
                    markers[producer.producer_id, target.topic, target.index] = last_marker(
                        target, producer.producer_id
                    )
                else:
                    begins.setdefault(producer, []).append((target.topic, target.index))
                    target.log.producers.note_beginning(
                        *producer, header.base_sequence, time.time_ns() // 1_000_000
                    )
            except StorageError:
                # The append meets the same, and says so.
                continue
    return begins


class Verification:
    """Whether the batches of a request may be appended to its transaction: what the coordinator says of
    the partitions in which it begins, and whether a marker has ended it in any since then."""

    __slots__ = ("_broker", "_client", "_codes", "_markers", "_then", "_waiting")

    def __init__(
        self,
        broker: Broker,
        version: int,
        transactional_id: str,
        begins: Begins,
        markers: Markers,
    ) -> None:
        """`begins` and `markers` are those of `beginning`."""
        self._broker = broker
        self._client = client = ProducerProtocol.of_produce(version)
        self._codes: dict[tuple[str, int], ErrorCode] = {}
        self._markers = markers
        # Questions that have not been answered.
        self._waiting = len(begins)
        self._then: Callable[[Verification], None] | None = None
        for producer, partitions in begins.items():
            then = partial(self._answered, producer.producer_id)
            verify(broker, transactional_id, producer, partitions, client, then)

    @property
    def is_complete(self) -> bool:
        return not self._waiting

    def when_complete(self, then: Callable[[Verification], None]) -> None:
        """Call this with the verification, at once or later."""
        if self._waiting:
            self._then = then
        else:
            then(self)

    def _answered(self, producer_id: int, verdict: Verdict) -> None:
        self._codes.update(verdict)
        for (topic, index), code in verdict.items():
            target = None if code else self._broker.partitions.get(topic, index)
            if target is not None:
                self._markers[producer_id, topic, index] = last_marker(target, producer_id)
        self._waiting -= 1
        if not self._waiting and self._then is not None:
            self._then(self)

    def check(self, target: Partition, producer_id: int) -> None:
        """ProtocolError unless a batch of the producer may be appended to a partition right now."""
        topic, index = target.topic, target.index
        code = self._codes.get((topic, index))
        if not code and self._markers.get((producer_id, topic, index)) != last_marker(
            target, producer_id
        ):
            # Or nobody was asked, for there was no such partition here.
            code = answer_code(ErrorCode.CONCURRENT_TRANSACTIONS, self._client)
        if code:
            raise ProtocolError(code)

    def in_lane(
        self, target: Partition, producer_id: int, transform: Transform | None
    ) -> Transform:
        """A transform that does the check as well, when the batch has come to its turn in the lane of
        its partition: a marker may have been in the queue before it."""

        async def checked(batches: Batches) -> Batches:
            if transform is not None:
                batches = await transform(batches)
            self.check(target, producer_id)
            return batches

        return checked
