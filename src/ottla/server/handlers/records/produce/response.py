"""The end of a Produce request: its response is sent here.

There is one exception, the short cut for a partition without other replicas (`repeated`): nothing can be
said of that but that it was appended, and its response is packed in one go.

What a leader acknowledges alone (acks=1, with other replicas there) is worth something only while nobody
else can lead. That is looked at before the append, and here once more: between the two the answer may
have waited for a lane or a flush, and the process may have stood still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.replication.partition import Role
from ottla.server.failures import error_code, error_message, record_errors
from ottla.server.handlers.records.produce.answer import FIRST_CURRENT_LEADER, frame, refusal_piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.handlers.records.produce.answer import Node, RecordError
    from ottla.server.network.connection import Connection
    from ottla.server.network.slots import Slot


# An append that is acknowledged by this broker alone: the partition's index, the partition, and the
# leader epoch in which it was made.
Alone: TypeAlias = "tuple[int, Partition, int]"

_FIRST_STORAGE_ERROR = 4


def send(
    connection: Connection,
    slot: Slot | None,
    acks: int,
    version: int,
    correlation_id: int,
    pieces: list[bytes],
    failed: ErrorCode | None = None,
    nodes: Sequence[Node] = (),
) -> None:
    """All partitions are decided: answer, if an answer is wanted."""
    if not acks:
        if failed is not None:
            connection.hang_up(f"produce without acknowledgement failed: {failed.name}")
        if slot is not None:
            slot.fill([])
        return
    throttle_ms = connection.throttle_ms
    if throttle_ms:
        connection.throttle_ms = 0
    response = frame(version, correlation_id, pieces, nodes, throttle_ms)
    if slot is not None:
        slot.fill([response])
    else:
        connection.answer(response)


class Response:
    """A response that something is said about beyond success: a refusal, or that it comes later."""

    __slots__ = (
        "_broker",
        "_correlation_id",
        "_failed",
        "_leaders",
        "acks",
        "alone",
        "connection",
        "pieces",
        "slot",
        "version",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        acks: int,
        pieces: list[bytes],
        alone: dict[int, Alone],
    ) -> None:
        self.connection = connection
        self.version = version
        self.acks = acks
        self.pieces = pieces
        # By the place in the response.
        self.alone = alone
        self.slot: Slot | None = None
        self._broker = broker
        self._correlation_id = correlation_id
        self._failed: ErrorCode | None = None
        # The brokers that lead what is no longer led here.
        self._leaders: set[int] = set()

    def refuse_for(
        self, place: int, index: int, error: Exception, target: Partition | None
    ) -> None:
        """The partition at this place of the response has failed with this error."""
        code, message = error_code(error), error_message(error)
        self.refuse(place, index, code, message, target, record_errors(error))

    def refuse(
        self,
        place: int,
        index: int,
        code: ErrorCode,
        message: str | None,
        target: Partition | None,
        records: Sequence[RecordError] = (),
    ) -> None:
        """The partition at this place of the response has failed; `records` are those to blame."""
        if code is ErrorCode.KAFKA_STORAGE_ERROR and self.version < _FIRST_STORAGE_ERROR:
            # Clients of before Kafka 1.0 do not know it, and would not try again.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._failed = code
        self.alone.pop(place, None)
        leader = None
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and target is not None:
            leader = (target.leader, target.leader_epoch)
            self._leaders.add(target.leader)
        self.pieces[place] = refusal_piece(self.version, index, code, message, records, leader)

    def _refuse_if_deposed(self) -> None:
        fenced = self._broker.membership.can_be_fenced
        for place, (index, target, epoch) in list(self.alone.items()):
            if fenced or target.role is not Role.LEADER or target.leader_epoch != epoch:
                self.refuse(place, index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None, target)

    def send(self) -> None:
        if self.alone:
            self._refuse_if_deposed()
        nodes: list[Node] = []
        if self._leaders and self.version >= FIRST_CURRENT_LEADER:
            listener = self.connection.listener.name
            nodes = [
                (node.id, host, port, node.rack)
                for node, host, port in self._broker.nodes_for(listener)
                if node.id in self._leaders
            ]
        send(
            self.connection,
            self.slot,
            self.acks,
            self.version,
            self._correlation_id,
            self.pieces,
            self._failed,
            nodes,
        )
