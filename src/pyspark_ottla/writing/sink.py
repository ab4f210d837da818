"""The writers as Spark sees them: one for batch queries, one for streaming queries.

Spark makes a writer in a process that plans, hands it, pickled, to the tasks, which call `write`, and to
yet another process, which calls `commit` with what they returned (that of a streaming query is made anew
for it). If a task fails for good, or `commit` does, `abort` is called with what there is.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_ottla.errors import NotOffered, OptionError
from pyspark_ottla.workers import keep_modules_out_of_collections, plain_errors
from pyspark_ottla.writing import committing
from pyspark_ottla.writing.attempts import Owner, Prepared, prepare
from pyspark_ottla.writing.delivery import deliver
from pyspark_ottla.writing.options import SinkOptions
from pyspark_ottla.writing.rows import RecordColumns

_QUERY = "sql.streaming.queryId"  # the same over restarts of the query
_RUN = "spark.jobGroup.id"  # of one start of it


@dataclass(frozen=True)
class Delivered(WriterCommitMessage):
    """A task has written its rows, and they count."""

    rows: int


class OttlaWriter(DataSourceArrowWriter):
    """A batch query. With txnAppId and txnVersion it writes a version once, else at least once."""

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:
        if overwrite:
            raise NotOffered(
                'topics cannot be overwritten: write with mode("append"), after deleting the '
                "topic's records if that is what you want"
            )
        self._options = options
        self._columns = RecordColumns(schema, options)
        self._owner: Owner | None = None
        self._skip = False
        if options.application is not None and options.version is not None:
            # By topic, because one version of a DataFrame may be written to several.
            whose = f"{options.application}\0{options.topic or ''}"
            name = hashlib.sha256(whose.encode()).hexdigest()[:32]
            self._owner = Owner(f"batches-{name}", uuid.uuid4().hex)
            self._skip = committing.is_decided(options.version, self._owner, options)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._skip and self._owner is not None:
            return Prepared(self._owner)
        return _written(iterator, self._columns, self._options, self._owner)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.version is not None:
            committing.commit(self._options.version, _prepared(messages), self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.version is not None:
            committing.abort(self._options.version, _prepared(messages), self._options)


class OttlaStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query. Complete mode (which Spark tells as overwriting) appends all results."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._columns = RecordColumns(schema, options)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        owner = None if self._options.guarantee == "at-least-once" else _owner_of_query()
        return _written(iterator, self._columns, self._options, owner)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        committing.commit(batchId, _prepared(messages), self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        committing.abort(batchId, _prepared(messages), self._options)


def _written(
    batches: Iterator[pa.RecordBatch],
    columns: RecordColumns,
    options: SinkOptions,
    owner: Owner | None,
) -> WriterCommitMessage:
    """What a task does: rows prepared for their owner, or, without one, delivered at least once."""
    message: WriterCommitMessage
    if owner is None:
        message = Delivered(deliver(batches, columns, options))
    else:
        message = prepare(batches, columns, options, owner, _task())
    keep_modules_out_of_collections()
    return message


def _prepared(messages: Iterable[WriterCommitMessage | None]) -> Iterator[Prepared]:
    return (each for each in messages if isinstance(each, Prepared))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are written by Spark's tasks, and this is none")
    return context


def _task() -> str:
    """The partition and the attempt."""
    context = _context()
    return f"{context.partitionId()}-{context.attemptNumber()}"


def _owner_of_query() -> Owner:
    context = _context()
    query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
    if not query or not run:
        raise OptionError(
            "Spark does not tell which query this is, so it cannot be written exactly once; set "
            "deliveryGuarantee=at-least-once"
        )
    return Owner(query, run)
