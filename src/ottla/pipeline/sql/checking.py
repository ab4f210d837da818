"""What of a query can be checked before Spark is there.

A parser in Python (sqlglot) finds the tables that a query names, in milliseconds. What it cannot read
may be right nevertheless, so that Spark's own parser has the last word on the syntax: it needs Spark's
JVM, but no session, which is what takes long.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ottla.client.errors import OttlaError

# What Spark's parser makes of statements that are more than a query.
_COMMANDS: Final = ("Command", "ParsedStatement")


class NoSuchTopic(OttlaError):
    """A query names a table that is no topic."""


def named_tables(query: str) -> frozenset[str]:
    """The names of one part that a query reads from, apart from those that it defines itself.

    None of what is no plain query (SHOW, DESCRIBE, CREATE …), or cannot be read here.
    """
    statements = _parsed(query)
    if not _are_queries(statements):
        return frozenset()
    from sqlglot import exp

    found: set[str] = set()
    for statement in statements:
        own = {each.alias.lower() for each in statement.find_all(exp.CTE)}
        for table in statement.find_all(exp.Table):
            plain = isinstance(table.this, exp.Identifier) and not table.db
            if plain and table.name.lower() not in own:
                found.add(table.name)
    return frozenset(found)


def is_plain_query(query: str) -> bool:
    """Whether this is one query, and no command that changes anything."""
    statements = _parsed(query)
    return len(statements) == 1 and _are_queries(statements)


def _are_queries(statements: list[Any]) -> bool:
    from sqlglot import exp

    return all(isinstance(each, exp.Query) and not each.args.get("into") for each in statements)


@lru_cache(4)
def _parsed(query: str) -> list[Any]:
    """The statements of a text; none if it cannot be read here."""
    import sqlglot

    # It tells of statements that it passes over; Spark will read them.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    try:
        return list(sqlglot.parse(query, read="spark"))
    except (sqlglot.errors.SqlglotError, RecursionError):
        return []


def check_topics(tables: Iterable[str], topics: Iterable[str]) -> None:
    """Raise NoSuchTopic for the first table that is none."""
    known = list(topics)
    for table in sorted(set(tables) - set(known)):
        near = difflib.get_close_matches(table, known, n=1, cutoff=0.7)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        shown = "" if near else "; `ottla topic list` shows those there are"
        raise NoSuchTopic(f"there is no topic '{table}'{hint}{shown}")


def is_query_of_spark(query: str) -> bool:
    """The same by Spark's own parser, in the JVM that was started; raises its ParseException."""
    plan = check_syntax(query)
    if plan is None:
        return False
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    named = gateway.jvm.java.lang.Class.forName
    statements = [
        named(f"org.apache.spark.sql.catalyst.plans.logical.{each}") for each in _COMMANDS
    ]
    nodes = [plan]
    for node in nodes:
        if any(statement.isInstance(node) for statement in statements):
            return False
        children = node.children()
        nodes += [children.apply(index) for index in range(children.size())]
    return True


def check_syntax(query: str) -> Any:
    """The plan that Spark's parser makes of a query, in the JVM that was started (None if none was);
    raises its ParseException."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
    from pyspark import SparkContext
    from pyspark.errors.exceptions.captured import convert_exception

    gateway = SparkContext._gateway
    if gateway is None:
        return None
    parser = gateway.jvm.org.apache.spark.sql.execution.SparkSqlParser()
    try:
        return parser.parsePlan(query)
    except Py4JJavaError as error:
        raise convert_exception(error.java_exception) from None
