"""What tests of the storage room need again and again: batches, logs, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ottla.logfiles.walk import OVERHEAD, fields_at
from ottla.record.batch import BASE_OFFSET, BATCH_LENGTH, LAST_OFFSET_DELTA, Record, build_batch
from ottla.record.control import build_end_of_transaction
from ottla.storage.config import LogConfig
from ottla.storage.files import OS_FILES, Files
from ottla.storage.log.log import Log
from ottla.storage.log.readable import ReadableLog
from ottla.storage.log.state import LogOwner, LogState
from ottla.storage.recovery.load import create_log, load_log
from ottla.storage.segments.file import OpenFiles

NOW = 1_700_000_000_000


def a_batch(
    value: bytes = b"value", *, count: int = 1, timestamp: int = NOW, **header: Any
) -> bytearray:
    """A batch as a client sends it: `count` records of the same value."""
    records = [Record(number, timestamp, None, value) for number in range(count)]
    return bytearray(build_batch(records, **header))


def a_marker(
    producer_id: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0, now: int = NOW
) -> bytearray:
    """The end of a transaction as a coordinator writes it."""
    return bytearray(
        build_end_of_transaction(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now,
        )
    )


class AttentiveOwner(LogOwner):
    """Writes down what a log tells it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def became_dirty(self, log: LogState) -> None:
        self.told.append("dirty")

    def wants_flush(self, log: LogState) -> None:
        self.told.append("flush")

    def went_offline(self, log: LogState) -> None:
        self.told.append("offline")

    def refused_append(self, log: LogState, error: OSError) -> None:
        self.told.append(f"refused: {error.errno}")

    def lower_offsets(self, log: LogState, offset: int) -> None:
        self.told.append(f"not above {offset}")


class LogMaker:
    """Makes and opens the log of one partition, `topic-0`, in a folder."""

    def __init__(
        self,
        folder: str,
        config: LogConfig | None = None,
        files: Files = OS_FILES,
        owner: LogOwner | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.folder = f"{folder}/topic-0"
        self.config = config or LogConfig()
        self.files = files
        self.owner = owner or LogOwner()
        self.open_files = OpenFiles(files) if open_files is None else open_files

    def create(self) -> Log:
        return create_log(
            self.folder,
            "topic",
            0,
            b"0123456789abcdef",
            self.config,
            self.files,
            self.open_files,
            self.owner,
        )

    def load(
        self,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        now_ms: int = NOW,
        first_dirty_offset: int = 0,
        deletions_end: int = 0,
    ) -> Log:
        return load_log(
            self.folder,
            "topic",
            0,
            self.config,
            self.files,
            self.open_files,
            self.owner,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
            first_dirty_offset=first_dirty_offset,
            deletions_end=deletions_end,
        )


def close_cleanly(log: Log, now_ms: int = NOW) -> int:
    """Flushes and closes; the recovery point, for `load(clean=True)`."""
    job = log.flush_begin(now_ms, before_close=True)
    if job is not None:
        job.run()
        log.flush_end(job)
    log.check_online()
    log.close()
    return log.recovery_point


def stored_batches(
    log: ReadableLog, offset: int | None = None, max_bytes: int = 1 << 20
) -> Iterator[tuple[int, int, bytes]]:
    """(first offset, last offset, bytes) of each batch, as a consumer with that fetch size gets
    them one read after the other."""
    offset = log.log_start_offset if offset is None else offset
    while True:
        part = log.read(offset, max_bytes, log.log_end_offset)
        if part is None:
            return
        data = part.read()
        assert len(data) == part.length
        at = 0
        while at < len(data):
            if len(data) - at < 61:
                break
            fields = fields_at(data, at)
            size = fields[BATCH_LENGTH] + OVERHEAD
            if at + size > len(data):
                break
            base_offset = fields[BASE_OFFSET]
            last_offset = base_offset + fields[LAST_OFFSET_DELTA]
            if last_offset >= offset:
                yield base_offset, last_offset, data[at : at + size]
                offset = last_offset + 1
            at += size
        assert at, "a read gave no whole batch"
