"""Reading the files of a log with no broker: folders, segments, batches, records.

Everything is opened for reading only, and read rather than mapped: a broker that shortens a file
while it is looked at then costs an error message, not the process.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ottla.cli.failures import Failure
from ottla.record import legacy
from ottla.record.batch import HEADER_SIZE, MAGIC, BatchHeader, Record, records
from ottla.record.errors import InvalidBatch
from ottla.storage.walk import OVERHEAD, check, fields_at

READ_BUFFER = 1 << 20
# What a batch may unfold to; the same limit as for one request from a client.
LARGEST_UNCOMPRESSED = 1 << 30

_PARTITION_FOLDER = re.compile(r"(.+)-([0-9]+)")
_SEGMENT = re.compile(r"([0-9]{20})\.log")


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
        return self.log.with_suffix(suffix)


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
    header: BatchHeader  # of a v0 or v1 entry: what `storage.walk` makes of it
    data: memoryview
    damage: str | None  # why it is not what was once written

    @property
    def size(self) -> int:
        return len(self.data)


def find_logs(path: Path) -> list[LogFolder]:
    """The logs that `path` means: a data folder, one `topic-N` folder, or a single `.log` file."""
    if not path.exists():
        raise Failure(f"there is no '{path}'; give a data folder, a topic-N folder or a .log file")
    if path.is_file():
        name = _SEGMENT.fullmatch(path.name)
        if name is None:
            raise Failure(f"'{path}' is no segment; those are called 00000000000000000000.log")
        return [_log_folder(path.parent, (SegmentFiles(int(name[1]), path),))]
    own = _segments(path)
    if own:
        return [_log_folder(path, own)]
    folders = []
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and _PARTITION_FOLDER.fullmatch(folder.name):
            segments = _segments(folder)
            if segments or (folder / "partition.metadata").exists():
                folders.append(_log_folder(folder, segments))
    if not folders and _PARTITION_FOLDER.fullmatch(path.resolve().name):
        folders.append(_log_folder(path, ()))
    if not folders:
        raise Failure(f"'{path}' holds no logs: neither topic-N folders nor .log files")
    return sorted(folders, key=lambda folder: (folder.topic, folder.partition))


def _segments(folder: Path) -> tuple[SegmentFiles, ...]:
    found = []
    for path in folder.iterdir():
        name = _SEGMENT.fullmatch(path.name)
        if name is not None:
            found.append(SegmentFiles(int(name[1]), path))
    return tuple(sorted(found))


def _log_folder(path: Path, segments: tuple[SegmentFiles, ...]) -> LogFolder:
    name = _PARTITION_FOLDER.fullmatch(path.resolve().name)
    if name is None:
        return LogFolder(path, path.resolve().name, 0, segments)
    return LogFolder(path, name[1], int(name[2]), segments)


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
