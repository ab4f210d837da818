"""What can be wrong with a record batch.

One family: a caller who only asks "good or bad" catches `InvalidBatch`, and a caller who has to
answer a client picks the protocol's error by the subclass:

    CorruptBatch        damaged on the way: CORRUPT_MESSAGE (a client sends it again)
    Truncated           a CorruptBatch that is merely too short: a torn tail, a partial fetch
    InvalidRecord       undamaged, but not what a producer may send: INVALID_RECORD (no retry helps)
    WrongTimestampType  an InvalidRecord whose sender took the broker's clock: INVALID_TIMESTAMP
    InvalidRecords      an InvalidRecord that names the records that are at fault: INVALID_RECORD
    InvalidTimestamps   InvalidRecords whose times are out of range: INVALID_TIMESTAMP
    UnsupportedMagic    an InvalidRecord in a message format that the reader at hand does not know
    TooLarge            more bytes after decompression than the caller is ready to hold
"""

from __future__ import annotations

from collections.abc import Sequence


class InvalidBatch(ValueError):
    """A batch or message set that is not accepted; `reason` is one line for a log or a client."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidBatch], tuple[str]]:
        # Raised in worker processes too, so it has to survive pickling.
        return type(self), (self.reason,)


class CorruptBatch(InvalidBatch):
    """A checksum or a length does not fit the bytes."""


class Truncated(CorruptBatch):
    """The buffer ends before the batch does."""


class InvalidRecord(InvalidBatch):
    """The checksum holds, yet the contents break the rules of the format."""


class WrongTimestampType(InvalidRecord):
    """A producer claims that its timestamps are the broker's."""


class InvalidRecords(InvalidRecord):
    """Records that can be read, yet may not be in their topic: `records` has the place of each in its
    batch, with the reason."""

    def __init__(self, reason: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(reason)
        self.records = records

    def __reduce__(self) -> tuple[type[InvalidRecords], tuple[str, Sequence[tuple[int, str]]]]:  # type: ignore[override]
        return type(self), (self.reason, self.records)


class InvalidTimestamps(InvalidRecords):
    """The times of some records are not in the range that their topic allows."""


class UnsupportedMagic(InvalidRecord):
    """The magic byte names a format that this reader does not handle."""


class TooLarge(InvalidBatch):
    """The decompressed contents exceed the caller's limit."""
