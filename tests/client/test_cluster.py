"""Cluster: finding brokers, and going on when they move, die and come back."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wire_kit.kafka import SASL_PLAINTEXT, USER, Kafka
from wire_kit.scripted import Asked, serving

from ottla.client.admin.client import AsyncAdmin
from ottla.client.cluster import (
    CONTROLLER,
    Cluster,
    Coordinator,
    CoordinatorKind,
    LeaderOf,
    OneBroker,
)
from ottla.client.configuration.clients import ClientSettings, read_settings
from ottla.client.errors import (
    AuthenticationError,
    BrokerError,
    ClientClosed,
    ClusterUnreachable,
    TimedOut,
    TopicNotFound,
    Unsupported,
)
from ottla.client.positions import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from ottla.protocol.messages.find_coordinator import (
    Coordinator as FoundCoordinator,
)
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.testing import BrokerProcess, free_port
from ottla.wire.errors import WireError

TOPIC_ID = b"0123456789abcdef"


def make_cluster(servers: str, **options: Any) -> Cluster:
    quick = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 10}
    return Cluster(read_settings(ClientSettings, servers, {**quick, **options}))


@dataclasses.dataclass
class Scene:
    """Two scripted brokers, and what they say."""

    ports: list[int] = dataclasses.field(default_factory=list)
    asked: list[tuple[int, int, int]] = dataclasses.field(
        default_factory=list
    )  # node, API, version
    leader: int = 1
    epoch: int = 1
    controller: int = 1
    coordinator: int = 1
    coordinator_version: int = 6
    metadata_error: int = 0
    # Brokers that the metadata do not name any more.
    gone: set[int] = dataclasses.field(default_factory=set)
    # What a node answers to anything but the above.
    reply: Callable[[int, Asked], None] = lambda _, request: request.writer.close()

    def of(self, api_key: ApiKey) -> list[int]:
        return [node for node, key, _ in self.asked if key == api_key]

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def serve(self, node: int, request: Asked) -> None:
        self.asked.append((node, request.api_key, request.version))
        if request.api_key == ApiKey.METADATA:
            partition = MetadataResponsePartition(leader_id=self.leader, leader_epoch=self.epoch)
            request.answer(
                MetadataResponse(
                    brokers=[
                        MetadataResponseBroker(node_id=n, host="127.0.0.1", port=self.ports[n - 1])
                        for n in range(1, len(self.ports) + 1)
                        if n not in self.gone
                    ],
                    controller_id=self.controller,
                    topics=[
                        MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=[partition])
                    ],
                    error_code=self.metadata_error if request.version >= 13 else 0,
                )
            )
        elif request.api_key == ApiKey.FIND_COORDINATOR:
            self._find_coordinator(request)
        else:
            self.reply(node, request)

    def _find_coordinator(self, request: Asked) -> None:
        where = {
            "node_id": self.coordinator,
            "host": "127.0.0.1",
            "port": self.ports[self.coordinator - 1],
        }
        wanted, _ = FindCoordinatorRequest.decode(request.body, 0, request.version)
        if request.version >= 4:
            found = [FoundCoordinator(key=key, **where) for key in wanted.coordinator_keys]
            request.answer(FindCoordinatorResponse(coordinators=found))
        else:
            request.answer(FindCoordinatorResponse(**where))


@asynccontextmanager
async def two_brokers(**options: Any) -> AsyncIterator[Scene]:
    scene = Scene(**options)

    async with AsyncExitStack() as stack:
        for node in (1, 2):

            async def script(request: Asked, node: int = node) -> None:
                scene.serve(node, request)

            async def handshake(request: Asked) -> None:
                newest = {
                    ApiKey.METADATA: 13,
                    ApiKey.FIND_COORDINATOR: scene.coordinator_version,
                    ApiKey.LIST_GROUPS: 5,
                    ApiKey.LIST_OFFSETS: 8,
                    ApiKey.HEARTBEAT: 4,
                    ApiKey.API_VERSIONS: 4,
                    ApiKey.DESCRIBE_LOG_DIRS: 4,
                }
                offered = [
                    ApiVersion(api_key=key, max_version=version) for key, version in newest.items()
                ]
                request.answer(ApiVersionsResponse(api_keys=offered))

            port, _ = await stack.enter_async_context(serving(script, handshake=handshake))
            scene.ports.append(port)
        yield scene


async def test_a_leader_that_has_moved() -> None:
    def reply(node: int, request: Asked) -> None:
        moved = node == 1
        if moved:
            scene.leader, scene.epoch = 2, 2
        partition = ListOffsetsPartitionResponse(
            partition_index=0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER if moved else 0,
            offset=-1 if moved else 17,
        )
        topic = ListOffsetsTopicResponse(name="t", partitions=[partition])
        request.answer(ListOffsetsResponse(topics=[topic]))

    async with two_brokers() as scene:
        scene.reply = reply
        admin = AsyncAdmin(scene.servers, retry_backoff_ms=10)
        place = TopicPartition("t", 0)
        assert (await admin.list_offsets({place: "latest"}))[place].offset == 17
        assert scene.of(ApiKey.LIST_OFFSETS) == [1, 2]
        await admin.close()


async def test_a_leader_that_dies() -> None:
    def reply(node: int, request: Asked) -> None:
        if node == 1:
            scene.leader, scene.epoch = 2, 2
            request.writer.close()
            return
        request.answer(ListGroupsResponse())

    async with two_brokers() as scene:
        scene.reply = reply
        cluster = make_cluster(scene.servers)
        await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=LeaderOf("t", 0))
        # The old leader is tried again where news of the new one take longer than a retry waits.
        first, *_, last = scene.of(ApiKey.LIST_GROUPS)
        assert (first, last) == (1, 2)
        await cluster.close()


async def test_a_broker_that_leaves_while_all_are_asked_for_their_folders() -> None:
    def reply(node: int, request: Asked) -> None:
        if node == 1:
            scene.gone = {1}
            request.writer.close()
        else:
            results = [DescribeLogDirsResult(log_dir="/data")]
            request.answer(DescribeLogDirsResponse(results=results))

    async with two_brokers() as scene:
        scene.reply = reply
        admin = AsyncAdmin(scene.servers, retry_backoff_ms=10)
        assert [each.broker for each in await admin.describe_log_folders()] == [2]
        scene.gone = set()
        with pytest.raises(BrokerError, match="there is no broker 1; there are 2"):
            await admin.describe_log_folders([1, 2])
        await admin.close()


async def test_a_leader_named_by_another_answer() -> None:
    """No Metadata request is needed to follow it (KIP-951)."""
    async with two_brokers() as scene:
        scene.reply = lambda _, request: request.answer(ListGroupsResponse())
        cluster = make_cluster(scene.servers)
        assert (await cluster.leader("t", 0)).leader == 1
        before = len(scene.of(ApiKey.METADATA))
        assert cluster.learn_leader("t", 0, 2, 2)
        await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=LeaderOf("t", 0))
        assert scene.of(ApiKey.LIST_GROUPS) == [2]
        assert len(scene.of(ApiKey.METADATA)) == before
        await cluster.close()


async def test_a_controller_that_has_moved() -> None:
    def reply(node: int, request: Asked) -> None:
        if node == 1:
            scene.controller = 2
            request.answer(ListGroupsResponse(error_code=ErrorCode.NOT_CONTROLLER))
        else:
            request.answer(ListGroupsResponse())

    async with two_brokers() as scene:
        scene.reply = reply
        cluster = make_cluster(scene.servers)
        answer = await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=CONTROLLER)
        assert answer.error_code == 0
        assert scene.of(ApiKey.LIST_GROUPS) == [1, 2]
        await cluster.close()


@pytest.mark.parametrize("version", [3, 6])
async def test_a_coordinator_that_has_moved(version: int) -> None:
    def reply(node: int, request: Asked) -> None:
        if node == 1:
            scene.coordinator = 2
            request.answer(HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
        else:
            request.answer(HeartbeatResponse())

    async with two_brokers(coordinator_version=version) as scene:
        scene.reply = reply
        cluster = make_cluster(scene.servers)
        route = Coordinator.of_group("g")
        await cluster.ask(HeartbeatRequest(group_id="g"), HeartbeatResponse, at=route)
        assert scene.of(ApiKey.HEARTBEAT) == [1, 2]
        assert len(scene.of(ApiKey.FIND_COORDINATOR)) == 2
        # What was found is kept.
        await cluster.ask(HeartbeatRequest(group_id="g"), HeartbeatResponse, at=route)
        assert len(scene.of(ApiKey.FIND_COORDINATOR)) == 2
        several = await cluster.coordinators(CoordinatorKind.GROUP, ["g", "h", "i"])
        assert {node.id for node in several.values()} == {2}
        assert len(scene.of(ApiKey.FIND_COORDINATOR)) == (3 if version == 6 else 4)
        await cluster.close()


async def test_errors_that_do_not_pass_are_the_caller_s() -> None:
    async with two_brokers() as scene:
        scene.reply = lambda _, request: request.answer(
            ListGroupsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        )
        cluster = make_cluster(scene.servers)
        answer = await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=OneBroker(2))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert scene.of(ApiKey.LIST_GROUPS) == [2]
        with pytest.raises(Unsupported):
            await cluster.ask(ConsumerGroupHeartbeatRequest(), ConsumerGroupHeartbeatResponse)
        with pytest.raises(BrokerError, match="there is no broker 7; there are 1, 2"):
            await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=OneBroker(7))
        await cluster.close()


async def test_trouble_that_passes_is_waited_for_until_the_deadline() -> None:
    async with two_brokers() as scene:
        scene.reply = lambda _, request: request.answer(
            ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )
        cluster = make_cluster(scene.servers)
        with pytest.raises(TimedOut, match="COORDINATOR_LOAD_IN_PROGRESS") as caught:
            await cluster.ask(ListGroupsRequest(), ListGroupsResponse, timeout=0.3)
        assert isinstance(caught.value.__cause__, BrokerError)
        assert isinstance(caught.value, TimeoutError)
        assert len(scene.of(ApiKey.LIST_GROUPS)) > 3
        await cluster.close()


async def test_the_broker_asks_to_begin_anew() -> None:
    """Of two clusters that were one, the client follows the one behind its bootstrap server."""
    async with two_brokers() as scene:
        cluster = make_cluster(scene.servers)
        await cluster.brokers()
        assert set(cluster.metadata.nodes) == {1, 2}
        scene.metadata_error = ErrorCode.REBOOTSTRAP_REQUIRED
        with pytest.raises(TimedOut):
            await cluster.topic("u", timeout=0.2, wait=True)
        assert cluster.metadata.nodes == {}
        scene.metadata_error = 0
        await cluster.refresh(["t"])
        assert set(cluster.metadata.nodes) == {1, 2}
        await cluster.close()


async def test_all_known_brokers_are_gone() -> None:
    """What the metadata name cannot be reached; the bootstrap server can."""

    def reply(_: int, request: Asked) -> None:
        if len(scene.of(ApiKey.LIST_GROUPS)) == 1:
            request.writer.close()
        else:
            request.answer(ListGroupsResponse())

    async with two_brokers(reply=reply) as scene:
        cluster = make_cluster(scene.servers)
        scene.ports = [free_port(), free_port()]
        assert {node.port for node in (await cluster.brokers()).values()} == set(scene.ports)
        await cluster.ask(ListGroupsRequest(), ListGroupsResponse, timeout=10)
        assert scene.of(ApiKey.LIST_GROUPS) == [1, 1]
        await cluster.close()


async def test_one_attempt_serves_all_who_wait() -> None:
    async with two_brokers() as scene:
        scene.reply = lambda _, request: request.answer(ListGroupsResponse())
        cluster = make_cluster(scene.servers)
        await cluster.brokers()
        connections = await asyncio.gather(*(cluster.connection(2) for _ in range(20)))
        assert len(set(map(id, connections))) == 1
        other = await cluster.connection(2, "fetch")
        assert other is not connections[0]
        await cluster.close()
        assert connections[0].closed
        assert other.closed
        with pytest.raises(ClientClosed):
            await cluster.ask(ListGroupsRequest(), ListGroupsResponse)


async def test_bootstrap_servers_of_which_some_are_dead(broker: BrokerProcess) -> None:
    dead = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    cluster = make_cluster(f"{dead},{broker.bootstrap}")
    await cluster.ask(ListGroupsRequest(), ListGroupsResponse, timeout=20)
    await cluster.close()


async def test_nobody_answers() -> None:
    cluster = make_cluster(f"127.0.0.1:{free_port()}")
    with pytest.raises(TimedOut, match="refused") as caught:
        await cluster.ask(ListGroupsRequest(), ListGroupsResponse, timeout=0.3)
    assert isinstance(caught.value.__cause__, ClusterUnreachable)
    with pytest.raises(TimedOut):
        await cluster.topic("t", timeout=0.3)
    await cluster.close()


async def test_a_broker_that_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        async with AsyncAdmin(process.bootstrap, retry_backoff_ms=10) as admin:
            await admin.create_topic("t", 2)
            process.kill()
            waiting = asyncio.ensure_future(admin.list_offsets({TopicPartition("t", 1): "latest"}))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(process.start)
            assert (await waiting)[TopicPartition("t", 1)].offset == 0
            assert [each.name for each in await admin.list_topics()] == ["t"]


async def test_metadata_grow_old(broker: BrokerProcess, topic: str) -> None:
    async with AsyncAdmin(broker.bootstrap) as admin:
        await admin.create_topic(topic, 1)
        cluster = make_cluster(broker.bootstrap, **{"metadata.max.age.ms": 100})
        assert len((await cluster.topic(topic)).partitions) == 1
        seen = asyncio.Event()

        def look() -> None:
            if len(cluster.metadata.topics[topic].partitions) == 3:
                seen.set()

        forget = cluster.on_refresh(look)
        cluster.watch([topic])
        await admin.create_partitions(topic, 3)
        await asyncio.wait_for(seen.wait(), 20)
        forget()
        await cluster.close()


async def test_a_topic_that_is_waited_for(broker: BrokerProcess, topic: str) -> None:
    cluster = make_cluster(broker.bootstrap)
    with pytest.raises(TopicNotFound, match=topic):
        await cluster.topic(topic)
    waiting = asyncio.ensure_future(cluster.topic(topic, wait=True))
    async with AsyncAdmin(broker.bootstrap) as admin:
        await admin.create_topic(topic, 2)
        assert len((await waiting).partitions) == 2
        # Deleted and made anew under the client: it has another id.
        await admin.delete_topics(topic)
        await admin.create_topic(topic, 1)
    before = waiting.result().topic_id
    await cluster.refresh([topic])
    again = await cluster.topic(topic)
    assert again.topic_id != before
    assert cluster.metadata.name_of(before) is None
    await cluster.close()


@pytest.mark.interop
async def test_wrong_credentials_are_told_at_once(kafka: Kafka) -> None:
    admin = AsyncAdmin(
        f"127.0.0.1:{kafka.ports[SASL_PLAINTEXT]}",
        security_protocol="sasl_plaintext",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password="wrong",
    )
    async with asyncio.timeout(20):
        with pytest.raises(AuthenticationError, match="Invalid username or password"):
            await admin.list_topics(timeout=60)
    await admin.close()


async def test_an_attempt_to_connect_that_nobody_waits_for_any_more() -> None:
    """It may fail when it likes: asyncio must not complain that nobody has heard of it."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["message"])
    )
    cluster = make_cluster(f"127.0.0.1:{free_port()}", **{"reconnect.backoff.ms": 50})
    with pytest.raises(WireError):
        await cluster.refresh()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await cluster.refresh()  # waits for the back-off to be over
    (entry,) = cluster._connections._entries.values()
    assert entry.opening is not None
    await asyncio.wait([entry.opening])
    gc.collect()
    await cluster.close()
    assert complaints == []
