"""The words for a place in a partition."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.failures import Misuse
from ottla.cli.records.positions import EARLIEST, LATEST, Kind, Position, parse_position, show_time


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


@pytest.fixture
def in_india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_india")
def test_a_time_without_a_zone_is_utc_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_position("2026-11-15T09:00", "--from") == Position(Kind.TIME, 1794733200000)
    assert capsys.readouterr().err == (
        "2026-11-15T09:00 is taken as UTC; for local time say 2026-11-15T09:00+05:30\n"
    )
    midnight = 1794733200000 - 9 * 3_600_000
    assert parse_position("2026-11-15", "--from") == Position(Kind.TIME, midnight)
    assert "say 2026-11-15T00:00+05:30" in capsys.readouterr().err
    parse_position("2026-11-15T09:00Z", "--from")
    assert capsys.readouterr().err == ""


def test_where_local_time_is_utc_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert parse_position("2026-11-15T09:00", "--from") == Position(Kind.TIME, 1794733200000)
    assert capsys.readouterr().err == ""


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
