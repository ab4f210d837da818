"""Who the producer is to the brokers: its id and epoch, and the numbers of its batches.

An idempotent producer asks for an id once. When the numbers of a partition's batches are lost (a batch
was given up, or the broker forgot the producer), it begins anew with number 0 under the next epoch,
which it may choose by itself (KIP-360). Other partitions change to the new epoch when nothing of theirs
that was numbered under the old one is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.client.cluster import ANY, Cluster
from ottla.client.configuration.clients import ProducerSettings
from ottla.client.errors import BrokerError, OttlaError, TimedOut, broker_error
from ottla.client.producer.batches import NOBODY, PartitionQueue, ProducerIdentity
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)

_LARGEST_EPOCH = 2**15 - 1
_NO_TIMEOUT = 2**31 - 1


class Identity:
    """A producer without idempotence: nobody in particular, and always ready."""

    enabled = False
    transactional = False
    #: Whether partitions are made part of a transaction by a request of their own.
    explicit_partitions = False

    def __init__(self) -> None:
        self.last_problem: OttlaError | None = None

    def ready_for(self, queue: PartitionQueue) -> bool:
        """Whether a batch of the queue may be sent now. If not, a wake-up follows when it may."""
        queue.reset = False
        return True

    def note(self, problem: OttlaError) -> None:
        """Remember what went wrong, for the message of a timeout."""
        self.last_problem = problem

    def batch_failed(self, problem: OttlaError) -> None:
        """Note why a batch was given up, for later messages."""
        if not isinstance(problem, TimedOut):
            self.last_problem = problem

    def check_open(self) -> None:
        """Raise if records cannot be taken now."""

    async def close(self) -> None:
        """Stop what runs in the background."""


class NumberedIdentity(Identity):
    """What the idempotent and the transactional producer share: the numbers of batches."""

    enabled = True

    def __init__(self) -> None:
        super().__init__()
        self.current = NOBODY

    def _take_over(self, queue: PartitionQueue) -> None:
        """Bring the queue to the current epoch as soon as nothing from an older one is left."""
        if queue.identity == self.current or queue.in_flight:
            return
        if not queue.reset and any(batch.sequence >= 0 for batch in queue.ready):
            return
        for batch in queue.ready:
            batch.sequence = -1
            batch.identity = NOBODY
        queue.identity = self.current
        queue.next_sequence = 0
        queue.reset = False


class IdempotentIdentity(NumberedIdentity):
    """An id of no transaction. It is asked for when the first batch is to be sent."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        wake: Callable[[], None],
        abandon: Callable[[OttlaError], None],
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._settings = settings
        self._wake = wake
        self._abandon = abandon
        self._asking: asyncio.Task[None] | None = None

    def ready_for(self, queue: PartitionQueue) -> bool:
        if self.current is NOBODY:
            self._ask()
            return False
        if queue.reset and queue.identity == self.current and not self._next_epoch():
            return False
        self._take_over(queue)
        return True

    def _next_epoch(self) -> bool:
        if self.current.epoch == _LARGEST_EPOCH:
            self.current = NOBODY
            self._ask()
            return False
        self.current = ProducerIdentity(self.current.producer_id, self.current.epoch + 1)
        logger.debug("the producer goes on as %r", self.current)
        return True

    def _ask(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            answer = await self._cluster.ask(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TIMEOUT),
                InitProducerIdResponse,
                at=ANY,
            )
            if answer.error_code:
                raise broker_error(answer.error_code, about="the producer id")
            self.current = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        except TimedOut as error:
            # What waits has a time of its own; until that is over, try again.
            self.note(error)
        except (OttlaError, BrokerError) as error:
            self.note(error)
            self._abandon(error)
        finally:
            self._asking = None
            self._wake()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
