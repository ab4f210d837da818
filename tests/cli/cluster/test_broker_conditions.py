"""Brokers in conditions of their own: no topics on first use, going away, a start that fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ottla.cli.app import app
from ottla.cli.cluster.failures import failure_of
from ottla.cli.failures import Failure
from ottla.cli.records import reader as record_reader
from ottla.cli.records.input_blocks import Block
from ottla.cli.records.lines import RecordLines
from ottla.cli.records.writer import RecordWriter
from ottla.client.errors import TimedOut, broker_error
from ottla.protocol.errors import ErrorCode
from ottla.testing import BrokerProcess

TIMEOUT = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process


def _ottla(broker: BrokerProcess, *words: str, stdin: str = "") -> Result:
    return CliRunner(env={"OTTLA_SERVER": broker.bootstrap}).invoke(app, words, input=stdin)


def test_producing_to_a_topic_that_nobody_made(broker: BrokerProcess) -> None:
    result = _ottla(broker, "produce", "absent", stdin="x\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("ottla: there is no topic 'absent'; ")
    assert result.stderr.count("\n") == 1
    assert _ottla(broker, "topic", "list", "--quiet").stdout == ""


def test_a_broker_that_goes_away_while_it_is_read(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reader, "LOST_AFTER", 0.2)
    assert _ottla(broker, "topic", "create", "t").exit_code == 0
    assert _ottla(broker, "produce", "t", stdin="x\n").exit_code == 0
    reader = record_reader.RecordReader(broker.bootstrap, "t", waits=False)
    broker.kill()
    try:
        with pytest.raises(Failure, match="went away while reading"):
            list(reader.read({0: (0, 1)}))
    finally:
        reader.close()


def lose_patience(writer: RecordWriter) -> None:
    """From now on half a second is enough: for what is never delivered, however slow the machine is."""
    object.__setattr__(writer._producer.settings, "delivery_timeout", 0.5)


def test_a_broker_that_goes_away_while_it_is_written_to(broker: BrokerProcess) -> None:
    assert _ottla(broker, "topic", "create", "t").exit_code == 0
    writer = RecordWriter(broker.bootstrap, "t", acks="all", codec="none")
    writer.send(None, b"written", (), None, None)
    writer.flush()
    broker.kill()
    lose_patience(writer)
    writer.send(None, b"not written", (), None, None)
    with pytest.raises(Failure, match=f"nothing answers at {broker.bootstrap}"):
        writer.flush()
    writer.abandon()
    assert writer.delivered == 1


def test_a_broker_that_goes_away_while_columns_are_written(broker: BrokerProcess) -> None:
    assert _ottla(broker, "topic", "create", "t").exit_code == 0
    writer = RecordWriter(broker.bootstrap, "t", acks="all", codec="none")
    records, _ = RecordLines().columns(1, Block(b"\n".join([b"line"] * 700), b"\n"))
    assert records is not None
    writer.write(records)
    writer.flush()
    broker.kill()
    lose_patience(writer)
    writer.write(records)
    with pytest.raises(Failure, match=f"nothing answers at {broker.bootstrap}"):
        writer.flush()
    writer.abandon()
    assert (writer.given, writer.delivered) == (1400, 700)


def test_time_that_ends_while_the_broker_refuses() -> None:
    refusal = broker_error(ErrorCode.NOT_ENOUGH_REPLICAS, about="partition 0 of topic 't'")
    late = TimedOut("it was not done within 30 s; the last problem: too few are in sync")
    late.__cause__ = refusal
    assert str(failure_of(late, "127.0.0.1:9092", "t")) == str(late)
    # Nobody answered: then the address may be wrong.
    late.__cause__ = None
    assert "does not answer" in str(failure_of(late, "127.0.0.1:9092", "t"))


def test_two_brokers_on_one_port_or_one_folder(broker: BrokerProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla.cli.main", "serve"]
    for words in (
        ["--listen", broker.bootstrap, "--data", str(tmp_path / "other")],
        ["--listen", "127.0.0.1:0", "--data", str(broker.data)],
    ):
        second = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert second.returncode == 1
        told = [line for line in second.stderr.splitlines() if line.startswith("ottla: ")]
        assert len(told) == 1
        assert "Traceback" not in second.stderr
