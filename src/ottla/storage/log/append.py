"""One append on its way through a log: checked, written, committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ottla.record.batch import HeaderFields, records
from ottla.record.errors import InvalidRecord
from ottla.record.offset_set import OffsetRange
from ottla.storage.log.producer_state import EndMarker

if TYPE_CHECKING:
    from ottla.storage.segments.segment import Segment

# A batch with its place: position in the buffer, size, header as it came, first and last offset,
# largest timestamp as stored, and the marker if it ends a transaction, or what it marks as deleted.
PlacedBatch: TypeAlias = tuple[
    int, int, HeaderFields, int, int, int, EndMarker | list[OffsetRange] | None
]


class Append:
    """What `Log.prepare` found and decided. Until `Log.commit` the log knows nothing of it."""

    __slots__ = (
        "base_offset",
        "batches",
        "buffer",
        "duplicate",
        "last_offset",
        "leader_epoch",
        "log_append_time",
        "log_start_offset",
        "now_ms",
        "position",
        "segment",
        "size",
    )

    def __init__(
        self,
        base_offset: int,
        last_offset: int,
        log_append_time: int,
        log_start_offset: int,
        size: int,
        leader_epoch: int,
        buffer: bytes | bytearray | memoryview,
        segment: Segment,
        position: int,
        batches: list[PlacedBatch],
        now_ms: int,
    ) -> None:
        # Of the first and last record; of the original if this is a duplicate.
        self.base_offset = base_offset
        self.last_offset = last_offset
        # Milliseconds, -1 if the records keep the time their producer gave them.
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.size = size
        # Written before: nothing is left to do, and base_offset is the answer.
        self.duplicate = False
        # The rest is the log's own. An epoch of -1: the batches have their own. A segment that is
        # not the active one is to be made: a roll.
        self.leader_epoch = leader_epoch
        self.buffer = buffer
        self.segment = segment
        self.position = position
        # Empty for a duplicate.
        self.batches = batches
        self.now_ms = now_ms


def read_marker(batch: bytes | bytearray | memoryview) -> EndMarker | None:
    """The end of a transaction in a control batch; None if it is a control batch of another kind,
    which the producer state has nothing to do with."""
    for record in records(batch):
        key = record.key
        if key is None or len(key) < 4:
            raise InvalidRecord("a control record without a type")
        if key[2:4] not in (b"\0\0", b"\0\1"):
            return None
        try:
            return EndMarker.parse(key, record.value)
        except ValueError as error:
            raise InvalidRecord(str(error)) from error
    return None
