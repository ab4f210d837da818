"""Sends batches to the leaders of their partitions, and deals with what comes back.

It runs in the event loop and is driven by events: `pump` is called when records were added, an answer
came, a connection opened or broke, metadata changed, or a time was reached. Each pump sends whatever
can be sent then; nothing waits inside of it.

Order. Batches of a partition go out in order on one connection, at most `in_flight` requests of which
are unanswered. An idempotent producer numbers them, and the broker takes them in order of their numbers
and each once; so a batch may be sent again after any failure. Before a batch is sent again, all that
came before it has been answered. The first batch of a partition goes alone: if it were turned away (the
topic is so new that the broker does not know it yet), the broker would take the next one for the first.

Failures, as the Java client takes them:
- errors that pass (no leader, not the leader, timeouts, a lost connection): again after the back-off,
  until `delivery_timeout` is over;
- MESSAGE_TOO_LARGE for a batch of several records: in two halves;
- OUT_OF_ORDER_SEQUENCE_NUMBER after a batch that has to be sent again: it follows that one. For the
  first batch in line, and on UNKNOWN_PRODUCER_ID: the numbers are lost, begin anew under the next epoch;
- a batch that is given up leaves a gap in the numbers: those after it begin anew, too. In a
  transaction none of this is allowed: the transaction has to be aborted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ProducerSettings
from ottla.client.errors import (
    AdvertisedUnreachable,
    BrokerError,
    DeliveryTimeout,
    OttlaError,
    broker_error,
    client_error,
)
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import LARGEST_SEQUENCE, Batch, PartitionQueue
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import ZERO_UUID, Buffer, MalformedMessage
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.columns import set_producer
from ottla.wire.connection import Connection
from ottla.wire.errors import ProtocolViolation, WireError
from ottla.wire.versions import client_throttles

if TYPE_CHECKING:
    from ottla.client.producer.identity import Identity

logger = logging.getLogger(__name__)

_LAST_VERSION_BY_NAME = 12  # later ones know topics by their ids
_LAST_VERSION_WITH_EXPLICIT_PARTITIONS = 11  # later ones add partitions to the transaction
_SWEEP = (0.05, 1.0)  # seconds between looks for batches whose time is over
_REQUEST_OVERHEAD = 200

# The metadata are out of date.
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
_LOST_NUMBERS = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class _Request:
    """A Produce request under way."""

    __slots__ = ("batches", "connection", "version")

    def __init__(self, connection: Connection, version: int, batches: list[Batch]) -> None:
        self.connection = connection
        self.version = version
        self.batches = batches


class Sender:
    """Sends the batches of one producer to the leaders of their partitions."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        accumulator: Accumulator,
        identity: Identity,
        failed: Callable[[Batch, OttlaError], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._identity = identity
        self._failed = failed  # told of every batch that is given up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, Connection] = {}
        self._in_flight: dict[Connection, int] = {}
        self._closed = False
        self._forget = cluster.on_refresh(self.schedule)

    # Waking up

    def schedule(self) -> None:
        """Pump soon. In the event loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump_at(self, when: float) -> None:
        """Pump at this time (monotonic) at the latest."""
        due = self._loop.time() + max(0.0, when - time.monotonic())
        if self._timer is None or self._timer.when() > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.schedule()

    # Choosing what to send

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now = time.monotonic()
        by_leader: dict[int, list[PartitionQueue]] = {}
        for queue in list(self._accumulator.active):
            if not self._may_send(queue, now):
                continue
            leader = self._leader(queue)
            if leader is not None:
                by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            self._send_to(leader, queues)
        if self._sweeper is None and self._accumulator.active:
            shortest, longest = _SWEEP
            wait = min(max(self._settings.delivery_timeout / 10, shortest), longest)
            self._sweeper = self._loop.call_later(wait, self._sweep)

    def _may_send(self, queue: PartitionQueue, now: float) -> bool:
        opened = self._accumulator.close_due(queue, now - self._settings.linger)
        if not queue.ready:
            if opened is not None:
                self._pump_at(opened + self._settings.linger)
            elif not queue.in_flight:
                self._accumulator.retire(queue)
            return False
        if queue.retry_at > now:
            self._pump_at(queue.retry_at)
            return False
        head = queue.ready[0]
        if queue.in_flight and queue.reset:
            return False  # anew only when nothing is unanswered
        if queue.in_flight and head.attempts and queue.in_flight[0].order <= head.order:
            return False  # again only when nothing from before it is unanswered
        if queue.in_flight and queue.in_flight[0].sequence == 0:
            return False  # a broker that has not seen the first number takes any for the first
        return self._identity.ready_for(queue)

    def _leader(self, queue: PartitionQueue) -> int | None:
        info = self._cluster.metadata.partition(queue.topic, queue.partition)
        if info is None or info.leader < 0:
            self._cluster.request_refresh(queue.topic)
            self._back_off(queue)
            return None
        return info.leader

    def _send_to(self, leader: int, queues: list[PartitionQueue]) -> None:
        connection = self._connections.get(leader)
        if connection is None or connection.closed or not self._is_at(connection, leader):
            self._connect(leader)
            return
        while self._in_flight.get(connection, 0) < self._settings.in_flight:
            batches = self._take(connection, queues)
            if not batches:
                return
            self._send(connection, batches)

    def _is_at(self, connection: Connection, leader: int) -> bool:
        node = self._cluster.metadata.nodes.get(leader)
        return node is None or (node.host, node.port) == (connection.host, connection.port)

    def _take(self, connection: Connection, queues: list[PartitionQueue]) -> list[Batch]:
        """The next request's batches, one of each partition as long as they fit."""
        chosen: list[Batch] = []
        room = self._settings.request_size - _REQUEST_OVERHEAD
        now = time.monotonic()
        for queue in queues:
            if queue.connection not in (None, connection) or not queue.ready:
                continue
            if not self._may_send(queue, now):
                continue
            batch = queue.ready[0]
            if chosen and len(batch.data) > room:
                continue
            self._accumulator.take(queue)
            queue.connection = connection
            room -= len(batch.data)
            chosen.append(batch)
        # Let the others go first the next time.
        if len(queues) > 1:
            queues.append(queues.pop(0))
        return chosen

    # Sending

    def _send(self, connection: Connection, batches: list[Batch]) -> None:
        for batch in batches:
            batch.attempts += 1
            self._number(batch)
        version, request = self._request(connection, batches)
        body = request.encode_parts(version)
        api_key = ProduceRequest.api_key
        sent = _Request(connection, version, batches)
        if self._settings.acks == 0:
            try:
                connection.send_unanswered(api_key, version, body)
            except WireError as error:
                self._lost(sent, client_error(error))
            else:
                self._loop.call_soon(self._assume_delivered, sent)
            return
        self._in_flight[connection] = self._in_flight.get(connection, 0) + 1
        answer = connection.send(
            api_key,
            version,
            body,
            timeout=self._settings.request_timeout,
        )
        answer.add_done_callback(lambda done: self._on_answer(sent, done))

    def _number(self, batch: Batch) -> None:
        if not self._identity.enabled:
            return
        queue = batch.queue
        if batch.sequence < 0:
            batch.sequence = queue.next_sequence
            batch.identity = queue.identity
            queue.next_sequence = (queue.next_sequence + batch.count) & LARGEST_SEQUENCE
        set_producer(
            batch.data,
            batch.identity.producer_id,
            batch.identity.epoch,
            batch.sequence,
            transactional=self._identity.transactional,
        )

    def _request(self, connection: Connection, batches: list[Batch]) -> tuple[int, ProduceRequest]:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            by_topic.setdefault(batch.queue.topic, []).append(
                PartitionProduceData(index=batch.queue.partition, records=batch.data)
            )
        topics = self._cluster.metadata.topics
        ids = {name: topics[name].topic_id if name in topics else ZERO_UUID for name in by_topic}
        at_most = None
        if self._identity.explicit_partitions:
            at_most = _LAST_VERSION_WITH_EXPLICIT_PARTITIONS
        elif ZERO_UUID in ids.values():
            at_most = _LAST_VERSION_BY_NAME
        version = connection.version_of(ProduceRequest, at_most)
        request = ProduceRequest(
            transactional_id=self._settings.transactional_id,
            acks=self._settings.acks,
            timeout_ms=int(self._settings.request_timeout * 1000),
            topic_data=[
                TopicProduceData(name=name, topic_id=ids[name], partition_data=partitions)
                for name, partitions in by_topic.items()
            ],
        )
        return version, request

    def _connect(self, leader: int) -> None:
        if leader not in self._connecting:
            task = self._loop.create_task(self._open(leader))
            self._connecting[leader] = task
            task.add_done_callback(lambda _: self._connecting.pop(leader, None))

    async def _open(self, leader: int) -> None:
        try:
            self._connections[leader] = await self._cluster.connection(leader)
        except (WireError, OttlaError) as error:
            problem = client_error(error) if isinstance(error, WireError) else error
            logger.debug("no connection to broker %d: %s", leader, problem)
            self._cluster.request_refresh()
            self._identity.note(problem)
            if isinstance(problem, AdvertisedUnreachable):
                self.abandon(
                    problem
                )  # nothing can be under way to a cluster that was never reached
            # The cluster spaces out attempts to connect; this keeps the pump from spinning.
            await asyncio.sleep(self._settings.retry_backoff)
        self._loop.call_soon(self.schedule)

    # Answers

    def _on_answer(self, sent: _Request, answer: asyncio.Future[tuple[Buffer, int]]) -> None:
        connection = sent.connection
        left = self._in_flight.get(connection, 1) - 1
        if left:
            self._in_flight[connection] = left
        else:
            self._in_flight.pop(connection, None)
        if self._closed:
            return
        try:
            if answer.cancelled():
                raise ProtocolViolation(connection.address, "the request was cancelled")
            frame, at = answer.result()
            decoded, _ = ProduceResponse.decode(frame, at, sent.version)
        except WireError as error:
            self._lost(sent, client_error(error))
        except MalformedMessage as error:
            connection.close()
            self._lost(sent, client_error(ProtocolViolation(connection.address, str(error))))
        else:
            self._answered(sent, decoded)
        self.schedule()

    def _answered(self, sent: _Request, answer: ProduceResponse) -> None:
        if answer.throttle_time_ms and client_throttles(ProduceRequest.api_key, sent.version):
            sent.connection.throttle(answer.throttle_time_ms / 1000)
        waiting = {(each.queue.topic, each.queue.partition): each for each in sent.batches}
        for topic in answer.responses:
            name = topic.name or self._cluster.metadata.name_of(topic.topic_id) or ""
            for result in topic.partition_responses:
                batch = waiting.pop((name, result.index), None)
                if batch is not None:
                    self._settle(batch, result, answer)
        for batch in waiting.values():
            # The broker left it out: that is as good as no answer.
            self._retry(batch, broker_error(ErrorCode.NETWORK_EXCEPTION, about=batch.queue.about))

    def _settle(
        self, batch: Batch, result: PartitionProduceResponse, answer: ProduceResponse
    ) -> None:
        queue = batch.queue
        queue.landed(batch)
        code = error_code(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.failures = 0
            queue.retry_at = 0.0
            offset = result.base_offset if code is ErrorCode.NONE else -1
            self._accumulator.finish(batch, offset, result.log_append_time_ms, None)
            self._accumulator.retire(queue)
            return
        problem = broker_error(result.error_code, result.error_message, queue.about)
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.done:
            self._accumulator.split(batch)
            return
        if code in _MOVED:
            leader = result.current_leader
            if (
                leader is None
                or leader.leader_id < 0
                or not self._cluster.learn_leader(
                    queue.topic,
                    queue.partition,
                    leader.leader_id,
                    leader.leader_epoch,
                    answer.node_endpoints,
                )
            ):
                self._cluster.request_refresh(queue.topic)
        if code in _LOST_NUMBERS and batch.sequence >= 0:
            self._renumber(batch, problem)
        elif problem.retriable:
            self._retry(batch, problem)
        else:
            self._give_up(batch, problem)

    def _renumber(self, batch: Batch, problem: BrokerError) -> None:
        queue = batch.queue
        first_in_line = not any(
            each.order < batch.order for each in (*queue.in_flight, *queue.ready)
        )
        if first_in_line or problem.code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if self._identity.transactional:
                self._give_up(batch, problem)
                return
            queue.reset = True
        self._retry(batch, problem)

    def _lost(self, sent: _Request, problem: OttlaError) -> None:
        """The connection broke before the answer came: who knows whether it was written."""
        self._connections = {
            node: each for node, each in self._connections.items() if each is not sent.connection
        }
        self._cluster.request_refresh(*{batch.queue.topic for batch in sent.batches})
        self._identity.note(problem)
        for batch in sent.batches:
            self._retry(batch, problem)

    def _retry(self, batch: Batch, problem: OttlaError) -> None:
        queue = batch.queue
        queue.landed(batch)
        if batch.done or batch.attempts > self._settings.retries:
            self._give_up(batch, problem)
            return
        self._accumulator.put_back(batch)
        self._identity.note(problem)
        logger.debug("%r: batch of %d again: %s", queue, batch.count, problem)
        self._back_off(queue)

    def _back_off(self, queue: PartitionQueue) -> None:
        queue.failures += 1
        queue.retry_at = time.monotonic() + self._settings.retries_backoff.after(queue.failures)
        self._pump_at(queue.retry_at)

    def _give_up(self, batch: Batch, problem: OttlaError) -> None:
        queue = batch.queue
        queue.landed(batch)
        # The next one in line has not failed yet.
        queue.failures, queue.retry_at = 0, 0.0
        if batch.sequence >= 0:
            queue.reset = True
        self._fail(batch, problem)
        self._accumulator.retire(queue)

    def _fail(self, batch: Batch, problem: OttlaError) -> None:
        if not batch.done:
            self._accumulator.finish(batch, -1, -1, problem)
            self._failed(batch, problem)

    def _assume_delivered(self, sent: _Request) -> None:
        for batch in sent.batches:
            batch.queue.landed(batch)
            self._accumulator.finish(batch, -1, -1, None)
            self._accumulator.retire(batch.queue)
        self.schedule()

    # Time

    def _sweep(self) -> None:
        """Give up the batches whose time is over, also those whose answer has not come."""
        self._sweeper = None
        oldest = time.monotonic() - self._settings.delivery_timeout
        for queue in list(self._accumulator.active):
            expired = [
                batch for batch in (*queue.in_flight, *queue.ready) if batch.created < oldest
            ]
            for batch in expired:
                why, cause = self._why(queue)
                problem = DeliveryTimeout(
                    f"{batch.count} records for {queue.about} were not acknowledged within "
                    f"{self._settings.delivery_timeout:g} s{why}"
                )
                problem.__cause__ = cause
                with self._accumulator.lock:
                    if batch in queue.ready:
                        queue.ready.remove(batch)
                if batch not in queue.in_flight:
                    self._give_up(batch, problem)
                    continue
                # Its answer may still come; until then nothing is sent past it.
                queue.reset = queue.reset or batch.sequence >= 0
                self._fail(batch, problem)
        self.schedule()

    def _why(self, queue: PartitionQueue) -> tuple[str, OttlaError | None]:
        """Why records could not be sent, in words, and the exception to it if there was one."""
        info = self._cluster.metadata.partition(queue.topic, queue.partition)
        problem = self._identity.last_problem
        if info is None:
            return "; the topic is not there", problem
        if info.leader < 0:
            no_leader = broker_error(ErrorCode.LEADER_NOT_AVAILABLE, about=queue.about)
            return "; the partition has no leader", no_leader
        return ("" if problem is None else f"; the last problem: {problem}"), problem

    def abandon(self, problem: OttlaError) -> None:
        """Give up everything that is not in flight."""
        for batch in self._accumulator.unsent():
            self._give_up(batch, problem)

    async def close(self) -> None:
        self._closed = True
        self._forget()
        for handle in (self._timer, self._sweeper):
            if handle is not None:
                handle.cancel()
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
