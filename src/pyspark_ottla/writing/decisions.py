"""Which batch of a query counts, and which transactions it consists of: records in a compacted topic.

The topic `__ottla_spark_commits` has a record for each owner (a query, or an application that writes
batches), under the owner's name: the last batch that was decided. A record is JSON,

    {"version": 1, "batch": 7, "commit": [["<run>/0-0-0", 4001, 3, 0], …], "abort": […]}

the transactions to be committed, and those that were open besides: dead attempts. Each is its
transactional id (without what all of the owner's begin with), producer id, epoch, and timeout in
milliseconds (0: none).

A decision is written in a transaction of the driver's. Initialising the driver's transactional id fences
every other driver of the owner, and ends what it was about to decide. So between that and the commit of
the own decision nobody else can decide: to look whether a batch is decided, and to decide it if not, is
one step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Final

from ottla.client.admin.client import AsyncAdmin
from ottla.client.consumer import AsyncConsumer
from ottla.client.deadline import Deadline
from ottla.client.errors import TimedOut, TopicExists, TopicNotFound
from ottla.client.positions import EARLIEST, LATEST, TopicPartition
from ottla.client.producer import AsyncProducer
from ottla.client.producer.murmur2 import partition_of
from pyspark_ottla.writing import points
from pyspark_ottla.writing.attempts import Attempt, Owner
from pyspark_ottla.writing.errors import WrongLedger
from pyspark_ottla.writing.options import SinkOptions

TOPIC: Final = "__ottla_spark_commits"
# Part of the format: an owner's decisions are found by its name's hash modulo this number.
PARTITIONS: Final = 16
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Small, so that little has to be read to find a decision.
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_VERSION: Final = 1
# Another owner's decision is on its way, or its driver died over it: milliseconds until it is aborted.
_DRIVER_TIMEOUT: Final = 10_000
_PATIENCE: Final = 60.0  # seconds
_PAUSE: Final = 0.02  # seconds between looks


def ledger_partition(owner: str) -> int:
    """Where an owner's decisions are."""
    return partition_of(owner.encode(), PARTITIONS)


@dataclass(frozen=True)
class Decision:
    """The decision that a batch counts: which attempts are committed, which aborted."""

    batch: int
    commit: tuple[Attempt, ...]
    abort: tuple[Attempt, ...] = ()

    def written(self, owner: Owner) -> bytes:
        def listed(attempts: Iterable[Attempt]) -> list[list[str | int]]:
            return [
                [each.transactional_id.removeprefix(owner.prefix), *astuple(each)[1:]]
                for each in attempts
            ]

        said = {
            "version": _VERSION,
            "batch": self.batch,
            "commit": listed(self.commit),
            "abort": listed(self.abort),
        }
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def read(cls, value: bytes, owner: Owner) -> Decision:
        def attempts(listed: Any) -> tuple[Attempt, ...]:
            return tuple(
                Attempt(owner.prefix + name, int(producer), int(epoch), int(timeout))
                for name, producer, epoch, timeout in listed
            )

        try:
            said: Any = json.loads(value)
            if said["version"] == _VERSION:
                return cls(int(said["batch"]), attempts(said["commit"]), attempts(said["abort"]))
        except (ValueError, LookupError, TypeError):
            pass
        raise WrongLedger(
            f"the decision of '{owner.name}' in topic {TOPIC} is not one that this version of Ottla "
            f"can read: {value[:80]!r}"
        )


class Ledger:
    """The topic of decisions, as the driver of one owner uses it."""

    def __init__(self, sink: SinkOptions, owner: Owner) -> None:
        """To be made in the event loop that it is used in."""
        self._owner = owner
        self._partition = TopicPartition(TOPIC, ledger_partition(owner.name))
        client = {**sink.any_client, "isolation.level": "read_committed"}
        self.admin = AsyncAdmin(sink.any_client)
        self._consumer = AsyncConsumer(client, columns=["key", "value"])
        self._producer = AsyncProducer(
            {
                **sink.client,
                "transactional.id": owner.driver_id,
                "transaction.two.phase.commit.enable": False,
                "transaction.timeout.ms": _DRIVER_TIMEOUT,
                "linger.ms": 0,
            }
        )
        self._last: bytes | None = None
        self._read_to: int | None = None  # the offset after what `_last` was found in

    async def open(self) -> Decision | None:
        """Become the one driver that may decide; the last decision."""
        await self._producer.init_transactions()
        return await self.last()

    async def last(self) -> Decision | None:
        """The last decision; another may be on its way, unless the ledger was opened."""
        await self._check_topic()
        last = await self._find()
        return None if last is None else Decision.read(last, self._owner)

    async def decide(self, decision: Decision) -> None:
        """Write a decision to the ledger. Raises Fenced if another driver has opened it since."""
        self._producer.begin_transaction()
        value = decision.written(self._owner)
        sent = await self._producer.send(
            TOPIC, value, key=self._owner.name.encode(), partition=self._partition.partition
        )
        await sent
        points.reached("before decision")
        await self._producer.commit_transaction()
        points.reached("after decision")

    async def _check_topic(self) -> None:
        cluster = self.admin.cluster
        try:
            info = await cluster.topic(TOPIC)
        except TopicNotFound:
            try:
                await self.admin.create_topic(TOPIC, PARTITIONS, settings=_SETTINGS)
            except TopicExists:
                pass  # somebody else did just now
            info = await cluster.topic(TOPIC, wait=True)
        if len(info.partitions) < PARTITIONS:
            raise WrongLedger(
                f"topic {TOPIC} has {len(info.partitions)} partitions, and needs {PARTITIONS}: let "
                "the sink create it"
            )

    async def _find(self) -> bytes | None:
        """The value of the last decision."""
        end = await self._stable_end()
        start: Any = EARLIEST if self._read_to is None or self._read_to > end else self._read_to
        if self._read_to is None or self._read_to > end:
            self._last = None
        number = self._partition.partition
        table = await self._consumer.read(TOPIC, {number: start}, {number: end})
        name = self._owner.name.encode()
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            if key == name:
                self._last = value
        self._read_to = end
        return self._last

    async def _stable_end(self) -> int:
        """The end of the partition, when all that was in it before is decided."""
        deadline = Deadline.after(_PATIENCE)
        end = await self._end("read_uncommitted")
        while (stable := await self._end("read_committed")) < end:
            if deadline.remaining <= 0:
                raise TimedOut(
                    f"an open transaction in {self._partition} hides the decisions after offset "
                    f"{stable}; `ottla transaction` shows whose it is"
                )
            await asyncio.sleep(_PAUSE)
        return stable

    async def _end(self, isolation: Any) -> int:
        found = await self.admin.list_offsets({self._partition: LATEST}, isolation=isolation)
        return found[self._partition].offset or 0

    async def close(self) -> None:
        await self._producer.close()
        await self._consumer.close()
        await self.admin.close()
