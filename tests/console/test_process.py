"""`ottla console` as a command: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from console_kit.process import ConsoleProcess
from typer.testing import CliRunner, Result

from ottla.cli.app import app
from ottla.testing import BrokerProcess, free_port

# The kit of the server's tests has a broker with every listener.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import SASL_TLS, SECRET, secured_process

from ottla import Admin, Producer
from ottla.client.admin.access import Acl, AclOperation, AclResource


def refused(*words: str) -> Result:
    """The command in this process: it does not come to serve."""
    return CliRunner(env={"OTTLA_SERVER": "127.0.0.1:1", "COLUMNS": "200"}).invoke(
        app, ["console", *words], prog_name="ottla", catch_exceptions=False
    )


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("--listen", "0.0.0.0:0"), 2, "--token-file"),
        (("--listen", "[::]:0"), 2, "--token-file"),
        (("--listen", "console.example:0"), 2, "--token-file"),
        (("--listen", "8080"), 2, "--listen takes HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), 2, "--listen takes HOST:PORT"),
        (("--listen", "::1:8080"), 2, "--listen takes HOST:PORT"),
        (("--server", "nonsense:x"), 2, "--server takes HOST:PORT"),
        (("--token-file", "/nowhere"), 1, "/nowhere"),
        (("--token-file", "{short}"), 2, "16 or more"),
    ],
)
def test_what_it_refuses(
    tmp_path: Path, words: tuple[str, ...], status: int, sentence: str
) -> None:
    short = tmp_path / "short"
    short.write_text("secret")
    done = refused(*(word.format(short=short) for word in words))
    assert (done.exit_code, done.stdout) == (status, "")
    assert sentence in done.stderr
    assert done.stderr.startswith("ottla: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken(console: ConsoleProcess) -> None:
    done = refused("--listen", console.address)
    assert done.exit_code == 1
    assert done.stderr == (
        f"ottla: cannot listen on {console.address}: Address already in use; "
        "choose another address with --listen\n"
    )


def test_options_that_make_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "client.properties"
    wrong.write_text("security.protocol=NONSENSE\n")
    monkeypatch.setenv("OTTLA_CLIENT_CONFIG", str(wrong))
    done = refused("--listen", "127.0.0.1:0")
    assert done.exit_code == 2
    assert "security.protocol" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra(tmp_path: Path) -> None:
    """What is to be installed is said, in one line."""
    hidden = tmp_path / "fastapi.py"
    hidden.write_text("raise ModuleNotFoundError('no', name='fastapi')\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});from ottla.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "console"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "ottla: the console needs fastapi: `pip install 'ottla[console]'`\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_it_stops_in_order(number: signal.Signals, broker: BrokerProcess, tmp_path: Path) -> None:
    console = ConsoleProcess(tmp_path / "log", broker.bootstrap).start()
    console.signal(number)
    assert console.process is not None
    assert console.process.wait(20) == 0
    assert console.log_text().rstrip().endswith("stopped")
    assert "Traceback" not in console.log_text()


@pytest.mark.long
def test_a_broker_that_is_away(tmp_path: Path) -> None:
    """The console starts all the same, says so, and finds the broker when it comes."""
    broker = BrokerProcess(tmp_path / "data", port=free_port())
    with ConsoleProcess(tmp_path / "log", broker.bootstrap) as console:
        for answer in (
            console.get("/api/health"),
            console.get("/api/topics"),
            console.delete("orders", offsets={"0": [1]}),
        ):
            assert answer.status == 503
            assert broker.bootstrap in answer.message
        with broker:
            assert console.get("/api/health").status == 200
            assert console.delete("orders", offsets={"0": [1]}).status == 404
        assert "Traceback" not in console.log_text()


def test_over_tls_and_sasl(tmp_path: Path) -> None:
    """By the options of a file, as every command. A user without the right is told so."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    rights = [
        Acl(AclResource.TOPIC, "orders", "User:alice", AclOperation.READ),
        Acl(AclResource.TOPIC, "orders", "User:alice", AclOperation.DELETE),
        Acl(AclResource.TOPIC, "ledger", "User:alice", AclOperation.READ),
    ]
    with secured_process(tmp_path / "secured", settings) as secured:
        with Producer(secured.broker.bootstrap) as producer:
            for number in range(3):
                producer.send("orders", f"{number}", key="k", partition=0)
                producer.send("ledger", f"{number}", key="k", partition=0)
                producer.send("hidden", f"{number}", key="k", partition=0)
        with Admin(secured.broker.bootstrap) as admin:
            admin.create_acls(rights)
        file = secured.file(tmp_path / "client.properties", SASL_TLS, "SCRAM-SHA-512")
        with ConsoleProcess(
            tmp_path / "log", secured.address(SASL_TLS), before=["--client-config", str(file)]
        ) as console:
            assert console.get("/api/health").status == 200
            assert console.delete("orders", offsets={"0": [1]}).body["deleted"] == 1
            page = console.get("/api/topics/orders/partitions/0/records").body
            assert [each["offset"] for each in page["records"]] == [0, 2]
            assert console.delete("orders", key="k").body["deleted"] == 2
            refused = console.delete("ledger", offsets={"0": [1]})
            assert refused.status == 403
            error = refused.body["partitions"]["0"]["error"]
            assert error["code"] == "TOPIC_AUTHORIZATION_FAILED"
            assert len(console.get("/api/topics/ledger/partitions/0/records").body["records"]) == 3
            assert console.get("/api/topics/hidden").status == 403
        wrong = tmp_path / "wrong.properties"
        wrong.write_text(file.read_text().replace(SECRET, "guessed"))
        with ConsoleProcess(
            tmp_path / "wrong-log",
            secured.address(SASL_TLS),
            before=["--client-config", str(wrong)],
        ) as guessing:
            refused = guessing.delete("orders", offsets={"0": [0]})
            assert refused.status == 502
            assert "guessed" not in str(refused.body)
            assert "guessed" not in guessing.log_text()
        assert SECRET not in console.log_text()
