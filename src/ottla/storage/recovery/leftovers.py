"""What an interrupted operation left in a log's folder, brought to an end when the log is loaded.

The rules are Kafka's, so that a folder of either broker is understood by the other:

- `*.deleted`: was to be removed; is.
- `*.tmp`: a file that was about to replace another; the other one is whole.
- `*.cleaned`: a compacted segment that was not finished; is removed. The originals are there.
- `*.swap`: a compacted segment that was finished and is to replace the originals in its range: the
  originals go, and it takes its name. Unless a `.cleaned` file with the same or a smaller base offset
  is there: then several were being made from one, not all were finished, and the originals stay.
- an index file without its log file: is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ottla.logfiles.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    segment_name,
)
from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
)
from ottla.storage.errors import CorruptLog
from ottla.storage.files import Files
from ottla.storage.segments.file import OpenFiles
from ottla.storage.segments.segment import Segment

logger = logging.getLogger(__name__)


def tidy(folder: str, files: Files, open_files: OpenFiles) -> set[str]:
    """Ends what was interrupted; the names that are in the folder then."""
    names = set(files.names(folder))
    interrupted = {
        name
        for name in names
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX))
    }
    if interrupted:
        logger.info("%s: ending what was interrupted: %s", folder, sorted(interrupted))
        cleaned = [
            base
            for name in interrupted
            if name.endswith(CLEANED_SUFFIX) and (base := base_offset_of(name)) is not None
        ]
        smallest_cleaned = min(cleaned, default=None)
        swaps = set()
        for name in interrupted:
            base = base_offset_of(name)
            if (
                name.endswith(SWAP_SUFFIX)
                and base is not None
                and (smallest_cleaned is None or base < smallest_cleaned)
            ):
                swaps.add(name)
        # Finished ones that do not count first: beside no `.cleaned` they would seem to.
        invalid = {name for name in interrupted - swaps if name.endswith(SWAP_SUFFIX)}
        if invalid:
            _remove(folder, invalid, files)
            files.fsync_folder(folder)
        _remove(folder, interrupted - swaps - invalid, files)
        names -= interrupted - swaps
        if swaps:
            names = _swap(folder, names, swaps, files, open_files)
        files.fsync_folder(folder)
    orphans = {
        name
        for name in names
        if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX))
        and (base := base_offset_of(name)) is not None
        and segment_name(base) + LOG_SUFFIX not in names
    }
    _remove(folder, orphans, files)
    return names - orphans


def _swap(
    folder: str, names: set[str], swaps: set[str], files: Files, open_files: OpenFiles
) -> set[str]:
    """Puts finished segments in the place of those that they were made from."""
    for name in sorted(swaps):
        if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        base = base_offset_of(name)
        assert base is not None
        end = _end_of_swap(folder, name, base, files, open_files)
        replaced = {
            other
            for other in names - swaps
            if other.endswith(SEGMENT_SUFFIXES)
            and (other_base := base_offset_of(other)) is not None
            and base < other_base < end
        }
        # Files of its own name are replaced by the renames, and may be new ones already. But as long
        # as the old log file is there they are not, and a transaction index may have no successor.
        stem = segment_name(base)
        old_index = stem + TRANSACTION_INDEX_SUFFIX
        if stem + LOG_SUFFIX in names and old_index + SWAP_SUFFIX not in swaps:
            replaced |= names & {old_index}
        _remove(folder, replaced, files)
        names = names - replaced
    # Before any of the new ones seems to be in place.
    files.fsync_folder(folder)
    # Log files last: as long as one has its old name, the next start comes here again.
    for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        final = name.removesuffix(SWAP_SUFFIX)
        files.rename(f"{folder}/{name}", f"{folder}/{final}")
        names = names - {name} | {final}
    return names


def _end_of_swap(folder: str, name: str, base: int, files: Files, open_files: OpenFiles) -> int:
    """The offset after the last record in a `.log.swap` file."""
    segment = Segment(
        folder, base, files, open_files, 0, size=files.size(f"{folder}/{name}"), sealed=True
    )
    segment.suffix = SWAP_SUFFIX
    end = base + 1
    try:
        for _, _, fields in segment.walk(0):
            end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
    except CorruptLog as error:
        logger.warning("a finished segment is damaged: %s", error)
    segment.close()
    return end


def _remove(folder: str, names: Iterable[str], files: Files) -> None:
    for name in sorted(names):
        try:
            files.unlink(f"{folder}/{name}")
        except FileNotFoundError:
            pass
