"""A cluster for each test: three brokers and a ZooKeeper, on ports and in a folder of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.scene import SETTINGS, Scene

from ottla.testing.cluster import LocalCluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One worker runs them: two clusters at a time would only be slow.
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name != "test_checker.py":
            item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=SETTINGS)
    with cluster:
        scene = Scene(cluster)
        try:
            scene.create_topic()
            yield scene
        finally:
            for broker, server in cluster.state.brokers.items():
                if server.running:
                    scene.signal(broker, signal.SIGCONT)
