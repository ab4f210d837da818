"""`ottla log verify`: whether a log's files hold together.

What is checked, for each partition:

- segments: every batch whole, its checksum right, offsets increasing from batch to batch, none
  below the number in the file's name or at or above the next segment's; with `deep` every record;
- offset index: entries increase, each points at the beginning of a batch and names an offset that
  is not before it, so that a reader who starts there misses nothing;
- time index: times and offsets increase, and no batch that ends at or before an entry's offset is
  younger than the entry;
- transaction index: entries in order, inside of the log;
- producer snapshots, leader epochs and partition.metadata: readable.

Of records that were deleted one by one it is counted how many are still on disk: 0 proves that all are
erased.

Nothing is repaired: a broker does that itself when it starts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.logfiles.deletions import deleted_offsets
from ottla.logfiles.folders import (
    Damage,
    LogFolder,
    SegmentFiles,
    StoredBatch,
    read_batches,
    read_records,
)
from ottla.logfiles.names import (
    DELETED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from ottla.record.batch import MAGIC, BatchHeader, Record
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetSet
from ottla.storage.checkpoints import read_offsets, read_partition_metadata
from ottla.storage.errors import CorruptFile
from ottla.storage.files import Files
from ottla.storage.index.maps import Maps
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import TimeIndex
from ottla.storage.index.transaction_index import AbortedTransaction, TransactionIndex
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.producer_state import decode_snapshot, snapshot_offset

_UNLIMITED = 2**31 - 1


class Problem(NamedTuple):
    file: str
    position: int | None  # in bytes, or the entry of an index
    message: str


class Verdict(NamedTuple):
    """What was found in one partition's folder."""

    log: str
    segments: int
    batches: int
    records: int
    size: int  # bytes of all segments
    start_offset: int | None  # of the first batch; None in an empty log
    end_offset: int | None  # after the last batch
    deleted_on_disk: int  # records that are deleted and not erased
    problems: tuple[Problem, ...]


class _Batches:
    """Where a segment's batches are: lists side by side, by position and so by offset."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.base_offsets: list[int] = []
        self.last_offsets: list[int] = []
        self.largest_timestamps: list[int] = []  # of this batch and all before it
        self.records = 0
        self.deleted = 0  # of these records

    def __len__(self) -> int:
        return len(self.positions)


def verify_log(
    folder: LogFolder, *, deep: bool = False, advance: Callable[[int], None] = lambda _: None
) -> Verdict:
    """Check everything in a partition's folder; `advance` is told the bytes that were read."""
    problems: list[Problem] = []
    batches = records = deleted = size = 0
    hidden = deleted_offsets(folder)
    start = end = None
    for number, segment in enumerate(folder.segments):
        is_last = number + 1 == len(folder.segments)
        limit = None if is_last else folder.segments[number + 1].base_offset
        found = _check_segment(segment, limit, end, deep, hidden, problems, advance)
        if len(found):
            start = found.base_offsets[0] if start is None else start
            end = found.last_offsets[-1] + 1
        batches += len(found)
        records += found.records
        deleted += found.deleted
        size += segment.log.stat().st_size
        problems += _check_offset_index(segment, found, is_last)
        problems += _check_time_index(segment, found, is_last)
        problems += _check_transaction_index(segment, found)
    if hidden:
        deleted += _deleted_on_the_way_out(folder, hidden)
    problems += _check_small_files(folder)
    return Verdict(
        folder.name,
        len(folder.segments),
        batches,
        records,
        size,
        start,
        end,
        deleted,
        tuple(problems),
    )


def _check_segment(
    segment: SegmentFiles,
    limit: int | None,
    previous_end: int | None,
    deep: bool,
    hidden: OffsetSet,
    problems: list[Problem],
    advance: Callable[[int], None],
) -> _Batches:
    name = segment.log.name
    found = _Batches()
    expected = (
        segment.base_offset if previous_end is None else max(previous_end, segment.base_offset)
    )
    largest = -1
    try:
        for batch in read_batches(segment.log):
            header = batch.header

            def report(message: str, position: int = batch.position) -> None:
                problems.append(Problem(name, position, message))

            if batch.damage is not None:
                report(f"batch at offset {header.base_offset}: {batch.damage}")
            if header.base_offset < expected:
                report(f"batch begins at offset {header.base_offset}, before {expected}")
            if limit is not None and header.last_offset >= limit:
                report(
                    f"batch reaches offset {header.last_offset}; the next segment begins at {limit}"
                )
            if deep and batch.damage is None:
                try:
                    found.records += _check_records(batch.header, read_records(batch))
                except InvalidBatch as problem:
                    report(f"records of the batch at offset {header.base_offset}: {problem.reason}")
            else:
                found.records += header.record_count
            if hidden:
                found.deleted += _deleted_in(batch, hidden)
            expected = max(expected, header.last_offset + 1)
            largest = max(largest, header.max_timestamp)
            found.positions.append(batch.position)
            found.base_offsets.append(header.base_offset)
            found.last_offsets.append(header.last_offset)
            found.largest_timestamps.append(largest)
            advance(batch.size)
    except Damage as damage:
        rest = segment.log.stat().st_size - damage.position
        problems.append(
            Problem(name, damage.position, f"{damage.reason}; the last {rest} bytes are unreadable")
        )
    return found


def _deleted_in(batch: StoredBatch, hidden: OffsetSet) -> int:
    """How many records of a batch are deleted. One that nobody can take apart has all that it had."""
    header = batch.header
    first = header.base_offset if header.magic == MAGIC else 0
    if header.is_control or hidden.first_in(first, header.last_offset + 1) is None:
        return 0
    if batch.damage is None:
        try:
            return sum(record.offset in hidden for record in read_records(batch))
        except InvalidBatch:
            pass
    if not header.record_count:
        return 0
    return hidden.within(header.base_offset, header.last_offset + 1).count


def _deleted_on_the_way_out(folder: LogFolder, hidden: OffsetSet) -> int:
    """How many deleted records are in files that were replaced and are about to be removed."""
    count = 0
    for path in sorted(folder.path.glob(f"*{LOG_SUFFIX}{DELETED_SUFFIX}")):
        try:
            count += sum(_deleted_in(batch, hidden) for batch in read_batches(path))
        except (Damage, FileNotFoundError):
            continue
    return count


def _check_records(header: BatchHeader, records: Iterator[Record]) -> int:
    count = 0
    previous = -1
    for record in records:
        if record.offset <= previous or record.offset > header.last_offset:
            raise InvalidBatch(f"offset {record.offset} comes after {previous}")
        if header.magic == MAGIC and record.offset < header.base_offset:
            raise InvalidBatch(f"offset {record.offset} is before the batch")
        previous = record.offset
        count += 1
    return count


def _missing(path: Path, found: _Batches, is_last: bool) -> list[Problem]:
    # A broker writes the index of the segment it appends to when it gets to it.
    if is_last or not len(found):
        return []
    return [Problem(path.name, None, "the file is missing")]


def _check_offset_index(segment: SegmentFiles, found: _Batches, is_last: bool) -> list[Problem]:
    path = segment.sibling(".index")
    if not path.exists():
        return _missing(path, found, is_last)
    problems = []
    previous_offset = segment.base_offset - 1
    previous_position = -1
    try:
        entries = offset_entries(segment)
    except CorruptFile as problem:
        return [Problem(path.name, None, problem.reason)]
    for number, (offset, position) in enumerate(entries):

        def report(message: str, number: int = number) -> None:
            problems.append(Problem(path.name, number, f"entry {number}: {message}"))

        if offset <= previous_offset or position <= previous_position:
            report(
                f"(offset {offset}, position {position}) does not come after "
                f"({previous_offset}, {previous_position})"
            )
        previous_offset, previous_position = offset, position
        slot = bisect_left(found.positions, position)
        if slot == len(found) or found.positions[slot] != position:
            report(f"no batch begins at position {position}")
        elif offset < found.base_offsets[slot] or offset > found.last_offsets[-1]:
            report(
                f"offset {offset} is not in the batch at position {position}, "
                f"which begins at {found.base_offsets[slot]}"
            )
    return problems


def _check_time_index(segment: SegmentFiles, found: _Batches, is_last: bool) -> list[Problem]:
    path = segment.sibling(".timeindex")
    if not path.exists():
        return _missing(path, found, is_last)
    problems = []
    previous_time, previous_offset = -1, segment.base_offset
    try:
        entries = time_entries(segment)
    except CorruptFile as problem:
        return [Problem(path.name, None, problem.reason)]
    for number, (timestamp, offset) in enumerate(entries):

        def report(message: str, number: int = number) -> None:
            problems.append(Problem(path.name, number, f"entry {number}: {message}"))

        if timestamp <= previous_time or offset < previous_offset:
            report(
                f"(time {timestamp}, offset {offset}) does not come after "
                f"({previous_time}, {previous_offset})"
            )
        previous_time, previous_offset = timestamp, offset
        if not len(found) or offset > found.last_offsets[-1]:
            report(f"offset {offset} is not in the segment")
            continue
        whole = bisect_right(found.last_offsets, offset)
        if whole and found.largest_timestamps[whole - 1] > timestamp:
            report(
                f"time {timestamp} at offset {offset}, but a batch before it "
                f"has time {found.largest_timestamps[whole - 1]}"
            )
    return problems


def _check_transaction_index(segment: SegmentFiles, found: _Batches) -> list[Problem]:
    path = segment.sibling(".txnindex")
    if not path.exists():
        return []
    try:
        entries = transaction_entries(segment)
    except CorruptFile as problem:
        return [Problem(path.name, None, problem.reason)]
    return [
        Problem(path.name, number, f"entry {number}: its marker {entry.last_offset} is not here")
        for number, entry in enumerate(entries)
        if not len(found) or not segment.base_offset <= entry.last_offset <= found.last_offsets[-1]
    ]


def _check_small_files(folder: LogFolder) -> list[Problem]:
    problems = []
    for path in sorted(folder.path.iterdir()):
        try:
            if snapshot_offset(path.name) is not None:
                decode_snapshot(path.read_bytes(), str(path))
            elif path.name == LEADER_EPOCH_CHECKPOINT:
                LeaderEpochs(str(path)).load()
            elif path.name == PARTITION_METADATA:
                read_partition_metadata(str(path))
        except CorruptFile as problem:
            problems.append(Problem(path.name, None, problem.reason))
    return problems


def verify_checkpoints(data_folder: Path, ends: dict[str, int | None]) -> list[Problem]:
    """The checkpoints of a data folder; `ends` has the end offset of each log in it."""
    problems = []
    for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT):
        try:
            offsets = read_offsets(str(data_folder / name))
        except CorruptFile as problem:
            problems.append(Problem(name, None, problem.reason))
            continue
        for (topic, partition), offset in offsets.items():
            end = ends.get(f"{topic}-{partition}")
            if end is not None and offset > end:
                problems.append(
                    Problem(name, None, f"{topic}-{partition} ends at {end}, not beyond {offset}")
                )
    return problems


class _ReadingFiles(Files):
    """Reads where storage maps: these files may belong to a broker that runs."""

    def map(self, path: str) -> memoryview:
        return memoryview(self.read_file(path))


_FILES = _ReadingFiles()


def offset_entries(segment: SegmentFiles) -> list[tuple[int, int]]:
    """(offset, position) each, unchecked; `CorruptFile` when they cannot be told apart."""
    path = str(segment.sibling(".index"))
    index = OffsetIndex(path, segment.base_offset, _UNLIMITED, _FILES, sealed=True, maps=Maps(1))
    return list(index.entries())


def time_entries(segment: SegmentFiles) -> list[tuple[int, int]]:
    """(timestamp, offset) each, unchecked."""
    path = str(segment.sibling(".timeindex"))
    index = TimeIndex(path, segment.base_offset, _UNLIMITED, _FILES, sealed=True, maps=Maps(1))
    return list(index.entries())


def transaction_entries(segment: SegmentFiles) -> list[AbortedTransaction]:
    path = str(segment.sibling(".txnindex"))
    index = TransactionIndex(
        path, segment.base_offset, _UNLIMITED, _FILES, sealed=True, maps=Maps(1)
    )
    index.verify()
    return list(index.entries())
