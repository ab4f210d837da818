"""One segment of a log: a file of batches and the three indexes over it."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, TypeVar

from ottla.logfiles.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_name,
)
from ottla.logfiles.walk import HEADER_CHUNK, OVERHEAD, SMALLEST_ENTRY, fields_at, walk
from ottla.record.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CODEC_MASK,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP,
    HeaderFields,
)
from ottla.record.errors import InvalidBatch
from ottla.storage.errors import CorruptFile, CorruptIndex, CorruptLog, NotInMemory
from ottla.storage.files import READ_ONLY, READ_WRITE, READ_WRITE_CREATE, Files
from ottla.storage.index.entries import MAX_RELATIVE_OFFSET, Index
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import TimeIndex
from ottla.storage.index.transaction_index import TransactionIndex
from ottla.storage.segments.file import OpenFiles, SegmentFile

NO_TIMESTAMP = -1
FOREVER = 1 << 62

# Positions of so many of the last batches are remembered, so that readers at the tail need no scan.
TAIL_BATCHES = 1024
# A rebuild walks a whole segment: few large reads.
REBUILD_CHUNK = 256 * 1024

# Base offset, batch length, magic and last offset delta: what the search for an offset looks at.
_SHORT_HEADER = struct.Struct(">qi4xb6xi")
_SHORT_HEADER_SIZE = _SHORT_HEADER.size
_unpack_short = _SHORT_HEADER.unpack_from

AnIndex = TypeVar("AnIndex", bound=Index)


class _HeldInMemory:
    """A segment file for those who must not wait for the disk."""

    __slots__ = ("_file", "_path")

    def __init__(self, file: SegmentFile, path: str) -> None:
        self._file = file
        self._path = path

    def read(self, size: int, position: int) -> bytes:
        data = self._file.read_in_memory(size, position)
        if data is None:
            raise NotInMemory(
                f"{self._path} at {position}", partial(self._file.bring_into_memory, position)
            )
        return data


class Segment:
    """The records from `base_offset` up to the next segment's.

    Files `<base offset in 20 digits>` with `.log` (batches, one after the other, nothing between
    them), `.index`, `.timeindex` and, if a transaction was aborted in it, `.txnindex`. The log file
    is made at the first append, index files at the first flush.

    Crash policy: everything below the log's recovery point was synced, data before indexes. What
    lies after it is checked batch by batch, cut at the first that is not whole, and its index
    entries are made anew (recovery.py).

    All methods belong to the thread of the log. (A write that the log hands out on purpose makes
    and opens the file on another one.)
    """

    __slots__ = (
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_open_files",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "files",
        "first_timestamp",
        "gone",
        "has_index_files",
        "index_full",
        "index_was_read",
        "max_index_bytes",
        "offset_limit",
        "on_disk",
        "opened",
        "padded",
        "roll_after",
        "roll_jitter_ms",
        "sealed",
        "settled",
        "size",
        "stem",
        "suffix",
        "sync_error",
        "synced_size",
        "tail_last_offsets",
        "tail_positions",
        "tail_start",
        "times_checked",
        "times_were_read",
        "used",
    )

    # How often the indexes of any segment were made anew: what was read from them before may be wrong.
    rebuilds: ClassVar[int] = 0

    def __init__(
        self,
        folder: str,
        base_offset: int,
        files: Files,
        open_files: OpenFiles,
        max_index_bytes: int,
        *,
        size: int | None = None,
        sealed: bool = False,
        created_ms: int = 0,
    ) -> None:
        """A segment that is to be made, or (with a size) one that is there."""
        self.base_offset = base_offset
        self.files = files
        self._open_files = open_files
        self.max_index_bytes = max_index_bytes
        self.stem = f"{folder}/{segment_name(base_offset)}"
        self.suffix = ""  # ".deleted" once it is
        self.on_disk = size is not None
        # False if it is known that there are none: then nobody has to look for them.
        self.has_index_files = self.on_disk
        # Bytes of whole, committed batches. The file may be longer (a write in flight).
        self.size = size or 0
        # It was made with room for more than it holds: zeros, which the flush of the sealed segment
        # cuts off.
        self.padded = False
        # What an fsync has covered; ≤ size.
        self.synced_size = self.size
        # An fsync outside of a flush failed (see OpenFiles): the next flush takes the log offline.
        self.sync_error: OSError | None = None
        # No more appends; it may still have to be synced.
        self.sealed = sealed
        # Sealed, and data and indexes synced.
        self.settled = sealed
        self.opened: SegmentFile | None = None
        # Its log was deleted or set aside: no file is opened for it any more.
        self.gone = False
        self.used = False
        # A thread has read the offset index, and nobody has mapped it since.
        self.index_was_read = False
        # The same for what a search by time begins with.
        self.times_were_read = False
        # Its time index was looked at once.
        self.times_checked = False
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        # Bytes after the batch that has the last index entry.
        self.bytes_since_index = 0
        self.index_full = False
        # The largest timestamp (None: not yet read), and the last offset of the first batch that
        # has it.
        self._max_timestamp: int | None = NO_TIMESTAMP if size is None else None
        self._offset_of_max_timestamp = base_offset
        # Offsets from tail_start on are found in the tail alone: entry i holds the last offset of a
        # batch and its position. Both lists are of one length and increase.
        self.tail_start = base_offset if size is None else FOREVER
        self.tail_last_offsets: list[int] = []
        self.tail_positions: list[int] = []
        # When to roll: by the largest timestamp in the first batch (None: not yet read; -1: it has
        # none, then by the clock since created_ms). A batch with a timestamp above roll_after makes
        # the log look closer.
        self.first_timestamp: int | None = None
        self.created_ms = created_ms
        self.roll_jitter_ms = 0
        self.roll_after = FOREVER if size is None else NO_TIMESTAMP - 1
        self.offset_limit = base_offset + MAX_RELATIVE_OFFSET

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.size} bytes>"

    # Files

    @property
    def path(self) -> str:
        return self.stem + LOG_SUFFIX + self.suffix

    @property
    def unsynced(self) -> bool:
        return self.synced_size < self.size

    def _open_index(self, kind: type[AnIndex], suffix: str) -> AnIndex:
        return kind(
            self.stem + suffix + self.suffix,
            self.base_offset,
            self.max_index_bytes,
            self.files,
            sealed=self.settled,
            fresh=not (self.has_index_files or self.settled),
        )

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            index = self._offset_index = self._open_index(OffsetIndex, INDEX_SUFFIX)
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            index = self._time_index = self._open_index(TimeIndex, TIME_INDEX_SUFFIX)
        return index

    @property
    def transaction_index(self) -> TransactionIndex:
        index = self._transaction_index
        if index is None:
            index = self._open_index(TransactionIndex, TRANSACTION_INDEX_SUFFIX)
            self._transaction_index = index
        return index

    @property
    def indexes(self) -> tuple[Index, Index, Index]:
        return self.offset_index, self.time_index, self.transaction_index

    @property
    def indexes_in_use(self) -> list[Index]:
        """Those that may have pending entries: an object is made when the first one comes."""
        made = (self._offset_index, self._time_index, self._transaction_index)
        return [index for index in made if index is not None]

    def file(self) -> SegmentFile:
        """The open log file of a segment that is on disk."""
        self.used = True
        file = self.opened
        if file is None:
            file = self._open_files.open(self, READ_ONLY if self.settled else READ_WRITE)
        return file

    def create(self, preallocate: int = 0) -> SegmentFile:
        """Makes the log file (an old one of that name, left by a failed write, is cut). The caller
        sets `on_disk` once the first batch is committed."""
        file = self._open_files.open(self, READ_WRITE_CREATE)
        self.used = True
        if self.files.size_of(file.fd):
            self.files.truncate(file.fd, 0)
        if preallocate:
            self.padded = True
            self.files.preallocate(file.fd, preallocate)
        return file

    def close(self) -> None:
        """Gives back descriptor and maps; the segment can be used again at once."""
        self._open_files.close(self)
        for index in self.indexes_in_use:
            index.drop_map()

    # Appending

    def add(
        self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval: int
    ) -> None:
        """Takes a batch in that was written at `position`, the segment's end."""
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]  # known while active
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self.bytes_since_index > index_interval:
            self._add_index_entry(last_offset, position)
        self.bytes_since_index += size
        self.size = position + size
        tail = self.tail_last_offsets
        tail.append(last_offset)
        self.tail_positions.append(position)
        if len(tail) > TAIL_BATCHES:
            half = TAIL_BATCHES // 2
            self.tail_start = tail[half - 1] + 1
            del tail[:half]
            del self.tail_positions[:half]

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval: int
    ) -> None:
        """Takes a batch in that was found on disk: as `add`, without size and tail."""
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]  # the caller set it
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self.bytes_since_index > index_interval:
            self._add_index_entry(last_offset, position)
        self.bytes_since_index += size

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        self.offset_index.append(last_offset, position)
        self.bytes_since_index = 0
        if self._max_timestamp is not None and self._max_timestamp >= 0:
            self.time_index.append(self._max_timestamp, self._offset_of_max_timestamp)
        self.index_full = self.offset_index.is_full or self.time_index.is_full

    def seal(self) -> None:
        """Take no more appends. Data and indexes still have to be synced: see `settle`."""
        self.finish_time_index()
        self.sealed = True
        self.tail_start = FOREVER
        self.tail_last_offsets = []
        self.tail_positions = []

    def unseal(self) -> None:
        """Appends again: the segments after this one were cut off. The caller loads the tail."""
        if self.settled:
            self._open_files.close(self)  # it was opened for reading only
            for index in self.indexes:
                index.unseal()
        self.sealed = self.settled = False

    def finish_time_index(self) -> None:
        """Add the entry that ends the time index, the segment's largest timestamp: when the segment is
        sealed or the log is closed."""
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self._offset_of_max_timestamp)

    def settle(self) -> None:
        """Let the indexes of a sealed segment leave memory, after its sync."""
        for index in self.indexes:
            index.seal()
        self.settled = True
        self.padded = False
        self._open_files.close(self)

    # Searching

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment; NO_TIMESTAMP if no batch has one."""
        if self._max_timestamp is None:
            self._read_max_timestamp()
        timestamp = self._max_timestamp
        assert timestamp is not None
        return timestamp

    @property
    def known_max_timestamp(self) -> int | None:
        """The largest timestamp in the segment; None if it has to be read first."""
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch that has the largest timestamp."""
        if self._max_timestamp is None:
            self._read_max_timestamp()
        return self._offset_of_max_timestamp

    def _read_max_timestamp(self) -> None:
        """Read the largest timestamp from the time index, and from what lies after the last entry of the
        offset index: with each of those, the time index was told the largest timestamp so far."""
        # First, because it may find that both have to be made anew.
        position = self.batch_before(self.base_offset + MAX_RELATIVE_OFFSET) if self.size else 0
        timestamp, offset = self._trusted(self.time_index).last_entry
        if timestamp < 0:
            position = 0
        for _, _, fields in self.walk(position):
            if fields[MAX_TIMESTAMP] > timestamp:
                timestamp = fields[MAX_TIMESTAMP]
                offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        self.remember_max_timestamp(timestamp, offset)

    def remember_max_timestamp(self, timestamp: int, offset: int) -> None:
        self._max_timestamp = timestamp
        self._offset_of_max_timestamp = offset

    def read_first_timestamp(self) -> int:
        """The largest timestamp of the first batch, by which the segment's age is reckoned."""
        if self.first_timestamp is None:
            was_open = self.opened is not None
            for _, _, fields in self.walk(0):
                self.first_timestamp = fields[MAX_TIMESTAMP]
                break
            else:
                return NO_TIMESTAMP
            if not was_open and self._open_files.crowded:
                self.close()  # there are too many already
        return self.first_timestamp

    def locate(self, offset: int, wait: bool = True) -> tuple[int, int] | None:
        """(position, size) of the first batch that ends at or after `offset`; None if this segment
        has none. Unless told to `wait`, NotInMemory where the disk would have to be asked."""
        if offset >= self.tail_start:
            slot = bisect_left(self.tail_last_offsets, offset)
            positions = self.tail_positions
            following = slot + 1
            if following < len(positions):
                position = positions[slot]
                return position, positions[following] - position
            if following == len(positions):
                position = positions[slot]
                return position, self.size - position
            return None
        if not wait and self.settled and not self.offset_index.is_mapped:
            if not self.index_was_read:
                raise NotInMemory(self.offset_index.path, self._read_index)
            self.index_was_read = False
        try:
            return self._scan_for(offset, self.position_before(offset), wait)
        except CorruptFile:
            # The index points anywhere, or the log itself is broken. In the latter case the rebuild
            # says so.
            self.rebuild_indexes()
            return self._scan_for(offset, self.position_before(offset), wait)

    def _read_index(self, _: int) -> None:
        """Read (on any thread) the pages of a sealed index, so that the map of it has them."""
        try:
            self.files.read_file(self.offset_index.path)
        except FileNotFoundError:
            pass  # it was removed meanwhile, or never was there: the search itself deals with that
        self.index_was_read = True

    def offsets_at(self, file: SegmentFile, position: int, wait: bool = True) -> tuple[int, int]:
        """Base and last offset of the batch at `position` of the segment's file. A compressed set of an
        old format tells only its last one: it begins somewhere in the segment."""
        size = min(_SHORT_HEADER_SIZE, self.size - position)
        data = file.read(size, position) if wait else file.read_in_memory(size, position)
        if data is None:
            raise NotInMemory(
                f"{self.path} at {position}", partial(file.bring_into_memory, position)
            )
        base: int = int.from_bytes(data[:8], "big", signed=True)
        if data[MAGIC_AT] != MAGIC:
            return self.base_offset if data[MAGIC_AT + 1] & CODEC_MASK else base, base
        return base, base + int.from_bytes(data[-4:], "big")

    def position_before(self, offset: int) -> int:
        """Where to start a scan for `offset`: the position of a batch at or before it."""
        index = self._offset_index
        if index is None:
            index = self._trusted(self.offset_index)
        position = index.lookup(offset)[1]
        if position >= self.size > 0:
            self.rebuild_indexes()
            position = self.offset_index.lookup(offset)[1]
        return position

    def batch_before(self, offset: int) -> int:
        """As `position_before`, for those who walk on from there: it is made sure that the batch of
        the index entry is there. The indexes are made anew if it is not."""
        try:
            found, position = self._trusted(self.offset_index).lookup(offset)
            if position == 0 or self._has_batch(position, found):
                return position
        except CorruptIndex:
            pass  # an entry in the middle that cannot be
        self.rebuild_indexes()
        return self.offset_index.lookup(offset)[1]

    def _has_batch(self, position: int, offset: int) -> bool:
        """Whether a batch may begin at `position` that an index entry for `offset` can be about. (In
        files of an old Kafka it is the last offset of several batches, the first of which is
        there.)"""
        if position >= self.size:
            return False
        try:
            fields = fields_at(
                self.file().read(min(HEADER_SIZE, self.size - position), position), 0
            )
        except InvalidBatch:
            return False
        return (
            self.base_offset
            <= fields[BASE_OFFSET]
            <= fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            <= offset
            and position + fields[BATCH_LENGTH] + OVERHEAD <= self.size
        )

    def expect_times_in_memory(self) -> None:
        """NotInMemory if what a search by time looks at first (both indexes, and what lies after their
        last entries) may have to come from the disk."""
        times, offsets = self._time_index, self._offset_index
        if not self.settled or (
            self._max_timestamp is not None
            and times is not None
            and times.mapped is not None
            and offsets is not None
            and offsets.mapped is not None
        ):
            return
        if not self.times_were_read:
            paths = self.offset_index.path, self.time_index.path
            raise NotInMemory(self.time_index.path, partial(self._read_indexes, *paths))
        self.times_were_read = False

    def _read_indexes(self, offset_index: str, time_index: str, _: int) -> None:
        """Read (on any thread) both sealed indexes, so that their maps have them."""
        for path in (offset_index, time_index):
            try:
                self.files.read_file(path)
            except FileNotFoundError:
                pass  # the search itself deals with that
        try:
            fd = self.files.open(self.path)
            try:
                size = min(self.size, REBUILD_CHUNK)
                self.files.bring_into_memory(fd, self.size - size, size)
            finally:
                self.files.close(fd)
        except FileNotFoundError:
            pass
        self.times_were_read = True

    def offset_before_time(self, timestamp: int) -> int:
        """Where to start a search for the first record that is not older than the timestamp."""
        try:
            index = self.time_index
            if not self.times_checked:
                index = self._trusted(index)
                self.times_checked = True
            return index.lookup(timestamp)[1]
        except CorruptIndex:
            self.rebuild_indexes()
            return self.time_index.lookup(timestamp)[1]

    def _trusted(self, index: AnIndex) -> AnIndex:
        """The index; rebuilt if it is obviously broken."""
        try:
            index.sanity_check()
        except CorruptIndex:
            self.rebuild_indexes()
        return index

    def _scan_for(self, offset: int, position: int, wait: bool) -> tuple[int, int] | None:
        end = self.size
        file = self.file()
        read = file.read if wait else file.read_in_memory
        while position < end:
            buffer = read(min(HEADER_CHUNK, end - position), position)
            if buffer is None:
                raise NotInMemory(
                    f"{self.path} at {position}", partial(file.bring_into_memory, position)
                )
            if len(buffer) == SMALLEST_ENTRY:
                buffer += b"\0"  # the short header is one byte longer than the smallest entry
            last = len(buffer) - _SHORT_HEADER_SIZE
            at = 0
            while at <= last:
                base, length, magic, delta = _unpack_short(buffer, at)
                if magic != 2:
                    if at and at + HEADER_SIZE > len(buffer):
                        break  # an old entry whose header may go on beyond the buffer
                    base, length, delta = self._old_entry(buffer, at, position)
                size: int = length + OVERHEAD
                if size <= OVERHEAD or position + at + size > end:
                    raise CorruptLog(self.path, f"no batch at {position + at}")
                if base + delta >= offset:
                    return position + at, size
                at += size
            if at == 0:
                raise CorruptLog(self.path, f"no batch at {position}")
            position += at
        return None

    def _old_entry(self, buffer: bytes, at: int, position: int) -> tuple[int, int, int]:
        try:
            fields = fields_at(buffer, at)
        except InvalidBatch as error:
            raise CorruptLog(self.path, f"no batch at {position + at}: {error.reason}") from error
        return fields[BASE_OFFSET], fields[BATCH_LENGTH], 0

    def walk(
        self, position: int = 0, chunk: int = HEADER_CHUNK, wait: bool = True
    ) -> Iterator[tuple[int, int, HeaderFields]]:
        """Position, size and header fields of each batch from `position` on; CorruptLog where the
        file holds no batch. Unless told to `wait`, NotInMemory where the disk would be asked."""
        if not self.size:
            return
        file = self.file()
        try:
            yield from walk(
                file if wait else _HeldInMemory(file, self.path), position, self.size, chunk
            )
        except InvalidBatch as error:
            raise CorruptLog(self.path, error.reason) from error

    def end_offset(self) -> int:
        """The offset after the last record, read from the end of the file."""
        position = self.batch_before(self.base_offset + MAX_RELATIVE_OFFSET)
        end = self.base_offset
        for _, _, fields in self.walk(position):
            end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        return end

    # Repair

    def cut(self, position: int, end_offset: int) -> None:
        """Drops what lies at and after `position`, where `end_offset` begins, and syncs that. The
        caller loads the tail."""
        file = self.file()
        self.files.truncate(file.fd, position)
        self.files.fsync(file.fd)
        self.size = position
        self.synced_size = min(self.synced_size, position)
        self._max_timestamp = None
        self.first_timestamp = None
        for index in self.indexes:
            index.truncate_to(end_offset)
            try:
                index.sync()
            except FileNotFoundError:
                pass  # never written

    def rebuild_indexes(self) -> None:
        """Offset and time index anew, from the batches. (The transaction index is rebuilt by who
        replays the producers.)"""
        Segment.rebuilds += 1
        settled = self.settled
        offset_index, time_index = self.offset_index, self.time_index
        offset_index.reset()
        time_index.reset()
        timestamp, offset_of_timestamp = NO_TIMESTAMP, self.base_offset
        indexed = 0
        # Kafka's interval default; a rebuilt index may be sparser or denser than the lost one.
        interval = 4096
        for position, _, fields in self.walk(0, REBUILD_CHUNK):
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if fields[MAX_TIMESTAMP] > timestamp:
                timestamp, offset_of_timestamp = fields[MAX_TIMESTAMP], last_offset
            if position - indexed > interval:
                offset_index.append(last_offset, position)
                if timestamp >= 0:
                    time_index.append(timestamp, offset_of_timestamp)
                indexed = position
        self.remember_max_timestamp(timestamp, offset_of_timestamp)
        self.bytes_since_index = self.size - indexed
        self.index_full = offset_index.is_full or time_index.is_full
        if settled:
            self.finish_time_index()
            for index in (offset_index, time_index):
                index.flush()
                index.seal()

    def load_tail(self, end_offset: int) -> None:
        """Makes a segment that was found on disk ready for appends at `end_offset`, its end."""
        self.tail_start = end_offset
        self.tail_last_offsets = []
        self.tail_positions = []
        self._trusted(self.time_index)
        self.bytes_since_index = self.size - self._trusted(self.offset_index).last_entry[1]
        self.index_full = self.offset_index.is_full or self.time_index.is_full
        if self._max_timestamp is None:
            self._read_max_timestamp()
