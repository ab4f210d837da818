"""Streaming queries on the terminal: how they are shown, stopped, and how they fail."""

from __future__ import annotations

import os
import pty
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.pipeline.spark.errors import error_sentence
from ottla.pipeline.spark.progress import QueryFailed, show, show_all, stop_signals, wait, watching
from ottla.pipeline.spark.session import log_file
from pyspark_ottla.errors import DataLost

FRAMES = """Traceback (most recent call last):
  File "/python/pyspark_ottla/source.py", line 60, in partitions
    return [InputPartition(piece) for piece in broker.plan(self._options)]
                                               ^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
QUERY = "Query [id = 30-e1, runId = 59-a0] terminated with exception: "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            (
                "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
                f"{FRAMES}pyspark_ottla.errors.OptionError: subscrib is no option of the source\n"
                " SQLSTATE: 38000"
            ),
            "subscrib is no option of the source",
        ),
        (
            (
                f"[STREAM_FAILED] {QUERY}[PYTHON_DATA_SOURCE_ERROR] Failed to plan: {FRAMES}"
                "ottla.client.errors.TimedOut: Metadata was not done within 3 s\n\n"
                f"During handling of the above exception, another exception occurred:\n\n{FRAMES}"
                "UnboundLocalError: cannot access local variable 'reader'\n"
                " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 30-e1]"
            ),
            "Metadata was not done within 3 s",
        ),
        (
            (
                "[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source `ottla`: "
                "ottla.client.errors.ClusterUnreachable: cannot connect to a:1: refused\n"
                " SQLSTATE: 38000"
            ),
            "cannot connect to a:1: refused",
        ),
        (
            (
                "Job aborted due to stage failure: (here executor driver): "
                "org.apache.spark.api.python.PythonException: pyspark_ottla.errors.DataLost: orders-0 "
                "begins at 17\n\n\tat org.apache.spark.A.b(C:1)"
            ),
            "orders-0 begins at 17",
        ),
        (
            (
                f"An exception was thrown from the Python worker:\n{FRAMES}"
                "shop.Broken: no such thing:\nsecond line\n"
            ),
            "Broken: no such thing: second line",
        ),
        (
            (
                "An error occurred while calling o73.collectToPython.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage "
                "3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 7) (here "
                f"executor driver): org.apache.spark.api.python.PythonException: {FRAMES}"
                "pyspark_ottla.errors.DataLost: orders-0 begins at 17\n\n\tat org.apache.spark.A.b(C:1)"
            ),
            "orders-0 begins at 17",
        ),
        (
            (
                "An error occurred while calling o73.count.\n: org.apache.spark.SparkException: Job "
                "aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: "
                "Lost task 0.0 in stage 3.0 (TID 7) (here executor driver): "
                "java.lang.OutOfMemoryError: Java heap space\n\tat java.base/A.b(C.java:1)\n\n"
                "Driver stacktrace:\n\tat org.apache.D.e(F.scala:2)"
            ),
            "Java heap space",
        ),
        (
            (
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you "
                "mean one of the following? [`y`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n"
            ),
            (
                "A column with name `x` cannot be resolved. Did you mean one of the following? [`y`] "
                "(line 1, position 7)"
            ),
        ),
        (
            (
                "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)"
                "\n\n== SQL ==\nselec x\n^^^\n"
            ),
            "Syntax error at or near 'selec' (line 1, position 0)",
        ),
        (
            (
                "[TABLE_NOT_FOUND] There is no such table.\nIf you did not qualify it, do.\n"
                "To tolerate it use DROP. SQLSTATE: 42P01"
            ),
            "There is no such table",
        ),
        ("", "Exception"),
    ],
)
def test_sentences(text: str, sentence: str) -> None:
    assert error_sentence(Exception(text)) == sentence


def rates(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 1000).load()


def ignore(batch: DataFrame, number: int) -> None:
    batch.count()


def thousand(spark: SparkSession) -> DataStreamWriter:
    """A thousand rows, read and forgotten."""
    folder = f"{spark.conf.get('spark.sql.warehouse.dir')}/thousand".removeprefix("file:")
    spark.range(1000).write.mode("overwrite").parquet(folder)
    rows = spark.readStream.schema("id bigint").parquet(folder)
    return rows.writeStream.foreachBatch(ignore)


def test_a_query_that_ends(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    query = thousand(spark).trigger(availableNow=True).start()
    assert show(query, what="a thousand", backlog=lambda: 7)
    assert capsys.readouterr().err.startswith("a thousand: 1,000 rows, batch 0, ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_query(spark: SparkSession, number: signal.Signals) -> None:
    """Sent in the middle of a batch, from another thread, as a terminal or an operator would."""

    def send(batch: DataFrame, batch_number: int) -> None:
        if batch_number == 1:
            os.kill(os.getpid(), number)

    query = rates(spark).writeStream.foreachBatch(send).start()
    before = signal.getsignal(number)
    assert not show(query, what="rates")
    assert not query.isActive
    assert query.exception() is None
    assert signal.getsignal(number) is before


def test_a_second_signal_interrupts() -> None:
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(10)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_failure_is_one_sentence_and_stops_the_others(spark: SparkSession) -> None:
    @udf("long")
    def broken(value: int) -> int:
        raise DataLost(f"orders-0 begins at 17, not at {value * 0}")

    fine = rates(spark).writeStream.foreachBatch(ignore).start()
    rows = rates(spark).select(broken("value").alias("value"))
    failing = rows.writeStream.foreachBatch(lambda batch, _: batch.collect()).start()
    with pytest.raises(QueryFailed) as raised:
        show_all({"fine": fine, "failing": failing})
    assert str(raised.value) == "orders-0 begins at 17, not at 0"
    assert not fine.isActive


def test_enough(spark: SparkSession) -> None:
    enough = threading.Event()
    query = rates(spark).writeStream.foreachBatch(lambda batch, number: enough.set()).start()
    assert not wait(query, enough=enough)
    assert not query.isActive


def test_watching(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """A query that others start and stop is shown, with all that it has done."""
    sessions: list[SparkSession] = []
    asked = threading.Event()

    def made() -> list[SparkSession]:
        if asked.is_set():
            sessions.append(spark)
        return sessions[:1]

    with watching(made) as display:
        asked.set()
        while len(sessions) < 2:  # asked for again when the listener is there
            threading.Event().wait(0.01)
        query = thousand(spark).queryName("watched").trigger(availableNow=True).start()
        query.awaitTermination()
        display.say("something happened")
    told = capfd.readouterr().err
    assert "something happened\n" in told
    assert "watched: 1,000 rows, batch 0, " in told


def test_a_line_that_is_kept_up_to_date(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()

    def take(batch: DataFrame, number: int) -> None:
        if batch.count() and number > 2:
            os.kill(os.getpid(), signal.SIGINT)

    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        # Asked for each line: the interrupt may come before the next one is due.
        monkeypatch.setattr("ottla.pipeline.spark.progress.BACKLOG_EVERY", 0.0)
        query = rates(spark).writeStream.foreachBatch(take).start()
        show(query, what="[rates]", backlog=lambda: 1234)
        terminal.flush()
        monkeypatch.undo()
        shown = os.read(ours, 1 << 20).decode()
    os.close(ours)
    assert "[rates]: " in shown
    assert "rows/s, backlog 1,234" in shown


def test_logs_are_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = [log_file("sql") for _ in range(12)]
    assert made[-1].exists()
    assert len(list((tmp_path / "ottla").iterdir())) == 10
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    elsewhere = log_file("sql")
    assert elsewhere.exists()
    elsewhere.unlink()
