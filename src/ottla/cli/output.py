"""What commands print: tables for people, plain columns for pipes, JSON for scripts.

Nothing of rich is imported unless standard output is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Cell = str | int | None


def write_line(text: str = "") -> None:
    """One line on standard output, whatever the locale's encoding can or cannot express."""
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")


def note(text: str) -> None:
    """One line on standard error: something to know that is not the command's result."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def binary_output() -> IO[bytes]:
    """Standard output as a stream of bytes."""
    return sys.stdout.buffer


def on_terminal() -> bool:
    return sys.stdout.isatty()


def write_document(document: Any) -> None:
    """One JSON document, indented; for commands that answer with a whole."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    write_line("\n".join(_escaped(line) for line in text.split("\n")))


def _escaped(line: str) -> str:
    """A line of JSON with control characters escaped: a terminal may obey more of them than JSON
    escapes by itself. They are inside of strings, so it is the same document."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> None:
    """Columns whose cells are all numbers are aligned to the right."""
    if on_terminal():
        from rich.console import Console

        table = rich_table(columns, rows, title)
        sys.stdout.flush()
        Console(highlight=False).print(table)
        sys.stdout.flush()
    else:
        _write_plain_table(columns, rows, title)


def _texts(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    return [["" if cell is None else harmless(str(cell)) for cell in row] for row in rows]


def harmless(text: str) -> str:
    """A text that others chose, escaped for a terminal: a client's id may hold line ends, which would
    look like rows of their own, and control sequences."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row[index], int | None) for row in rows)
        for index in range(len(columns))
    ]


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> Table:
    """A table with colours, for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, header_style="bold", title=title or None, title_justify="left")
    for name, right in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in _texts(rows):
        # Text, so that brackets in names and values are not read as markup.
        table.add_row(*(Text(cell) for cell in row))
    return table


def _write_plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> None:
    if title:
        write_line(title)
    numeric = _numeric(columns, rows)
    lines = [[name.upper() for name in columns], *_texts(rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        write_line("  ".join(cells).rstrip())


def human_size(count: int) -> str:
    """A number of bytes as people read it: `1536` → `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """`1 record`, `2 records`, `2 batches`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"
