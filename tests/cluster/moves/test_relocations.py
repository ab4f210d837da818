"""Replicas of a cluster are moved between the data folders of their brokers, under traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit.scene import PARTITIONS, TOPIC, Brokers, expect_no_anomaly, wait_until
from cluster_kit.separate import separate_brokers
from server_kit.wire import Wire

from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.testing import BrokerProcess


def folders(broker: BrokerProcess) -> list[Path]:
    return [broker.data, broker.data.with_name(f"{broker.data.name}-second")]


def place(broker: BrokerProcess, index: int) -> list[Path]:
    """Where a partition is; nowhere while it goes from one place to the other."""
    return [each for each in folders(broker) if (each / f"{TOPIC}-{index}").exists()]


def relocate(broker: BrokerProcess, *indexes: int) -> dict[int, Path]:
    """Have partitions moved to the other folder; where they will be."""
    targets: dict[int, Path] = {}
    for index in indexes:
        (now,) = place(broker, index)
        (targets[index],) = (each for each in folders(broker) if each != now)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=str(folder),
                topics=[
                    AlterReplicaLogDirTopic(
                        name=TOPIC,
                        partitions=[each for each, to in targets.items() if to == folder],
                    )
                ],
            )
            for folder in set(targets.values())
        ]
    )
    with Wire(broker.host, broker.port) as wire:
        answer = wire.call(request, AlterReplicaLogDirsResponse, 2)
    assert {each.error_code for topic in answer.results for each in topic.partitions} == {0}
    return targets


@pytest.mark.long
@pytest.mark.timeout(300)
def test_followers_and_leaders_go_to_another_folder(tmp_path: Path) -> None:
    def two_folders(number: int) -> dict[str, str]:
        first = tmp_path / f"broker-{number}"
        return {"log.dirs": f"{first},{first}-second"}

    with separate_brokers(tmp_path, two_folders) as brokers:
        scene = Brokers(",".join(each.bootstrap for each in brokers))
        scene.create_topic()
        workload = scene.workload()
        with workload:
            workload.wait_for_progress(writes=300)
            # Every broker leads some of the partitions and follows in the others.
            for broker in brokers:
                targets = relocate(broker, *range(PARTITIONS))
                for index, target in targets.items():
                    wait_until(
                        f"{TOPIC}-{index} in {target}",
                        lambda index=index, to=target, at=broker: place(at, index) == [to],
                    )
                workload.wait_for_progress()
            scene.wait_until_in_sync()
            # One that dies meanwhile has each of its logs once, in the one place or the other.
            broker = brokers[scene.leader(0) - 1]
            relocate(broker, *range(PARTITIONS))
            broker.kill()
            workload.wait_for_progress()
            broker.start()
            scene.wait_until_in_sync()
            for index in range(PARTITIONS):
                wait_until(f"{TOPIC}-{index} once", lambda at=index: len(place(broker, at)) == 1)
            workload.wait_for_progress()
    expect_no_anomaly(workload)
    assert workload.write_errors == []
