"""The Spark session of pipelines.

    from ottla.pipeline import session

    spark = session()
    spark.read.format("ottla").option("kafka.bootstrap.servers", …).option("subscribe", …).load()

Spark's workers run the `python3` on the PATH unless they are told otherwise before its JVM starts:
that one may have neither Ottla nor pyarrow. So the session sets PYSPARK_PYTHON to the Python that
asks for it. The source `ottla` is registered by hand; where Spark looks for it by name it does not
always find it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"


class SparkMissing(ImportError):
    """PySpark is not installed; the message says how to get it."""


def session(
    master: str | None = None,
    *,
    name: str = "ottla",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, made now if there is none; `settings` are Spark's own.

    `master` is Spark's: local[*] unless the argument or the setting spark.master says otherwise.
    What is set in the environment already (PYSPARK_PYTHON, SPARK_LOCAL_IP) stays. Raises
    SparkMissing and JavaMissing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing("PySpark is not installed: `pip install 'ottla[spark]'`") from None
    from pyspark_ottla import OttlaDataSource

    chosen = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    address = master or chosen.pop("spark.master", LOCAL)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if address.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home())
    builder = SparkSession.builder.master(address).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(OttlaDataSource)
    return spark
