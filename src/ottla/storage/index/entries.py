"""What the three indexes of a segment share: a file of equal entries in order, and its two lives.

**Active** (the segment takes appends): all entries are in memory; new ones are pending until
`write()` puts them after the others in the file with one `pwrite`. No descriptor stays open, and
an index that was never written has no file.

**Sealed** (the segment was rolled): nothing is in memory; the file is mapped read-only on demand
(`maps.py`) and searched in place. A mapped file must never shrink, so everything that could shrink
it unmaps it first and brings the index back to its active life.

Making an index object touches no file in either life. An active index reads its file, if there is
one, when it is first used.

In a crash the file is a head of the entries, possibly with a torn or zeroed tail, and possibly
stale: a log that was not shut down cleanly calls `reset()` and rebuilds the indexes of all segments
after its recovery point. No checksum protects an index; `sanity_check` and `verify` find what
can be found without one.

Kafka makes its active indexes 10 MiB long at once and cuts them when it stops. The files of a Kafka
that crashed are therefore padded with zeros; zeros at the end are never entries here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from struct import Struct
from typing import ClassVar, TypeAlias

from ottla.storage.errors import CorruptIndex
from ottla.storage.files import OS_FILES, READ_ONLY, READ_WRITE, READ_WRITE_CREATE, Files
from ottla.storage.index.maps import SHARED_MAPS, Maps

# Relative offsets and positions are signed 32-bit numbers.
MAX_RELATIVE_OFFSET = 2**31 - 1

# Above every relative offset and timestamp: as the "last entry" of an index whose entries are not
# in memory it sends an append to the slow path, so that the fast path needs no check of its own.
NOT_IN_MEMORY = 2**64

_STEP = 64 * 1024
# So many entries are looked at first, around where an entry is expected.
_WINDOW = 16


# The first and the last number of a column, and how many entries there are for each one between.
Ends: TypeAlias = tuple[int, int, float]


class Column:
    """The first number of each entry of a sealed index. Numbers never decrease from entry to entry."""

    __slots__ = ("_entry_size", "_value_at", "_window_at")

    def __init__(self, code: str, entry_size: int) -> None:
        """`code`: of the number, as in `struct`."""
        value = Struct(f">{code}")
        padded = f"{code}{entry_size - value.size}x"
        self._entry_size = entry_size
        self._value_at = value.unpack_from
        self._window_at = Struct(f">{padded * _WINDOW}").unpack_from

    def ends(self, view: memoryview, count: int) -> Ends:
        """For `slot_above`; of few entries it needs none."""
        if count <= _WINDOW:
            return 0, 0, 0.0
        (first,) = self._value_at(view, 0)
        (last,) = self._value_at(view, (count - 1) * self._entry_size)
        return first, last, (count - 1) / (last - first) if first < last else 0.0

    def slot_above(self, view: memoryview, count: int, target: int, ends: Ends) -> int:
        """The first of `count` entries whose number is above the target: as `bisect_right`, but it looks
        first where that entry is if they are evenly spaced between the `ends`, as most are. There it
        takes several numbers by one call: a search in a tuple needs no step of Python."""
        first, last, density = ends
        low, high = 0, count
        if first <= target < last:
            start = int((target - first) * density) - _WINDOW // 2
            if start < 0:
                start = 0
            elif start > count - _WINDOW:
                start = count - _WINDOW
            window = self._window_at(view, start * self._entry_size)
            slot = bisect_right(window, target)
            if 0 < slot < _WINDOW:
                return start + slot
            if slot:
                low = start + _WINDOW
            else:
                high = start
        value_at, size = self._value_at, self._entry_size
        return bisect_right(
            range(count), target, low, high, key=lambda slot: value_at(view, slot * size)[0]
        )


class Index(ABC):
    """One index file. Subclasses add the entry format, the search and the memory form.

    All methods belong to the thread of the log, but for `sync`.
    """

    # Bytes of one entry.
    entry_size: ClassVar[int]
    # Zeros at the end of the file are padding. (The transaction index is never preallocated.)
    may_be_padded: ClassVar[bool] = True
    # But a file of one entry, all zeros, is not: it is what somebody wrote.
    may_be_one_zero: ClassVar[bool] = False
    # The file exists after `write()` even if there is no entry, as in Kafka.
    has_empty_file: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        base_offset: int,
        max_bytes: int,
        files: Files = OS_FILES,
        *,
        sealed: bool = False,
        fresh: bool = False,
        maps: Maps = SHARED_MAPS,
    ) -> None:
        """`fresh`: a new segment's index; a file of that name, should there be one, is stale, and
        the first `write()` overwrites it."""
        if sealed and fresh:
            raise ValueError("a sealed index is not fresh")
        self.path = path
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self.files = files
        self.sealed = sealed
        # See maps.py.
        self._maps = maps
        self.mapped: memoryview | None = None
        self.was_used = False
        # Active and loaded: memory holds every entry. Sealed: memory is empty.
        self._loaded = fresh
        # The first entries in memory that the file holds too; ≤ the number in memory.
        self._in_file = 0
        # Bytes in the file, None if that is not known. Active only.
        self._file_size: int | None = None
        # Entries in the sealed file, None until it was mapped first: what is mapped is counted.
        self._sealed_count: int | None = None
        # Of a sealed index that was searched: see Column.
        self._ends: Ends | None = None
        # How often the file has changed since this object was made, and how many of these changes a
        # flush has synced; and whether the file's name may be new, too.
        self.changes = 0
        self.synced_changes = 0
        self.may_be_new = False
        self._forget()

    # What a subclass keeps in memory

    @abstractmethod
    def _in_memory(self) -> int:
        """The number of entries in memory."""

    @abstractmethod
    def _remember(self, data: bytes) -> None:
        """Takes the entries of a whole file into memory; CorruptIndex if they are out of order."""

    @abstractmethod
    def _keep(self, count: int) -> None:
        """Drops all but the first `count` entries from memory."""

    @abstractmethod
    def _encode(self, first: int) -> bytes:
        """The entries in memory from slot `first` on, as they stand in the file."""

    @abstractmethod
    def _below(self, offset: int) -> int:
        """How many of the entries in memory are about offsets below `offset`."""

    @abstractmethod
    def _forget(self) -> None:
        """Empties the memory, with what guards the fast path of append."""

    @abstractmethod
    def sanity_check(self) -> None:
        """Raises CorruptIndex if the index is obviously broken: a missing file (of a sealed
        index), an odd size, a first or last entry that cannot be. Cheap for a sealed index; an
        active one is loaded and checked in full."""

    @abstractmethod
    def verify(self) -> None:
        """Raises CorruptIndex unless every entry is sane and in order."""

    # Size

    @property
    def entry_count(self) -> int:
        if self.sealed:
            self._view()
            assert self._sealed_count is not None
            return self._sealed_count
        self._load()
        return self._in_memory()

    @property
    def size(self) -> int:
        """Bytes of all entries, pending ones too."""
        return self.entry_count * self.entry_size

    @property
    def is_full(self) -> bool:
        """No further entry fits into `max_bytes`: time to roll. (append itself does not look.)"""
        count = self._in_memory() if self._loaded else self.entry_count
        return count >= self.max_bytes // self.entry_size

    # Writing

    def write(self) -> None:
        """Puts the pending entries into the file. After an OSError the file's tail is unknown; the
        entries stay pending."""
        if not self._loaded:
            return
        count = self._in_memory()
        size = count * self.entry_size
        if count == self._in_file and self._file_size == size:
            return
        if count == 0 and not self.has_empty_file and not self.files.exists(self.path):
            return
        start = self._in_file * self.entry_size
        fd = self.files.open(self.path, READ_WRITE_CREATE)
        self.changes += 1
        self.may_be_new = self.may_be_new or self._file_size is None
        try:
            found = self.files.size_of(fd) if self._file_size is None else self._file_size
            self._file_size = None
            if found > start:
                self.files.truncate(fd, start)
            if size > start:
                self.files.write_all(fd, self._encode(self._in_file), start)
        finally:
            self.files.close(fd)
        self._in_file = count
        self._file_size = size

    def sync(self) -> None:
        """fsync of what was written. Touches nothing but the file, so it may run on any thread."""
        try:
            fd = self.files.open(self.path, READ_ONLY)
        except FileNotFoundError:
            if self.has_empty_file:
                raise
            return
        try:
            self.files.fsync(fd)
        finally:
            self.files.close(fd)

    def synced(self, changes: int, names: bool) -> None:
        """A flush has synced so many of the changes; with `names`, the folder as well."""
        self.synced_changes = max(self.synced_changes, changes)
        if names:
            self.may_be_new = False

    def may_be_unsynced(self) -> None:
        """What the file holds is perhaps not on disk, though nobody has changed it since this object was
        made: the next flush syncs it."""
        self.changes += 1

    def flush(self) -> None:
        self.write()
        self.sync()

    def seal(self) -> None:
        """The segment was rolled: everything into the file, padding off, memory free."""
        if self.sealed:
            return
        self._load()
        self.write()
        count = self._in_memory()
        self._loaded = False
        self._forget()
        self._in_file = 0
        self._file_size = None
        self._sealed_count = count
        self._ends = None
        self.sealed = True

    def unseal(self) -> None:
        """The segment takes appends again (the log was truncated back to it)."""
        if not self.sealed:
            return
        self._maps.drop(self)
        self.sealed = False
        self._sealed_count = self._ends = None

    def truncate_to(self, offset: int) -> None:
        """Drops the entries about `offset` and all after it, in memory and in the file. The
        index is active afterwards."""
        self.unseal()
        self._load()
        keep = self._below(offset)
        self._keep(keep)
        if self._in_file > keep:
            self._in_file = keep
            self._cut_file(keep * self.entry_size)

    def reset(self) -> None:
        """Drops all entries without looking at them, in memory and in the file: the way out of a
        corrupt index. The index is active and empty afterwards."""
        self.unseal()
        self._loaded = True
        self._forget()
        self._keep(0)
        self._in_file = 0
        self._cut_file(0)

    # The file

    def rename(self, path: str) -> None:
        """Renames the file, if there is one yet. The caller syncs the folder."""
        try:
            self.files.rename(self.path, path)
        except FileNotFoundError:
            pass
        self.path = path

    def delete(self) -> None:
        """Unmaps and removes the file. To remove it on another thread: `drop_map()` here, then
        unlink `path` there."""
        self.drop_map()
        try:
            self.files.unlink(self.path)
        except FileNotFoundError:
            pass

    @property
    def is_mapped(self) -> bool:
        return self.mapped is not None

    def drop_map(self) -> None:
        """Unmaps a sealed index; the next lookup maps it again."""
        self._maps.drop(self)

    def close(self) -> None:
        """Writes what is pending and unmaps."""
        self.write()
        self.drop_map()

    # Inside

    def _load(self) -> None:
        """Brings an active index's entries into memory."""
        if self._loaded:
            return
        try:
            data = self.files.read_file(self.path)
        except FileNotFoundError:
            data = b""
            self._file_size = None
        else:
            self._file_size = len(data)
        count = self._count(memoryview(data))
        self._remember(data[: count * self.entry_size])
        self._in_file = count
        self._loaded = True

    def _view(self) -> memoryview:
        """The sealed file's bytes; `_sealed_count` is known afterwards."""
        view = self.mapped
        if view is not None:
            self.was_used = True
            return view
        try:
            view = self._maps.view(self)
        except FileNotFoundError:
            raise CorruptIndex(self.path, "the file is missing") from None
        try:
            self._check_count(view)
        except CorruptIndex:
            self._maps.drop(self)
            raise
        return view

    def _check_count(self, view: memoryview) -> None:
        if self._sealed_count is None:
            self._sealed_count = self._count(view)
        elif len(view) < self._sealed_count * self.entry_size:
            raise CorruptIndex(self.path, f"the file has only {len(view)} bytes left")

    def _content(self) -> bytes:
        """All entries as bytes, for tools and checks."""
        if self.sealed:
            view = self._view()
            assert self._sealed_count is not None
            return bytes(view[: self._sealed_count * self.entry_size])
        self._load()
        return self._encode(0)

    def _count(self, view: memoryview) -> int:
        """The number of entries in a file's bytes, without padding."""
        size = len(view)
        entry_size = self.entry_size
        if size % entry_size:
            raise CorruptIndex(self.path, f"{size} bytes are no whole number of entries")
        if self.may_be_padded and not (self.may_be_one_zero and size == entry_size):
            while size and not any(view[size - entry_size : size]):
                # Backwards in large steps; an entry may itself end in zeros, hence the rounding up.
                start = max(0, size - _STEP)
                used = len(bytes(view[start:size]).rstrip(b"\0"))
                size = start + used
                size += -size % entry_size
        return size // entry_size

    def _cut_file(self, size: int) -> None:
        self._file_size = None
        try:
            fd = self.files.open(self.path, READ_WRITE)
        except FileNotFoundError:
            return
        self.changes += 1
        try:
            self.files.truncate(fd, size)
        finally:
            self.files.close(fd)
        self._file_size = size
