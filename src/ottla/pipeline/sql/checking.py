"""What of a query can be checked before Spark is there.

A parser in Python (sqlglot) finds the tables and functions that a query names, in milliseconds. What it
cannot read may be right nevertheless, so that Spark's own parser has the last word on the syntax: it
needs Spark's JVM, but no session, which is what takes long. Only what no grammar would take is refused
without it (`check_text`).
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ottla.client.errors import OttlaError

# What Spark's parser makes of statements that are more than a query.
_COMMANDS: Final = ("Command", "ParsedStatement")
# What a statement of Spark's, or of Delta's, may begin with, besides a parenthesis and a label.
_FIRST_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        ADD ALTER ANALYZE APPLY BEGIN CACHE CALL CASE CLEAR CLOSE COMMENT COMMIT CONVERT CREATE DECLARE
        DELETE DESC DESCRIBE DFS DROP EXECUTE EXPLAIN EXPORT FETCH FOR FROM GENERATE GRANT IF IMPORT
        INSERT ITERATE LEAVE LIST LOAD LOCK LOOP MAP MERGE MSCK OPEN OPTIMIZE REDUCE REFRESH REORG
        REPAIR REPEAT REPLACE RESET RESTORE REVOKE ROLLBACK SELECT SET SHOW START TABLE TRUNCATE UNCACHE
        UNLOCK UPDATE USE VACUUM VALUES WHILE WITH
        """,
    )
)
# After these anything may stand.
_FREE_TEXT: Final = re.compile(r"\s*(ADD|DFS|LIST|RESET|SET)\b", re.IGNORECASE)
_CLOSED_BY: Final = {"(": ")", "[": "]"}


class NoSuchTopic(OttlaError):
    """A query names a table that is no topic."""


class BadQuery(OttlaError):
    """A text that is certainly no query, whatever Spark's parser would say of it."""


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
    from sqlglot.errors import SqlglotError

    try:
        return _parse(query)
    except (SqlglotError, RecursionError):
        return []


def _parse(query: str) -> list[Any]:
    import sqlglot

    # It tells of statements that it passes over; Spark will read them.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    return list(sqlglot.parse(query, read="spark"))


def check_text(query: str) -> None:
    """Raise BadQuery for what can be seen without a grammar: a first word that begins no statement,
    parentheses that do not match, a string without an end."""
    if _FREE_TEXT.match(query):
        return
    from sqlglot import TokenType, tokenize
    from sqlglot.errors import TokenError

    try:
        tokens = tokenize(query, read="spark")
    except TokenError:
        raise BadQuery(
            "Syntax error: a string, a name in backticks or a comment is begun and has no end"
        ) from None
    if not tokens:
        return
    first = tokens[0]
    is_label = len(tokens) > 1 and tokens[1].token_type == TokenType.COLON
    is_none = first.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER)
    is_sign = first.token_type in (TokenType.L_PAREN, TokenType.SEMICOLON)
    if not is_sign and not is_label and (is_none or first.text.upper() not in _FIRST_WORDS):
        near = difflib.get_close_matches(first.text.upper(), _FIRST_WORDS, n=1, cutoff=0.7)
        raise BadQuery(
            f"Syntax error at or near '{first.text}' {_place(query, first.start)}{_hint(near)}"
        )
    opened: list[Any] = []
    for token in tokens:
        kind = token.token_type
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET):
            opened.append(token)
        elif kind in (TokenType.R_PAREN, TokenType.R_BRACKET) and (
            not opened or _CLOSED_BY[opened.pop().text] != token.text
        ):
            raise BadQuery(
                f"Syntax error: nothing is open that the '{token.text}' "
                f"{_place(query, token.start)} closes"
            )
    if opened:
        token = opened[-1]
        raise BadQuery(
            f"Syntax error: the '{token.text}' {_place(query, token.start)} is never closed"
        )


def check_functions(query: str) -> None:
    """Raise BadQuery for a function that Spark does not have. Only for sessions to which nobody has
    added any."""
    statements = _parsed(query)
    if not _are_queries(statements):
        return
    from sqlglot import exp

    from ottla.pipeline.sql.functions import FUNCTIONS

    for statement in statements:
        for call in statement.find_all(exp.Anonymous):  # none that the parser knows
            # Those of a catalog, and those that stand for tables, are left to Spark.
            if isinstance(call.parent, exp.Dot | exp.Table | exp.Lateral):
                continue
            if call.name.lower() not in FUNCTIONS:
                near = difflib.get_close_matches(call.name.lower(), FUNCTIONS, n=1, cutoff=0.7)
                raise BadQuery(f"there is no function '{call.name}'{_hint(near)}")


def doubt(query: str) -> str | None:
    """What looks wrong in a query, and where. Spark may take it nevertheless."""
    from sqlglot.errors import ParseError, SqlglotError

    try:
        _parse(query)
    except ParseError as error:
        found = error.errors[0]
        at, column = found.get("highlight"), found.get("col")
        if at and column:
            position = max(0, column - len(at))
            return f"at or near '{at}' (line {found['line']}, position {position})"
    except (SqlglotError, RecursionError):
        pass
    return None


def _place(query: str, at: int) -> str:
    """Where a character stands, as Spark counts."""
    line = query.count("\n", 0, at) + 1
    return f"(line {line}, position {at - query.rfind(chr(10), 0, at) - 1})"


def _hint(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def check_topics(tables: Iterable[str], topics: Iterable[str]) -> None:
    """Raise NoSuchTopic for the first table that is none."""
    known = list(topics)
    for table in sorted(set(tables) - set(known)):
        near = difflib.get_close_matches(table, known, n=1, cutoff=0.7)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        shown = "" if near else "; `ottla topic list` shows those there are"
        raise NoSuchTopic(f"there is no topic '{table}'{hint}{shown}")


def is_query_of_spark(query: str) -> bool:
    """Whether it is a query, by Spark's own parser in the JVM; raises its ParseException."""
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
