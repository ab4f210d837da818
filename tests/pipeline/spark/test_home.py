"""The SPARK_HOME that Spark's JVM is given, and the session in threads of a program."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from ottla.client.admin.client import Admin
from ottla.pipeline.spark import home as spark_home
from ottla.pipeline.spark.home import home_without_zip
from ottla.pipeline.spark.session import use_in_this_thread
from ottla.testing import BrokerProcess

INSTALLED = Path(pyspark.__file__).parent


def test_it_has_all_but_the_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_home.tempfile, "gettempdir", lambda: str(tmp_path))
    environment = {"PYSPARK_PYTHON": sys.executable}
    for _ in range(2):
        with home_without_zip("local[2]", environment) as home:
            assert home is not None
            assert environment["SPARK_HOME"] == str(home)
            assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")
            assert (home / "jars").samefile(INSTALLED / "jars")
            assert not (home / "python").exists()
        assert "SPARK_HOME" not in environment


@pytest.mark.parametrize(
    ("master", "environment"),
    [
        ("spark://host:7077", {}),
        ("local[*]", {"SPARK_HOME": "/opt/spark"}),
        ("local[*]", {"PYSPARK_PYTHON": "/opt/other/python"}),
    ],
)
def test_what_somebody_has_chosen_stays(master: str, environment: dict[str, str]) -> None:
    before = dict(environment)
    with home_without_zip(master, environment) as home:
        assert home is None
        assert environment == before


def test_a_folder_of_somebody_elses_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_home.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"ottla-spark-{spark_home.os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with home_without_zip("local[*]", {}) as home:
        assert home is None


def test_tasks_load_what_is_installed(spark: SparkSession) -> None:
    def place(_: object) -> str:
        import pyspark

        return str(pyspark.__file__)

    [found] = spark.sparkContext.parallelize([0], 1).map(place).collect()
    assert Path(found).parent == INSTALLED


def test_queries_of_another_thread(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1)
    ended: list[bool | None] = []

    def write() -> None:
        use_in_this_thread(spark)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
        query = (
            rows.selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        ended.append(query.awaitTermination(60))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert ended == [True]
