"""The results of a streaming query, as they come.

Rows that are only ever added are printed as lines. Results that change (aggregations) are a table
that is kept up to date on a terminal; elsewhere the rows that have changed are printed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ottla.cli.sql.output import STANDARD, Form, Output, cells, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GAP = "  "


def print_as_they_come(
    rows: DataFrame,
    form: Form,
    limit: int | None,
    *,
    room: int | None,
    output: Output = STANDARD,
    enough: threading.Event | None = None,
) -> None:
    """Print results until Ctrl-C, until `limit` rows are printed, or until there is `enough`.

    `room` is how many rows of a table fit on the terminal; None: there is none.
    """
    from ottla.pipeline.spark.progress import wait
    from ottla.pipeline.sql.targets import ModeRefused, TargetError, follow_to_functions

    lines = Lines(form, rows.columns, limit, output, enough or threading.Event())
    handlers = {"append": lines.take}
    if form is Form.TABLE and room is not None:
        handlers["complete"] = LiveTable(room if limit is None else min(room, limit), output).take
    else:
        handlers |= {"update": lines.take, "complete": lines.take}
    try:
        query = follow_to_functions(rows, handlers)
    except ModeRefused as error:
        raise TargetError(str(error)) from error
    try:
        wait(query, enough=lines.enough)
    finally:
        output.end()
    if lines.broken is not None:
        raise lines.broken


class Lines:
    """Prints the rows of batches one under the other; columns keep the width they had before."""

    def __init__(
        self,
        form: Form,
        columns: Sequence[str],
        limit: int | None,
        output: Output,
        enough: threading.Event,
    ) -> None:
        self.enough = enough
        self.broken: ConnectionError | None = None  # whoever was to read them has gone
        self._form = form
        self._columns = columns
        self._left = limit
        self._output = output
        self._widths: list[int] | None = None

    def take(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - Spark gives it
        if self.enough.is_set():
            return
        try:
            count = self._print(batch)
            self._output.flush()
        except ConnectionError as error:
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
            return write_rows(batch, self._form, self._left, header=header, output=self._output)
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
            self._output.line(_GAP.join(padded).rstrip())
        return len(found)


class LiveTable:
    """Shows the whole result as of the last batch, as much of it as there is room for."""

    def __init__(self, room: int, output: Output) -> None:
        self._room = room
        self._output = output

    def take(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - Spark gives it
        found = batch.limit(self._room).collect()
        self._output.live(batch.columns, list(islice(cells(batch, found), self._room)))
