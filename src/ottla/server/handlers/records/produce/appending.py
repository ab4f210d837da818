"""The appends of one Produce request, and what there is of its response meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.record.batch import ATTRIBUTES, PRODUCER_ID, TRANSACTIONAL_BIT
from ottla.server.disk.lanes import SLOW_WRITE_SECONDS
from ottla.server.handlers.records.produce.answer import success_piece
from ottla.server.handlers.records.produce.checks import LEADER_ACKS
from ottla.server.handlers.records.produce.response import Alone, Response, send
from ottla.server.handlers.records.produce.unfinished import Unfinished, must_wait
from ottla.storage.log.producer_state import Origin

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.disk.lanes import Transform
    from ottla.server.handlers.records.produce.transactions import Verification
    from ottla.server.network.connection import Connection
    from ottla.server.network.slots import Slot

_clock = time.perf_counter
_CLIENT = Origin.CLIENT


class Appending:
    """One request: each partition gets its piece of the response, at once or a place for it."""

    __slots__ = (
        "_acks",
        "_alone",
        "_broker",
        "_connection",
        "_correlation_id",
        "_lanes",
        "_response",
        "_started",
        "_timeout_ms",
        "_unfinished",
        "_version",
        "end_offset",
        "pieces",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        acks: int,
        timeout_ms: int,
    ) -> None:
        self._broker = broker
        self._lanes = broker.lanes
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._acks = acks
        self._timeout_ms = timeout_ms
        self.pieces: list[bytes] = []
        # Made for what cannot be answered at once, and for refusals.
        self._response: Response | None = None
        self._unfinished: Unfinished | None = None
        # What is acknowledged by this broker alone, see Response.
        self._alone: dict[int, Alone] = {}
        # The end of the last append; -1 if that could not be done at once.
        self.end_offset = -1
        self._started = _clock()

    def append(
        self,
        target: Partition,
        index: int,
        records: memoryview,
        fields: HeaderFields | None,
        transform: Transform | None,
        now_ms: int,
        verification: Verification | None = None,
    ) -> None:
        """Append records that have passed all checks; `transform` has something to do with them before.
        Raises what the log refuses them for. `verification`: of the transaction that the request
        names."""
        lanes = self._lanes
        if (
            transform is None
            and target.lane is None
            and not (lanes.slow and lanes.is_slow(target.log.folder))
        ):
            self.append_at_once(target, index, records, fields, now_ms)
        else:
            self.end_offset = -1
            if verification is not None and fields and fields[ATTRIBUTES] & TRANSACTIONAL_BIT:
                transform = verification.in_lane(target, fields[PRODUCER_ID], transform)
            self._made_unfinished().append_through_lane(target, index, records, transform)

    def append_at_once(
        self,
        target: Partition,
        index: int,
        records: memoryview,
        fields: HeaderFields | None,
        now_ms: int,
    ) -> None:
        """Append records on the loop. Nothing may be in the partition's lane."""
        base_offset, append_time, log_start, end_offset, is_settled = target.append(
            records, now_ms, _CLIENT, fields
        )
        now = _clock()
        if now - self._started > SLOW_WRITE_SECONDS:
            self._lanes.mark_slow(target.log.folder, now - self._started)
        self._started = now
        if is_settled and not target.followers:
            self.end_offset = end_offset
            self.pieces.append(
                success_piece(self._version, index, base_offset, append_time, log_start)
            )
        else:
            self.appended(target, index, base_offset, append_time, log_start, end_offset)

    def appended(
        self,
        target: Partition,
        index: int,
        base_offset: int,
        append_time: int,
        log_start: int,
        end_offset: int,
    ) -> None:
        """An append was done, of which it is not known whether it may be acknowledged at once."""
        self.end_offset = end_offset
        place = len(self.pieces)
        self.pieces.append(success_piece(self._version, index, base_offset, append_time, log_start))
        if self._acks == LEADER_ACKS and target.followers:
            self._alone[place] = (index, target, target.leader_epoch)
        if must_wait(target, end_offset, self._acks):
            self._made_unfinished().wait_for(target, index, place, end_offset)

    def refuse(self, index: int, error: Exception, target: Partition | None) -> None:
        self.end_offset = -1
        self.pieces.append(b"")
        self._made_response().refuse_for(len(self.pieces) - 1, index, error, target)

    def _made_unfinished(self) -> Unfinished:
        unfinished = self._unfinished
        if unfinished is None:
            unfinished = self._unfinished = Unfinished(
                self._lanes, self._broker.deadlines, self._made_response(), self._timeout_ms
            )
        return unfinished

    def _made_response(self) -> Response:
        response = self._response
        if response is None:
            response = self._response = Response(
                self._broker,
                self._connection,
                self._version,
                self._correlation_id,
                self._acks,
                self.pieces,
                self._alone,
            )
        return response

    def finish(self, slot: Slot | None) -> None:
        """All partitions have had their turn: answer, at once or when nothing is waited for."""
        response = self._response
        if response is None and self._alone and self._broker.membership.can_be_fenced:
            response = self._made_response()  # the parts of a long request come one by one
        if response is None:
            send(
                self._connection, slot, self._acks, self._version, self._correlation_id, self.pieces
            )
            return
        response.slot = slot
        if self._unfinished is not None:
            self._unfinished.all_begun()
        else:
            response.send()
