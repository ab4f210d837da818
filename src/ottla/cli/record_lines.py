"""Lines of input as records: one by one, or (many at once) as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.cli.failures import Failure
from ottla.cli.record_text import Headers, OutgoingRecord, record_from_json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RecordLines:
    """How the options of `ottla produce` make records of lines."""

    json: bool = False  # each line is a JSON object; else it is a value, or key and value
    repartition: bool = False  # ignore the partitions in JSON
    key: bytes | None = None  # of every record
    separator: bytes | None = None  # between key and value
    separator_shown: str = ""
    null_marker: bytes | None = None
    headers: Headers = ()
    partition: int | None = None  # of every record

    def record(self, number: int, line: bytes) -> OutgoingRecord | None:
        """The record in the line of this number; None if there is none. Failure names the line."""
        if self.json:
            if not line.strip():
                return None
            record = record_from_json(line, f"line {number}")
            named = None if self.repartition else record.partition
            return record._replace(
                headers=record.headers + self.headers,
                partition=named if self.partition is None else self.partition,
            )
        key, value = self.key, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise self._no_separator(number)
        marker = self.null_marker
        return OutgoingRecord(
            None if key == marker else key,
            None if value == marker else value,
            self.headers,
            self.partition,
        )

    def columns(
        self, first: int, lines: list[bytes]
    ) -> tuple[pa.RecordBatch | None, Failure | None]:
        """The records of many lines, of which the first has this number, and what is wrong.

        That is of the first line that cannot be read; the columns hold the records before it.
        """
        return self._json_columns(first, lines) if self.json else self._text_columns(first, lines)

    def _text_columns(
        self, first: int, lines: list[bytes]
    ) -> tuple[pa.RecordBatch | None, Failure | None]:
        failure = None
        keys: list[bytes | None] | None = None
        values: list[bytes | None] = list(lines)
        marker = self.null_marker
        if self.separator is not None:
            parts = [line.partition(self.separator) for line in lines]
            wrong = next((at for at, part in enumerate(parts) if not part[1]), None)
            if wrong is not None:
                failure = self._no_separator(first + wrong)
                del parts[wrong:]
            keys = [part[0] for part in parts]
            values = [part[2] for part in parts]
        if marker is not None:
            values = [None if value == marker else value for value in values]
            keys = keys and [None if key == marker else key for key in keys]
        fixed = None if self.key == marker else self.key
        return self._batch(values, fixed if keys is None else keys), failure

    def _json_columns(
        self, first: int, lines: list[bytes]
    ) -> tuple[pa.RecordBatch | None, Failure | None]:
        failure = None
        records = []
        try:
            for number, line in enumerate(lines, start=first):
                if (record := self.record(number, line)) is not None:
                    records.append(record)
        except Failure as problem:
            failure = problem
        if not records:
            return None, failure
        keys, values, headers, partitions, timestamps = zip(*records, strict=True)
        return (
            self._batch(values, keys, headers, partitions, timestamps),
            failure,
        )

    def _batch(
        self,
        values: Any,
        keys: Any,
        headers: Any = None,
        partitions: Any = None,
        timestamps: Any = None,
    ) -> pa.RecordBatch | None:
        import pyarrow as pa

        from ottla.record.columns import HEADERS_TYPE

        count = len(values)
        if not count:
            return None

        def column(given: Any, kind: pa.DataType) -> pa.Array:
            """Of one for each record, or of the same for all."""
            if isinstance(given, list | tuple):
                return pa.array(given, kind)
            return pa.repeat(pa.scalar(given, kind), count)

        columns = {"value": column(values, pa.binary())}
        if keys is not None:
            columns["key"] = column(keys, pa.binary())
        if headers is None and self.headers:
            one = pa.array([self.headers], HEADERS_TYPE)
            columns["headers"] = one.take(pa.repeat(pa.scalar(0), count))
        elif headers is not None and any(headers):
            columns["headers"] = pa.array(headers, HEADERS_TYPE)
        if self.partition is not None:
            columns["partition"] = column(self.partition, pa.int32())
        elif partitions is not None and any(each is not None for each in partitions):
            columns["partition"] = pa.array(partitions, pa.int32())
        if timestamps is not None and any(each is not None for each in timestamps):
            columns["timestamp"] = pa.array(timestamps, pa.int64())
        return pa.record_batch(columns)

    def _no_separator(self, number: int) -> Failure:
        return Failure(f"line {number} has no key separator '{self.separator_shown}'")
