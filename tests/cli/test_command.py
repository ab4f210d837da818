"""The real `ottla` command in processes of its own: pipes, signals, streams, completion."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ottla import __version__

Run = Callable[..., Result]

COMMAND = [sys.executable, "-m", "ottla.cli.main"]
TIMEOUT = 60


def _environment(server: str = "127.0.0.1:1", **more: str) -> dict[str, str]:
    return {**os.environ, "OTTLA_SERVER": server, **more}


def _run(
    *words: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        env=environment or _environment(),
        timeout=TIMEOUT,
        check=False,
    )


def test_version(offline: Run) -> None:
    assert _run("version").stdout.decode() == f"ottla {__version__}\n"
    assert json.loads(offline("version", "--json").stdout)["version"] == __version__


def test_the_version_as_people_ask_for_it() -> None:
    assert _run("--version").stdout.decode() == f"ottla {__version__}\n"
    asked = subprocess.run(
        [sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True
    )
    assert asked.stdout == f"ottla {__version__}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(bootstrap: str, topic: str, closed: str) -> None:
    """What a command opens next must not be taken for a stream that was closed, nor is one missed."""
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND]
    for words in (("topic", "create", topic), ("produce", topic), ("consume", topic)):
        ended = subprocess.run(
            [*shell, *words], input=b"x\n", capture_output=True, env=_environment(bootstrap),
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended
        assert b"Traceback" not in ended.stderr


def test_interrupted_before_the_command_is_there() -> None:
    interrupted = (
        "import sys, builtins\n"
        "from ottla.cli.main import main\n"
        "def stop(name, *more, load=builtins.__import__):\n"
        "    if name == 'ottla.cli.app':\n"
        "        raise KeyboardInterrupt\n"
        "    return load(name, *more)\n"
        "builtins.__import__ = stop\n"
        "sys.argv = ['ottla', 'topic', 'list']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_without_a_command_there_is_help(offline: Run) -> None:
    for words in ((), ("topic",), ("config",), ("log",)):
        result = offline(*words)
        assert result.exit_code == 2
        assert "Usage: ottla" in result.stdout
    assert offline("--help").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("serve",),
        ("produce",),
        ("consume",),
        ("version",),
        *(("topic", each) for each in ("create", "list", "describe", "alter", "delete", "offsets")),
        *(("config", each) for each in ("describe", "set", "unset")),
        *(("log", each) for each in ("dump", "verify")),
    ],
)
def test_every_command_has_help_with_an_example(offline: Run, words: tuple[str, ...]) -> None:
    result = offline(*words, "--help")
    assert result.exit_code == 0
    command = " ".join(("ottla", *words))
    assert result.stdout.count(command) >= (1 if words == ("version",) else 2), result.stdout


def test_there_and_back(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap)
    sent = _run("produce", topic, "-K", ":", stdin=b"a:1\nb:2\n", environment=environment)
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"", b"")
    read = _run("consume", topic, "-K", ":", environment=environment)
    assert (read.returncode, read.stdout, read.stderr) == (0, b"a:1\nb:2\n", b"")


def test_bytes_go_through_whatever_the_locale(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    line = "grüße ☃\n".encode() + b"\xff\xfe\n"
    assert _run("produce", topic, stdin=line, environment=environment).returncode == 0
    assert _run("consume", topic, environment=environment).stdout == line
    shown = _run("consume", topic, "--json", environment=environment)
    assert json.loads(shown.stdout.splitlines()[0])["value"] == "grüße ☃"
    mistake = _run("log", "dump", "☃", environment=environment)
    assert mistake.returncode == 1
    assert mistake.stderr.count(b"\n") == 1


def test_a_reader_who_has_seen_enough(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap)
    lines = b"".join(b"line %d\n" % number for number in range(100_000))
    assert _run("produce", topic, stdin=lines, environment=environment).returncode == 0
    with subprocess.Popen(
        [*COMMAND, "consume", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"line 0\n"
        consumer.stdout.close()
        assert consumer.stderr.read() == b""
        assert consumer.wait(TIMEOUT) == 128 + signal.SIGPIPE


def test_interrupted_while_following(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap)
    assert _run("produce", topic, stdin=b"first\n", environment=environment).returncode == 0
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"first\n"
        assert _run("produce", topic, stdin=b"second\n", environment=environment).returncode == 0
        assert consumer.stdout.readline() == b"second\n"
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(TIMEOUT) == 130
        assert consumer.stderr.read() == b""


def test_lines_are_sent_as_they_come(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap)
    assert _run("topic", "create", topic, environment=environment).returncode == 0
    with (
        subprocess.Popen(
            [*COMMAND, "produce", topic], stdin=subprocess.PIPE, env=environment
        ) as producer,
        subprocess.Popen(
            [*COMMAND, "consume", topic, "--follow", "--count", "1"],
            stdout=subprocess.PIPE,
            env=environment,
        ) as consumer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(b"now\n")
        producer.stdin.flush()
        # The producer's input stays open: the line must not wait for its end.
        assert consumer.stdout.readline() == b"now\n"
        assert consumer.wait(TIMEOUT) == 0
        producer.stdin.close()
        assert producer.wait(TIMEOUT) == 0


def test_an_interrupted_producer_sends_what_it_has_read(bootstrap: str, topic: str) -> None:
    environment = _environment(bootstrap)
    with subprocess.Popen(
        [*COMMAND, "produce", topic, "--report"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        assert producer.stderr is not None
        producer.stdin.write(b"one\ntwo\n")
        producer.stdin.flush()
        _wait_for_offset(topic, 2, environment)
        producer.send_signal(signal.SIGINT)
        assert producer.wait(TIMEOUT) == 130
        assert producer.stderr.read().decode() == f"2 records sent to {topic}\n"
        assert len(producer.stdout.read().splitlines()) == 2


def _wait_for_offset(topic: str, offset: int, environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        shown = _run("topic", "offsets", topic, "--json", environment=environment)
        if shown.returncode == 0 and json.loads(shown.stdout)[0]["latest"] >= offset:
            return
    raise AssertionError(f"{topic} never reached offset {offset}")


def test_something_that_is_no_broker(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.records.writer.REQUEST_TIMEOUT", 0.5)
    monkeypatch.setattr("ottla.cli.cluster.admin.Cluster.__init__.__defaults__", (0.5,))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for words in (("topic", "list"), ("consume", "x"), ("produce", "x")):
            result = offline(*words, "--server", address, stdin="x\n")
            assert result.exit_code == 1
            assert result.stderr.startswith(
                f"ottla: {address} takes connections but does not answer"
            )


def test_output_on_a_terminal_is_a_table(tmp_path: Path) -> None:
    program = (
        "from ottla.cli.output import write_table;"
        "write_table(('name', 'count'), [('[a]', 1), ('b', 22)])"
    )
    seen = _on_terminal([sys.executable, "-c", program])
    assert "│ [a]  │     1 │" in seen
    plain = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=TIMEOUT
    )
    assert plain.stdout == "NAME  COUNT\n[a]       1\nb        22\n"


def test_progress_is_for_those_who_can_see_it() -> None:
    program = (
        "from ottla.cli import progress;"
        "progress.SHOW_AFTER = 0;"
        "bar = progress.Progress('work', 10);"
        "bar.__enter__(); bar.advance(5); bar.__exit__(None, None, None)"
    )
    assert "work" in _on_terminal([sys.executable, "-c", program])
    silent = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=TIMEOUT
    )
    assert (silent.stdout, silent.stderr) == (b"", b"")


def _on_terminal(command: list[str]) -> str:
    """What a command shows on a terminal of its own."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(command, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait(TIMEOUT) == 0
    os.close(ours)
    return seen.decode()


def _completions(*words: str, server: str = "127.0.0.1:1") -> list[str]:
    environment = _environment(
        server,
        _OTTLA_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(("ottla", *words)),
        COMP_CWORD=str(len(words)),
    )
    result = _run(environment=environment)
    assert result.stderr == b""
    return result.stdout.decode().split()


def test_completion_of_commands_and_options() -> None:
    assert _completions("top") == ["topic"]
    assert set(_completions("topic", "de")) == {"describe", "delete"}
    assert _completions("serve", "--adv") == ["--advertise"]


def test_the_script_for_the_shell() -> None:
    script = _run(environment=_environment(_OTTLA_COMPLETE="source_bash")).stdout.decode()
    assert "complete -o default -F _ottla_completion ottla" in script


def test_completion_of_topics(bootstrap: str, ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    assert _completions("consume", topic[:-1], server=bootstrap) == [topic]
    assert _completions("topic", "describe", topic[:-1], server=bootstrap) == [topic]
    # Without a broker nothing is offered and nothing is said.
    assert _completions("consume", topic[:-1]) == []


def test_any_other_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch, offline: Run) -> None:
    """A bug shows its traceback: only what a user can mend is turned into a sentence."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ottla.cli.app.write_line", broken)
    with pytest.raises(ZeroDivisionError):
        offline("version")
