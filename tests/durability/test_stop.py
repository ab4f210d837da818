"""How a broker ends decides how it starts: after SIGTERM nothing is read again, after SIGKILL only
what lies after the recovery point."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence

import pytest
from durability_kit.disk import (
    SMALL_SEGMENTS,
    assert_sound,
    await_that,
    batch_positions,
    flip,
    segments,
    stored_recovery_point,
)
from durability_kit.verdict import check_promises
from durability_kit.wire import PRODUCE_VERSION, Wire, a_batch, produce_request
from durability_kit.writers import (
    IN_FLIGHT,
    ConfluentWriter,
    RawWriter,
    Target,
    Writer,
    await_progress,
)

from ottla.logfiles.names import CLEAN_SHUTDOWN
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import encode_request
from ottla.testing import BrokerProcess

Connect = Callable[[BrokerProcess], Wire]

RECOVERING = "recovering"


class Log:
    """The part of a broker's log that it wrote since this was made."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._from = len(broker.log_text())

    @property
    def text(self) -> str:
        return self._broker.log_text()[self._from :]


def write(wire: Wire, topic: str, first: int, count: int) -> list[bytes]:
    """Batches of one record; their values."""
    values = [b"%s %d" % (topic.encode(), number) for number in range(first, first + count)]
    for value in values:
        wire.produce(topic, 0, [value])
    return values


def test_a_broker_that_was_stopped_recovers_nothing(
    broker: BrokerProcess, connect: Connect
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS)
    values = write(wire, "orders", 0, 20)
    marker = broker.data / CLEAN_SHUTDOWN
    assert not marker.exists()

    for number in (signal.SIGTERM, signal.SIGINT):
        broker.signal(number)
        assert broker.process is not None
        assert broker.process.wait(20) == 0
        assert marker.exists()
        assert_sound(broker.data)

        log = Log(broker)
        wire = connect(broker.start())
        assert RECOVERING not in log.text
        # Gone before anything is written: a crash from now on is one.
        assert not marker.exists()
        assert wire.values("orders") == values
        assert "WARNING" not in log.text


def stop_in_the_middle_of_produce(broker: BrokerProcess, kinds: Sequence[type[Writer]]) -> None:
    broker.start()
    with Wire(broker.bootstrap) as wire:
        wire.create_topic("orders", 2, {"segment.bytes": str(1 << 20)})
    targets = [Target("orders", 0), Target("orders", 1)]
    writers = [kind(number, broker.bootstrap, targets, number) for number, kind in enumerate(kinds)]
    for writer in writers:
        writer.start()
    for _ in range(2):
        await_progress(writers)
        assert broker.stop() == 0
        assert (broker.data / CLEAN_SHUTDOWN).exists()
        assert_sound(broker.data)
        log = Log(broker)
        broker.start()
        assert RECOVERING not in log.text
        assert "after a clean shutdown" not in log.text, "the marker promised too much"
    for writer in writers:
        writer.finish()
    assert not [failure for writer in writers for failure in writer.failures]
    with Wire(broker.bootstrap) as wire:
        assert check_promises(wire, writers) > 0


def test_stopping_in_the_middle_of_produce_keeps_every_promise(broker: BrokerProcess) -> None:
    stop_in_the_middle_of_produce(broker, [ConfluentWriter, ConfluentWriter])


@pytest.mark.long
def test_stopping_in_the_middle_of_pipelined_requests(broker: BrokerProcess) -> None:
    stop_in_the_middle_of_produce(broker, [ConfluentWriter, RawWriter])


def test_a_broker_that_stops_does_not_reset_connections(
    broker: BrokerProcess, connect: Connect
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders")
    request = produce_request("orders", 0, a_batch([bytes(3_000)]))
    frame = encode_request(request, PRODUCE_VERSION, 7, "durability")
    broker.signal(signal.SIGSTOP)
    # More than it reads before it comes to the signal.
    wire.sock.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += wire.sock.send(frame[sent % len(frame) :])
    assert sent > 1 << 20
    broker.signal(signal.SIGTERM)
    broker.signal(signal.SIGCONT)
    wire.sock.settimeout(20)
    answered = 0
    while received := wire.sock.recv(1 << 16):
        answered += len(received)
    assert broker.process is not None
    assert broker.process.wait(20) == 0


def test_batches_sent_again_after_a_stop_are_known(broker: BrokerProcess, connect: Connect) -> None:
    sent_again_after(broker, connect, broker.stop)


def test_batches_sent_again_after_a_kill_are_known(broker: BrokerProcess, connect: Connect) -> None:
    sent_again_after(broker, connect, broker.kill)


def sent_again_after(broker: BrokerProcess, connect: Connect, end: Callable[[], object]) -> None:
    """As many batches as a producer may have under way come again, with the same sequences."""
    wire = connect(broker.start())
    wire.create_topic("orders")
    producer_id, epoch = wire.producer_id()
    batches = [
        a_batch(
            [b"%d" % number + bytes(100_000)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=number,
        )
        for number in range(IN_FLIGHT)
    ]
    for number, batch in enumerate(batches):
        answer = wire.produce_batch("orders", 0, batch)
        assert (answer.error_code, answer.base_offset) == (0, number)
    end()
    wire = connect(broker.start())
    for number, batch in enumerate(batches):
        answer = wire.produce_batch("orders", 0, batch)
        assert (ErrorCode(answer.error_code), answer.base_offset) == (ErrorCode.NONE, number)
    assert wire.bounds("orders") == (0, IN_FLIGHT)


def test_a_killed_broker_recovers(broker: BrokerProcess, connect: Connect) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS)
    values = write(wire, "orders", 0, 20)
    broker.kill()
    assert not (broker.data / CLEAN_SHUTDOWN).exists()

    log = Log(broker)
    wire = connect(broker.start())
    assert RECOVERING in log.text
    assert wire.values("orders") == values
    # And is as good as before.
    values += write(wire, "orders", 20, 20)
    assert wire.values("orders") == values
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.fixture
def half_flushed(broker: BrokerProcess, connect: Connect) -> tuple[BrokerProcess, int, list[bytes]]:
    """A killed broker, of whose log the first batches were flushed: it, the stored recovery point,
    and the values."""
    wire = connect(broker.start())
    # An index entry for each batch: recovery begins at the last one before the recovery point.
    wire.create_topic("orders", 1, {"index.interval.bytes": "0"})
    values = write(wire, "orders", 0, 9)
    wire.alter_topic("orders", {"flush.messages": "1"})
    values += write(wire, "orders", 9, 1)
    await_that(
        lambda: stored_recovery_point(broker.data, "orders") == 10, "the stored recovery point"
    )
    wire.alter_topic("orders", {"flush.messages": str(2**63 - 1)})
    values += write(wire, "orders", 10, 10)
    broker.kill()
    assert stored_recovery_point(broker.data, "orders") == 10
    return broker, 10, values


def test_recovery_does_not_look_below_the_recovery_point(
    half_flushed: tuple[BrokerProcess, int, list[bytes]], connect: Connect
) -> None:
    broker, recovery_point, values = half_flushed
    (segment,) = segments(broker.data / "orders-0")
    # In the checksum of each batch but the last one: who reads it in full cannot miss it.
    for position in batch_positions(segment)[: recovery_point - 2]:
        flip(segment, position + 17)
    log = Log(broker)
    wire = connect(broker.start())
    assert RECOVERING in log.text
    assert "WARNING" not in log.text
    assert "ERROR" not in log.text
    assert wire.bounds("orders") == (0, len(values))
    (tail,) = [batch for batch in wire.batches("orders", 0, 19) if batch.base_offset == 19]
    assert values[19] in tail.data


def test_recovery_checks_everything_behind_the_recovery_point(
    half_flushed: tuple[BrokerProcess, int, list[bytes]], connect: Connect
) -> None:
    broker, recovery_point, values = half_flushed
    (segment,) = segments(broker.data / "orders-0")
    flip(segment, batch_positions(segment)[recovery_point + 2] + 17)
    log = Log(broker)
    wire = connect(broker.start())
    assert "cut at offset 12" in log.text
    assert wire.values("orders") == values[:12]
    assert write(wire, "orders", 100, 1)
    assert broker.stop() == 0
    assert_sound(broker.data)
