"""`ottla pipeline run` and `init`, and `ottla sql` on its own: commands as users start them."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import closing, suppress
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess
from ottla.testing.guardian import end_with_this_program

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.commands import run_command
from pipeline_kit.programs import QUICK, Start, finish, start
from pipeline_kit.writing import until

__all__ = ["start"]

NOWHERE = "127.0.0.1:1"
SCRIPT = """
import sys
from pathlib import Path
from beside import DOUBLE
from ottla.pipeline import session

spark = session(settings={"spark.ui.enabled": "false"})
servers, topic, folder = sys.argv[1:]
rows = (
    spark.readStream.format("ottla")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)

def double(batch, number):
    found = [int(row["value"]) * DOUBLE for row in batch.collect()]
    Path(folder, f"{number}.txt").write_text(f"{spark.sparkContext.master} {found}")

# Nobody waits for it: the command does.
rows.writeStream.queryName("doubling").foreachBatch(double).start()
print("started")
"""


@pytest.mark.timeout(400, func_only=True)
@pytest.mark.long
def test_init_and_run(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, start: Start
) -> None:
    """The project works as it is written, and a second run goes on where the first has ended."""
    admin.create_topic(topic, 2)
    project = tmp_path / "shop"
    result = run_command("pipeline", "init", project, "--topic", topic, server=broker.bootstrap)
    assert len(result.stdout.splitlines()) == 3
    # Records of long ago would be deleted, should the broker look for such meanwhile.
    this_minute = int(time.time()) // 60 * 60_000
    for round_ in (1, 2):
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, str(number), timestamp=this_minute + 60_000 * round_)
        _, told = finish(start("pipeline", "run", project, *QUICK))
        assert "Flow spark_catalog.default.records has COMPLETED." in told
        assert "spark_catalog.default.records: 10 rows" in told
        assert "WARN" not in told
        minutes = pyarrow.parquet.read_table(project / "tables" / "records_per_minute")
        assert minutes.column("records").to_pylist() == [10] * round_
    records = pyarrow.parquet.read_table(project / "tables" / "records")
    assert sorted(records.column("value").to_pylist()) == sorted(map(str, [*range(10)] * 2))


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.long
def test_script(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, start: Start
) -> None:
    """The master is the command's; queries are awaited, and stopped by SIGTERM."""
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, "21")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("DOUBLE = 2\n")
    folder = tmp_path / "results"
    folder.mkdir()
    words = ("pipeline", "run", tmp_path / "script.py", broker.bootstrap, topic, folder)
    command = start(*words, *QUICK[2:], "--master", "local[1]")
    assert command.stdout is not None
    assert command.stdout.readline() == "started\n"

    def has_result() -> bool:
        assert command.poll() is None
        return (folder / "0.txt").exists() and bool((folder / "0.txt").read_text())

    until(has_result, 250)
    command.send_signal(signal.SIGTERM)
    _, told = finish(command)
    assert (folder / "0.txt").read_text() == "local[1] [42]"
    assert told.splitlines()[0].startswith("Spark's log: ")
    assert all(line.startswith("doubling: ") for line in told.splitlines()[1:])


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: object, state: Path) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.shown = ""

        def take_terminal() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        end_with_this_program(self.process.pid)
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, text: str) -> str:
        """What is shown until this appears; the deadline is the test's."""
        while text not in self.shown:
            self.shown += os.read(self._ours, 1 << 16).decode()
        before, _, self.shown = self.shown.partition(text)
        return before

    def end(self) -> int:
        """Read what is left, and how the command ended."""
        with suppress(OSError):  # what Linux says when nobody has the terminal open any more
            while rest := os.read(self._ours, 1 << 16):
                self.shown += rest.decode()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.long
def test_sql_prompt(broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path) -> None:
    """On a terminal; nothing of Spark's noise reaches it, and Ctrl-C ends what it should."""
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, '{"n": 41}')
    with closing(Terminal("sql", "--server", broker.bootstrap, *QUICK, state=tmp_path)) as terminal:
        assert "WARN" not in terminal.expect("sql > ")
        terminal.type(f"SELECT n + 1 AS more\nFROM `{topic}`;\n")
        assert "42" in terminal.expect("1 row, ")
        terminal.expect("sql > ")
        terminal.type("SELECT nothing;\n")
        terminal.expect("`nothing` cannot be resolved")
        terminal.expect("sql > ")
        terminal.type(f"\\follow SELECT n + 2 AS more FROM `{topic}`;\n")
        terminal.expect("43")
        terminal.type("\x03")
        terminal.expect("sql > ")
        terminal.type("SELECT 1,\n")
        terminal.expect("    > ")
        terminal.type("\x03")
        terminal.expect("sql > ")
        terminal.type("SELECT 44 AS last;\n")
        assert "44" in terminal.expect("1 row, ")
        terminal.type("\\q\n")
        assert terminal.end() == 0
    [log] = (tmp_path / "ottla").glob("spark-sql-*.log")
    assert "WARN" in log.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nowhere.py",), 1, "there is no nowhere.py"),
        ((".",), 1, "has no spark-pipeline.yml"),
        (("script.py", "--full-refresh"), 2, "are for projects"),
        (("project", "argument"), 2, "a project takes no arguments"),
        (("both",), 1, "remove one of them"),
        (("script.py", "--conf", "nonsense"), 2, "--conf takes name=value"),
    ],
)
def test_run_is_refused(
    words: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("raise AssertionError\n")
    for folder, names in (("project", ("yml",)), ("both", ("yml", "yaml"))):
        Path(folder).mkdir()
        for name in names:
            Path(folder, f"spark-pipeline.{name}").touch()
    result = run_command("pipeline", "run", *words, server=NOWHERE, fails=code)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("def inner():\n    raise ValueError('broken')\ninner()\n", "ValueError: broken"),
        ("def inner(:\n", "SyntaxError: invalid syntax"),
        ("from ottla.client.errors import OttlaError\nraise OttlaError('broken')", "ottla: broken"),
    ],
)
def test_errors_of_a_script(script: str, shown: str, tmp_path: Path, spark: SparkSession) -> None:
    """From the script's own lines on, without those of the command."""
    (tmp_path / "script.py").write_text(script)
    result = run_command("pipeline", "run", tmp_path / "script.py", server=NOWHERE, fails=1)
    assert result.stderr.splitlines()[-1] == shown
    assert "runpy" not in result.stderr
    assert ("Traceback" in result.stderr) == ("ValueError" in shown)


def test_init_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, said in (("there", "is there already"), ("a b", "cannot be a project's name")):
        result = run_command("pipeline", "init", tmp_path / name, server=NOWHERE, fails=1)
        assert said in result.stderr
