"""A broker that its cluster has replaced goes on living: another process has its number."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from cluster_kit.asking import ask
from cluster_kit.records import write
from cluster_kit.scene import SETTINGS, TOPIC, Scene, wait_until

from ottla import Admin
from ottla.client.admin.configs import Resource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Record, build_batch
from ottla.testing import BrokerProcess
from ottla.wire.connection import Connection, ConnectionOptions


def written_by(address: str, partition: int) -> ErrorCode:
    """What the broker at an address says to a record with acks=all, whoever it says that leads."""
    batch = bytes(build_batch([Record(0, 0, None, b"to the one that was replaced", ())]))

    async def produce() -> ErrorCode:
        host, _, port = address.partition(":")
        connection = await Connection.open(host, int(port), options=ConnectionOptions("stray"))
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        try:
            answer = await connection.request(request, ProduceResponse, version=9)
        finally:
            connection.close()
        (only,) = answer.responses[0].partition_responses
        return ErrorCode(only.error_code)

    return asyncio.run(produce())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broker_whose_number_another_process_has_leads_nothing(
    scene: Scene, tmp_path: Path
) -> None:
    """Its machine was cut off, a new one with an empty disk took its place and leads alone, and then the
    first one is back: of its number, and in the leader epoch of the other."""
    cluster = scene.cluster
    with Admin(scene.bootstrap) as admin:
        admin.alter_configs(Resource.topic(TOPIC), assign={"min.insync.replicas": "1"})
    write(scene, range(30))
    broker, partition = scene.leader(0), 1
    assert scene.leader(partition) != broker
    former = scene.address(broker)
    others = scene.others(broker)
    scene.signal(broker, signal.SIGSTOP)
    scene.leader(0, other_than=broker, ask=others)
    settings = {
        **SETTINGS,
        "node.id": str(broker),
        "zookeeper.connect": cluster.state.zookeeper_address,
    }
    with BrokerProcess(tmp_path / "replacement", settings=settings) as replacement:
        scene.bootstrap = f"{others},{replacement.bootstrap}"
        scene.wait_until_in_sync()
        for other in scene.numbers:
            if other != broker:
                cluster.kill(other)

        def leads(address: str) -> bool:
            view = ask(address, TOPIC)
            return view is not None and view.partitions[partition].leader == broker

        wait_until("the new one leads alone", lambda: leads(replacement.bootstrap))
        scene.bootstrap = replacement.bootstrap
        write(scene, range(30, 60))
        scene.signal(broker, signal.SIGCONT)
        wait_until("the former one has heard of it", lambda: leads(former))
        assert written_by(former, partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert written_by(replacement.bootstrap, partition) is ErrorCode.NONE
