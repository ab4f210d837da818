"""Levels of features in a cluster of processes: shown, raised by command, and obeyed at the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_kit.commands import ottla
from kazoo.client import KazooClient

from ottla import Admin
from ottla.testing.cluster import ClusterError, LocalCluster

FEATURE = "ottla.version"


def level_of(cluster: LocalCluster) -> int:
    told = json.loads(ottla("cluster", "features", "--json", "--data", cluster.folder))
    (found,) = (each for each in told["features"] if each["name"] == FEATURE)
    return found["level"] or 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_from_level_to_level(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", brokers=2, base_port=None)
    with cluster:
        lines = ottla("cluster", "features", "--data", cluster.folder).splitlines()
        assert lines[0].split() == ["FEATURE", "LEVEL", "LOWEST", "HIGHEST"]
        assert [FEATURE, "1", "0", "1"] in [line.split() for line in lines]
        assert "at that level already" in ottla(
            "cluster", "upgrade", "--yes", "--data", cluster.folder
        )
        # As a cluster is that was founded before there was the feature.
        lower = ("cluster", "downgrade", "--data", cluster.folder)
        shown = ottla(*lower, f"{FEATURE}=0", "--dry-run")
        assert [FEATURE, "1", "0"] in [line.split() for line in shown.splitlines()]
        assert level_of(cluster) == 1
        assert "lowered 1 feature" in ottla(*lower, f"{FEATURE}=0", "--yes")
        with Admin(cluster.bootstrap) as admin:
            assert admin.describe_features()[FEATURE].level is None
        assert "asks for a downgrade" in ottla(*lower, f"{FEATURE}=1", "--yes", fails=True)
        assert "does not know the feature" in ottla(*lower, "no.such=1", "--yes", fails=True)
        cluster.stop([1, 2])
        cluster.start()
        assert level_of(cluster) == 0, "no level is raised by itself"
        shown = ottla("cluster", "upgrade", "--dry-run", "--data", cluster.folder)
        assert [FEATURE, "0", "1"] in [line.split() for line in shown.splitlines()]
        assert level_of(cluster) == 0
        told = ottla(
            "cluster", "upgrade", f"{FEATURE}=9", "--yes", "--data", cluster.folder, fails=True
        )
        assert "supports levels 0 to 1" in told
        assert "raised 1 feature" in ottla("cluster", "upgrade", "--yes", "--data", cluster.folder)
        assert level_of(cluster) == 1
        told = ottla(
            "cluster", "upgrade", f"{FEATURE}=0", "--yes", "--data", cluster.folder, fails=True
        )
        assert "does not allow a downgrade" in told
        # Another version of Ottla has raised it while this one was away.
        cluster.stop([1, 2])
        raise_in_store(cluster, 99)
        with pytest.raises(
            ClusterError, match=f"'{FEATURE}' at level 99, and this version of Ottla"
        ):
            cluster.start([1])


def raise_in_store(cluster: LocalCluster, level: int) -> None:
    zookeeper = KazooClient(cluster.state.zookeeper_address)
    zookeeper.start()
    try:
        known = json.loads(zookeeper.get("/features")[0])
        known["features"][FEATURE] = level
        zookeeper.set("/features", json.dumps(known).encode())
    finally:
        zookeeper.stop()
        zookeeper.close()
