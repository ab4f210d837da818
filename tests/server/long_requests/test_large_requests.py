"""Requests that arrive in many pieces: receiving is linear, and memory follows what has arrived."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
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
from server_kit.long_requests import LONG
from server_kit.wire import Wire

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData
from ottla.server.broker import Broker
from ottla.server.disk import workers as workers_module
from ottla.server.network import connection as connection_module
from ottla.server.network import reactor as reactor_module
from ottla.server.network.reactor import Reactor
from ottla.server.network.slots import Buffer
from ottla.testing import BrokerProcess

MIB = 1 << 20
# The beginning of a Produce request of a hundred megabytes.
CLAIM = struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all buffers that were taken for incomplete requests. Each is filled by a copy."""
    sizes: list[int] = []
    real = Reactor.take_buffer

    def take_buffer(reactor: Reactor, size: int) -> Buffer:
        sizes.append(size)
        return real(reactor, size)

    monkeypatch.setattr(Reactor, "take_buffer", take_buffer)
    return sizes


def large_frame(wire: Wire, topic: Topic, size: int) -> bytes:
    """A Produce request of about this size, too large to be stored: received whole, then refused."""
    return wire.encode(produce_request(topic, (0, bytes(size))), 9)


def error_of(wire: Wire) -> ErrorCode:
    (answer,) = wire.receive(ProduceResponse, 9).responses[0].partition_responses
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("grows_in_place", [True, False])
def test_receiving_is_linear(
    wire: Wire,
    topic: Topic,
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    grows_in_place: bool,
) -> None:
    if grows_in_place and not reactor_module.HAS_MREMAP:
        pytest.skip("mappings do not grow in place here")
    monkeypatch.setattr(reactor_module, "HAS_MREMAP", grows_in_place)
    frame = large_frame(wire, topic, 20 * MIB)
    wire.send_raw(frame)
    assert error_of(wire) is not ErrorCode.NONE
    # Doubling; or, in place, one larger than the spare ones and what came before it.
    assert sum(taken) <= (4 * MIB if grows_in_place else 3 * len(frame))


def test_the_bytes_of_a_large_request_are_the_ones_that_were_sent(
    inside: BrokerThread, wire: Wire
) -> None:
    """Through every size of buffer, in pieces that end anywhere."""
    size = 9 * MIB
    topic = create_topic(wire, max_message_bytes=str(16 * MIB))
    value = b"".join(struct.pack(">I", number) for number in range(size // 4))
    frame = wire.encode(produce_request(topic, (0, batch_of(value))), 9)
    at, step = 0, 1
    while at < len(frame):
        wire.send_raw(frame[at : at + step])
        at += step
        step = min(3 * step, 700_001)
    assert error_of(wire) is ErrorCode.NONE
    (answer,) = wire.call(fetch_request(topic, (0, 0)), FetchResponse, 12).responses
    assert values_of(answer.partitions[0].records) == [value]
    inside.until(lambda broker: broker.reactor.partial_bytes == 0)


def test_four_of_a_hundred_megabytes_at_once(
    inside: BrokerThread, connect: Callable[[], Wire], topic: Topic
) -> None:
    peers = [connect() for _ in range(4)]
    frame = large_frame(peers[0], topic, 100_000_000)

    def send(peer: Wire) -> None:
        peer.sock.settimeout(120)
        peer.send_raw(frame)

    senders = [threading.Thread(target=send, args=(peer,), daemon=True) for peer in peers]
    for sender in senders:
        sender.start()
    for sender, peer in zip(senders, peers, strict=True):
        sender.join(120)
        assert not sender.is_alive()
        assert error_of(peer) is not ErrorCode.NONE
    inside.until(lambda broker: broker.reactor.partial_bytes == 0)


@pytest.mark.parametrize(
    ("sent", "most"),
    [
        # The header is 14 bytes.
        (14, 14),
        (1_000, 1_000),
        (8_000, 8_000),
        (9_000, 8 * 9_000),
        (20_000, 128 << 10),
        # Mapped from here on: the system gives memory page by page, as it is written to.
        (40_000, MIB),
        (MIB, 2 * MIB),
        (5 * MIB, 10 * MIB),
    ],
)
def test_memory_follows_what_arrived(
    inside: BrokerThread, wire: Wire, sent: int, most: int
) -> None:
    received = inside.run(lambda broker: broker.reactor.received_bytes)
    wire.send_raw(CLAIM + bytes(sent - len(CLAIM)))
    inside.until(lambda broker: broker.reactor.received_bytes == received + sent)
    assert sent <= inside.run(lambda broker: broker.reactor.partial_bytes) <= most
    wire.close()
    inside.until(lambda broker: broker.reactor.partial_bytes == 0)


def resident(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def catch_up(wire: Wire) -> None:
    """Return once the broker has read what others sent before: what is readable is read in one round of
    its loop, in any order."""
    for _ in range(2):
        wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)


def settled_memory(broker: BrokerProcess, enough: Callable[[int], bool]) -> int:
    """What the broker holds once it has come to rest (or after a while, if it never is enough)."""
    held = resident(broker)
    for _ in range(100):
        if enough(held):
            break
        time.sleep(0.05)
        held = resident(broker)
    return held


def test_thousands_of_begun_requests_hold_little(
    start_process: Callable[..., BrokerProcess],
) -> None:
    """Three thousand peers that sent eight bytes each, or nine thousand."""
    # A connection that finds the backlog full is tried again only after a second.
    broker = start_process(settings={"socket.listen.backlog.size": "4096"})
    count = 3_000
    begin = resident(broker)
    crowd = [socket.create_connection((broker.host, broker.port), 20) for _ in range(count)]
    with Wire(broker.host, broker.port) as wire:
        catch_up(wire)
        idle = resident(broker)
        # An idle connection is a few objects.
        assert idle - begin < count * 8_000
        for each in crowd:
            each.sendall(CLAIM[:8])
        catch_up(wire)
        assert resident(broker) - idle < count * 1_000
        for each in crowd:
            each.sendall(CLAIM[8:] + bytes(9_000))
        catch_up(wire)
        assert resident(broker) - idle < count * 80_000
        for each in crowd:
            each.close()
        settled = settled_memory(broker, lambda held: held < idle + 64 * MIB)
        assert settled < idle + 64 * MIB
        wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)


def test_refused_requests_leave_no_memory_behind(
    start_process: Callable[..., BrokerProcess],
) -> None:
    broker = start_process()
    with Wire(broker.host, broker.port) as wire:
        frame = large_frame(wire, create_topic(wire), 40 * MIB)
        for _ in range(5):
            wire.send_raw(frame)
            assert error_of(wire) is not ErrorCode.NONE
        # The buffer of a request goes right after its answer.
        settled = settled_memory(broker, lambda held: held < 60 * MIB)
        for _ in range(20):
            wire.send_raw(frame)
            assert error_of(wire) is not ErrorCode.NONE
        limit = settled + 20 * MIB
        assert settled_memory(broker, lambda held: held < limit) < limit


def test_a_byte_at_a_time(wire: Wire, topic: Topic, taken: list[int]) -> None:
    frame = wire.encode(produce_request(topic, (0, batch_of(b"x" * 2_000))), 9)
    for at in range(len(frame)):
        wire.send_raw(frame[at : at + 1])
    assert error_of(wire) is ErrorCode.NONE
    assert taken == []


# Requests that wait in a connection's buffer ----------------------------------------------------


def test_waiting_requests_are_not_copied_again_and_again(
    wire: Wire, topic: Topic, taken: list[int]
) -> None:
    """Each of them holds up those that follow: they wait in one buffer, not in one for each."""
    frames = b"".join(
        wire.encode(fetch_request(topic, (0, 0), max_wait_ms=1), 12) for _ in range(500)
    )
    assert len(frames) > 2 * connection_module.STASH_BYTES
    wire.send_raw(frames)
    first = None
    for number in range(500):
        wire.receive(FetchResponse, 12)
        first = wire.answered if first is None else first
        assert wire.answered == first + number
    # The socket may have delivered them in several pieces.
    assert sum(taken) <= 3 * len(frames)


def test_answers_that_wait_for_an_earlier_one_are_bounded(
    inside: BrokerThread,
    wire: Wire,
    connect: Callable[[], Wire],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that comes late must not pile up those of the requests that follow it."""

    async def event() -> asyncio.Event:
        return asyncio.Event()

    gate = inside.run_async(event())

    async def work(_self: Any, job: Callable[..., bytes], data: bytes) -> bytes:
        await gate.wait()
        return job(data, limit=MIB)

    monkeypatch.setattr(workers_module.Workers, "_work", work)
    monkeypatch.setattr(connection_module, "OUTPUT_LIMIT", 20_000)
    slow = create_topic(wire, compression_type="gzip")
    plain = create_topic(wire)
    fill(wire, plain, batch_of(b"x" * 5_000))
    peer = connect()
    # All of them in one read: what is not handled at once waits in the buffer.
    peer.send_raw(
        peer.encode(produce_request(slow, (0, batch_of(b"late"))), 9)
        + b"".join(peer.encode(fetch_request(plain, (0, 0)), 12) for _ in range(100))
    )
    port = peer.sock.getsockname()[1]

    def waiting(broker: Any) -> int:
        (found,) = [
            each for each in broker.reactor.connections if each.address.endswith(f":{port}")
        ]
        return sum(len(part) for slot in found.slots for part in slot.parts or ())

    inside.until(lambda broker: waiting(broker) > 20_000)
    assert wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    assert inside.run(waiting) < 20_000 + 6_000
    inside.run(lambda _: gate.set())
    assert error_of(peer) is ErrorCode.NONE
    for _ in range(100):
        (answer,) = peer.receive(FetchResponse, 12).responses
        assert values_of(answer.partitions[0].records) == [b"x" * 5_000]


# Peers that are slow while memory is short ------------------------------------------------------


def test_a_trickle_does_not_keep_the_others_waiting(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that is read in spite of the limit has to make progress, not just signs of life."""
    monkeypatch.setattr(reactor_module, "PREFERRED_SECONDS", 0.3)
    broker = start_broker(
        settings={
            "socket.request.max.bytes": str(2 * MIB),
            "queued.max.request.bytes": str(2 * MIB),
        }
    )
    with broker.wire() as admin:
        topic = create_topic(admin, max_message_bytes=str(2 * MIB))
    slow = [broker.wire() for _ in range(6)]
    for peer in slow:
        peer.send_raw(struct.pack(">ihhih", 2 * MIB, 0, 9, 1, -1) + bytes(MIB // 2))
    broker.until(lambda b: b.reactor.partial_bytes >= 2 * MIB)
    over = threading.Event()

    def trickle(peer: Wire) -> None:
        while not over.wait(0.05):
            try:
                peer.send_raw(b"\0")
            except OSError:
                return

    threads = [threading.Thread(target=partial(trickle, peer), daemon=True) for peer in slow]
    for thread in threads:
        thread.start()
    with broker.wire() as other:
        other.send_raw(other.encode(produce_request(topic, (0, batch_of(b"x" * MIB))), 9))
        assert error_of(other) is ErrorCode.NONE
    over.set()
    for thread in threads:
        thread.join()
    for peer in slow:
        peer.close()
    broker.until(lambda b: b.reactor.partial_bytes == 0)


def _many_topics(count: int) -> ProduceRequest:
    return ProduceRequest(topic_data=[TopicProduceData(name=str(each)) for each in range(count)])


MANY_NAMES: dict[str, tuple[Callable[[int], Message], int]] = {
    "Metadata": (LONG["Metadata"][0], 9),
    "Fetch": (LONG["Fetch"][0], 11),
    "Produce": (_many_topics, 9),
}


@pytest.mark.parametrize("name", MANY_NAMES)
def test_a_request_whose_client_leaves_at_once_leaves_no_memory_behind(
    name: str, inside: BrokerThread, wire: Wire
) -> None:
    """In the very turn in which it came: no step of the work on it was done."""
    wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)
    make, version = MANY_NAMES[name]
    body = memoryview(make(5_000).encode(version))

    def come_and_go(broker: Broker) -> tuple[int, int]:
        peer = "{}:{}".format(*wire.sock.getsockname())
        (connection,) = [each for each in broker.reactor.connections if each.address == peer]
        before = broker.reactor.partial_bytes
        key = ApiKey[name.upper()]
        broker.apis[key].serve(connection, body, 0, len(body), version, 1)
        during = broker.reactor.partial_bytes
        connection.close("gone")
        return before, during

    before, during = inside.run(come_and_go)
    assert during >= before + len(body)
    inside.until(lambda broker: broker.reactor.partial_bytes == before)
