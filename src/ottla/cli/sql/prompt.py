r"""`ottla sql` without a query: statements that end with `;`, and a few commands that begin with `\`.

Where standard input is no terminal, its statements are run one after the other and the first failure
ends it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from ottla.cli.failures import Failure
from ottla.cli.output import note, plural, write_table
from ottla.cli.spark import telling_spark, warming
from ottla.cli.sql.following import print_as_they_come
from ottla.cli.sql.output import Form, tell_misfits, write_rows

if TYPE_CHECKING:
    from ottla.pipeline.sql.tables import TopicTables

_HELP = r"""SELECT …;          a query, over as many lines as it needs
\follow SELECT …;  its results as they come, until Ctrl-C
\d                 the topics
\d TOPIC           the columns of a topic
\q                 the end"""
_HISTORY = 1000  # lines


class Prompt:
    """Reads statements and answers them in one session, which gets faster with every query."""

    def __init__(self, tables: TopicTables, form: Form, limit: int | None) -> None:
        self._tables = tables
        self._form = form
        self._limit = limit
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        # Spark gets ready while the user types.
        ready = warming(self._tables.warm) if self._interactive else nullcontext()
        with _history(self._interactive), ready:
            if self._interactive:
                note(r"Topics are tables; end a query with ;  \d lists topics, \? helps, \q ends.")
            for statement in self._statements():
                if statement == r"\q":
                    return
                self._answer(statement)

    def _statements(self) -> Iterator[str]:
        """What is typed, one statement at a time."""
        text = ""
        while True:
            try:
                line = self._line("    > " if text else "sql > ")
            except KeyboardInterrupt:
                note("")
                text = ""
                continue
            if line is None:
                break
            text = f"{text}\n{line}" if text else line.lstrip()
            while text and (ended := _statement_end(text)) is not None:
                statement, text = text[:ended].strip(), text[ended + 1 :].lstrip()
                if statement:
                    yield statement
        if text.strip():
            yield text.strip()

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt if self._interactive else "")
        except EOFError:
            return None

    def _answer(self, statement: str) -> None:
        began = time.monotonic()
        try:
            with telling_spark():
                count = self._run(statement)
        except Failure as failure:
            if not self._interactive:
                raise
            note(failure.message)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            note("stopped")
        else:
            if self._interactive and count is not None:
                note(f"{plural(count, 'row')}, {time.monotonic() - began:.2f} s")

    def _run(self, statement: str) -> int | None:
        word, _, rest = statement.partition(" ")
        if word == r"\d" and rest.strip():
            fields = self._tables.columns(rest.strip().strip("`")).fields
            write_table(
                ("column", "type"), [(each.name, each.dataType.simpleString()) for each in fields]
            )
        elif word == r"\d":
            topics = self._tables.topics()
            write_table(
                ("topic", "partitions"), [(each.name, len(each.partitions)) for each in topics]
            )
        elif word == r"\follow":
            rows = self._tables.query(rest, follow=True)
            self._remark()
            print_as_they_come(rows, self._form, self._limit)
        elif word.startswith("\\"):
            note(_HELP)
        else:
            rows = self._tables.query(statement)
            self._remark()
            tell = partial(tell_misfits, self._tables)
            return write_rows(rows, self._form, self._limit, done=tell) if rows.columns else 0
        return None

    def _remark(self) -> None:
        for remark in self._tables.remarks():
            note(remark)


def _statement_end(text: str) -> int | None:
    r"""Where a statement ends: at a `;` outside quotes and comments, of a `\d` at the line's end."""
    if text.startswith("\\") and not text.startswith("\\follow"):
        end = text.find("\n")
        return len(text) if end < 0 else end
    quote = ""
    at = 0
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\" and quote != "`":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "'\"`":
            quote = character
        elif text.startswith("--", at):
            at = text.find("\n", at)
            if at < 0:
                return None
        elif character == ";":
            return at
        at += 1
    return None


@contextmanager
def _history(interactive: bool) -> Iterator[None]:
    """Earlier lines at the arrow keys, kept between sessions."""
    if not interactive:
        yield
        return
    import readline

    from ottla.pipeline.spark.session import state_folder

    path = state_folder() / "sql_history"
    try:
        readline.read_history_file(path)
    except OSError:
        pass  # none yet
    readline.set_history_length(_HISTORY)
    try:
        yield
    finally:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
        except OSError:
            pass  # a home that cannot be written to
