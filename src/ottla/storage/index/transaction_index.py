"""The transaction index of a segment: the aborted transactions whose end is in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.entries import NOT_IN_MEMORY, Index

_ENTRY = Struct(">hqqqq")
_LAST_OFFSET = Struct(">q")
_LAST_OFFSET_AT = 18
_VERSION = 0
# Entries of which a search sees the extremes first, and skips them if it can.
BLOCK = 256
# With more entries than this that were never looked at, a first search takes its time.
LONG_WALK = 2000


class _Block(NamedTuple):
    """Of BLOCK entries in a row."""

    least_first_offset: int
    most_last_stable_offset: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    # Of its first batch in this log; perhaps in an earlier segment.
    first_offset: int
    # Of the abort marker.
    last_offset: int
    # The log's last stable offset right after the marker: no transaction that was still open then
    # begins before it. So a reader who stops before it needs no entry after this one.
    last_stable_offset: int


class TransactionIndex(Index):
    """One entry for each aborted transaction, in the order of their markers.

    File `<base offset>.txnindex`: entries of 34 bytes, big-endian and signed,

        int16  version, 0
        int64  producer id
        int64  first offset, absolute
        int64  last offset, that of the marker; strictly increasing
        int64  last stable offset

    There is no file as long as there is no entry; it is never preallocated, so zeros in it are
    damage. Crash policy as in `index.py`: rebuilt, with the producer state, by reading the log
    (`replay.rebuild_transaction_index`).
    """

    entry_size = _ENTRY.size
    may_be_padded = False
    has_empty_file = False

    # In memory: the entries as they stand in the file. Aborts are few.
    _packed: bytearray
    # Of the marker last added; -1 if there is none.
    _last_marker: int
    # Of the first entries, block by block, as far as they were looked at.
    _blocks: list[_Block]
    # Another one after each change that is no append.
    _era: object
    # What a thread has found out: in which era, the blocks, and the number of entries.
    _walked: tuple[object, list[_Block], int] | None = None

    @property
    def is_full(self) -> bool:
        """Never: it has no size limit, in Kafka neither."""
        return False

    def append(
        self, producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int
    ) -> None:
        """Adds an aborted transaction (in memory only, until `write`); ValueError unless its marker
        comes after that of the last one."""
        if last_offset <= self._last_marker:
            self._ready_for(last_offset)
        self._packed += _ENTRY.pack(
            _VERSION, producer_id, first_offset, last_offset, last_stable_offset
        )
        self._last_marker = last_offset
        if len(self._packed) % (BLOCK * _ENTRY.size) == 0:
            # Now, so that no search has to look at very many.
            _summarize(self._packed, len(self._packed) // _ENTRY.size, self._blocks)

    def _ready_for(self, last_offset: int) -> None:
        if self.sealed:
            raise ValueError(f"{self.path} is sealed")
        self._load()
        if last_offset <= self._last_marker:
            raise ValueError(
                f"{last_offset} does not come after {self._last_marker} in {self.path}"
            )

    def replace(self, entries: Iterable[AbortedTransaction]) -> None:
        """Puts other entries in the place of what is in the file, which may be corrupt: at once and
        synced, so that a crash leaves the one or the other."""
        data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)
        sealed = self.sealed
        self.unseal()
        if data:
            self.files.replace_file(self.path, data)
        else:
            self.delete()
        self._loaded = False
        self._in_file = 0
        self._file_size = None
        self._forget()
        self.sealed = sealed

    @property
    def last_entry(self) -> AbortedTransaction | None:
        data, count = self._searchable()
        return self._entry(data, count - 1) if count else None

    def aborted_between(
        self, from_offset: int, upper_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those that overlap [from_offset, upper_offset), and whether they are complete: if not,
        the next segment's index may have more."""
        data, count = self._searchable()
        unpack = _LAST_OFFSET.unpack_from
        start = bisect_left(
            range(count), from_offset, key=lambda slot: unpack(data, slot * 34 + _LAST_OFFSET_AT)[0]
        )
        found = []
        blocks = self._summarized(data, count)
        slot = start
        while slot < count:
            if slot % BLOCK == 0 and slot // BLOCK < len(blocks):
                block = blocks[slot // BLOCK]
                if (
                    block.least_first_offset >= upper_offset
                    and block.most_last_stable_offset < upper_offset
                ):
                    # While one transaction is open for long, any number of others end.
                    slot += BLOCK
                    continue
            entry = self._entry(data, slot)
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
            slot += 1
        return found, False

    def long_walk(self) -> Callable[[int], object] | None:
        """What spares the next search a look at very many entries; it may run on any thread."""
        self._take_over()
        if not self.sealed:
            return None
        if self._sealed_count is not None:
            left = self._sealed_count - len(self._blocks) * BLOCK
        else:
            try:
                left = self.files.size(self.path) // _ENTRY.size
            except FileNotFoundError:
                return None
        return partial(self._walk, self._era) if left > LONG_WALK else None

    def _walk(self, era: object, _size: int) -> None:
        """Look at all entries of a sealed file. What is found out counts only if the entries are still
        the same when a search comes by."""
        try:
            data = self.files.read_file(self.path)
            self._check(data)
        except (CorruptIndex, OSError):
            return  # the search will find out, and do something about it
        count = len(data) // _ENTRY.size
        self._walked = (era, _summarize(data, count, []), count)

    def _take_over(self) -> None:
        """Takes over the blocks that a thread has made, if the index is still the same."""
        if self._walked is None:
            return
        era, blocks, count = self._walked
        self._walked = None
        if era is self._era and self.sealed:
            self._blocks = blocks
            self._sealed_count = count

    def _summarized(self, data: bytes | bytearray | memoryview, count: int) -> list[_Block]:
        if count - len(self._blocks) * BLOCK >= BLOCK:
            _summarize(data, count, self._blocks)
        return self._blocks

    def seal(self) -> None:
        blocks = self._blocks
        super().seal()
        self._blocks = blocks

    def unseal(self) -> None:
        super().unseal()
        self._blocks = []
        self._era = object()

    def entries(self) -> Iterator[AbortedTransaction]:
        data = self._content()
        for slot in range(len(data) // 34):
            yield self._entry(data, slot)

    def sanity_check(self) -> None:
        # Few entries: all are checked.
        self.verify()

    def verify(self) -> None:
        self._check(self._content())

    def _check(self, data: bytes) -> None:
        previous = -1
        for slot in range(len(data) // 34):
            entry = self._entry(data, slot)
            if entry.last_offset <= previous or entry.last_offset < self.base_offset:
                raise CorruptIndex(
                    self.path, f"entry {slot} ends at {entry.last_offset}, after {previous}"
                )
            previous = entry.last_offset

    def _entry(self, data: bytes | bytearray | memoryview, slot: int) -> AbortedTransaction:
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, slot * 34)
        if version != _VERSION:
            raise CorruptIndex(self.path, f"entry {slot} has version {version}")
        # The marker comes after the first batch. (The stable offset may lie on either side of it.)
        if producer_id < 0 or not 0 <= first < last or stable < 0:
            raise CorruptIndex(
                self.path, f"entry {slot} is ({producer_id}, {first}, {last}, {stable})"
            )
        return AbortedTransaction(producer_id, first, last, stable)

    def _searchable(self) -> tuple[bytearray | memoryview, int]:
        if self.sealed:
            if self._sealed_count is None:
                self._check_once()
            if self._sealed_count == 0:
                return bytearray(), 0
            view = self._view()
            return view, self._sealed_count or 0
        self._load()
        return self._packed, len(self._packed) // 34

    def _check_once(self) -> None:
        """CorruptIndex unless the entries are in the order that a search relies on."""
        try:
            self.verify()
        except CorruptIndex:
            self.drop_map()
            self._sealed_count = None
            raise

    def _view(self) -> memoryview:
        try:
            return super()._view()
        except CorruptIndex:
            # No file, no aborted transaction. Remembered, so that readers do not ask the disk
            # again.
            if self._sealed_count or self.files.exists(self.path):
                raise
            self._sealed_count = 0
            return memoryview(b"")

    def _in_memory(self) -> int:
        return len(self._packed) // 34

    def _remember(self, data: bytes) -> None:
        self._check(data)
        self._packed = bytearray(data)
        self._blocks = _summarize(data, len(data) // _ENTRY.size, [])
        self._last_marker = self._last_marker_in_memory()

    def _keep(self, count: int) -> None:
        del self._packed[count * 34 :]
        del self._blocks[count // BLOCK :]
        self._last_marker = self._last_marker_in_memory()

    def _last_marker_in_memory(self) -> int:
        if not self._packed:
            return -1
        marker: int = _LAST_OFFSET.unpack_from(
            self._packed, len(self._packed) - 34 + _LAST_OFFSET_AT
        )[0]
        return marker

    def _encode(self, first: int) -> bytes:
        return bytes(self._packed[first * 34 :])

    def _below(self, offset: int) -> int:
        unpack = _LAST_OFFSET.unpack_from
        packed = self._packed
        return bisect_left(
            range(self._in_memory()),
            offset,
            key=lambda slot: unpack(packed, slot * 34 + _LAST_OFFSET_AT)[0],
        )

    def _forget(self) -> None:
        self._packed = bytearray()
        self._blocks = []
        self._era = object()
        self._last_marker = -1 if self._loaded else NOT_IN_MEMORY


def _summarize(
    data: bytes | bytearray | memoryview, count: int, blocks: list[_Block]
) -> list[_Block]:
    """Add the blocks that are missing."""
    view = memoryview(data)
    while (len(blocks) + 1) * BLOCK <= count:
        at = len(blocks) * BLOCK * _ENTRY.size
        entries = list(_ENTRY.iter_unpack(view[at : at + BLOCK * _ENTRY.size]))
        blocks.append(
            _Block(min([entry[2] for entry in entries]), max([entry[4] for entry in entries]))
        )
    return blocks
