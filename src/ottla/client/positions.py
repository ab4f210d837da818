"""Where in a partition: its partition, and a position in it.

Wherever the client takes a position it takes any of

    "earliest", "latest"       the first record that is still there; the end
    42                         an offset
    -10                        ten records before the end
    datetime(2026, 11, 15, tzinfo=UTC)   the first record of that time or later
    date(2026, 11, 15)         the first of that day (in UTC) or later
    "2026-11-15T08:30Z"        the same as text, as ISO 8601 writes it
    timedelta(minutes=15)      the first of the last fifteen minutes
    Position.max_timestamp()   the record with the largest timestamp

A time without a zone is UTC; see ottla.client.times.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple, TypeAlias

from ottla.client.times import milliseconds_ago, milliseconds_of, milliseconds_of_day


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

AnyPosition: TypeAlias = Position | str | int | datetime | date | timedelta


def position_of(given: AnyPosition) -> Position:
    """The position that a user means; ValueError or TypeError if it is none."""
    match given:
        case Position():
            return given
        case datetime():
            return Position.time(milliseconds_of(given))
        case date():
            return Position.time(milliseconds_of_day(given))
        case timedelta():
            return Position.time(milliseconds_ago(given))
        case int() if not isinstance(given, bool):
            return Position.offset(given) if given >= 0 else Position.before_end(-given)
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case str():
            return _position_in_text(given)
    raise TypeError(f"{given!r} is no position; take {_POSITIONS}")


_POSITIONS = (
    "'earliest', 'latest', an offset, a datetime, a date, a timedelta or an ISO time "
    "('2026-11-15T08:30Z')"
)


def _position_in_text(text: str) -> Position:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no position; take {_POSITIONS}") from None
    if len(text) <= _DAY_LENGTH and moment.tzinfo is None:
        return Position.time(milliseconds_of_day(moment.date()))
    return Position.time(milliseconds_of(moment))


_DAY_LENGTH = len("2026-11-15")


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
