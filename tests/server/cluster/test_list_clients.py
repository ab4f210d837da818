"""ListClients: who is connected, and what they do."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from server_kit.access import Kind, Op, entry, grant, guarded_settings
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch_request,
    fresh_name,
    produce,
    produce_request,
)
from server_kit.long_requests import LONGEST, Turns, count_steps
from server_kit.security import Authority, TlsWire, authenticate, client_context, tls_settings
from server_kit.wire import Wire

from ottla.cluster.security.acls import CLUSTER_NAME
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.fetch import FetchResponse, FetchTopic, ForgottenTopic
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.list_clients import (
    ConnectedClient,
    ListClientsRequest,
    ListClientsResponse,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.server.api import LARGE_REQUEST
from ottla.server.handlers.cluster import list_clients
from ottla.server.network import activity
from ottla.server.sessions import FetchSession, WatchedPartition
from ottla.server.turns import ITEMS_IN_A_STEP
from ottla.wire.sasl import Plain

StartBroker = Callable[..., BrokerThread]
CLIENT, BROKER, FOLLOWER = list_clients.Role
DESCRIBE = entry(Op.DESCRIBE, CLUSTER_NAME, Kind.CLUSTER)


@pytest.fixture
def observer(inside: BrokerThread) -> Iterator[Wire]:
    """Who asks, over a connection of its own."""
    with inside.wire() as wire:
        yield wire


def listed(observer: Wire, **wanted: str) -> list[ConnectedClient]:
    answer = observer.call(ListClientsRequest(**wanted), ListClientsResponse, 0)
    assert answer.error_code == 0
    assert answer.broker_id == 1
    return answer.clients


def port_of(wire: Wire) -> int:
    port: int = wire.sock.getsockname()[1]
    return port


def of(observer: Wire, wire: Wire) -> ConnectedClient:
    """How a connection is told."""
    (found,) = [each for each in listed(observer) if each.port == port_of(wire)]
    return found


def hello(wire: Wire, client_id: str = "wire", name: str = "some-client") -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.2.3")
    wire.send(request, 3, client_id)
    wire.receive(ApiVersionsResponse, 3)


# Who it is ----------------------------------------------------------------------------------------


def test_who_is_connected(observer: Wire, wire: Wire) -> None:
    before = time.time()
    hello(wire, "shop-7")
    shown = of(observer, wire)
    assert (shown.client_id, shown.client_software_name, shown.client_software_version) == (
        "shop-7",
        "some-client",
        "1.2.3",
    )
    assert (shown.address, shown.listener, shown.security_protocol, shown.principal) == (
        "127.0.0.1",
        "PLAINTEXT",
        "PLAINTEXT",
        "User:ANONYMOUS",
    )
    assert (shown.role, shown.peer_broker_id, shown.is_controller) == (CLIENT, -1, False)
    assert abs(shown.connected_since_ms / 1000 - before) < 3600
    assert shown.idle_ms >= 0
    assert (shown.requests, shown.last_api_key) == (1, ApiKey.API_VERSIONS)
    assert (shown.producing, shown.reading, shown.memberships) == ([], [], [])
    assert shown.transactional_id is None
    hello(wire, "shop-8")
    again = of(observer, wire)
    assert (again.client_id, again.requests) == ("shop-8", 2)
    # It is the same connection, and no other has its number.
    assert again.connection_id == shown.connection_id
    assert again.connected_since_ms == shown.connected_since_ms
    assert of(observer, observer).connection_id != shown.connection_id
    assert of(observer, observer).last_api_key == ApiKey.LIST_CLIENTS


def test_who_has_said_nothing_yet(inside: BrokerThread, observer: Wire, wire: Wire) -> None:
    address = f"127.0.0.1:{port_of(wire)}"
    inside.until(lambda broker: address in {each.address for each in broker.reactor.connections})
    shown = of(observer, wire)
    assert (shown.client_id, shown.client_software_name, shown.requests) == ("", "", 0)
    assert shown.last_api_key == -1


def test_who_has_left_is_gone(inside: BrokerThread, observer: Wire) -> None:
    wire = inside.wire()
    hello(wire)
    number = of(observer, wire).connection_id
    wire.close()
    inside.until(lambda broker: number not in {each.id for each in broker.reactor.connections})
    assert number not in {each.connection_id for each in listed(observer)}
    with inside.wire() as another:
        hello(another)
        assert of(observer, another).connection_id > number


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts them")
def test_bytes_on_the_wire(observer: Wire, wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    frame = wire.encode(request, 3)
    for count in range(1, 4):
        wire.send_raw(frame)
        answer = wire.frame()
        assert of(observer, wire).received_bytes == count * len(frame)
    # What the client has read was sent; it is counted once it is acknowledged.
    assert 0 <= of(observer, wire).sent_bytes <= 3 * (len(answer) + 4)


def test_names_as_clients_choose_them(observer: Wire, wire: Wire) -> None:
    for name in ("\x1b[31m\r\n\t\x9b", "Ünï ☃ \U0001f4e8"):
        hello(wire, name)
        assert of(observer, wire).client_id == name
    # Each of these bytes is three, when it is told again.
    for size, cut in ((255, 255), (256, 256), (32_000, 256)):
        frame = wire.encode(ListClientsRequest(), 0, "x" * size)
        at = frame.index(b"x" * size)
        wire.send_raw(frame[:at] + b"\xff" * size + frame[at + size :])
        wire.receive(ListClientsResponse, 0)
        shown = of(observer, wire).client_id
        assert shown.startswith("\ufffd" * 255)
        assert len(shown) == cut


# What it does -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 12, 13])
def test_what_it_produces_to(observer: Wire, wire: Wire, version: int) -> None:
    first, second = create_topic(wire), create_topic(wire)
    assert of(observer, wire).producing == []
    produce(wire, second, batch_of(b"x"), version=version)
    assert of(observer, wire).producing == [second.name]
    # Enough of them for the short cut.
    for _ in range(20):
        produce(wire, first, batch_of(b"x"), version=version)
    assert of(observer, wire).producing == sorted([first.name, second.name])
    wire.call(
        DeleteTopicsRequest(topic_names=[first.name], timeout_ms=9000), DeleteTopicsResponse, 5
    )
    assert of(observer, wire).producing == [second.name]


def test_a_topic_whose_name_is_as_long_as_an_id(observer: Wire, wire: Wire) -> None:
    topic = create_topic(wire, name=fresh_name()[:16].ljust(16, "x"))
    produce(wire, topic, batch_of(b"x"))
    assert of(observer, wire).producing == [topic.name]


def test_what_is_produced_without_an_answer(
    inside: BrokerThread, observer: Wire, wire: Wire, topic: Topic
) -> None:
    wire.send(produce_request(topic, (0, batch_of(b"x")), acks=0), 9)
    hello(wire)
    assert of(observer, wire).producing == [topic.name]


def test_a_topic_that_is_not_there_is_not_produced_to(observer: Wire, wire: Wire) -> None:
    nowhere = Topic("there-is-none", bytes(16))
    answer = produce(wire, nowhere, batch_of(b"x"))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert of(observer, wire).producing == []


def test_the_topics_of_a_connection_are_bounded(
    observer: Wire, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MOST_TOPICS", 4)
    monkeypatch.setattr(list_clients, "TOPICS_SHOWN", 3)
    topics = sorted(create_topic(wire) for _ in range(6))
    for topic in topics:
        produce(wire, topic, batch_of(b"x"))
    # The first two are forgotten, of the others three are named.
    shown = of(observer, wire)
    assert shown.producing == [each.name for each in topics[2:5]]
    assert shown.more_producing == 1
    request = fetch_request(topics[0], (0, 0))
    for topic in topics[1:]:
        request.topics += fetch_request(topic, (0, 0)).topics
    wire.call(request, FetchResponse, 12)
    shown = of(observer, wire)
    assert shown.reading == [each.name for each in topics[:3]]
    assert shown.more_reading == 3
    # A filter knows all of them.
    assert [each.port for each in listed(observer, topic_name=topics[5].name)] == [port_of(wire)]


@pytest.mark.parametrize("version", [4, 12, 13, 18])
def test_what_it_reads(observer: Wire, wire: Wire, version: int) -> None:
    first, second = create_topic(wire), create_topic(wire)
    for topic in (first, second):
        # The second time it is a repeated request.
        for _ in range(3):
            wire.call(fetch_request(topic, (0, 0)), FetchResponse, version)
            assert of(observer, wire).reading == [topic.name]
    wire.call(
        DeleteTopicsRequest(topic_names=[second.name], timeout_ms=9000), DeleteTopicsResponse, 5
    )
    assert of(observer, wire).reading == []


@pytest.mark.parametrize("version", [7, 12, 13])
def test_what_a_session_reads(observer: Wire, wire: Wire, version: int) -> None:
    first, second = create_topic(wire), create_topic(wire)

    def call(request: Any) -> int:
        answer = wire.call(request, FetchResponse, version)
        assert answer.error_code == 0
        return answer.session_id

    session = call(fetch_request(first, (0, 0), session=(0, 0)))
    assert of(observer, wire).reading == [first.name]
    request = fetch_request(second, (0, 0), session=(session, 1))
    call(request)
    both = sorted([first.name, second.name])
    assert of(observer, wire).reading == both
    call(fetch_request(second, session=(session, 2)))
    assert of(observer, wire).reading == both
    request = fetch_request(first, session=(session, 3))
    request.forgotten_topics_data = [
        ForgottenTopic(topic=first.name, topic_id=first.id, partitions=[0])
    ]
    call(request)
    assert of(observer, wire).reading == [second.name]
    # It ends its session.
    call(fetch_request(first, session=(session, -1)))
    assert of(observer, wire).reading == []


def test_a_reader_that_waits(observer: Wire, wire: Wire, topic: Topic) -> None:
    wire.send(fetch_request(topic, (0, 0), max_wait_ms=60_000), 12)
    hello(observer)
    while not (reading := of(observer, wire).reading):
        pass
    assert reading == [topic.name]


def test_a_reader_of_very_many_partitions(inside: BrokerThread, observer: Wire, wire: Wire) -> None:
    topic = create_topic(wire, 2)
    for version, nowhere in ((12, Topic("x" * 200, bytes(16))), (13, Topic("", b"x" * 16))):
        request = fetch_request(topic, (0, 0), (1, 0))
        request.topics += fetch_request(nowhere, *((index, 0) for index in range(600))).topics
        assert len(wire.encode(request, version)) > LARGE_REQUEST
        wire.call(request, FetchResponse, version)
        assert of(observer, wire).reading == [topic.name]
        # What was asked for without a session is not kept.
        (kept,) = inside.run(
            lambda broker: [
                each.activity.reading
                for each in broker.reactor.connections
                if each.address.endswith(f":{port_of(wire)}")
            ]
        )
        assert isinstance(kept, list)
        assert len(kept) == 1


def ready_for(wire: Wire, key: str, kind: int = 0) -> None:
    """The coordinators are at work."""
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
    wire.call(request, FindCoordinatorResponse, 4)


def test_a_member_of_a_classic_group(observer: Wire, wire: Wire, inside: BrokerThread) -> None:
    group = fresh_name("group")
    ready_for(wire, group)
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = wire.call(request, JoinGroupResponse, 4)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert of(observer, wire).memberships == []
    request.member_id = member = answer.member_id
    answer = wire.call(request, JoinGroupResponse, 4)
    assert answer.error_code == 0
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=member,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"")],
    )
    assert wire.call(sync, SyncGroupResponse, 3).error_code == 0
    (membership,) = of(observer, wire).memberships
    assert (membership.group_id, membership.member_id) == (group, member)
    # It goes on on another connection.
    beat = HeartbeatRequest(group_id=group, generation_id=answer.generation_id, member_id=member)
    with inside.wire() as another:
        hello(another)
        assert of(observer, another).memberships == []
        assert another.call(beat, HeartbeatResponse, 3).error_code == 0
        assert [each.member_id for each in of(observer, another).memberships] == [member]
        leave = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
        assert observer.call(leave, LeaveGroupResponse, 4).error_code == 0
        assert of(observer, another).memberships == []
    assert of(observer, wire).memberships == []


def test_a_member_of_a_consumer_group(observer: Wire, wire: Wire, topic: Topic) -> None:
    group = fresh_name("group")
    ready_for(wire, group)
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="me",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic.name],
        topic_partitions=[],
    )
    answer = wire.call(request, ConsumerGroupHeartbeatResponse, 1)
    assert answer.error_code == 0
    (membership,) = of(observer, wire).memberships
    assert (membership.group_id, membership.member_id) == (group, "me")
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id="me", member_epoch=-1)
    assert wire.call(request, ConsumerGroupHeartbeatResponse, 1).error_code == 0
    assert of(observer, wire).memberships == []


def test_who_only_says_that_it_is_a_member(observer: Wire, wire: Wire) -> None:
    for number in range(100):
        beat = HeartbeatRequest(group_id=f"none-{number}", generation_id=1, member_id="nobody")
        assert wire.call(beat, HeartbeatResponse, 3).error_code
    assert of(observer, wire).memberships == []


def test_memberships_are_bounded() -> None:
    doing = activity.Activity()
    for number in range(100):
        doing.note_member("group", f"member-{number}")
        doing.note_member("group", "member-0")
        doing.note_member("group", "")
    assert doing.memberships is not None
    assert len(doing.memberships) == activity.MOST_MEMBERSHIPS
    assert ("group", "member-99") in doing.memberships
    assert ("group", "") not in doing.memberships


def test_a_transactional_producer(observer: Wire, inside: BrokerThread, wire: Wire) -> None:
    name = fresh_name("id")
    ready_for(wire, name, 1)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = wire.call(request, InitProducerIdResponse, 4)
    assert answer.error_code == 0
    assert of(observer, wire).transactional_id == name
    end = EndTxnRequest(
        transactional_id=name,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        committed=True,
    )
    with inside.wire() as another:
        hello(another)
        assert of(observer, another).transactional_id is None
        another.call(end, EndTxnResponse, 3)
        assert of(observer, another).transactional_id == name
    topic = create_topic(wire)
    with inside.wire() as leader:
        batch = batch_of(
            b"x",
            transactional=True,
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
            base_sequence=0,
        )
        told = produce(leader, topic, batch, version=12, transactional_id=name)
        assert told.error_code == 0
        shown = of(observer, leader)
        assert (shown.transactional_id, shown.producing) == (name, [topic.name])


# Brokers ------------------------------------------------------------------------------------------


def test_what_calls_itself_a_broker(observer: Wire, wire: Wire, topic: Topic) -> None:
    hello(wire, "broker-1-controller for ['User:alice', 'shop']")
    shown = of(observer, wire)
    assert (shown.client_id, shown.role, shown.peer_broker_id) == ("broker-1-controller", BROKER, 1)
    assert shown.is_controller
    hello(wire, "broker-7-fetcher")
    shown = of(observer, wire)
    assert (shown.role, shown.peer_broker_id, shown.is_controller) == (BROKER, 7, False)
    hello(wire, "broker-x")
    shown = of(observer, wire)
    assert (shown.role, shown.peer_broker_id) == (BROKER, -1)
    request = fetch_request(topic, (0, 0))
    request.replica_id = 7
    wire.send(request, 12, "broker-7-fetcher")
    wire.receive(FetchResponse, 12)
    shown = of(observer, wire)
    assert (shown.role, shown.peer_broker_id, shown.reading) == (FOLLOWER, 7, [topic.name])


# Some of them -------------------------------------------------------------------------------------


def test_filters(observer: Wire, wire: Wire, inside: BrokerThread, topic: Topic) -> None:
    hello(wire, "chosen")
    produce(wire, topic, batch_of(b"x"))
    hello(wire, "chosen")
    port = port_of(wire)

    def ports(**wanted: str) -> list[int]:
        return [each.port for each in listed(observer, **wanted)]

    assert ports(client_id="chosen") == [port]
    assert ports(client_id="chose") == []
    assert ports(topic_name=topic.name) == [port]
    assert ports(topic_name="other") == []
    assert port in ports(principal="User:ANONYMOUS")
    assert ports(principal="User:alice") == []
    assert port in ports(address="127.0.0.1")
    # As other tools write it.
    assert port in ports(address="0:0:0:0:0:FFFF:7F00:1")
    assert ports(address="127.0.0.2") == []
    assert ports(group_id="none") == []
    assert ports(client_id="chosen", topic_name="other") == []
    group = fresh_name("group")
    ready_for(wire, group)
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="me",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic.name],
        topic_partitions=[],
    )
    wire.call(request, ConsumerGroupHeartbeatResponse, 1)
    assert ports(group_id=group) == [port]


# Who may ask, and who they are ---------------------------------------------------------------------


@pytest.fixture
def secured(start_broker: StartBroker) -> BrokerThread:
    return start_broker(settings=guarded_settings({"alice": "a", "bob": "b"}))


def user(secured: BrokerThread, name: str) -> Wire:
    wire = Wire("127.0.0.1", secured.broker.bound[1].port)
    authenticate(wire, Plain(name, name[0]))
    return wire


def test_who_may_ask(secured: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    with user(secured, "alice") as alice, user(secured, "bob") as bob:
        grant(secured)
        answer = alice.call(ListClientsRequest(), ListClientsResponse, 0)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert answer.clients == []
        assert "denied: principal=User:alice" in caplog.text
        assert "operation=DESCRIBE resource=CLUSTER" in caplog.text
        grant(secured, DESCRIBE)
        shown = of(alice, bob)
        assert (shown.principal, shown.listener, shown.security_protocol) == (
            "User:bob",
            "CLIENTS",
            "SASL_PLAINTEXT",
        )
        assert [each.port for each in listed(alice, principal="User:bob")] == [port_of(bob)]


def test_who_has_not_proved_who_it_is(secured: BrokerThread) -> None:
    with secured.wire() as admin, Wire("127.0.0.1", secured.broker.bound[1].port) as wire:
        hello(wire)
        shown = of(admin, wire)
        assert (shown.principal, shown.security_protocol) == ("User:ANONYMOUS", "SASL_PLAINTEXT")


def test_what_is_refused_is_not_done(secured: BrokerThread) -> None:
    with secured.wire() as admin, user(secured, "alice") as alice:
        topic = create_topic(admin, name="orders")
        grant(secured)
        request = produce_request(topic, (0, batch_of(b"x")), transactional_id="mine")
        for version in (9, 12, 13):
            produce(alice, topic, batch_of(b"x"), version=version)
            alice.call(request, ProduceResponse, version)
            alice.call(fetch_request(topic, (0, 0)), FetchResponse, version)
            shown = of(admin, alice)
            assert (shown.producing, shown.reading) == ([], [])
            assert shown.transactional_id is None
        # It may not be a broker, either, whatever it calls itself.
        hello(alice, "broker-7-fetcher")
        assert of(admin, alice).role == CLIENT
        grant(secured, entry(Op.READ), entry(Op.WRITE))
        assert of(admin, alice).reading == ["orders"]
        produce(alice, topic, batch_of(b"x"))
        assert of(admin, alice).producing == ["orders"]


def test_who_comes_by_tls(tmp_path: Path, start_broker: StartBroker) -> None:
    authority = Authority(tmp_path / "certificates")
    settings = tls_settings(
        authority, "PLAINTEXT://127.0.0.1:0,SSL://localhost:0", "required",
        ssl_principal_mapping_rules="RULE:^CN=([a-z]+),.*$/$1/",
    )  # fmt: skip
    broker = start_broker(settings=settings)
    port = broker.broker.bound[1].port
    context = client_context(authority, authority.client("carol"))
    with broker.wire() as observer, TlsWire("localhost", port, context) as wire:
        hello(wire)
        shown = of(observer, wire)
        assert (shown.principal, shown.listener, shown.security_protocol) == (
            "User:carol",
            "SSL",
            "SSL",
        )
        if sys.platform == "linux":
            # With the handshake.
            assert shown.received_bytes > 500


# Many ---------------------------------------------------------------------------------------------

MANY = 400


def test_many_connections_are_listed_in_slices(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    with ExitStack() as opened:
        for _ in range(MANY):
            opened.enter_context(socket.create_connection((broker.host, broker.port)))
        observer = opened.enter_context(broker.wire())
        broker.until(lambda inside: len(inside.reactor.connections) == MANY + 1)
        listed(observer)  # what is imported on first use is imported now
        count_steps(monkeypatch)
        with Turns(broker) as seen:
            clients = listed(observer)
        assert len({each.connection_id for each in clients}) == MANY + 1
        assert seen.longest < LONGEST


def test_a_session_of_many_partitions_is_looked_at_in_slices(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    with broker.wire() as wire, broker.wire() as observer:
        topic = create_topic(wire)
        many = [f"nobody-{number}" for number in range(20_000)]
        request = fetch_request(topic, (0, 0), session=(0, 0))
        for name in many:
            request.topics += fetch_request(Topic(name, bytes(16)), (0, 0)).topics
        assert wire.call(request, FetchResponse, 12).session_id
        listed(observer)
        count_steps(monkeypatch)
        with Turns(broker) as seen:
            assert of(observer, wire).reading == [topic.name]
        assert seen.longest < LONGEST
    many = 10 * ITEMS_IN_A_STEP
    session = FetchSession(1, 0.0, by_id=False)
    for index in range(many):
        session.partitions["topic", index] = WatchedPartition("topic", index)
    topics = [FetchTopic(topic=f"topic-{index}") for index in range(many)]
    for reading in (session, topics):
        assert sum(1 for _ in list_clients._topics_of(reading)) == 10


def test_who_leaves_while_the_list_is_made(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second connection is closed after the first was looked at."""
    broker = start_broker()
    with ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(socket.create_connection((broker.host, broker.port)))
        observer = opened.enter_context(broker.wire())
        broker.until(lambda inside: len(inside.reactor.connections) == 41)
        original = list_clients._Listing.client
        left: list[int] = []

        def client(listing: Any, connection: Any) -> Any:
            if not left:
                for each in list(broker.broker.reactor.connections)[::2]:
                    if each is not connection and each.address.endswith(f":{port_of(observer)}"):
                        continue
                    left.append(each.id)
                    each.close("the test closes it")
            return original(listing, connection)

        monkeypatch.setattr(list_clients._Listing, "client", client)
        shown = {each.connection_id for each in listed(observer)}
    assert len(left) > 10
    assert shown.isdisjoint(left)
    assert len(shown) == 41 - len(left)
