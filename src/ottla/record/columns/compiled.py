"""Decoding by the compiled kernels.

Batches that are nothing special, neither compressed nor cut by a bound, are checked and read in one call
for as many of them as there are. The others are gathered into groups, each read in one call: a group is
a run of batches whose contents lie in one array, the buffer itself, or a scratch array into which they
are decompressed. The columns' buffers are sized by the bytes that are there and grow when a guess was
too small; none is sized by what a record claims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ottla.record.batch import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    SMALLEST_RECORD,
    contents,
    one_header,
    parse_records,
)
from ottla.record.columns.buffers import ColumnBuffers
from ottla.record.columns.cursor import Cursor, Decoded
from ottla.record.columns.walking import FoundBatch, found_at
from ottla.record.compression.codecs import Codec, decompress, decompress_frames, frame_bound
from ottla.record.errors import InvalidBatch, InvalidRecord

SCRATCH_SIZE = 4 * 1024 * 1024

_BATCHES_PLANNED = 512  # at a time
# A guess at what is to come is made larger by this part of it: growing costs a copy.
_TO_SPARE = 16

# Scratch arrays that nobody uses at the moment; taking and giving back is atomic.
_free_scratch: deque[np.ndarray[Any, Any]] = deque(maxlen=4)


class _Group(NamedTuple):
    contents: np.ndarray[Any, Any]
    plan: np.ndarray[Any, Any]
    rows: int  # at most
    size: int  # bytes of the contents


class CompiledReader:
    """The rows of the cursor's next batches, up to the next message of an older format.

    `results` gives them. Before that, while the buffer is still being filled, `advance` may be called
    with the number of bytes that are there: what can be read of them already need not be read later,
    when the processor's caches have forgotten it.
    """

    def __init__(self, cursor: Cursor, kernels: ModuleType) -> None:
        self._cursor = cursor
        self.kernels = kernels
        self._whole = _readable(cursor.view)
        self._plan = np.empty((_BATCHES_PLANNED, 3), np.int64)
        self._walk = np.zeros(kernels.WALK_STATE_SIZE, np.int64)
        self._walk[kernels.WALK_START_OFFSET] = cursor.start_offset
        self._walk[kernels.WALK_END_OFFSET] = cursor.end_offset
        self._walk[kernels.WALK_MAX_RECORDS] = cursor.max_rows
        self._walk[kernels.WALK_SPECIAL] = cursor.special
        self._walk[kernels.WALK_CHECKS] = cursor.check_crc
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._group: _Group | None = None  # that is being read; None: plain batches are, or were
        self._stopped_by: int = kernels.DONE  # what `advance` came upon, which `results` deals with
        self._begin_result()

    def advance(self, size: int) -> None:
        """Read the plain batches among the first `size` bytes; the others are not there yet."""
        if self._stopped_by == self.kernels.DONE:
            self._stopped_by = self._read_plain(self._whole[:size])

    def receive(self, descriptor: int, size: int, most: int) -> int:
        """Receive up to `most` bytes after the first `size` ones, and read them as `advance` does.

        The socket must not block. Gives the number of bytes that came: 0 if none did, or a batch is
        next that is not for this way of reading.
        """
        if self._stopped_by != self.kernels.DONE or not self.kernels.CAN_RECEIVE:
            return 0
        self._walk[self.kernels.WALK_ARRIVED] = size
        self._walk[self.kernels.WALK_UNTIL] = min(size + most, len(self._whole))
        self._stopped_by = self._read_plain(self._whole[:size], descriptor)
        return int(self._walk[self.kernels.WALK_ARRIVED]) - size

    def results(self) -> Iterator[Decoded]:
        """All rows that are left, when the buffer is filled."""
        special = _SpecialGroups(self._cursor, self._whole)
        try:
            yield from self._results(special)
        finally:
            special.close()

    def _results(self, special: _SpecialGroups) -> Iterator[Decoded]:
        cursor, kernels, state = self._cursor, self.kernels, self._state
        while True:
            status, self._stopped_by = self._stopped_by, kernels.DONE
            if status == kernels.DONE:
                status = self._read(special)
            rows = int(state[kernels.ROW])
            if status == kernels.LIMIT:
                found = self._batch(int(state[kernels.BATCH]))
                next_offset = int(state[kernels.NEXT_OFFSET])
                yield Decoded(self._record_batch(rows), next_offset, found.start)
                continue
            if status == kernels.END:
                cursor.stop(self._batch(int(state[kernels.BATCH])), cursor.end_offset)
            elif status == kernels.INVALID:
                at = int(state[kernels.BATCH])
                rows = int(state[kernels.BATCH_ROW])
                before = self._batch(at - 1).last_offset + 1 if at else 0
                found = self._batch(at)
                cursor.fail(_reason(found, cursor), found, before)
            if rows:
                cursor.end()
                yield Decoded(self._record_batch(rows), cursor.next_offset, cursor.consumed)
            return

    def _read(self, special: _SpecialGroups) -> int:
        """Fill the columns; DONE at the end, else why they are not filled any further."""
        kernels, state = self.kernels, self._state
        if self._group is not None:
            self._reserve_for_group(self._group)
        while True:
            group = self._group
            if group is None:
                status = self._read_plain(self._whole)
                if status != kernels.DONE:
                    return status
                self._group = group = special.next()
                if group is None:
                    return status
                state[kernels.BATCH] = 0
                state[kernels.POSITION] = -1
                self._reserve_for_group(group)
            status = int(
                kernels.decode_records(
                    self._whole, group.contents, group.plan, state, *self._columns.arguments()
                )
            )
            if status == kernels.DONE:
                self._cursor.finish()
                self._group = None
            elif status in (kernels.LIMIT, kernels.END, kernels.INVALID):
                return status
            else:
                self._columns.grow(status, state)

    def _read_plain(self, data: np.ndarray[Any, Any], descriptor: int = -1) -> int:
        """Read batches that are nothing special, as many as are next and whole.

        With a socket's descriptor what comes from there meanwhile is read, too.
        """
        cursor, kernels, walk = self._cursor, self.kernels, self._walk
        path = cursor.walk
        if path is None:
            return int(kernels.DONE)
        walk[kernels.WALK_POSITION] = path.position
        walk[kernels.WALK_READ] = -1
        if not self._state[kernels.ROW]:
            self._reserve_for_rest(len(data), path.position)
        while True:
            arguments = (walk, self._plan, self._state, *self._columns.arguments())
            if descriptor < 0:
                status = int(kernels.decode_plain(data, *arguments))
            else:
                status = int(kernels.receive_plain(descriptor, self._whole, *arguments))
            if status in (kernels.DONE, kernels.LIMIT, kernels.END, kernels.INVALID):
                break
            self._columns.grow(status, self._state)
        path.position = int(walk[kernels.WALK_POSITION])
        if walk[kernels.WALK_READ] >= 0:
            cursor.took(int(walk[kernels.WALK_READ]))
            cursor.finish()
        if walk[kernels.WALK_PLANNED]:
            cursor.took(int(self._plan[walk[kernels.WALK_PLANNED] - 1, 0]))
        return status

    def _reserve_for_rest(self, size: int, position: int) -> None:
        """Make room for all that is still to be read, if it is like the batch that is next."""
        if self._walk[self.kernels.WALK_PLANNED]:
            position = self._batch(int(self._state[self.kernels.BATCH])).start
        if size - position < HEADER_SIZE:
            return
        cursor = self._cursor
        found = found_at(cursor.view, position)
        if found.codec != Codec.NONE or cursor.view[position + MAGIC_AT] != MAGIC:
            return  # it will unfold to nobody knows what
        left = len(self._whole) - position
        length = max(found.end - found.start, HEADER_SIZE)
        rows = _plausible_rows(found, length - HEADER_SIZE) * left // length
        if rows > cursor.max_rows:
            left = max(left * cursor.max_rows // rows, min(left, length))
        self._reserve(min(rows + rows // _TO_SPARE + 1, left // SMALLEST_RECORD + 1), left)

    def _reserve_for_group(self, group: _Group) -> None:
        """Make room for what is left of a group, and for what follows as if it unfolded likewise."""
        came_in = max(self._cursor.read_to - int(group.plan[0, 0]), 1)  # bytes
        after = len(self._whole) - self._cursor.read_to
        part = 1 - int(self._state[self.kernels.BATCH]) / len(group.plan)
        again = (after + after // _TO_SPARE) / (came_in * part)
        self._reserve(int(group.rows * part) + 1, int(group.size * part) + 1, again)

    def _reserve(self, rows: int, size: int, again: float = 0.0) -> None:
        """Room for so many more rows and bytes, and `again` so many times as many if room is made."""
        state = self._state
        wanted = int(state[self.kernels.ROW]) + rows
        self._columns.reserve(wanted, size, state, int(rows * again), int(size * again))

    def _batch(self, number: int) -> FoundBatch:
        """A batch of those that are being read."""
        plan = self._plan if self._group is None else self._group.plan
        return found_at(self._cursor.view, int(plan[number, 0]))

    def _record_batch(self, rows: int) -> pa.RecordBatch:
        """The first rows, which are forgotten here."""
        batch = self._columns.record_batch(rows, self._state)
        self._begin_result()
        return batch

    def _begin_result(self) -> None:
        """Empty columns, whose rows and bytes count from zero; the place among the batches is kept."""
        self._columns = ColumnBuffers(self._cursor.layout, self.kernels, self._cursor.max_rows)
        _begin_result(self._state, self._cursor, self.kernels)


def _begin_result(state: np.ndarray[Any, Any], cursor: Cursor, kernels: ModuleType) -> None:
    """Set what bounds a result, and count its rows and bytes from zero; the place is kept."""
    place = state[kernels.BATCH : kernels.PREVIOUS_DELTA + 1].copy()
    state[:] = 0
    state[kernels.BATCH : kernels.PREVIOUS_DELTA + 1] = place
    state[kernels.START_OFFSET] = cursor.start_offset
    state[kernels.END_OFFSET] = cursor.end_offset
    state[kernels.MAX_ROWS] = cursor.max_rows
    state[kernels.MAX_BYTES] = cursor.max_bytes
    state[kernels.SCALE] = cursor.layout.timestamp_scale
    state[kernels.WANT_KEY] = "key" in cursor.layout.columns
    state[kernels.WANT_VALUE] = "value" in cursor.layout.columns
    state[kernels.WANT_HEADERS] = "headers" in cursor.layout.columns


def _reason(found: FoundBatch, cursor: Cursor) -> InvalidBatch:
    """What is wrong with a batch that the kernel refused, in the words of the plain reader."""
    batch = cursor.view[found.start : found.end]
    try:
        header = one_header(batch)
        for record in parse_records(contents(batch, header, cursor.decompressed_limit), header):
            if not -(2**63) <= record.timestamp < 2**63:
                return InvalidRecord(
                    f"the timestamp of offset {record.offset} has more than 64 bits"
                )
    except InvalidBatch as error:
        return error
    return InvalidRecord("its records break the format")


class _SpecialGroups:
    """The cursor's batches in groups, as long as they are of today's format and not plain."""

    def __init__(self, cursor: Cursor, whole: np.ndarray[Any, Any]) -> None:
        self._cursor = cursor
        self._whole = whole
        self._in_use: np.ndarray[Any, Any] | None = None

    @property
    def _scratch(self) -> np.ndarray[Any, Any]:
        if self._in_use is None:
            self._in_use = (
                _free_scratch.pop() if _free_scratch else np.empty(SCRATCH_SIZE, np.uint8)
            )
        return self._in_use

    def close(self) -> None:
        if self._in_use is not None:
            _free_scratch.append(self._in_use)
            self._in_use = None

    def next(self) -> _Group | None:
        found = self._cursor.peek()
        if found is None or found.magic != MAGIC:
            return None
        if found.codec != Codec.NONE:
            return self._compressed()
        self._cursor.take()
        size = found.end - found.start - HEADER_SIZE
        places = [found.start, found.start + HEADER_SIZE, found.end]
        return _group(self._whole, places, _plausible_rows(found, size), size)

    def _compressed(self) -> _Group | None:
        """A run of compressed batches that fit into the scratch array together, or a large one."""
        cursor = self._cursor
        places: list[int] = []
        rows = 0
        size = 0
        while (found := cursor.peek()) is not None and _is_compressed(found):
            try:
                unpacked = self._unpack(found, size)
            except InvalidBatch as error:
                if not places:
                    cursor.fail(error, found, 0)
                    return None
                break  # met again, and reported, when these have been read
            if unpacked is None:
                break
            cursor.take()
            if isinstance(unpacked, bytes):
                places = [found.start, 0, len(unpacked)]
                rows = _plausible_rows(found, len(unpacked))
                whole = _readable(memoryview(unpacked))
                return _group(whole, places, rows, len(unpacked))
            places += (found.start, size, size + unpacked)
            rows += _plausible_rows(found, unpacked)
            size += unpacked
        return _group(self._scratch[:size], places, rows, size)

    def _unpack(self, found: FoundBatch, at: int) -> int | bytes | None:
        """Decompress a batch into the scratch array from `at` on.

        Gives the number of bytes; None if there is too little room after `at`; the bytes themselves
        if even an empty scratch array may be too small.
        """
        cursor = self._cursor
        packed = cursor.view[found.start + HEADER_SIZE : found.end]
        if not packed and found.claimed_count == 0:
            return 0  # emptied by compaction
        room = SCRATCH_SIZE - at
        bound = frame_bound(found.codec, packed)
        if bound is not None and bound <= min(room, cursor.decompressed_limit):
            return decompress_frames(found.codec, packed, self._scratch.data[at:])
        if bound is not None and at:
            return None
        unpacked = decompress(found.codec, packed, cursor.decompressed_limit)
        if len(unpacked) > SCRATCH_SIZE and not at:
            return unpacked
        if len(unpacked) > room:
            return None
        self._scratch[at : at + len(unpacked)] = np.frombuffer(unpacked, np.uint8)
        return len(unpacked)


def _is_compressed(found: FoundBatch) -> bool:
    return found.magic == MAGIC and found.codec != Codec.NONE


def _plausible_rows(found: FoundBatch, size: int) -> int:
    return max(0, min(found.claimed_count, size // SMALLEST_RECORD))


def _group(source: np.ndarray[Any, Any], places: list[int], rows: int, size: int) -> _Group:
    return _Group(_protected(source), np.array(places, np.int64).reshape(-1, 3), rows, size)


def _protected(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.view()
    array.flags.writeable = False
    return array


def _readable(view: memoryview) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.frombuffer(view, np.uint8)
    array.flags.writeable = False
    return array
