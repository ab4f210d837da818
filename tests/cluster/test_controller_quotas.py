"""The quota of changes is one for the whole cluster: the controller counts, whoever is asked."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

# The kit of the server's tests has the bare connection.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.wire import Wire

from ottla import Admin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.testing.cluster import LocalCluster


@pytest.mark.long
def test_a_client_cannot_take_its_quota_at_every_broker(tmp_path: Path) -> None:
    def create(address: str, client_id: str) -> CreateTopicsResponse:
        host, _, port = address.rpartition(":")
        topic = CreatableTopic(name=uuid.uuid4().hex, num_partitions=1, replication_factor=1)
        with Wire(host, int(port)) as wire:
            wire.send(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7, client_id)
            return wire.receive(CreateTopicsResponse, 7)

    def ask(address: str, client_id: str) -> int:
        """For a topic that is made if it is not there; how many partitions it has."""
        host, _, port = address.rpartition(":")
        wanted = MetadataRequestTopic(name=uuid.uuid4().hex)
        with Wire(host, int(port)) as wire:
            request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
            wire.send(request, 9, client_id)
            (answer,) = wire.receive(MetadataResponse, 9).topics
        assert answer.error_code == (0 if answer.partitions else 3)
        return len(answer.partitions)

    with LocalCluster(tmp_path / "cluster", brokers=3, base_port=None) as cluster:
        addresses = cluster.bootstrap.split(",")
        with Admin(cluster.bootstrap) as admin:
            for client in ("first", "second", "third", "fourth"):
                admin.alter_quotas(
                    {"client-id": client}, assign={"controller_mutation_rate": 0.0001}
                )
        # Every broker has heard of the quota once it has passed something on.
        for address in addresses:
            assert create(address, "unlimited").topics[0].error_code == 0
        for client, order in (("first", addresses), ("second", addresses[::-1])):
            answers = [create(address, client) for address in order]
            # One of them is the controller, and it does not matter which one.
            assert [each.topics[0].error_code for each in answers] == [
                0,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            ]
            assert all(each.throttle_time_ms > 3_600_000 for each in answers)
        # Topics that are made on first use are counted with them.
        for client, order in (("third", addresses), ("fourth", addresses[::-1])):
            assert [ask(address, client) for address in order] == [1, 0, 0]
        # Nobody else waits for it: brokers do not heed what is a client's throttle time.
        for address in addresses:
            answer = create(address, "unlimited")
            assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
            assert ask(address, "unlimited") == 1
