"""What compaction should do next. Decisions only: nothing is read but what a segment says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ottla.storage.config import LogConfig
from ottla.storage.index.entries import MAX_RELATIVE_OFFSET

# More do not become one at a time: their files are renamed on the loop.
LARGEST_GROUP = 64


class SealedSegment(Protocol):
    """What is asked of a segment. The two timestamps may have to be read from disk, so they are asked
    for only where a setting needs them."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...

    def read_first_timestamp(self) -> int: ...


class Dirt(NamedTuple):
    """How much of a log could be cleaned."""

    # Up to here it was cleaned; from here on keys are collected.
    first_dirty: int
    # The base offset of the first segment that must stay as it is.
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    # max.compaction.lag.ms has passed for something in it.
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def assess(
    sealed: Sequence[SealedSegment],
    active_base: int,
    config: LogConfig,
    *,
    checkpoint: int,
    log_start: int,
    log_end: int,
    stable_end: int,
    now_ms: int,
) -> Dirt:
    """The state of a log whose sealed segments these are.

    `checkpoint` is where the last pass stopped. `stable_end`: nothing at or after it may be touched
    (an open transaction, the high watermark, or what is not yet known to be on disk). The segment
    in which it lies stays as a whole, and so does, with all after it, one that has a record younger
    than min.compaction.lag.ms.
    """
    first_dirty = checkpoint
    if not log_start <= checkpoint <= log_end:
        # The start moved up; or the end was lost, and what follows is not what was cleaned.
        first_dirty = log_start
    oldest_untouchable = now_ms - config.min_compaction_lag_ms
    due_ms = now_ms - config.max_compaction_lag_ms
    overdue = False
    clean = dirty = 0
    first_uncleanable = active_base
    for slot, segment in enumerate(sealed):
        end = sealed[slot + 1].base_offset if slot + 1 < len(sealed) else active_base
        is_dirty = end > first_dirty
        if end > stable_end or (
            is_dirty
            and config.min_compaction_lag_ms > 0
            and segment.max_timestamp > oldest_untouchable
        ):
            first_uncleanable = segment.base_offset
            break
        if is_dirty:
            dirty += segment.size
            if due_ms > 0 and not overdue:
                overdue = 0 < segment.read_first_timestamp() < due_ms
        # A segment in the middle of which the last pass stopped is both.
        if segment.base_offset < first_dirty:
            clean += segment.size
    return Dirt(first_dirty, first_uncleanable, clean, dirty, overdue)


def wants_cleaning(dirt: Dirt, config: LogConfig) -> bool:
    """Whether it is worth a pass."""
    if not dirt.dirty_bytes or not config.compacts:
        return False
    return dirt.overdue or dirt.ratio > config.min_cleanable_dirty_ratio


class SourceSegment(NamedTuple):
    """A segment that is to be rewritten."""

    base_offset: int
    end_offset: int  # where the next one begins
    size: int


class Weight(NamedTuple):
    """What a segment adds to the one that it becomes part of."""

    size: int
    offset_index_size: int
    time_index_size: int


def group(
    sources: Iterable[tuple[SourceSegment, Weight]], max_bytes: int, max_index_bytes: int
) -> list[list[SourceSegment]]:
    """Neighbours that together fit into one segment: by their bytes, by their index entries, and so
    that every offset can be told relative to the first one's base. A segment that is too large by
    itself stays alone."""
    groups: list[list[SourceSegment]] = []
    size = offsets = times = 0
    for source, weight in sources:
        size += weight.size
        offsets += weight.offset_index_size
        times += weight.time_index_size
        if (
            groups
            and len(groups[-1]) < LARGEST_GROUP
            and size <= max_bytes
            and offsets <= max_index_bytes
            and times <= max_index_bytes
            and source.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            groups[-1].append(source)
        else:
            groups.append([source])
            size, offsets, times = weight
    return groups
