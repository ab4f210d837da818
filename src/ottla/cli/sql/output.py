"""The rows of a query on standard output: a table, lines of JSON, or CSV."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.cli.output import (
    Cell,
    binary_output,
    note,
    on_terminal,
    rich_table,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, Row, StructType

    from ottla.pipeline.sql.tables import TopicTables

TABLE_ROWS = 1000


class Form(Enum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Output(Protocol):
    """Where rows and what is to be known of them go."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None: ...

    def line(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def live(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A table in the place of the one before it."""

    def flush(self) -> None: ...

    def end(self) -> None:
        """Ends the live table: what it showed last stays."""


class Standard:
    """Standard output, and standard error for notes."""

    def __init__(self) -> None:
        self._live: Any = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        write_table(columns, rows)

    def line(self, text: str) -> None:
        write_line(text)

    def note(self, text: str) -> None:
        note(text)

    def live(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(highlight=False), auto_refresh=False)
            self._live.start()
        self._live.update(rich_table(columns, rows), refresh=True)

    def flush(self) -> None:
        binary_output().flush()

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


STANDARD: Final = Standard()
_AROUND_A_TABLE: Final = 5  # lines of a terminal: its frame, and the line that a user types


def room_for_a_table() -> int | None:
    """The rows of a table that fit on the terminal; None if there is none."""
    if not on_terminal():
        return None
    return max(1, shutil.get_terminal_size().lines - _AROUND_A_TABLE)


def write_rows(
    rows: DataFrame,
    form: Form,
    limit: int | None,
    *,
    header: bool = True,
    done: Callable[[DataFrame], object] = lambda _: None,
    output: Output = STANDARD,
) -> int:
    """Print the rows, `limit` at most; how many there were. `done` gets the DataFrame they are of."""
    limited = rows if limit is None else rows.limit(limit)
    match form:
        case Form.JSON:
            return _write_json(limited, done, output)
        case Form.CSV:
            count = _write_csv(limited, header, output)
            done(limited)
            return count
    shown = TABLE_ROWS if limit is None else limit
    chosen = rows.limit(shown + 1) if limit is None else limited
    found = chosen.collect()
    output.table(rows.columns, list(cells(rows, islice(found, shown))))
    if len(found) > shown:
        output.note(
            f"only the first {shown:,} rows are shown; --limit N shows more, --json and --csv all"
        )
    done(chosen)
    return min(len(found), shown)


def write_columns(struct: StructType, output: Output = STANDARD) -> None:
    """Print the names and types of columns."""
    rows = [(field.name, field.dataType.simpleString()) for field in struct.fields]
    output.table(("column", "type"), rows)


def tell_misfits(
    tables: TopicTables, acted: DataFrame | None = None, *, output: Output = STANDARD
) -> None:
    """Tell of the records that a query has read and that do not fit their columns."""
    for sentence in tables.misfits(acted):
        output.note(sentence)


def _write_json(rows: DataFrame, done: Callable[[DataFrame], object], output: Output) -> int:
    from pyspark.sql.functions import struct, to_json

    from ottla.pipeline.sql.targets import check_names

    check_names(rows)
    # Spark's own JSON: exact for decimals, and the same that `--to TOPIC` writes.
    lines = rows.select(to_json(struct("*"), {"ignoreNullFields": "false"}))
    count = 0
    for row in lines.toLocalIterator():
        output.line(row[0])
        count += 1
    done(lines)
    return count


def _write_csv(rows: DataFrame, header: bool, output: Output) -> int:
    line = io.StringIO(newline="")
    writer = csv.writer(line, lineterminator="")

    def write(values: Iterable[Any]) -> None:
        line.seek(0)
        line.truncate()
        writer.writerow(values)
        output.line(line.getvalue())

    if header:
        write(rows.columns)
    count = 0
    for row in cells(rows, rows.toLocalIterator()):
        write(row)
        count += 1
    return count


def cells(rows: DataFrame, found: Iterable[Row]) -> Iterator[list[Cell]]:
    types = [field.dataType for field in rows.schema.fields]
    for row in found:
        yield [_cell(value, kind) for value, kind in zip(row, types, strict=True)]


def _cell(value: Any, kind: DataType) -> Cell:
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return value
        case _:
            plain = _plain(value, kind)
            return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any, kind: DataType) -> Any:
    """The value as JSON knows it; times in UTC, as the other commands show them."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if value is None:
        return None
    match kind:
        case TimestampType():
            moment: datetime = value.astimezone(UTC)
            return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
        case ArrayType():
            return [_plain(item, kind.elementType) for item in value]
        case MapType():
            return {str(key): _plain(item, kind.valueType) for key, item in value.items()}
        case StructType():
            pairs = zip(kind.fields, value, strict=True)
            return {field.name: _plain(item, field.dataType) for field, item in pairs}
    match value:
        case bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return "0x" + value.hex()
        case date():
            return value.isoformat()
        case _:
            return str(value)
