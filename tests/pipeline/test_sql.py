"""`ottla sql`: topics as tables."""

from __future__ import annotations

import csv
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla import Consumer, Producer
from ottla.cli.sql.prompt import _statement_end
from ottla.client.admin.client import Admin
from ottla.pipeline.spark.progress import wait
from ottla.pipeline.sql.json_fields import json_fields
from ottla.pipeline.sql.tables import TopicTables, UnknownTable
from ottla.pipeline.sql.targets import follow_to_functions, follow_to_topic
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline_kit.commands import run_command

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
        ([b'{"a": 99999999999999999999}'], "struct<a:double>"),
        ([b'{"a": true}', b'{"a": 1}'], "struct<a:string>"),
        ([b'{"a": null, "b": [], "c": {}}'], "struct<a:string,b:array<string>,c:string>"),
        (
            [b'{"a": [{"b": 1}]}', b'{"a": [{"c": "x"}, {"b": 2.5}]}'],
            "struct<a:array<struct<b:double,c:string>>>",
        ),
        ([b'{"a": {"b": 1}}', b'{"a": "text"}'], "struct<a:string>"),
        ([b'{"a": 1}', b"text"], None),
        ([b"17"], None),
        ([b"[1, 2]"], None),
        ([b"{}"], None),
        ([b"[" * 100_000], None),
        ([], None),
    ],
)
def test_fields_of_json(values: list[bytes], found: str | None) -> None:
    fields = json_fields(values)
    assert (None if fields is None else fields.simpleString()) == found


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
    }


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
