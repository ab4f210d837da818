"""The data source as Spark sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ottla import broker, folder
from pyspark_ottla.errors import NotOffered, OptionError
from pyspark_ottla.options import SourceOptions, read_options
from pyspark_ottla.rows import spark_schema


class OttlaDataSource(DataSource):
    """The format `ottla`; see the package.

    Spark makes one where a query is written, asks for its schema (load() does), and hands it, pickled,
    to those who plan and to those who read. So options are checked at load().
    """

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        return spark_schema(read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if schema != spark_schema(options.include_headers):
            raise OptionError("the source ottla has a schema of its own: leave out schema(…)")
        return OttlaReader(options)

    def streamReader(self, schema: StructType) -> Any:  # noqa: ARG002, N802 - Spark's name
        raise NotOffered("the source ottla does not offer streaming reads yet; use spark.read")

    def simpleStreamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        return self.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002
        raise NotOffered("the source ottla does not offer writes yet; it reads in batch queries")

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802
        raise NotOffered("the source ottla does not offer streaming writes yet")


class OttlaReader(DataSourceReader):
    """A batch query: `partitions` plans it, `read` runs in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        if self._options.path is not None:
            return [InputPartition(piece) for piece in folder.plan(self._options)]
        return [InputPartition(piece) for piece in broker.plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece = partition.value
        if piece is None:  # what Spark makes of a plan without partitions
            return
        if self._options.path is not None:
            yield from folder.read(piece, self._options)
        else:
            yield from broker.read(piece, self._options)
