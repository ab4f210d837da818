"""InitProducerId: an id for each, never the same one twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import versions_of
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.testing import BrokerProcess

VERSIONS = versions_of(InitProducerIdRequest, last=5)


def ask(wire: Wire, version: int = 4, **fields: object) -> InitProducerIdResponse:
    fields.setdefault("transactional_id", None)
    fields.setdefault("transaction_timeout_ms", 1000)
    return wire.call(InitProducerIdRequest(**fields), InitProducerIdResponse, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(wire: Wire, version: int) -> None:
    first, second = ask(wire, version), ask(wire, version)
    assert (first.error_code, second.error_code) == (0, 0)
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)
    assert first.producer_id >= 0
    assert first.producer_id != second.producer_id


@pytest.mark.parametrize("version", [3, 4, 5])
def test_who_comes_back_gets_a_new_identity(wire: Wire, version: int) -> None:
    first = ask(wire, version)
    again = ask(wire, version, producer_id=first.producer_id, producer_epoch=0)
    assert again.error_code == 0
    assert again.producer_id != first.producer_id


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_half_an_identity(wire: Wire, version: int, producer_id: int, epoch: int) -> None:
    answer = ask(wire, version, producer_id=producer_id, producer_epoch=epoch)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_transactional_id(wire: Wire, version: int) -> None:
    answer = ask(wire, version, transactional_id="")
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.producer_id == -1


@pytest.mark.differs("Kafka is short of ids for a moment at the end of a block")
def test_many_at_once(wire: Wire, connect: Callable[[], Wire]) -> None:
    """More than one block, from several connections at the same time."""
    crowd = [connect() for _ in range(8)]
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    each = 300
    for peer in crowd:
        peer.send_raw(b"".join(peer.encode(request, 4) for _ in range(each)))
    ids = [
        peer.receive(InitProducerIdResponse, 4).producer_id for peer in crowd for _ in range(each)
    ]
    assert len(set(ids)) == len(crowd) * each
    assert min(ids) >= 0


def test_never_twice_over_restarts(start_process: Callable[..., BrokerProcess]) -> None:
    process = start_process()
    given: list[int] = []
    for end in (process.kill, process.stop, process.kill):
        with Wire(process.host, process.port) as wire:
            given += [ask(wire).producer_id for _ in range(20)]
            end()
        process.start()
    with Wire(process.host, process.port) as wire:
        given += [ask(wire).producer_id for _ in range(20)]
    assert len(set(given)) == len(given)


def test_never_twice_over_blocks(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    given: list[int] = []
    for count in (1500, 10, 1100):
        with broker.wire() as wire:
            given += [ask(wire).producer_id for _ in range(count)]
        broker.restart()
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_without_a_controller(
    start_broker: Callable[..., BrokerThread],
    monkeypatch: pytest.MonkeyPatch,
    transactional_id: str | None,
) -> None:
    """Producers are told to try again, in a way that all of them understand."""
    broker = start_broker()
    with broker.wire() as wire:
        if transactional_id is not None:
            find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
            wire.call(find, FindCoordinatorResponse, 4)
        controller = broker.broker.changes.controller
        assert controller is not None

        async def resigned() -> range:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER, "The controller resigned.")

        with monkeypatch.context() as patched:
            patched.setattr(controller, "allocate_producer_ids", resigned)
            answer = ask(wire, transactional_id=transactional_id)
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ask(wire, transactional_id=transactional_id).error_code == 0
