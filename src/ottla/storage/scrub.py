"""Looking for damage at rest: closed segments, read slowly from end to end, checksum by checksum.

A closed segment never changes (compaction and retention put others in its place, or take it away), so
whatever does not fit in it is damage: a disk's, or somebody's. It is named and counted, never mended.
Nothing but the segments' files is looked at; indexes are made anew from them when they are wrong.

What is found while no broker runs is noted in the data folder: a broker that starts there looks at those
logs at once, and has them fetched again if they have other replicas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ottla.logfiles.folders import LogFolder, SegmentFiles
from ottla.logfiles.names import DAMAGED_LOGS, FOLDER_IDENTITY, LOG_SUFFIX, offset_in
from ottla.logfiles.walk import OVERHEAD, check, fields_at, only_zeros
from ottla.record.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
)
from ottla.record.errors import InvalidBatch
from ottla.storage.checkpoints import lock_folder
from ottla.storage.errors import FolderLocked
from ottla.storage.files import OS_FILES, READ_ONLY, Files
from ottla.storage.folders import Key, key_of_folder

# Read at once, between two looks at the clock.
PART_BYTES = 4 << 20


class Finding(NamedTuple):
    """One thing that is wrong in a segment."""

    file: str
    position: int  # of the batch in the file
    offset: int  # of its first record, as far as that can be told
    reason: str


class ScrubProgress(NamedTuple):
    """How far one segment was looked at."""

    position: int = 0
    next_offset: int = (
        -1
    )  # after the last batch; -1 before the first, or if the file went meanwhile
    dense: bool = True  # no offset is missing between its batches
    # The file that was begun with: its inode and size.
    inode: int = -1
    size: int = -1
    over: bool = False


def scrub_part(
    segment: SegmentFiles, progress: ScrubProgress, most: int = PART_BYTES
) -> tuple[ScrubProgress, tuple[Finding, ...]]:
    """Looks at the next `most` bytes of a segment (and at one whole batch at least); where it stands
    then, and what it found. A file that is gone, or is another one now, is no finding. OSError if it
    cannot be read."""
    path = str(segment.log)
    # Retention, erasing or a truncation had it: where it ends is not known.
    gone = progress._replace(next_offset=-1, over=True)
    try:
        fd = os.open(path, READ_ONLY)
    except FileNotFoundError:
        return gone, ()
    try:
        status = os.fstat(fd)
        if progress.inode < 0:
            progress = progress._replace(inode=status.st_ino, size=status.st_size)
        elif (status.st_ino, status.st_size) != (progress.inode, progress.size):
            return gone, ()
        return _scrub(fd, segment, progress, most)
    finally:
        os.close(fd)


def _scrub(
    fd: int, segment: SegmentFiles, progress: ScrubProgress, most: int
) -> tuple[ScrubProgress, tuple[Finding, ...]]:
    position, next_offset, dense, inode, size, _ = progress
    name = segment.log.name
    end = min(size, position + most)
    findings: list[Finding] = []
    over = False
    while position < end:
        expected = segment.base_offset if next_offset < 0 else next_offset
        head = os.pread(fd, HEADER_SIZE, position)
        try:
            fields = fields_at(head, 0)
            length = fields[BATCH_LENGTH] + OVERHEAD
            if position + length > size:
                raise InvalidBatch(f"the batch needs {length} bytes, {size - position} are left")
        except InvalidBatch as error:
            if not only_zeros(partial(os.pread, fd), position, size):
                reason = f"{error.reason}; the last {size - position} bytes cannot be read"
                findings.append(Finding(name, position, expected, reason))
            over = True
            break
        try:
            check(memoryview(os.pread(fd, length, position)), fields)
        except InvalidBatch as error:
            findings.append(Finding(name, position, fields[BASE_OFFSET], error.reason))
        if fields[BASE_OFFSET] < expected:
            reason = f"offset {fields[BASE_OFFSET]} comes after {expected - 1}"
            findings.append(Finding(name, position, fields[BASE_OFFSET], reason))
        dense = dense and fields[BASE_OFFSET] == expected
        next_offset = max(expected, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1)
        position += length
    over = over or position >= size
    return ScrubProgress(position, next_offset, dense, inode, size, over), tuple(findings)


def missing_after(progress: ScrubProgress, following: SegmentFiles) -> Finding | None:
    """Records that should be between a segment that was looked at and the next one. Compaction leaves
    gaps, but in the middle of segments too: after one without any, a segment is missing."""
    end = progress.next_offset
    if not progress.dense or end < 0 or end >= following.base_offset:
        return None
    reason = f"no segment holds the offsets {end} to {following.base_offset - 1}"
    return Finding(following.log.name, 0, end, reason)


def scrub_log(
    folder: LogFolder, spend: Callable[[int], None] = lambda _: None
) -> Iterator[Finding]:
    """Everything that is wrong in the closed segments of a log: all but its last. `spend` is told the
    bytes that were read, and may take its time."""
    for number, segment in enumerate(folder.segments[:-1]):
        progress = ScrubProgress()
        while not progress.over:
            before = progress.position
            progress, findings = scrub_part(segment, progress)
            yield from findings
            spend(progress.position - before)
        missing = missing_after(progress, folder.segments[number + 1])
        if missing is not None:
            yield missing


def segments_among(folder: Path, names: list[str]) -> list[SegmentFiles]:
    """The segments with these names in a log's folder, oldest first. All but the last are closed."""
    found = [
        SegmentFiles(offset, folder / name)
        for name in names
        if (offset := offset_in(name, LOG_SUFFIX)) is not None
    ]
    return sorted(found)


def note_damage(data_folder: Path, names: Iterable[str], files: Files = OS_FILES) -> bool:
    """Leaves word of damaged logs for the broker that is started next; False if this is no broker's
    folder, or if one runs there, which finds damage by itself. OSError if it cannot be written."""
    if not (data_folder / FOLDER_IDENTITY).exists():
        return False
    try:
        lock = lock_folder(str(data_folder), files)
    except FolderLocked:
        return False
    try:
        known = {
            f"{topic}-{partition}" for topic, partition in noted_damage(str(data_folder), files)
        }
        noted = "".join(f"{name}\n" for name in sorted(known.union(names)))
        files.replace_file(str(data_folder / DAMAGED_LOGS), noted.encode())
    finally:
        files.close(lock)
    return True


def noted_damage(data_folder: str, files: Files = OS_FILES) -> list[Key]:
    """The logs of which `note_damage` left word."""
    try:
        noted = files.read_file(f"{data_folder}/{DAMAGED_LOGS}").decode(errors="replace")
    except FileNotFoundError:
        return []
    keys = (key_of_folder(name) for name in noted.splitlines())
    return [key for key in keys if key is not None]


def forget_noted_damage(data_folder: str, files: Files = OS_FILES) -> None:
    try:
        files.unlink(f"{data_folder}/{DAMAGED_LOGS}")
    except FileNotFoundError:
        pass
