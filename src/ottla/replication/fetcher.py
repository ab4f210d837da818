"""The task that follows one leader: a connection, one Fetch request at a time, the answers taken in.

This is the way of every acknowledgement with acks=all. So an answer is taken in, and the next request
sent, in the turn of the loop in which it comes; the task is woken only when there is something else to
do.

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
from ottla.protocol.one_partition_fetch import FIRST_RESPONSE_VERSION, read_response
from ottla.replication.following import Disk, FetchLimits, Following
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.wire.connection import Connection
from ottla.wire.errors import WireError

log = logging.getLogger("ottla.replication")

_LATEST, _EARLIEST = -1, -2
# How long other partitions wait for a sync at most.
_FLUSH_SECONDS = 5.0


class Fetcher:
    """Follows one leader until it is closed."""

    def __init__(
        self,
        leader: int,
        limits: FetchLimits,
        connect: Callable[[int], Awaitable[Connection]],
        identity: Callable[[], tuple[int, int]],
        now_ms: Callable[[], int],
        spawn: Callable[[Awaitable[None], str], asyncio.Task[None]],
        throttle: Throttle | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`connect` makes a connection to a broker, `identity` tells this broker's id and epoch."""
        # A request that waits is not given up for a disk that has done its work: it ends soon.
        self.following = Following(
            leader, limits, throttle, disk, lambda: self._changed.set(), now_ms
        )
        self.leader = leader
        self._connect = connect
        self._identity = identity
        self._now_ms = now_ms
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        self._version = 0
        # Partitions whose sync took longer than it is waited for. It is not waited for again: a disk
        # that stands still is to hold up the others once.
        self._late: set[Partition] = set()
        # Done when requests no longer follow each other by themselves, with the partitions that are
        # to be looked up; cancelled when what is to be asked for changes.
        self._ended: asyncio.Future[list[Partition]] | None = None
        self._task = spawn(self._run(), f"replication from broker {leader}")

    def put(self, partition: Partition) -> None:
        self.following.put(partition)
        self._notice()

    def remove(self, partition: Partition) -> None:
        self.following.remove(partition)
        self._notice()

    def _notice(self) -> None:
        self._changed.set()
        if self._ended is not None:
            self._ended.cancel()

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
                await _wait_for_change(self._changed, rest / 1000)
            try:
                await self._once()
                pause = 0.0
            except (WireError, OSError) as error:
                self._drop()
                pause = min(max(2 * pause, 0.02), self.following.limits.backoff_ms / 1000)
                log.info("leader %d cannot be reached: %s", self.leader, error)
                # An image with other leaders may come sooner than the end of the pause.
                await _wait_for_change(self._changed, pause)
            except Exception:
                # Our mistake. Nobody would follow this leader again if the task ended here.
                self._drop()
                pause = self.following.limits.backoff_ms / 1000
                log.exception("following leader %d failed, and is tried again", self.leader)
                await _wait_for_change(self._changed, pause)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.following.reset()

    async def _once(self) -> None:
        """Requests and answers, one after the other, until there is something else to do."""
        connection = self._connection
        if connection is None or connection.closed:
            self.following.reset()
            # What changed before is in the first request; only what comes now cuts a pause short.
            self._changed.clear()
            connection = self._connection = await self._connect(self.leader)
            self._version = connection.version_of(FetchRequest)
        if self.following.unflushed:
            await self._flushes()
        ended = self._ended = asyncio.get_running_loop().create_future()
        self._ask(connection, ended)
        try:
            lost = await ended
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not ended.cancelled() or (task is not None and task.cancelling()):
                raise  # it is this fetcher that ends
            self._drop()
            return
        finally:
            self._ended = None
        for partition in lost:
            await self._look_up(connection, partition)

    async def _flushes(self) -> None:
        """Wait for the syncs of what was taken, all of which are under way."""
        loop = asyncio.get_running_loop()
        waiting: dict[asyncio.Future[None], Partition] = {}

        def wait_for(partition: Partition) -> None:
            flushed = loop.create_future()
            if partition not in self._late:
                waiting[flushed] = partition

            def reached(_: ErrorCode) -> None:
                # A sync that took longer than it is waited for is told of all the same.
                self._late.discard(partition)
                self.following.changed(partition)
                if not flushed.done():
                    flushed.set_result(None)

            partition.when_flushed(partition.log.log_end_offset, reached)

        unflushed, self.following.unflushed = self.following.unflushed, set()
        for partition in unflushed:
            if partition.is_unflushed:
                wait_for(partition)
        if waiting:
            # Should a sync fail, its log is offline, and nobody waits for it.
            _, late = await asyncio.wait(waiting, timeout=_FLUSH_SECONDS)
            self._late.update(waiting[each] for each in late)
        for partition in unflushed:
            self.following.changed(partition)

    def _ask(self, connection: Connection, ended: asyncio.Future[list[Partition]]) -> None:
        self._changed.clear()
        version = self._version
        body, wait_ms = self.following.encoded(version, *self._identity(), self._now_ms())
        connection.send_to(
            FetchRequest.api_key,
            version,
            body,
            lambda frame, at: self._handle_answer(connection, ended, frame, at),
            ended,
            timeout=(self.following.limits.answer_ms + wait_ms) / 1000,
        )

    def _handle_answer(
        self,
        connection: Connection,
        ended: asyncio.Future[list[Partition]],
        frame: Buffer,
        at: int,
    ) -> None:
        try:
            now_ms = self._now_ms()
            following = self.following
            one = None
            if self._version >= FIRST_RESPONSE_VERSION:
                one = read_response(frame, at)
            if one is not None:
                lost = following.took_one(*one, now_ms)
            else:
                response = connection.read(
                    FetchRequest.api_key, self._version, frame, at, FetchResponse
                )
                lost = following.answered(response, now_ms)
            if ended.done():
                return  # what is to be asked for has changed by this answer
            if lost or following.unflushed or following.is_idle or following.rest_ms(now_ms):
                ended.set_result(lost)
            else:
                self._ask(connection, ended)
        except Exception as error:  # noqa: BLE001 - the task knows what to do with it
            if not ended.done():
                ended.set_exception(error)

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
            response = await connection.request(
                request, ListOffsetsResponse, timeout=self.following.limits.answer_ms / 1000
            )
            (answer,) = response.topics[0].partitions
            if answer.error_code != ErrorCode.NONE:
                return
            offsets.append(answer.offset)
        if position is None or not self.following.is_current(partition, position):
            return
        self.following.settle(partition, offsets[0], offsets[1], self._now_ms())


async def _wait_for_change(event: asyncio.Event, seconds: float) -> None:
    # Not wait_for, which in Python 3.11 forgets that it was cancelled if the event comes as well.
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
