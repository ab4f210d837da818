"""What brokers of a cluster count: who is in sync, who was elected how, who was taken for dead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cluster_kit.records import leave_alone_in_sync, write
from cluster_kit.scene import PARTITIONS, SETTINGS, TOPIC, Scene, expect_no_anomaly, wait_until
from cluster_kit.settings import set_config
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing.cluster import LocalCluster


@pytest.fixture
def measured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    settings = {**getattr(request, "param", SETTINGS), "metrics.listener": "127.0.0.1:0"}
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=settings)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic()
        yield scene


def samples(scene: Scene, broker: int) -> dict[str, float]:
    """The sums over all labels."""
    told = scene.cluster.log_path(broker).read_text()
    port = int(re.findall(r"metrics: http://[^:]+:(\d+)/metrics", told)[-1])
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def of(scene: Scene, broker: int, name: str) -> float:
    return samples(scene, broker)[f"ottla_{name}"]


@pytest.mark.timeout(300)
def test_what_a_cluster_counts_when_brokers_die(measured: Scene) -> None:
    scene, cluster = measured, measured.cluster
    write(scene, range(30))
    last, *others = scene.numbers
    set_config(scene, last, "min.insync.replicas", "1")
    all_of = [samples(scene, each) for each in scene.numbers]
    assert sum(each["ottla_active_controller"] for each in all_of) == 1
    for name in (
        "under_replicated_partitions",
        "under_min_isr_partitions",
        "leaderless_partitions",
    ):
        assert [each[f"ottla_{name}"] for each in all_of] == [0, 0, 0], name

    leave_alone_in_sync(scene, last)
    wait_until("it is the controller", lambda: of(scene, last, "active_controller") == 1)
    assert of(scene, last, "under_replicated_partitions") >= PARTITIONS
    assert of(scene, last, "under_min_isr_partitions") == 0
    assert of(scene, last, "fenced_brokers_total") >= 1
    set_config(scene, last, "min.insync.replicas", "2")
    assert of(scene, last, "under_min_isr_partitions") == PARTITIONS
    set_config(scene, last, "min.insync.replicas", "1")

    # Now those are there who were not in sync.
    cluster.kill(last)
    cluster.start(others)

    def total(name: str) -> float:
        return sum(of(scene, each, name) for each in others)

    wait_until("nobody leads", lambda: total("leaderless_partitions") == PARTITIONS)
    assert total("active_controller") == 1
    assert total("unclean_elections_total") == 0
    set_config(scene, others[0], "unclean.leader.election.enable", "true")
    wait_until("all are led", lambda: total("leaderless_partitions") == 0)
    assert total("unclean_elections_total") == PARTITIONS
    told = "".join(cluster.log_path(each).read_text() for each in others)
    for partition in range(PARTITIONS):
        lines = re.findall(rf"unclean election: topic={TOPIC} partition={partition} .*", told)
        assert len(lines) == 1, lines
        assert f"before it leader={last}." in lines[0]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("measured", [{}], ids=["defaults"], indirect=True)
def test_a_loaded_cluster_takes_nobody_for_dead(measured: Scene) -> None:
    """Producers and consumers keep both cores busy. No broker loses its session or its place."""
    scene = measured
    workload = scene.workload(producers=4)
    with workload:
        workload.wait_for_progress(writes=20_000)
        for name in ("fenced_brokers_total", "isr_shrinks_total"):
            assert [of(scene, each, name) for each in scene.numbers] == [0, 0, 0], name
    expect_no_anomaly(workload)
