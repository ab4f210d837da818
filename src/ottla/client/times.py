"""Times as users give them, in milliseconds since 1970.

A time without a zone is UTC, wherever one is given: as a position, as a record's timestamp, in a table
that is written. What is read back is in UTC, too. Where the machine is in another zone, such a time may
be meant otherwise (`datetime.now()` gives one), so that a warning says how it is taken.
"""

from __future__ import annotations

import time
import warnings
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Final

_MIDNIGHT: Final = time_of_day()


class TimeWithoutZone(UserWarning):
    """A time without a zone was taken as UTC, on a machine whose zone is another."""


def milliseconds_of(moment: datetime) -> int:
    """A moment in milliseconds since 1970, not before; ValueError where it is none (NaT)."""
    if moment.tzinfo is None:
        warn_without_zone(moment)
        moment = moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1000))


def milliseconds_of_day(day: date) -> int:
    """The beginning of a day, in UTC."""
    return max(0, round(datetime.combine(day, _MIDNIGHT, UTC).timestamp() * 1000))


def milliseconds_ago(span: timedelta) -> int:
    """So long before now, whichever sign it has: no record is of the future."""
    return max(0, time.time_ns() // 1_000_000 - round(abs(span).total_seconds() * 1000))


def local_offset(moment: datetime) -> timedelta:
    """How far the machine's time is ahead of UTC at a moment (without a zone)."""
    try:
        return moment.astimezone().utcoffset() or timedelta(0)
    except (OverflowError, ValueError, OSError):  # years that the machine's zone does not know
        return timedelta(0)


def warn_without_zone(moment: datetime) -> None:
    """Tell that a time without a zone is taken as UTC, if that is in doubt here."""
    if local_offset(moment):
        warnings.warn(
            f"{moment.isoformat()} has no time zone and is taken as UTC, which is not this "
            "machine's: say which you mean, for example datetime.now(UTC) or .astimezone()",
            TimeWithoutZone,
            stacklevel=3,
        )
