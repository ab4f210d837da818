"""Quotas: which one counts, what it limits, and how a client is told and held back.

The rates are so small that what is owed lasts for hours: no test waits for the end of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch_request,
    fresh_name,
    produce_request,
)
from server_kit.long_requests import LONG
from server_kit.wire import Wire

from ottla.cluster.metadata import ClusterImage, ResourceType
from ottla.cluster.security.quotas import entity_key
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataRequest,
    EntryDataRequest,
    OpData,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData
from ottla.server.network.connection import MUTED
from ottla.server.quotas import usage as quotas_module
from ottla.server.quotas.usage import Bucket, Quotas, is_broker
from ottla.server.replication.changes import Client, client_of, forwarded_id, is_forwarded
from ottla.server.security.authorizer import Authorizer

StartBroker = Callable[..., BrokerThread]
Entity = dict[str, str | None]
LIMITED = "limited-client"


# Rates ------------------------------------------------------------------------------------------


def test_a_bucket_fills_with_time_and_may_be_owed_from() -> None:
    bucket = Bucket(rate=100, window=10, now=0.0)
    assert bucket.take(1000, 0.0) == 0
    assert bucket.take(50, 0.0) == 0.5
    assert bucket.owes(0.4) == pytest.approx(0.1)
    assert bucket.owes(0.6) == 0
    assert bucket.take(80, 1.5) == 0
    assert not bucket.is_full(10.0)
    assert bucket.is_full(12.0)
    # No more than a window is saved up.
    assert bucket.take(1001, 1000.0) == pytest.approx(0.01)


class FakeConnection:
    def __init__(self, user: str, client_id: str) -> None:
        self.principal = f"User:{user}"
        self.client_id = client_id
        self.muted = 0.0

    def mute(self, seconds: float) -> None:
        self.muted = seconds


def made(*entries: tuple[Entity, float], kind: str = "producer_byte_rate") -> Quotas:
    quotas = Quotas(1.0, 1.0, clock=lambda: 0.0)
    quotas.load(
        ClusterImage(
            "c",
            configs={
                (ResourceType.QUOTA, entity_key(entity)): {kind: str(rate)}
                for entity, rate in entries
            },
        )
    )
    return quotas


def test_a_flood_of_connections_is_not_owed_for_hours() -> None:
    bucket = Bucket(20, 1, 0.0)
    for _ in range(100_000):
        waits = bucket.connect(0.0)
    assert 30 < waits < 31
    assert bucket.connect(32.0) == 0


def test_the_most_specific_quota_counts() -> None:
    entries: list[tuple[Entity, float]] = [
        ({"user": "u", "client-id": "c"}, 1),
        ({"user": "u", "client-id": None}, 2),
        ({"user": "u"}, 3),
        ({"user": None, "client-id": "c"}, 4),
        ({"user": None, "client-id": None}, 5),
        ({"user": None}, 6),
        ({"client-id": "c"}, 7),
        ({"client-id": None}, 8),
    ]
    while entries:
        rate = entries[0][1]
        connection: Any = FakeConnection("u", "c")
        # A window's worth is free: one more is owed for the time that one takes.
        assert made(*entries).produced(connection, int(rate) + 1) == int(1000 / rate)
        assert connection.muted == pytest.approx(1 / rate)
        entries.pop(0)
    assert made().produced(connection, 10**9) == 0


def test_what_is_counted_together() -> None:
    def shared(entity: Entity, one: tuple[str, str], other: tuple[str, str]) -> bool:
        quotas = made((entity, 100))
        first: Any = FakeConnection(*one)
        second: Any = FakeConnection(*other)
        quotas.produced(first, 100)
        return quotas.produced(second, 1) > 0

    assert shared({"user": "u"}, ("u", "c"), ("u", "d"))
    assert not shared({"user": None}, ("u", "c"), ("v", "c"))
    assert shared({"client-id": "c"}, ("u", "c"), ("v", "c"))
    assert not shared({"client-id": None}, ("u", "c"), ("u", "d"))
    assert not shared({"user": "u", "client-id": None}, ("u", "c"), ("u", "d"))


def test_what_was_used_counts_on_after_a_change_elsewhere() -> None:
    quotas = made(({"user": "u"}, 100))
    connection: Any = FakeConnection("u", "c")
    assert quotas.produced(connection, 150) == 500
    image = ClusterImage(
        "c",
        configs={
            (ResourceType.QUOTA, entity_key({"user": name})): {"producer_byte_rate": "100"}
            for name in ("u", "v")
        },
    )
    quotas.load(image)
    assert quotas.produced(connection, 0) == 500


# At a broker ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {"quota.window.num": "2", "controller.quota.window.num": "2"}
    with BrokerThread(tmp_path_factory.mktemp("quotas"), settings=settings) as running:
        yield running


@pytest.fixture
def admin(limited: BrokerThread) -> Iterator[Wire]:
    with limited.wire() as wire:
        yield wire
        for entity in (
            {"client-id": LIMITED},
            {"ip": "127.0.0.1"},
            {"user": "a", "client-id": None},
        ):
            names = (
                ["connection_creation_rate"]
                if "ip" in entity
                else ["producer_byte_rate", "consumer_byte_rate", "request_percentage",
                      "controller_mutation_rate"]
            )  # fmt: skip
            assert alter(wire, entity, dict.fromkeys(names)) == 0


def alter(
    wire: Wire, entity: Any, values: dict[str, float | None], validate_only: bool = False
) -> int:
    pairs = entity.items() if isinstance(entity, dict) else entity
    answer = wire.call(
        AlterClientQuotasRequest(
            entries=[
                EntryDataRequest(
                    entity=[
                        EntityDataRequest(entity_type=kind, entity_name=name)
                        for kind, name in pairs
                    ],
                    ops=[
                        OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
            ],
            validate_only=validate_only,
        ),
        AlterClientQuotasResponse,
        1,
    )
    return answer.entries[0].error_code


def described(wire: Wire, *components: ComponentData, strict: bool = False) -> list[Any]:
    answer = wire.call(
        DescribeClientQuotasRequest(components=list(components), strict=strict),
        DescribeClientQuotasResponse,
        1,
    )
    assert answer.error_code == 0
    return [
        (
            {one.entity_type: one.entity_name for one in each.entity},
            {one.key: one.value for one in each.values},
        )
        for each in answer.entries or ()
    ]


def is_muted(broker: BrokerThread, wire: Wire) -> bool:
    host, port = wire.sock.getsockname()

    def look(inside: Any) -> bool:
        (found,) = [each for each in inside.reactor.connections if each.address == f"{host}:{port}"]
        return bool(found.paused & MUTED)

    return broker.run(look)


def send(wire: Wire, request: Any, response: Any, version: int, client_id: str = LIMITED) -> Any:
    """As the client that is limited, unless as another."""
    wire.send(request, version, client_id)
    return wire.receive(response, version)


@pytest.fixture
def topic(admin: Wire) -> Topic:
    return create_topic(admin)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_a_producer_is_told_and_muted(
    version: int, limited: BrokerThread, admin: Wire, topic: Topic
) -> None:
    assert alter(admin, {"client-id": LIMITED}, {"producer_byte_rate": 1}) == 0
    request = produce_request(topic, (0, batch_of(b"x" * 5000)))
    with limited.wire() as wire:
        # It is stored and acknowledged, and costs more than an hour.
        answer = send(wire, request, ProduceResponse, version)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert answer.throttle_time_ms > 3_600_000
        assert is_muted(limited, wire)
        # What it sends now is not handled; others are served.
        requests = limited.run(lambda inside: inside.apis[18].requests)
        wire.send(ApiVersionsRequest(), 0, LIMITED)
        assert admin.call(produce_request(topic, (0, batch_of(b"x"))), ProduceResponse, 9)
        assert limited.run(lambda inside: inside.apis[18].requests) == requests
    alter(admin, {"client-id": LIMITED}, {"producer_byte_rate": None})


@pytest.mark.parametrize("version", [4, 11, 12, 13])
def test_a_consumer_is_told_and_muted(
    version: int, limited: BrokerThread, admin: Wire, topic: Topic
) -> None:
    admin.call(produce_request(topic, (0, batch_of(b"x" * 5000))), ProduceResponse, 9)
    assert alter(admin, {"client-id": LIMITED}, {"consumer_byte_rate": 1}) == 0
    with limited.wire() as wire:
        answer = send(wire, fetch_request(topic, (0, 0)), FetchResponse, version)
        assert len(answer.responses[0].partitions[0].records) > 5000
        assert answer.throttle_time_ms > 3_600_000
        assert is_muted(limited, wire)
    alter(admin, {"client-id": LIMITED}, {"consumer_byte_rate": None})


def test_a_client_that_keeps_the_broker_busy_is_muted(limited: BrokerThread, admin: Wire) -> None:
    assert alter(admin, {"client-id": LIMITED}, {"request_percentage": 0.000001}) == 0
    with limited.wire() as wire:
        send(wire, ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert is_muted(limited, wire)
    alter(admin, {"client-id": LIMITED}, {"request_percentage": None})
    with limited.wire() as wire:
        for _ in range(3):
            send(wire, ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert not is_muted(limited, wire)


@pytest.mark.parametrize("name", ["Metadata", "Fetch", "Produce"])
def test_work_in_slices_keeps_the_broker_busy_too(
    name: str, limited: BrokerThread, admin: Wire
) -> None:
    """Of a long request the first slice is the smallest part."""
    long: Any = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=str(each)) for each in range(5_000)],
    )
    version = 9
    if name != "Produce":
        make, _, version = LONG[name]
        long = make(5_000)
    assert alter(admin, {"client-id": LIMITED}, {"request_percentage": 50}) == 0
    told: list[float] = []

    def count(inside: Any) -> None:
        api = inside.apis[long.api_key]
        kept_busy = api.kept_busy

        def noted(connection: Any, seconds: float) -> None:
            told.append(seconds)
            kept_busy(connection, seconds)

        api.kept_busy = noted

    limited.run(count)
    with limited.wire() as wire:
        wire.send(long, version, LIMITED)
        wire.frame()
    assert len(told) > 1
    alter(admin, {"client-id": LIMITED}, {"request_percentage": None})
    assert limited.run(lambda inside: inside.apis[long.api_key].kept_busy) is None


def creation(*names: str, partitions: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ],
        timeout_ms=10_000,
    )


def test_changes_of_partitions_are_limited(limited: BrokerThread, admin: Wire) -> None:
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": 0.0001}) == 0
    first, second = fresh_name(), fresh_name()
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with limited.wire() as wire:
        # The first may take what is there and more; it is owed then.
        answer = send(wire, creation(first), CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 0
        assert answer.throttle_time_ms > 3_600_000
        answer = send(wire, creation(second), CreateTopicsResponse, 7)
        assert [each.error_code for each in answer.topics] == [exceeded]
        assert answer.throttle_time_ms > 3_600_000
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=first)], timeout_ms=10_000)
        refused = send(wire, deletion, DeleteTopicsResponse, 6)
        assert [each.error_code for each in refused.responses] == [exceeded]
        # A look at what would be made costs nothing.
        only = creation(second)
        only.validate_only = True
        assert send(wire, only, CreateTopicsResponse, 7).topics[0].error_code == 0
        # An older client does not know the error: it is done, and the client muted.
        answer = send(wire, creation(second), CreateTopicsResponse, 5)
        assert answer.topics[0].error_code == 0
        assert is_muted(limited, wire)
    assert {first, second} <= set(limited.broker.image.topics)


def asking(*names: str) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )


def test_topics_that_are_made_on_first_use_count(limited: BrokerThread, admin: Wire) -> None:
    """A client that may make nothing more is not told so: the topic is not there, and it asks again."""
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": 0.0001}) == 0
    first, second, third = fresh_name(), fresh_name(), fresh_name()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with limited.wire() as wire:
        (made,) = send(wire, asking(first), MetadataResponse, 9).topics
        assert (made.error_code, len(made.partitions)) == (0, 1)
        answer = send(wire, asking(first, second), MetadataResponse, 9)
        assert [each.error_code for each in answer.topics] == [0, unknown]
        assert answer.throttle_time_ms == 0
        # It is one quota with that of topics made on purpose.
        answer = send(wire, creation(third), CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        # Nobody else waits for it.
        (made,) = send(wire, asking(third), MetadataResponse, 9, "another").topics
        assert made.error_code == 0
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": None}) == 0
    assert second not in limited.broker.image.topics
    with limited.wire() as wire:
        assert send(wire, asking(second), MetadataResponse, 9).topics[0].error_code == 0


def test_what_is_asked_for_at_the_same_time_is_counted(limited: BrokerThread, admin: Wire) -> None:
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": 0.0001}) == 0
    made = [fresh_name() for _ in range(5)]

    async def at_once() -> list[Any]:
        broker = limited.broker
        client = Client("ANONYMOUS", LIMITED)
        return await asyncio.gather(*(broker.create_automatically([name], client) for name in made))

    refused = [name for each in limited.run_async(at_once()) for name in each]
    assert refused == made[1:]
    # What fails costs nothing.
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": 0.0002}) == 0
    with limited.wire() as wire:
        bad = send(wire, creation("not a name"), CreateTopicsResponse, 7)
        assert bad.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert bad.throttle_time_ms == 0
        assert send(wire, creation(made[1]), CreateTopicsResponse, 7).topics[0].error_code == 0
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": None}) == 0


@pytest.mark.parametrize(
    ("user", "client_id"),
    [
        ("alice", "reports"),
        ("", ""),
        ("CN=a,OU=b for c", "x for y"),
        ("müller", "…"),
        ("a", "x" * 300),
    ],
)
def test_a_request_that_is_passed_on_says_whose_it_is(user: str, client_id: str) -> None:
    sent = forwarded_id(7, Client(user, client_id))
    assert is_forwarded(sent)
    assert client_of(sent) == Client(user, client_id)
    assert len(sent.encode()) < 32_767


def test_what_is_no_name_of_a_client_is_a_brokers_own() -> None:
    assert client_of(forwarded_id(7, Client("u" * 40_000, "c"))) is None
    for sent in (
        "broker-7-controller",
        "broker-7-controller for nobody",
        "broker-1-controller for 5",
    ):
        assert client_of(sent) is None
    assert not is_forwarded("reports for broker-7-controller")
    assert not is_forwarded("broker-7-fetcher")


def test_the_controller_counts_for_all_brokers(limited: BrokerThread, admin: Wire) -> None:
    """Three brokers pass on what one client asks them for; others are not concerned."""
    assert alter(admin, {"client-id": LIMITED}, {"controller_mutation_rate": 0.001}) == 0
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    made, refused, others = fresh_name(), fresh_name(), fresh_name()

    def passed_on(broker: int, client: str, name: str) -> CreateTopicsResponse:
        with limited.wire() as wire:
            sent = forwarded_id(broker, Client("ANONYMOUS", client))
            return send(wire, creation(name), CreateTopicsResponse, 7, client_id=sent)

    answer = passed_on(2, LIMITED, made)
    assert [each.error_code for each in answer.topics] == [0]
    assert answer.throttle_time_ms > 0
    for broker in (2, 3):
        answer = passed_on(broker, LIMITED, refused)
        assert [each.error_code for each in answer.topics] == [exceeded]
        assert answer.throttle_time_ms > 0
    assert passed_on(3, "somebody-else", others).topics[0].error_code == 0
    # What a broker wants for itself is nobody's.
    with limited.wire() as wire:
        own = send(
            wire, creation(refused), CreateTopicsResponse, 7, client_id="broker-3-controller"
        )
    assert [each.error_code for each in own.topics] == [0]


@pytest.mark.parametrize("rate", [1.0, 1e-9, 5e-324])
def test_a_throttle_time_can_always_be_told(rate: float) -> None:
    """A large request of a client with a tiny quota would be paid for longer than a number says."""
    entity = (ResourceType.QUOTA, entity_key({"client-id": LIMITED}))
    names = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate")
    quotas = Quotas(1, 1, lambda: 0.0)
    quotas.load(ClusterImage("id", configs={entity: dict.fromkeys(names, repr(rate))}))
    muted: list[float] = []
    connection: Any = SimpleNamespace(
        principal="User:a", client_id=LIMITED, mute=lambda seconds: muted.append(seconds)
    )
    longest = (1 << 31) - 1
    assert quotas.produced(connection, 100 << 20) == longest
    assert quotas.fetched(connection, 100 << 20) == longest
    assert quotas.mutated(Client("a", LIMITED), 100 << 20) == longest
    assert muted == [longest / 1000] * 2


def test_enormous_quotas_hold_nobody_back() -> None:
    entity = (ResourceType.QUOTA, entity_key({"client-id": None}))
    quotas = Quotas(10, 10, lambda: 0.0)
    quotas.load(ClusterImage("id", configs={entity: {"producer_byte_rate": repr(1.7e308)}}))
    connection: Any = SimpleNamespace(principal="User:a", client_id=LIMITED)
    assert [quotas.produced(connection, 100 << 20) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("written", ["::1", "0:0:0:0:0:0:0:1", "0::0001"])
def test_an_address_is_the_same_however_it_is_written(written: str) -> None:
    entity = (ResourceType.QUOTA, entity_key({"ip": written}))
    quotas = Quotas(1, 1, lambda: 0.0)
    quotas.load(ClusterImage("id", configs={entity: {"connection_creation_rate": "1.0"}}))
    assert [quotas.connected("::1") for _ in range(2)] == [0, 1]
    assert [quotas.connected("::2") for _ in range(2)] == [0, 0]


def test_very_many_clients_that_owe_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may have another id in every request, and a quota that is everybody's own."""
    monkeypatch.setattr(quotas_module, "_KEPT", 100)
    looked_at = 0
    is_full = Bucket.is_full

    def counted(bucket: Bucket, now: float) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_full(bucket, now)

    monkeypatch.setattr(Bucket, "is_full", counted)
    quotas = Quotas(1, 1, lambda: 0.0)
    entity = (ResourceType.QUOTA, entity_key({"client-id": None}))
    quotas.load(ClusterImage("id", configs={entity: {"producer_byte_rate": "1.0"}}))
    for number in range(2_000):
        client: Any = SimpleNamespace(
            principal="User:a", client_id=f"client-{number}", mute=lambda _: None
        )
        assert quotas.produced(client, 1000) > 0
    assert len(quotas._buckets) <= 100
    assert looked_at <= 3 * 2_000
    # The newest are still known.
    assert quotas.produced(client, 0) > 0


def test_of_long_client_ids_little_is_kept() -> None:
    quotas = Quotas(1, 1, clock=lambda: 0.0)
    image: Any = SimpleNamespace(
        configs={
            (ResourceType.QUOTA, entity_key({"client-id": None})): {"producer_byte_rate": "100"}
        }
    )
    quotas.load(image)
    first, second = ("x" * 30_000 + last for last in "ab")
    peers: list[Any] = [
        SimpleNamespace(principal="User:a", client_id=name, mute=lambda _: None)
        for name in (first, second)
    ]
    assert quotas.produced(peers[0], 200) == 1000
    assert quotas.produced(peers[1], 100) == 0, "each has its own"
    assert quotas.produced(peers[0], 0) == 1000
    assert sum(len(name) for _, _, name in (*quotas._known, *quotas._buckets)) < 2000


def test_nobody_escapes_a_quota_by_the_name_of_a_broker(start_broker: StartBroker) -> None:
    name = "broker-7-controller"
    broker = start_broker(
        settings={
            "listeners": "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    with broker.wire() as inside, Wire("127.0.0.1", broker.broker.bound[1].port) as outside:
        assert alter(inside, {"client-id": name}, {"controller_mutation_rate": 0.0001}) == 0

        def create(wire: Wire) -> int:
            wire.send(creation(fresh_name()), 7, name)
            code: int = wire.receive(CreateTopicsResponse, 7).topics[0].error_code
            return code

        assert [create(outside), create(outside)] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        # What another broker passes on has been counted there.
        assert create(inside) == 0


def test_a_broker_is_who_may_be_one() -> None:
    authorizer = Authorizer(frozenset({"User:broker"}))
    broker: Any = SimpleNamespace(
        authorizer=authorizer, config=SimpleNamespace(inter_broker_listener="INSIDE")
    )

    def peer(principal: str, listener: str = "INSIDE", client_id: str = "broker-7-fetcher") -> Any:
        return SimpleNamespace(
            principal=principal,
            host="10.0.0.1",
            client_id=client_id,
            listener=SimpleNamespace(name=listener),
        )

    assert is_broker(broker, peer("User:broker"))
    assert not is_broker(broker, peer("User:broker", client_id="tool"))
    assert not is_broker(broker, peer("User:broker", listener="CLIENTS"))
    assert not is_broker(broker, peer("User:alice"))
    broker.authorizer = None
    assert is_broker(broker, peer("User:alice"))


def test_connections_of_an_address_are_limited(
    limited: BrokerThread, admin: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alter(admin, {"ip": "127.0.0.1"}, {"connection_creation_rate": 1}) == 0
    # A clock that stands: otherwise a slow machine would be within the limit.
    monkeypatch.setattr(limited.broker.quotas, "_clock", lambda: 0.0)
    accepted = limited.run(lambda inside: inside.reactor.accepted)
    wires = [limited.wire() for _ in range(3)]
    limited.until(lambda inside: inside.reactor.accepted >= accepted + 3)
    assert [is_muted(limited, wire) for wire in wires] == [False, True, True]
    for wire in wires:
        wire.close()


def test_connections_of_a_listener_are_limited(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"max.connection.creation.rate": "0"})
    wires = [broker.wire() for _ in range(3)]
    broker.until(lambda inside: inside.reactor.accepted == 3)
    assert all(is_muted(broker, wire) for wire in wires)
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("of_brokers", [None, "0"])
def test_a_limit_for_clients_does_not_slow_brokers_down(
    of_brokers: str | None, start_broker: StartBroker
) -> None:
    """KIP-612: unless it is set for their listener."""
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "max.connection.creation.rate": "0",
    }
    if of_brokers is not None:
        settings["listener.name.inside.max.connection.creation.rate"] = of_brokers
    broker = start_broker(settings=settings)
    with broker.wire() as client, Wire("127.0.0.1", broker.broker.bound[1].port) as peer:
        broker.until(lambda inside: inside.reactor.accepted == 2)
        assert is_muted(broker, client)
        assert is_muted(broker, peer) is (of_brokers is not None)


def test_a_closed_connection_does_not_wait_to_be_served(limited: BrokerThread) -> None:
    timers = []

    def mute(inside: Any) -> None:
        for each in inside.reactor.connections:
            each.mute(86400)
            each.mute(2 * 86400)
            timers.append(each._mute)

    before = limited.run(lambda inside: inside.reactor.accepted)
    with limited.wire():
        limited.until(lambda inside: inside.reactor.accepted > before)
        limited.run(mute)

    def look(inside: Any) -> bool:
        inside.reactor.close_hung_up()
        return not inside.reactor.connections

    limited.until(look)
    assert timers
    assert all(timer is not None and timer.cancelled() for timer in timers)


def test_who_is_muted_for_a_moment_is_served_after_it(limited: BrokerThread, admin: Wire) -> None:
    with limited.wire() as wire:
        send(wire, ApiVersionsRequest(), ApiVersionsResponse, 0)

        def mute(inside: Any) -> None:
            for each in inside.reactor.connections:
                if each.client_id == LIMITED:
                    each.mute(0.05)
                    each.mute(0.01)

        limited.run(mute)
        assert send(wire, ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def test_quotas_are_set_found_and_taken_away(limited: BrokerThread, admin: Wire) -> None:
    both: Entity = {"user": "a", "client-id": None}
    assert alter(admin, both, {"producer_byte_rate": 5}) == 0
    assert alter(admin, {"client-id": LIMITED}, {"request_percentage": 2.5}) == 0
    assert described(admin, ComponentData(entity_type="user", match_type=0, match="a")) == [
        (both, {"producer_byte_rate": 5.0})
    ]
    exact = ComponentData(entity_type="client-id", match_type=0, match=LIMITED)
    of_default = ComponentData(entity_type="client-id", match_type=1, match=None)
    anything = ComponentData(entity_type="client-id", match_type=2, match=None)
    assert described(admin, exact) == [({"client-id": LIMITED}, {"request_percentage": 2.5})]
    assert described(admin, of_default) == [(both, {"producer_byte_rate": 5.0})]
    assert described(admin, of_default, strict=True) == []
    assert len(described(admin, anything)) == len(described(admin)) == 2
    assert alter(admin, both, {"producer_byte_rate": 9}, validate_only=True) == 0
    assert alter(admin, both, {"producer_byte_rate": None}) == 0
    assert alter(admin, {"client-id": LIMITED}, {"request_percentage": None}) == 0
    assert described(admin) == []
    # Without any, nothing is measured.
    assert limited.broker.quotas is None


def test_bad_quotas_change_nothing(limited: BrokerThread, admin: Wire) -> None:
    bad = ErrorCode.INVALID_REQUEST
    for entity, values in (
        ((), {"producer_byte_rate": 1}),
        ((("user", ""),), {"producer_byte_rate": 1}),
        ((("planet", "x"),), {"producer_byte_rate": 1}),
        ((("user", "x"), ("user", "y")), {"producer_byte_rate": 1}),
        ((("user", "x"), ("ip", "127.0.0.1")), {"connection_creation_rate": 1}),
        ((("ip", "nowhere"),), {"connection_creation_rate": 1}),
        ((("ip", "127.0.0.1"),), {"producer_byte_rate": 1}),
        ((("user", "x"),), {"connection_creation_rate": 1}),
        ((("user", "x"),), {"producer_byte_rate": 0}),
        ((("user", "x"),), {"producer_byte_rate": -1}),
        ((("user", "x"),), {"producer_byte_rate": 1.5}),
        ((("user", "x"),), {"producer_byte_rate": 1, "nonsense": 1}),
    ):
        assert alter(admin, entity, values) == bad  # type: ignore[arg-type]
    assert described(admin) == []
