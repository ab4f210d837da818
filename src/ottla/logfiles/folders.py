"""Reading the files of a log with no broker: folders, segments, batches, records.

Everything is opened for reading only, and read rather than mapped: a broker that shortens a file
while it is looked at then costs an error message, not the process.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ottla.logfiles.checkpoint import InvalidCheckpoint, parse_offsets
from ottla.logfiles.names import (
    CLEANED_SUFFIX,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SWAP_SUFFIX,
    base_offset_of,
    offset_in,
    parse_folder_name,
)
from ottla.logfiles.walk import OVERHEAD, check, fields_at
from ottla.record import legacy
from ottla.record.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    MAGIC,
    BatchHeader,
    Record,
    records,
)
from ottla.record.errors import InvalidBatch

READ_BUFFER = 1 << 20
# What a batch may unfold to; the same limit as for one request from a client.
LARGEST_UNCOMPRESSED = 1 << 30


class NotALog(ValueError):
    """A path that leads to no log; the text is a sentence for its user."""


class Damage(Exception):
    """From `position` on the file cannot be understood."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class SegmentFiles(NamedTuple):
    base_offset: int
    log: Path

    def sibling(self, suffix: str) -> Path:
        """`.index`, `.timeindex`, `.txnindex` or `.snapshot` of the same base offset."""
        if self.log.suffix != SWAP_SUFFIX:
            return self.log.with_suffix(suffix)
        path = self.log.with_suffix("").with_suffix(suffix)
        under_way = path.with_name(path.name + SWAP_SUFFIX)
        return under_way if under_way.exists() else path


class LogFolder(NamedTuple):
    path: Path
    topic: str
    partition: int
    segments: tuple[SegmentFiles, ...]  # by base offset

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class StoredBatch(NamedTuple):
    position: int
    header: BatchHeader  # of a v0 or v1 entry: what `walk.fields_at` makes of it
    data: memoryview
    damage: str | None  # why it is not what was once written

    @property
    def size(self) -> int:
        return len(self.data)


def find_logs(path: Path) -> list[LogFolder]:
    """The logs that `path` means: a data folder, one `topic-N` folder, or a single `.log` file.
    NotALog if there is none."""
    if not path.exists():
        raise NotALog(f"there is no '{path}'; give a data folder, a topic-N folder or a .log file")
    if path.is_file():
        base_offset = offset_in(path.name, LOG_SUFFIX)
        if base_offset is None:
            raise NotALog(f"'{path}' is no segment; those are called 00000000000000000000.log")
        return [_log_folder(path.parent, (SegmentFiles(base_offset, path),))]
    own = segments_in(path)
    if own:
        return [_log_folder(path, own)]
    folders = []
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and parse_folder_name(folder.name) is not None:
            segments = segments_in(folder)
            if segments or (folder / PARTITION_METADATA).exists():
                folders.append(_log_folder(folder, segments))
    if not folders and parse_folder_name(path.resolve().name) is not None:
        folders.append(_log_folder(path, ()))
    if not folders:
        raise NotALog(f"'{path}' holds no logs: neither topic-N folders nor .log files")
    return sorted(folders, key=lambda folder: (folder.topic, folder.partition))


def segments_in(folder: Path) -> tuple[SegmentFiles, ...]:
    """The segments in a folder by their base offsets; files under way (`.cleaned`, `.deleted`) are none.

    But where a finished segment was about to take the place of others (`.swap`), these may be gone: it
    counts in place of them, as at the start of a broker (see storage/recovery/leftovers.py)."""
    if not folder.is_dir():
        return ()
    found: dict[int, Path] = {}
    swaps: dict[int, Path] = {}
    cleaned: list[int] = []
    for path in folder.iterdir():
        base_offset = base_offset_of(path.name)
        if base_offset is None:
            continue
        if offset_in(path.name, LOG_SUFFIX) is not None:
            found[base_offset] = path
        elif offset_in(path.name, LOG_SUFFIX + SWAP_SUFFIX) is not None:
            swaps[base_offset] = path
        elif path.name.endswith(CLEANED_SUFFIX):
            cleaned.append(base_offset)
    for base_offset, path in sorted(swaps.items()):
        if not cleaned or base_offset < min(cleaned):
            end = _end_of(path, base_offset)
            for replaced in [other for other in found if base_offset < other < end]:
                del found[replaced]
            found[base_offset] = path
    return tuple(SegmentFiles(*each) for each in sorted(found.items()))


def _end_of(path: Path, base_offset: int) -> int:
    """The offset after the last record of a segment, by the headers of its batches."""
    end = base_offset + 1
    try:
        with path.open("rb", buffering=0) as file:
            position = 0
            while head := os.pread(file.fileno(), HEADER_SIZE, position):
                fields = fields_at(head, 0)
                end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
                position += fields[BATCH_LENGTH] + OVERHEAD
    except (FileNotFoundError, InvalidBatch):
        pass  # those who read the records there will be told
    return end


def _log_folder(path: Path, segments: tuple[SegmentFiles, ...]) -> LogFolder:
    name = path.resolve().name
    topic, partition = parse_folder_name(name) or (name, 0)
    return LogFolder(path, topic, partition, segments)


def log_starts(data_folder: Path) -> dict[tuple[str, int], int]:
    """Where the logs of a data folder start, by topic and partition: records before that have been
    deleted, whether the files still have them or not. Logs that start with their first segment are
    not in it. InvalidCheckpoint if the file is damaged."""
    path = data_folder / LOG_START_CHECKPOINT
    try:
        return parse_offsets(path.read_bytes())
    except FileNotFoundError:
        return {}
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{path}: {error.reason}") from None


def read_batches(path: Path) -> Iterator[StoredBatch]:
    """Every batch of a segment, of any format. A bad checksum is told in the batch and the next one
    follows; where the lengths make no sense `Damage` ends it.

    Zeros up to the end are the unused part of a preallocated file, not damage.
    """
    with path.open("rb", buffering=READ_BUFFER) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        position = 0
        while position < size:
            head = file.read(HEADER_SIZE)
            if not any(head) and _only_zeros(file):
                return
            try:
                header = BatchHeader._make(fields_at(head, 0))
            except InvalidBatch as problem:
                raise Damage(position, problem.reason) from None
            length = header.batch_length + OVERHEAD
            if position + length > size:
                raise Damage(
                    position, f"the batch needs {length} bytes, {size - position} are left"
                )
            if length >= len(head):
                data = head + file.read(length - len(head))
            else:
                data = head[:length]
                file.seek(position + length)
            view = memoryview(data)
            damage = None
            try:
                check(view, header)
            except InvalidBatch as problem:
                damage = problem.reason
            yield StoredBatch(position, header, view, damage)
            position += length


def _only_zeros(file: BinaryIO) -> bool:
    here = file.tell()
    while chunk := file.read(READ_BUFFER):
        if chunk.count(0) != len(chunk):
            file.seek(here)
            return False
    return True


def read_records(batch: StoredBatch) -> Iterator[Record]:
    """The records of a batch, of any format; `InvalidBatch` where they make no sense."""
    if batch.header.magic == MAGIC:
        return records(batch.data, LARGEST_UNCOMPRESSED)
    return legacy.messages(batch.data, LARGEST_UNCOMPRESSED)
