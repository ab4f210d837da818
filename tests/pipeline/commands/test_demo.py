"""`ottla demo` as a user starts it: what it shows, what it leaves, and how it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit import environments

from ottla.cli.commands.demo.demo import Demo
from ottla.pipeline.examples import examples_folder
from ottla.testing import BrokerProcess, free_port
from ottla.testing.guardian import end_with_this_program

PATIENCE = 170.0  # seconds for a demo on a machine that does other things as well


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a demo, which is gone when the test is."""
    started: list[subprocess.Popen[str]] = []

    def run(
        *words: str, python: Path | str = sys.executable, **environment: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [python, "-m", "ottla.cli.main", "demo", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        end_with_this_program(process.pid)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def processes_with(text: str) -> list[str]:
    """Command lines that name something of this test's."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or folder.name == str(os.getpid()):
            continue
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            mark = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended, or is another user's
        if text in mark or text in command:
            found.append(command)
    return found


def await_none_with(text: str) -> None:
    deadline = time.monotonic() + 20
    while left := processes_with(text):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_the_wheel_has_the_examples(tmp_path: Path) -> None:
    with zipfile.ZipFile(environments.build_wheel(tmp_path)) as wheel:
        packed = {
            name: wheel.read(name)
            for name in wheel.namelist()
            if name.startswith("ottla/examples/")
        }
    here = examples_folder()
    assert packed == {
        f"ottla/examples/{path.relative_to(here)}": path.read_bytes() for path in here.rglob("*.py")
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_from_an_installed_wheel(start: Start, tmp_path: Path) -> None:
    environment = environments.make_environment(
        tmp_path / "environment", environments.build_wheel(tmp_path)
    )
    words = ("--once", "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "data"))
    process = start(
        *words, "--rate", "10", "--seed", "5", python=environments.python_of(environment)
    )
    told = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, told
    assert re.search(r"\d+ rows added", told), told


def check_results(told: str, data: Path) -> None:
    """What a demo with --once has told and left."""
    (lines,) = re.findall(r"(\d+) lines of .* sent to weblogs", told)
    (rows,) = re.findall(r"(\d+) rows added", told)
    minutes = re.findall(r"^\d{4}-\d\d-\d\dT\d\d:\d\d +(\d+)", told, re.MULTILINE)
    assert lines == rows
    assert sum(map(int, minutes)) == int(lines) > 0
    # Of the last minute, which may have begun a moment ago: which pages those are is chance.
    assert re.search(r"^/\S* +\d+$", told, re.MULTILINE), told
    assert "alert" in told
    assert (data / "demo" / "requests").is_dir()


def test_to_a_bounded_end(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session of all tests: Spark's start is what takes longest of a demo."""
    folder = tmp_path / "demo"
    folder.mkdir()
    ready: Future[SparkSession] = Future()
    ready.set_result(spark)
    with BrokerProcess(tmp_path / "broker") as broker:
        demo = Demo(broker.bootstrap, folder, 10.0, 5, cast(Any, None))
        demo.once(threading.Event(), ready)
    check_results(capsys.readouterr().out, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_as_a_program(start: Start, tmp_path: Path) -> None:
    mark = f"DEMO_TEST_{tmp_path.name}_{os.getpid()}"
    words = ("--once", "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "data"))
    process = start(*words, "--rate", "10", "--seed", "5", DEMO_MARK=mark)
    told = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, told
    check_results(told, tmp_path / "data")
    await_none_with(mark)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_live_until_interrupted(start: Start, tmp_path: Path) -> None:
    mark = f"DEMO_TEST_{tmp_path.name}_{os.getpid()}"
    process = start(
        *("--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path / "data")), DEMO_MARK=mark
    )
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if re.match(r"\d\d:\d\d \d+ requests?, \d+ visitors", line):
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 130, told + rest
    assert "Traceback" not in told + rest
    await_none_with(mark)


def test_a_port_in_use_is_told(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
        told = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert told.strip() == (
        f"ottla: 127.0.0.1:{port} is in use; stop what listens there, "
        "or choose another with --listen"
    )


def test_without_spark_the_broker_serves(start: Start, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "pyspark.py").write_text("raise ImportError")
    words = ("--listen", address, "--data", str(tmp_path / "data"))
    process = start(*words, PYTHONPATH=str(hiding))
    assert process.stdout is not None
    told = process.stdout.readline() + process.stdout.readline()
    assert "PySpark is not installed" in told
    assert "the broker does" in told
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5):
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130


def test_its_broker_lets_a_first_consumer_begin_at_once(tmp_path: Path) -> None:
    from ottla.cli.commands.demo.demo import _broker

    address = f"127.0.0.1:{free_port()}"
    with _broker(address, tmp_path / "data", tmp_path / "log") as process:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"group.initial.rebalance.delay.ms=0" in command
