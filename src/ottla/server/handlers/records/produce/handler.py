"""One Produce request: its partitions one after the other, then its answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import ATTRIBUTES
from ottla.record.errors import InvalidBatch
from ottla.server.disk.lanes import SLOW_WRITE_SECONDS
from ottla.server.handlers.records.produce.answer import new_topic_piece, topic_piece
from ottla.server.handlers.records.produce.appending import Appending
from ottla.server.handlers.records.produce.checks import (
    ALL_ACKS,
    FIRST_ZSTD,
    ZSTD,
    check,
    check_open,
)
from ottla.server.handlers.records.produce.long import LongProduce
from ottla.server.handlers.records.produce.record_checks import RecordChecks
from ottla.server.handlers.records.produce.repeated import LEARNED_ONE_IN, repeatable
from ottla.server.handlers.records.produce.request import FIRST_TOPIC_IDS, LongRequest, read
from ottla.server.handlers.records.produce.transactions import Verification, beginning
from ottla.server.handlers.records.produce.unfinished import must_wait
from ottla.storage.errors import StorageError
from ottla.storage.log.producer_state import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.record.batch import HeaderFields
    from ottla.record.validation.frames import FramedBatch
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.handlers.records.produce.repeated import RepeatedProduce
    from ottla.server.handlers.records.produce.request import Parts
    from ottla.server.handlers.records.produce.transactions import Markers
    from ottla.server.network.connection import Connection
    from ottla.server.network.slots import Slot

_clock = time.perf_counter
_time = time.time
_CLIENT = Origin.CLIENT
# What a partition's records are refused for, each with an answer of its own.
_REFUSALS = (ProtocolError, InvalidBatch, StorageError, OSError)


# A partition, its index, and the batch for it that nothing is to be done with but to append it.
_Accepted = tuple["Partition", int, memoryview, "HeaderFields"]


class Produce:
    """Serves the Produce requests of one broker."""

    __slots__ = (
        "_authorizer",
        "_broker",
        "_broker_id",
        "_by_id",
        "_by_raw_name",
        "_lanes",
        "_membership",
        "_record_checks",
    )

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._authorizer = broker.authorizer
        self._broker_id = broker.id
        self._by_raw_name = broker.partitions.by_raw_name
        self._by_id = broker.partitions.by_id
        self._lanes = broker.lanes
        self._membership = broker.membership
        self._record_checks = RecordChecks(broker)

    def serve(
        self,
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Append what the request brings, and answer it."""
        quotas = self._broker.quotas
        repeated = connection.repeated
        if (
            repeated is not None
            and quotas is None
            and self._serve_repeated(repeated, connection, view, at, stop, version, correlation_id)
        ):
            return
        body = view[at:stop]
        try:
            request = transactional_id, _, _, topics = read(body, version)
        except LongRequest as long:
            LongProduce(
                self._broker, self, connection, body, version, correlation_id, long.unread
            ).begin()
            return
        if quotas is not None:
            connection.throttle_ms = quotas.produced(connection, stop - at)
        refused = None
        if self._authorizer is not None:
            by_id = version >= FIRST_TOPIC_IDS
            refused = self._broker.security.refused_topics(
                connection, transactional_id, topics, by_id
            )
        verification = None
        if transactional_id:
            allowed = [each for each in topics if each[0] not in refused] if refused else topics
            markers: Markers = {}
            begins = beginning(self.known(version), allowed, body, markers)
            if allowed:
                connection.activity.transactional_id = transactional_id
            verification = Verification(self._broker, version, transactional_id, begins, markers)
            if not verification.is_complete:
                verification.when_complete(
                    self._held(connection, body, version, correlation_id, request, refused)
                )
                return
        self.append(connection, body, version, correlation_id, request, refused, verification)

    def _held(
        self,
        connection: Connection,
        body: memoryview,
        version: int,
        correlation_id: int,
        request: Parts,
        refused: Mapping[bytes, ErrorCode] | None,
    ) -> Callable[[Verification], None]:
        """Hold the request until the coordinator has answered; what is to be called then."""
        # The requests after this one must not overtake it, and the buffer is theirs.
        slot = connection.reserve(exclusive=True)
        kept = connection.keep(body)

        def go_on(verification: Verification) -> None:
            body = memoryview(kept.data)
            self.append(
                connection, body, version, correlation_id, request, refused, verification, slot
            )
            kept.release()

        return go_on

    def known(self, version: int) -> Mapping[bytes, Sequence[Partition]]:
        """The partitions of this broker by their topics, as requests of this version name them."""
        return self._by_id if version >= FIRST_TOPIC_IDS else self._by_raw_name

    def append(
        self,
        connection: Connection,
        body: memoryview,
        version: int,
        correlation_id: int,
        request: Parts,
        refused: Mapping[bytes, ErrorCode] | None,
        verification: Verification | None,
        slot: Slot | None = None,
        begun: Appending | None = None,
    ) -> None:
        """Append what is allowed, and answer.

        `verification`: of the request's transaction, if it names one; it is complete. `slot`: the
        answer's place in the order of answers, if it got one meanwhile. `begun`: the request is a part
        of a longer one, and the answer comes with the last of them.
        """
        _, acks, timeout_ms, topics = request
        known = self._by_id if version >= FIRST_TOPIC_IDS else self._by_raw_name
        record_checks = self._record_checks
        now_ms = int(_time() * 1000)
        appending = begun or Appending(
            self._broker, connection, version, correlation_id, acks, timeout_ms
        )
        pieces = appending.pieces
        activity = connection.activity
        produced = activity.produced
        target: Partition | None = None
        for key, parts in topics:
            found = known.get(key, ())
            count = len(found)
            topic_count = 0 if pieces else len(topics)
            make_piece = topic_piece if found else new_topic_piece
            if (
                (produced is None or key not in produced)
                and found
                and (refused is None or key not in refused)
            ):
                activity.note_produced(key)
                produced = activity.produced
            pieces.append(make_piece(version, key, len(parts), topic_count))
            for index, start, end in parts:
                target = None
                try:
                    if refused is not None and key in refused:
                        raise ProtocolError(refused[key])
                    if not 0 <= index < count:
                        raise _unknown(version, count)
                    target = found[index]
                    if target.followers and acks != ALL_ACKS and self._membership.can_be_fenced:
                        # It would be acknowledged by this broker alone: not while another may lead.
                        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    records = body[start:end]
                    transform = None
                    if not target.open_to_clients:
                        check_open(target, self._broker_id, connection.client_id)
                    fields = check(target, records, version, acks, verification)
                    if fields is None:
                        transform = record_checks.upgrade(target, now_ms)
                    else:
                        rules = target.record_rules
                        if rules is not None:
                            fields, transform = record_checks.check(
                                target, records, fields, rules, now_ms
                            )
                    appending.append(
                        target, index, records, fields, transform, now_ms, verification
                    )
                except _REFUSALS as error:
                    appending.refuse(index, error, target)
        if (
            slot is None
            and acks
            and self._broker.quotas is None
            and not connection.requests % LEARNED_ONE_IN
            and self._authorizer is None
            and target is not None
            and appending.end_offset >= 0
        ):
            connection.repeated = repeatable(body, version, request, target)
        if begun is None:
            appending.finish(slot)

    def _serve_repeated(
        self,
        repeated: RepeatedProduce,
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Serve a request that is like one before it; False, and nothing was done, if there is anything
        about it or its partitions that the general way has to look at."""
        if version != repeated.version:
            return False
        now_ms = int(_time() * 1000)
        batches = repeated.accept(view, at, stop, now_ms)
        lanes = self._lanes
        if batches is None or lanes.slow:
            return False
        accepted = self._accepted(repeated, view, batches, now_ms)
        if accepted is None:
            return False
        if len(accepted) > 1:
            self._serve_batches(repeated, connection, accepted, correlation_id, now_ms)
            return True
        ((target, index, records, fields),) = accepted
        started = _clock()
        try:
            base_offset, append_time, log_start, end_offset, is_settled = target.append(
                records, now_ms, _CLIENT, fields
            )
        except _REFUSALS as error:
            appending = self._begin(repeated, connection, correlation_id, 1)
            appending.refuse(index, error, target)
            appending.finish(None)
            return True
        took = _clock() - started
        if took > SLOW_WRITE_SECONDS:
            lanes.mark_slow(target.log.folder, took)
        if not target.followers and (
            is_settled or not must_wait(target, end_offset, repeated.acks)
        ):
            connection.answer(
                repeated.answer(correlation_id, index, base_offset, append_time, log_start)
            )
            return True
        appending = self._begin(repeated, connection, correlation_id, 1)
        appending.appended(target, index, base_offset, append_time, log_start, end_offset)
        appending.finish(None)
        return True

    def _serve_batches(
        self,
        repeated: RepeatedProduce,
        connection: Connection,
        accepted: list[_Accepted],
        correlation_id: int,
        now_ms: int,
    ) -> None:
        """Serve a request for several partitions that is like one before it."""
        appending = self._begin(repeated, connection, correlation_id, len(accepted))
        lanes, append_at_once = self._lanes, appending.append_at_once
        for target, index, records, fields in accepted:
            try:
                if lanes.slow:  # since an append of this request
                    appending.append(target, index, records, fields, None, now_ms)
                else:
                    append_at_once(target, index, records, fields, now_ms)
            except _REFUSALS as error:
                appending.refuse(index, error, target)
        appending.finish(None)

    def _accepted(
        self, repeated: RepeatedProduce, view: memoryview, batches: list[FramedBatch], now_ms: int
    ) -> list[_Accepted] | None:
        """What is to be appended where; None if the general way has to look at any of it."""
        known = self._by_id if repeated.version >= FIRST_TOPIC_IDS else self._by_raw_name
        found = known.get(repeated.key, ())
        count, config, rules = len(found), repeated.config, repeated.rules
        only_here = repeated.acks != ALL_ACKS and self._membership.can_be_fenced
        accepted = []
        for index, start, end, fields in batches:
            if not 0 <= index < count:
                return None
            target = found[index]
            if (
                not target.open_to_clients
                or target.lane is not None
                or target.under_min_isr
                or target.config is not config
                or target.record_rules is not rules
                or (only_here and target.followers)
            ):
                return None
            records = view[start:end]
            codec = fields[ATTRIBUTES]
            # The buffer has to stay as it came until all batches are accepted.
            if codec and (
                (codec == ZSTD and repeated.version < FIRST_ZSTD)
                or not self._record_checks.is_right(records, fields, rules, now_ms)
            ):
                return None
            accepted.append((target, index, records, fields))
        return accepted

    def _begin(
        self, repeated: RepeatedProduce, connection: Connection, correlation_id: int, count: int
    ) -> Appending:
        """The response to a request for so many partitions that is like one before it."""
        version = repeated.version
        appending = Appending(
            self._broker, connection, version, correlation_id, repeated.acks, repeated.timeout_ms
        )
        appending.pieces.append(topic_piece(version, repeated.key, count, 1))
        return appending


def _unknown(version: int, count: int) -> ProtocolError:
    if version >= FIRST_TOPIC_IDS and not count:
        return ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
    return ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
