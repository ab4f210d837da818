"""The transaction index of a segment: the aborted transactions whose end is in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from ottla.storage.errors import CorruptIndex
from ottla.storage.index.entries import NOT_IN_MEMORY, Index

_ENTRY = Struct(">hqqqq")
_LAST_OFFSET = Struct(">q")
_LAST_OFFSET_AT = 18
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    # Of its first batch in this log; perhaps in an earlier segment.
    first_offset: int
    # Of the abort marker.
    last_offset: int
    # The log's last stable offset right after the marker: no transaction that was still open then
    # begins before it. So a reader who stops before it needs no entry behind this one.
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
        for slot in range(start, count):
            entry = self._entry(data, slot)
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
        return found, False

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
        """A search trusts the order of the entries."""
        try:
            self.verify()
        except CorruptIndex:
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
        self._last_marker = self._last_marker_in_memory()

    def _keep(self, count: int) -> None:
        del self._packed[count * 34 :]
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
        self._last_marker = -1 if self._loaded else NOT_IN_MEMORY
