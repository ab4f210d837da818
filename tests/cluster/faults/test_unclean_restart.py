"""A broker that was killed comes back: with all its records if its machine ran on, else perhaps not."""

from __future__ import annotations

import pytest
from cluster_kit.asking import ask
from cluster_kit.records import leave_alone_in_sync, read, write
from cluster_kit.scene import PARTITIONS, TOPIC, Scene, wait_until


@pytest.mark.timeout(300)
def test_a_machine_that_was_started_anew_makes_a_broker_leave_its_sets(scene: Scene) -> None:
    cluster, broker = scene.cluster, 2
    write(scene, range(300))
    leave_alone_in_sync(scene, broker)

    def restarted() -> set[tuple[int, frozenset[int]]]:
        """Leaders and in-sync sets after it was killed and started, all alone."""
        cluster.kill(broker)
        cluster.start([broker])
        view = ask(scene.address(broker), TOPIC)
        assert view is not None
        assert len(view.partitions) == PARTITIONS
        return {(each.leader, each.in_sync) for each in view.partitions.values()}

    # The page cache has kept what it wrote: it is in sync, and leads again.
    assert restarted() == {(broker, frozenset({broker}))}
    # As a power failure leaves the folder: the others, who are eligible, have everything.
    running = scene.data(broker) / ".running"
    boot = running.read_text()
    running.write_text("00000000-0000-0000-0000-000000000000")
    assert restarted() == {(-1, frozenset())}
    wait_until("it is noted that the cluster knows", lambda: running.read_text() == boot)
    cluster.start()
    scene.wait_until_in_sync()
    assert read(scene, 300) == list(range(300))
