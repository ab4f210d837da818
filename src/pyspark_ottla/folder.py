"""Reading folders of logs, with no broker: Ottla's and Apache Kafka's data folders, or one log of them.

A data folder has a folder `<topic>-<partition>` for each log, and in it segments, files
`<base offset>.log` of record batches one after the other. The plan walks along all batches' headers
once (their contents stay unread) and so knows what brokers keep in other files: the end, which
transactions were aborted, where those that are still open begin, and a place in a file for every few
MiB to begin reading at. Checksums are checked where records are read.

A batch that is cut off at the end of the last segment is what a crash (or a broker at work) leaves:
the log ends before it. Anything else that is wrong is an error that names the file and the offset.
Offsets before the one in `log-start-offset-checkpoint` have been deleted, if the files have them or not.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlparse

import pyarrow as pa

from ottla.client.positions import TopicPartition
from ottla.logfiles.checkpoint import InvalidCheckpoint
from ottla.logfiles.deletions import may_be_mark, take_mark
from ottla.logfiles.folders import log_starts, segments_in
from ottla.logfiles.names import SWAP_SUFFIX, parse_folder_name
from ottla.logfiles.visible import without
from ottla.record.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
    records,
)
from ottla.record.columns import reach
from ottla.record.control import ABORT, COMMIT, control_type
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetRange, OffsetSet
from pyspark_ottla.errors import DamagedLog, OptionError
from pyspark_ottla.options import SourceOptions
from pyspark_ottla.ranges import HeldOffsets, Range, divided, for_each, lost, ranges_between
from pyspark_ottla.rows import MAX_BYTES, MAX_ROWS, SparkRows

logger = logging.getLogger(__name__)

_MARK_EVERY: Final = 4 * 1024 * 1024  # bytes
_SMALLEST_LENGTH: Final = HEADER_SIZE - LENGTH_OVERHEAD
_SMALLEST_OLDER: Final = 14  # bytes after the size of a message with neither key nor value
_TORN: Final = -1
_READ_AT_ONCE: Final = 4 * 1024 * 1024  # bytes
# Where batches are smaller than this, the plan reads many at once for their headers.
_LARGE_BATCH: Final = 4096
_MANY_BATCHES: Final = 64 * 1024  # bytes
_PLACE: Final = struct.Struct(">qi")  # base offset and length
# Base offset, length, magic, attributes, last offset delta.
# What a batch may unfold to: the same limit as for one request from a client.
DECOMPRESSED_LIMIT: Final = 1 << 30
_NOT_PLAIN: Final = TRANSACTIONAL_BIT | CONTROL_BIT
_FIELDS: Final = struct.Struct(">qi4xb4xhi")


class Aborted(NamedTuple):
    """A transaction whose records are not to be seen."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Stretch(NamedTuple):
    """Bytes of a segment, from a batch's first to the end of another; `first_offset` is there."""

    path: str
    start: int
    end: int
    first_offset: int


class Piece(NamedTuple):
    """What one of Spark's partitions reads."""

    offsets: Range
    stretches: tuple[Stretch, ...]
    aborted: tuple[Aborted, ...]
    deleted: tuple[OffsetRange, ...] = ()  # one by one, in the order of offsets


@dataclass
class _Log:
    """What the headers of a log's batches say."""

    first: int
    end: int
    stretches: list[Stretch] = field(default_factory=list)  # in the order of their offsets
    aborted: list[Aborted] = field(default_factory=list)
    open: dict[int, int] = field(
        default_factory=dict
    )  # producer id -> its transaction's first offset
    deleted: OffsetSet = field(default_factory=OffsetSet)

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.end)

    def piece(self, wanted: Range, committed_only: bool) -> Piece:
        needed = []
        for number, stretch in enumerate(self.stretches):
            following = self.stretches[number + 1 : number + 2]
            after = following[0].first_offset if following else self.end
            if stretch.first_offset < wanted.end and after > wanted.start:
                needed.append(stretch)
        aborted = [
            each
            for each in self.aborted
            if each.first_offset < wanted.end and each.marker_offset >= wanted.start
        ]
        return Piece(
            wanted,
            tuple(_joined(needed)),
            tuple(aborted) if committed_only else (),
            tuple(self.deleted.between(wanted.start, wanted.end)),
        )


def _joined(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """The stretches, with those that follow each other in a file joined."""
    last: Stretch | None = None
    for each in stretches:
        if last is not None and last.path == each.path:
            last = last._replace(end=each.end)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


# Planning


def plan(options: SourceOptions) -> list[Piece]:
    """The pieces of a query over the logs as they are now."""
    folders = _selected(options)
    logs = {partition: _survey(partition, path) for partition, path in folders.items()}
    held = {
        partition: HeldOffsets(
            log.first, log.last_stable_offset if options.committed_only else log.end
        )
        for partition, log in logs.items()
    }
    assert options.start.offsets is not None
    assert options.end.offsets is not None
    ranges = ranges_between(
        for_each(options.start.offsets, options.start, held),
        for_each(options.end.offsets, options.end, held),
        held,
        options,
    )
    pieces = divided(ranges, options.min_partitions, options.max_records_per_partition)
    return [logs[each.partition].piece(each, options.committed_only) for each in pieces]


def _selected(options: SourceOptions) -> dict[TopicPartition, Path]:
    """The folders of the logs to be read."""
    root = _local(options.path or "")
    if not root.is_dir():
        raise OptionError(f"path: {root} is no folder")
    candidates = [root] if segments_in(root) else sorted(root.iterdir())
    found = {}
    for folder in candidates:
        name = parse_folder_name(folder.name)
        if name is None or not segments_in(folder):
            continue
        partition = TopicPartition(*name)
        if options.selects(*partition) or (folder == root and options.selection is None):
            found[partition] = folder
    wanted: set[object] = set(options.assigned or options.subscribed)
    there: set[object] = set(found) | {each.topic for each in found}
    missing = sorted(map(str, wanted - there))
    if missing:
        raise OptionError(f"{options.selection}: there is no log of {missing[0]} in {root}")
    if not found:
        raise OptionError(
            f"path: {root} holds no logs (folders TOPIC-PARTITION with files of segments)"
            + ("" if options.selection is None else f" that {options.selection} means")
        )
    return found


def _local(path: str) -> Path:
    if path.startswith("file:"):
        path = unquote(urlparse(path).path)
    return Path(path).resolve()


def _survey(partition: TopicPartition, folder: Path) -> _Log:
    segments = segments_in(folder)
    try:
        start = log_starts(folder.parent).get((partition.topic, partition.partition), 0)
    except InvalidCheckpoint as error:
        raise DamagedLog(error.reason) from None
    log = _Log(max(segments[0].base_offset, start), segments[0].base_offset)
    for base_offset, path in segments:
        if base_offset < log.end:
            raise DamagedLog(f"{path}: offset {base_offset} is in the segment before it, too")
        log.end = base_offset
        with _Segment(path) as segment:
            _walk(log, segment, torn_allowed=path == segments[-1].log)
    log.first = min(log.first, log.end)
    return log


class _Segment:
    """A segment's file under a plan, which reads the headers of its batches and little else.

    Mapped, it would cost a page fault for each 64 kB: several times what these reads take.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.file)

    def part(self, at: int, size: int) -> bytes:
        """Up to so many bytes; fewer at the end of the file."""
        return os.pread(self.file, size, at)


def _walk(log: _Log, segment: _Segment, *, torn_allowed: bool) -> None:
    """Take over what the headers of a segment's batches say."""
    path, size = segment.path, segment.size
    at = begun = 0
    first_offset = log.end
    while at < size:
        if at - begun >= _MARK_EVERY:
            log.stretches.append(Stretch(path, begun, at, first_offset))
            begun, first_offset = at, log.end
        if at == begun:
            _read_ahead(segment.file, at, 2 * _MARK_EVERY)
        at = _skip_plain(log, segment, at, min(size, begun + _MARK_EVERY))
        if at >= size or at - begun >= _MARK_EVERY:
            continue
        header = segment.part(at, HEADER_SIZE)
        end = _end_of_batch(segment, header, at, log.end)
        if end == _TORN:
            if not torn_allowed:
                raise DamagedLog(f"{path}: the batch at offset {log.end} (byte {at}) is cut off")
            logger.warning(
                "%s: the last %d bytes are no whole batch; the log ends at offset %d",
                path,
                size - at,
                log.end,
            )
            break
        if header[MAGIC_AT] == MAGIC:
            fields = HEADER.unpack_from(header)
            base_offset, attributes, last_delta, producer_id = (fields[n] for n in (0, 5, 6, 9))
            if may_be_mark(fields):
                take_mark(log.deleted, segment.part(at, end - at), fields)
            elif attributes & TRANSACTIONAL_BIT:
                if attributes & CONTROL_BIT:
                    batch = segment.part(at, end - at)
                    _end_transaction(log, path, producer_id, base_offset, batch)
                else:
                    log.open.setdefault(producer_id, base_offset)
            log.end = base_offset + last_delta + 1
        else:
            log.end = int.from_bytes(header[:8], signed=True) + 1
        at = end
    if at > begun:
        log.stretches.append(Stretch(path, begun, at, first_offset))


def _read_ahead(file: int, at: int, size: int) -> None:
    """Let the disk begin with what is read next. Headers lie far from each other, and the system
    would not guess that all are wanted; the tasks want what lies between them."""
    if advise := getattr(os, "posix_fadvise", None):
        advise(file, at, size, os.POSIX_FADV_WILLNEED)


def _skip_plain(log: _Log, segment: _Segment, at: int, limit: int) -> int:
    """The position after the batches that follow, up to the limit, which are of no transaction and
    sound.

    Nearly all are, and their number is what a plan takes its time for.
    """
    size, file = segment.size, segment.file
    unpack, pread = _FIELDS.unpack_from, os.pread
    expected = log.end
    window, begin, ahead = b"", at, HEADER_SIZE
    while at < limit:
        if at - begin + HEADER_SIZE > len(window):
            window, begin = pread(file, ahead, at), at
            if len(window) < HEADER_SIZE:
                break
        base_offset, length, magic, attributes, last_delta = unpack(window, at - begin)
        end = at + LENGTH_OVERHEAD + length
        if (
            magic != MAGIC
            or length < _SMALLEST_LENGTH
            or end > size
            or base_offset < expected
            or last_delta < 0
            or attributes & _NOT_PLAIN
        ):
            break
        expected = base_offset + last_delta + 1
        at = end
        ahead = HEADER_SIZE if length >= _LARGE_BATCH else _MANY_BATCHES
    log.end = expected
    return at


def _end_of_batch(segment: _Segment, header: bytes, at: int, expected: int) -> int:
    """Where the batch ends that begins so; _TORN if its end is missing."""
    if len(header) <= MAGIC_AT:
        return _TORN
    base_offset, length = _PLACE.unpack_from(header)
    if length == 0 and not any(header):
        # Space that was set aside: a log ends before it, but only if nothing comes after.
        return _TORN if _only_zeros(segment, at) else _damaged(segment.path, expected, at)
    magic = header[MAGIC_AT]
    smallest = _SMALLEST_LENGTH if magic == MAGIC else _SMALLEST_OLDER
    if magic > MAGIC or length < smallest or base_offset < expected:
        return _damaged(segment.path, expected, at)
    end = at + LENGTH_OVERHEAD + int(length)
    if end > segment.size:
        return _TORN
    if magic == MAGIC and HEADER.unpack_from(header)[LAST_OFFSET_DELTA] < 0:
        return _damaged(segment.path, expected, at)
    return end


def _only_zeros(segment: _Segment, at: int) -> bool:
    starts = range(at, segment.size, _MARK_EVERY)
    parts = (segment.part(start, _MARK_EVERY) for start in starts)
    return all(part.count(0) == len(part) for part in parts)


def _damaged(path: str, offset: int, at: int) -> int:
    raise DamagedLog(f"{path}: what stands at offset {offset} (byte {at}) is no batch")


def _end_transaction(
    log: _Log, path: str, producer_id: int, base_offset: int, batch: bytes
) -> None:
    try:
        marker = next(records(batch), None)
        kind = None if marker is None else control_type(marker)
    except InvalidBatch as error:
        raise DamagedLog(f"{path}: batch at offset {base_offset}: {error.reason}") from None
    if kind not in (ABORT, COMMIT):
        return
    first_offset = log.open.pop(producer_id, None)
    if kind == ABORT and first_offset is not None:
        log.aborted.append(Aborted(producer_id, first_offset, base_offset))


# Reading


def read(piece: Piece, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a piece.

    Files are read into one buffer again and again. To map them would take longer, since the system
    maps few pages at a time, and would end the process if one became shorter meanwhile.
    """
    layout = SparkRows(options.include_headers, options.values)
    for stretch in piece.stretches:
        try:
            with _opened(stretch.path) as file:
                pieces = _pieces(file.fileno(), piece.offsets.start, stretch, options)
                for batches in _seen(pieces, piece):
                    for rows, next_offset in _decoded(layout, batches, piece):
                        if rows.num_rows:
                            yield rows
                        if next_offset >= piece.offsets.end:
                            return  # what lies after may be damaged: nobody has asked for it
        except FileNotFoundError:
            lost(f"{stretch.path} is gone", options)
        except InvalidBatch as error:
            raise DamagedLog(f"{stretch.path}: {error.reason}") from None


def _opened(path: str) -> FileIO:
    """A segment's file, also if it got its own name since the plan was made."""
    try:
        return FileIO(path)
    except FileNotFoundError:
        if not path.endswith(SWAP_SUFFIX):
            raise
        return FileIO(path.removesuffix(SWAP_SUFFIX))


def _pieces(
    file: int, offset: int, stretch: Stretch, options: SourceOptions
) -> Iterator[memoryview]:
    """Whole batches of the stretch, from the one with this offset on; each lasts until the next."""
    at = _batch_with(offset, file, stretch)
    buffer = bytearray(min(_READ_AT_ONCE, stretch.end - at))
    while at < stretch.end:
        filled = os.preadv(file, [memoryview(buffer)[: stretch.end - at]], at)
        reached = reach(memoryview(buffer)[:filled])
        if reached is not None:
            yield memoryview(buffer)[: reached.size]
            at += reached.size
        elif filled == len(buffer):
            buffer = bytearray(2 * len(buffer))  # for a batch that is larger
        else:
            lost(f"{stretch.path} is shorter than it was", options)
            return


def _seen(pieces: Iterator[memoryview], piece: Piece) -> Iterator[memoryview]:
    """The batches without records that were deleted one by one."""
    for batches in pieces:
        if not piece.deleted:
            yield batches
        elif left := without(batches, piece.deleted, DECOMPRESSED_LIMIT).batches:
            yield memoryview(left)


def _decoded(
    layout: SparkRows, batches: memoryview, piece: Piece
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Rows, and the offsets after them."""
    first_offset = int.from_bytes(batches[:8])
    return layout.decode(
        batches,
        piece.offsets.partition,
        start_offset=piece.offsets.start,
        end_offset=piece.offsets.end,
        aborted=[
            (each.producer_id, each.first_offset)
            for each in piece.aborted
            if each.marker_offset >= first_offset
        ],
        max_rows=MAX_ROWS,
        max_bytes=MAX_BYTES,
    )


def _batch_with(offset: int, file: int, stretch: Stretch) -> int:
    """Where in the stretch to begin, to find this offset and all after it."""
    at = following = stretch.start
    while following < stretch.end:
        place = os.pread(file, _PLACE.size, following)
        if len(place) < _PLACE.size:
            break  # the file has become shorter
        base_offset, length = _PLACE.unpack(place)
        if base_offset > offset:
            break
        at = following
        following += LENGTH_OVERHEAD + length
    return at
