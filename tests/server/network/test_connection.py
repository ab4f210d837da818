"""Connections: frames whole, split and many at once; order; peers that are slow, silent or wrong."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch,
    fetch_request,
    fill,
    produce_request,
    read_all,
    values_of,
    whole_batches,
)
from server_kit.wire import Wire

from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.server.broker import Broker
from ottla.server.network import connection as connection_module
from ottla.server.network import reactor as reactor_module

MIB = 1 << 20


def answered(wire: Wire) -> bool:
    return bool(wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers)


# Frames -----------------------------------------------------------------------------------------


def test_peers_that_are_gone_are_noticed(inside: BrokerThread, wire: Wire) -> None:
    assert answered(wire)
    kept_alive = inside.run(
        lambda broker: {
            each.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
            for each in broker.reactor.connections
        }
    )
    assert kept_alive == {True}


def test_a_request_in_single_bytes(wire: Wire, topic: Topic) -> None:
    frame = wire.encode(produce_request(topic, (0, batch_of(b"a", b"b"))), 9)
    for at in range(len(frame)):
        wire.send_raw(frame[at : at + 1])
    answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert read_all(wire, topic) == [b"a", b"b"]


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 13, 14, 15, 60])
def test_two_requests_cut_at_odd_places(wire: Wire, topic: Topic, cut: int) -> None:
    """Each write arrives by itself: the broker has answered what was whole before the rest comes."""
    frames = [
        wire.encode(produce_request(topic, (0, batch_of(value))), 9) for value in (b"a", b"b")
    ]
    wire.send_raw(frames[0] + frames[1][:cut])
    assert wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].base_offset == 0
    wire.send_raw(frames[1][cut:])
    assert wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].base_offset == 1
    assert read_all(wire, topic) == [b"a", b"b"]


def test_many_requests_in_one_write(wire: Wire, topic: Topic) -> None:
    count = 500
    wire.send_raw(
        b"".join(
            wire.encode(produce_request(topic, (0, batch_of(b"%d" % number))), 9)
            for number in range(count)
        )
    )
    first = None
    for number in range(count):
        answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        first = wire.answered if first is None else first
        assert wire.answered == first + number
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert read_all(wire, topic) == [b"%d" % number for number in range(count)]


def test_requests_larger_than_the_shared_buffer(wire: Wire, connect: Callable[[], Wire]) -> None:
    topic = create_topic(wire, max_message_bytes=str(8 * MIB))
    values = [bytes([number]) * (number * MIB) for number in (1, 2, 5)]
    for value in values:
        wire.send(produce_request(topic, (0, batch_of(value))), 9)
    for offset in range(len(values)):
        answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, offset)
    assert read_all(connect(), topic) == values


def test_different_requests_are_answered_in_their_order(wire: Wire, topic: Topic) -> None:
    """Some of them wait (a topic is made, a fetch runs into its time), none is overtaken."""
    fill(wire, topic, batch_of(b"a"))
    sent = [
        wire.send(produce_request(topic, (0, batch_of(b"b"))), 9),
        wire.send(fetch_request(topic, (0, 2), max_wait_ms=50), 12),
        wire.send(produce_request(topic, (0, batch_of(b"c"))), 9),
        wire.send(MetadataRequest(topics=None), 9),
        wire.send(fetch_request(topic, (0, 0)), 12),
        wire.send(ListOffsetsRequest(), 6),
    ]
    got = []
    for response, version in (
        (ProduceResponse, 9),
        (FetchResponse, 12),
        (ProduceResponse, 9),
        (MetadataResponse, 9),
        (FetchResponse, 12),
        (ListOffsetsResponse, 6),
    ):
        wire.receive(response, version)
        got.append(wire.answered)
    assert got == sent


def test_pipelined_fetches_wait_one_after_the_other(
    wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    for offset in (0, 1):
        wire.send(fetch_request(topic, (0, offset), max_wait_ms=20_000), 12)
    other = connect()
    fill(other, topic, batch_of(b"a"))
    assert values_of(wire.receive(FetchResponse, 12).responses[0].partitions[0].records) == [b"a"]
    fill(other, topic, batch_of(b"b"))
    assert values_of(wire.receive(FetchResponse, 12).responses[0].partitions[0].records) == [b"b"]


def test_null_client_id_and_a_long_one(wire: Wire) -> None:
    for client_id in (None, "", "x" * 32767):
        wire.send(MetadataRequest(topics=[]), 9, client_id)
        assert wire.receive(MetadataResponse, 9).brokers


def test_bytes_behind_a_request_are_ignored(wire: Wire) -> None:
    """Some clients send some; Kafka does not mind."""
    for version in (0, 9):
        frame = wire.encode(MetadataRequest(topics=[]), version) + b"\xffabc"
        wire.send_raw((len(frame) - 4).to_bytes(4, "big") + frame[4:])
        assert wire.receive(MetadataResponse, version).brokers


# What is no request -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x09" + b"x" * 9,
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        # a client id longer than its frame
        struct.pack(">ihhih", 14, 18, 0, 1, 100) + b"abcd",
        # tagged fields of the header that run past the frame
        struct.pack(">ihhih", 13, 18, 3, 1, -1) + b"\x01\x00\x7f",
        # a header cut short before its tagged fields
        struct.pack(">ihhih", 10, 18, 3, 1, -1),
        # a body that is too short
        struct.pack(">ihhih", 12, 3, 1, 1, -1) + b"\0\0",
    ],
)
def test_garbage_closes_that_connection_only(
    wire: Wire, connect: Callable[[], Wire], garbage: bytes
) -> None:
    victim = connect()
    victim.send_raw(garbage)
    assert victim.is_closed()
    assert answered(wire)


@pytest.mark.parametrize(("key", "version"), [(1, 19), (0, 14), (999, 0), (-1, 0), (3, -1), (7, 0)])
def test_unknown_api_or_version_closes_that_connection_only(
    wire: Wire, connect: Callable[[], Wire], key: int, version: int
) -> None:
    victim = connect()
    victim.send_raw(struct.pack(">ihhih", 10, key, version, 1, -1))
    assert victim.is_closed()
    assert answered(wire)


def test_a_client_cannot_write_lines_into_the_log(
    inside: BrokerThread, connect: Callable[[], Wire], caplog: pytest.LogCaptureFixture
) -> None:
    # Whatever other tests in this process have set.
    caplog.set_level(logging.WARNING, logger="ottla")
    victim = connect()
    victim.send(MetadataRequest(topics=[]), 9, "me\n2026-01-01 ERROR all is lost")
    victim.receive(MetadataResponse, 9)
    peer = "peer={}:{} ".format(*victim.sock.getsockname())
    victim.send_raw(b"\xff\xff\xff\xff")
    assert victim.is_closed()
    # What brokers of earlier tests in this process kept back may be told now, too.
    told = [each.getMessage() for each in caplog.records if peer in each.getMessage()]
    (line,) = [each for each in told if "malformed" in each]
    assert "all is lost" in line
    assert "\n" not in line


def test_answers_before_the_garbage_are_sent(wire: Wire, topic: Topic) -> None:
    """The broker closes when it meets the garbage; what it had answered before is not lost."""
    frame = wire.encode(ApiVersionsRequest(), 0)
    wire.send_raw(frame)
    assert wire.receive(ApiVersionsResponse, 0).api_keys
    wire.send_raw(wire.encode(ApiVersionsRequest(), 0) + b"\xff\xff\xff\xff" + bytes(20))
    try:
        assert wire.receive(ApiVersionsResponse, 0).api_keys
    except (EOFError, ConnectionResetError):
        pass  # the garbage and the request came in one read: both may go
    assert wire.is_closed()


# Peers that hold things up ----------------------------------------------------------------------


def test_half_a_frame_then_silence(wire: Wire, connect: Callable[[], Wire], topic: Topic) -> None:
    frame = wire.encode(produce_request(topic, (0, batch_of(b"x" * 1000))), 9)
    silent = []
    for cut in (1, 4, 12, 100, len(frame) - 1):
        peer = connect()
        peer.send_raw(frame[:cut])
        silent.append((peer, cut))
    for _ in range(20):
        fill(wire, topic, batch_of(b"served"))
    for peer, cut in silent:
        peer.send_raw(frame[cut:])
        assert peer.receive(ProduceResponse, 9).responses[0].partition_responses[0].error_code == 0


def test_a_length_is_not_believed(inside: BrokerThread, connect: Callable[[], Wire]) -> None:
    """A hundred megabytes announced, a few bytes sent: memory goes by what came."""
    before = inside.run(lambda broker: broker.reactor.partial_bytes)
    peers = [connect() for _ in range(8)]
    for peer in peers:
        peer.send_raw(struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1) + bytes(100))
    inside.until(lambda broker: broker.reactor.partial_bytes - before >= len(peers) * 114)
    held = inside.run(lambda broker: broker.reactor.partial_bytes) - before
    assert held <= len(peers) * reactor_module.SCRATCH_BYTES
    for peer in peers:
        peer.close()
    inside.until(lambda broker: broker.reactor.partial_bytes == before)


def test_a_peer_that_never_reads(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    """It asks for far more than it takes: its requests stay unread, the others are served."""
    topic = create_topic(wire, max_message_bytes=str(2 * MIB))
    for number in range(8):
        fill(wire, topic, batch_of(bytes([number]) * MIB))
    greedy = connect()
    greedy.sock.settimeout(0.2)
    request = greedy.encode(fetch_request(topic, (0, 0)), 12)
    greedy.flood(request)
    name = greedy.sock.getsockname()[1]

    def owed(broker: object) -> int:
        (found,) = [
            each for each in inside.broker.reactor.connections if each.address.endswith(f":{name}")
        ]
        return found.out_bytes

    # One answer may take it over the limit; more are not made.
    assert 0 < inside.run(owed) <= connection_module.OUTPUT_LIMIT + 9 * MIB
    assert fetch(wire, topic, 0, max_bytes=1).error_code == 0
    assert answered(wire)


@pytest.mark.parametrize("partitions", [1, 3])
def test_large_answers_to_a_slow_reader(
    wire: Wire, connect: Callable[[], Wire], partitions: int
) -> None:
    """Answers of several file ranges with bytes between them arrive whole through a small window."""
    topic = create_topic(wire, partitions=partitions, max_message_bytes=str(2 * MIB))
    for index in range(partitions):
        for number in range(3):
            fill(wire, topic, batch_of(bytes([65 + index, 48 + number]) * (MIB // 2)), index=index)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    raw.connect(wire.sock.getpeername())
    slow = connect()
    slow.sock.close()
    slow.sock = raw
    raw.settimeout(20)
    rounds = 4
    positions = [(index, 0) for index in range(partitions)]
    for _ in range(rounds):
        slow.send(fetch_request(topic, *positions), 12)
    for _ in range(rounds):
        (answer,) = slow.receive(FetchResponse, 12).responses
        got = {each.partition_index: each.records for each in answer.partitions}
        for index in range(partitions):
            assert values_of(got[index]) == [
                bytes([65 + index, 48 + number]) * (MIB // 2) for number in range(3)
            ]


def test_small_answers_to_a_slow_reader(wire: Wire, connect: Callable[[], Wire]) -> None:
    """Many answers that are no file ranges, more than the socket takes at once."""
    topic = create_topic(wire, partitions=2)
    for index in (0, 1):
        fill(wire, topic, *(batch_of(b"%d" % number * 700) for number in range(9)), index=index)
    slow = connect()
    slow.sock.settimeout(20)
    request = fetch_request(topic, (0, 0), (1, 0), partition_max_bytes=12_000)
    expected = wire.call(request, FetchResponse, 12)
    rounds = 1500
    frames = b"".join(slow.encode(request, 12) for _ in range(rounds))
    sender = threading.Thread(target=slow.sock.sendall, args=(frames,), daemon=True)
    sender.start()
    first = None
    for number in range(rounds):
        got = slow.receive(FetchResponse, 12)
        first = slow.answered if first is None else first
        assert slow.answered == first + number
        assert got == expected
    sender.join(20)


def test_a_peer_that_leaves_while_it_waits(
    inside: BrokerThread, connect: Callable[[], Wire], topic: Topic
) -> None:
    peer = connect()
    peer.send(fetch_request(topic, (0, 0), max_wait_ms=60_000), 12)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    port = peer.sock.getsockname()[1]
    peer.close()
    inside.until(
        lambda broker: (
            not any(each.address.endswith(f":{port}") for each in broker.reactor.connections)
        )
    )
    fill(connect(), topic, batch_of(b"a"))
    inside.until(lambda broker: not broker.waiting_fetches)


def test_a_peer_that_leaves_with_requests_unanswered(
    wire: Wire, connect: Callable[[], Wire], topic: Topic
) -> None:
    for _ in range(5):
        peer = connect()
        frames = b"".join(
            peer.encode(produce_request(topic, (0, batch_of(b"x" * 500))), 9) for _ in range(50)
        )
        peer.send_raw(frames)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert answered(wire)
    # Whatever was taken is whole.
    for batch in whole_batches(fetch(wire, topic, 0).records):
        assert values_of(batch) == [b"x" * 500]


def test_answers_that_are_gathered_leave_together(inside: BrokerThread, wire: Wire) -> None:
    """One system call for those of one connection, and nothing before it."""
    assert answered(wire)
    port = wire.sock.getsockname()[1]

    def fill_two(broker: Broker) -> list[int]:
        (connection,) = (
            each for each in broker.reactor.connections if each.address.endswith(f":{port}")
        )
        slots = [connection.reserve(), connection.reserve()]
        waiting = []
        broker.reactor.gather()
        for slot, text in zip(slots, (b"one", b"two"), strict=True):
            slot.fill([struct.pack(">i", len(text)) + text])
            waiting.append(connection.out_bytes)
        broker.reactor.send_gathered()
        waiting.append(connection.out_bytes)
        # From now on answers leave at once again.
        connection.reserve().fill([struct.pack(">i", 5) + b"three"])
        waiting.append(connection.out_bytes)
        return waiting

    assert inside.run(fill_two) == [7, 14, 0, 0]
    assert [wire.frame() for _ in range(3)] == [b"one", b"two", b"three"]
