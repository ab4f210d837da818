"""How a broker ends decides how it starts: after SIGTERM nothing is read again, after SIGKILL only
what lies behind the recovery point."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

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
from durability_kit.wire import Wire
from durability_kit.writers import ConfluentWriter, RawWriter, Target, await_progress

from ottla.storage.checkpoints import CLEAN_SHUTDOWN
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_was_stopped_recovers_nothing(
    broker: BrokerProcess, connect: Connect, number: signal.Signals
) -> None:
    wire = connect(broker.start())
    wire.create_topic("orders", 1, SMALL_SEGMENTS)
    values = write(wire, "orders", 0, 20)
    marker = broker.data / CLEAN_SHUTDOWN
    assert not marker.exists()

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


def test_stopping_in_the_middle_of_produce_keeps_every_promise(broker: BrokerProcess) -> None:
    broker.start()
    with Wire(broker.bootstrap) as wire:
        wire.create_topic("orders", 2, {"segment.bytes": str(1 << 20)})
    targets = [Target("orders", 0), Target("orders", 1)]
    writers = [
        ConfluentWriter(0, broker.bootstrap, targets, 1),
        RawWriter(1, broker.bootstrap, targets, 1),
    ]
    for writer in writers:
        writer.start()
    for _ in range(3):
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
    wire.create_topic("orders", 1, {"flush.messages": "1"})
    values = write(wire, "orders", 0, 10)
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
    # In the checksum of a batch: who reads it in full cannot miss it.
    flip(segment, batch_positions(segment)[recovery_point - 2] + 17)
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


def test_a_flush_after_each_message_moves_the_recovery_point(
    broker: BrokerProcess, connect: Connect, tmp_path: Path
) -> None:
    wire = connect(broker.start())
    wire.create_topic("flushed", 1, {"flush.messages": "1"})
    wire.create_topic("lazy")
    for number in (1, 2):
        write(wire, "flushed", 0, 1)
        write(wire, "lazy", 0, 1)
        await_that(
            lambda number=number: stored_recovery_point(broker.data, "flushed") == number,
            "the stored recovery point",
        )
        assert stored_recovery_point(broker.data, "lazy") == 0
