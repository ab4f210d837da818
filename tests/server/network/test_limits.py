"""Limits: connections in all and per address, idle ones, sizes of requests."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    batch_of,
    create_topic,
    fetch_request,
    fill,
    produce_request,
    values_of,
)
from server_kit.wire import Wire

from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse

StartBroker = Callable[..., BrokerThread]


def answered(wire: Wire) -> bool:
    return bool(wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers)


def refused(broker: BrokerThread, source: str = "127.0.0.1") -> bool:
    """Whether a new connection is closed before anything is answered."""
    with socket.create_connection((broker.host, broker.port), 20, (source, 0)) as sock:
        try:
            sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return sock.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True


def test_connections_in_all(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"max.connections": "3"})
    crowd = [broker.wire() for _ in range(3)]
    assert all(answered(each) for each in crowd)
    assert refused(broker)
    assert all(answered(each) for each in crowd)
    crowd[0].close()
    broker.until(lambda b: len(b.reactor.connections) == 2)
    assert not refused(broker)
    for each in crowd:
        each.close()


def test_brokers_are_not_kept_out_by_clients(start_broker: StartBroker) -> None:
    """As in Kafka (KIP-402): beyond the limit, a client's connection makes room for a broker's."""
    broker = start_broker(
        settings={
            "listeners": "CLIENTS://127.0.0.1:0,INSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "max.connections": "3",
        }
    )

    def as_broker() -> Wire:
        return Wire("127.0.0.1", broker.broker.bound[1].port)

    crowd = [broker.wire() for _ in range(3)]
    assert all(answered(each) for each in crowd)
    assert refused(broker)
    # The second is idle longest then.
    broker.until(lambda b: b.loop.time() > max(each.active_at for each in b.reactor.connections))
    assert all(answered(each) for each in (crowd[0], crowd[2]))
    brokers = [as_broker()]
    assert answered(brokers[0])
    assert crowd[1].is_closed()
    assert all(answered(each) for each in (crowd[0], crowd[2]))
    # All of it may be brokers', and more: there is no limit for them.
    for _ in range(4):
        brokers.append(as_broker())
        assert all(answered(each) for each in brokers)
    assert all(each.is_closed() for each in crowd)
    assert refused(broker)
    for each in brokers:
        each.close()


def test_connections_per_address(start_broker: StartBroker) -> None:
    broker = start_broker(
        settings={
            "max.connections.per.ip": "2",
            "max.connections.per.ip.overrides": "127.0.0.5:1,127.0.0.6:0",
        }
    )
    crowd = [broker.wire() for _ in range(2)]
    assert all(answered(each) for each in crowd)
    assert refused(broker)
    assert not refused(broker, "127.0.0.4")
    assert refused(broker, "127.0.0.6")
    with socket.create_connection((broker.host, broker.port), 20, ("127.0.0.5", 0)):
        broker.until(lambda b: len(b.reactor.connections) == 3)
        assert refused(broker, "127.0.0.5")
    broker.until(lambda b: len(b.reactor.connections) == 2)
    assert not refused(broker, "127.0.0.5")
    for each in crowd:
        each.close()


def test_an_address_of_ipv4_is_the_same_on_a_socket_for_both(start_broker: StartBroker) -> None:
    """A listener without a host takes both kinds, and calls one of IPv4 by another name."""
    broker = start_broker(
        settings={
            "listeners": "PLAINTEXT://:0",
            "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
            "max.connections.per.ip.overrides": "127.0.0.6:0",
        }
    )
    assert refused(broker, "127.0.0.6")
    assert not refused(broker, "127.0.0.4")


def test_limits_change_while_running(start_broker: StartBroker) -> None:
    from ottla.protocol.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    broker = start_broker()
    with broker.wire() as wire:
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=4,
                    resource_name="",
                    configs=[AlterableConfig(name="max.connections", value="1")],
                )
            ]
        )
        response = wire.call(request, IncrementalAlterConfigsResponse, 1)
        assert response.responses[0].error_code == 0
        assert refused(broker)


def test_idle_connections_are_closed(start_broker: StartBroker) -> None:
    """The silent one goes; one that is served, or waits for records, stays."""
    broker = start_broker(settings={"connections.max.idle.ms": "1500"})
    with broker.wire() as busy, broker.wire() as waiting, broker.wire() as silent:
        topic = create_topic(busy)
        waiting.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
        half = broker.wire()
        half.send_raw(b"\0\0\1\0")
        silent.sock.settimeout(0.05)
        closed = False
        while not closed:
            assert answered(busy)
            try:
                closed = silent.is_closed()
            except TimeoutError:
                continue
        assert half.is_closed()
        fill(busy, topic, batch_of(b"at last"))
        (answer,) = waiting.receive(FetchResponse, 12).responses[0].partitions
        assert values_of(answer.records) == [b"at last"]
        assert answered(waiting)


def test_size_of_requests(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"socket.request.max.bytes": "5000"})
    with broker.wire() as wire:
        topic = create_topic(wire)
        frame = wire.encode(produce_request(topic, (0, batch_of(b"x" * 4800))), 9)
        slack = 5000 - (len(frame) - 4)
        assert slack > 0
        fits = wire.encode(produce_request(topic, (0, batch_of(b"x" * (4800 + slack)))), 9)
        assert len(fits) - 4 == 5000
        wire.send_raw(fits)
        assert wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].error_code == 0
        too_large = wire.encode(produce_request(topic, (0, batch_of(b"x" * (4801 + slack)))), 9)
        wire.send_raw(too_large)
        assert wire.is_closed()


@pytest.mark.parametrize("size", [5001, 2**31 - 1, -1, 0, 9])
def test_the_length_alone_is_enough(start_broker: StartBroker, size: int) -> None:
    broker = start_broker(settings={"socket.request.max.bytes": "5000"})
    with broker.wire() as wire:
        wire.send_raw(struct.pack(">i", size))
        assert wire.is_closed()


def test_many_connections(start_broker: StartBroker) -> None:
    broker = start_broker()
    crowd = [broker.wire() for _ in range(300)]
    for each in crowd:
        each.send(MetadataRequest(topics=[]), 9)
    for each in crowd:
        assert each.receive(MetadataResponse, 9).brokers
    for each in crowd:
        each.close()
    broker.until(lambda b: not b.reactor.connections)
    assert broker.run(lambda b: dict(b.reactor._by_address)) == {}
