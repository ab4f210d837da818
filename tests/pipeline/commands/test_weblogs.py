"""The sample pipeline: what lines become, and what is there when it was stopped and went on."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla import Consumer, Producer
from ottla.testing import BrokerProcess
from weblogs.job import Weblogs, alerts, minutes, requests
from weblogs.traffic import Traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
COLLECTED = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


def line(second: float, page: str = "/", status: int = 200, address: str = "192.0.2.1") -> str:
    time = (NOON + timedelta(seconds=second)).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{address} - - [{time}] "GET {page} HTTP/1.1" {status} 100 "-" "Firefox"'


def records(spark: SparkSession, *lines: str | bytes) -> DataFrame:
    rows = [(each.encode() if isinstance(each, str) else each, COLLECTED) for each in lines]
    return spark.createDataFrame(rows, "value binary, timestamp timestamp")


def test_the_fields_of_a_line(spark: SparkSession) -> None:
    crawler = '"http://www.example/start" "Mozilla/4.08 (compatible; Googlebot)"'
    lines = (
        '192.0.2.7 - ann [10/Oct/2026:13:55:36 -0700] "GET /a%20b?x=1&y HTTP/1.0" 200 2326 '
        + crawler,
        '2001:db8::1 - - [15/Nov/2026:12:00:00 +0000] "HEAD / HTTP/2.0" 304 - "-" ""',
        "no request at all",
        b'\xff\xfe" \x01\x01\x01\x01\x01\x01\x01',
        '192.0.2.7 - - [99/Foo/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"',
    )
    first, second, third, fourth, fifth = requests(records(spark, *lines)).collect()
    assert first.asDict() == {
        "time": datetime(2026, 10, 10, 20, 55, 36),
        "address": "192.0.2.7",
        "user": "ann",
        "method": "GET",
        "page": "/a%20b",
        "query": "x=1&y",
        "status": 200,
        "bytes": 2326,
        "referrer": "http://www.example/start",
        "agent": "Mozilla/4.08 (compatible; Googlebot)",
        "bot": True,
    }
    assert (second.address, second.user, second.bytes, second.query) == (
        "2001:db8::1",
        None,
        0,
        None,
    )
    for malformed in (third, fourth):
        assert malformed.time == COLLECTED.replace(tzinfo=None)
        assert malformed.status is None
        assert malformed.page is None
        assert malformed.bytes is None
    assert (fifth.time, fifth.status) == (COLLECTED.replace(tzinfo=None), 200)


def test_a_minute_in_numbers(spark: SparkSession) -> None:
    lines = [
        line(second, f"/{second % 3}", address=f"192.0.2.{second % 4}") for second in range(59)
    ]
    lines += [
        line(59, "/0", 503),
        line(59, "/0", 404),
        line(59, "/0", 301),
        line(1, "/static/x.css"),
    ]
    lines += [line(60, "/next"), "garbage"]
    noon, following, collected = minutes(requests(records(spark, *lines))).sort("minute").collect()
    assert noon.minute == NOON.replace(tzinfo=None)
    assert noon.requests == 63
    assert noon.visitors == 4
    assert noon.bytes == 6300
    assert (noon.ok, noon.redirected, noon.refused, noon.errors) == (60, 1, 1, 1)
    assert [(each.page, each.requests) for each in noon.pages] == [
        ("/0", 23),
        ("/1", 20),
        ("/2", 19),
    ]
    assert (following.requests, following.malformed) == (1, 0)
    assert (collected.requests, collected.malformed) == (0, 1)


def test_alerts_are_for_many_errors_among_many_requests(spark: SparkSession) -> None:
    lines = [line(1, status=500 if number < 4 else 200) for number in range(20)]
    lines += [line(11, status=500 if number < 1 else 200) for number in range(20)]  # few errors
    lines += [line(21, status=500) for _ in range(10)]  # few requests
    (alert,) = alerts(requests(records(spark, *lines))).collect()
    assert alert.since == NOON.replace(tzinfo=None)
    assert alert.until == NOON.replace(tzinfo=None) + timedelta(seconds=10)
    assert (alert.requests, alert.errors, alert.share) == (20, 4, 0.2)


def newest(bootstrap: str, topic: str) -> dict[str, Any]:
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic, columns=["key", "value"])
    pairs = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    return {key.decode(): json.loads(value) for key, value in pairs}


@pytest.mark.timeout(180)
@pytest.mark.long
def test_stopped_and_gone_on(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    weblogs = Weblogs(broker.bootstrap, topic, tmp_path)
    weblogs.create_topics()
    weblogs.create_topics()  # they are there
    start = NOON.timestamp()
    lines = Traffic(7, 20, start).until(start + 240)
    cut = len(lines) // 2
    with Producer(broker.bootstrap) as producer:
        for each in lines[:cut]:
            producer.send(topic, each)
        producer.flush()
        weblogs.start_minutes(spark, once=True).awaitTermination()
        for each in lines[cut:]:
            producer.send(topic, each)
    for query in weblogs.start(spark, once=True).values():
        query.awaitTermination()

    statistics = newest(broker.bootstrap, weblogs.minutes)
    assert sum(each["requests"] for each in statistics.values()) == len(lines)
    # Minutes of one batch are written by several tasks, in any order.
    assert sorted(statistics) == [f"2026-11-15T12:0{minute}" for minute in range(4)]
    assert all(each["malformed"] == 0 for each in statistics.values())
    errors = sum(f'" {status} ' in each for each in lines for status in (500, 502, 503))
    assert sum(each["errors"] for each in statistics.values()) == errors > 0

    asked = Counter(
        each.split('"')[1].split()[1].partition("?")[0] for each in lines if "12:02:" in each
    )
    pages = newest(broker.bootstrap, weblogs.pages)["2026-11-15T12:02"]["pages"]
    assert pages[0] == {"page": "/", "requests": asked["/"]}
    assert len(pages) == 10

    rows = spark.read.parquet(str(weblogs.table))
    assert rows.count() == len(lines)
    assert [str(each.date) for each in rows.select("date").distinct().collect()] == ["2026-11-15"]

    with Consumer(broker.bootstrap) as consumer:
        told = [json.loads(value) for value in consumer.read(weblogs.alerts)["value"].to_pylist()]
    wanted = alerts(requests(records(spark, *lines))).sort("since").collect()
    # The last ten seconds may go on; all others are told once.
    told.sort(key=lambda each: str(each["since"]))
    assert [each["errors"] for each in told] == [each.errors for each in wanted][: len(told)]
    assert len(told) >= max(1, len(wanted) - 2)
