"""`ottla sql`: topics as tables."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession

from ottla import Consumer, Producer
from ottla.cli.sql.prompt import _statement_end
from ottla.client.admin.client import Admin
from ottla.pipeline.spark.progress import wait
from ottla.pipeline.sql import small_topics
from ottla.pipeline.sql.checking import (
    BadQuery,
    NoSuchTopic,
    check_functions,
    check_syntax,
    check_text,
    check_topics,
    doubt,
    is_query_of_spark,
    named_tables,
)
from ottla.pipeline.sql.functions import FUNCTIONS
from ottla.pipeline.sql.json_fields import json_fields
from ottla.pipeline.sql.sampling import RECORDS, STRETCHES, Sample, stretches
from ottla.pipeline.sql.small_topics import SmallTopic
from ottla.pipeline.sql.tables import TopicTables, UnknownTable
from ottla.pipeline.sql.targets import follow_to_functions, follow_to_topic
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.commands import run_command
from pipeline_kit.reading import write_transactions

PAGES = ("/", "/cart", "/help")


@pytest.fixture(scope="module")
def logs(broker: BrokerProcess, admin: Admin) -> str:
    """A hundred requests as JSON, in two partitions."""
    topic = "sql-web.logs"
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(100):
            request = {
                "page": PAGES[number % 3],
                "status": 500 if number % 10 == 0 else 200,
                "ms": number if number % 2 else number + 0.5,
                "timestamp": f"2026-11-15T08:{number % 60:02d}:00Z",
                "user": {"id": number, "tags": ["a", "b"]} if number % 4 else None,
            }
            producer.send(topic, json.dumps(request), key=f"user-{number % 5}")
    return topic


@pytest.fixture(scope="module")
def tables(spark: SparkSession, broker: BrokerProcess) -> Iterator[TopicTables]:
    made = TopicTables(spark, {"kafka.bootstrap.servers": broker.bootstrap})
    yield made
    made.close()


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([b'{"a": 1}', b'{"a": null, "b": "x"}'], "struct<a:bigint,b:string>"),
        ([b'{"a": 1}', b'{"a": 1.5}'], "struct<a:double>"),
        ([b'{"a": 99999999999999999999}', b'{"a": 1}'], "struct<a:decimal(38,0)>"),
        ([b'{"a": 99999999999999999999}', b'{"a": 1.5}'], "struct<a:double>"),
        ([b'{"a": 1%s}' % (b"0" * 38)], "struct<a:string>"),
        ([b'{"a": [99999999999999999999]}', b'{"a": [1]}'], "struct<a:array<string>>"),
        ([b'{"a": true}', b'{"a": 1}'], "struct<a:string>"),
        ([b'{"a": null, "b": [], "c": {}}'], "struct<a:string,b:array<string>,c:string>"),
        (
            [b'{"a": [{"b": 1}]}', b'{"a": [{"c": "x"}, {"b": 2.5}]}'],
            "struct<a:array<struct<b:double,c:string>>>",
        ),
        ([b'{"a": {"b": 1}}', b'{"a": "text"}'], "struct<a:string>"),
        ([b"{}"], "struct<>"),
        ([], "struct<>"),
    ],
)
def test_fields_of_json(values: list[bytes], found: str) -> None:
    fields = json_fields(values)
    assert (fields.struct.simpleString(), fields.refused) == (found, 0)


def test_fields_come_from_what_is_json() -> None:
    values = [b"text", b'{"a": 1}', b"17", b"[1, 2]", b"[" * 100_000, b"", b'{"b": "x"}', b"\xff"]
    fields = json_fields(values)
    assert (fields.struct.simpleString(), fields.refused) == ("struct<a:bigint,b:string>", 6)
    assert json_fields([b"17"]).struct.fields == []


def test_a_sample_spans_the_topic() -> None:
    bounds = {0: (100, 1_000_100), 1: (0, 10), 2: (7, 7), 3: (0, 500_000)}
    found = list(stretches(bounds))
    assert len(found) == STRETCHES
    for partition, (first, end) in bounds.items():
        parts = [each[partition] for each in found if partition in each]
        if first == end:
            assert parts == []
            continue
        assert parts[0][0] == first
        assert parts[-1][1] == end
        assert all(first <= begin < stop <= end for begin, stop in parts)
        assert parts == sorted(parts)
    read = sum(end - begin for each in found for begin, end in each.values())
    assert RECORDS * 0.9 < read <= RECORDS + STRETCHES
    small = {0: (3, 5), 1: (0, RECORDS - 2)}
    assert list(stretches(small)) == [small]
    assert list(stretches({0: (5, 5)})) == []


def test_columns_of_json(tables: TopicTables, logs: str) -> None:
    columns = {field.name: field.dataType.simpleString() for field in tables.columns(logs)}
    assert columns == {
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "key": "string",
        "value": "string",
        "page": "string",
        "status": "bigint",
        "ms": "double",
        "value_timestamp": "string",
        "user": "struct<id:bigint,tags:array<string>>",
        "_corrupt": "string",
    }


def test_numbers_hold_all_rows_that_were_looked_at(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    """Fractions come first, and more whole numbers after them than the newest thousand."""
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(1200):
            amount = 10.5 if number < 1200 - 1000 else 1
            producer.send(topic, json.dumps({"amount": amount}), partition=number % 2)
    rows = tables.query(f"SELECT sum(amount), count(_corrupt) FROM `{topic}`")
    assert [tuple(row) for row in rows.collect()] == [(200 * 10.5 + 1000, 0)]
    assert tables.misfits(rows) == []


def test_records_that_do_not_fit_are_told_and_at_hand(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str, monkeypatch: Any
) -> None:
    """Of many records only some are looked at, and those say that all numbers are whole."""
    monkeypatch.setattr("ottla.pipeline.sql.sampling.RECORDS", 80)
    admin.create_topic(topic, 1)
    fractions = range(25, 45)  # between the first stretch and the second
    with Producer(broker.bootstrap) as producer:
        for number in range(400):
            amount = 10.5 if number in fractions else 1
            producer.send(topic, json.dumps({"amount": amount, "n": number}))
    columns = {field.name: field.dataType.simpleString() for field in tables.columns(topic)}
    assert columns["amount"] == "bigint"
    rows = tables.query(f"SELECT sum(amount), count(n) FROM `{topic}`")
    assert [tuple(row) for row in rows.collect()] == [(380, 400)]
    assert tables.misfits(rows) == [
        (
            f"20 records of '{topic}' do not fit the columns: what does not fit is null, and `_corrupt` "
            "has the value"
        )
    ]
    rows = tables.query(f"SELECT n, _corrupt FROM `{topic}` WHERE _corrupt IS NOT NULL ORDER BY n")
    found = rows.collect()
    assert [row["n"] for row in found] == list(fractions)
    assert json.loads(found[0]["_corrupt"]) == {"amount": 10.5, "n": 25}


def test_one_record_that_is_no_json_takes_no_column_away(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    values = [
        '{"a": 1, "_corrupt": "of the value", "value": 2}',
        "no JSON",
        "",
        None,
        "[1]",
        '{"a": 2}',
    ]
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    rows = tables.query(
        f"SELECT a, _corrupt, value__corrupt, value_value FROM `{topic}` ORDER BY offset"
    )
    assert [tuple(row) for row in rows.collect()] == [
        (1, None, "of the value", 2),
        (None, "no JSON", None, None),
        (None, "", None, None),
        (None, None, None, None),
        (None, "[1]", None, None),
        (2, None, None, None),
    ]
    assert "3 records" in tables.misfits(rows)[0]
    # What is never read is not waited for.
    nothing = tables.query(f"SELECT * FROM `{topic}` WHERE false")
    assert (nothing.collect(), tables.misfits(nothing)) == ([], [])


def test_whole_numbers_keep_their_digits(
    tables: TopicTables,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin.create_topic(topic, 1)
    large = 99999999999999999999
    with Producer(broker.bootstrap) as producer:
        for text in (f'{{"n": {large}, "of": [{large}]}}', '{"n": 1}', '{"n": null}'):
            producer.send(topic, text)
    query = f"SELECT sum(n) AS n, max(of[0]) AS of FROM `{topic}`"
    [row] = tables.query(query).collect()
    assert (int(row["n"]), row["of"]) == (large + 1, str(large))
    # One that was not looked at does not fit, and is not rounded.
    real = SmallTopic.sample

    def some(topic: SmallTopic) -> Sample:
        found = real(topic)
        return Sample(found.keys, found.values[:3])

    with Producer(broker.bootstrap) as producer:
        producer.send(topic, '{"n": 10.5}')
        producer.send(topic, f'{{"n": 1{"0" * 38}}}')
    monkeypatch.setattr(SmallTopic, "sample", some)
    rows = tables.query(f"SELECT n, _corrupt FROM `{topic}` ORDER BY offset")
    found = [tuple(each) for each in rows.collect()]
    assert found[:3] == [(large, None), (1, None), (None, None)]
    assert found[3:] == [(None, '{"n": 10.5}'), (None, f'{{"n": 1{"0" * 38}}}')]
    assert "2 records" in tables.misfits(rows)[0]


def test_fields_that_differ_in_case_alone(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, '{"Owner": "ann", "owner": "bob"}')
    assert tables.query(f"SELECT owner FROM `{topic}`").collect()[0]["owner"] == "ann"
    assert tables.remarks() == [
        (
            f"the field 'owner' of '{topic}' is no column: its name differs from that of 'Owner' "
            "in case alone"
        )
    ]


def test_columns_of_bytes(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    empty = {field.name: field.dataType.simpleString() for field in tables.columns(topic)}
    assert (empty["key"], empty["value"]) == ("string", "string")
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"\xff\xfe", key=b"text")
    row = tables.query(f"SELECT * FROM `{topic}`").collect()[0]
    assert (row["key"], bytes(row["value"])) == ("text", b"\xff\xfe")


def test_queries(tables: TopicTables, logs: str) -> None:
    rows = tables.query(
        f"SELECT page, count(*), sum(user.id) FROM `{logs}` GROUP BY page ORDER BY page"
    ).collect()
    ids = [sum(n for n in range(index, 100, 3) if n % 4) for index in range(3)]
    assert [tuple(row) for row in rows] == [
        ("/", 34, ids[0]),
        ("/cart", 33, ids[1]),
        ("/help", 33, ids[2]),
    ]
    # A topic in a subquery, twice, under names that hide it.
    [[slow]] = tables.query(
        f"WITH slow AS (SELECT * FROM `{logs}` WHERE ms > 90) SELECT count(*) FROM slow AS a "
        f"WHERE EXISTS (SELECT 1 FROM `{logs}` AS b WHERE b.status = 500 AND b.page = a.page)"
    ).collect()
    assert slow == 10


QUESTIONS = (
    "SELECT * FROM {} ORDER BY partition, offset",
    "SELECT key, count(*), sum(n), max(timestamp) FROM {} GROUP BY key ORDER BY key",
    "SELECT count(*) FROM {} WHERE value IS NULL OR _corrupt IS NOT NULL",
    "SELECT a.n, b.n FROM {} a JOIN {} b USING (partition, offset) WHERE a.n > 5 ORDER BY a.n",
    "SELECT 1 FROM {} LIMIT 3",
)


def test_small_topics_are_as_spark_reads_them(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With aborted and open transactions, records that were deleted, nulls, misfits and headers."""
    admin.create_topic(topic, 2)
    write_transactions(broker.bootstrap, topic)
    with Producer(broker.bootstrap) as producer:
        for number in range(60):
            text = json.dumps({"n": number, "of": {"b": number / 3}}) if number % 7 else "no JSON"
            producer.send(
                topic,
                None if number == 33 else text,
                key=None if number % 2 else f"key {number % 3}",
                headers={"number": str(number)} if number % 5 else None,
                partition=number % 2,
            )
    admin.delete_records({(topic, 0): 5})
    options = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}

    def answers(here: bool) -> list[object]:
        found: list[object] = []
        with closing(TopicTables(spark, options)) as tables:
            for question in QUESTIONS:
                rows = tables.query(question.format(*[f"`{topic}`"] * 2))
                plan = rows._jdf.queryExecution().optimizedPlan().toString()
                assert ("LocalRelation" in plan) is here, plan
                found.append((rows.schema, rows.collect()))
                if "LIMIT" not in question:  # which need not read everything
                    found.append(tables.misfits(rows))
        return found

    with Producer(broker.bootstrap, transactional_id=f"{topic}-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, '{"n": 1000}', partition=1)
        producer.flush()
        small = answers(here=True)
        monkeypatch.setattr(small_topics, "RECORDS", 10)
        assert answers(here=False) == small
        # One of few records that are large, which is seen when they come.
        monkeypatch.setattr(small_topics, "RECORDS", 1000)
        monkeypatch.setattr(small_topics, "_BYTES", 1000)
        assert answers(here=False) == small
        producer.abort_transaction()


def test_a_topic_in_the_middle_is_not_read_from_its_beginning(
    spark: SparkSession, broker: BrokerProcess, logs: str
) -> None:
    """--from and --until: what is read is part of the topic, its columns are those of the whole."""
    bounds = {
        "startingOffsets": json.dumps({logs: {"0": 10, "1": 10}}),
        "endingOffsets": json.dumps({logs: {"0": 12, "1": 13}}),
    }
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    # In a session of its own: another one may have the topic as a view already.
    with closing(TopicTables(spark.newSession(), options, lambda _: bounds)) as tables:
        rows = tables.query(f"SELECT partition, offset, page FROM `{logs}`").collect()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (0, 10),
        (0, 11),
        (1, 10),
        (1, 11),
        (1, 12),
    ]


def test_topics_that_are_known_to_be_named(tables: TopicTables, logs: str) -> None:
    """Spark need not find out that they are no tables of its own."""
    rows = tables.query(f"SELECT count(*) FROM `{logs}`", topics=[logs])
    assert [tuple(row) for row in rows.collect()] == [(100,)]
    with pytest.raises(UnknownTable, match="there is no topic 'nowhere'"):
        tables.query("SELECT 1", topics=["nowhere"])


def test_warming_needs_no_topic(tables: TopicTables) -> None:
    tables.warm()


def test_two_topics(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str, logs: str
) -> None:
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, '{"page": "/cart", "Owner": "ann"}')
    rows = tables.query(
        f"SELECT owner, count(*) FROM `{logs}` JOIN `{topic}` USING (page) GROUP BY owner"
    ).collect()
    assert [tuple(row) for row in rows] == [("ann", 33)]


def test_every_query_sees_what_is_there(
    tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    for count in (1, 2):
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, f'{{"field{count}": 1}}')
        query = f"SELECT count(field{count}), count(*) FROM `{topic}`"
        assert [tuple(row) for row in tables.query(query).collect()] == [(1, count)]


def test_unknown_tables(tables: TopicTables) -> None:
    with pytest.raises(UnknownTable, match="there is no topic 'nowhere'"):
        tables.query("SELECT * FROM nowhere")
    with pytest.raises(UnknownTable, match=r"written `a\.b`, in backticks"):
        tables.query("SELECT * FROM a.b")


# What is checked before Spark starts


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT * FROM orders", {"orders"}),
        ("SELECT * FROM `web.logs` a JOIN b USING (x)", {"web.logs", "b"}),
        ("WITH s AS (SELECT * FROM t) SELECT * FROM S WHERE EXISTS (SELECT 1 FROM u)", {"t", "u"}),
        ("FROM orders |> WHERE x > 1", {"orders"}),
        ("SELECT * FROM t LATERAL VIEW explode(tags) e AS tag", {"t"}),
        ("SELECT * FROM range(10), VALUES (1) AS v(a)", set()),
        ("SELECT * FROM parquet.`/tmp/x`", set()),
        ("SELECT 1", set()),
        ("SHOW TABLES", set()),
        ("CREATE TEMP VIEW v AS SELECT * FROM q", set()),
        ("SELEC 1", set()),
        ("SELECT " + "(" * 2000, set()),
    ],
)
def test_tables_that_a_query_names(query: str, tables: set[str]) -> None:
    assert named_tables(query) == tables


def test_topics_that_are_not_there() -> None:
    check_topics({"a"}, ["a", "b"])
    with pytest.raises(NoSuchTopic, match="no topic 'order'; did you mean 'orders'"):
        check_topics({"order", "b"}, ["orders", "b"])
    with pytest.raises(NoSuchTopic, match="no topic 'x'; `ottla topic list`"):
        check_topics({"x"}, ["orders"])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC * FROM t", "at or near 'SELEC' (line 1, position 0); did you mean SELECT?"),
        ("  -- of today\n  FORM t", "at or near 'FORM' (line 2, position 2); did you mean F"),
        ("'SELECT' 1", "at or near 'SELECT' (line 1, position 0)"),
        ("`SELECT` 1", "at or near 'SELECT' (line 1, position 0)"),
        ("SELECT count(* FROM t", "the '(' (line 1, position 12) is never closed"),
        ("SELECT (a + b) * (\n(c)", "the '(' (line 1, position 17) is never closed"),
        ("SELECT " + "(" * 2000, "the '(' (line 1, position 2006) is never closed"),
        ("SELECT a) FROM t", "nothing is open that the ')' (line 1, position 8) closes"),
        ("SELECT a[(0]) FROM t", "nothing is open that the ']' (line 1, position 11) closes"),
        ("SELECT 'a FROM t", "a string, a name in backticks or a comment is begun"),
        ("SELECT `a FROM t", "a string, a name in backticks or a comment is begun"),
    ],
)
def test_texts_that_are_no_statement(query: str, said: str) -> None:
    with pytest.raises(BadQuery, match=re.escape(said)):
        check_text(query)


RIGHT = (
    "SELECT 1.50BD, x'ff' FROM `a b` |> WHERE true",
    """SELECT x"ff", r'\\', ':(', "it''s)", 'it\\'s (' -- a remark (of one line""",
    "(SELECT 1) UNION (SELECT 2)",
    "FROM t SELECT a",
    "SELECT a[0], map(1, 2)[1] /* not ( /* closed */ */ FROM VALUES (array(1)) AS t(a)",
    "with a as (select 1) select * from a",
    "SHOW TABLES",
    "DESC t",
    "BEGIN SELECT 1; END",
    "l: BEGIN SELECT 1; END l",
    "SET a = (it's",
    "",
)


@pytest.mark.parametrize("query", RIGHT)
def test_texts_that_spark_may_take(query: str) -> None:
    check_text(query)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT flor(1.5)", "there is no function 'flor'; did you mean floor?"),
        ("SELECT a FROM t WHERE Xyzzy(a) > 1", "there is no function 'Xyzzy'"),
        ("WITH a AS (SELECT conut(*) AS n FROM t) SELECT n FROM a", "'conut'; did you mean count?"),
    ],
)
def test_functions_that_are_not_there(query: str, said: str) -> None:
    with pytest.raises(BadQuery, match=re.escape(said)):
        check_functions(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*), nvl(a, b), APPROX_PERCENTILE(a, 0.5), try_variant_get(v, '$.a', 'int')",
        "SELECT my.own(1), explode(a) FROM t LATERAL VIEW mine(b) c AS d",
        "SELECT * FROM range(10) AS r(a), mine(1), VALUES (1) AS v(a)",
        "SELECT transform(a, x -> x + 1), cast(a AS decimal(10, 2)), a IN (1, 2) FROM t AS u(a)",
        "CREATE FUNCTION f AS 'x'",
    ],
)
def test_functions_that_may_be_there(query: str) -> None:
    check_functions(query)


def test_the_functions_are_those_of_spark(spark: SparkSession) -> None:
    """All of them: one that is not known here would be refused. No others: they would be let through."""
    shown = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in shown if name.isidentifier()} == FUNCTIONS


def test_what_looks_wrong() -> None:
    assert doubt("SELECT a FROM t") is None
    assert doubt("SELECT a FORM\n t") == "at or near 't' (line 2, position 1)"
    assert doubt("SELECT " + "(" * 2000) is None
    assert doubt("SELECT 'a") is None


@pytest.mark.usefixtures("spark")
def test_syntax_is_checked_by_the_parser_of_spark() -> None:
    check_syntax("SELECT 1.50BD, x'ff' FROM `a b` |> WHERE true")
    check_syntax("SHOW TABLES")
    for query in ("SELEC 1", "SELECT a,, b FROM t", "SELECT * FROM web-logs"):
        with pytest.raises(ParseException):
            check_syntax(query)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("query", "is_one"),
    [
        ("""SELECT x"ff" FROM `a b` |> WHERE true""", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a UNION ALL TABLE b", True),
        ("FROM t SELECT a", True),
        ("SHOW TABLES", False),
        ("SET a = 1", False),
        ("CACHE TABLE t", False),
        ("CREATE TEMP VIEW v AS SELECT 1", False),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", False),
        ("FROM t INSERT INTO a SELECT b INSERT INTO c SELECT d", False),
    ],
)
def test_queries_are_told_from_commands_by_the_parser_of_spark(query: str, is_one: bool) -> None:
    assert is_query_of_spark(query) is is_one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["SELECT count(*) FROM {near}"], "there is no topic '{near}'; did you mean '{topic}'?"),
        (["SELECT * FROM {topic} JOIN nowhere"], "there is no topic 'nowhere'; `ottla topic list`"),
        (["SELECT 1", "--option", "startingOfsets=x"], "did you mean startingOffsets?"),
        (["SELECT 1", "--to", "nowhere"], "there is no topic 'nowhere'"),
        (["SELEC * FROM {topic}"], "at or near 'SELEC' (line 1, position 0); did you mean SELECT?"),
        (["SELECT conut(*) FROM {topic}"], "there is no function 'conut'; did you mean count?"),
        (["SELECT 1 FROM {topic}"], "/nowhere/./bin/spark-submit"),  # all is well, Spark is wanted
    ],
)
def test_mistakes_are_told_before_spark_starts(
    broker: BrokerProcess, admin: Admin, words: list[str], said: str
) -> None:
    topic = f"checked{uuid.uuid4().hex[:8]}"
    admin.create_topic(topic, 1)
    names = {"topic": topic, "near": topic[:-1]}
    command = [
        sys.executable,
        "-m",
        "ottla.cli.main",
        "sql",
        *(word.format(**names) for word in words),
    ]
    done = subprocess.run(
        [*command, "--server", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "SPARK_HOME": "/nowhere"},
        check=False,
    )
    assert done.returncode == 1
    assert said.format(**names) in done.stderr
    assert len(done.stderr.splitlines()) == 1


# The command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["SELECT 1", "--json", "--csv"], "exclude each other"),
        (["SELECT 1", "--follow", "--until", "latest"], "--follow never ends"),
        (["SELECT 1", "--to", "a b"], "cannot be a topic's name"),
        (["--to", "errors"], "--to needs a query"),
        (["SELECT 1", "--option", "nonsense"], "--option takes name=value"),
        (["SELECT 1", "--checkpoint", "x"], "--checkpoint is for --follow --to"),
    ],
)
def test_misuse_is_told_before_spark_starts(words: list[str], said: str) -> None:
    assert said in run_command("sql", *words, server="127.0.0.1:1", fails=2).stderr


@pytest.mark.usefixtures("spark")
class TestCommand:
    """The command in the session of the tests."""

    def test_json(self, broker: BrokerProcess, logs: str) -> None:
        query = f"SELECT page, user, status, timestamp < now() AS past FROM `{logs}` WHERE ms = 2.5"
        result = run_command("sql", query, "--json", server=broker.bootstrap)
        assert lines(result.stdout) == [
            {
                "page": "/help",
                "user": {"id": 2, "tags": ["a", "b"]},
                "status": 200,
                "past": True,
            }
        ]

    def test_csv(self, broker: BrokerProcess) -> None:
        query = (
            "SELECT 1.50BD AS price, 'a,\"b' AS text, null AS nothing, array(1, 2) AS list, "
            "timestamp'2026-11-15 08:00:00Z' AS at, x'ff' AS bytes, true AS yes"
        )
        result = run_command("sql", query, "--csv", server=broker.bootstrap)
        [row] = csv.DictReader(result.stdout.splitlines())
        assert row == {
            "price": "1.50",
            "text": 'a,"b',
            "nothing": "",
            "list": "[1, 2]",
            "at": "2026-11-15T08:00:00.000Z",
            "bytes": "0xff",
            "yes": "true",
        }

    def test_table(self, broker: BrokerProcess, logs: str) -> None:
        query = f"SELECT status, count(*) AS n FROM `{logs}` GROUP BY status ORDER BY n"
        result = run_command("sql", query, server=broker.bootstrap)
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["STATUS", "N"],
            ["500", "10"],
            ["200", "90"],
        ]

    def test_long_tables_are_cut(self, broker: BrokerProcess) -> None:
        result = run_command("sql", "SELECT * FROM range(1001)", server=broker.bootstrap)
        assert len(result.stdout.splitlines()) == 1001
        assert "only the first 1,000 rows" in result.stderr
        whole = run_command("sql", "SELECT * FROM range(1001)", "-n", 1001, server=broker.bootstrap)
        assert (len(whole.stdout.splitlines()), whole.stderr) == (1002, "")

    def test_from_and_until(self, broker: BrokerProcess, admin: Admin, topic: str) -> None:
        admin.create_topic(topic, 1)
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, str(number), timestamp=1_000 * number)
        query = f"SELECT value FROM `{topic}` ORDER BY offset"
        for start, end, found in (("-3", "9", "78"), ("@4000", "@6000", "45"), ("latest", "5", "")):
            words = ("--from", start, "--until", end, "--json")
            result = run_command("sql", query, *words, server=broker.bootstrap)
            assert "".join(str(each["value"]) for each in lines(result.stdout)) == found

    @pytest.mark.parametrize("words", [(), ("--json",), ("--csv",), ("-n", 3), ("--to", "DIR/")])
    def test_misfits_are_told(
        self,
        broker: BrokerProcess,
        admin: Admin,
        topic: str,
        tmp_path: Path,
        words: tuple[object, ...],
    ) -> None:
        admin.create_topic(topic, 1)
        with Producer(broker.bootstrap) as producer:
            for value in ('{"a": 1}', "text", '{"a": 3}'):
                producer.send(topic, value, partition=0)
        words = tuple(f"{tmp_path}/rows" if word == "DIR/" else word for word in words)
        result = run_command("sql", f"SELECT a FROM `{topic}`", *words, server=broker.bootstrap)
        assert result.stderr == (
            f"1 record of '{topic}' does not fit the columns: what does not fit is null, and "
            "`_corrupt` has the value\n"
        )

    def test_to_topic(self, broker: BrokerProcess, admin: Admin, topic: str, logs: str) -> None:
        admin.create_topic(topic, 1)
        query = f"SELECT key, value FROM `{logs}` WHERE status = 500"
        run_command("sql", query, "--to", topic, server=broker.bootstrap)
        query = f"SELECT page AS key, count(*) AS hits, null AS x FROM `{logs}` GROUP BY page"
        run_command("sql", query, "--to", topic, server=broker.bootstrap)
        with Consumer(broker.bootstrap) as consumer:
            records = consumer.read(topic).select(["key", "value"]).to_pylist()
        copied = [json.loads(each["value"])["status"] for each in records[:10]]
        assert copied == [500] * 10
        counted = {each["key"].decode(): json.loads(each["value"]) for each in records[10:]}
        assert counted == {"/": {"hits": 34}, "/cart": {"hits": 33}, "/help": {"hits": 33}}

    def test_what_cannot_be_written_is_told(
        self, broker: BrokerProcess, admin: Admin, topic: str, logs: str
    ) -> None:
        admin.create_topic(topic, 1)
        rows = f"SELECT page, status FROM `{logs}`"
        elsewhere = run_command(
            "sql", rows, "--to", "s3a://bucket/x", server=broker.bootstrap, fails=1
        )
        assert "Spark has nothing to write s3a:// with; name the packages" in elsewhere.stderr
        twice = f"SELECT page AS a, status AS a FROM `{logs}`"
        for words in (("--json",), ("--to", topic)):
            failed = run_command("sql", twice, *words, server=broker.bootstrap, fails=1)
            assert failed.stderr == "ottla: several columns are called 'a'; name each with AS\n"
        assert run_command("sql", twice, "--csv", server=broker.bootstrap).stdout.startswith(
            "a,a\n"
        )

    def test_to_folder(self, broker: BrokerProcess, tmp_path: Path, logs: str) -> None:
        folder = tmp_path / "new" / "rows"
        query = f"SELECT page, ms FROM `{logs}` WHERE status = 500"
        run_command("sql", query, "--to", folder, server=broker.bootstrap)
        assert pyarrow.parquet.read_table(folder).num_rows == 10
        again = run_command("sql", query, "--to", folder, server=broker.bootstrap, fails=1)
        assert "is there already" in again.stderr
        broken = f"SELECT raise_error('no') FROM `{logs}`"
        other = tmp_path / "new" / "other"
        failed = run_command("sql", broken, "--to", other, server=broker.bootstrap, fails=1)
        assert "no" in failed.stderr
        assert [each.name for each in folder.parent.iterdir()] == ["rows"]

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("SELECT * FROM nowhere", "there is no topic 'nowhere'"),
            ("SELEC 1", "Syntax error at or near 'SELEC' (line 1, position 0)"),
            ("SELECT page FROM range(1)", "`page` cannot be resolved"),
            ("SELECT * FROM web-logs", "back quoted as: `web-logs`"),
            ("SELECT raise_error('broken')", "broken"),
        ],
    )
    def test_failures_are_one_sentence(self, broker: BrokerProcess, query: str, said: str) -> None:
        result = run_command("sql", query, server=broker.bootstrap, fails=1)
        assert result.stderr.startswith("ottla: ")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_script(self, broker: BrokerProcess, logs: str) -> None:
        script = "SELECT ';' AS a; -- a comment; of two\nSELECT\n 2 AS b;\n"
        script += f"\\d {logs}\n\\d\nSELECT 3 AS c"
        result = run_command("sql", "--csv", stdin=script, server=broker.bootstrap)
        printed = result.stdout.splitlines()
        assert printed[:4] == ["a", ";", "b", "2"]
        assert printed[-2:] == ["c", "3"]
        assert any(
            line.split() == ["user", "struct<id:bigint,tags:array<string>>"] for line in printed
        )
        assert any(line.split() == [logs, "2"] for line in printed)

    def test_script_ends_with_its_first_failure(self, broker: BrokerProcess) -> None:
        script = "SELECT 1 AS a;\nSELECT b;\nSELECT 3 AS c;"
        result = run_command("sql", "--csv", stdin=script, server=broker.bootstrap, fails=1)
        assert result.stdout.splitlines() == ["a", "1"]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("SELECT 1;", 8),
        ("SELECT 1", None),
        ("SELECT ';', \"a;\", `b;` ; x", 23),
        (r"SELECT '\';' ;", 13),
        ("SELECT -- no;\n1;", 15),
        ("SELECT -- no;", None),
        ("\\d", 2),
        ("\\d a\nSELECT 1;", 4),
        ("\\follow SELECT 1;", 16),
    ],
)
def test_end_of_a_statement(text: str, end: int | None) -> None:
    assert _statement_end(text) == end


# Following


def test_following(tables: TopicTables, broker: BrokerProcess, admin: Admin, topic: str) -> None:
    """Results that change come in update mode; every record is seen once."""
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, '{"page": "/", "ms": 1}')
        producer.flush()
        rows = tables.query(f"SELECT page, sum(ms) AS ms FROM `{topic}` GROUP BY page", follow=True)
        seen: list[tuple[str, int]] = []
        enough = threading.Event()

        def take(batch: DataFrame, number: int) -> None:
            seen.extend((row["page"], row["ms"]) for row in batch.collect())
            if len(seen) == 1:
                producer.send(topic, '{"page": "/", "ms": 10}').result()
                producer.send(topic, '{"page": "/cart", "ms": 5}').result()
            if dict(seen) == {"/": 11, "/cart": 5}:
                enough.set()

        query = follow_to_functions(rows, {"append": take, "update": take})
        assert not wait(query, enough=enough)
    assert seen[0] == ("/", 1)
    assert not query.isActive


@pytest.mark.long
def test_following_on_standard_output(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        for number in range(5):
            producer.send(topic, f'{{"n": {number}}}')
    words = (f"SELECT n FROM `{topic}`", "--follow", "--limit", 3)
    printed = run_command("sql", *words, "--json", server=broker.bootstrap).stdout
    assert printed.splitlines() == ['{"n":0}', '{"n":1}', '{"n":2}']
    printed = run_command("sql", *words, server=broker.bootstrap).stdout
    assert printed.splitlines() == ["N", "0", "1", "2"]
    words = (f"SELECT sum(n) AS n FROM `{topic}`", "--follow", "--limit", 1)
    printed = run_command("sql", *words, "--csv", server=broker.bootstrap).stdout
    assert printed.splitlines() == ["n", "10"]


def test_following_to_a_topic_goes_on_where_it_was(
    tables: TopicTables,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    result = f"{topic}-result"
    admin.create_topic(topic, 1)
    admin.create_topic(result, 1)
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    for round_ in range(2):
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, f'{{"n": {round_}}}', key="k")
        rows = tables.query(f"SELECT key, n + 1 AS more FROM `{topic}`", follow=True)
        query = follow_to_topic(rows, servers, result, str(tmp_path / "checkpoint"))
        query.processAllAvailable()
        query.stop()
    with Consumer(broker.bootstrap) as consumer:
        records = consumer.read(result).select(["key", "value"]).to_pylist()
    assert [(each["key"], json.loads(each["value"])) for each in records] == [
        (b"k", {"more": 1}),
        (b"k", {"more": 2}),
    ]
