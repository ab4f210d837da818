"""The task that follows one leader: a connection, one Fetch request at a time, the answers taken in.

A broker answers the requests of a connection in their order. So when the partitions to follow change
(an election, a new topic) while a request waits at the leader for something to come, that connection is
given up: the news must not wait for it. For the same reason records of a topic with
`visible.when.flushed` are synced before the next request, which tells the leader so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Buffer
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.replication.following import Following, Limits, settle_out_of_range
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.storage.errors import StorageError
from ottla.wire.connection import Connection
from ottla.wire.errors import WireError

log = logging.getLogger("ottla.replication")

_LATEST, _EARLIEST = -1, -2
# Beyond what a request may wait at the leader.
_ANSWER_SECONDS = 30.0
# How long other partitions wait for a sync at most.
_FLUSH_SECONDS = 5.0


class Fetcher:
    """Follows one leader until it is closed."""

    def __init__(
        self,
        leader: int,
        limits: Limits,
        connect: Callable[[int], Awaitable[Connection]],
        identity: Callable[[], tuple[int, int]],
        now_ms: Callable[[], int],
        spawn: Callable[[Awaitable[None], str], asyncio.Task[None]],
        throttle: Throttle | None = None,
    ) -> None:
        """`connect` makes a connection to a broker, `identity` tells this broker's id and epoch."""
        self.following = Following(leader, limits, throttle)
        self.leader = leader
        self._connect = connect
        self._identity = identity
        self._now_ms = now_ms
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        # The answer that is waited for; cancelled when what is to be asked for changes.
        self._answer: asyncio.Future[tuple[Buffer, int]] | None = None
        self._task = spawn(self._run(), f"replication from broker {leader}")

    def put(self, partition: Partition) -> None:
        self.following.put(partition)
        self._notice()

    def remove(self, partition: Partition) -> None:
        self.following.remove(partition)
        self._notice()

    def _notice(self) -> None:
        self._changed.set()
        if self._answer is not None:
            self._answer.cancel()

    def close(self) -> None:
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        pause = 0.0
        while True:
            if self.following.is_idle:
                self._drop()
                self._changed.clear()
                await self._changed.wait()
            rest = self.following.rest_ms(self._now_ms())
            if rest:
                # A request for no partition is answered at once: it would be sent again and again.
                self._changed.clear()
                await _either(self._changed, rest / 1000)
            try:
                await self._once()
                pause = 0.0
            except (WireError, OSError) as error:
                self._drop()
                pause = min(max(2 * pause, 0.02), self.following.limits.backoff_ms / 1000)
                log.info("leader %d cannot be reached: %s", self.leader, error)
                # An image with other leaders may come sooner than the end of the pause.
                await _either(self._changed, pause)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.following.reset()

    async def _once(self) -> None:
        """One request and its answer."""
        connection = self._connection
        if connection is None or connection.closed:
            self.following.reset()
            # What changed before is in the first request; only what comes now cuts a pause short.
            self._changed.clear()
            connection = self._connection = await self._connect(self.leader)
        self._changed.clear()
        if self.following.unflushed:
            await self._flushes()
        request = self.following.request(*self._identity(), self._now_ms())
        version = connection.version_of(FetchRequest)
        # One future for each request: this is the way of every acknowledgement with acks=all.
        answer = self._answer = connection.send(
            FetchRequest.api_key,
            version,
            request.encode_parts(version),
            timeout=_ANSWER_SECONDS + request.max_wait_ms / 1000,
        )
        try:
            frame, at = await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not answer.cancelled() or (task is not None and task.cancelling()):
                raise  # it is this fetcher that ends
            self._drop()
            return
        finally:
            self._answer = None
        response = connection.read(FetchRequest.api_key, version, frame, at, FetchResponse)
        lost = self.following.answered(response, self._now_ms())
        for partition in lost:
            await self._look_up(connection, partition)

    async def _flushes(self) -> None:
        """Wait for the syncs of what was taken, all of which are under way."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []

        def wait_for(partition: Partition) -> None:
            flushed = loop.create_future()
            waiting.append(flushed)

            def reached(_: ErrorCode) -> None:
                if not flushed.done():
                    flushed.set_result(None)

            partition.when_flushed(partition.log.log_end_offset, reached)

        unflushed, self.following.unflushed = self.following.unflushed, set()
        for partition in unflushed:
            if partition.is_unflushed:
                wait_for(partition)
        if waiting:
            # Should a sync fail, its log is offline, and nobody waits for it.
            await asyncio.wait(waiting, timeout=_FLUSH_SECONDS)
        for partition in unflushed:
            self.following.changed(partition)

    async def _look_up(self, connection: Connection, partition: Partition) -> None:
        """Find out where the leader's log begins and ends, and go there."""
        position = self.following.position_asked(partition)
        offsets = []
        for timestamp in (_EARLIEST, _LATEST):
            request = ListOffsetsRequest(
                replica_id=self._identity()[0],
                topics=[
                    ListOffsetsTopic(
                        name=partition.topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=partition.index,
                                current_leader_epoch=partition.leader_epoch,
                                timestamp=timestamp,
                            )
                        ],
                    )
                ],
            )
            response = await connection.request(request, ListOffsetsResponse)
            (answer,) = response.topics[0].partitions
            if answer.error_code != ErrorCode.NONE:
                return
            offsets.append(answer.offset)
        if position is None or not self.following.is_current(partition, position):
            return
        try:
            settle_out_of_range(partition, offsets[0], offsets[1], self._now_ms())
        except StorageError as error:
            log.error("%s-%d: %s", partition.topic, partition.index, error)
        self.following.put(partition)


async def _either(event: asyncio.Event, seconds: float) -> None:
    # Not wait_for, which in Python 3.11 forgets that it was cancelled if the event comes as well.
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
