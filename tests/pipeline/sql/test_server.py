"""The Spark that `ottla sql` leaves behind for the next query."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from ottla import Consumer, Producer
from ottla.cli.failures import Failure
from ottla.cli.sql import plain, warm
from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

LIGHT = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
LEFT_BEHIND = "Spark stays ready for the next query"


@pytest.fixture(scope="module")
def numbers(broker: BrokerProcess, admin: Admin) -> str:
    topic = "sql-server-numbers"
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, f'{{"n": {number}}}')
        producer.send(topic, "no JSON")
    return topic


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Folders of its own, and no server in them when all is over."""
    made = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("run")),
        "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")),
        warm.SWITCH: "1",
    }
    yield made
    ottla("spark", "stop", env=made)


def ottla(
    *words: object,
    env: dict[str, str],
    fails: int = 0,
    cwd: Path | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=110,
        env=env,
        cwd=cwd,
        input=stdin,
        check=False,
    )
    assert done.returncode == fails, done
    return done


def sockets(environment: dict[str, str]) -> list[Path]:
    return sorted(Path(environment["XDG_RUNTIME_DIR"], "ottla").glob("*.sock"))


def server_pid(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        [message] = warm.asked(connection, {})
    return int(message["done"])


def await_end(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if status == "Z":  # orphans are reaped here after a while
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def written_by_the_server(
    broker: BrokerProcess, admin: Admin, environment: dict[str, str], numbers: str, folder: Path
) -> None:
    """--to: a topic, a folder by its name from where the command was started, one that is there."""
    where = ("--server", broker.bootstrap, *LIGHT)
    target = f"{numbers}-copied"
    admin.create_topic(target, 1)
    query = f"SELECT n FROM `{numbers}` WHERE n < 3"
    done = ottla("sql", query, "--to", target, *where, env=environment)
    assert (done.stdout, LEFT_BEHIND in done.stderr) == ("", False)
    with Consumer(broker.bootstrap) as consumer:
        values = consumer.read(target, columns=["value"])["value"].to_pylist()
    assert sorted(values) == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    ottla("sql", query, "--to", "./with a space", *where, env=environment, cwd=folder)
    rows = pyarrow.parquet.read_table(folder / "with a space").to_pylist()
    assert sorted(row["n"] for row in rows) == [0, 1, 2]
    again = ottla("sql", query, "--to", folder, *where, env=environment, fails=1)
    assert f"{folder} is there already" in again.stderr


def followed_by_the_server(
    broker: BrokerProcess, environment: dict[str, str], numbers: str
) -> None:
    """--follow: as many rows as are wanted, or until a signal."""
    words = ("--follow", "--csv", "--server", broker.bootstrap, *LIGHT)
    query = f"SELECT n FROM `{numbers}` WHERE n IS NOT NULL"
    some = ottla("sql", query, "--limit", 4, *words, env=environment)
    assert some.stdout == "n\n0\n1\n2\n3\n"
    following = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "sql", query, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(11)][-1] == "9\n"
    following.send_signal(signal.SIGTERM)
    rest, told = following.communicate(timeout=60)
    assert (following.returncode, rest) == (0, ""), told


def prompted_by_the_server(
    broker: BrokerProcess, environment: dict[str, str], numbers: str
) -> None:
    """The statements of a prompt that are queries."""
    statements = rf"""
        \d
        \d {numbers}
        SELECT max(n) AS most FROM `{numbers}`;
        SELECT count(n) AS many FROM `{numbers}`;
    """
    words = ("--csv", "--server", broker.bootstrap, *LIGHT)
    done = ottla("sql", *words, env=environment, stdin=statements)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS"]
    assert [numbers, "1"] in [line.split() for line in lines]
    assert ["n", "bigint"] in [line.split() for line in lines]
    assert lines[lines.index("most") + 1] == "9"
    assert lines[-2:] == ["many", "10"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_next_query_finds_spark_ready(
    broker: BrokerProcess, admin: Admin, environment: dict[str, str], numbers: str, tmp_path: Path
) -> None:
    where = ("--server", broker.bootstrap, *LIGHT)
    query = f"SELECT sum(n) AS total FROM `{numbers}`"
    first = ottla("sql", query, "--json", *where, env=environment)
    assert first.stdout == '{"total":45}\n'
    assert LEFT_BEHIND in first.stderr
    misfit = f"1 record of '{numbers}' does not fit the columns"
    assert misfit in first.stderr
    [path] = sockets(environment)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    pid = server_pid(path)

    for form, shown in (("--csv", "total\n45\n"), ("--json", '{"total":45}\n')):
        again = ottla("sql", query, form, *where, env=environment)
        assert (again.stdout, LEFT_BEHIND in again.stderr) == (shown, False)
        assert misfit in again.stderr
    # A query that fails is one sentence, and leaves the server as it was.
    failed = ottla("sql", f"SELECT nothing FROM `{numbers}`", *where, env=environment, fails=1)
    assert "`nothing` cannot be resolved" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert server_pid(path) == pid

    # What only Spark's parser knows to be a query.
    odd = ottla("sql", """SELECT x"ff" AS b""", "--csv", *where, env=environment)
    assert (odd.stdout, odd.stderr) == ("b\n0xff\n", "")
    missing = ottla("sql", f"SELECT 1 FROM `{numbers}z`", *where, env=environment, fails=1)
    assert f"there is no topic '{numbers}z'" in missing.stderr
    wrong = ottla("sql", "SELEC 1", *where, env=environment, fails=1)
    assert "'SELEC'" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
    assert server_pid(path) == pid

    assert ottla("spark", "stop", env=environment).stdout == "1 server stopped\n"
    await_end(pid)
    assert sockets(environment) == []
    assert ottla("spark", "stop", env=environment).stdout == "there is none\n"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_whatever_is_a_query_is_asked_of_the_server(
    broker: BrokerProcess, admin: Admin, environment: dict[str, str], numbers: str, tmp_path: Path
) -> None:
    where = ("--server", broker.bootstrap, *LIGHT)
    query = f"SELECT sum(n) AS total FROM `{numbers}`"
    table = ottla("sql", query, "--from", 5, "--until", 8, *where, env=environment)
    assert table.stdout.split() == ["TOTAL", str(5 + 6 + 7)]
    [path] = sockets(environment)
    pid = server_pid(path)

    # Whoever gives up a query ends its work.
    endless = "SELECT count(*) FROM range(1000000000000) WHERE id % 7 = rand()"
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "sql", endless, *where],
        env=environment,
        stderr=subprocess.PIPE,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert ottla("sql", query, "--json", *where, env=environment).stdout == '{"total":45}\n'

    written_by_the_server(broker, admin, environment, numbers, tmp_path)
    followed_by_the_server(broker, environment, numbers)
    prompted_by_the_server(broker, environment, numbers)
    assert [server_pid(each) for each in sockets(environment)] == [pid]
    ottla("spark", "stop", env=environment)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_prompt_that_sets_something_has_its_own(
    broker: BrokerProcess, environment: dict[str, str], numbers: str
) -> None:
    statements = f"""
        SET spark.sql.session.timeZone = Asia/Tokyo;
        SELECT current_timezone() AS zone, count(n) AS many FROM `{numbers}`;
    """
    words = ("--csv", "--server", broker.bootstrap, *LIGHT)
    zone = "SELECT current_timezone() AS zone"
    assert ottla("sql", zone, *words, env=environment).stdout == "zone\nUTC\n"
    done = ottla("sql", *words, env=environment, stdin=statements)
    assert done.stdout.splitlines()[-2:] == ["zone,many", "Asia/Tokyo,10"]
    assert ottla("sql", zone, *words, env=environment).stdout == "zone\nUTC\n"
    ottla("spark", "stop", env=environment)


@pytest.mark.timeout(200)
@pytest.mark.long
def test_it_ends_when_nobody_asks(broker: BrokerProcess, environment: dict[str, str]) -> None:
    idle = {**environment, "OTTLA_SPARK_IDLE": "3"}
    where = ("--server", broker.bootstrap, *LIGHT)
    assert ottla("sql", "SELECT 1 AS one", "--csv", *where, env=idle).stdout == "one\n1\n"
    # It ends by itself; nothing is left of it.
    deadline = time.monotonic() + 60
    while sockets(environment):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_start_that_fails_is_told(broker: BrokerProcess, environment: dict[str, str]) -> None:
    broken = {**environment, "SPARK_HOME": "/nowhere"}
    failed = ottla("sql", "SELECT 1", "--server", broker.bootstrap, env=broken, fails=1)
    assert "/nowhere/./bin/spark-submit" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert LEFT_BEHIND not in failed.stderr


@pytest.mark.parametrize(
    ("query", "may"),
    [
        ("SELECT * FROM orders", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a UNION ALL SELECT 2", True),
        ("SELECT * FROM parquet.`rows`", False),
        ("CREATE TEMP VIEW v AS SELECT 1", False),
        ("SET spark.sql.ansi.enabled = false", False),
        ("INSERT INTO t SELECT 1", False),
        ("SELECT 1; SELECT 2", False),
        ("SELEC 1", False),
    ],
)
def test_what_a_server_may_answer(query: str, may: bool) -> None:
    assert warm.can_answer(query) is may


def test_other_settings_are_another_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    plain = warm.socket_of({"a": "1"})
    assert warm.socket_of({"a": "1"}) == plain
    assert warm.socket_of({"a": "2"}) != plain
    mask = os.umask(0o027)
    try:
        assert warm.socket_of({"a": "1"}) != plain  # files would have other permissions
    finally:
        os.umask(mask)
    for name in ("SPARK_CONF_DIR", "JAVA_HOME", "PYTHONPATH", "AWS_PROFILE", "OTTLA_CLIENT_CONFIG"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "/other")
            assert warm.socket_of({"a": "1"}) != plain
    with monkeypatch.context() as changed:
        changed.setenv("COLUMNS", "90")
        assert warm.socket_of({"a": "1"}) == plain


def test_a_folder_that_others_can_enter_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The folders of tests have long names, with which another one would be taken.
    monkeypatch.setattr(warm, "_LONGEST_FOLDER", 4096)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "ottla").mkdir(mode=0o755)
    (tmp_path / "ottla").chmod(0o755)
    with pytest.raises(Failure, match="not a folder of yours alone"):
        warm.socket_of({})
    (tmp_path / "ottla").rmdir()
    (tmp_path / "ottla").symlink_to("/tmp")
    with pytest.raises(Failure, match="not a folder of yours alone"):
        warm.socket_of({})


ASKING = """
import sys
from ottla.cli.sql import warm
if sys.argv[1] == "where":
    print(warm.socket_of(warm.query_settings()))
else:
    from ottla.cli.app import run
    try:
        run(sys.argv[1:])
    finally:
        print(sorted({"pyspark", "pandas", "numba"} & set(sys.modules)), file=sys.stderr)
"""
PLAINLY = """
import sys
from ottla.cli.main import main
try:
    main()
finally:
    heavy = {"typer", "pyarrow", "sqlglot", "pyspark", "asyncio"}
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["SELECT 1"], ("SELECT 1", "table", "127.0.0.1:9092")),
        (["--json", "SELECT 1"], ("SELECT 1", "json", "127.0.0.1:9092")),
        (["SELECT 1", "-s", "a:1", "--csv"], ("SELECT 1", "csv", "a:1")),
        (["SELECT 1", "--server", "a:1"], ("SELECT 1", "table", "a:1")),
        ([], None),
        ([""], None),
        (["SELECT 1", "SELECT 2"], None),
        (["SELECT 1", "--json", "--csv"], None),
        (["SELECT 1", "--follow"], None),
        (["SELECT 1", "--server"], None),
        (["SELECT 1", "--limit", "2"], None),
        (["--help"], None),
    ],
)
def test_plain_command_lines(
    words: list[str], found: tuple[str, str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTTLA_SERVER", raising=False)
    parsed = plain.parse(words)
    assert (None if parsed is None else (parsed.text, parsed.form.value, parsed.server)) == found
    if found is not None and "a:1" not in words:
        monkeypatch.setenv("OTTLA_SERVER", "b:2")
        again = plain.parse(words)
        assert again is not None
        assert again.server == "b:2"


@pytest.mark.parametrize("ends_with", [{"done": 1}, {"failed": "no such column"}, {}])
def test_a_plain_query_is_asked_at_once(
    broker: BrokerProcess, tmp_path: Path, ends_with: dict[str, object]
) -> None:
    """Without what reads other command lines, which alone would take as long as the answer."""
    env = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        warm.SWITCH: "1",
    }
    where = subprocess.check_output([sys.executable, "-c", ASKING, "where"], env=env, text=True)
    asked: list[dict[str, object]] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            asked.append(json.loads(stream.readline()))
            warm.send(stream, {"table": [["n"], [[1], [2]]]})
            if ends_with:
                warm.send(stream, ends_with)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where.strip())
        listener.listen()
        answering = threading.Thread(target=answer)
        answering.start()
        words = ["sql", "SELECT n FROM numbers", "--server", broker.bootstrap]
        done = subprocess.run(
            [sys.executable, "-c", PLAINLY, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        answering.join()
    assert done.stdout.split() == ["N", "1", "2"]
    told = done.stderr.splitlines()
    assert told[-1] == "[]"
    if "done" in ends_with:
        assert (done.returncode, told[:-1]) == (0, [])
    else:
        said = str(ends_with.get("failed", "the Spark server broke off its answer"))
        assert done.returncode == 1
        assert told[0].startswith(f"ottla: {said}")
    [request] = asked
    assert (request["query"], request["unseen"]) == ("SELECT n FROM numbers", True)
    assert request["options"] == {"kafka.bootstrap.servers": broker.bootstrap}


def test_a_plain_query_of_a_broker_that_is_not_there(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), warm.SWITCH: "1"}
    done = ottla("sql", "SELECT 1", "--server", "127.0.0.1:1", env=env, fails=1)
    assert done.stderr.startswith("ottla: nothing answers at 127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


def test_whoever_asks_needs_nothing_of_spark(
    broker: BrokerProcess, numbers: str, tmp_path: Path
) -> None:
    """A server that answers at once: what it takes to ask it."""
    env = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        warm.SWITCH: "1",
    }
    command = [sys.executable, "-c", ASKING]
    where = subprocess.check_output([*command, "where"], env=env, text=True).strip()
    asked: list[dict[str, object]] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            asked.append(json.loads(stream.readline()))
            warm.send(stream, {"note": "a note"})
            warm.send(stream, {"table": [["n"], [[1], [2]]]})
            warm.send(stream, {"done": 1})

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where)
        listener.listen()
        answering = threading.Thread(target=answer)
        answering.start()
        query = f"SELECT n FROM `{numbers}`"
        words = ["sql", query, "--server", broker.bootstrap, "-n", "2", "--from", "3"]
        done = subprocess.run(
            [*command, *words], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        answering.join()
    assert done.stdout.split() == ["N", "1", "2"]
    assert done.stderr.splitlines() == ["a note", "[]"]
    [request] = asked
    assert (request["query"], request["limit"], request["form"]) == (query, 2, "table")
    assert request["options"] == {"kafka.bootstrap.servers": broker.bootstrap}
    assert "startingOffsets" in json.dumps(request["bounds"])
