"""A simulated cluster with coordinators: committed offsets and transactions under the same faults.

What must hold beside the promises of `world`:

- an offset that was acknowledged, or that somebody was told, is never taken back;
- of a transaction whose commit was acknowledged every record is there for readers of committed
  records, once, and its offsets count; of one whose abort was acknowledged nothing is;
- of one whose end is not known to its producer all is there, or nothing;
- what a reader of committed records was given, at whatever leader, is there in the end;
- nobody ever gets the identity of another producer; what a producer asks for after a newer one of its
  transactional id had its answer is not done;
- in the end all transactions come to rest.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar
from unittest.mock import patch

from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.coordinator.transactions.states import AT_REST
from ottla.record.batch import headers, records
from ottla.replication.partition import Role
from ottla.server.broker import TRANSACTION_VERSION
from ottla.server.coordination import coordinators, markers
from ottla.storage.log.append import read_marker
from simulation_kit.clients import Attempt, Committer, TransactionalProducer, fetch_offset
from simulation_kit.coordination import Coordination
from simulation_kit.loop import SimulatedLoop, SimulatedTime
from simulation_kit.world import TOPIC, World

if TYPE_CHECKING:
    from ottla.coordinator.transactions.transaction import Identity
    from ottla.replication.partition import Partition
    from ottla.storage.log.log import Log
    from simulation_kit.broker import Life


class CoordinatedWorld(World):
    topics: ClassVar[dict[str, int]] = {TOPIC: 2, CONSUMER_OFFSETS: 2, TRANSACTION_STATE: 2}
    FEATURES: ClassVar[dict[str, int]] = {TRANSACTION_VERSION: 2}

    def __init__(self, seed: int, *, brokers: int = 3) -> None:
        self.loop = SimulatedLoop(self)
        self.time = SimulatedTime(self)
        # Clients end what they have begun, and begin nothing any more.
        self.is_closing = False
        self.clients: list[asyncio.Task[None]] = []
        self.attempts: list[Attempt] = []
        # Group -> an offset that was acknowledged or read.
        self.least_offset: dict[str, int] = {}
        # Partition -> offset -> value, as some reader of committed records was given it.
        self.seen: dict[tuple[str, int], dict[int, bytes]] = {}
        self._seen_to: dict[tuple[Life, tuple[str, int]], int] = {}
        # Transactional id -> when somebody was told which identity.
        self._inits: dict[str, list[tuple[int, Identity]]] = {}
        self.final_offset: dict[str, int] = {}
        self._holders: dict[Identity, TransactionalProducer] = {}
        self._last_producer_id = 0
        self._last_value = 0
        self._last_offset = 0
        self._last_member = 0
        super().__init__(seed, brokers=brokers)
        self.make_clients()

    def make_clients(self) -> None:
        protocols = self.chance.choices((1, 2), (1, 3), k=3)
        self.producers = [
            TransactionalProducer(self, "alone", protocols[0]),
            # They fence each other.
            TransactionalProducer(self, "shared", protocols[1], rest_ms=5000),
            TransactionalProducer(self, "shared", protocols[2], rest_ms=5000),
        ]
        self.committers = [Committer(self, "first"), Committer(self, "second")]

    def coordination_of(self, life: Life) -> Coordination:
        return Coordination(life)

    def start_clients(self) -> None:
        self.clients = [
            self.loop.create_task(each.run()) for each in (*self.producers, *self.committers)
        ]

    # What clients need --------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    def new_value(self) -> bytes:
        self._last_value += 1
        return b"t%d" % self._last_value + b"x" * self.chance.randint(0, 60)

    def new_member_id(self) -> str:
        self._last_member += 1
        return str(self._last_member)

    def new_offset(self) -> int:
        self._last_offset += 1
        return self._last_offset

    def delay(self) -> int:
        return int(self.chance.expovariate(0.3)) if self.chance.random() < 0.95 else 150

    # Faults -------------------------------------------------------------------------------------

    def faults(self) -> None:
        if self.chance.random() < 0.1:
            self.time.jump_ms = self.chance.randint(-20_000, 20_000)
            self.note(f"the clocks jump to {self.time.jump_ms}")
        else:
            super().faults()

    # What clients are told ----------------------------------------------------------------------

    def read_or_acked(self, group: str, offset: int) -> None:
        self.least_offset[group] = max(self.least_offset.get(group, -1), offset)

    def identified(self, identity: Identity, producer: TransactionalProducer) -> None:
        other = self._holders.setdefault(identity, producer)
        if other is not producer:
            self.broken(f"two producers of {producer.transactional_id} got {identity}")

    def initialized(self, transactional_id: str, identity: Identity) -> None:
        self._inits.setdefault(transactional_id, []).append((self.now, identity))

    def ended(self, attempt: Attempt) -> None:
        self.note(f"ended: {attempt}")
        if attempt.committed and attempt.group is not None:
            self.read_or_acked(attempt.group, attempt.offset)

    def _fenced_at(self, attempt: Attempt) -> int | None:
        """When a newer producer of the same transactional id had its answer."""
        return min(
            (
                when
                for when, identity in self._inits.get(attempt.transactional_id, ())
                if identity > attempt.producer
            ),
            default=None,
        )

    # What must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        for broker in self.brokers.values():
            life = broker.life
            if life is None:
                continue
            for key in self.keys:
                partition = life.partitions.get(key)
                if partition is not None and partition.role is Role.LEADER:
                    self._read_committed(life, key, partition)

    def _read_committed(self, life: Life, key: tuple[str, int], partition: Partition) -> None:
        """A consumer at this leader, which may be one no longer."""
        log = partition.opened
        if log is None:
            return
        start = self._seen_to.get((life, key), 0)
        end = log.last_stable_offset
        if end <= start:
            return
        self._seen_to[life, key] = end
        seen = self.seen.setdefault(key, {})
        for offset, value in as_a_consumer(log, start, end):
            known = seen.setdefault(offset, value)
            if known != value:
                self.broken(f"{value[:8]!r} at {key[1]}:{offset}, where {known[:8]!r} was read")

    def heal(self) -> None:
        self.is_closing = True
        super().heal()
        for _ in range(200):
            self.run(200)
            if self._is_at_rest() and self._has_healed():
                break
        else:
            self.broken("transactions do not come to rest")
        self._check_acknowledged()
        self.loop.create_task(self._check_offsets())
        self.run(5000)
        self._check_transactions()

    def _check_acknowledged(self) -> None:
        # As long as clients write, followers need not have what was acknowledged a moment ago.
        if self._is_at_rest():
            super()._check_acknowledged()

    def _is_at_rest(self) -> bool:
        if not all(each.done() for each in self.clients):
            return False
        for broker in self.brokers.values():
            life = broker.life
            assert life is not None
            for key in self.keys:
                partition = life.partitions[key]
                if partition.role is not Role.LEADER:
                    continue
                log = partition.log
                if not log.last_stable_offset == log.high_watermark == log.log_end_offset:
                    return False
            assert life.coordination is not None
            for shard in life.coordination.transactions.serving_shards():
                if any(each.state not in AT_REST for each in shard.transactions.values()):
                    return False
        return True

    async def _check_offsets(self) -> None:
        committer = self.committers[0]
        of_transactions = {each.group for each in self.attempts if each.group is not None}
        for group in sorted({*self.least_offset, *of_transactions}):
            while True:
                found = await fetch_offset(committer, group)
                if found is not None:
                    break
            self.final_offset[group] = found

    def _check_transactions(self) -> None:
        visible: dict[tuple[str, int], dict[int, bytes]] = {}
        for key in self.keys:
            leader = self.controller.image.topics[key[0]].partitions[key[1]].leader
            life = self.brokers[leader].life
            assert life is not None
            log = life.partitions[key].log
            visible[key] = dict(by_markers(log))
            shown = dict(as_a_consumer(log, 0, log.last_stable_offset))
            if shown != visible[key]:
                difference = sorted(set(shown.items()) ^ set(visible[key].items()))[:3]
                self.broken(f"the index of transactions is wrong in {key[1]}: {difference}")
            for offset, value in self.seen.get(key, {}).items():
                if visible[key].get(offset) != value:
                    self.broken(f"{value[:8]!r} was read at {key[1]}:{offset}, and is gone")
        for attempt in self.attempts:
            self._check_attempt(attempt, visible)

    def _check_attempt(
        self, attempt: Attempt, visible: dict[tuple[str, int], dict[int, bytes]]
    ) -> None:
        written = [(key, value) for key, values in attempt.values.items() for value in values]
        there = [(key, value) for key, value in written if value in self._values(visible, key)]
        expected = attempt.committed
        if attempt.asked_at < 0 or not attempt.wants_commit:
            expected = False
        fenced_at = self._fenced_at(attempt)
        if fenced_at is not None:
            if attempt.asked_at > fenced_at:
                if attempt.committed:
                    self.broken(f"a fenced producer committed {attempt}")
                expected = False
            if any(sent > fenced_at for sent in attempt.acked):
                self.broken(f"a fenced producer wrote {attempt}")
        if there and expected is False:
            self.broken(f"read of what was not committed: {there[0]} of {attempt}")
        if len(there) < len(written) and (expected or there):
            missing = next(each for each in written if each not in there)
            self.broken(f"only a part is there, not {missing} of {attempt}")
        for key, values in attempt.values.items():
            for value in values:
                if self._values(visible, key).count(value) > 1:
                    self.broken(f"{value[:8]!r} is there twice: {attempt}")
        if attempt.group is not None and attempt.offset >= 0:
            final = self.final_offset.get(attempt.group, -1)
            is_committed = bool(expected or there)
            if is_committed and final < attempt.offset:
                self.broken(f"the offset is {final} after {attempt}")
            if not is_committed and final == attempt.offset:
                self.broken(f"the offset counts of {attempt}")

    @staticmethod
    def _values(
        visible: dict[tuple[str, int], dict[int, bytes]], key: tuple[str, int]
    ) -> list[bytes]:
        return list(visible[key].values())


def as_a_consumer(log: Log, start: int, end: int) -> list[tuple[int, bytes]]:
    """(offset, value) of what a reader of committed records is given: it passes over the batches of the
    transactions that the broker names as aborted."""
    aborted = sorted(
        ((first, producer_id) for producer_id, first in log.aborted_transactions(start, end) or ()),
        reverse=True,
    )
    open_: set[int] = set()
    found: list[tuple[int, bytes]] = []
    for header, batch in _batches(log, start, end):
        while aborted and aborted[-1][0] <= header.last_offset:
            open_.add(aborted.pop()[1])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                open_.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in open_:
            found += [
                (each.offset, each.value or b"") for each in records(batch) if each.offset >= start
            ]
    return found


def by_markers(log: Log) -> list[tuple[int, bytes]]:
    """The same of the whole log, by nothing but its batches and markers."""
    open_: dict[int, list[tuple[int, bytes]]] = {}
    found: list[tuple[int, bytes]] = []
    for header, batch in _batches(log, 0, log.high_watermark):
        if header.is_control:
            marker = read_marker(batch)
            ended = open_.pop(header.producer_id, [])
            if marker is not None and marker.committed:
                found += ended
            continue
        values = [(each.offset, each.value or b"") for each in records(batch)]
        if header.is_transactional:
            open_.setdefault(header.producer_id, []).extend(values)
        else:
            found += values
    return found


def _batches(log: Log, start: int, end: int):  # type: ignore[no-untyped-def]
    offset = start
    while offset < end:
        piece = log.read(offset, 1 << 20, end)
        if piece is None:
            return
        data = piece.read()
        for at, header in headers(data):
            if header.last_offset >= start:
                yield header, memoryview(data)[at : at + header.size]
            offset = header.last_offset + 1


def run_coordinated_seed(seed: int, *, steps: int = 60, brokers: int = 3) -> CoordinatedWorld:
    """As `world.run_seed`, with coordinators and their clients."""
    world = CoordinatedWorld(seed, brokers=brokers)
    with ExitStack() as stack:
        for module in (coordinators, markers):
            stack.enter_context(patch.object(module, "time", world.time))
        world.run(500)
        world.start_clients()
        for _ in range(steps):
            for _ in range(world.chance.randint(0, 2)):
                world.produce()
            if world.chance.random() < 0.5:
                world.faults()
            world.run(world.chance.choice((20, 100, 400, 800)))
        world.heal()
    return world
