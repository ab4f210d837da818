"""The words for a place in a partition."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.failures import Misuse
from ottla.cli.positions import EARLIEST, LATEST, Kind, Position, parse_position, show_time


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", Position(Kind.OFFSET, 0)),
        ("42", Position(Kind.OFFSET, 42)),
        ("-10", Position(Kind.BEFORE_END, 10)),
        ("@1794733200000", Position(Kind.TIME, 1794733200000)),
        ("2026-11-15T09:00:00Z", Position(Kind.TIME, 1794733200000)),
        ("2026-11-15T10:00+01:00", Position(Kind.TIME, 1794733200000)),
        ("2026-11-15T09:00:00.250+00:00", Position(Kind.TIME, 1794733200250)),
        ("1960-01-01T00:00Z", Position(Kind.TIME, 0)),
    ],
)
def test_words(text: str, position: Position) -> None:
    assert parse_position(text, "--from") == position


def test_a_time_without_a_zone_is_local() -> None:
    expected = round(datetime(2026, 11, 15, 8, 30).timestamp() * 1000)
    assert parse_position("2026-11-15T08:30", "--from") == Position(Kind.TIME, expected)
    midnight = round(datetime(2026, 11, 15).timestamp() * 1000)
    assert parse_position("2026-11-15", "--from") == Position(Kind.TIME, midnight)


@pytest.mark.parametrize(
    ("text", "ago"), [("-30s", 30), ("-15m", 900), ("-2h", 7200), ("-7d", 604800)]
)
def test_a_time_ago(text: str, ago: int) -> None:
    before = time.time_ns() // 1_000_000
    position = parse_position(text, "--from")
    after = time.time_ns() // 1_000_000
    assert position.kind is Kind.TIME
    assert before <= position.number + ago * 1000 <= after


@settings(deadline=None)
@given(st.text(max_size=20))
def test_anything_is_a_place_or_a_misuse(text: str) -> None:
    try:
        position = parse_position(text, "--from")
    except Misuse:
        return
    assert 0 <= position.number < 2**63


def test_times_are_shown_in_utc() -> None:
    assert show_time(1794733200250) == "2026-11-15T09:00:00.250Z"
    assert show_time(-1) == "-"
    assert show_time(2**62) == f"@{2**62}"
