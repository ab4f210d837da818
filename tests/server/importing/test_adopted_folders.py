"""Which data folders of a single node can become those of a broker in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla import Admin, Producer
from ottla.cluster.adoption import CannotAdopt
from ottla.cluster.store import StoreError
from ottla.server import adoption
from ottla.server.broker import METADATA_FILE
from ottla.testing import BrokerProcess

QUICKLY = {"zookeeper.connection.timeout.ms": "1"}


def test_a_node_with_several_folders_leaves_none_behind(tmp_path: Path) -> None:
    """The logs in a folder that does not come along would be made anew, and be empty."""
    first, second = tmp_path / "first", tmp_path / "second"
    node = BrokerProcess(first, settings={"log.dirs": f"{first},{second}"})
    with node, Admin(node.bootstrap) as admin, Producer(node.bootstrap) as producer:
        admin.create_topic("orders", 4)
        for partition in range(4):
            producer.send("orders", b"value", partition=partition).result(20)
    assert list(second.glob("orders-*"))
    for _ in range(2):
        with pytest.raises(CannotAdopt, match=r"the node has 2 data folders \(log.dirs\)"):
            adoption.adopt_folders([str(first)], "127.0.0.1:1/path", QUICKLY)
        assert (first / METADATA_FILE).exists()
    # With all of them it gets as far as to ZooKeeper, which is not there.
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        adoption.adopt_folders([str(first), str(second)], "127.0.0.1:1/path", QUICKLY)
