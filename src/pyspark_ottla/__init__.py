"""Spark's data source `ottla`: topics, and folders of logs, as DataFrames. No jars.

    spark.dataSource.register(pyspark_ottla.OttlaDataSource)      # ottla.pipeline.session() does it
    spark.read.format("ottla").option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "orders").load()

Options, schema and offsets are those of Spark's own Kafka source; docs/spark.md has the list. Streaming
queries write exactly once; `write_batches` does so in `foreachBatch`.

Spark registers classes called `DefaultSource` in packages called `pyspark_…` by itself, where it
finds the package (an activated environment, or PYSPARK_PYTHON).
"""

from pyspark_ottla.source import OttlaDataSource
from pyspark_ottla.writing.batches import write_batches

DefaultSource = OttlaDataSource

__all__ = ["DefaultSource", "OttlaDataSource", "write_batches"]
