"""Where `ottla consume` talks to a broker, by Ottla's own consumer: alone, or as a member of a group.

It reads records rather than Arrow columns: a command that is over in an instant has no time to import
pyarrow. Every failure leaves as a `Failure` whose message is one sentence that says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, TypeVar

from ottla.cli.addresses import check_servers
from ottla.cli.cluster.failures import failure_of
from ottla.cli.failures import Failure
from ottla.client.consumer.asynchronous import AsyncConsumer
from ottla.client.consumer.group.commits import AnyCommit
from ottla.client.consumer.plain_rows import RecordList
from ottla.client.errors import (
    AdvertisedUnreachable,
    BrokerError,
    ClusterUnreachable,
    CommitFailed,
    OffsetOutOfRange,
    OttlaError,
    TimedOut,
)
from ottla.client.loop import background_loop
from ottla.client.naming import AnyPartition
from ottla.client.positions import AnyPosition, TopicPartition

LOST_AFTER = 10.0  # seconds without any broker after which reading is given up
IDLE = 0.5  # seconds without records after which it is time to look whether the broker is there
ASSIGNMENT_PATIENCE = 10.0  # seconds without a partition after which a member gives up
CLOSE_PATIENCE = 5.0  # seconds for leaving a group
ROWS_AT_ONCE = 10_000

_Result = TypeVar("_Result")


class _Reader:
    """What both ways of reading have in common."""

    def __init__(self, servers: str, topic: str, *, waits: bool, **options: Any) -> None:
        self.servers = check_servers(servers)
        self._topic = topic
        self._waits = waits
        self._lost_at: float | None = None
        self._loop = background_loop()

        async def make() -> AsyncConsumer:
            return AsyncConsumer(
                self.servers,
                arrow=False,
                max_rows=ROWS_AT_ONCE,
                client_id="ottla-cli",
                isolation_level="read_committed",
                default_api_timeout_ms=LOST_AFTER * 1000,
                fetch_wait_max_ms=500 if waits else 100,
                **options,
            )

        self._consumer = self._loop.run(make())

    def _ask(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of something that may last for ever, unless the broker is away meanwhile."""
        asked = self._loop.submit(coroutine)
        try:
            while not wait([asked], IDLE).done:
                self._check_lost()
            return asked.result()
        except OffsetOutOfRange as error:
            raise Failure(
                f"some of the records asked for in '{self._topic}' are gone "
                "(retention or deletion); read again with --from earliest"
            ) from error
        except AdvertisedUnreachable as error:
            raise failure_of(error, self.servers, self._topic) from error
        except (TimedOut, ClusterUnreachable) as error:
            self._check_lost(at_once=True)
            raise failure_of(error, self.servers, self._topic) from error
        except OttlaError as error:
            raise failure_of(error, self.servers, self._topic) from error
        finally:
            asked.cancel()

    def _check_lost(self, *, at_once: bool = False) -> None:
        if self._waits and not at_once:
            return
        try:
            check_servers(self.servers)
        except Failure:
            now = time.monotonic()
            self._lost_at = self._lost_at or now
            if at_once or now - self._lost_at > LOST_AFTER:
                raise Failure(
                    f"the broker at {self.servers} went away while reading; start it again"
                ) from None
        else:
            self._lost_at = None

    def close(self) -> None:
        with suppress(OttlaError, TimeoutError):
            self._loop.run(self._consumer.close(), CLOSE_PATIENCE)


class RecordReader(_Reader):
    """Reads given ranges of a topic's partitions, without a group: nothing is committed."""

    def __init__(self, servers: str, topic: str, *, waits: bool) -> None:
        super().__init__(servers, topic, waits=waits, auto_offset_reset="error")

    def read(self, ranges: Mapping[int, tuple[int, int | None]]) -> Iterator[RecordList]:
        """Records in the order in which they arrive, some of one partition at a time.

        `ranges` gives for each partition the first offset and the one to stop before; where the
        reader waits there is none, and reading goes on for ever.
        """
        if self._waits:
            starts: dict[AnyPartition, AnyPosition] = {
                TopicPartition(self._topic, index): first for index, (first, _) in ranges.items()
            }
            self._ask(self._consumer.assign(starts))
            while True:
                if (rows := self._ask(self._consumer.next_batch())) is not None:
                    yield rows
        bounded = {
            index: (first, end)
            for index, (first, end) in ranges.items()
            if end is not None and first < end
        }
        if not bounded:
            return
        scan = self._ask(
            self._consumer.scan(
                self._topic,
                {index: first for index, (first, _) in bounded.items()},
                {index: end for index, (_, end) in bounded.items()},
            )
        )
        while (rows := self._ask(scan.next_batch())) is not None:
            yield rows


class GroupReader(_Reader):
    """Reads a topic as a member of a group, from what the group has committed on."""

    def __init__(self, servers: str, topic: str, group: str, *, waits: bool, start: str) -> None:
        super().__init__(
            servers,
            topic,
            waits=waits,
            group=group,
            auto_offset_reset=start,
            enable_auto_commit=False,
        )
        self._group = group

    def read(self, ends: Mapping[int, int]) -> Iterator[RecordList]:
        """Records of the partitions that this member is given, up to `ends` unless it waits."""
        self._ask(self._consumer.subscribe(self._topic))
        unassigned_since = time.monotonic()
        while self._waits or not self._has_reached(ends):
            rows = self._ask(self._consumer.next_batch(timeout=IDLE))
            if rows is not None:
                yield rows
            if self._waits or self._consumer.assignment:
                unassigned_since = time.monotonic()
            elif time.monotonic() - unassigned_since > ASSIGNMENT_PATIENCE:
                raise Failure(
                    f"the members of group '{self._group}' have all partitions of '{self._topic}', "
                    f"and none is left; `ottla group members {self._group}` shows them"
                )
            if rows is None:
                self._check_lost()

        if not self._waits:
            self._commit(self._positions())  # after markers of transactions, too

    def commit(self, rows: RecordList, count: int) -> None:
        """So many of the records are dealt with: whoever reads next goes on after them."""
        if count:
            self._commit({rows.partition: rows[count - 1].offset + 1})

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        chosen: dict[AnyPartition, AnyCommit] = {}
        chosen.update(offsets.items())
        try:
            self._loop.run(self._consumer.commit(chosen))
        except CommitFailed:
            pass  # the partition is another member's by now, who reads them again
        except OttlaError as error:
            if not (isinstance(error, BrokerError) and error.retriable):
                raise failure_of(error, self.servers, self._topic, self._group) from error

    def _positions(self) -> dict[TopicPartition, int]:
        async def positions() -> dict[TopicPartition, int]:
            return self._consumer.positions()

        return self._loop.run(positions())

    def _has_reached(self, ends: Mapping[int, int]) -> bool:
        reached = self._positions()
        return bool(reached) and all(
            position >= ends.get(place.partition, 0) for place, position in reached.items()
        )
