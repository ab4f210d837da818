"""Producer state against a naive model of Kafka's rules, through snapshots, truncations and restarts."""

from __future__ import annotations

import copy
import os
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from storage_kit.headers import batch

from ottla.record.batch import BatchHeader
from ottla.storage.errors import (
    AppendRefused,
    CoordinatorFenced,
    EarlierBatchAwaited,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from ottla.storage.log.producer_state import (
    MAX_SEQUENCE,
    CompletedTransaction,
    Duplicate,
    EndMarker,
    Origin,
    ProducerStates,
    snapshot_offset,
)

# A naive model: what Kafka's rules say, with no thought for speed.


@dataclass
class NaiveProducer:
    epoch: int
    coordinator_epoch: int = -1
    timestamp: int = -1
    heard_of: int = -1
    transaction: int | None = None
    # (first sequence, last sequence, first offset, last offset, timestamp)
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)


def after(sequence: int, steps: int) -> int:
    return (sequence + steps) % (MAX_SEQUENCE + 1)


@dataclass
class NaiveModel:
    producers: dict[int, NaiveProducer] = field(default_factory=dict)
    # Producer id → (epoch, sequence, when) of all batches with which it wanted to begin a transaction.
    beginnings: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    # (first offset, marker's offset)
    unreplicated: list[tuple[int, int]] = field(default_factory=list)
    # Nobody was heard of for so long before it was loaded.
    silence: int = 0

    def expired(self, now: int) -> set[int]:
        return {
            producer_id
            for producer_id, producer in self.producers.items()
            if now - self.silence - max(producer.heard_of, producer.timestamp) >= 50
            and producer.transaction is None
        }

    def judge(self, header: BatchHeader, origin: Origin) -> Duplicate | type[AppendRefused] | None:
        producer = self.producers.get(header.producer_id)
        if origin is Origin.REPLICATION:
            return None
        asked = self.beginnings.get(header.producer_id, [])
        newest = max((epoch for epoch, _, _ in asked), default=-1)
        awaited = min((each for epoch, each, _ in asked if epoch == newest), default=None)
        is_later = (
            header.producer_epoch == newest
            and awaited is not None
            and header.base_sequence > awaited
        )
        if producer is None:
            return EarlierBatchAwaited if is_later and origin is Origin.CLIENT else None
        first, last = header.base_sequence, after(header.base_sequence, header.last_offset_delta)
        same_epoch = producer.epoch == header.producer_epoch
        if origin is Origin.CLIENT and same_epoch:
            for known in producer.batches[-5:]:
                if known[:2] == (first, last):
                    return Duplicate(*known[2:])
        if header.producer_epoch < producer.epoch:
            return InvalidProducerEpoch
        if origin is Origin.CLIENT:
            expected = 0
            if same_epoch and producer.batches:
                expected = after(producer.batches[-1][1], 1)
            if first != expected:
                is_awaited = is_later and awaited == expected
                return EarlierBatchAwaited if is_awaited else OutOfOrderSequence
        if producer.transaction is not None and not header.is_transactional:
            return InvalidTransactionState
        return None

    def apply(self, header: BatchHeader, base: int, last: int, timestamp: int, now: int) -> None:
        producer = self.producers.setdefault(
            header.producer_id, NaiveProducer(header.producer_epoch)
        )
        if producer.epoch != header.producer_epoch:
            producer.batches = []
        producer.epoch = header.producer_epoch
        first_sequence = header.base_sequence
        last_sequence = -1 if first_sequence < 0 else after(first_sequence, last - base)
        producer.batches.append((first_sequence, last_sequence, base, last, timestamp))
        producer.timestamp = timestamp
        producer.heard_of = now
        if header.is_transactional and producer.transaction is None:
            producer.transaction = base
            self.beginnings.pop(header.producer_id, None)

    def judge_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, version: int
    ) -> type[AppendRefused] | None:
        producer = self.producers.get(producer_id)
        if producer is None:
            return None
        if version < 2:
            invalid = epoch < producer.epoch
        else:
            retry = epoch == producer.epoch and producer.transaction is None
            invalid = epoch <= producer.epoch and not retry
        if invalid:
            return InvalidProducerEpoch
        return CoordinatorFenced if coordinator_epoch < producer.coordinator_epoch else None

    def end(
        self, producer_id: int, epoch: int, marker: EndMarker, offset: int, timestamp: int, now: int
    ) -> CompletedTransaction | None:
        producer = self.producers.setdefault(producer_id, NaiveProducer(epoch))
        self.beginnings.pop(producer_id, None)
        if producer.epoch != epoch:
            producer.batches = []
        producer.epoch = epoch
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp = timestamp
        producer.heard_of = now
        first, producer.transaction = producer.transaction, None
        if first is None:
            return None
        self.unreplicated.append((first, offset))
        stable = min(self.open(), default=offset + 1)
        return CompletedTransaction(producer_id, first, offset, not marker.committed, stable)

    def open(self) -> list[int]:
        return [p.transaction for p in self.producers.values() if p.transaction is not None]

    def first_unstable(self) -> int | None:
        return min([*self.open(), *(first for first, _ in self.unreplicated)], default=None)

    def as_snapshot(self) -> NaiveModel:
        """What is left of it after it went through a snapshot: the last batch of each producer, with
        the time when the producer was heard of (the format has only one)."""
        left = copy.deepcopy(self)
        left.unreplicated = []
        left.beginnings = {}
        for producer in left.producers.values():
            producer.timestamp = producer.heard_of
            producer.batches = [(*batch[:4], producer.timestamp) for batch in producer.batches[-1:]]
        return left


producer_ids = st.integers(1, 3)
epochs = st.integers(0, 2)


class ProducersAgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.states = ProducerStates(self.folder.name, expiration_ms=50)
        self.model = NaiveModel()
        self.end = 0
        self.high_watermark = 0
        self.now = 1000
        # Everything written, to be read again: (end offset afterwards, how to apply it to either).
        self.log: list[tuple[int, str, tuple[object, ...]]] = []
        # Snapshots: end offset → what the model looked like.
        self.snapshots: dict[int, NaiveModel] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    def written(self, kind: str, *what: object) -> None:
        self.log.append((self.end, kind, what))

    @rule(
        producer_id=producer_ids,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        jump=st.sampled_from([0, 0, 0, 0, 0, 1, -1, -2, 5]),
        start=st.sampled_from([0, 3, MAX_SEQUENCE - 3]),
        records=st.integers(1, 4),
        transactional=st.booleans(),
        origin=st.sampled_from([Origin.CLIENT] * 4 + [Origin.COORDINATOR, Origin.REPLICATION]),
    )
    def batch(
        self,
        producer_id: int,
        epoch_step: int,
        jump: int,
        start: int,
        records: int,
        transactional: bool,
        origin: Origin,
    ) -> None:
        if origin is Origin.COORDINATOR:
            # Coordinators write for producers that never write to the same partition themselves.
            producer_id += 100
        known = self.model.producers.get(producer_id)
        epoch = max(0, known.epoch + epoch_step) if known else 0
        if known is None:
            sequence = start
        elif known.epoch != epoch:
            sequence = max(0, jump)
        else:
            sequence = after(known.batches[-1][1] if known.batches else -1, 1 + jump)
        if origin is Origin.COORDINATOR:
            sequence = -1
        self.try_batch(
            batch(producer_id, epoch, sequence, records, transactional=transactional), origin
        )

    @rule(
        producer_id=producer_ids,
        epoch_step=st.sampled_from([0, 0, 0, 1]),
        jump=st.sampled_from([0, 0, 1, 2]),
    )
    def ask_for_a_beginning(self, producer_id: int, epoch_step: int, jump: int) -> None:
        known = self.model.producers.get(producer_id)
        epoch = (known.epoch if known else 0) + epoch_step
        sequence = jump
        if known and known.batches and not epoch_step:
            sequence = after(known.batches[-1][1], 1 + jump)
        self.states.note_beginning(producer_id, epoch, sequence, self.now)
        asked = self.model.beginnings.setdefault(producer_id, [])
        if epoch >= max((each for each, _, _ in asked), default=0):
            asked.append((epoch, sequence, self.now))

    @rule(producer_id=producer_ids, back=st.integers(1, 7))
    def retry(self, producer_id: int, back: int) -> None:
        known = self.model.producers.get(producer_id)
        assume(known is not None and len(known.batches) >= back)
        assert known is not None
        first, _, base, last, _ = known.batches[-back]
        assume(first >= 0)
        records = last - base + 1
        header = batch(producer_id, known.epoch, first, records, transactional=True)
        self.try_batch(header, Origin.CLIENT)

    def try_batch(self, header: BatchHeader, origin: Origin) -> None:
        expected = self.model.judge(header, origin)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.states.check(header, origin)
            return
        assert self.states.check(header, origin) == expected
        if expected is None:
            base, self.end = self.end, self.end + header.last_offset_delta + 1
            self.states.update(header, base, self.end - 1, self.now, self.now)
            self.model.apply(header, base, self.end - 1, self.now, self.now)
            self.written("batch", header, base, self.end - 1, self.now)

    @rule(
        producer_id=producer_ids,
        epoch_step=st.sampled_from([0, 0, 1, -1]),
        coordinator_epoch=st.integers(0, 2),
        committed=st.booleans(),
        version=st.integers(0, 2),
    )
    def marker(
        self,
        producer_id: int,
        epoch_step: int,
        coordinator_epoch: int,
        committed: bool,
        version: int,
    ) -> None:
        known = self.model.producers.get(producer_id)
        epoch = max(0, known.epoch + epoch_step) if known else 0
        marker = EndMarker(committed, coordinator_epoch)
        expected = self.model.judge_marker(producer_id, epoch, coordinator_epoch, version)
        arguments = (producer_id, epoch, coordinator_epoch, Origin.COORDINATOR, version)
        if expected is not None:
            with pytest.raises(expected):
                self.states.check_marker(*arguments)
            return
        self.states.check_marker(*arguments)
        offset, self.end = self.end, self.end + 1
        completed = self.states.end_transaction(
            producer_id, epoch, marker, offset, self.now, self.now
        )
        assert completed == self.model.end(producer_id, epoch, marker, offset, self.now, self.now)
        self.written("marker", producer_id, epoch, marker, offset, self.now)

    @rule(number=st.integers(1, 5))
    def batches_without_a_producer(self, number: int) -> None:
        self.end += number
        self.states.map_end_offset = self.end
        self.written("none")

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end))
        self.states.high_watermark_moved(self.high_watermark)
        self.model.unreplicated = [
            entry for entry in self.model.unreplicated if entry[1] >= self.high_watermark
        ]

    @rule(step=st.integers(1, 30))
    def time_goes_by(self, step: int) -> None:
        self.now += step

    @rule()
    def expire(self) -> None:
        expired = self.model.expired(self.now)
        assert self.states.expire(self.now) == len(expired)
        for producer_id in expired:
            del self.model.producers[producer_id]
        for producer_id, asked in list(self.model.beginnings.items()):
            if self.now - self.model.silence - asked[-1][2] >= 50:
                del self.model.beginnings[producer_id]

    @rule()
    def take_snapshot(self) -> None:
        snapshot = self.states.take_snapshot()
        if snapshot is not None:
            assert snapshot.offset == self.end
            snapshot.write(self.states.files, sync=False)
            self.snapshots[self.end] = self.model.as_snapshot()

    @precondition(lambda self: self.log)
    @rule(data=st.data(), restart=st.booleans())
    def truncate(self, data: st.DataObject, restart: bool) -> None:
        """The log is cut between two batches (or the broker restarts), the state is loaded from the
        newest snapshot, the rest of the log is read again."""
        ends = [0] + [end for end, _, _ in self.log]
        end = self.end if restart else data.draw(st.sampled_from(ends))
        if restart:
            offsets = map(snapshot_offset, os.listdir(self.folder.name))
            self.states = ProducerStates(
                self.folder.name,
                expiration_ms=50,
                snapshots=[offset for offset in offsets if offset is not None],
            )
        elif end == self.end:
            self.states.truncate_and_reload(0, end, self.now)
            return
        start = self.states.truncate_and_reload(0, end, self.now)
        self.snapshots = {o: model for o, model in self.snapshots.items() if o <= end}
        assert start == max(self.snapshots, default=0)
        assert list(self.states.snapshots) == sorted(self.snapshots)
        self.log = [entry for entry in self.log if entry[0] <= end]
        self.model = copy.deepcopy(self.snapshots.get(start, NaiveModel()))
        heard_of = max((each.heard_of for each in self.model.producers.values()), default=self.now)
        self.model.silence = self.now - heard_of
        for producer_id in self.model.expired(self.now):
            del self.model.producers[producer_id]
        for _, kind, what in (entry for entry in self.log if entry[0] > start):
            if kind == "batch":
                self.states.update(*what, self.now)  # type: ignore[arg-type, call-arg]
                self.model.apply(*what, self.now)  # type: ignore[arg-type]
            elif kind == "marker":
                completed = self.states.end_transaction(*what, self.now)  # type: ignore[arg-type, call-arg]
                assert completed == self.model.end(*what, self.now)  # type: ignore[arg-type]
        self.end = self.states.map_end_offset = end
        self.high_watermark = min(self.high_watermark, end)
        self.replicate_again()

    def replicate_again(self) -> None:
        self.states.high_watermark_moved(self.high_watermark)
        self.model.unreplicated = [
            entry for entry in self.model.unreplicated if entry[1] >= self.high_watermark
        ]

    @invariant()
    def agrees_with_the_model(self) -> None:
        states = self.states
        assert states.first_unstable_offset == self.model.first_unstable()
        assert states.first_undecided_offset == min(self.model.open(), default=None)
        assert states.map_end_offset == self.end
        assert set(states.producers) == set(self.model.producers)
        for producer_id, expected in self.model.producers.items():
            state = states.producers[producer_id]
            assert state.producer_id == producer_id
            assert state.epoch == expected.epoch
            assert state.coordinator_epoch == expected.coordinator_epoch
            assert state.timestamp == expected.timestamp
            assert state.batches == expected.batches[-5:]
            open_since = -1 if expected.transaction is None else expected.transaction
            assert state.transaction_first_offset == open_since
        copied = ProducerStates("/nowhere", expiration_ms=10**15)
        copied.load(states.encode(), self.end, self.now)
        assert copied.encode() == states.encode()


ProducersAgainstTheModel.TestCase.settings = settings(
    max_examples=3 * settings.default.max_examples // 2, stateful_step_count=40, deadline=None
)
TestProducersAgainstTheModel = ProducersAgainstTheModel.TestCase
