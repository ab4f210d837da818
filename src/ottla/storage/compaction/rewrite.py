"""The work of a pass: reads segment files, writes compacted ones beside them.

Runs in a worker process, on plain values: the job goes there and the outcome comes back by pickle.
Nothing of the live log is touched; all that is written are files `<base offset>.log.cleaned` and the
indexes of the same suffix, synced before the outcome is given. What becomes of them is decided where the
log lives (swap.py).

The first of these files is made before anything else, and is the job's licence: when it is taken away
(the log was truncated, its topic deleted, the broker stops) the job ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ottla.logfiles.names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_name,
)
from ottla.logfiles.walk import fields_at, walk_checked
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    BatchHeader,
    HeaderFields,
    contents,
)
from ottla.record.errors import CorruptBatch, InvalidBatch
from ottla.record.legacy import messages
from ottla.record.offset_set import OffsetRange, OffsetSet
from ottla.record.spans import record_spans
from ottla.storage.compaction.erasing import EraseFilter
from ottla.storage.compaction.filter import DECOMPRESSED_LIMIT, BatchFilter, LastOfProducer
from ottla.storage.compaction.offset_map import OffsetMap
from ottla.storage.compaction.plan import SourceSegment, Weight, group
from ottla.storage.compaction.transactions import WalkedTransactions
from ottla.storage.files import READ_ONLY, READ_WRITE_CREATE, Files, FilesOfFolder
from ottla.storage.index.transaction_index import AbortedTransaction
from ottla.storage.segments.file import OpenFiles, SegmentFile
from ottla.storage.segments.segment import Segment

WRITE_BYTES = 1 << 20
# So much is written between two syncs: one at the end of a large file would hold up everybody else's.
SYNC_BYTES = 16 << 20
# The licence is looked at, and the speed, each time so much was read.
CHECK_BYTES = 1 << 20
LONGEST_NAP = 0.2
NO_INDEX_ENTRY = 1 << 62


class Uncleanable(Exception):
    """The log holds something that cannot be compacted: says what, and where."""


class Cancelled(Exception):
    """The job's licence was taken away."""


class Job(NamedTuple):
    """One pass of the cleaner over one log."""

    folder: str
    # Which folder that is: a topic may be deleted, and another of its name created, meanwhile.
    folder_identity: tuple[int, int]
    # All sealed segments that may be cleaned, from the log's first on; not empty.
    sources: tuple[SourceSegment, ...]
    first_dirty: int
    # The aborted transactions with records in the sources.
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    bytes_per_second: float
    # Records of the sources that were deleted one by one, as far as they may go from disk.
    erasable: OffsetSet = OffsetSet()
    # Nothing but these go: see erasing.py. The sources are then those that have any.
    only_erases: bool = False
    # There was nothing else to erase when the job began.
    erases_all: bool = False

    @property
    def licence(self) -> str:
        name = segment_name(self.sources[0].base_offset)
        return f"{self.folder}/{name}{LOG_SUFFIX}{CLEANED_SUFFIX}"


class Replacement(NamedTuple):
    """A compacted segment, and the base offsets of those it was made from; its own is the first."""

    replaces: tuple[int, ...]
    size: int


class Outcome(NamedTuple):
    # Where the next pass begins: keys were collected up to here.
    first_dirty: int
    replacements: tuple[Replacement, ...]
    records_dropped: int
    # Segments from which nothing could be erased, as they cannot be read: their offsets, and why.
    skipped: tuple[tuple[OffsetRange, str], ...] = ()


def run(job: Job) -> Outcome:
    """Does the job in its folder, or, should that have lost its name, nowhere else. OSError;
    Cancelled; Uncleanable. After an error nothing is left behind."""
    try:
        files = FilesOfFolder(job.folder, job.folder_identity)
    except FileNotFoundError as error:
        raise Cancelled(str(error)) from error
    try:
        return run_over(job, files)
    finally:
        files.close_folder()


def run_over(job: Job, files: Files) -> Outcome:
    """Does a job over this file layer, as `run` does."""
    rewrite = _Rewrite(job, files)
    try:
        return rewrite.run()
    except FileNotFoundError as error:
        # A segment went (retention), or the folder (the topic was deleted): no fault of the disk.
        rewrite.tidy()
        raise Cancelled(str(error)) from error
    except InvalidBatch as error:
        rewrite.tidy()
        raise Uncleanable(f"{rewrite.reading}: {error.reason}") from error
    except (OSError, Cancelled):
        rewrite.tidy()
        raise


class Throttle:
    """Keeps reading and writing together below a rate."""

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, count: int, check: Callable[[], None]) -> None:
        """Waits until so many bytes were allowed; calls `check` between naps."""
        now = self._clock()
        self._free_at = max(self._free_at, now) + count / self._rate
        while (wait := self._free_at - self._clock()) > 0:
            self._sleep(min(wait, LONGEST_NAP))
            check()


class _Output:
    """One `.cleaned` segment on its way."""

    def __init__(self, job: Job, base_offset: int, files: Files, throttle: Throttle) -> None:
        self._files = files
        self._interval = job.index_interval_bytes
        self._throttle = throttle
        self.segment = Segment(
            job.folder, base_offset, files, OpenFiles(files), job.segment_index_bytes
        )
        self.segment.suffix = CLEANED_SUFFIX
        self._file = self.segment.create()
        self._buffer = bytearray()
        self._position = 0
        self._unsynced = 0

    def add(self, batch: memoryview | bytes, check: Callable[[], None]) -> None:
        fields = fields_at(batch, 0)
        segment = self.segment
        # A full index gets no further entries: then a search scans a little longer.
        interval = NO_INDEX_ENTRY if segment.index_full else self._interval
        segment.add(
            segment.size,
            len(batch),
            fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA],
            fields[MAX_TIMESTAMP],
            interval,
        )
        self._buffer += batch
        if len(self._buffer) >= WRITE_BYTES:
            self._write(check)

    def _write(self, check: Callable[[], None]) -> None:
        size = len(self._buffer)
        self._throttle.spend(size, check)
        self._files.write_all(self._file.fd, self._buffer, self._position)
        self._position += size
        self._unsynced += size
        self._buffer = bytearray()
        if self._unsynced >= SYNC_BYTES:
            self._files.fsync(self._file.fd)
            self._unsynced = 0

    def finish(
        self,
        aborted: Iterable[AbortedTransaction],
        has_transaction_index: bool,
        check: Callable[[], None],
    ) -> None:
        """Everything on disk. An old transaction index is always replaced, if only by an empty one:
        a stale entry would hide records from readers of committed ones."""
        self._write(check)
        self._files.fsync(self._file.fd)
        segment = self.segment
        for entry in aborted:
            segment.transaction_index.append(*entry)
        segment.seal()
        for index in segment.indexes:
            index.flush()
        if has_transaction_index and not segment.transaction_index.entry_count:
            fd = self._files.open(segment.transaction_index.path, READ_WRITE_CREATE)
            try:
                self._files.fsync(fd)
            finally:
                self._files.close(fd)

    def close(self) -> None:
        self.segment.close()


class _Rewrite:
    """Carries out a job, file by file."""

    def __init__(self, job: Job, files: Files) -> None:
        self._job = job
        self._files = files
        self._throttle = Throttle(job.bytes_per_second)
        self._made: list[str] = []
        self._unchecked = 0
        # The file that is being read, for error messages.
        self.reading = job.folder

    def run(self) -> Outcome:
        job = self._job
        self._remove_leftovers()
        # Made once: made again, it would undo its being taken away.
        first = self._output(job.sources[0].base_offset)
        try:
            return self._run(first)
        finally:
            first.close()

    def _run(self, first: _Output) -> Outcome:
        job = self._job
        if job.only_erases:
            erasing = EraseFilter(job.erasable, job.aborted)
            return self._write(first, erasing, [[each] for each in job.sources], job.first_dirty)
        offset_map, map_end = self._collect()
        batch_filter = BatchFilter(
            offset_map,
            map_end,
            WalkedTransactions(job.aborted),
            job.producers,
            job.now_ms,
            job.delete_retention_ms,
            job.erasable,
        )
        weighed = [
            (source, self._weigh(source)) for source in job.sources if source.base_offset < map_end
        ]
        groups = group(weighed, job.segment_bytes, job.segment_index_bytes)
        return self._write(first, batch_filter, groups, map_end)

    def _write(
        self,
        first: _Output,
        batch_filter: BatchFilter | EraseFilter,
        groups: list[list[SourceSegment]],
        first_dirty: int,
    ) -> Outcome:
        job = self._job
        oldest_kept = self._old_tombstone_horizon()
        replacements = []
        skipped: list[tuple[OffsetRange, str]] = []
        for sources in groups:
            is_first = sources[0] is job.sources[0]
            output = first if is_first else self._output(sources[0].base_offset)
            replacement = None
            dropped = batch_filter.records_dropped
            try:
                replacement = self._clean(sources, output, batch_filter, oldest_kept)
            except InvalidBatch as error:
                if not job.only_erases:
                    raise
                (source,) = sources
                why = f"{self.reading}: {error.reason}"
                skipped.append(((source.base_offset, source.end_offset), why))
                batch_filter.records_dropped = dropped
                if not is_first:
                    self._remove(output.segment.path)
            finally:
                output.close()
            if replacement is not None:
                replacements.append(replacement)
        if not replacements or replacements[0].replaces[0] != job.sources[0].base_offset:
            self._remove(job.licence)
        self._files.fsync_folder(job.folder)
        return Outcome(
            first_dirty,
            tuple(replacements),
            batch_filter.records_dropped,
            tuple(skipped),
        )

    # The map

    def _collect(self) -> tuple[OffsetMap, int]:
        """The last offset of each key in the dirty part, and where the map ends."""
        job = self._job
        first_dirty = job.first_dirty
        offset_map = OffsetMap(job.map_bytes)
        transactions = WalkedTransactions(
            each for each in job.aborted if each.last_offset >= first_dirty
        )
        for source in job.sources:
            if source.end_offset <= first_dirty:
                continue
            for fields, batch in self._batches(source):
                if fields[MAGIC_BYTE] == 2 and fields[ATTRIBUTES] & CONTROL_BIT:
                    transactions.control(fields, batch)
                    continue
                if (
                    transactions.data(fields)
                    or fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] < first_dirty
                ):
                    continue
                for key, offset in _keys(fields, batch):
                    if offset < first_dirty:
                        continue
                    if not offset_map.put(key, offset):
                        return offset_map, offset
        return offset_map, job.sources[-1].end_offset

    # The new segments

    def _output(self, base_offset: int) -> _Output:
        output = _Output(self._job, base_offset, self._files, self._throttle)
        for suffix in SEGMENT_SUFFIXES:
            self._made.append(output.segment.stem + suffix + CLEANED_SUFFIX)
        return output

    def _clean(
        self,
        sources: list[SourceSegment],
        output: _Output,
        batch_filter: BatchFilter | EraseFilter,
        oldest_kept: float,
    ) -> Replacement | None:
        """One segment from several; None if it would be the same as its only source."""
        has_transaction_index = False
        same = len(sources) == 1
        last_filled = max((source for source in sources if source.size), default=None)
        modified = 0.0
        for source in sources:
            modified = self._files.modified(self._path(source, LOG_SUFFIX))
            batch_filter.keeps_old_tombstones = modified > oldest_kept
            if self._files.exists(self._path(source, TRANSACTION_INDEX_SUFFIX)):
                has_transaction_index = True
            position = 0
            for fields, batch in self._batches(source):
                position += len(batch)
                is_last = source is last_filled and position == source.size
                left = batch_filter.leave(batch, fields, is_last)
                if left is not batch and left != batch:
                    same = False
                if left is not None:
                    output.add(left, self._check)
        aborted = batch_filter.aborted_in(sources)
        if same or last_filled is None:
            if output.segment.path != self._job.licence:
                self._remove(output.segment.path)
            return None
        output.finish(aborted, has_transaction_index, self._check)
        # Where no record has a timestamp, or none is left, the age of the file is that of its records.
        self._files.set_modified(output.segment.path, modified)
        return Replacement(tuple(each.base_offset for each in sources), output.segment.size)

    def _old_tombstone_horizon(self) -> float:
        """Tombstones of the old formats stay in files written after this time (in seconds)."""
        clean = [each for each in self._job.sources if each.base_offset < self._job.first_dirty]
        if not clean:
            return 0.0
        modified = self._files.modified(self._path(clean[-1], LOG_SUFFIX))
        return modified - self._job.delete_retention_ms / 1000

    def _weigh(self, source: SourceSegment) -> Weight:
        sizes = []
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            try:
                sizes.append(self._files.size(self._path(source, suffix)))
            except FileNotFoundError:
                sizes.append(0)
        return Weight(source.size, *sizes)

    # Files

    def _path(self, source: SourceSegment, suffix: str) -> str:
        return f"{self._job.folder}/{segment_name(source.base_offset)}{suffix}"

    @contextmanager
    def _open(self, path: str) -> Iterator[SegmentFile]:
        self.reading = path
        # Closed when the last reference goes, which is here.
        yield SegmentFile(self._files, self._files.open(path, READ_ONLY))

    def _batches(self, source: SourceSegment) -> Iterator[tuple[HeaderFields, memoryview]]:
        """The batches of a source, checked."""
        with self._open(self._path(source, LOG_SUFFIX)) as file:
            next_offset = source.base_offset
            for position, size, fields, batch in walk_checked(file, 0, source.size):
                # The checksum does not cover the base offset.
                last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                if fields[BASE_OFFSET] < next_offset or last_offset >= source.end_offset:
                    raise CorruptBatch(
                        f"offsets {fields[BASE_OFFSET]} to {last_offset} at {position}, not between "
                        f"{next_offset} and {source.end_offset}"
                    )
                next_offset = last_offset + 1
                self._unchecked += size
                if self._unchecked >= CHECK_BYTES:
                    self._spend()
                yield fields, batch
        self._spend()

    def _spend(self) -> None:
        spent, self._unchecked = self._unchecked, 0
        self._check()
        self._throttle.spend(spent, self._check)

    def _check(self) -> None:
        if not self._files.exists(self._job.licence):
            raise Cancelled("the licence was taken away")

    def _remove_leftovers(self) -> None:
        """What an earlier job left that was killed: a stale index must not be taken for a new one."""
        for name in self._files.names(self._job.folder):
            if name.endswith(CLEANED_SUFFIX):
                self._remove(f"{self._job.folder}/{name}")

    def _remove(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass

    def tidy(self) -> None:
        """Remove the files that a failed job has made."""
        for path in self._made:
            try:
                self._remove(path)
            except OSError:
                return  # the next job, or the next start, does it


def _keys(fields: HeaderFields, batch: memoryview) -> Iterator[tuple[bytes, int]]:
    """Key and offset of the records that have a key."""
    if fields[MAGIC_BYTE] < 2:
        for record in messages(batch, DECOMPRESSED_LIMIT):
            if record.key is not None:
                yield record.key, record.offset
        return
    base_offset = fields[BASE_OFFSET]
    data = contents(batch, BatchHeader._make(fields), DECOMPRESSED_LIMIT)
    for _, _, delta, _, key, _ in record_spans(data, fields[RECORD_COUNT]):
        if key is not None:
            yield key, base_offset + delta
