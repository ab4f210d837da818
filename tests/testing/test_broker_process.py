"""BrokerProcess: start, stop, crash, start anew, and what it says when there is no broker."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from ottla.testing import BrokerDied, BrokerProcess, answers, free_port


def test_it_answers_between_start_and_stop(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    assert not broker.running
    with broker:
        assert broker.running
        assert answers(broker.host, broker.port)
        assert broker.bootstrap == f"127.0.0.1:{broker.port}"
    assert not broker.running
    assert not answers(broker.host, broker.port)


def test_it_stops_with_status_0_and_starts_on_the_same_port(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    first = broker.pid
    port = broker.port
    assert broker.stop() == 0
    broker.start()
    assert (broker.port, broker.pid != first) == (port, True)
    assert broker.stop() == 0


def test_kill_is_a_crash(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    broker.kill()
    assert broker.process is not None
    assert broker.process.returncode == -signal.SIGKILL
    with broker:
        assert answers(broker.host, broker.port)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = BrokerProcess(tmp_path / "data", port=taken.getsockname()[1])
        with pytest.raises(BrokerDied, match=r"(?i)address already in use"):
            broker.start()


def test_a_port_taken_in_the_meantime_is_replaced(tmp_path: Path) -> None:
    """Unless the caller chose it, another port will do."""
    broker = BrokerProcess(tmp_path / "data")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", broker.port))  # bound, not listening: nobody answers there
        unlucky = broker.port
        with broker:
            assert broker.port != unlucky


def test_settings_reach_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path / "data", settings={"num.partitions": "3"}, environment={"TEST_MARK": "1"}
    )
    assert broker.command()[-2:] == ["--set", "num.partitions=3"]
    broker.settings["num.partitions"] = "no number"
    with pytest.raises(BrokerDied, match=r"num\.partitions"):
        broker.start()


def test_nobody_answers_on_a_free_port() -> None:
    assert not answers("127.0.0.1", free_port())


def test_the_first_rebalance_of_a_group_does_not_wait(tmp_path: Path) -> None:
    name = "group.initial.rebalance.delay.ms"
    assert f"{name}=0" in BrokerProcess(tmp_path / "data").command()
    given = BrokerProcess(tmp_path / "data", settings={name: "250"}).command()
    assert f"{name}=250" in given
    assert f"{name}=0" not in given
