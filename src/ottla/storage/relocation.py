"""A log on its way from one data folder of a broker to another.

The log is copied, batch by batch, into a folder of its own beside the others (`topic-N.<uuid>-future`,
as Kafka names it), while the log goes on where it is. Once the copy has everything it takes the log's
place:

    1. the copy is synced, its offsets are stored, and a note in its folder says whose it is
    2. the old folder loses its name (`…-delete`)
    3. the copy gets the name

A crash before 1 leaves a copy without a note, which is removed at the next start; so is one with a note
whose log is still there. A crash between 2 and 3 leaves a note and no log: then the copy is the log.

Whoever copies asks `agree` before each portion: the log may have been cut off, or its first records
deleted, since the last one. It is not compacted meanwhile (in Kafka neither): the copy would have an old
record of a key, and not the tombstone that came after it and is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.logfiles.names import FUTURE_SUFFIX, marked_folder_name
from ottla.storage.errors import OutOfResources
from ottla.storage.log.state import LogOwner
from ottla.storage.recovery.load import create_log

if TYPE_CHECKING:
    from ottla.storage.config import LogConfig
    from ottla.storage.files import Files
    from ottla.storage.folders import DataFolder
    from ottla.storage.log.log import Log
    from ottla.storage.segments.file import OpenFiles

# The note in a copy that has everything: the name of the log.
COMPLETE: Final = "relocated"


def future_folder_name(name: str) -> str:
    """A name for the copy of a log, cut where it would be too long for a file system."""
    return marked_folder_name(name, FUTURE_SUFFIX)


class Relocation:
    """The copy of one log, in the making. Made by `Logs.begin_relocation`."""

    def __init__(
        self,
        source: Log,
        target: DataFolder,
        config: LogConfig,
        files: Files,
        open_files: OpenFiles,
        producer_expiration_ms: int,
    ) -> None:
        self.source = source
        self.target = target
        self.path = f"{target.path}/{future_folder_name(source.name)}"
        # What a pass over the log cleans from now on may have been copied as it was before.
        self._first_dirty_offset = source.first_dirty_offset
        # Nobody flushes it by the clock, or keeps its offsets: it is synced at the end.
        self.copy = create_log(
            self.path,
            source.topic,
            source.partition,
            source.topic_id,
            config,
            files,
            open_files,
            LogOwner(),
            producer_expiration_ms,
        )

    @property
    def lag(self) -> int:
        """Records that the copy does not have yet."""
        return max(0, self.source.log_end_offset - self.copy.log_end_offset)

    @property
    def first_dirty_offset(self) -> int:
        """The offset up to which the copy is compacted, as the log was."""
        return min(self._first_dirty_offset, self.source.first_dirty_offset)

    def agree(self, now_ms: int) -> None:
        """Cuts off what the log no longer has, and goes on where it begins."""
        source, copy = self.source, self.copy
        if copy.log_end_offset < source.log_start_offset:
            copy.truncate_fully_and_start_at(source.log_start_offset, now_ms)
            return
        end = min(copy.log_end_offset, source.log_end_offset)
        epoch = copy.epochs.latest_epoch
        if epoch >= 0:
            found, found_end = source.end_offset_for_epoch(epoch)
            if found != epoch:
                # The log was cut off below that epoch: what both have of the one found is the same.
                _, own_end = copy.end_offset_for_epoch(found) if found >= 0 else (-1, -1)
                found_end = min(found_end, own_end) if own_end >= 0 else copy.log_start_offset
            end = min(end, max(found_end, copy.log_start_offset))
        if end < copy.log_end_offset:
            copy.truncate_to(end, now_ms)
        copy.advance_high_watermark(source.high_watermark)
        if source.log_start_offset > copy.log_start_offset:
            copy.advance_start(min(source.log_start_offset, copy.high_watermark))

    def sync(self, now_ms: int) -> None:
        """Makes everything that was copied last, with snapshots of the producers and of what was
        deleted. Blocks: on any thread, while nobody else uses the copy. LogOffline, OutOfResources."""
        copy = self.copy
        job = copy.flush_begin(now_ms, before_close=True)
        error = None
        if job is not None:
            job.run()
            copy.flush_end(job)
            error = job.error
        copy.check_online()
        if error is not None or copy.recovery_point < copy.log_end_offset:
            raise OutOfResources(copy.name, f"flush failed: {error}")
