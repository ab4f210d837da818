"""Which offsets of a log its marks hide: the snapshot of them, and how to find out without a broker.

The file `deleted-records-snapshot` in a log's folder:

    uint32  CRC32C          of all that follows
    int16   version         0
    int64   end offset      where the log ended: marks before it are in the snapshot
    int64   time            in milliseconds, since when there is something to be erased; 0: nothing is
    int64   size            of what follows next, in bytes
    …       hidden offsets  as `OffsetSet.to_bytes` has them; the marks' own are among them
    …       unerased ones   likewise: those of them whose records may still be on disk

Crash policy: it is replaced as a whole, by a flush, after the data and before the recovery point moves.
So it has every mark below the recovery point, and those after it are found in the log. A log without
the file has no mark below its recovery point, unless the data folder's `deleted-records-checkpoint`
says that it had a snapshot, and up to where. One that is lost, or older than that, is made anew from
the whole log.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.logfiles.checkpoint import InvalidCheckpoint, parse_offsets
from ottla.logfiles.names import (
    DELETIONS_CHECKPOINT,
    DELETIONS_SNAPSHOT,
    RECOVERY_POINT_CHECKPOINT,
)
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_BYTE,
    PRODUCER_ID,
    HeaderFields,
)
from ottla.record.checksum import crc32c
from ottla.record.deletion import read_mark
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from ottla.logfiles.folders import LogFolder

_CHECKSUM = struct.Struct(">I")
_HEAD = struct.Struct(">hqqq")
_VERSION = 0
# What is no larger is written by one call.
_JOINED_BYTES = 1 << 20


class InvalidSnapshot(ValueError):
    """The file is not what its format says."""


class DeletionsSnapshot(NamedTuple):
    end_offset: int
    since_ms: int
    offsets: OffsetSet
    unerased: OffsetSet


def encode_deletions(snapshot: DeletionsSnapshot) -> list[bytes | memoryview]:
    """The file, in parts if it is large: put together, millions of deletions would take as much memory
    again as the sets have."""
    hidden, unerased = snapshot.offsets, snapshot.unerased
    head = _HEAD.pack(_VERSION, snapshot.end_offset, snapshot.since_ms, hidden.stored_size)
    parts: list[bytes | memoryview] = [head, *hidden.stored_parts(), *unerased.stored_parts()]
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    parts.insert(0, _CHECKSUM.pack(checksum))
    return [b"".join(parts)] if sum(map(len, parts)) <= _JOINED_BYTES else parts


def decode_deletions(data: bytes) -> DeletionsSnapshot:
    """InvalidSnapshot if that is none."""
    if len(data) < _CHECKSUM.size + _HEAD.size:
        raise InvalidSnapshot("it is too short")
    body = memoryview(data)[_CHECKSUM.size :]
    if _CHECKSUM.unpack_from(data)[0] != crc32c(body):
        raise InvalidSnapshot("the CRC32C does not match")
    version, end_offset, since_ms, size = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise InvalidSnapshot(f"version {version} is unknown")
    try:
        sets = body[_HEAD.size :]
        return DeletionsSnapshot(
            end_offset,
            since_ms,
            OffsetSet.from_bytes(sets[:size]),
            OffsetSet.from_bytes(sets[size:]),
        )
    except ValueError as error:
        raise InvalidSnapshot(str(error)) from None


def may_be_mark(fields: HeaderFields) -> bool:
    """Whether a batch has to be looked into: a control batch of nobody."""
    return (
        fields[MAGIC_BYTE] == MAGIC
        and fields[PRODUCER_ID] < 0
        and bool(fields[ATTRIBUTES] & CONTROL_BIT)
    )


def take_mark(offsets: OffsetSet, batch: bytes | memoryview, fields: HeaderFields) -> bool:
    """Adds what a control batch of nobody hides, its own offset with it, if it is a mark."""
    try:
        ranges = read_mark(batch)
    except InvalidBatch:
        return False  # no leader wrote that
    if ranges is None:
        return False
    offsets.add_all(ranges)
    offsets.add(fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1)
    return True


def deleted_offsets(folder: LogFolder) -> OffsetSet:
    """The offsets that a reader of a log's files is not to see; of logs of Apache Kafka, none. What lies
    after the recovery point is walked through for marks. A single segment is taken for the whole log's:
    the snapshot beside it counts, and so do the segments beside it."""
    # Not for brokers, which have no use for what it takes.
    from ottla.logfiles.folders import Damage, read_batches, segments_in

    offsets = OffsetSet()
    known_to = 0
    needed_end = _checkpoint_of(folder, DELETIONS_CHECKPOINT)
    try:
        snapshot = decode_deletions((folder.path / DELETIONS_SNAPSHOT).read_bytes())
        if snapshot.end_offset >= needed_end:
            offsets = snapshot.offsets
            known_to = max(snapshot.end_offset, _checkpoint_of(folder, RECOVERY_POINT_CHECKPOINT))
    except FileNotFoundError:
        if not needed_end:
            known_to = _checkpoint_of(folder, RECOVERY_POINT_CHECKPOINT)
    except InvalidSnapshot:
        pass  # made anew from the whole log
    segments = segments_in(folder.path)
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= known_to:
            continue
        try:
            for batch in read_batches(segment.log):
                if (
                    batch.header.last_offset >= known_to
                    and batch.damage is None
                    and may_be_mark(batch.header)
                ):
                    take_mark(offsets, batch.data, batch.header)
        except (Damage, FileNotFoundError):
            continue  # those who read the records there will be told
    return offsets


def _checkpoint_of(folder: LogFolder, name: str) -> int:
    """What a checkpoint of the data folder says of the log; 0 if it says nothing."""
    path = Path(folder.path).resolve().parent / name
    try:
        return parse_offsets(path.read_bytes()).get((folder.topic, folder.partition), 0)
    except (OSError, InvalidCheckpoint):
        return 0
