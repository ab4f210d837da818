"""The results of a streaming query on standard output, as they come.

Rows that are only ever added are printed as lines. Results that change (aggregations) are a table
that is kept up to date on a terminal; elsewhere the rows that have changed are printed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ottla.cli.output import binary_output, on_terminal, rich_table, write_line
from ottla.cli.sql.output import Form, cells, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GAP = "  "


def print_as_they_come(rows: DataFrame, form: Form, limit: int | None) -> None:
    """Until Ctrl-C, or until `limit` rows are printed."""
    from ottla.pipeline.spark.progress import wait
    from ottla.pipeline.sql.targets import ModeRefused, TargetError, follow_to_functions

    lines = Lines(form, rows.columns, limit)
    handlers = {"append": lines.take}
    table = LiveTable(limit)
    if form is Form.TABLE and on_terminal():
        handlers["complete"] = table.take
    else:
        handlers |= {"update": lines.take, "complete": lines.take}
    try:
        query = follow_to_functions(rows, handlers)
    except ModeRefused as error:
        raise TargetError(str(error)) from error
    try:
        wait(query, enough=lines.enough)
    finally:
        table.close()
    if lines.broken is not None:
        raise lines.broken


class Lines:
    """Prints the rows of batches one under the other; columns keep the width they had before."""

    def __init__(self, form: Form, columns: Sequence[str], limit: int | None) -> None:
        self.enough = threading.Event()
        self.broken: BrokenPipeError | None = None
        self._form = form
        self._columns = columns
        self._left = limit
        self._widths: list[int] | None = None

    def take(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - Spark gives it
        if self.enough.is_set():
            return
        try:
            count = self._print(batch)
            binary_output().flush()
        except BrokenPipeError as error:
            self.broken = error
            self.enough.set()
            return
        if self._left is not None:
            self._left -= count
            if self._left <= 0:
                self.enough.set()

    def _print(self, batch: DataFrame) -> int:
        if self._form is not Form.TABLE:
            header, self._widths = self._widths is None, []
            return write_rows(batch, self._form, self._left, header=header)
        found = batch.collect() if self._left is None else batch.limit(self._left).collect()
        rows = [["" if cell is None else str(cell) for cell in row] for row in cells(batch, found)]
        if not rows:
            return 0
        if self._widths is None:
            self._widths = [len(name) for name in self._columns]
            rows.insert(0, [name.upper() for name in self._columns])
        self._widths = [
            max(width, *(len(row[index]) for row in rows))
            for index, width in enumerate(self._widths)
        ]
        for row in rows:
            padded = [text.ljust(width) for text, width in zip(row, self._widths, strict=True)]
            write_line(_GAP.join(padded).rstrip())
        return len(found)


class LiveTable:
    """Shows the whole result as of the last batch, as much of it as the terminal is high."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._live: Any = None

    def take(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - Spark gives it
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=Console(highlight=False), auto_refresh=False)
            self._live.start()
        room = max(1, self._live.console.height - 5)
        shown = room if self._limit is None else min(room, self._limit)
        found = batch.limit(shown).collect()
        self._live.update(
            rich_table(batch.columns, list(islice(cells(batch, found), shown))), refresh=True
        )

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
