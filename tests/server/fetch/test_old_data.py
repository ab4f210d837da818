"""Old data are sent in small pieces, and have a share of the loop's time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fetch, fill, values_of
from server_kit.security import Authority, TlsWire, client_context, tls_settings
from server_kit.wire import Wire

from ottla.server.disk import old_data, reads
from ottla.server.disk.old_data import OldData
from ottla.server.network import connection
from ottla.server.network.loop import BrokerLoop

# In a broker -----------------------------------------------------------------------------------------


@pytest.fixture(params=["plain", "TLS"])
def wire(
    request: pytest.FixtureRequest, start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> Iterator[Wire]:
    if request.param == "plain":
        with start_broker().wire() as wire:
            yield wire
        return
    authority = Authority(tmp_path / "certificates")
    broker = start_broker(settings=tls_settings(authority, "SSL://localhost:0"))
    with TlsWire("localhost", broker.port, client_context(authority)) as wire:
        yield wire


@pytest.fixture
def topic(wire: Wire) -> Topic:
    topic = create_topic(wire, segment_bytes=str(1 << 20))
    fill(wire, topic, *(batch_of(b"%02d" % number * 30_000) for number in range(60)))
    return topic


def read_all(wire: Wire, topic: Topic) -> None:
    offset, values = 0, []
    while offset < 60:
        found = values_of(fetch(wire, topic, offset, max_bytes=200_000).records)
        values += found
        offset += len(found)
    assert values == [b"%02d" % number * 30_000 for number in range(60)]


def test_old_data_is_sent_in_pieces(
    wire: Wire, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads.Reads, "take", lambda *_: None)
    sizes = []
    send_up_to = connection.Connection._send_up_to

    def noted(self: connection.Connection, part: object, most: int) -> int:
        sizes.append(send_up_to(self, part, most))  # type: ignore[arg-type]
        return sizes[-1]

    monkeypatch.setattr(connection.Connection, "_send_up_to", noted)
    read_all(wire, topic)
    assert max(sizes) <= old_data.PIECE_BYTES
    assert sum(sizes) > 60 * 60_000


def test_the_turn_in_which_an_answer_is_made_sends_nothing_of_it(
    wire: Wire, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes its time; the sockets of others are looked at in between."""
    monkeypatch.setattr(reads.Reads, "take", lambda *_: None)
    order: list[str] = []
    drain_slots = connection.Connection.drain_slots
    send_up_to = connection.Connection._send_up_to

    def made(self: connection.Connection) -> None:
        order.append("begun")
        drain_slots(self)
        order.append("made")

    def sent(self: connection.Connection, part: object, most: int) -> int:
        order.append("sent")
        return send_up_to(self, part, most)  # type: ignore[arg-type]

    monkeypatch.setattr(connection.Connection, "drain_slots", made)
    monkeypatch.setattr(connection.Connection, "_send_up_to", sent)
    fetch(wire, topic, 0, max_bytes=200_000)
    assert "begun sent" not in " ".join(order)
    assert order.count("sent") >= 2


# The share -------------------------------------------------------------------------------------------


class Clock:
    """In the place of a loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)


def share(clock: Clock, produced: list[int]) -> OldData:
    return OldData(clock, lambda: produced[0])  # type: ignore[arg-type]


def test_one_connection_sends_old_data_in_a_turn_of_the_loop() -> None:
    clock = Clock()
    shared = share(clock, [0])
    assert [shared.may_send() for _ in range(3)] == [True, False, False]
    (end_of_turn,) = clock.soon
    end_of_turn()
    assert shared.may_send()


def test_who_is_sent_old_data_gives_way_to_others() -> None:
    loop = BrokerLoop()
    called: list[str] = []
    pairs = {name: socket.socketpair() for name in ("reader", "another reader", "producer")}
    shared = OldData(loop, lambda: 0)
    for name, (ours, theirs) in pairs.items():
        loop.add_reader(ours, called.append, name)
        theirs.send(b"a request")
        if name != "producer":
            shared.sent(ours.fileno(), 64 << 10, 1e-4)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    for pair in pairs.values():
        for each in pair:
            each.close()
    assert called == ["producer", "reader"]


def test_without_producers_nobody_waits() -> None:
    clock = Clock()
    shared = share(clock, [0])
    assert [shared.delay(1 << 20) for _ in range(100)] == [0.0] * 100


def test_readers_of_old_data_stay_within_their_share() -> None:
    clock, produced = Clock(), [0]
    shared = share(clock, produced)
    cost = 2e-9
    for _ in range(1000):
        shared.sent(7, 64 << 10, (64 << 10) * cost)
    used, size, began = 0.0, 1 << 20, clock.now
    while clock.now - began < 10:
        produced[0] += 1
        clock.now += shared.delay(size)
        used += size * cost
    assert used / (clock.now - began) == pytest.approx(old_data.SHARE, rel=0.01)


def test_the_share_ends_with_the_producers() -> None:
    clock, produced = Clock(), [0]
    shared = share(clock, produced)
    produced[0] = 1
    for _ in range(50):
        shared.delay(1 << 20)
    assert shared.delay(1 << 20) > 0
    clock.now += 2 * old_data.WRITTEN_SECONDS
    assert shared.delay(1 << 20) == 0.0
