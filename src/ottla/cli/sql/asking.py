"""What a command of `ottla sql` asks of the Spark that is kept ready (see warm)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.failures import Failure
from ottla.cli.output import note
from ottla.cli.sql import warm
from ottla.cli.sql.output import Form, room_for_a_table

if TYPE_CHECKING:
    from ottla.pipeline.sql.tables import Bounds


@dataclass(frozen=True)
class Asking:
    """Questions with what the command was told: the same settings, options, and form."""

    settings: Mapping[str, str]
    options: Mapping[str, str]
    bounds: Bounds | None
    form: Form
    limit: int | None
    tell: Callable[[str], None] = note  # that a Spark was started and stays

    def prepare(self) -> None:
        warm.prepare(self.settings, self.tell)

    def can_answer(self, statement: str) -> bool:
        """Whether to ask: it is a query and nothing else. What is wrong with one that is not, and can
        be said at once, is raised as Failure."""
        check_text(statement, self.settings)
        if warm.can_answer(statement):
            return True
        warm.check_syntax(self.settings, statement)
        return False

    def answer(self, query: str, *, follow: bool = False, to: str | None = None) -> int:
        """Print the answer to a query, or have it written; the number of rows that were printed."""
        question = warm.Question(
            query,
            self.options,
            self._bounds(query),
            self.form.value,
            self.limit,
            None if to is None else _from_anywhere(to),
            follow,
            room_for_a_table() if follow else None,
        )
        return warm.answer(self.settings, question, self.tell)

    def columns(self, topic: str) -> None:
        warm.columns_of(self.settings, self.options, topic, self.tell)

    def _bounds(self, query: str) -> dict[str, Mapping[str, str]]:
        if self.bounds is None:
            return {}
        from ottla.pipeline.sql.checking import named_tables

        return {topic: self.bounds(topic) for topic in named_tables(query)}


def check_text(statement: str, settings: Mapping[str, str]) -> None:
    """Failure if a text is certainly no statement, without a Spark, which may have to be started first.
    Nothing is checked if Spark's settings extend its language."""
    if "spark.sql.extensions" in settings:
        return
    from ottla.pipeline.sql import checking

    try:
        checking.check_text(statement)
    except checking.BadQuery as error:
        raise Failure(str(error)) from None


def _from_anywhere(target: str) -> str:
    """The target as a server, whose working folder is another, has to be given it: with a whole path."""
    from ottla.pipeline.sql.targets import is_folder

    return os.path.abspath(target) if is_folder(target) and "://" not in target else target
