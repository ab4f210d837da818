"""Open segment files: few descriptors for many partitions, and none closed under a reader.

A broker with 9,000 partitions cannot keep a descriptor for every segment. `OpenFiles` keeps those
in use and closes cold ones; a segment opens its file again when it is next touched. A reader (a
fetch response that waits for its socket) holds the `SegmentFile` itself, so the descriptor lives as
long as the last of its readers, whatever happens to the segment meanwhile: evicted, renamed,
removed.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.storage.errors import TRANSIENT
from ottla.storage.files import Files

if TYPE_CHECKING:
    from ottla.storage.segments.segment import Segment

# What a process that may open any number keeps open at most: each costs some kernel memory.
MOST_OPEN_FILES = 16_384
FEWEST_OPEN_FILES = 16
# For flushes, checkpoints and new segments; several may be under way at once.
RESERVED_FILES = 16
LOOKS = 32


# The descriptors of all segment files that are open in this process: those of `OpenFiles`, and those
# that only a reader still holds.
OPEN_DESCRIPTORS: set[int] = set()


def open_files_budget(descriptors: int | None = None) -> int:
    """How many segment files may be open in a process that may have so many descriptors (by default:
    RLIMIT_NOFILE as it is now): half of them. The rest is for connections, and for what is opened for a
    moment: indexes, checkpoints, folders."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return MOST_OPEN_FILES
    return max(FEWEST_OPEN_FILES, min(descriptors // 2, MOST_OPEN_FILES))


class SegmentFile:
    """One open descriptor, closed when the last reference to this object goes."""

    __slots__ = ("_close", "_files", "_pread", "_tells", "fd")

    def __init__(self, files: Files, fd: int) -> None:
        self.fd = fd
        OPEN_DESCRIPTORS.add(fd)
        self._files = files
        self._pread = files.pread
        # Before the first read: the kernel goes on with what it has begun.
        files.disable_read_ahead(fd)
        # Whether it makes sense to ask what is in memory; if not, everything counts as held.
        self._tells = files.tells_what_is_in_memory(fd)
        self._close = files.close

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; less only at the end of the file."""
        data = self._pread(self.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            data = self._pread(self.fd, size - have, position + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def read_in_memory(self, size: int, position: int) -> bytes | None:
        """As `read`, but None if the disk would have to be asked."""
        if not self._tells:
            return self._pread(self.fd, size, position)
        return self._files.pread_in_memory(self.fd, size, position)

    def seems_in_memory(self, position: int, size: int) -> bool:
        return not self._tells or self._files.seems_in_memory(self.fd, position, size)

    def bring_into_memory(self, position: int, size: int) -> bool:
        """For threads: read the range into the page cache; whether the disk was asked."""
        return self._files.bring_into_memory(self.fd, position, size)

    def read_ahead(self, position: int, size: int) -> bool:
        """For threads: ask the disk for a range that is wanted soon; whether that was needed."""
        return self._files.read_ahead(self.fd, position, size)

    def __del__(self) -> None:
        OPEN_DESCRIPTORS.discard(self.fd)
        try:
            self._close(self.fd)
        except OSError:
            # Nothing is lost: what had to last was synced before the last reference went.
            pass


class Slice(NamedTuple):
    """A range of a segment file that starts at a batch. It may end inside one, but the first batch
    is whole when the reader asked for at least one."""

    file: SegmentFile
    position: int
    length: int
    first_size: int  # bytes of the first batch; more than the length if that one is cut
    segment: Segment

    @property
    def base_offset(self) -> int:
        """Base offset of the first batch, as stored."""
        return int.from_bytes(self.file.read(8, self.position), "big", signed=True)

    def read(self) -> bytes:
        return self.file.read(self.length, self.position)


class OpenFiles:
    """The segments whose files are open, at most `limit` of them if that can be had.

    Second chance: a segment that was used since it was last looked at goes to the end of the queue.
    A segment with unsynced data is not closed: the kernel tells of a failed write-back only to
    descriptors that were open when it failed. `crowded` asks the logs' owner to flush some then. Where
    that comes too late, because more logs are written to at once than may have open files, the file
    that was used least is synced here and closed, by whoever may wait for a disk.
    """

    def __init__(self, files: Files, limit: int | None = None) -> None:
        self.files = files
        # May be changed while running: see `open_files_budget`.
        self.limit = open_files_budget() if limit is None else limit
        self.reserve = files.reserve(RESERVED_FILES)
        # Called when a file is opened although there are too many: those that follow should be opened
        # where a sync may be waited for.
        self.on_crowded: Callable[[], None] | None = None
        # Whether the thread that asks may wait for a sync.
        self.may_wait: Callable[[], bool] = lambda: True
        # Exactly those with an open file; next to be looked at first.
        self._queue: OrderedDict[Segment, None] = OrderedDict()
        # A write that was handed to a thread opens files there.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def crowded(self) -> bool:
        return len(self._queue) > self.limit

    def open(self, segment: Segment, flags: int) -> SegmentFile:
        """Opens the segment's file and remembers it as the segment's."""
        with self._lock:
            if segment.gone:
                raise FileNotFoundError(errno.ENOENT, "its log is gone", segment.path)
            if len(self._queue) >= self.limit:
                self._evict(2)  # one would never bring a crowd back to the limit
                if len(self._queue) >= self.limit and self.on_crowded is not None:
                    self.on_crowded()
                excess = len(self._queue) - self.limit
                if excess >= self.limit // 2 or (excess >= self.limit // 4 and self.may_wait()):
                    self._sync_and_close_one()
            try:
                fd = self.files.open(segment.path, flags)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                fd = self._open_with_none_left(segment.path, flags)
            file = SegmentFile(self.files, fd)
            segment.opened = file
            self._queue[segment] = None
            return file

    def _open_with_none_left(self, path: str, flags: int) -> int:
        """Open a file when the process has no descriptor left: closes some that are ours. New segments
        are among what descriptors are kept back for."""
        if not self._evict(64):
            self._sync_and_close_one()
        if flags & os.O_CREAT:
            return self.reserve.use(lambda: self.files.open(path, flags))
        return self.files.open(path, flags)

    def _sync_and_close_one(self) -> None:
        """Syncs and closes, of the segments with unsynced data, the one that was used least. It blocks:
        the last way out."""
        for segment in list(self._queue)[:LOOKS]:
            file, size = segment.opened, segment.size
            if file is None or segment.sync_error is not None:
                continue
            try:
                self.files.fsync(file.fd)
            except OSError as error:
                if error.errno not in TRANSIENT:
                    segment.sync_error = error
                continue
            segment.synced_size = max(segment.synced_size, size)
            if not segment.unsynced:  # a thread may be writing to it
                self.close(segment)
                return

    def forbid(self, segment: Segment) -> None:
        """Closes the segment's file, and opens or makes none for it any more: the folder is about to
        lose its name, and another log may get it while a thread still writes for this one. What was
        opened before belongs to the folder, whatever it is called."""
        with self._lock:
            segment.gone = True
            self.close(segment)

    def close(self, segment: Segment) -> None:
        """Lets go of the segment's file; readers that hold it go on."""
        with self._lock:
            segment.opened = None
            self._queue.pop(segment, None)

    def trim(self) -> None:
        """Back to the limit, as far as there are files that may be closed."""
        with self._lock:
            self._evict(len(self._queue) - self.limit)

    def _evict(self, wanted: int) -> int:
        """Closes up to `wanted` cold files; returns how many."""
        queue = self._queue
        closed = 0
        # Not all of them, if none can be closed: somebody waits.
        for _ in range(min(2 * len(queue), 2 * wanted + LOOKS)):
            if closed >= wanted:
                break
            segment, _none = queue.popitem(last=False)
            if segment.used or segment.unsynced:
                segment.used = False
                queue[segment] = None
            else:
                segment.opened = None
                closed += 1
        return closed
