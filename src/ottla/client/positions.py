"""Where in a partition: its partition, and a position in it.

Wherever the client takes a position it takes any of

    "earliest", "latest"       the first record that is still there; the end
    42                         an offset
    -10                        ten records before the end
    datetime(2026, 11, 15)     the first record of that time or later (naive: local time)
    Position.max_timestamp()   the record with the largest timestamp
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """A partition of a topic. It prints as Kafka names it: orders-3."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Kind(enum.Enum):
    """What kind of position it is."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    BEFORE_END = "before end"
    TIME = "time"
    MAX_TIMESTAMP = "max timestamp"


@dataclass(frozen=True, slots=True)
class Position:
    """A position, before it is looked up in a partition."""

    kind: Kind
    number: int = 0  # the offset, the records before the end, or milliseconds since 1970

    @classmethod
    def earliest(cls) -> Position:
        return cls(Kind.EARLIEST)

    @classmethod
    def latest(cls) -> Position:
        return cls(Kind.LATEST)

    @classmethod
    def offset(cls, offset: int) -> Position:
        return cls(Kind.OFFSET, offset)

    @classmethod
    def before_end(cls, records: int) -> Position:
        return cls(Kind.BEFORE_END, records)

    @classmethod
    def time(cls, milliseconds: int) -> Position:
        """The first record whose timestamp is this or later, in milliseconds since 1970."""
        return cls(Kind.TIME, milliseconds)

    @classmethod
    def max_timestamp(cls) -> Position:
        return cls(Kind.MAX_TIMESTAMP)

    def __str__(self) -> str:
        if self.kind in (Kind.OFFSET, Kind.BEFORE_END, Kind.TIME):
            return f"{self.kind.value} {self.number}"
        return str(self.kind.value)


EARLIEST = Position.earliest()
LATEST = Position.latest()

AnyPosition: TypeAlias = Position | str | int | datetime


def position_of(given: AnyPosition) -> Position:
    """The position that a user means; ValueError if it is none."""
    if isinstance(given, Position):
        return given
    if isinstance(given, datetime):
        return Position.time(round(given.timestamp() * 1000))
    if isinstance(given, int) and not isinstance(given, bool):
        return Position.offset(given) if given >= 0 else Position.before_end(-given)
    if given == "earliest":
        return EARLIEST
    if given == "latest":
        return LATEST
    raise ValueError(
        f"{given!r} is no position; take 'earliest', 'latest', an offset or a datetime"
    )


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The offset at a position. None: no record is so late (of times only)."""

    offset: int | None
    timestamp: int | None = None  # of the record there, where the position was a time
    leader_epoch: int | None = None

    def back_by(self, records: int, start: int) -> FoundOffset:
        """So many records earlier, but not before `start`."""
        if self.offset is None:
            return self
        return dataclasses.replace(self, offset=max(start, self.offset - records))
