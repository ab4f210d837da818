"""A small cluster without I/O: a coordinator, partitions that remember producers, and clients that
lose answers, send late and die. Everything that happens is drawn from one seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.coordinator.transactions.ending import Ending
from ottla.coordinator.transactions.records import read_key, read_value
from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.transaction import NOBODY, Identity, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.record.batch import TRANSACTIONAL_BIT, HeaderFields
from ottla.storage.errors import AppendRefused
from ottla.storage.log.producer_state import EndMarker, Origin, ProducerStates
from transactions_kit.world import NONE, World

PARTITIONS: tuple[TopicPartition, ...] = (("a", 0), ("a", 1), ("b", 0))
IDS = ("red", "green", "blue")


class Label(NamedTuple):
    """One transaction: its id, and the how-manieth of that id."""

    transactional_id: str
    number: int


class Write(NamedTuple):
    label: Label
    producer: Identity


class PartitionModel:
    """A log as far as transactions are concerned, with the producer state of the real one."""

    def __init__(self) -> None:
        self.producers = ProducerStates("nowhere")
        self.end = 0
        # Of each producer id, the writes since the last marker.
        self.open: dict[int, list[Write]] = {}
        self.decided: list[tuple[Write, bool]] = []

    def is_open(self, producer: Identity) -> bool:
        state = self.producers.producers.get(producer.producer_id)
        return (
            state is not None
            and state.transaction_first_offset >= 0
            and state.epoch == producer.epoch
        )

    def append(self, producer: Identity, sequence: int, label: Label) -> None:
        """AppendRefused as the log would."""
        header = _header(producer, sequence)
        if self.producers.check(header) is None:
            self.producers.update(header, self.end, self.end, 0, 0)
            self.end += 1
            self.open.setdefault(producer.producer_id, []).append(Write(label, producer))

    def mark(self, ending: Ending) -> None:
        self.producers.check_marker(
            ending.producer_id,
            ending.epoch,
            ending.coordinator_epoch,
            Origin.COORDINATOR,
            ending.version,
        )
        self.producers.end_transaction(
            ending.producer_id,
            ending.epoch,
            EndMarker(ending.committed, ending.coordinator_epoch),
            self.end,
            0,
            0,
        )
        self.end += 1
        for write in self.open.pop(ending.producer_id, ()):
            self.decided.append((write, ending.committed))


def _header(producer: Identity, sequence: int) -> HeaderFields:
    return (
        0, 100, 0, 2, 0, TRANSACTIONAL_BIT, 0, 0, 0, producer.producer_id, producer.epoch, sequence, 1,
    )  # fmt: skip


@dataclass
class Sent:
    """A batch on its way."""

    transactional_id: str
    producer: Identity
    partition: TopicPartition
    sequence: int


@dataclass
class ClientModel:
    transactional_id: str
    identity: Identity = NOBODY
    sequences: Counter[TopicPartition] = field(default_factory=Counter)
    # An end whose answer did not come.
    unanswered: bool | None = None


class ClusterModel:
    def __init__(self, seed: int, *, version: int, two_phase: bool = False) -> None:
        self.random = random.Random(seed)
        self.version = version
        self.two_phase = two_phase
        self.world = World()
        self.partitions = {each: PartitionModel() for each in PARTITIONS}
        self.clients = [ClientModel(each) for each in IDS]
        # Markers on their way: one for each partition, and copies that come late.
        self.markers: list[tuple[Ending, TopicPartition]] = []
        self.copies: list[tuple[Ending, TopicPartition]] = []
        self.missing: dict[Ending, set[TopicPartition]] = {}
        self.late: list[Sent] = []
        # What the coordinator's log says.
        self.numbers: Counter[str] = Counter()
        self.epochs: dict[Label, Identity] = {}
        self.decisions: dict[Label, bool] = {}
        self.promised: dict[Label, bool] = {}
        self._read = 0
        self._states: dict[str, State] = {}

    # Steps --------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        actions = [
            (self.write, 12),
            (self.end, 5),
            (self.begin, 6),
            (self.deliver_marker, 10),
            (self.crash, 1),
            (self.pass_time, 1),
            (self.expire_an_answer, 1),
        ]
        if self.version == 2:
            actions += [(self.deliver_late_write, 3), (self.deliver_copy, 3)]
        doings, weights = zip(*actions, strict=True)
        for _ in range(steps):
            (doing,) = self.random.choices(doings, weights)
            # Now and then the coordinator's log takes nothing.
            self.world.failing = self.random.random() < 0.04
            doing()
            self.world.failing = False
            self.follow()
            if self.random.random() < 0.02:
                self.world.stored_is_kept()
        self.finish()

    def begin(self, client: ClientModel | None = None) -> None:
        """A client starts (again); it may be another process than the last one of that id."""
        if client is None:
            idle = [each for each in self.clients if each.identity == NOBODY]
            # Seldom it fences one that is alive.
            client = self.random.choice(
                self.clients if self.random.random() < 0.1 else idle or [None]
            )
        if client is None:
            return
        keep = self.two_phase and self.random.random() < 0.5
        answer = self.world.init(
            client.transactional_id, two_phase=self.two_phase, keep=keep, timeout=20_000
        )
        client.unanswered = None
        client.identity = NOBODY
        if answer.code is NONE and self.random.random() < 0.95:
            client.identity = answer.holder
            client.sequences.clear()
            if answer.ongoing != NOBODY:
                # Took over what was prepared: it has to be ended first.
                client.unanswered = self.random.random() < 0.5

    def write(self) -> None:
        client = self.random.choice(self.clients)
        if client.identity == NOBODY or client.unanswered is not None:
            return
        partition = self.random.choice(PARTITIONS)
        sent = Sent(
            client.transactional_id, client.identity, partition, client.sequences[partition]
        )
        if self.version == 2 and self.random.random() < 0.05:
            # The network keeps it for a while; the client gives up on it, and on its transaction.
            self.late.append(sent)
            client.unanswered = False
            return
        if self.version != 2:
            code = self.world.add(
                client.identity, partition, version=0, transactional_id=client.transactional_id
            )
            self.follow()
            if code is not NONE:
                self._told(client, code)
                return
        code = self.deliver(sent)
        if code is NONE:
            client.sequences[partition] += 1
        else:
            self._told(client, code)

    def deliver(self, sent: Sent) -> ErrorCode:
        """A batch arrives at its partition."""
        partition = self.partitions[sent.partition]
        name = sent.transactional_id
        if not partition.is_open(sent.producer):
            if self.version == 2:
                code = self.world.add(sent.producer, sent.partition, transactional_id=name)
            else:
                verdict = self.world.verify(sent.producer, sent.partition, transactional_id=name)
                code = verdict[sent.partition]
            self.follow()
            if code is not NONE:
                return code
            label = Label(name, self.numbers[name])
        else:
            label = partition.open[sent.producer.producer_id][0].label
        try:
            partition.append(sent.producer, sent.sequence, label)
        except AppendRefused:
            return ErrorCode.INVALID_TXN_STATE
        return NONE

    def deliver_late_write(self) -> None:
        if self.late:
            self.deliver(self.late.pop(self.random.randrange(len(self.late))))

    def end(self) -> None:
        client = self.random.choice(self.clients)
        if client.identity == NOBODY:
            return
        committed = client.unanswered
        if committed is None:
            committed = self.random.random() < 0.6
        name = client.transactional_id
        label = Label(name, self.numbers[name])
        answer = self.world.end(
            client.identity, committed, version=self.version, transactional_id=name
        )
        self.follow()
        if self.random.random() < 0.15:
            client.unanswered = committed
            return
        client.unanswered = None
        if answer.code is NONE:
            if label in self.decisions and label not in self.promised:
                self.promised[label] = self.decisions[label]
            if self.version == 2:
                client.identity = answer.holder
                client.sequences.clear()
        else:
            self._told(client, answer.code, committed)

    def _told(self, client: ClientModel, code: ErrorCode, committed: bool = False) -> None:
        if code is ErrorCode.CONCURRENT_TRANSACTIONS:
            if client.unanswered is None and committed:
                client.unanswered = committed
            return
        if code is ErrorCode.INVALID_TXN_STATE and client.unanswered is None:
            # Nothing was open, or a batch was lost: abort to be sure.
            client.unanswered = False if self.version == 2 else None
            if client.unanswered is False:
                return
        client.identity = NOBODY

    def expire_an_answer(self) -> None:
        """A client dies and says nothing."""
        client = self.random.choice(self.clients)
        client.identity, client.unanswered = NOBODY, None

    def crash(self) -> None:
        """The coordinator starts again; markers on their way are lost, or arrive late."""
        self.copies += [each for each in self.markers if self.random.random() < 0.5]
        self.markers.clear()
        self.missing.clear()
        self.world.crash()

    def pass_time(self) -> None:
        self.world.pass_time(self.random.randrange(1_000, 12_000))

    def follow(self) -> None:
        """Take note of what the coordinator wrote, and send the markers it asked for."""
        records = self.world.records
        for key, value in records[self._read :]:
            name = read_key(key)
            assert name is not None
            if value is None:
                self._states.pop(name, None)
                continue
            transaction = read_value(name, value)
            before = self._states.get(name)
            if transaction.state is State.ONGOING and before is not State.ONGOING:
                self.numbers[name] += 1
                self.epochs[Label(name, self.numbers[name])] = Identity(
                    transaction.producer_id, transaction.epoch
                )
            if transaction.is_ending and before is State.ONGOING:
                label = Label(name, self.numbers[name])
                assert label not in self.decisions
                self.decisions[label] = transaction.state is State.PREPARE_COMMIT
            self._states[name] = transaction.state
        self._read = len(records)
        endings, self.world.endings = self.world.endings, []
        for ending in endings:
            if ending.partitions:
                self.missing[ending] = set(ending.partitions)
                self.markers += [(ending, each) for each in ending.partitions]
            else:
                self.world.run(self.world.shard.markers_written(ending, self.world.now))
                self.follow()

    def deliver_marker(self) -> None:
        if not self.markers:
            return
        ending, partition = self.markers.pop(self.random.randrange(len(self.markers)))
        # May arrive a second time, much later.
        if self.version == 2 and self.random.random() < 0.3:
            self.copies.append((ending, partition))
        self.partitions[partition].mark(ending)
        missing = self.missing[ending]
        missing.discard(partition)
        if not missing:
            del self.missing[ending]
            self.world.run(self.world.shard.markers_written(ending, self.world.now))
            self.follow()

    def deliver_copy(self) -> None:
        if self.copies:
            ending, partition = self.copies.pop(self.random.randrange(len(self.copies)))
            try:
                self.partitions[partition].mark(ending)
            except AppendRefused:
                pass

    # The end ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything that is under way comes to its end."""
        self.world.crash()
        self.markers.clear()
        self.missing.clear()
        self.follow()
        for name in IDS:
            for _ in range(3):
                while self.markers:
                    self.deliver_marker()
                self.world.init(name, timeout=20_000)
                self.follow()
        while self.markers:
            self.deliver_marker()
        self.world.stored_is_kept()

    def check(self) -> None:
        for transaction in self.world.shard.transactions.values():
            assert transaction.state is State.EMPTY, transaction
        for partition in self.partitions.values():
            # Nothing hangs: readers of committed records see everything.
            assert not any(partition.open.values())
            assert partition.producers.first_undecided_offset is None
            for write, committed in partition.decided:
                assert self.decisions[write.label] == committed, write
                assert write.producer == self.epochs[write.label], write
        for label, committed in self.promised.items():
            assert self.decisions[label] == committed
