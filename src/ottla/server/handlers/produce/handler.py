"""One Produce request: its partitions one after the other, then its answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    read_header,
)
from ottla.record.errors import InvalidBatch
from ottla.server.coordination.verification import Client, Verdict, is_open, verify
from ottla.server.disk.lanes import SLOW_WRITE_SECONDS
from ottla.server.handlers.produce.answer import frame, success_piece, topic_piece
from ottla.server.handlers.produce.checks import (
    ALL_ACKS,
    FIRST_ZSTD,
    NO_ACKS,
    ZSTD,
    check,
    check_open,
)
from ottla.server.handlers.produce.inside import Inside
from ottla.server.handlers.produce.repeated import LEARNED_ONE_IN, repeatable
from ottla.server.handlers.produce.request import FIRST_TOPIC_IDS, read
from ottla.server.handlers.produce.response import Response, send
from ottla.server.handlers.produce.unfinished import Unfinished
from ottla.storage.errors import StorageError
from ottla.storage.producer_state import Origin

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.handlers.produce.repeated import Repeated
    from ottla.server.handlers.produce.request import TopicParts
    from ottla.server.network.connection import Connection, HeldBytes, Slot

_clock = time.perf_counter
_time = time.time
_CLIENT = Origin.CLIENT


class Produce:
    """Serves the Produce requests of one broker."""

    __slots__ = (
        "_authorizer",
        "_broker",
        "_broker_id",
        "_by_id",
        "_by_raw_name",
        "_deadlines",
        "_inside",
        "_lanes",
        "_membership",
    )

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._authorizer = broker.authorizer
        self._broker_id = broker.id
        self._by_raw_name = broker.partitions.by_raw_name
        self._by_id = broker.partitions.by_id
        self._lanes = broker.lanes
        self._deadlines = broker.deadlines
        self._membership = broker.membership
        self._inside = Inside(broker)

    def serve(
        self,
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
        verdict: Verdict | None = None,
        slot: Slot | None = None,
    ) -> None:
        """Append what the request brings, and answer it.

        `verdict`: what the coordinator said of the partitions of the request's transaction; the
        request comes here again once that is known. `slot`: the answer's place in the order of
        answers, if it got one meanwhile.
        """
        quotas = self._broker.quotas
        repeated = connection.repeated
        if (
            repeated is not None
            and quotas is None
            and self._serve_repeated(repeated, connection, view, at, stop, version, correlation_id)
        ):
            return
        request = transactional_id, acks, timeout_ms, topics = read(view, at, stop, version)
        if quotas is not None and verdict is None:
            connection.throttle_ms = quotas.produced(connection, stop - at)
        refused = None
        if self._authorizer is not None:
            by_id = version >= FIRST_TOPIC_IDS
            refused = self._broker.security.refused_topics(
                connection, transactional_id, topics, by_id
            )
        if transactional_id and verdict is None:
            allowed = [each for each in topics if each[0] not in refused] if refused else topics
            if allowed:
                verification = _Verification(
                    self._broker, self, connection, version, correlation_id
                )
                verification.begin(transactional_id, allowed, view[at:stop], at)
                return
        known = self._by_id if version >= FIRST_TOPIC_IDS else self._by_raw_name
        lanes = self._lanes
        inside = self._inside
        pieces: list[bytes] = []
        # Made for what cannot be answered at once, and for refusals.
        response: Response | None = None
        unfinished: Unfinished | None = None
        target: Partition | None = None
        end_offset = -1
        now_ms = int(_time() * 1000)
        started = _clock()
        for key, parts in topics:
            found = known.get(key, ())
            count = len(found)
            topic_count = 0 if pieces else len(topics)
            pieces.append(topic_piece(version, key, len(parts), topic_count))
            for index, start, end in parts:
                target = None
                end_offset = -1
                try:
                    if refused is not None and key in refused:
                        raise ProtocolError(refused[key])
                    if not 0 <= index < count:
                        raise _unknown(version, count)
                    target = found[index]
                    if target.followers and acks != ALL_ACKS and self._membership.can_be_fenced:
                        # It would be acknowledged by this broker alone: not while another may lead.
                        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    records = view[start:end]
                    transform = None
                    if not target.open_to_clients:
                        check_open(target, self._broker_id, connection.client_id)
                    fields = check(target, records, version, acks, verdict)
                    if fields is None:
                        transform = inside.upgrade(target, now_ms)
                    else:
                        rules = target.record_rules
                        if rules is not None:
                            fields, transform = inside.check(target, records, fields, rules, now_ms)
                    if (
                        transform is None
                        and target.lane is None
                        and not (lanes.slow and lanes.is_slow(target.log.folder))
                    ):
                        (
                            base_offset, append_time, log_start, end_offset, is_settled,
                        ) = target.append(records, now_ms, _CLIENT, fields)  # fmt: skip
                        took = _clock() - started
                        if took > SLOW_WRITE_SECONDS:
                            lanes.mark_slow(target.log.folder, took)
                        started += took
                        pieces.append(
                            success_piece(version, index, base_offset, append_time, log_start)
                        )
                        if is_settled or not _waits(target, end_offset, acks):
                            continue
                    if response is None:
                        response = Response(
                            self._broker, connection, version, correlation_id, acks, pieces
                        )
                    if unfinished is None:
                        unfinished = Unfinished(lanes, self._deadlines, response, timeout_ms)
                    if end_offset < 0:
                        unfinished.append_through_lane(target, index, records, transform)
                    else:
                        unfinished.wait_for(target, index, len(pieces) - 1, end_offset)
                except (ProtocolError, InvalidBatch, StorageError, OSError) as error:
                    if response is None:
                        response = Response(
                            self._broker, connection, version, correlation_id, acks, pieces
                        )
                    pieces.append(b"")
                    response.refuse_for(len(pieces) - 1, index, error, target)
        is_plain = slot is None and acks and quotas is None
        if (
            is_plain
            and not connection.requests % LEARNED_ONE_IN
            and self._authorizer is None
            and target is not None
            and end_offset >= 0
        ):
            connection.repeated = repeatable(view, at, version, request, target)
        if response is not None:
            response.slot = slot
            if unfinished is not None:
                unfinished.all_begun()
            else:
                response.send()
        elif is_plain:
            connection.answer(frame(version, correlation_id, pieces))
        else:
            send(connection, slot, acks, version, correlation_id, pieces)

    def _serve_repeated(
        self,
        repeated: Repeated,
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Serve a request that is like one before it; False, and nothing was done, if there is anything
        about it or its partition that the general way has to look at."""
        if version != repeated.version:
            return False
        now_ms = int(_time() * 1000)
        batch = repeated.accept(view, at, stop, now_ms)
        if batch is None:
            return False
        index, start, end, fields = batch
        known = self._by_id if version >= FIRST_TOPIC_IDS else self._by_raw_name
        found = known.get(repeated.key, ())
        if not 0 <= index < len(found):
            return False
        target = found[index]
        acks = repeated.acks
        lanes = self._lanes
        if (
            not target.open_to_clients
            or target.lane is not None
            or target.under_min_isr
            or target.config is not repeated.config
            or target.record_rules is not repeated.rules
            or lanes.slow
            or (target.followers and acks != ALL_ACKS and self._membership.can_be_fenced)
        ):
            return False
        records = view[start:end]
        codec = fields[ATTRIBUTES]
        if codec:
            if codec == ZSTD and version < FIRST_ZSTD:
                return False
            try:
                fields, transform = self._inside.check(
                    target, records, fields, repeated.rules, now_ms
                )
            except InvalidBatch:
                return False
            if transform is not None:
                return False
        started = _clock()
        try:
            base_offset, append_time, log_start, end_offset, is_settled = target.append(
                records, now_ms, _CLIENT, fields
            )
        except (ProtocolError, InvalidBatch, StorageError, OSError) as error:
            pieces = [topic_piece(version, repeated.key, 1, 1), b""]
            response = Response(self._broker, connection, version, correlation_id, acks, pieces)
            response.refuse_for(1, index, error, target)
            response.send()
            return True
        took = _clock() - started
        if took > SLOW_WRITE_SECONDS:
            lanes.mark_slow(target.log.folder, took)
        if is_settled or not _waits(target, end_offset, acks):
            connection.answer(
                repeated.answer(correlation_id, index, base_offset, append_time, log_start)
            )
            return True
        pieces = [
            topic_piece(version, repeated.key, 1, 1),
            success_piece(version, index, base_offset, append_time, log_start),
        ]
        response = Response(self._broker, connection, version, correlation_id, acks, pieces)
        unfinished = Unfinished(lanes, self._deadlines, response, repeated.timeout_ms)
        unfinished.wait_for(target, index, 1, end_offset)
        unfinished.all_begun()
        return True


def _waits(target: Partition, end_offset: int, acks: int) -> bool:
    """Whether an append is still to be waited for."""
    if acks == ALL_ACKS:
        return not target.is_committed(end_offset)
    return acks != NO_ACKS and not target.is_flushed(end_offset)


def _unknown(version: int, count: int) -> ProtocolError:
    if version >= FIRST_TOPIC_IDS and not count:
        return ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
    return ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class _Verification:
    """Asks the coordinator for the partitions in which a transaction begins, then appends."""

    __slots__ = (
        "_broker",
        "_connection",
        "_correlation_id",
        "_kept",
        "_produce",
        "_slot",
        "_verdict",
        "_version",
        "_waiting",
    )

    def __init__(
        self,
        broker: Broker,
        produce: Produce,
        connection: Connection,
        version: int,
        correlation_id: int,
    ) -> None:
        self._broker = broker
        self._produce = produce
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._verdict: dict[tuple[str, int], ErrorCode] = {}
        # Questions that have not been answered.
        self._waiting = 0
        # The request, once it has to outlive its handling.
        self._kept: HeldBytes | None = None
        self._slot: Slot | None = None

    def begin(
        self, transactional_id: str, topics: list[TopicParts], body: memoryview, body_at: int
    ) -> None:
        """`body`: the request, which begins at `body_at` of what the topics' positions refer to."""
        begins = self._beginning(topics, body, body_at)
        self._waiting = len(begins)
        client = Client.of_produce(self._version)
        for producer, partitions in begins.items():
            verify(self._broker, transactional_id, producer, partitions, client, self._answered)
        if not self._waiting:
            self._go_on(body)
            return
        # The requests after this one must not overtake it, and the buffer is theirs.
        self._slot = self._connection.reserve(exclusive=True)
        self._kept = self._connection.keep(body)

    def _beginning(
        self, topics: list[TopicParts], body: memoryview, body_at: int
    ) -> dict[Identity, list[tuple[str, int]]]:
        """The partitions that hold no batch of the transaction yet, by its producer; one, usually."""
        partitions = self._broker.partitions
        known = partitions.by_id if self._version >= FIRST_TOPIC_IDS else partitions.by_raw_name
        begins: dict[Identity, list[tuple[str, int]]] = {}
        for key, parts in topics:
            found: list[Partition] = known.get(key, [])
            for index, start, end in parts:
                records = body[start - body_at : end - body_at]
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

    def _answered(self, verdict: Verdict) -> None:
        self._verdict.update(verdict)
        self._waiting -= 1
        kept = self._kept
        if not self._waiting and kept is not None:
            self._go_on(memoryview(kept.data))
            kept.release()

    def _go_on(self, body: memoryview) -> None:
        self._produce.serve(
            self._connection,
            body,
            0,
            len(body),
            self._version,
            self._correlation_id,
            self._verdict,
            self._slot,
        )
