"""A broker comes back with an empty disk: it fills itself up again, and never leads before it has."""

from __future__ import annotations

import shutil

import pytest
from cluster_kit.scene import TOPIC, Scene, expect_no_anomaly, wait_until


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_empty_disk_fills_itself_up(scene: Scene) -> None:
    workload = scene.workload()
    with workload:
        workload.wait_for_progress(writes=100)
        for broker in scene.numbers:
            workload.wait_for_progress()
            scene.cluster.kill(broker)
            shutil.rmtree(scene.data(broker))
            scene.cluster.start()
            scene.wait_until_in_sync()

            def is_full(broker: int = broker) -> bool:
                # As much as the others have, which grow meanwhile.
                sizes = [
                    sum(each.stat().st_size for each in scene.data(one).glob(f"{TOPIC}-*/*.log"))
                    for one in scene.numbers
                ]
                return sizes[scene.numbers.index(broker)] > 0.5 * max(sizes)

            wait_until(f"broker {broker} has its records again", is_full)
        workload.wait_for_progress()
    expect_no_anomaly(workload)
