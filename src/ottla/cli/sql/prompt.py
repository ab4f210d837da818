r"""`ottla sql` without a query: statements that end with `;`, and a few commands that begin with `\`.

Where standard input is no terminal, its statements are run one after the other and the first failure
ends it.

Queries are asked of the Spark that is kept ready. The first statement that is more than a query (SET,
CREATE VIEW …) needs a Spark of the prompt's own, which then answers all that come after it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ottla.cli.failures import Failure
from ottla.cli.output import note, plural, write_table
from ottla.cli.spark.sessions import spark_failures_reported, warming
from ottla.cli.sql.following import print_as_they_come
from ottla.cli.sql.output import (
    Form,
    room_for_a_table,
    tell_misfits,
    write_columns,
    write_rows,
)

if TYPE_CHECKING:
    from ottla.cli.cluster.admin import Cluster
    from ottla.cli.sql.asking import Asking
    from ottla.pipeline.sql.tables import TopicTables

_HELP = r"""SELECT …;          a query, over as many lines as it needs
\follow SELECT …;  its results as they come, until Ctrl-C
\d                 the topics
\d TOPIC           the columns of a topic
\q                 the end"""
_HISTORY = 1000  # lines


class Prompt:
    """Reads statements and answers them: by `asking`, if there is one, or in `own` tables."""

    def __init__(
        self,
        own: Callable[[], AbstractContextManager[TopicTables]],
        asking: Asking | None,
        cluster: Cluster,
        form: Form,
        limit: int | None,
    ) -> None:
        self._start_own = own
        self._own: TopicTables | None = None
        self._opened = ExitStack()
        self._remarks: list[str] = []  # for the end: what a user types is not to be disturbed
        self._asking = None if asking is None else replace(asking, tell=self._remarks.append)
        self._cluster = cluster
        self._form = form
        self._limit = limit
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        with self._opened, _history(self._interactive):
            if self._interactive:
                note(r"Topics are tables; end a query with ;  \d lists topics, \? helps, \q ends.")
                # Spark gets ready while the user types.
                ready = self._tables().warm if self._asking is None else self._asking.prepare
                self._opened.enter_context(warming(ready))
            for statement in self._statements():
                if statement == r"\q":
                    break
                self._answer(statement)
        for remark in self._remarks:
            note(remark)

    def _tables(self) -> TopicTables:
        """The tables in a Spark of this prompt's own, which is started now if there is none."""
        if self._own is None:
            self._own = self._opened.enter_context(self._start_own())
        return self._own

    def _ready_for(self, query: str) -> Asking | None:
        """What answers the query; None if the prompt has to, from now on, in a Spark of its own."""
        if self._own is not None or self._asking is None:
            return None
        if not self._asking.can_answer(query):
            if self._interactive:
                note("this is more than a query: a Spark of its own starts for this prompt")
            return None
        return self._asking

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
            with spark_failures_reported():
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
            self._describe(rest.strip().strip("`"))
        elif word == r"\d":
            topics = [each for each in self._cluster.topics() if not each.internal]
            write_table(("topic", "partitions"), [(each.name, each.partitions) for each in topics])
        elif word == r"\follow":
            self._follow(rest)
        elif word.startswith("\\"):
            note(_HELP)
        elif (asking := self._ready_for(statement)) is not None:
            return asking.answer(statement)
        else:
            tables = self._tables()
            rows = tables.query(statement)
            self._remark(tables)
            tell = partial(tell_misfits, tables)
            return write_rows(rows, self._form, self._limit, done=tell) if rows.columns else 0
        return None

    def _describe(self, topic: str) -> None:
        if self._own is None and self._asking is not None:
            self._asking.columns(topic)
        else:
            write_columns(self._tables().columns(topic))

    def _follow(self, query: str) -> None:
        if (asking := self._ready_for(query)) is not None:
            asking.answer(query, follow=True)
            return
        tables = self._tables()
        rows = tables.query(query, follow=True)
        self._remark(tables)
        print_as_they_come(rows, self._form, self._limit, room=room_for_a_table())

    @staticmethod
    def _remark(tables: TopicTables) -> None:
        for remark in tables.remarks():
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
