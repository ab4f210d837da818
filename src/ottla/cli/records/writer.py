"""Where `ottla produce` talks to a broker, by Ottla's own producer.

Few records are sent one by one: a command that is over in an instant has no time to import pyarrow.
Many are written as columns. Every failure leaves as a `Failure` whose message is one sentence that says
what to do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.cli.addresses import check_servers
from ottla.cli.cleanup import close_at_end
from ottla.cli.cluster.failures import failure_of
from ottla.cli.failures import HEADER_NOT_UTF_8, Failure
from ottla.cli.records.text import Headers
from ottla.client.errors import ClusterUnreachable, OttlaError, TimedOut
from ottla.client.producer.batches import Delivery
from ottla.client.producer.blocking import Producer
from ottla.client.producer.core import WriteFuture

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_TIMEOUT = 15.0  # seconds for one answer
TOPIC_PATIENCE = 3.0  # seconds for a topic that is being created
DELIVERY_TIMEOUT = 30.0  # seconds for a record
LARGEST_RECORD = 1_000_000_000  # the broker judges, not the client
MOST_PENDING = 100_000  # records that are sent and not yet acknowledged
BUFFER_KIBIBYTES = 32 * 1024
LOOK_EVERY = 0.02  # seconds, between looks at what has been acknowledged


class RecordWriter:
    """Sends records to one topic; the first failure stops everything.

    Keys choose partitions as they do in Kafka's Java client (murmur2), so that records of the
    same key written by either land in the same partition.
    """

    def __init__(self, servers: str, topic: str, *, acks: str, codec: str) -> None:
        self.servers = check_servers(servers)
        self._topic = topic
        self._partitions: frozenset[int] | None = None
        # What is sent and not yet acknowledged, in order, and of how many records it is.
        self._pending: deque[tuple[Future[Delivery] | WriteFuture, int]] = deque()
        self._next_look = 0.0  # monotonic
        self.given = 0  # records
        self.delivered = 0  # acknowledged
        self.on_delivered: Callable[[int, int | None, int], None] | None = None
        self._producer = Producer(
            self.servers,
            client_id="ottla-cli",
            acks=acks,
            compression_type=codec,
            linger_ms=5,
            delivery_timeout_ms=DELIVERY_TIMEOUT * 1000,
            max_block_ms=DELIVERY_TIMEOUT * 1000,
            message_max_bytes=LARGEST_RECORD,
            queue_buffering_max_kbytes=BUFFER_KIBIBYTES,
        )
        close_at_end(self.abandon)

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        known = self._known_partitions()
        if partition is not None and partition not in known:
            self.flush()
            raise self._no_partition(partition)
        self.given += 1
        try:
            sent = self._producer.send(
                self._topic,
                value,
                key=key,
                partition=partition,
                timestamp=timestamp,
                headers=headers,
            )
        except OttlaError as error:
            raise self._failure(error) from error
        except UnicodeEncodeError:
            raise Failure(HEADER_NOT_UTF_8) from None
        except ValueError as error:
            raise Failure(str(error)) from None
        self._pending.append((sent, 1))
        now = time.monotonic()
        if now >= self._next_look or len(self._pending) > MOST_PENDING:
            self._next_look = now + LOOK_EVERY
            self._take_done()

    def write(self, records: pa.RecordBatch) -> None:
        """Send many records, as columns. They come after those that were sent before."""
        known = self._known_partitions()
        wrong = None
        if "partition" in records.schema.names:
            named = records.column("partition")
            unknown = set(named.unique().to_pylist()) - known - {None}
            if unknown:
                wrong = min(named.index(each).as_py() for each in unknown)
                records = records.slice(0, wrong)
        self.given += records.num_rows
        try:
            self._pending.append((self._producer.write(self._topic, records), records.num_rows))
        except OttlaError as error:
            raise self._failure(error) from error
        except ValueError as error:
            raise Failure(str(error)) from None
        self._take_done()
        if wrong is not None:
            self.flush()
            raise self._no_partition(named[wrong].as_py())

    def _take_done(self) -> None:
        while self._pending and (self._pending[0][0].done() or len(self._pending) > MOST_PENDING):
            self._take_first()

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        while self._pending:
            self._take_first()

    def abandon(self) -> None:
        """Drop what is not yet sent, so that ending does not wait for it."""
        with suppress(OttlaError):
            self._producer.close(0)
        # What there was after a failure, or when nobody wanted to wait any longer.
        for sent, count in self._pending:
            if sent.done() and sent.exception() is None:
                self.delivered += count
            elif isinstance(sent, WriteFuture):
                self.delivered += sent.delivered
        self._pending.clear()

    def _known_partitions(self) -> frozenset[int]:
        if self._partitions is None:
            self._partitions = self._find_topic()
        return self._partitions

    def _no_partition(self, partition: int) -> Failure:
        return Failure(
            f"topic '{self._topic}' has no partition {partition}; "
            f"`ottla topic describe {self._topic}` shows those it has"
        )

    def _find_topic(self) -> frozenset[int]:
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            left = deadline - time.monotonic()
            try:
                patience = max(0.0, min(left, TOPIC_PATIENCE))
                found = self._producer.partitions_for(self._topic, timeout=patience)
            except (TimedOut, ClusterUnreachable) as error:
                # The broker has not said that there is no such topic: it has said nothing.
                if left <= TOPIC_PATIENCE:
                    raise self._failure(error) from error
            except OttlaError as error:
                raise self._failure(error) from error
            else:
                return frozenset(found)

    def _failure(self, error: OttlaError) -> Failure:
        if isinstance(error, TimedOut | ClusterUnreachable):
            try:
                check_servers(self.servers)
            except Failure as gone:
                return gone
        return failure_of(error, self.servers, self._topic)

    def _take_first(self) -> None:
        """Wait for the oldest record that is under way. Records are reported as they were sent."""
        first, count = self._pending[0]
        try:
            delivery = first.result()
        except OttlaError as error:
            raise self._failure(error) from error
        self._pending.popleft()
        self.delivered += count
        if self.on_delivered is not None and isinstance(delivery, Delivery):
            # Without acknowledgement nobody knows the offset.
            offset = None if delivery.offset < 0 else delivery.offset
            self.on_delivered(delivery.partition, offset, delivery.timestamp)
