"""Which leader wrote which part of a log: the start offset of every leader epoch."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from ottla.storage.checkpoints import format_checkpoint, parse_checkpoint, parse_number
from ottla.storage.errors import CorruptCheckpoint
from ottla.storage.files import OS_FILES, Files

logger = logging.getLogger(__name__)

UNDEFINED = (-1, -1)


class LeaderEpochs:
    """Leader epochs with their start offsets, both strictly increasing.

    File `leader-epoch-checkpoint`, text: a line with the version, `0`, a line with the number of
    entries, and a line `epoch start_offset` for each.

    The file is replaced as a whole and never torn. It may be behind memory: every batch carries its
    epoch, so a log that was not shut down cleanly assigns the epochs of the batches after its
    recovery point again. So the changes have to be on disk before the recovery point moves past
    them. There is no file before the first entry.
    """

    def __init__(self, path: str, files: Files = OS_FILES) -> None:
        """Begins without entries, and touches no file."""
        self.path = path
        self.files = files
        # Of one length, strictly increasing both.
        self._epochs: list[int] = []
        self._starts: list[int] = []
        # The last of _epochs, -1 if there is none. An append needs `assign` only if its epoch
        # differs.
        self.latest_epoch = -1
        # Memory is ahead of the file.
        self.changed = False
        # There is one, be it behind memory or damaged.
        self.has_file = False

    def load(self) -> None:
        """Reads the file, if there is one; CorruptCheckpoint leaves everything as it was."""
        try:
            data = self.files.read_file(self.path)
            self.has_file = True
        except FileNotFoundError:
            data = b""
        epochs: list[int] = []
        starts: list[int] = []
        for fields in parse_checkpoint(data, self.path, 2):
            epoch, start = (parse_number(field, self.path) for field in fields)
            if epochs and (epoch <= epochs[-1] or start <= starts[-1]):
                raise CorruptCheckpoint(
                    self.path, f"epoch {epoch} at {start} after epoch {epochs[-1]} at {starts[-1]}"
                )
            epochs.append(epoch)
            starts.append(start)
        self._epochs, self._starts = epochs, starts
        self.latest_epoch = epochs[-1] if epochs else -1
        self.changed = False

    # Writing

    def take_changes(self) -> bytes | None:
        """What the file should hold, if that changed; it counts as written from now on. To be
        stored with `files.replace_file(path, data)`, on any thread."""
        if not self.changed:
            return None
        self.changed = False
        self.has_file = True
        return format_checkpoint(map("%d %d".__mod__, self.entries()))

    def write(self) -> None:
        """Stores the changes, if there are any, at once."""
        data = self.take_changes()
        if data is not None:
            try:
                self.files.replace_file(self.path, data)
            except BaseException:
                self.changed = True
                raise

    # Changing

    def assign(self, epoch: int, start_offset: int) -> bool:
        """An epoch begins at an offset; whether that changed anything.

        The first start of an epoch stays. Entries that contradict the new one (they begin at or
        after it, or have its epoch or a later one) go: a new leader knows better.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} cannot begin at {start_offset}")
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return False
        keep = len(epochs)
        while keep and (epochs[keep - 1] >= epoch or starts[keep - 1] >= start_offset):
            keep -= 1
        # One that begins where the new one does has no records; more is worth a line.
        if keep < len(epochs) - 1 or (keep < len(epochs) and starts[keep] != start_offset):
            logger.warning(
                "%s: epoch %d at %d replaces %s",
                self.path,
                epoch,
                start_offset,
                list(self.entries())[keep:],
            )
        self._cut(keep)
        epochs.append(epoch)
        starts.append(start_offset)
        self.latest_epoch = epoch
        self.changed = True
        return True

    def truncate_from_end(self, offset: int) -> None:
        """The log was truncated to end at `offset`: epochs that begin there or later are gone."""
        keep = bisect_left(self._starts, offset)
        if offset >= 0 and keep < len(self._starts):
            self._cut(keep)
            self.changed = True

    def truncate_from_start(self, offset: int) -> None:
        """The log begins at `offset` now: so does the epoch of that offset; those before it are
        gone."""
        drop = bisect_right(self._starts, offset) - 1
        if drop >= 0 and (drop > 0 or self._starts[0] != offset):
            del self._epochs[:drop]
            del self._starts[:drop]
            self._starts[0] = offset
            self.changed = True

    def clear(self) -> None:
        if self._epochs:
            self._cut(0)
            self.changed = True

    # Asking

    def entries(self) -> Iterator[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return zip(self._epochs, self._starts, strict=True)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written, -1 if that is not known."""
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else -1

    def previous_epoch(self, epoch: int) -> int:
        """The largest epoch below the given one, -1 if there is none."""
        slot = bisect_left(self._epochs, epoch)
        return self._epochs[slot - 1] if slot else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to the one asked for, and the offset at which it ends, so
        that a follower or consumer that was in that epoch learns up to where it agrees with this
        log.

        The current epoch ends at the log end. UNDEFINED for no epoch and for one later than all. An
        epoch older than all ends where the first known one begins.
        """
        if epoch < 0 or epoch > self.latest_epoch:
            return UNDEFINED
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        found = self._epochs[following - 1] if following else epoch
        return found, self._starts[following]

    def _cut(self, keep: int) -> None:
        del self._epochs[keep:]
        del self._starts[keep:]
        self.latest_epoch = self._epochs[-1] if keep else -1
