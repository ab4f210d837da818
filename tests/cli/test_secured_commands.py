"""Every command that talks to a broker, over TLS and SASL: with `--client-config FILE` and nothing else.

All of them over one mechanism, some of them over each. The broker lets nobody in who is not known, and
an authorizer looks at what they do; the user is a super user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import typer
from typer.testing import Result

# The kit of the server's tests has the broker.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import (
    SASL_PLAIN,
    SASL_TLS,
    SECRET,
    TLS,
    TOKENS,
    WAYS,
    Secured,
    secured_process,
)

from ottla.cli.app import app

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),.*$/$1/",
        "group.initial.rebalance.delay.ms": "0",
    }
    with secured_process(tmp_path_factory.mktemp("secured"), settings) as running:
        yield running


@pytest.fixture
def over(
    secured: Secured, run_at: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """Commands as they run over one way in; they must succeed unless `fails` says how they end."""

    def choose(protocol: str, mechanism: str) -> Run:
        file = secured.file(tmp_path / f"{protocol}-{mechanism}.properties", protocol, mechanism)
        # What `--client-config` does (administration/test_users.py has it as a command line).
        monkeypatch.setenv("OTTLA_CLIENT_CONFIG", str(file))

        def run(*words: Any, stdin: str | bytes = b"", fails: int = 0) -> Result:
            result = run_at(*words, stdin=stdin, server=secured.address(protocol))
            assert result.exit_code == fails, (words, result.exit_code, result.output)
            assert SECRET not in result.output
            return result

        return run

    return choose


# Each command with `--server` once, in an order in which it has something to do; {lines} is a file of
# lines, {offset} where a transaction hangs. A command stands for itself: what it does has its own tests.
COMMANDS = """
topic create orders copies -p 1
topic list
topic describe orders
topic alter orders -c retention.ms=3600000
topic offsets orders
produce orders < one
consume orders --from earliest -n 1
consume orders --group billing --from earliest -n 1
collect {lines} --topic copies --once
config describe topic orders
config set topic orders retention.ms=7200000
config unset topic orders retention.ms
group list
group describe billing
group members billing
group lag billing
group reset-offsets billing --all-topics --to-earliest --execute
group delete billing --yes
transaction list
transaction describe {transaction}
transaction find-hanging
transaction abort --topic copies --partition 0 --start-offset {offset}
record delete orders 0 0 --yes
user set bob < secret
user list
user delete bob
acl add bob --operation read --topic orders
acl list
acl delete bob
quota set producer_byte_rate=1000000 --user bob
quota list
quota delete producer_byte_rate --user bob
cluster rebalance --dry-run --sample 0
client list --user alice
cluster features
cluster upgrade --dry-run
cluster downgrade group.version=0 --dry-run
topic delete orders --yes
"""
# On Spark, and tested as programs (tests/pipeline/source/test_secured.py); one that only writes files;
# and one that serves (tests/console).
ELSEWHERE = {"sql", "archive", "restore", "pipeline init", "console"}


def commands_with_a_server() -> set[str]:
    found = set()

    def look(command: Any, name: str) -> None:
        for each, inner in getattr(command, "commands", {}).items():
            look(inner, f"{name} {each}".strip())
        if any("--server" in parameter.opts for parameter in command.params):
            found.add(name)

    look(typer.main.get_command(app), "")
    return found


def named(words: list[str]) -> str:
    """The command's name, which has one word or two."""
    return next(
        name
        for name in (" ".join(words[:2]), words[0])
        if name in commands_with_a_server() | {"cluster rebalance"}
    )


def open_transaction(secured: Secured, name: str, topic: str) -> int:
    """Begin a transaction that nobody ends; where in the first partition its record is."""
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": secured.broker.bootstrap, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    written: list[int] = []
    producer.produce(
        topic, b"open", partition=0, on_delivery=lambda _, sent: written.append(sent.offset())
    )
    assert producer.flush(20) == 0
    return written[0]


@pytest.mark.long
def test_every_command_over_scram_and_tls(
    secured: Secured, over: Callable[..., Run], tmp_path: Path
) -> None:
    run = over(SASL_TLS, "SCRAM-SHA-512")
    lines = tmp_path / "lines.log"
    lines.write_text("a\nb\n")
    values = {"lines": str(lines), "transaction": "payments"}
    tried = set()
    for line in COMMANDS.strip().splitlines():
        command, _, stdin = line.partition(" < ")
        if command == "transaction list":
            values["offset"] = str(open_transaction(secured, "payments", "copies"))
        words = [word.format(**values) for word in command.split()]
        run(*words, stdin=f"{stdin}\n" if stdin else b"")
        tried.add(named(words))
    assert tried >= commands_with_a_server() - ELSEWHERE


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        (SASL_TLS, TOKENS),
        *(pytest.param(*way, marks=pytest.mark.long) for way in (*WAYS, (SASL_PLAIN, TOKENS))),
    ],
)
def test_commands_over_each_way(
    protocol: str, mechanism: str, over: Callable[..., Run], topic: str, secured: Secured
) -> None:
    run = over(protocol, mechanism)
    run("topic", "create", topic)
    run("produce", topic, stdin="one\ntwo\n")
    read = run("consume", topic, "--from", "earliest", "-n", 2, "--group", topic)
    assert read.stdout == "one\ntwo\n"
    assert "one" not in run("group", "lag", topic).stdout
    assert topic in run("topic", "list").stdout
    run("cluster", "rebalance", "--dry-run", "--sample", 0)
    run("acl", "add", "carol", "--operation", "read", "--topic", topic)
    assert "carol" in run("acl", "list", "--topic", topic).stdout


def test_whoever_does_not_know_the_password_is_told(
    secured: Secured,
    over: Callable[..., Run],
    run_at: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = over(SASL_TLS, "SCRAM-SHA-512")
    wrong = tmp_path / "wrong.properties"
    text = secured.file(wrong, SASL_TLS, "SCRAM-SHA-512").read_text()
    wrong.write_text(text.replace(SECRET, "guessed"))
    monkeypatch.setenv("OTTLA_CLIENT_CONFIG", str(wrong))
    told = run("topic", "list", fails=1)
    assert "invalid credentials" in told.stderr
    assert "guessed" not in told.output
    # Nor is anybody let in without a file, by any listener that asks who they are.
    # (A client that does not speak TLS tries until its time is over.)
    monkeypatch.delenv("OTTLA_CLIENT_CONFIG")
    monkeypatch.setattr("ottla.cli.cluster.admin.REQUEST_TIMEOUT", 1.0)
    for protocol in (TLS, SASL_PLAIN, SASL_TLS):
        result = run_at("topic", "list", server=secured.address(protocol))
        assert result.exit_code == 1, result.output
