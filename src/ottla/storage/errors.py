"""What can go wrong in a log, as exceptions.

These are internal errors: the server maps each to a code of the wire protocol. They fall into three
families, and the family says what the log's state is afterwards:

- `AppendRefused`: the caller's batch was turned away, the log is as it was;
- `LogOffline` (and `FolderOffline`): the disk failed, the log takes no more calls;
- `CorruptFile`: a file does not hold what its format says. Indexes, snapshots and checkpoints are
  rebuilt by those who catch it; a `CorruptLog` below the recovery point takes the log offline.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

# Errors that say something of the process, not of the disk.
TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full_disk(error: OSError) -> bool:
    """There is no room; what is stored is as good as before."""
    return error.errno in _FULL_DISK


def passes(error: OSError) -> bool:
    """Whether the same call may succeed later, with nothing lost until then: the process is out of
    descriptors or memory, or the disk is full. (Not where a sync of written data said so: what it
    should have stored may be gone.)"""
    return error.errno in TRANSIENT or error.errno in _FULL_DISK


class StorageError(Exception):
    """Root of everything the storage room raises on purpose."""


class LogOffline(StorageError):
    """The disk under a log failed; the log stays offline until the broker is started anew. (A full
    disk is no failure: OutOfResources.)"""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(f"{log} is offline: {reason}")
        self.log = log
        self.reason = reason


class OutOfResources(StorageError):
    """There is no descriptor, no memory or no room on the disk left for a call; the log is as it was,
    and may be asked again."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(f"{log}: {reason}")
        self.log = log
        self.reason = reason


class NotInMemory(StorageError):
    """What a search has to look at is on the disk alone, and its caller must not wait for that.

    `load` (on any thread) brings it into the page cache; then the search can be tried again.
    """

    def __init__(self, what: str, load: Callable[[int], object]) -> None:
        super().__init__(f"{what} is not in memory")
        # Given how many bytes the caller is going to read from there on.
        self.load = load


class UndeletableOffset(StorageError):
    """An offset that is to be deleted holds no record that could be; nothing was changed."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset} {reason}")
        self.offset = offset
        self.reason = reason


class FolderOffline(StorageError):
    """A whole data folder failed (or none is left on which a new log could be placed)."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"data folder {folder} is offline: {reason}")
        self.folder = folder
        self.reason = reason


class FolderLocked(StorageError):
    """Another process holds the lock of a data folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"data folder {folder} is in use by another broker")
        self.folder = folder


class DuplicateLog(StorageError):
    """One partition's log was found in two data folders; an operator must say which is right."""

    def __init__(self, log: str, folders: tuple[str, str]) -> None:
        super().__init__(
            f"{log} is in two data folders, {folders[0]} and {folders[1]}; "
            "move one of the two away and start again"
        )
        self.log = log
        self.folders = folders


class UnknownLog(StorageError):
    """No log of that topic and partition is here."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"no log of {topic}-{partition}")
        self.topic = topic
        self.partition = partition


class TopicIdMismatch(StorageError):
    """A log is here, but of another topic of the same name (deleted and made again)."""

    def __init__(self, log: str, found: bytes, expected: bytes) -> None:
        super().__init__(f"{log} has topic id {found.hex()}, not {expected.hex()}")
        self.found = found
        self.expected = expected


class OffsetOutOfRange(StorageError):
    """An offset outside [start, end] of the log."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of {start}..{end}")
        self.offset = offset
        self.start = start
        self.end = end


class CorruptFile(StorageError):
    """A file does not hold what its format says."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptLog(CorruptFile):
    """A bad batch where only good ones may be: in data that was flushed once."""


class CorruptIndex(CorruptFile):
    """An offset, time or transaction index that must be rebuilt from its segment."""


class CorruptSnapshot(CorruptFile):
    """A producer snapshot that cannot be trusted: an older one, or the log itself, is used."""


class CorruptCheckpoint(CorruptFile):
    """A checkpoint file (offsets, leader epochs, partition metadata) that cannot be read."""


class AppendRefused(StorageError):
    """A batch was turned away before anything was written; the log is as it was."""


class RecordTooLarge(AppendRefused):
    """A batch larger than `max.message.bytes` (or than a whole segment may be)."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a batch of {size} bytes is larger than the limit of {limit}")
        self.size = size
        self.limit = limit


class InvalidTimestamp(AppendRefused):
    """A timestamp too far before or after the broker's clock for this topic."""

    def __init__(self, timestamp: int, now: int) -> None:
        super().__init__(f"timestamp {timestamp} is too far from the broker's {now}")
        self.timestamp = timestamp
        self.now = now


class UnexpectedOffset(AppendRefused):
    """A replicated batch that does not go on where the log ends."""

    def __init__(self, first_offset: int, log_end_offset: int) -> None:
        super().__init__(f"batch starts at {first_offset}, the log ends at {log_end_offset}")
        self.first_offset = first_offset
        self.log_end_offset = log_end_offset


class OutOfOrderSequence(AppendRefused):
    """A gap (or a jump back further than the remembered batches) in a producer's sequence."""

    def __init__(self, producer_id: int, sequence: int, last_sequence: int) -> None:
        super().__init__(
            f"producer {producer_id} sent sequence {sequence} after sequence {last_sequence}"
        )
        self.producer_id = producer_id
        self.sequence = sequence
        self.last_sequence = last_sequence


class EarlierBatchAwaited(AppendRefused):
    """A gap in a producer's sequence at the begin of a transaction, whose first batch has come and could
    not be written then: it will be sent again, and so should be this one."""

    def __init__(self, producer_id: int, sequence: int, awaited: int) -> None:
        super().__init__(
            f"producer {producer_id} sent sequence {sequence}, and {awaited} has to come again first"
        )
        self.producer_id = producer_id
        self.sequence = sequence
        self.awaited = awaited


class DuplicateSequence(AppendRefused):
    """A batch older than the remembered ones: surely written before, its offset is forgotten."""

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence} again")
        self.producer_id = producer_id
        self.sequence = sequence


class InvalidProducerEpoch(AppendRefused):
    """A producer that was fenced by a newer one with the same id."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {epoch}, the log knows {current}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class InvalidTransactionState(AppendRefused):
    """A batch or marker that does not fit the producer's ongoing transaction."""


class CoordinatorFenced(AppendRefused):
    """A transaction marker of a coordinator that has been replaced."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(
            f"marker of producer {producer_id} comes from coordinator epoch {epoch}, "
            f"the log knows {current}"
        )
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current
