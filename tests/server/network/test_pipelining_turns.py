"""A peer that sends thousands of requests at once does not keep all others waiting."""

from __future__ import annotations

import itertools
import threading

import pytest
from server_kit.broker_thread import BrokerThread

from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.server.broker import Broker
from ottla.server.network import connection

MANY = 5000


class Turns:
    """How many requests were handled in each turn of the loop."""

    def __init__(self) -> None:
        self.most = 0
        self._before = 0
        self._is_on = True

    def begin(self, broker: Broker) -> None:
        self._before = broker.apis[ApiKey.API_VERSIONS].requests
        self._tick(broker)

    def end(self, _: Broker) -> None:
        self._is_on = False

    def _tick(self, broker: Broker) -> None:
        now = broker.apis[ApiKey.API_VERSIONS].requests
        self.most = max(self.most, now - self._before)
        self._before = now
        if self._is_on:
            broker.loop.call_soon(self._tick, broker)


@pytest.mark.parametrize("size", [0, 200], ids=["small", "with long client ids"])
def test_others_have_their_turn_in_a_flood(
    inside: BrokerThread, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # Every look at the clock finds that the time is over.
    seconds = itertools.count(1)
    monkeypatch.setattr(connection, "clock", lambda: float(next(seconds)))
    turns = Turns()
    request = ApiVersionsRequest()
    with inside.wire() as wire:
        frames = b"".join(
            encode_request(request, 0, number, "c" * size) for number in range(1, MANY + 1)
        )
        inside.run(turns.begin)
        # It reads while it sends: a broker does not go on reading from a peer that takes no answers.
        sending = threading.Thread(target=wire.sock.sendall, args=(frames,))
        sending.start()
        for number in range(1, MANY + 1):
            wire.receive(ApiVersionsResponse, 0)
            assert wire.answered == number
        sending.join()
        inside.run(turns.end)
        # The connection is read on afterwards.
        wire.call(request, ApiVersionsResponse, 0)
    # The loop may come to the connection twice between two ticks.
    assert 0 < turns.most <= 4 * connection.FRAMES_BETWEEN_LOOKS < MANY
