"""What is a position, and what a time without a zone means."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.positions import Kind, Position, position_of
from ottla.client.times import TimeWithoutZone

MOMENT = 1794733200000  # 2026-11-15T09:00Z


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 11, 15, 9, tzinfo=UTC),
        datetime(2026, 11, 15, 10, tzinfo=timezone(timedelta(hours=1))),
        "2026-11-15T09:00Z",
        "2026-11-15 10:00:00+01:00",
    ],
)
def test_times(given: datetime | str) -> None:
    assert position_of(given) == Position(Kind.TIME, MOMENT)


@pytest.mark.usefixtures("in_tokyo")
def test_days_are_days_in_utc() -> None:
    midnight = Position(Kind.TIME, MOMENT - 9 * 3_600_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert position_of(date(2026, 11, 15)) == midnight
        assert position_of("2026-11-15") == midnight


@pytest.mark.parametrize("sign", [1, -1])
def test_spans_are_ago(sign: int) -> None:
    before = time.time_ns() // 1_000_000
    position = position_of(sign * timedelta(minutes=15))
    after = time.time_ns() // 1_000_000
    assert position.kind is Kind.TIME
    assert before <= position.number + 900_000 <= after


def test_times_before_1970_are_no_other_position() -> None:
    # ListOffsets has -1 for the end.
    assert position_of(datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)) == Position(Kind.TIME, 0)


@pytest.mark.parametrize("given", ["now", "", "10", True, None, 1.5, b"latest"])
def test_no_positions(given: object) -> None:
    with pytest.raises((ValueError, TypeError), match="is no position; take 'earliest'"):
        position_of(given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_tokyo")
def test_a_time_without_a_zone_is_utc_and_warned_of() -> None:
    for given in (datetime(2026, 11, 15, 9), "2026-11-15T09:00"):
        with pytest.warns(TimeWithoutZone, match="2026-11-15T09:00:00 has no time zone"):
            assert position_of(given) == Position(Kind.TIME, MOMENT)


def test_where_local_time_is_utc_there_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert position_of(datetime(2026, 11, 15, 9)) == Position(Kind.TIME, MOMENT)


@pytest.mark.usefixtures("in_tokyo")
def test_what_is_written_at_a_time_is_read_at_that_time(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    times = [now - timedelta(hours=2), now - timedelta(hours=1), now]
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap) as producer:
        with pytest.warns(TimeWithoutZone):
            producer.write(topic, pa.table({"value": ["a", "b", "c"], "timestamp": times}))
        with pytest.warns(TimeWithoutZone):
            producer.send(topic, b"d", timestamp=now + timedelta(seconds=1))
    with Consumer(bootstrap) as consumer:
        with pytest.warns(TimeWithoutZone):
            found = consumer.read(topic, times[1], columns=["value", "timestamp"])
        assert found["value"].to_pylist() == [b"b", b"c", b"d"]
        assert found["timestamp"][0].as_py() == times[1].replace(tzinfo=UTC)
        assert consumer.read(topic, timedelta(minutes=90)).num_rows == 3
        assert consumer.read(topic, end=(times[2].isoformat() + "Z")).num_rows == 2
        assert consumer.read(topic, (now - timedelta(days=1)).date()).num_rows == 4
