"""The partitions in which a transaction begins with a Produce request: its coordinator is asked.

The first batch of a transaction in a partition is written only if the coordinator knows of it; see
server/coordination/verification.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coordinator.transactions.transaction import Identity
from ottla.record.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    read_header,
)
from ottla.server.coordination.verification import ProducerProtocol, is_open, verify
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.protocol.errors import ErrorCode
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.coordination.verification import Verdict
    from ottla.server.handlers.records.produce.request import TopicParts

    # Partitions that hold no batch of the transaction yet, by its producer; one, usually.
    Begins = dict[Identity, list[tuple[str, int]]]


def beginning(
    known: Mapping[bytes, Sequence[Partition]], topics: list[TopicParts], body: memoryview
) -> Begins:
    """The partitions of a request in which its transaction begins. `known`: the partitions of this
    broker by their topics, as the request names them."""
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
                if not is_open(target, producer):
                    begins.setdefault(producer, []).append((target.topic, target.index))
            except StorageError:
                # The append meets the same, and says so.
                continue
    return begins


class Verification:
    """What the coordinator says of the partitions in which a transaction begins."""

    __slots__ = ("_then", "_waiting", "verdict")

    def __init__(self, broker: Broker, version: int, transactional_id: str, begins: Begins) -> None:
        self.verdict: dict[tuple[str, int], ErrorCode] = {}
        # Questions that have not been answered.
        self._waiting = len(begins)
        self._then: Callable[[Verdict], None] | None = None
        client = ProducerProtocol.of_produce(version)
        for producer, partitions in begins.items():
            verify(broker, transactional_id, producer, partitions, client, self._answered)

    @property
    def is_complete(self) -> bool:
        return not self._waiting

    def when_complete(self, then: Callable[[Verdict], None]) -> None:
        """Call this with the verdict, at once or later."""
        if self._waiting:
            self._then = then
        else:
            then(self.verdict)

    def _answered(self, verdict: Verdict) -> None:
        self.verdict.update(verdict)
        self._waiting -= 1
        if not self._waiting and self._then is not None:
            self._then(self.verdict)
