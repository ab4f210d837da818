"""What a log knows of the producers that write to it: enough to drop duplicates, refuse gaps, fence
zombies and tell which transactions are open.

The rules are Kafka's:

- a producer that the log does not know may begin with any sequence (its state may have expired, or
  its records may have been deleted), a known one goes on at its last sequence + 1; sequences wrap
  from 2^31 - 1 to 0;
- but where it begins with a transaction, about which its coordinator is asked first, it begins with the
  lowest sequence that came: of several requests on their way the first may have been refused, to be
  sent again, and a later one must not take its place. (Kafka refuses that as any gap. Here the later
  one is to be sent again as well, so that the transaction need not be aborted for it.)
- a batch equal in epoch and in first and last sequence to one of the last five is a duplicate: it
  is not written again, and answered with the offset and timestamp of the original;
- an older epoch is refused, a newer one begins with sequence 0 and makes the log forget the batches
  of the old one;
- the first transactional batch opens a transaction, a marker ends it. A marker may carry a newer
  epoch and thereby fence; one from an older coordinator is refused;
- what comes by replication (or from the log itself when it is read again) was checked by the leader
  and is taken as it is; a coordinator's own batches carry no sequence, only their epoch is checked.

Nothing here does I/O but the snapshot part at the end, and nothing reads a clock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ottla.logfiles.names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, offset_in, segment_name
from ottla.record.batch import (
    BASE_SEQUENCE,
    LAST_OFFSET_DELTA,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from ottla.record.checksum import crc32c
from ottla.storage.errors import (
    CoordinatorFenced,
    CorruptSnapshot,
    EarlierBatchAwaited,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from ottla.storage.files import OS_FILES, READ_WRITE_CREATE, Files

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields

logger = logging.getLogger(__name__)

# How many of a producer's batches are remembered: as many as a client may have in flight.
REMEMBERED_BATCHES = 5
MAX_SEQUENCE = 2**31 - 1
NO_SEQUENCE = -1
DEFAULT_EXPIRATION_MS = 86_400_000

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")

_MARKER_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Origin(Enum):
    """Where a batch comes from; it says how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


_CLIENT = Origin.CLIENT
_REPLICATION = Origin.REPLICATION


class Duplicate(NamedTuple):
    """The batch that a repeated one was written as."""

    base_offset: int
    last_offset: int
    timestamp: int


class EndMarker(NamedTuple):
    """The content of a control record that ends a transaction.

    Key: int16 version, int16 type (0 abort, 1 commit). Value: int16 version, int32 coordinator
    epoch. Later versions may be longer, these fields stay.
    """

    committed: bool
    coordinator_epoch: int

    @classmethod
    def parse(cls, key: bytes | memoryview | None, value: bytes | memoryview | None) -> EndMarker:
        """ValueError if the record is something else."""
        if key is None or len(key) < _MARKER_KEY.size:
            raise ValueError("the key of a control record has at least 4 bytes")
        version, kind = _MARKER_KEY.unpack_from(key)
        if version < 0 or kind not in (_ABORT, _COMMIT):
            raise ValueError(
                f"a control record of version {version}, type {kind} ends no transaction"
            )
        if value is None or len(value) < _MARKER_VALUE.size:
            raise ValueError("the value of an end marker has at least 6 bytes")
        version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
        if version < 0:
            raise ValueError(f"an end marker of version {version}")
        return cls(kind == _COMMIT, coordinator_epoch)


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended. If it was aborted, the transaction index wants all of
    this."""

    producer_id: int
    first_offset: int
    # The marker's.
    last_offset: int
    aborted: bool
    # Where the first transaction that is still open begins, or after the marker.
    last_stable_offset: int


# (first sequence, last sequence, first offset, last offset, largest timestamp), which is made for every
# batch: a tuple, whose places have names.
RememberedBatch: TypeAlias = tuple[int, int, int, int, int]
_FIRST_SEQUENCE: Final = 0
_LAST_SEQUENCE: Final = 1
_FIRST_OFFSET: Final = 2
_LAST_OFFSET: Final = 3


class ProducerState:
    """What is known of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_marker_offset",
        "next_sequence",
        "producer_id",
        "seen",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # Of the coordinator that wrote the last marker, -1 if there was none.
        self.coordinator_epoch = -1
        # Of the last marker since the state was loaded, -1 if there was none; not kept in snapshots.
        self.last_marker_offset = -1
        # Largest timestamp of the last batch, or that of the last marker.
        self.timestamp = -1
        # The clock when it was last heard of: at its last append, or when the state was rebuilt from
        # the log.
        self.seen = -1
        # -1: no transaction is open.
        self.transaction_first_offset = -1
        # The last REMEMBERED_BATCHES data batches of this epoch, oldest first.
        self.batches: list[RememberedBatch] = []
        # Last sequence of the last batch + 1, wrapped; 0 as long as there is no batch of this
        # epoch.
        self.next_sequence = 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][_LAST_SEQUENCE] if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The last offset of the last data batch, -1 if none is remembered."""
        return self.batches[-1][_LAST_OFFSET] if self.batches else -1

    def __repr__(self) -> str:
        return (
            f"ProducerState(producer_id={self.producer_id}, epoch={self.epoch}, "
            f"coordinator_epoch={self.coordinator_epoch}, timestamp={self.timestamp}, "
            f"transaction_first_offset={self.transaction_first_offset}, batches={self.batches})"
        )


class Snapshot(NamedTuple):
    """The state as bytes, taken on the log's thread, to be written on any."""

    offset: int
    path: str
    data: bytes

    def write(self, files: Files = OS_FILES, sync: bool = True) -> None:
        """Without `sync` the file may be torn by a power loss; its checksum tells, and an older
        snapshot serves."""
        if sync:
            files.replace_file(self.path, self.data)
            return
        fd = files.open(self.path, READ_WRITE_CREATE)
        try:
            files.truncate(fd, 0)
            files.write_all(fd, self.data, 0)
        finally:
            files.close(fd)


class ProducerStates:
    """The producers of one log, and its snapshots of them.

    File `<offset>.snapshot`: the state when the log ended at `offset`, big-endian,

        int16   version, 1
        uint32  CRC32C over all that follows
        int32   number of producers, then for each:
                int64 producer id        int16 epoch          int32 last sequence (-1)
                int64 last offset (-1)   int32 last offset - first offset of the last batch
                int64 last heard of      int32 coordinator epoch (-1)
                int64 first offset of the open transaction (-1)

    (Kafka writes the last batch's timestamp where we write when the producer was last heard of. It is
    used for nothing but expiry, and a producer of old records is not an old producer.)

    A snapshot is taken when a segment is rolled and when the log is closed. In a crash the newest
    readable snapshot within the log is loaded (`truncate_and_reload`) and the log is read again
    from there; a damaged one is removed and the one before it serves. Of the batches, a snapshot
    keeps the last of each producer only; the others are read from the log (replay.py).
    """

    def __init__(
        self,
        folder: str,
        files: Files = OS_FILES,
        *,
        expiration_ms: int = DEFAULT_EXPIRATION_MS,
        snapshots: Iterable[int] = (),
        start_offset: int = 0,
    ) -> None:
        """Touches no file. `snapshots`: the offsets of the snapshot files in the folder, for
        which see `snapshot_offset`; nothing is loaded from them before `truncate_and_reload`."""
        self.folder = folder
        self.files = files
        # producer.id.expiration.ms; may be changed while running.
        self.expiration_ms = expiration_ms
        # By producer id, in the order of their first batch.
        self.producers: dict[int, ProducerState] = {}
        # The smallest first offset of the transactions that are open, or ended by a marker that
        # is not below the high watermark yet; None if there are none. Always current.
        self.first_unstable_offset: int | None = None
        # The state is that of a log which ends here. The log moves it for batches without a
        # producer.
        self.map_end_offset = start_offset
        # How long nobody was heard of before the state was loaded; producers live so much longer.
        self._silence = 0
        # Loaded from a snapshot: of each producer's batches only the last is known.
        self.thinned = False
        # Producer id → epoch, lowest sequence and the clock when it last came, of transactional batches
        # of producers with no transaction open, which their coordinators are or were asked about.
        self._beginnings: dict[int, tuple[int, int, int]] = {}
        # First offset → producer id of the open transactions; first offsets increase, as
        # transactions are added in the order of the log.
        self._open: dict[int, int] = {}
        # First offset → marker's offset of the ended ones above the high watermark; markers
        # increase.
        self._unreplicated: dict[int, int] = {}
        # Offsets of the snapshot files, increasing.
        self._snapshots = sorted(snapshots)
        # A snapshot at map_end_offset is worth taking if this is less.
        self._last_snapshot = start_offset

    # The hot path: data batches with a producer id

    def note_beginning(self, producer_id: int, epoch: int, sequence: int, now: int) -> None:
        """A client's transactional batch may be written once its coordinator has been asked: remembers
        the lowest sequence with which its producer wanted to begin."""
        if producer_id < 0 or sequence < 0:
            return
        known_epoch, lowest, _ = self._beginnings.get(producer_id, (epoch, sequence, now))
        if known_epoch > epoch:
            return
        if known_epoch == epoch:
            sequence = min(sequence, lowest)
        self._beginnings[producer_id] = epoch, sequence, now

    def check(self, header: HeaderFields, origin: Origin = _CLIENT) -> Duplicate | None:
        """Whether a data batch may be written: the original if it is a duplicate, None if it is
        new.

        Raises InvalidProducerEpoch, OutOfOrderSequence, EarlierBatchAwaited, InvalidTransactionState.
        Changes nothing.
        The batch has passed `check_produced`, so a client's has a sequence. (When transactions
        verify their partitions before the first write, that check belongs here too.)
        """
        _, _, _, _, _, attributes, last_delta, _, _, producer_id, epoch, sequence, _ = header
        state = self.producers.get(producer_id)
        if state is None:
            if origin is _CLIENT:
                self._check_beginning(producer_id, epoch, sequence, None)
            return None
        if epoch == state.epoch:
            if sequence != state.next_sequence and origin is _CLIENT:
                last_sequence = sequence + last_delta & MAX_SEQUENCE
                for first, last, base_offset, last_offset, timestamp in state.batches:
                    if first == sequence and last == last_sequence:
                        return Duplicate(base_offset, last_offset, timestamp)
                if sequence != 0 or state.next_sequence != NO_SEQUENCE:
                    self._check_beginning(producer_id, epoch, sequence, state.next_sequence)
                    raise OutOfOrderSequence(producer_id, sequence, state.last_sequence)
        elif origin is not _REPLICATION:
            if epoch < state.epoch:
                raise InvalidProducerEpoch(producer_id, epoch, state.epoch)
            if sequence != 0 and origin is _CLIENT:
                self._check_beginning(producer_id, epoch, sequence, 0)
                raise OutOfOrderSequence(producer_id, sequence, NO_SEQUENCE)
        if (
            state.transaction_first_offset >= 0
            and not attributes & TRANSACTIONAL_BIT
            and origin is not _REPLICATION
        ):
            raise InvalidTransactionState(
                f"producer {producer_id} has a transaction open since offset "
                f"{state.transaction_first_offset} and sent a batch outside of it"
            )
        return None

    def update(
        self, header: HeaderFields, base_offset: int, last_offset: int, timestamp: int, now: int
    ) -> None:
        """Takes a data batch into account that was written (or is read again, or came by
        replication); never refuses one.

        `timestamp` is the batch's largest as it was stored, `now` the clock.
        """
        _, _, _, _, _, attributes, _, _, _, producer_id, epoch, _, _ = header
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState(producer_id, epoch)
        elif state.epoch != epoch:
            state.epoch = epoch
            state.batches.clear()
        self.go_on(state, header, base_offset, last_offset, timestamp, now)
        if attributes & TRANSACTIONAL_BIT and state.transaction_first_offset < 0:
            self._beginnings.pop(producer_id, None)
            state.transaction_first_offset = base_offset
            self._open[base_offset] = producer_id
            # Whatever is unstable already lies before it.
            if self.first_unstable_offset is None:
                self.first_unstable_offset = base_offset

    def expecting(self, header: HeaderFields) -> ProducerState | None:
        """The producer of a batch that goes on where its last one ended, outside of transactions;
        None if there is more to be said: then `check` says it."""
        state = self.producers.get(header[PRODUCER_ID])
        if (
            state is None
            or state.epoch != header[PRODUCER_EPOCH]
            or state.next_sequence != header[BASE_SEQUENCE]
            or state.transaction_first_offset >= 0
        ):
            return None
        return state

    def go_on(
        self,
        state: ProducerState,
        header: HeaderFields,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        now: int,
    ) -> None:
        """`update`, for a batch that begins no transaction, of a producer whose state is at hand."""
        sequence = header[BASE_SEQUENCE]
        if sequence >= 0:
            last_sequence = sequence + header[LAST_OFFSET_DELTA] & MAX_SEQUENCE
            state.next_sequence = last_sequence + 1 & MAX_SEQUENCE
        else:
            # A coordinator's batch: what a client may send next then takes a closer look.
            last_sequence = state.next_sequence = NO_SEQUENCE
        batches = state.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append((sequence, last_sequence, base_offset, last_offset, timestamp))
        state.timestamp = timestamp
        state.seen = now
        self.map_end_offset = last_offset + 1

    # Markers: control batches with a producer id

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        origin: Origin = Origin.COORDINATOR,
        transaction_version: int = 0,
    ) -> None:
        """Whether a marker may be written: InvalidProducerEpoch, CoordinatorFenced.

        From transaction version 2 on every marker carries a new epoch, so one with the current
        epoch is late and is refused, unless no transaction is open: then it repeats a marker that
        was written, and may be written again.
        """
        state = self.producers.get(producer_id)
        if state is None or origin is _REPLICATION:
            return
        if producer_epoch < state.epoch or (
            transaction_version >= 2
            and producer_epoch == state.epoch
            and state.transaction_first_offset >= 0
        ):
            raise InvalidProducerEpoch(producer_id, producer_epoch, state.epoch)
        if coordinator_epoch < state.coordinator_epoch:
            raise CoordinatorFenced(producer_id, coordinator_epoch, state.coordinator_epoch)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndMarker,
        offset: int,
        timestamp: int,
        now: int,
    ) -> CompletedTransaction | None:
        """Takes a marker into account that was written at `offset`; None if it ended nothing (no
        batch of the transaction is in this log). Never refuses one."""
        self._beginnings.pop(producer_id, None)
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState(producer_id, producer_epoch)
        elif state.epoch != producer_epoch:
            state.epoch = producer_epoch
            state.batches.clear()
            state.next_sequence = 0
        first_offset = state.transaction_first_offset
        state.transaction_first_offset = -1
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_marker_offset = offset
        state.timestamp = timestamp
        state.seen = now
        self.map_end_offset = offset + 1
        if first_offset < 0:
            return None
        del self._open[first_offset]
        self._unreplicated[first_offset] = offset
        # first_unstable_offset stays: the transaction is still unstable, though no longer open.
        stable = next(iter(self._open), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, not marker.committed, stable)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions whose markers are below the high watermark become stable."""
        if self._unreplicated:
            self._settle(high_watermark)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the first open transaction begins, whatever the high watermark is."""
        return next(iter(self._open), None)

    def open_transactions(self) -> Iterator[tuple[int, int]]:
        """(producer id, first offset), oldest first."""
        for first_offset, producer_id in self._open.items():
            yield producer_id, first_offset

    # Forgetting

    def expire(self, now: int) -> int:
        """Forgets producers that have not been heard of for `expiration_ms` and have no transaction
        open; how many. Beyond Kafka, which goes by the records' timestamps alone, a producer that
        wrote old timestamps a moment ago is kept."""
        limit = now - self._silence - self.expiration_ms
        expired = [
            state.producer_id
            for state in self.producers.values()
            if state.timestamp <= limit
            and state.seen <= limit
            and state.transaction_first_offset < 0
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        if self._beginnings:
            self._beginnings = {
                producer_id: beginning
                for producer_id, beginning in self._beginnings.items()
                if beginning[2] > limit
            }
        return len(expired)

    def truncate_head(self, log_start_offset: int) -> None:
        """The log start moved up. Producers stay known, though their records are gone."""
        self._settle(log_start_offset)
        if self.map_end_offset < log_start_offset:
            self.map_end_offset = log_start_offset
        self._last_snapshot = self._snapshots[-1] if self._snapshots else log_start_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forgets everything and removes all snapshots: the log is empty and begins at `offset`."""
        self._clear()
        for snapshot in list(self._snapshots):
            self._remove_snapshot(snapshot)
        self._last_snapshot = 0
        self.map_end_offset = offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now: int) -> int:
        """Brings the state back to a log of that range; gives the offset from which on the log is
        to be read again (with `update` and `end_transaction`) to reach its end.

        Removes the snapshots out of range. If the state is not that of the log's end already, it is
        replaced by the newest snapshot that can be read. The log end is not above the high
        watermark when a log is truncated, so no transaction that is closed is unstable then.
        """
        for offset in list(self._snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self._remove_snapshot(offset)
        if log_end_offset == self.map_end_offset:
            self.truncate_head(log_start_offset)
            return self.map_end_offset
        self._clear()
        self.map_end_offset = self._last_snapshot = log_start_offset
        while self._snapshots:
            offset = self._snapshots[-1]
            try:
                self.load(self.files.read_file(self.snapshot_path(offset)), offset, now)
            except CorruptSnapshot as error:
                logger.warning("removed a damaged producer snapshot: %s", error)
                self._remove_snapshot(offset)
            except FileNotFoundError:
                self._snapshots.pop()
            else:
                break
        return self.map_end_offset

    # Snapshots

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Offsets of the snapshots in the folder, increasing."""
        return tuple(self._snapshots)

    def snapshot_path(self, offset: int) -> str:
        return os.path.join(self.folder, snapshot_name(offset))

    def take_snapshot(self) -> Snapshot | None:
        """The state at `map_end_offset`, for the caller to write; None if that one exists
        already. It counts as written from now on."""
        offset = self.map_end_offset
        if offset <= self._last_snapshot:
            return None
        self._last_snapshot = offset
        if not self._snapshots or self._snapshots[-1] < offset:
            self._snapshots.append(offset)
        return Snapshot(offset, self.snapshot_path(offset), self.encode())

    def encode(self) -> bytes:
        """The state in the snapshot format."""
        parts = [_COUNT.pack(len(self.producers))]
        for state in self.producers.values():
            last_sequence, last_offset, offset_delta = NO_SEQUENCE, -1, 0
            if state.batches:
                _, last_sequence, base_offset, last_offset, _ = state.batches[-1]
                offset_delta = last_offset - base_offset
            parts.append(
                _ENTRY.pack(
                    state.producer_id,
                    state.epoch,
                    last_sequence,
                    last_offset,
                    offset_delta,
                    state.timestamp if state.seen < 0 else state.seen,
                    state.coordinator_epoch,
                    state.transaction_first_offset,
                )
            )
        body = b"".join(parts)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def load(self, data: bytes, offset: int, now: int) -> None:
        """Replaces the state by that of a snapshot at `offset`. CorruptSnapshot leaves it as it was.

        The producer that was heard of last counts as heard of `now`, and the others as long before it
        as they were: the time in which nobody could write, because the broker was down, makes no
        producer older, and frequent starts make none younger. Those that have expired by that are left
        out.
        """
        states = decode_snapshot(data, self.snapshot_path(offset))
        self._clear()
        self._silence = max(0, now - max((state.seen for state in states), default=now))
        limit = now - self._silence - self.expiration_ms
        for state in states:
            if state.seen > limit or state.transaction_first_offset >= 0:
                self.producers[state.producer_id] = state
        self._open = {
            first_offset: state.producer_id
            for first_offset, state in sorted(
                (state.transaction_first_offset, state)
                for state in self.producers.values()
                if state.transaction_first_offset >= 0
            )
        }
        self.first_unstable_offset = self.first_undecided_offset
        self.map_end_offset = self._last_snapshot = offset
        self.thinned = bool(self.producers)

    def recall(self, producer_id: int, headers: Sequence[HeaderFields]) -> bool:
        """Remembers data batches of a producer up to the first one that it is known for, given in the
        order of the log: the last of them, and of its current epoch. Whether that is all that should
        be known of it."""
        state = self.producers[producer_id]
        oldest_offset = state.batches[0][_FIRST_OFFSET]
        earlier: list[RememberedBatch] = []
        for base_offset, _, _, _, _, _, delta, _, timestamp, _, epoch, sequence, _ in headers:
            if epoch != state.epoch or base_offset > oldest_offset:
                continue
            last_sequence = sequence + delta & MAX_SEQUENCE if sequence >= 0 else NO_SEQUENCE
            batch = (sequence, last_sequence, base_offset, base_offset + delta, timestamp)
            if base_offset == oldest_offset:
                # With its own timestamp: the snapshot's may be that of a later marker.
                state.batches[0] = batch
            else:
                earlier.append(batch)
        state.batches = (earlier + state.batches)[-REMEMBERED_BATCHES:]
        return len(state.batches) == REMEMBERED_BATCHES or state.batches[0][_FIRST_SEQUENCE] == 0

    def as_of(self, offset: int) -> ProducerStates:
        """The state of another time: by the newest snapshot at or before `offset` that can be read.
        Nothing expires in it, and it leaves the files alone."""
        then = ProducerStates(self.folder, self.files)
        for snapshot in reversed(self._snapshots):
            if snapshot <= offset:
                try:
                    data = self.files.read_file(self.snapshot_path(snapshot))
                    then.load(data, snapshot, now=0)
                except (CorruptSnapshot, FileNotFoundError):
                    continue
                break
        return then

    def mark_snapshot_deleted(self, offset: int) -> str | None:
        """Renames a snapshot for its delayed deletion with the segment; its new path, None if
        there is no such snapshot."""
        if offset not in self._snapshots:
            return None
        self._snapshots.remove(offset)
        path = self.snapshot_path(offset)
        try:
            self.files.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return None
        return path + DELETED_SUFFIX

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int]) -> None:
        """Removes the snapshots that belong to no segment, but for the newest of them if it is
        above all segments: that one was taken when the log was closed."""
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._snapshots if offset not in bases]
        if strays and (not bases or strays[-1] > max(bases)):
            strays.pop()
        for offset in strays:
            self._remove_snapshot(offset)

    # Inside

    def _check_beginning(
        self, producer_id: int, epoch: int, sequence: int, expected: int | None
    ) -> None:
        """EarlierBatchAwaited if a batch comes after the one with which its producer wanted to begin,
        and which is to come again. `expected`: the sequence of that one, if it is known."""
        known_epoch, lowest, _ = self._beginnings.get(producer_id, (epoch, sequence, 0))
        if known_epoch == epoch and sequence > lowest and expected in (None, lowest):
            raise EarlierBatchAwaited(producer_id, sequence, lowest)

    def _settle(self, below: int) -> None:
        """Lets go of the ended transactions with markers below an offset."""
        unreplicated = self._unreplicated
        settled = []
        for first_offset, marker_offset in unreplicated.items():
            if marker_offset >= below:
                break
            settled.append(first_offset)
        if settled:
            for first_offset in settled:
                del unreplicated[first_offset]
            undecided = self.first_undecided_offset
            undecided_too = () if undecided is None else (undecided,)
            self.first_unstable_offset = min((*unreplicated, *undecided_too), default=None)

    def _clear(self) -> None:
        self.producers.clear()
        self._beginnings.clear()
        self._open.clear()
        self._unreplicated.clear()
        self.first_unstable_offset = None
        self.thinned = False
        self._silence = 0

    def _remove_snapshot(self, offset: int) -> None:
        self._snapshots.remove(offset)
        try:
            self.files.unlink(self.snapshot_path(offset))
        except FileNotFoundError:
            pass


def snapshot_name(offset: int) -> str:
    return segment_name(offset) + SNAPSHOT_SUFFIX


def snapshot_offset(name: str) -> int | None:
    """The offset in a snapshot file's name, None if the name is none of a snapshot."""
    return offset_in(name, SNAPSHOT_SUFFIX)


def decode_snapshot(data: bytes, path: str) -> list[ProducerState]:
    """The producers in a snapshot; CorruptSnapshot with `path` if it is damaged."""
    body_at = _SNAPSHOT_HEAD.size
    if len(data) < body_at + _COUNT.size:
        raise CorruptSnapshot(path, f"{len(data)} bytes are no snapshot")
    version, checksum = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshot(path, f"unknown version {version}")
    if crc32c(memoryview(data)[body_at:]) != checksum:
        raise CorruptSnapshot(path, "the CRC32C does not match")
    (count,) = _COUNT.unpack_from(data, body_at)
    entries = memoryview(data)[body_at + _COUNT.size :]
    if len(entries) != count * _ENTRY.size:
        raise CorruptSnapshot(path, f"{len(entries)} bytes for {count} producers")
    states: dict[int, ProducerState] = {}
    opened: set[int] = set()
    for (
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp,
        coordinator_epoch,
        transaction_first_offset,
    ) in _ENTRY.iter_unpack(entries):
        state = ProducerState(producer_id, epoch)
        state.coordinator_epoch = coordinator_epoch
        state.timestamp = state.seen = timestamp
        if transaction_first_offset >= 0:
            state.transaction_first_offset = transaction_first_offset
            if transaction_first_offset in opened:
                raise CorruptSnapshot(path, f"two transactions at {transaction_first_offset}")
            opened.add(transaction_first_offset)
        if last_offset >= 0:
            if not 0 <= offset_delta <= last_offset:
                raise CorruptSnapshot(path, f"offset delta {offset_delta} before {last_offset}")
            first_sequence = NO_SEQUENCE
            if last_sequence >= 0:
                first_sequence = last_sequence - offset_delta & MAX_SEQUENCE
            state.batches.append(
                (first_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp)
            )
            state.next_sequence = last_sequence + 1 & MAX_SEQUENCE
        if producer_id in states or producer_id < 0:
            raise CorruptSnapshot(path, f"producer {producer_id} cannot be here")
        states[producer_id] = state
    return list(states.values())
