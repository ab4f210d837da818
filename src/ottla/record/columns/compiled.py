"""Decoding by the compiled kernel: batches are gathered into groups, each read in one call.

A group is a run of batches whose contents lie in one array: the buffer itself, if they are not
compressed, or a scratch array into which they are decompressed. The columns' buffers are sized by
the bytes of the group and grow when a guess was too small; none is sized by what a record claims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ottla.record.batch import HEADER_SIZE, MAGIC, contents, one_header, parse_records
from ottla.record.codecs import Codec, decompress, decompress_frames, frame_bound
from ottla.record.columns.buffers import ColumnBuffers
from ottla.record.columns.cursor import Cursor, Decoded
from ottla.record.columns.walking import SMALLEST_RECORD, Found, found_at
from ottla.record.errors import InvalidBatch, InvalidRecord

SCRATCH_SIZE = 4 * 1024 * 1024

# Of batches that are not compressed. One kernel checks them, the next one reads the same bytes again:
# the processor's cache still has them.
_GROUP_SIZE = 512 * 1024
_BATCHES_IN_GROUP = 4096

# Scratch arrays that nobody uses at the moment; taking and giving back is atomic.
_free_scratch: deque[np.ndarray[Any, Any]] = deque(maxlen=4)


class _Group(NamedTuple):
    contents: np.ndarray[Any, Any]
    plan: np.ndarray[Any, Any]
    rows: int  # at most
    size: int  # bytes of the contents
    behind: int = 0  # bytes of the buffer after these, of which as much will be made

    def start(self, batch: int) -> int:
        """Where a batch of the group starts in the buffer."""
        return int(self.plan[batch, 0])


def decode_compiled(cursor: Cursor, kernels: ModuleType) -> Iterator[Decoded]:
    """The rows of the cursor's next batches, up to the next message of an older format."""
    scratch = _free_scratch.pop() if _free_scratch else np.empty(SCRATCH_SIZE, np.uint8)
    try:
        yield from _results(_Groups(cursor, kernels, scratch), cursor, kernels)
    finally:
        _free_scratch.append(scratch)


def _results(groups: _Groups, cursor: Cursor, kernels: ModuleType) -> Iterator[Decoded]:
    headers = _readable(cursor.view)
    group: _Group | None = None
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    while True:
        columns = ColumnBuffers(cursor.layout, kernels, cursor.max_rows)
        _begin_result(state, cursor, kernels)
        status = kernels.DONE
        while True:
            if group is None:
                group = groups.next()
                if group is None:
                    break
                state[kernels.BATCH] = 0
                state[kernels.POSITION] = -1
                rows_behind = group.rows * group.behind // max(group.size, 1)
                columns.reserve(
                    int(state[kernels.ROW]) + group.rows,
                    group.size,
                    state,
                    min(rows_behind, group.behind // SMALLEST_RECORD),
                    group.behind,
                )
            status = kernels.decode_records(
                headers, group.contents, group.plan, state, *columns.arguments()
            )
            if status == kernels.DONE:
                cursor.finish()
                group = None
            elif status in (kernels.LIMIT, kernels.END, kernels.INVALID):
                break
            else:
                columns.grow(status, state)
        rows = int(state[kernels.ROW])
        if group is not None and status == kernels.LIMIT:
            found = found_at(cursor.view, group.start(int(state[kernels.BATCH])))
            yield Decoded(
                columns.record_batch(rows, state), int(state[kernels.NEXT_OFFSET]), found.start
            )
            continue
        if group is not None:
            at = int(state[kernels.BATCH])
            found = found_at(cursor.view, group.start(at))
            if status == kernels.END:
                cursor.stop(found, cursor.end_offset)
            else:
                rows = int(state[kernels.BATCH_ROW])
                before = 0
                if at:
                    before = found_at(cursor.view, group.start(at - 1)).last_offset + 1
                cursor.fail(_reason(found, cursor), found, before)
        if rows:
            cursor.end()
            yield Decoded(columns.record_batch(rows, state), cursor.next_offset, cursor.consumed)
        return


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


def _reason(found: Found, cursor: Cursor) -> InvalidBatch:
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


class _Groups:
    """The cursor's batches in groups, as long as they are of today's format."""

    def __init__(self, cursor: Cursor, kernels: ModuleType, scratch: np.ndarray[Any, Any]) -> None:
        self._cursor = cursor
        self._kernels = kernels
        self._scratch = scratch
        self._whole = _readable(cursor.view)
        self._plan = np.empty((_BATCHES_IN_GROUP, 3), np.int64)
        self._state = np.zeros(kernels.WALK_STATE_SIZE, np.int64)

    def next(self) -> _Group | None:
        plain = self._plain()
        if plain is not None:
            return plain
        found = self._cursor.peek()
        if found is None or found.magic != MAGIC:
            return None
        if found.codec != Codec.NONE:
            return self._compressed()
        self._cursor.take()
        self._plan[0] = found.start, found.start + HEADER_SIZE, found.end
        return self._uncompressed(1, _plausible_rows(found, found.end - found.start - HEADER_SIZE))

    def _plain(self) -> _Group | None:
        """Batches that are nothing special, checked and planned by the kernel; None if none is next."""
        cursor, kernels, state = self._cursor, self._kernels, self._state
        walk = cursor.walk
        if walk is None:
            return None
        state[kernels.WALK_POSITION] = walk.position
        state[kernels.WALK_LIMIT] = walk.position + min(cursor.max_bytes, _GROUP_SIZE)
        state[kernels.WALK_START_OFFSET] = cursor.start_offset
        state[kernels.WALK_END_OFFSET] = cursor.end_offset
        state[kernels.WALK_MAX_RECORDS] = cursor.max_rows
        state[kernels.WALK_SPECIAL] = walk.special
        state[kernels.WALK_CHECKS] = walk.check_crc
        count = int(kernels.walk_plain(self._whole, state, self._plan))
        if not count:
            return None
        walk.position = int(state[kernels.WALK_POSITION])
        cursor.took(int(self._plan[count - 1, 0]))
        return self._uncompressed(count, int(state[kernels.WALK_RECORDS]))

    def _uncompressed(self, count: int, rows: int) -> _Group:
        """The first batches of the plan; they lie one behind the other."""
        plan = self._plan[:count]
        taken_to = self._cursor.taken_to
        size = taken_to - int(plan[0, 0]) - HEADER_SIZE * count
        return _Group(self._whole, plan, rows, size, len(self._whole) - taken_to)

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

    def _unpack(self, found: Found, at: int) -> int | bytes | None:
        """Decompress a batch into the scratch array from `at` on.

        Gives the number of bytes; None if there is too little room behind `at`; the bytes themselves
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


def _is_compressed(found: Found) -> bool:
    return found.magic == MAGIC and found.codec != Codec.NONE


def _plausible_rows(found: Found, size: int) -> int:
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
