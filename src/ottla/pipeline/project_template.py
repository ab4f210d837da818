"""A small pipeline project to begin with: what `ottla pipeline init` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ottla.pipeline.projects import SPECIFICATIONS, ProjectError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_SPECIFICATION: Final = """\
# `ottla pipeline run {name}` brings all tables up to date.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_RECORDS: Final = '''\
"""Every record of the topic `{topic}`, once: each run adds what has come since."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()


@dp.table
def records() -> DataFrame:
    return (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", "{servers}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .load()
        .select(
            "partition",
            "offset",
            "timestamp",
            col("key").cast("string"),
            col("value").cast("string"),
        )
    )
'''

_PER_MINUTE: Final = """\
-- How many records came in each minute, computed anew with each run.
CREATE MATERIALIZED VIEW records_per_minute AS
SELECT date_trunc('MINUTE', timestamp) AS minute, count(*) AS records
FROM records
GROUP BY date_trunc('MINUTE', timestamp)
"""


def write_project(folder: Path, servers: str, topic: str) -> list[Path]:
    """Write the project into a new folder; the files that are now there."""
    if _NAME.fullmatch(folder.name) is None:
        raise ProjectError(
            f"'{folder.name}' cannot be a project's name; take letters, digits, '_' and '-'"
        )
    if folder.exists():
        raise ProjectError(f"{folder} is there already")
    storage = (folder.resolve() / "checkpoints").as_uri()
    texts = {
        SPECIFICATIONS[0]: _SPECIFICATION.format(name=folder.name, storage=storage),
        "transformations/records.py": _RECORDS.format(topic=topic, servers=servers),
        "transformations/records_per_minute.sql": _PER_MINUTE,
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
