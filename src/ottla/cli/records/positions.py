"""Where in a partition to begin or to end: the words that `--from`, `--until` and `--at` take.

earliest, latest      the first record still there; the end as of now
42                    an offset
-10                   ten records before the end, in each partition
2026-11-15T08:30      a time (UTC, or with a zone: +01:00), also only a date
@1794733200000        a time in milliseconds since 1970
-15m                  that long ago: s, m, h or d
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from ottla.cli.failures import Misuse
from ottla.cli.output import note
from ottla.client.positions import EARLIEST, LATEST, Kind, Position
from ottla.client.times import local_offset

WORDS = "earliest, latest, an offset (42, or -10 for ten before the end), or a time"

_OFFSET = re.compile(r"[0-9]+")
_BEFORE_END = re.compile(r"-([0-9]+)")
_MILLISECONDS = re.compile(r"@([0-9]+)")
_AGO = re.compile(r"-([0-9]+)([smhd])")
_SPAN = re.compile(r"([0-9]+)([smhd])")
# As ISO 8601 and Kafka's own tools write it: P1DT2H30M15S.
_ISO_SPAN = re.compile(
    r"P(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?", re.IGNORECASE
)
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LARGEST = 2**63 - 1

__all__ = ["EARLIEST", "LATEST", "Kind", "Position", "parse_position", "parse_span", "show_time"]


def parse_position(text: str, option: str) -> Position:
    word = text.strip()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    if _OFFSET.fullmatch(word):
        return Position(Kind.OFFSET, _bounded(int(word), text, option))
    if match := _BEFORE_END.fullmatch(word):
        return Position(Kind.BEFORE_END, _bounded(int(match[1]), text, option))
    if match := _MILLISECONDS.fullmatch(word):
        return Position(Kind.TIME, _bounded(int(match[1]), text, option))
    if match := _AGO.fullmatch(word):
        ago = int(match[1]) * _UNITS[match[2]]
        return Position(Kind.TIME, max(0, time.time_ns() // 1_000_000 - ago))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise Misuse(
            f"{option} takes {WORDS} (2026-11-15T08:30, @MILLISECONDS, -15m), not '{text}'"
        ) from None
    try:
        if moment.tzinfo is None:
            _tell_zone(text, moment)
            moment = moment.replace(tzinfo=UTC)
        return Position(Kind.TIME, max(0, round(moment.timestamp() * 1000)))
    except (OverflowError, ValueError, OSError):
        raise Misuse(f"{option}: the time '{text}' is out of range") from None


def _tell_zone(text: str, moment: datetime) -> None:
    """Times are shown in UTC and read as UTC; whoever lives elsewhere may have meant another."""
    ahead = local_offset(moment)
    if ahead:
        minutes = round(ahead.total_seconds() / 60)
        zone = f"{'+' if minutes > 0 else '-'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
        day_only = "T00:00" if len(text.strip()) <= len("2026-11-15") else ""
        note(f"{text} is taken as UTC; for local time say {text.strip()}{day_only}{zone}")


def parse_span(text: str, option: str) -> int:
    """A length of time in milliseconds: 90s, 15m, 2h, 7d, or P1DT12H."""
    word = text.strip()
    if match := _SPAN.fullmatch(word):
        return _bounded(int(match[1]) * _UNITS[match[2]], text, option)
    match = _ISO_SPAN.fullmatch(word)
    if match is None or not any(match.groups()):
        raise Misuse(f"{option} takes a length of time (15m, 2h, 7d, P1DT12H), not '{text}'")
    parts = zip(match.groups(), "dhms", strict=True)
    return _bounded(sum(int(part or 0) * _UNITS[unit] for part, unit in parts), text, option)


def _bounded(number: int, text: str, option: str) -> int:
    if number > _LARGEST:
        raise Misuse(f"{option}: '{text}' is larger than any offset or time can be")
    return number


def show_time(milliseconds: int) -> str:
    """A record's timestamp for people, in UTC so that it does not depend on where one reads."""
    if milliseconds < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{milliseconds}"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"
