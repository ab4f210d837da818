"""`ottla user`, and commands that connect with a file of options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from ottla.testing import BrokerProcess

Run = Callable[..., Result]
SECRET = "not to be seen"


def command(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def client_config(tmp_path: Path) -> Path:
    file = tmp_path / "client.properties"
    file.write_text(
        "# of alice\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username=alice\nsasl.password={SECRET}\n"
    )
    return file


@pytest.mark.long
def test_the_first_user_is_made_before_the_broker_runs(tmp_path: Path, client_config: Path) -> None:
    data = tmp_path / "data"
    made = command("user", "set", "alice", "--data", str(data), stdin=f"{SECRET}\n")
    assert made.stdout == "user alice has a password for SCRAM-SHA-256 and SCRAM-SHA-512\n"
    assert SECRET.encode() not in b"".join(
        each.read_bytes() for each in data.rglob("*") if each.is_file()
    )
    assert data.stat().st_mode & 0o777 == 0o700
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": "a.PlainLoginModule required "
        'username="broker" password="x" user_broker="x";',
    }
    with BrokerProcess(data, settings=settings) as broker:
        at = ("--server", broker.bootstrap)
        known = ("--client-config", str(client_config))
        assert command(*known, "topic", "create", "orders", *at).stdout == "created orders\n"
        assert command(*known, "produce", "orders", *at, stdin="hello\n").returncode == 0
        read = command(*known, "consume", "orders", "--from", "earliest", "-n", "1", *at)
        assert read.stdout == "hello\n"
        # Passwords change while it runs; the old one is worth nothing then.
        changed = command(*known, "user", "set", "alice", *at, stdin="another\n")
        assert changed.returncode == 0, changed.stderr
        refused = command(*known, "topic", "list", *at)
        assert refused.returncode == 1
        assert "invalid credentials" in refused.stderr
        assert SECRET not in refused.stderr
        # The data folder is the broker's while it runs.
        busy = command("user", "set", "bob", "--data", str(data), stdin="x\n")
        assert busy.returncode == 1
        assert "a broker runs there" in busy.stderr
        assert SECRET not in broker.log_path.read_text()


def test_users_are_set_listed_and_deleted(ottla: Run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\nsecond line")
    made = ottla("user", "set", "carol", "--password-file", file)
    assert "carol has a password" in made.output
    listed = ottla("user", "list").output
    assert listed.count("carol") == 2
    assert SECRET not in listed
    gone = ottla("user", "delete", "carol", "-m", "SCRAM-SHA-256")
    assert gone.output == "user carol has no password for SCRAM-SHA-256\n"
    assert ottla("user", "list").output.count("carol") == 1
    assert ottla("user", "delete", "carol").exit_code == 0
    assert "carol" not in ottla("user", "list").output
    ottla("user", "delete", "carol", fails=1)


def test_mistakes_are_told(ottla: Run, tmp_path: Path) -> None:
    for words, stdin, sentence in (
        (("set", "x", "-m", "PLAIN"), "p\n", "--mechanism takes SCRAM-SHA-256 or SCRAM-SHA-512"),
        (("set", "x"), "\n", "the password must not be empty"),
        (("delete", "x", "--data", str(tmp_path)), "", "say which passwords"),
    ):
        answer = ottla("user", *words, stdin=stdin, fails=2)
        assert sentence in answer.output
