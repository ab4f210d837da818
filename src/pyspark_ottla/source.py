"""The data source as Spark sees it.

Spark imports this in every process that has to do with a query, and the process that plans a streaming
query starts with it: what only some of them need is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from ottla.client.errors import OttlaError
from pyspark_ottla.errors import OptionError
from pyspark_ottla.options import Mode, SourceOptions, read_options
from pyspark_ottla.schema import spark_schema
from pyspark_ottla.workers import keep_modules_out_of_collections, plain_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_ottla.values.options import ValueOptions


class OttlaDataSource(DataSource):
    """The format `ottla`; see the package.

    Spark makes one where a query is written, asks for its schema (load() does), and hands it, pickled,
    to those who plan and to those who read. So options are checked at load().
    """

    @classmethod
    def name(cls) -> str:
        return "ottla"

    @plain_errors
    def schema(self) -> StructType:
        options = read_options(self.options)
        values = None if options.values is None else _settled(options.values)
        return spark_schema(options.include_headers, values)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return OttlaReader(self._read_options(schema, "batch"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_ottla.streaming.reader import OttlaStreamReader, RefusedStreamReader

        try:
            return OttlaStreamReader(self._read_options(schema, "streaming"))
        except OttlaError as error:
            # Spark stumbles over an exception here, and tells of that first.
            return RefusedStreamReader(error)

    def _read_options(self, schema: StructType, mode: Mode) -> SourceOptions:
        options = read_options(self.options, mode)
        if options.values is not None and "value" in schema.names:
            # What load() has found holds for the whole query.
            options = replace(options, values=_settled(options.values, schema["value"]))
        if schema != spark_schema(options.include_headers, options.values):
            raise OptionError("the source ottla has a schema of its own: leave out schema(…)")
        return options

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_ottla.writing.options import read_sink_options
        from pyspark_ottla.writing.sink import OttlaWriter

        return OttlaWriter(schema, read_sink_options(self.options, "batch"), overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from pyspark_ottla.writing.options import read_sink_options
        from pyspark_ottla.writing.sink import OttlaStreamWriter

        return OttlaStreamWriter(schema, read_sink_options(self.options, "streaming"))


class OttlaReader(DataSourceReader):
    """A batch query: `partitions` plans it, `read` runs in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        if self._options.path is not None:
            from pyspark_ottla import folder

            return [InputPartition(piece) for piece in folder.plan(self._options)]
        from pyspark_ottla import broker

        return [InputPartition(piece) for piece in broker.plan(self._options)]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_ottla import broker_reads, folder

        piece = partition.value
        if piece is None:  # what Spark makes of a plan without partitions
            return
        if self._options.path is not None:
            yield from folder.read(piece, self._options)
        else:
            yield from broker_reads.read(piece, self._options)
        keep_modules_out_of_collections()


def _settled(options: ValueOptions, field: StructField | None = None) -> ValueOptions:
    from pyspark_ottla.values.columns import settled

    return settled(options, field)
