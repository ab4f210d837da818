"""Connections when the network stutters, memory is short, or a handler has a bug."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
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
from ottla.server import broker as broker_module
from ottla.server.broker import Broker
from ottla.server.disk import workers as workers_module
from ottla.server.handlers.records.fetch import handler as fetch_module
from ottla.server.network import connection as connection_module
from ottla.server.network import reactor as reactor_module
from ottla.server.network.connection import Connection

MIB = 1 << 20


def connection_of(broker: Broker, wire: Wire) -> Connection:
    port = wire.sock.getsockname()[1]
    (found,) = [each for each in broker.reactor.connections if each.address.endswith(f":{port}")]
    return found


class Stutter:
    """A socket that takes what it likes: nothing, a few bytes, or all."""

    def __init__(self, sock: Any, dice: random.Random) -> None:
        self._sock = sock
        self.dice = dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def share(self, size: int) -> int:
        chance = self.dice.random()
        if chance < 0.4:
            raise BlockingIOError
        return size if chance < 0.7 else self.dice.randint(1, size)

    def send(self, data: Any, flags: int = 0) -> int:
        sent: int = self._sock.send(memoryview(data)[: self.share(len(data))], flags)
        return sent


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_when_the_socket_takes_little(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Answers of many pieces, bytes and file ranges, through a socket that refuses at any point."""
    topic = create_topic(wire, partitions=4)
    sizes = (100, 5_000, 40_000, 200_000)
    for index, size in enumerate(sizes):
        fill(wire, topic, batch_of(bytes([65 + index]) * size), index=index)
    peer = connect()
    peer.call(MetadataRequest(topics=[]), MetadataResponse, 9)
    dice = random.Random(seed)
    stutter = inside.run(lambda broker: Stutter(connection_of(broker, peer).sock, dice))
    real_sendfile = os.sendfile

    def sendfile(out: int, into: int, at: int, count: int) -> int:
        if out != stutter.fileno():
            return real_sendfile(out, into, at, count)
        return real_sendfile(out, into, at, stutter.share(count))

    def install(broker: Broker) -> None:
        connection_of(broker, peer).sock = stutter  # type: ignore[assignment]

    monkeypatch.setattr(connection_module.os, "sendfile", sendfile)
    inside.run(install)
    rounds = 30
    orders = [dice.sample(range(4), dice.randint(1, 4)) for _ in range(rounds)]
    peer.send_raw(
        b"".join(
            peer.encode(fetch_request(topic, *((index, 0) for index in order)), 12)
            for order in orders
        )
    )
    first = None
    for number, order in enumerate(orders):
        (answer,) = peer.receive(FetchResponse, 12).responses
        first = peer.answered if first is None else first
        assert peer.answered == first + number, f"seed {seed}"
        assert [(each.partition_index, values_of(each.records)) for each in answer.partitions] == [
            (index, [bytes([65 + index]) * sizes[index]]) for index in order
        ], f"seed {seed}"


def test_answers_of_many_requests_beyond_the_output_limit(
    wire: Wire, connect: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait in the connection's own buffer are not forgotten when the output is empty."""
    monkeypatch.setattr(connection_module, "OUTPUT_LIMIT", 2_000)
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"x" * 1_500))
    peer = connect()
    for _ in range(3):
        peer.send_raw(b"".join(peer.encode(fetch_request(topic, (0, 0)), 12) for _ in range(40)))
        for _ in range(40):
            (answer,) = peer.receive(FetchResponse, 12).responses
            assert values_of(answer.partitions[0].records) == [b"x" * 1_500]


def test_many_produces_wait_for_one_lane(
    wire: Wire, connect: Callable[[], Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More unanswered requests than a connection may have: the rest waits, in order."""
    monkeypatch.setattr(connection_module, "SLOT_LIMIT", 3)
    topic = create_topic(wire, compression_type="gzip")
    count = 50
    wire.send_raw(
        b"".join(
            wire.encode(produce_request(topic, (0, batch_of(b"%d" % number))), 9)
            for number in range(count)
        )
    )
    for number in range(count):
        answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, number)


@pytest.mark.parametrize("acks", [0, 1])
def test_requests_kept_aside_are_bounded(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    monkeypatch: pytest.MonkeyPatch,
    acks: int,
) -> None:
    """A producer that is quicker than the recompression is left unread, with or without acks."""
    gate = inside.run_async(_event())

    async def work(_self: Any, job: Callable[..., bytes], data: bytes) -> bytes:
        await gate.wait()
        return job(data, limit=MIB)

    monkeypatch.setattr(workers_module.Workers, "_work", work)
    monkeypatch.setattr(connection_module, "HELD_LIMIT", 200_000)
    topic = create_topic(wire, compression_type="gzip")
    peer = connect()
    peer.sock.settimeout(0.3)
    # As many small ones as slots, or few large ones.
    for size in (10, 90_000):
        frame = peer.encode(produce_request(topic, (0, batch_of(b"x" * size)), acks=acks), 9)
        peer.flood(frame)
        connection = inside.run(partial(connection_of, wire=peer))
        kept, slots = connection.held_bytes, len(connection.slots)
        assert 0 < kept <= 200_000 + 91_000
        assert 0 < slots <= connection_module.SLOT_LIMIT
        assert wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
        # Reset, so that what it has sent is not worked off.
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        peer = connect()
        peer.sock.settimeout(0.3)
    inside.run(lambda _: gate.set())
    inside.until(lambda broker: not broker.lanes.open)
    inside.until(lambda broker: broker.reactor.partial_bytes == 0)


async def _event() -> asyncio.Event:
    return asyncio.Event()


# Memory -----------------------------------------------------------------------------------------

SHORT_OF_MEMORY = {
    "socket.request.max.bytes": str(2 * MIB),
    "queued.max.request.bytes": str(2 * MIB),
}


def test_large_requests_do_not_block_each_other_for_good(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Half-arrived requests exceed what may be held: some wait, all are answered in the end."""
    broker = start_broker(settings=SHORT_OF_MEMORY)
    with broker.wire() as admin:
        topic = create_topic(admin, max_message_bytes=str(2 * MIB))
    peers = [broker.wire() for _ in range(4)]
    frames = [
        peer.encode(produce_request(topic, (0, batch_of(bytes([65 + number]) * (3 * MIB // 2)))), 9)
        for number, peer in enumerate(peers)
    ]
    # All are half-way before the first is whole.
    half = len(frames[0]) // 2
    for peer, frame in zip(peers, frames, strict=True):
        peer.sock.setblocking(False)
        try:
            peer.sock.send(frame[:half])
        except BlockingIOError:
            raise AssertionError("the first half should fit into the socket") from None
    broker.until(lambda b: b.reactor.partial_bytes > 2 * MIB)
    import threading

    def rest(peer: Wire, frame: bytes) -> None:
        peer.sock.settimeout(20)
        peer.send_raw(frame[half:])

    senders = [
        threading.Thread(target=rest, args=pair, daemon=True)
        for pair in zip(peers, frames, strict=True)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(20)
        assert not sender.is_alive(), "a sender was never read from again"
    offsets = set()
    for peer in peers:
        answer = peer.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        assert answer.error_code == 0
        offsets.add(answer.base_offset)
        peer.close()
    assert offsets == {0, 1, 2, 3}
    broker.until(lambda b: b.reactor.partial_bytes == 0)


def test_small_requests_pass_while_memory_is_short(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(settings=SHORT_OF_MEMORY)
    peers = [broker.wire() for _ in range(12)]
    for peer in peers:
        peer.sock.settimeout(1.0)
        try:
            peer.send_raw(struct.pack(">ihhih", 2 * MIB, 0, 9, 1, -1) + bytes(MIB))
        except TimeoutError:
            pass  # left unread, as it should be
    broker.until(lambda b: b.reactor.partial_bytes >= 2 * MIB)
    assert broker.run(lambda b: b.reactor.partial_bytes) < 10 * MIB
    with broker.wire() as other:
        assert other.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    for peer in peers:
        peer.close()
    broker.until(lambda b: b.reactor.partial_bytes == 0)


def test_a_silent_preferred_connection_is_closed(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One half-sent request is read in spite of the limit; but not if its sender keeps the rest."""
    monkeypatch.setattr(reactor_module, "PREFERRED_SECONDS", 0.2)
    broker = start_broker(settings=SHORT_OF_MEMORY)
    with broker.wire() as admin:
        topic = create_topic(admin, max_message_bytes=str(2 * MIB))
    silent = [broker.wire() for _ in range(6)]
    for peer in silent:
        peer.sock.settimeout(1.0)
        peer.send_raw(struct.pack(">ihhih", 2 * MIB, 0, 9, 1, -1) + bytes(MIB // 2))
    broker.until(lambda b: b.reactor.partial_bytes >= 2 * MIB)
    with broker.wire() as other:
        frame = other.encode(produce_request(topic, (0, batch_of(b"x" * MIB))), 9)
        other.send_raw(frame)
        assert other.receive(ProduceResponse, 9).responses[0].partition_responses[0].error_code == 0
    for peer in silent:
        peer.close()


# Our own mistakes -------------------------------------------------------------------------------


@pytest.mark.complains
def test_a_bug_in_a_handler_costs_one_connection(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    topic: Topic,
    complaints: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = fetch_module.Fetch.start

    def start(fetch: fetch_module.Fetch) -> None:
        if fetch.request.topics[0].partitions[0].fetch_offset == 13:
            raise KeyError("a bug")
        real(fetch)

    monkeypatch.setattr(fetch_module.Fetch, "start", start)
    victim = connect()
    victim.send(fetch_request(topic, (0, 13)), 12)
    assert victim.is_closed()
    assert any("handler failed: api=FETCH" in line for line in complaints)
    wire.call(fetch_request(topic, (0, 0)), FetchResponse, 12)


@pytest.mark.complains
@pytest.mark.parametrize("how", ["appended", "timed out"])
def test_a_bug_in_a_waiting_fetch_costs_one_connection(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    complaints: list[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    topic = create_topic(wire, partitions=2)
    victim, witness = connect(), connect()
    wait = 20_000 if how == "appended" else 50
    victim.send(fetch_request(topic, (1, 0), (0, 0), max_wait_ms=wait), 12)
    witness.send(fetch_request(topic, (0, 0), max_wait_ms=20_000), 12)
    inside.until(lambda broker: any(len(each.watched) == 1 for each in broker.waiting_fetches))
    real = fetch_module.Fetch._look

    def look(fetch: fetch_module.Fetch, at: list[Any]) -> Any:
        if len(fetch.watched) == 2:
            raise KeyError("a bug")
        return real(fetch, at)

    monkeypatch.setattr(fetch_module.Fetch, "_look", look)
    if how == "appended":
        fill(wire, topic, batch_of(b"a"))
    assert victim.is_closed()
    if how == "timed out":
        fill(wire, topic, batch_of(b"a"))
    (answer,) = witness.receive(FetchResponse, 12).responses
    assert values_of(answer.partitions[0].records) == [b"a"]
    assert any("handler failed: api=FETCH" in line for line in complaints)
    inside.until(lambda broker: not broker.waiting_fetches)


@pytest.mark.complains
def test_a_bug_in_a_lane_fails_one_append(
    inside: BrokerThread, wire: Wire, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.server.disk import worker_jobs as jobs

    topic = create_topic(wire, compression_type="lz4")
    real = jobs.repack

    def repack(batch: bytes, **options: Any) -> bytes:
        if b"trouble" in batch:
            raise KeyError("a bug")
        return real(batch, **options)

    monkeypatch.setattr(jobs, "repack", repack)
    wire.send_raw(
        b"".join(
            wire.encode(produce_request(topic, (0, batch_of(value))), 9)
            for value in (b"a", b"trouble", b"b")
        )
    )
    answers = [wire.receive(ProduceResponse, 9).responses[0].partition_responses[0] for _ in "123"]
    assert [each.error_code for each in answers] == [0, -1, 0]
    assert [each.base_offset for each in answers] == [0, -1, 1]
    assert any("append failed" in line for line in complaints)


def test_a_read_that_fails_spoils_one_partition(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(wire, partitions=2)
    for index in (0, 1):
        fill(wire, topic, batch_of(b"a"), index=index)
    reads = inside.broker.reads
    real = type(reads).take
    calls = []

    def take(self: Any, piece: Any) -> Any:
        calls.append(piece)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return real(self, piece)

    monkeypatch.setattr(type(reads), "take", take)
    (answer,) = wire.call(fetch_request(topic, (0, 0), (1, 0)), FetchResponse, 12).responses
    assert [each.error_code for each in answer.partitions] == [56, 0]
    assert values_of(answer.partitions[1].records) == [b"a"]


# Peers that leave while they wait ---------------------------------------------------------------


def waits_unread(broker: Broker, wire: Wire) -> bool:
    """A Fetch waits, and a request after it keeps the connection from being read."""
    return bool(broker.waiting_fetches) and not connection_of(broker, wire).is_read


def test_a_peer_that_left_is_not_waited_for(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Fetch may wait for weeks, and the request after it hides from us that it is gone."""
    monkeypatch.setattr(broker_module, "HUNG_UP_SECONDS", 0.05)
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire)
        for hidden in (True, False):
            peer = broker.wire()
            peer.send(fetch_request(topic, (0, 0), max_wait_ms=2**31 - 1), 12)
            if hidden:
                broker.until(lambda b: bool(b.waiting_fetches))
                peer.send(MetadataRequest(topics=[]), 9)
                broker.until(partial(waits_unread, wire=peer))
            peer.close()
            broker.until(lambda b: len(b.reactor.connections) == 1)
            broker.until(lambda b: not b.waiting_fetches)


def test_a_peer_that_closed_its_own_side_is_answered(inside: BrokerThread, wire: Wire) -> None:
    topic = create_topic(wire)
    with inside.wire() as peer:
        peer.send(fetch_request(topic, (0, 0), max_wait_ms=20_000), 12)
        inside.until(lambda b: bool(b.waiting_fetches))
        peer.send(MetadataRequest(topics=[]), 9)
        inside.until(partial(waits_unread, wire=peer))
        peer.sock.shutdown(socket.SHUT_WR)
        # Once is not enough to give it up.
        inside.run(lambda broker: broker.reactor.close_hung_up())
        fill(wire, topic, batch_of(b"still wanted"))
        (answer,) = peer.receive(FetchResponse, 12).responses
        assert values_of(answer.partitions[0].records) == [b"still wanted"]
        assert peer.receive(MetadataResponse, 9).brokers
        assert peer.is_closed()
