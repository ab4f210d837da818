"""The sample pipeline: collected web-server logs become statistics, top pages, alerts and a table.

    ottla collect /var/log/nginx/access.log --topic weblogs
    ottla pipeline run examples/weblogs/job.py -- --topic weblogs --folder ./weblogs

reads the topic `weblogs`, whose records are lines of the combined format (Apache, nginx), and keeps up
to date, as three streaming queries:

    topic weblogs-minutes   statistics of each minute, by its time; a later record of a minute replaces
                            an earlier one, and the topic is compacted
    topic weblogs-pages     the pages that were asked for most in each minute, in the same way
    topic weblogs-alerts    a record for each ten seconds in which too many answers were errors
    FOLDER/requests         a Parquet table of all requests, by date

Each goes on where it was when it is started again (FOLDER/checkpoints), and each result counts once.
The functions from `requests` to `alerts` are plain DataFrame transformations: try them on a batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from ottla import Admin
from ottla.client.errors import TopicExists
from ottla.pipeline import session
from ottla.pipeline.spark.streams import trigger
from pyspark_ottla import write_batches

# address, user, time, method, target, status, bytes, referrer, agent
LINE: Final = (
    r'(?s)^(\S+) \S+ (\S+) \[([^\]]+)\] "(\S+) (\S+)[^"]*" (\d{3}) (\d+|-) "([^"]*)" "([^"]*)".*$'
)
FIELDS: Final = 9
TIME: Final = "dd/MMM/yyyy:HH:mm:ss Z"
BOTS: Final = r"(?i)bot|crawl|spider|python-requests|curl"

TOP_PAGES: Final = 10
LATE: Final = "2 minutes"  # lines that come later than this count no more
ALERT_LATE: Final = "5 seconds"
ALERT_REQUESTS: Final = 20  # in ten seconds; fewer say nothing
ALERT_SHARE: Final = 0.1  # of errors

_STATISTICS: Final = (
    "minute",
    "requests",
    "visitors",
    "by_bots",
    "bytes",
    "ok",
    "redirected",
    "refused",
    "errors",
    "malformed",
)


def requests(records: DataFrame) -> DataFrame:
    """A row for each line; of one that is no request only `time` (when it was collected) is known."""
    separator = "\u0001"
    fields = separator.join(f"${number}" for number in range(1, FIELDS + 1))
    line = F.make_valid_utf8(F.col("value").cast("string"))
    # One pass of the expression for all fields.
    split = F.split(F.regexp_replace(line, LINE, fields), separator)
    told = records.select("timestamp", split.alias("field"))
    valid = F.size("field") == FIELDS

    def field(number: int) -> Column:
        return F.when(valid, F.col("field")[number - 1])

    target = field(5)
    return told.select(
        F.coalesce(F.try_to_timestamp(field(3), F.lit(TIME)), "timestamp").alias("time"),
        field(1).alias("address"),
        F.nullif(field(2), F.lit("-")).alias("user"),
        field(4).alias("method"),
        F.substring_index(target, "?", 1).alias("page"),
        F.when(F.contains(target, F.lit("?")), F.substring_index(target, "?", -1)).alias("query"),
        field(6).cast("int").alias("status"),
        F.coalesce(field(7).try_cast("bigint"), F.when(valid, F.lit(0))).alias("bytes"),
        F.nullif(field(8), F.lit("-")).alias("referrer"),
        field(9).alias("agent"),
        F.rlike(field(9), F.lit(BOTS)).alias("bot"),
    )


def minutes(rows: DataFrame) -> DataFrame:
    """Statistics of each minute, and its top pages."""
    status = F.col("status")
    # What a page consists of is no page.
    page = F.when(~F.startswith(F.col("page"), F.lit("/static/")), F.col("page"))
    return (
        rows.withWatermark("time", LATE)
        .groupBy(F.window("time", "1 minute"))
        .agg(
            F.count("status").alias("requests"),
            F.approx_count_distinct("address").alias("visitors"),
            F.count_if("bot").alias("by_bots"),
            F.sum("bytes").alias("bytes"),
            F.count_if(status < 300).alias("ok"),
            F.count_if((status >= 300) & (status < 400)).alias("redirected"),
            F.count_if((status >= 400) & (status < 500)).alias("refused"),
            F.count_if(status >= 500).alias("errors"),
            F.count_if(status.isNull()).alias("malformed"),
            F.call_function("approx_top_k", page, F.lit(TOP_PAGES + 1)).alias("pages"),
        )
        .select(F.col("window.start").alias("minute"), "*")
        .drop("window")
        .withColumn("pages", _top_pages(F.col("pages")))
    )


def _top_pages(counted: Column) -> Column:
    named = F.filter(counted, lambda each: each["item"].isNotNull())
    renamed = F.transform(
        named, lambda each: F.struct(each["item"].alias("page"), each["count"].alias("requests"))
    )
    return F.slice(renamed, 1, TOP_PAGES)


def alerts(rows: DataFrame) -> DataFrame:
    """Every ten seconds in which too many answers were errors, once they are over."""
    errors = F.count_if(F.col("status") >= 500)
    return (
        rows.withWatermark("time", ALERT_LATE)
        .groupBy(F.window("time", "10 seconds"))
        .agg(F.count("status").alias("requests"), errors.alias("errors"))
        .where(F.col("requests") >= ALERT_REQUESTS)
        .where(F.col("errors") >= F.col("requests") * ALERT_SHARE)
        .select(
            F.col("window.start").alias("since"),
            F.col("window.end").alias("until"),
            "requests",
            "errors",
            F.round(F.col("errors") / F.col("requests"), 3).alias("share"),
        )
    )


@dataclass(frozen=True)
class Weblogs:
    """Where the pipeline reads and writes."""

    servers: str
    topic: str
    folder: Path

    @property
    def minutes(self) -> str:
        return f"{self.topic}-minutes"

    @property
    def pages(self) -> str:
        return f"{self.topic}-pages"

    @property
    def alerts(self) -> str:
        return f"{self.topic}-alerts"

    @property
    def results(self) -> list[str]:
        """The topics of the results."""
        return [self.minutes, self.pages, self.alerts]

    @property
    def table(self) -> Path:
        return self.folder / "requests"

    def create_topics(self) -> None:
        """Make those topics that are not there."""
        newest_only = {"cleanup.policy": "compact"}
        with Admin(self.servers) as admin:
            for topic, settings in (
                (self.topic, {}),
                (self.minutes, newest_only),
                (self.pages, newest_only),
                (self.alerts, {}),
            ):
                with suppress(TopicExists):
                    admin.create_topic(topic, settings=settings)

    def requests(self, spark: SparkSession) -> DataFrame:
        """The requests in the topic, those that come included."""
        records = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")  # what retention took is no reason to stop
            .load()
        )
        return requests(records)

    def warm(self, spark: SparkSession) -> None:
        """Have Spark start what the queries will need; nothing is written.

        There is a Python process for each thing that a source does, and these start one after the
        other where each waits for the one before. Called beside `start`, this saves seconds.
        """
        servers = {"kafka.bootstrap.servers": self.servers}
        future = {
            "startingTimestamp": str(2**62),  # milliseconds
            "startingOffsetsByTimestampStrategy": "latest",
        }
        records = spark.read.format("ottla").options(**servers, **future, subscribe=self.topic)
        records.load().count()

        # A function inside another is sent as code: Spark's workers cannot import this module.
        def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return batches

        numbers = spark.range(0, 2, 1, 2).selectExpr("CAST(id AS STRING) AS value")
        none = numbers.mapInArrow(unchanged, "value string").where("value < '0'")
        sink = none.write.format("ottla").mode("append")
        sink.options(**servers, topic=self.minutes).save()

    def start(self, spark: SparkSession, *, once: bool = False) -> dict[str, StreamingQuery]:
        """Start the queries, by their names; with `once` they end when all there is was read."""
        return {
            "minutes": self.start_minutes(spark, once=once),
            "alerts": self.start_alerts(spark, once=once),
            "table": self.start_table(spark, once=once),
        }

    def start_minutes(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        # Each minute is two records, which are written together.
        statistics = F.to_json(F.struct(*_STATISTICS))
        found = minutes(self.requests(spark)).select(
            F.date_format("minute", "yyyy-MM-dd'T'HH:mm").alias("minute"), *_STATISTICS[1:], "pages"
        )
        pages = F.to_json(F.struct("minute", "pages"))
        records = found.select(
            F.col("minute").alias("key"),
            F.explode(
                F.array(
                    F.struct(F.lit(self.minutes).alias("topic"), statistics.alias("value")),
                    F.struct(F.lit(self.pages).alias("topic"), pages.alias("value")),
                )
            ).alias("record"),
        ).select("key", "record.*")
        # Minutes that go on are written again: the update mode, which only foreachBatch has.
        return (
            records.writeStream.queryName("minutes")
            .outputMode("update")
            .foreachBatch(write_batches({"kafka.bootstrap.servers": self.servers}))
            .option("checkpointLocation", str(self.folder / "checkpoints" / "minutes"))
            .trigger(**trigger("1 second", once=once))
            .start()
        )

    def start_alerts(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        found = alerts(self.requests(spark))
        return (
            found.select(F.to_json(F.struct("*")).alias("value"))
            .writeStream.queryName("alerts")
            .format("ottla")
            .option("kafka.bootstrap.servers", self.servers)
            .option("topic", self.alerts)
            .option("checkpointLocation", str(self.folder / "checkpoints" / "alerts"))
            .trigger(**trigger("5 seconds", once=once))
            .start()
        )

    def start_table(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        return (
            self.requests(spark)
            .withColumn("date", F.to_date("time"))
            .writeStream.queryName("table")
            .format("parquet")
            .partitionBy("date")
            .option("path", str(self.table))
            .option("checkpointLocation", str(self.folder / "checkpoints" / "table"))
            .trigger(**trigger("10 seconds", once=once))
            .start()
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Statistics of collected web-server logs.")
    parser.add_argument("--server", default="127.0.0.1:9092", help="a broker, HOST:PORT")
    parser.add_argument("--topic", default="weblogs", help="where the lines are")
    parser.add_argument("--folder", type=Path, default=Path("weblogs"), help="for the table")
    parser.add_argument("--once", action="store_true", help="stop when all there is was read")
    given = parser.parse_args()
    weblogs = Weblogs(given.server, given.topic, given.folder)
    weblogs.create_topics()
    spark = session(name="weblogs", settings={"spark.sql.session.timeZone": "UTC"})
    weblogs.start(spark, once=given.once)
    for query in spark.streams.active:
        query.awaitTermination()


if __name__ == "__main__":
    main()
