"""ZooKeeperProcess and ZooKeeperEnsemble: start, stop, crash, the same data and port again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.testing.zookeeper import (
    ZooKeeperDied,
    ZooKeeperEnsemble,
    ZooKeeperProcess,
    four_letter_word,
    server_mode,
)


def put(address: str, path: str) -> None:
    client = KazooClient(hosts=address)
    client.start()
    client.create(path, makepath=True)
    client.stop()
    client.close()


def has(address: str, path: str) -> bool:
    client = KazooClient(hosts=address)
    client.start()
    found = client.exists(path) is not None
    client.stop()
    client.close()
    return found


def test_data_and_port_stay_over_stop_and_kill(tmp_path: Path) -> None:
    server = ZooKeeperProcess(tmp_path / "zookeeper")
    assert not server.running
    assert server_mode(server.host, server.port) is None
    with server:
        assert four_letter_word(server.host, server.port, b"ruok") == "imok"
        assert server_mode(server.host, server.port) == "standalone"
        put(server.address, "/a/b")
        first = server.pid
        server.stop()
        assert not server.running
        server.start()
        assert has(server.address, "/a/b")
        assert server.pid != first
        put(server.address, "/a/c")
        server.kill()
        assert not server.running
        server.start()
        assert has(server.address, "/a/c")
    assert not server.running
    assert {path.name for path in tmp_path.iterdir()} == {"zookeeper"}


def test_it_says_why_it_did_not_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ZooKeeperProcess(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(ZooKeeperDied, match=r"(?s)ended before it answered.*in use"):
            server.start()


@pytest.mark.long
def test_an_ensemble_goes_on_without_its_leader(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        put(ensemble.address, "/a")
        leader = ensemble.leader()
        assert leader is not None
        leader.kill()
        put(ensemble.address, "/b")
        assert ensemble.leader() is not leader
        ensemble.start()
        assert leader.running
        assert has(leader.address, "/b")
