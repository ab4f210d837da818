"""Producer state: Kafka's rules one by one, and the snapshots. The model beside it is in
test_producer_state_model."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from storage_kit.headers import batch

from ottla.record.batch import BatchHeader
from ottla.storage.errors import (
    AppendRefused,
    CoordinatorFenced,
    CorruptSnapshot,
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
    Snapshot,
    decode_snapshot,
    snapshot_name,
    snapshot_offset,
)

COMMIT = EndMarker(True, 0)
ABORT = EndMarker(False, 0)

# 00000000000000001562.snapshot of a transactional topic, as Kafka 4.3.1 wrote it: one producer that
# was fenced by a marker, three with their last batches.
KAFKA_SNAPSHOT = bytes.fromhex(
    "0001d1dffbfb0000000400000000000000030001ffffffffffffffffffffffff00000000000001a1de59ae2000000000"
    "ffffffffffffffff0000000000000004000000000167000000000000061100000000000001a1de58b3b300000000ffff"
    "ffffffffffff0000000000000005000000000167000000000000061200000000000001a1de58b3b300000000ffffffff"
    "ffffffff0000000000000006000000000167000000000000061300000000000001a1de58b3b500000000ffffffffffff"
    "ffff"
)


class Writer:
    """Checks and applies batches as a log does, giving out offsets."""

    def __init__(self, states: ProducerStates | None = None) -> None:
        self.states = states or ProducerStates("/nowhere")
        self.end = self.states.map_end_offset

    def write(
        self,
        header: BatchHeader,
        origin: Origin = Origin.CLIENT,
        timestamp: int = 1000,
        now: int = 1000,
    ) -> Duplicate | None:
        duplicate = self.states.check(header, origin)
        if duplicate is None:
            base, self.end = self.end, self.end + header.last_offset_delta + 1
            self.states.update(header, base, self.end - 1, timestamp, now)
        return duplicate

    def mark(
        self,
        producer_id: int = 1,
        epoch: int = 0,
        marker: EndMarker = COMMIT,
        *,
        version: int = 0,
        origin: Origin = Origin.COORDINATOR,
        timestamp: int = 1000,
    ) -> CompletedTransaction | None:
        self.states.check_marker(producer_id, epoch, marker.coordinator_epoch, origin, version)
        self.end += 1
        return self.states.end_transaction(
            producer_id, epoch, marker, self.end - 1, timestamp, timestamp
        )


@pytest.fixture
def writer() -> Writer:
    return Writer()


class TestSequences:
    def test_go_on_without_gaps(self, writer: Writer) -> None:
        for sequence in range(0, 30, 3):
            assert writer.write(batch(sequence=sequence, records=3)) is None
        assert writer.states.producers[1].last_sequence == 29
        assert writer.states.producers[1].last_offset == 29

    @pytest.mark.parametrize("first", [0, 1, 77, MAX_SEQUENCE])
    def test_an_unknown_producer_begins_anywhere(self, writer: Writer, first: int) -> None:
        assert writer.write(batch(sequence=first, epoch=3)) is None

    @pytest.mark.parametrize("sequence", [0, 3, 9, 11, 13, MAX_SEQUENCE])
    def test_a_gap_is_refused(self, writer: Writer, sequence: int) -> None:
        writer.write(batch(sequence=4, records=6))  # 4..9, next is 10
        with pytest.raises(OutOfOrderSequence) as refused:
            writer.write(batch(sequence=sequence))
        assert refused.value.producer_id == 1
        assert refused.value.sequence == sequence
        assert refused.value.last_sequence == 9
        assert writer.write(batch(sequence=10)) is None

    def test_wrap_to_zero(self, writer: Writer) -> None:
        writer.write(batch(sequence=MAX_SEQUENCE - 1, records=2))
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(sequence=1))
        writer.write(batch(sequence=0, records=5))
        assert writer.states.producers[1].next_sequence == 5

    def test_wrap_inside_a_batch(self, writer: Writer) -> None:
        writer.write(batch(sequence=MAX_SEQUENCE - 2, records=6))
        state = writer.states.producers[1]
        assert state.last_sequence == 2
        assert state.next_sequence == 3
        assert writer.write(batch(sequence=MAX_SEQUENCE - 2, records=6)) == Duplicate(0, 5, 1000)

    def test_producers_do_not_meet(self, writer: Writer) -> None:
        writer.write(batch(1, sequence=0))
        writer.write(batch(2, sequence=0))
        writer.write(batch(1, sequence=1))
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(2, sequence=2))

    def test_check_alone_changes_nothing(self, writer: Writer) -> None:
        writer.write(batch(sequence=0))
        before = writer.states.encode()
        writer.states.check(batch(sequence=1))
        writer.states.check(batch(9, sequence=1))
        with pytest.raises(AppendRefused):
            writer.states.check(batch(sequence=7))
        assert writer.states.encode() == before


class TestBeginnings:
    """Of transactions, with batches that could not be written when they came."""

    @pytest.mark.parametrize("first", [0, 77])
    def test_an_unknown_producer_begins_with_the_lowest_sequence(
        self, writer: Writer, first: int
    ) -> None:
        for step in (1, 0, 2):
            writer.states.note_beginning(1, 0, first + step, 1000)
        for step in (1, 2):
            with pytest.raises(EarlierBatchAwaited) as refused:
                writer.write(batch(sequence=first + step, transactional=True))
            assert refused.value.awaited == first
        for step in (0, 1, 2):
            assert writer.write(batch(sequence=first + step, transactional=True)) is None

    def test_a_known_producer_goes_on(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, records=3, transactional=True))
        writer.mark()
        for sequence in (3, 4):
            writer.states.note_beginning(1, 0, sequence, 1000)
        with pytest.raises(EarlierBatchAwaited):
            writer.write(batch(sequence=4, transactional=True))
        for sequence in (3, 4):
            assert writer.write(batch(sequence=sequence, transactional=True)) is None
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(sequence=6, transactional=True))

    def test_a_new_epoch_begins_at_zero(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, records=3, transactional=True))
        writer.mark()
        for sequence in (0, 1):
            writer.states.note_beginning(1, 1, sequence, 1000)
        with pytest.raises(EarlierBatchAwaited):
            writer.write(batch(sequence=1, epoch=1, transactional=True))
        assert writer.write(batch(sequence=0, epoch=1, transactional=True)) is None

    def test_what_never_came_is_a_gap(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, transactional=True))
        writer.mark()
        for epoch, sequences in ((0, (2, 3)), (1, (1, 2))):
            for sequence in sequences:
                writer.states.note_beginning(1, epoch, sequence, 1000)
            for sequence in sequences:
                with pytest.raises(OutOfOrderSequence):
                    writer.write(batch(sequence=sequence, epoch=epoch, transactional=True))

    def test_of_another_epoch_say_nothing(self, writer: Writer) -> None:
        writer.states.note_beginning(1, 3, 5, 1000)
        writer.states.note_beginning(1, 2, 0, 1000)
        with pytest.raises(EarlierBatchAwaited):
            writer.write(batch(sequence=6, epoch=3, transactional=True))
        writer.states.note_beginning(1, 4, 7, 1000)
        assert writer.write(batch(sequence=7, epoch=4, transactional=True)) is None

    def test_of_a_batch_without_a_sequence_are_none(self, writer: Writer) -> None:
        writer.states.note_beginning(1, 0, -1, 1000)
        assert writer.write(batch(sequence=0, transactional=True)) is None

    def test_do_not_concern_replication(self, writer: Writer) -> None:
        writer.states.note_beginning(1, 0, 0, 1000)
        header = batch(sequence=1, transactional=True)
        assert writer.write(header, Origin.REPLICATION) is None
        assert writer.write(batch(sequence=2, transactional=True)) is None

    def test_are_over_with_the_marker(self, writer: Writer) -> None:
        writer.states.note_beginning(1, 0, 0, 1000)
        writer.mark()
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(sequence=1, transactional=True))

    def test_expire(self, writer: Writer) -> None:
        writer.states.note_beginning(1, 0, 0, 1000)
        writer.states.expire(999 + writer.states.expiration_ms)
        with pytest.raises(EarlierBatchAwaited):
            writer.write(batch(sequence=1))
        assert writer.states.expire(1000 + writer.states.expiration_ms) == 0
        assert writer.write(batch(sequence=1)) is None


class TestDuplicates:
    def test_the_last_five_are_answered_with_the_original(self, writer: Writer) -> None:
        for number in range(8):
            writer.write(batch(sequence=number * 2, records=2), timestamp=5000 + number)
        for number in range(3, 8):
            duplicate = writer.write(batch(sequence=number * 2, records=2), timestamp=9999)
            assert duplicate == Duplicate(number * 2, number * 2 + 1, 5000 + number)
        for number in range(3):
            with pytest.raises(OutOfOrderSequence):
                writer.write(batch(sequence=number * 2, records=2))
        assert writer.end == 16

    def test_only_the_exact_range_is_a_duplicate(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, records=4))
        writer.write(batch(sequence=4, records=4))
        for sequence, records in ((0, 3), (0, 5), (1, 3), (4, 3), (0, 8)):
            with pytest.raises(OutOfOrderSequence):
                writer.write(batch(sequence=sequence, records=records))

    def test_of_another_epoch_there_are_none(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, epoch=0))
        writer.write(batch(sequence=0, epoch=1))
        with pytest.raises(InvalidProducerEpoch):
            writer.write(batch(sequence=0, epoch=0))

    def test_survive_the_marker_of_the_same_epoch(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, transactional=True))
        writer.mark()
        assert writer.write(batch(sequence=0, transactional=True)) == Duplicate(0, 0, 1000)
        assert writer.write(batch(sequence=1, transactional=True)) is None


class TestEpochs:
    def test_an_older_one_is_fenced(self, writer: Writer) -> None:
        writer.write(batch(epoch=5))
        for origin in (Origin.CLIENT, Origin.COORDINATOR):
            with pytest.raises(InvalidProducerEpoch) as refused:
                writer.write(batch(epoch=4, sequence=1), origin)
            assert (refused.value.epoch, refused.value.current) == (4, 5)

    def test_a_newer_one_begins_at_zero(self, writer: Writer) -> None:
        writer.write(batch(epoch=0, sequence=0))
        for sequence in (1, 2):
            with pytest.raises(OutOfOrderSequence):
                writer.write(batch(epoch=1, sequence=sequence))
        assert writer.write(batch(epoch=1, sequence=0)) is None
        assert writer.states.producers[1].batches == [(0, 0, 1, 1, 1000)]

    def test_a_marker_with_a_new_epoch_starts_the_sequence_anew(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, records=3, transactional=True))
        writer.mark(epoch=1)
        with pytest.raises(InvalidProducerEpoch):
            writer.write(batch(epoch=0, sequence=3, transactional=True))
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(epoch=1, sequence=3, transactional=True))
        assert writer.write(batch(epoch=1, sequence=0, transactional=True)) is None

    def test_a_marker_makes_an_unknown_producer_known(self, writer: Writer) -> None:
        assert writer.mark(producer_id=7, epoch=2) is None
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(7, epoch=2, sequence=5))
        assert writer.write(batch(7, epoch=2, sequence=0)) is None


class TestOrigins:
    def test_replication_is_not_checked(self, writer: Writer) -> None:
        writer.write(batch(epoch=5, sequence=10, transactional=True))
        for header in (batch(epoch=4, sequence=3), batch(epoch=9, sequence=77), batch(sequence=0)):
            assert writer.write(header, Origin.REPLICATION) is None
        writer.states.check_marker(1, -5, -5, Origin.REPLICATION)

    def test_replication_knows_no_duplicates(self, writer: Writer) -> None:
        writer.write(batch(sequence=0))
        assert writer.write(batch(sequence=0), Origin.REPLICATION) is None
        assert writer.end == 2

    def test_a_coordinator_sends_no_sequence(self, writer: Writer) -> None:
        for _ in range(3):
            header = batch(epoch=1, sequence=-1, records=2, transactional=True)
            assert writer.write(header, Origin.COORDINATOR) is None
        assert writer.states.producers[1].last_sequence == -1
        assert (
            writer.write(batch(epoch=2, sequence=-1, transactional=True), Origin.COORDINATOR)
            is None
        )

    def test_after_a_coordinators_batch_a_client_begins_at_zero(self, writer: Writer) -> None:
        writer.write(batch(sequence=-1), Origin.COORDINATOR)
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(sequence=1))
        assert writer.write(batch(sequence=0)) is None


class TestTransactions:
    def test_open_with_the_first_batch_and_close_with_the_marker(self, writer: Writer) -> None:
        writer.write(batch(9))
        assert writer.states.first_unstable_offset is None
        writer.write(batch(sequence=0, records=3, transactional=True))
        writer.write(batch(sequence=3, transactional=True))
        assert writer.states.producers[1].transaction_first_offset == 1
        assert writer.states.first_unstable_offset == 1
        assert writer.states.first_undecided_offset == 1
        assert list(writer.states.open_transactions()) == [(1, 1)]
        assert writer.mark(marker=ABORT) == CompletedTransaction(1, 1, 5, True, 6)
        assert writer.states.producers[1].transaction_first_offset == -1
        assert writer.states.first_undecided_offset is None
        # Decided, but the marker at 5 is not below the high watermark yet.
        assert writer.states.first_unstable_offset == 1
        writer.states.high_watermark_moved(5)
        assert writer.states.first_unstable_offset == 1
        writer.states.high_watermark_moved(6)
        assert writer.states.first_unstable_offset is None

    def test_a_marker_without_a_transaction_completes_none(self, writer: Writer) -> None:
        writer.write(batch(sequence=0))
        assert writer.mark() is None
        assert writer.states.first_unstable_offset is None

    def test_a_batch_outside_of_the_open_transaction_is_refused(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, transactional=True))
        for origin in (Origin.CLIENT, Origin.COORDINATOR):
            with pytest.raises(InvalidTransactionState):
                writer.write(batch(sequence=1), origin)
        with pytest.raises(OutOfOrderSequence):
            writer.write(batch(sequence=2))
        writer.mark()
        assert writer.write(batch(sequence=1)) is None

    def test_the_last_stable_offset_of_an_abort(self, writer: Writer) -> None:
        """It is where the first transaction begins that is still open: what Kafka's index holds."""
        for producer_id in (1, 2, 3):
            writer.write(batch(producer_id, transactional=True))
        aborted = writer.mark(2, marker=ABORT)
        assert aborted is not None
        assert aborted.last_stable_offset == 0
        aborted = writer.mark(1, marker=ABORT)
        assert aborted is not None
        assert aborted.last_stable_offset == 2
        aborted = writer.mark(3, marker=ABORT)
        assert aborted == CompletedTransaction(3, 2, 5, True, 6)

    def test_unstable_is_the_first_of_open_and_unreplicated(self, writer: Writer) -> None:
        states = writer.states
        for producer_id in (1, 2, 3):
            writer.write(batch(producer_id, transactional=True))  # at 0, 1, 2
        writer.mark(2)  # at 3
        writer.mark(1)  # at 4
        assert states.first_unstable_offset == 0
        states.high_watermark_moved(4)  # the marker of 2 is replicated, that of 1 is not
        assert states.first_unstable_offset == 0
        states.high_watermark_moved(5)
        assert states.first_unstable_offset == 2
        writer.mark(3)
        assert states.first_unstable_offset == 2
        states.high_watermark_moved(100)
        assert states.first_unstable_offset is None

    def test_the_next_transaction_of_a_producer_while_the_last_is_unreplicated(
        self, writer: Writer
    ) -> None:
        writer.write(batch(sequence=0, transactional=True))
        writer.mark()
        writer.write(batch(sequence=1, transactional=True))
        assert writer.states.first_unstable_offset == 0
        writer.states.high_watermark_moved(3)
        assert writer.states.first_unstable_offset == 2

    def test_a_transaction_goes_on_in_a_new_epoch(self, writer: Writer) -> None:
        writer.write(batch(sequence=0, transactional=True))
        writer.write(batch(sequence=0, epoch=1, transactional=True))
        assert writer.mark(epoch=1) == CompletedTransaction(1, 0, 2, False, 3)


class TestMarkers:
    def test_of_an_older_coordinator_are_refused(self, writer: Writer) -> None:
        writer.mark(marker=EndMarker(True, 5))
        writer.mark(marker=EndMarker(True, 5))
        with pytest.raises(CoordinatorFenced) as refused:
            writer.mark(marker=EndMarker(True, 4))
        assert (refused.value.epoch, refused.value.current) == (4, 5)

    def test_of_an_older_epoch_are_refused(self, writer: Writer) -> None:
        writer.write(batch(epoch=3, transactional=True))
        for version in (0, 1, 2):
            with pytest.raises(InvalidProducerEpoch):
                writer.mark(epoch=2, version=version)
        assert writer.mark(epoch=3, version=1) is not None

    def test_of_transaction_version_2_raise_the_epoch(self, writer: Writer) -> None:
        writer.write(batch(epoch=3, transactional=True))
        with pytest.raises(InvalidProducerEpoch):
            writer.mark(epoch=3, version=2)
        assert writer.mark(epoch=4, version=2) is not None
        # The same marker again, after its transaction ended: a retry.
        assert writer.mark(epoch=4, version=2) is None

    @pytest.mark.parametrize(
        ("key", "value", "marker"),
        [
            ("00000000", "000000000007", EndMarker(False, 7)),
            ("00000001", "000000000000", EndMarker(True, 0)),
            ("00010001", "000100000003ffff", EndMarker(True, 3)),
            ("00000001ff", "0000ffffffff", EndMarker(True, -1)),
        ],
    )
    def test_are_parsed(self, key: str, value: str, marker: EndMarker) -> None:
        assert EndMarker.parse(bytes.fromhex(key), bytes.fromhex(value)) == marker

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, bytes(6)),
            (bytes(4), None),
            (b"", bytes(6)),
            (bytes(3), bytes(6)),
            (bytes(4), bytes(5)),
            (b"\xff\xff\0\0", bytes(6)),
            (bytes(4), b"\xff\xff\0\0\0\0"),
            (b"\0\0\0\2", bytes(6)),  # a change of leader
            (b"\0\0\x70\0", bytes(6)),
        ],
    )
    def test_are_told_from_other_records(self, key: bytes | None, value: bytes | None) -> None:
        with pytest.raises(ValueError, match=r"control record|marker"):
            EndMarker.parse(key, value)


class TestExpiry:
    def test_forgets_who_has_not_written(self) -> None:
        writer = Writer(ProducerStates("/nowhere", expiration_ms=100))
        writer.write(batch(1), timestamp=1000, now=1000)
        writer.write(batch(2), timestamp=1050, now=1050)
        assert writer.states.expire(1099) == 0
        assert writer.states.expire(1100) == 1
        assert set(writer.states.producers) == {2}
        assert writer.write(batch(1, sequence=40)) is None

    def test_keeps_who_has_a_transaction_open(self) -> None:
        writer = Writer(ProducerStates("/nowhere", expiration_ms=100))
        writer.write(batch(1, transactional=True), timestamp=1000)
        assert writer.states.expire(10**9) == 0
        writer.mark(1, timestamp=2000)
        assert writer.states.expire(2099) == 0
        assert writer.states.expire(2100) == 1

    def test_keeps_who_writes_old_timestamps_now(self) -> None:
        writer = Writer(ProducerStates("/nowhere", expiration_ms=100))
        writer.write(batch(1), timestamp=5, now=1_000_000)
        assert writer.states.expire(1_000_099) == 0
        assert writer.states.expire(1_000_100) == 1

    def test_a_replayed_batch_goes_by_its_timestamp(self) -> None:
        writer = Writer(ProducerStates("/nowhere", expiration_ms=100))
        writer.write(batch(1), timestamp=1000, now=-1)
        assert writer.states.expire(1100) == 1


def snapshot_of(*entries: tuple[int, ...], version: int = 1) -> bytes:
    body = struct.pack(">i", len(entries)) + b"".join(
        struct.pack(">qhiqiqiq", *entry) for entry in entries
    )
    return struct.pack(">hI", version, crc32c(body)) + body


class TestSnapshotFormat:
    def test_reads_and_writes_kafkas(self) -> None:
        states = ProducerStates("/nowhere", expiration_ms=10**15)
        states.load(KAFKA_SNAPSHOT, 1562, 0)
        assert states.map_end_offset == 1562
        fenced, one = states.producers[3], states.producers[4]
        assert (fenced.epoch, fenced.batches, fenced.coordinator_epoch) == (1, [], 0)
        assert fenced.timestamp == 1794731781664
        assert one.batches == [(359, 359, 1553, 1553, 1794731717555)]
        assert one.next_sequence == 360
        assert states.encode() == KAFKA_SNAPSHOT

    def test_of_nobody(self) -> None:
        data = ProducerStates("/nowhere").encode()
        assert data == bytes.fromhex("0001") + struct.pack(">I", crc32c(bytes(4))) + bytes(4)
        assert decode_snapshot(data, "x") == []

    def test_keeps_the_last_batch_of_each_and_the_open_transactions(self) -> None:
        writer = Writer()
        writer.write(batch(1, sequence=0, records=5), timestamp=7, now=70)
        writer.write(batch(2, epoch=3, sequence=0, transactional=True), timestamp=8, now=80)
        writer.write(batch(1, sequence=5, records=3), timestamp=9, now=90)
        assert writer.states.encode() == snapshot_of(
            (1, 0, 7, 8, 2, 90, -1, -1), (2, 3, 0, 5, 0, 80, -1, 5)
        )
        again = ProducerStates("/nowhere")
        again.load(writer.states.encode(), 9, 100)
        assert again.first_unstable_offset == 5
        assert again.check(batch(1, sequence=5, records=3)) == Duplicate(6, 8, 90)
        with pytest.raises(OutOfOrderSequence):
            again.check(batch(1, sequence=0, records=5))
        assert again.check(batch(1, sequence=8)) is None

    def test_wrapped_sequences(self) -> None:
        states = ProducerStates("/nowhere")
        states.load(snapshot_of((1, 0, 2, 10, 5, 90, -1, -1)), 11, 100)
        assert states.check(batch(sequence=MAX_SEQUENCE - 2, records=6)) == Duplicate(5, 10, 90)

    def test_open_transactions_are_sorted(self) -> None:
        states = ProducerStates("/nowhere")
        states.load(snapshot_of((1, 0, 0, 9, 0, 90, -1, 9), (2, 0, 0, 4, 0, 90, -1, 4)), 10, 100)
        assert states.first_unstable_offset == 4
        assert list(states.open_transactions()) == [(2, 4), (1, 9)]

    def test_the_expired_stay_behind(self) -> None:
        states = ProducerStates("/nowhere", expiration_ms=100)
        entries = (
            (1, 0, 0, 1, 0, 900, -1, -1),
            (2, 0, 0, 2, 0, 901, -1, -1),
            (3, 0, 0, 3, 0, 5, -1, 3),
            (4, 0, 0, 4, 0, 1000, -1, -1),
        )
        states.load(snapshot_of(*entries), 10, 1000)
        assert set(states.producers) == {2, 3, 4}

    def test_a_broker_that_was_down_makes_nobody_older(self) -> None:
        states = ProducerStates("/nowhere", expiration_ms=100)
        entries = (
            (1, 0, 0, 1, 0, 900, -1, -1),
            (2, 0, 0, 2, 0, 950, -1, -1),
            (3, 0, 0, 3, 0, 1000, -1, -1),
        )
        states.load(snapshot_of(*entries), 10, 5000)
        assert set(states.producers) == {2, 3}  # the first was as good as forgotten before
        assert states.expire(5049) == 0
        assert states.expire(5050) == 1
        assert states.expire(5100) == 1

    def test_frequent_starts_make_nobody_younger(self) -> None:
        writer = Writer(ProducerStates("/nowhere", expiration_ms=100))
        writer.write(batch(1), timestamp=5, now=1000)
        for now in range(1010, 1100, 10):
            writer.write(batch(2, sequence=(now - 1010) // 10), timestamp=5, now=now)
            again = ProducerStates("/nowhere", expiration_ms=100)
            again.load(writer.states.encode(), writer.end, now + 1)
            writer.states = again
            assert set(again.producers) == {1, 2}
        assert writer.states.expire(1101) == 1
        assert set(writer.states.producers) == {2}

    @pytest.mark.parametrize("size", range(len(KAFKA_SNAPSHOT)))
    def test_cut_short(self, size: int) -> None:
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(KAFKA_SNAPSHOT[:size], "x")

    @given(position=st.integers(0, len(KAFKA_SNAPSHOT) - 1), flip=st.integers(1, 255))
    def test_any_changed_byte(self, position: int, flip: int) -> None:
        data = bytearray(KAFKA_SNAPSHOT)
        data[position] ^= flip
        with pytest.raises(CorruptSnapshot) as error:
            decode_snapshot(bytes(data), "the/path")
        assert error.value.path == "the/path"

    @pytest.mark.parametrize(
        "data",
        [
            KAFKA_SNAPSHOT + b"\0",
            snapshot_of(version=0),
            snapshot_of(version=2),
            struct.pack(">hI", 1, crc32c(struct.pack(">i", -1))) + struct.pack(">i", -1),
            struct.pack(">hI", 1, crc32c(struct.pack(">i", 2**31 - 1)))
            + struct.pack(">i", 2**31 - 1),
            snapshot_of((1, 0, 0, 1, 0, 5, -1, -1), (1, 0, 0, 2, 0, 5, -1, -1)),
            snapshot_of((-1, 0, 0, 1, 0, 5, -1, -1)),
            snapshot_of((1, 0, 0, 1, -1, 5, -1, -1)),
            snapshot_of((1, 0, 0, 1, 2, 5, -1, -1)),
            snapshot_of((1, 0, 0, 1, 0, 5, -1, 1), (2, 0, 0, 2, 0, 5, -1, 1)),
        ],
    )
    def test_what_no_broker_writes(self, data: bytes) -> None:
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(data, "x")

    def test_a_corrupt_one_leaves_the_state_as_it_was(self) -> None:
        writer = Writer()
        writer.write(batch())
        before = writer.states.encode()
        with pytest.raises(CorruptSnapshot):
            writer.states.load(KAFKA_SNAPSHOT[:-1], 1562, 0)
        assert writer.states.encode() == before
        assert writer.states.map_end_offset == 1

    def test_names(self) -> None:
        assert snapshot_name(1562) == "00000000000000001562.snapshot"
        assert snapshot_offset("00000000000000001562.snapshot") == 1562
        for name in (
            "00000000000000001562.log",
            "00000000000000001562",
            "1562.snapshot",
            "00000000000000001562.snapshot.deleted",
            "00000000000000001562.snapshot.tmp",
            "0000000000000000156x.snapshot",
            "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠١٥٦٢.snapshot",
        ):
            assert snapshot_offset(name) is None


def found(folder: Path) -> list[int]:
    offsets = (snapshot_offset(name) for name in os.listdir(folder))
    return sorted(offset for offset in offsets if offset is not None)


class TestSnapshotFiles:
    def take(self, states: ProducerStates, offset: int) -> Snapshot:
        states.map_end_offset = offset
        snapshot = states.take_snapshot()
        assert snapshot is not None
        snapshot.write(states.files)
        return snapshot

    @pytest.mark.parametrize("sync", [True, False])
    def test_are_taken_once_for_an_offset(self, tmp_path: Path, sync: bool) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        assert writer.states.take_snapshot() is None
        writer.write(batch())
        snapshot = writer.states.take_snapshot()
        assert snapshot is not None
        assert os.listdir(tmp_path) == []
        snapshot.write(writer.states.files, sync)
        assert (tmp_path / snapshot_name(1)).read_bytes() == writer.states.encode()
        assert os.listdir(tmp_path) == [snapshot_name(1)]
        assert writer.states.take_snapshot() is None
        writer.write(batch(sequence=1))
        assert writer.states.take_snapshot() is not None
        assert writer.states.snapshots == (1, 2)

    def test_an_older_longer_file_is_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / snapshot_name(3)
        path.write_bytes(bytes(5000))
        snapshot = Snapshot(3, str(path), KAFKA_SNAPSHOT)
        snapshot.write(sync=False)
        assert path.read_bytes() == KAFKA_SNAPSHOT

    def test_reload_takes_the_newest_within_the_log(self, tmp_path: Path) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        for sequence in range(30):
            writer.write(batch(sequence=sequence))
            if writer.end % 10 == 0:
                self.take(writer.states, writer.end)
        assert found(tmp_path) == [10, 20, 30]
        states = ProducerStates(str(tmp_path), snapshots=found(tmp_path))
        assert states.truncate_and_reload(0, 25, now=1000) == 20
        assert found(tmp_path) == [10, 20]
        assert states.producers[1].last_sequence == 19
        # As if the log had been read from 20 on.
        for sequence in range(20, 25):
            states.update(batch(sequence=sequence), sequence, sequence, 1000, -1)
        assert states.map_end_offset == 25
        # The state is that of the end already: nothing is loaded again.
        assert states.truncate_and_reload(0, 25, now=1000) == 25
        assert states.producers[1].last_sequence == 24
        # Snapshots at or before the log start go.
        assert states.truncate_and_reload(10, 12, now=1000) == 10
        assert found(tmp_path) == []
        assert states.producers == {}

    def test_reload_passes_over_damaged_ones(self, tmp_path: Path) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        for sequence in range(3):
            writer.write(batch(sequence=sequence))
            self.take(writer.states, writer.end)
        (tmp_path / snapshot_name(3)).write_bytes(b"\0\1garbage")
        (tmp_path / snapshot_name(2)).unlink()
        states = ProducerStates(str(tmp_path), snapshots=[3, 1, 2])
        assert states.truncate_and_reload(0, 50, now=1000) == 1
        assert found(tmp_path) == [1]
        assert states.snapshots == (1,)
        assert states.producers[1].last_sequence == 0

    def test_reload_without_any_begins_at_the_log_start(self, tmp_path: Path) -> None:
        states = ProducerStates(str(tmp_path))
        assert states.truncate_and_reload(17, 50, now=0) == 17

    def test_reload_forgets_the_unreplicated(self, tmp_path: Path) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        writer.write(batch(1, transactional=True))
        writer.mark(1)
        writer.write(batch(2, transactional=True))
        assert writer.states.truncate_and_reload(0, 1, now=0) == 0
        assert writer.states.first_unstable_offset is None
        assert writer.states.first_undecided_offset is None

    def test_a_log_start_that_moves_up(self, tmp_path: Path) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        writer.write(batch(1, sequence=0, transactional=True))
        writer.mark(1)
        writer.states.truncate_head(1)
        assert writer.states.first_unstable_offset == 0
        writer.states.truncate_head(2)
        assert writer.states.first_unstable_offset is None
        assert writer.states.producers[1].last_sequence == 0
        writer.states.truncate_head(100)
        assert writer.states.map_end_offset == 100
        assert writer.states.take_snapshot() is None

    def test_starting_over(self, tmp_path: Path) -> None:
        writer = Writer(ProducerStates(str(tmp_path)))
        writer.write(batch(1, transactional=True))
        self.take(writer.states, writer.end)
        writer.states.truncate_fully_and_start_at(500)
        assert found(tmp_path) == []
        assert writer.states.map_end_offset == 500
        assert writer.states.producers == {}
        assert writer.states.first_unstable_offset is None
        assert writer.states.take_snapshot() is not None

    def test_mark_deleted(self, tmp_path: Path) -> None:
        states = ProducerStates(str(tmp_path))
        for offset in (10, 20, 30):
            self.take(states, offset)
        assert states.mark_snapshot_deleted(15) is None
        path = states.mark_snapshot_deleted(10)
        assert path == str(tmp_path / "00000000000000000010.snapshot.deleted")
        assert os.path.exists(path)
        assert found(tmp_path) == [20, 30]
        (tmp_path / snapshot_name(20)).unlink()
        assert states.mark_snapshot_deleted(20) is None
        assert states.snapshots == (30,)

    @pytest.mark.parametrize(
        ("bases", "left"),
        [
            ([0, 10, 20], [10, 20, 35]),
            ([0, 10, 20, 40], [10, 20]),
            ([0, 10], [10, 35]),
            ([], [35]),
        ],
    )
    def test_strays(self, tmp_path: Path, bases: list[int], left: list[int]) -> None:
        states = ProducerStates(str(tmp_path))
        for offset in (5, 10, 15, 20, 30, 35):
            self.take(states, offset)
        states.remove_stray_snapshots(bases)
        assert found(tmp_path) == left
        assert list(states.snapshots) == left
