"""`ottla collect` as a command: what it says, and what it refuses."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

Run = Callable[..., Result]


def test_once(ottla: Run, topic: str, tmp_path: Path) -> None:
    ottla("topic", "create", topic)
    (tmp_path / "a.log").write_text("one\ntwo\n")
    command = ("collect", tmp_path, "--topic", topic, "--once", "--name", topic, "--key", "none")
    assert ottla(*command).output == f"2 lines sent to {topic}\n"
    assert ottla(*command).output == f"0 lines sent to {topic}\n"
    assert ottla("consume", topic).stdout == "one\ntwo\n"


def test_a_damaged_file_is_a_failure(ottla: Run, topic: str, tmp_path: Path) -> None:
    ottla("topic", "create", topic)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n")[:-8])
    command = ("collect", path, "--topic", topic, "--once", "--name", topic, "--key", "none")
    for sent in (2, 0):
        said = ottla(*command, fails=1).output.splitlines()
        assert said[0].startswith(f"ottla: {path} is damaged: it cannot be unpacked: ")
        assert said[1:] == [f"{sent} lines sent to {topic}", "ottla: 1 file was not sent in full"]
    assert ottla("consume", topic).stdout == "one\ntwo\n"


def test_sigterm_is_an_orderly_end(bootstrap: str, ottla: Run, topic: str, tmp_path: Path) -> None:
    ottla("topic", "create", topic)
    (tmp_path / "a.log").write_text("one\n")
    words = ["collect", str(tmp_path), "--topic", topic, "--name", topic, "--server", bootstrap]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", *words], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not ottla("consume", topic).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=60)[1]
    assert (process.returncode, told) == (0, f"1 line sent to {topic}\n")


def test_what_is_refused(ottla: Run, offline: Run, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    said = ottla("collect", path, "--topic", topic, "--once", fails=1).output
    assert said.startswith(f"ottla: there is no topic '{topic}'")
    ottla("topic", "create", topic)
    said = ottla("collect", tmp_path / "b.log", "--topic", topic, "--once", fails=1).output
    assert said == f"ottla: there is no file {tmp_path / 'b.log'}\n"
    for words in (("--name", "a b"), ("--unfinished",), ("--key", "page")):
        assert ottla("collect", path, "--topic", topic, *words, fails=2).output
    assert "nothing answers" in offline("collect", path, "--topic", topic).output
