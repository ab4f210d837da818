"""The background scrub: damage in closed segments is named once, counted, and served as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import batch_of, create_topic, fill

from ottla.logfiles.names import DAMAGED_LOGS
from ottla.server.broker import Broker
from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.observability.metrics import pieces
from ottla.server.upkeep.scrub import Scrubber
from ottla.storage.config import LogConfig
from ottla.storage.folders import Key
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs, now_in_ms
from ottla.storage.scrub import note_damage

StartBroker = Callable[..., BrokerThread]
# An index of three entries, one for each batch, closes a segment.
SMALL_SEGMENTS = {"segment.index.bytes": "24", "index.interval.bytes": "0"}
SCRUBBING = {"log.scrub.interval.ms": "20", "log.scrub.bytes.per.second": "100000000"}


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x5A
    path.write_bytes(data)


async def _metrics(broker: Broker) -> str:
    return "".join([piece async for piece in pieces(broker)])


@pytest.mark.complains
def test_damage_at_rest_is_named_and_counted(
    start_broker: StartBroker, complaints: list[str]
) -> None:
    broker = start_broker(settings=SCRUBBING)
    with broker.wire() as wire:
        topic = create_topic(wire, **SMALL_SEGMENTS)
        fill(wire, topic, *[batch_of(b"%d" % number * 300) for number in range(8)])
    folder = broker.data / f"{topic.name}-0"
    closed, *_, active = sorted(folder.glob("*.log"))
    broker.until(lambda inside: inside.scrubber.bytes_read > 0)
    rounds = broker.run(lambda inside: inside.scrubber.rounds)
    broker.until(lambda inside: inside.scrubber.rounds > rounds)
    assert broker.run(lambda inside: inside.scrubber.damaged) == {}
    _flip(closed, 100)
    _flip(active, 100)
    broker.until(lambda inside: bool(inside.scrubber.damaged))
    rounds = broker.run(lambda inside: inside.scrubber.rounds)
    broker.until(lambda inside: inside.scrubber.rounds > rounds + 2)
    (finding,) = broker.run(lambda inside: inside.scrubber.damaged[topic.name, 0])
    assert (finding.file, finding.position, finding.offset) == (closed.name, 0, 0)
    told = [line for line in complaints if "damage at rest" in line]
    assert len(told) == 1
    assert f"topic={topic.name} partition=0 file={closed.name} position=0 offset=0" in told[0]
    shown = broker.run_async(_metrics(broker.broker))
    line = f'ottla_log_damaged_batches{{topic="{topic.name}",partition="0"}} 1'
    assert line in shown
    # Mended from a copy, it counts no more.
    _flip(closed, 100)
    broker.until(lambda inside: not inside.scrubber.damaged)


class _Inline:
    """Workers that do everything here and now."""

    async def run(self, job: Callable[[], object]) -> object:
        return job()

    def stop(self) -> None:
        pass


@pytest.mark.complains
def test_a_segment_that_is_being_replaced_is_not_missing(
    tmp_path: Path,
) -> None:
    """Erasing rewrites segments of any log: between two syncs the new one has no name of its own."""
    logs = Logs([str(tmp_path)], lambda _: LogConfig(segment_bytes=400))
    logs.open()
    opened = logs.create("orders", 0, b"o" * 16)
    for number in range(12):
        opened.append(bytearray(batch_of(b"%d" % number * 50)), 0, now_in_ms())
    assert len(opened.segments) > 4
    opened.flush(now_in_ms())
    middle = opened.segments[2].path

    async def scrub() -> None:
        scrubber = Scrubber(asyncio.get_running_loop(), logs, BrokerConfig)
        scrubber._workers = _Inline()  # type: ignore[assignment]
        logs.files.rename(middle, f"{middle}.swap")
        await scrubber.scrub_all()
        assert scrubber.damaged == {}
        logs.files.unlink(f"{middle}.swap")
        await scrubber.scrub_all()
        assert list(scrubber.damaged) == [("orders", 0)], "now it is"

    asyncio.run(scrub())
    logs.close()


def _filled(logs: Logs) -> Log:
    """A log of one batch in each of twelve segments."""
    opened = logs.create("orders", 0, b"o" * 16)
    for number in range(12):
        opened.append(bytearray(batch_of(b"%d" % number * 200)), 0, now_in_ms())
    assert len(opened.segments) == 12
    opened.flush(now_in_ms())
    return opened


class _Meanwhile(_Inline):
    """Workers before whose third segment something else happens, once."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._left = 3
        self._happens = happens

    async def run(self, job: Callable[[], object]) -> object:
        self._left -= 1
        if not self._left:
            self._happens()
        return job()


def _found_when(logs: Logs, happens: Callable[[], None]) -> list[Key]:
    """The logs that are found damaged in a round during which this happens, and in the next."""
    found: list[Key] = []

    async def scrub() -> None:
        scrubber = Scrubber(asyncio.get_running_loop(), logs, BrokerConfig)
        scrubber._workers = _Meanwhile(happens)  # type: ignore[assignment]
        scrubber.on_damage = found.append
        await scrubber.scrub_all()
        await scrubber.scrub_all()

    asyncio.run(scrub())
    return found


@pytest.mark.complains
def test_damage_is_not_that_of_the_log_that_was_made_in_place_of_a_damaged_one(
    tmp_path: Path,
) -> None:
    """A repair ends while the next round reads: it would set the sound log aside as well."""
    logs = Logs([str(tmp_path)], lambda _: LogConfig(segment_bytes=500))
    logs.open()
    _flip(Path(_filled(logs).segments[0].path), 100)

    def fetch_again() -> None:
        logs.set_aside("orders", 0, damaged=True)
        _filled(logs)

    assert _found_when(logs, fetch_again) == []
    _flip(Path(logs.get("orders", 0).segments[0].path), 100)
    assert _found_when(logs, lambda: None) == [("orders", 0)] * 2
    logs.close()


@pytest.mark.complains
def test_a_log_that_is_cut_off_while_it_is_read_is_not_damaged(tmp_path: Path) -> None:
    logs = Logs([str(tmp_path)], lambda _: LogConfig(segment_bytes=500))
    logs.open()
    opened = _filled(logs)

    def cut() -> None:
        """A follower whose leader goes on another way. The batch of the new one is half written."""
        opened.truncate_to(2, now_in_ms())
        with open(opened.segments[-1].path, "ab") as file:
            file.write(b"half a batch" * 8)

    assert _found_when(logs, cut) == []
    logs.close()


def test_nothing_is_scrubbed_unless_it_is_asked_for(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.run(lambda inside: inside.scrubber._task) is None


@pytest.mark.complains
def test_damage_that_was_found_while_no_broker_ran_is_looked_at_at_the_start(
    start_broker: StartBroker, complaints: list[str]
) -> None:
    broker = start_broker()
    with broker.wire() as wire:
        damaged, sound = (create_topic(wire, **SMALL_SEGMENTS) for _ in range(2))
        for topic in (damaged, sound):
            fill(wire, topic, *[batch_of(b"%d" % number * 300) for number in range(8)])
    names = [f"{topic.name}-0" for topic in (damaged, sound)]
    assert not note_damage(broker.data, names), "a broker runs there"
    broker.stop()
    _flip(min((broker.data / names[0]).glob("*.log")), 100)
    assert note_damage(broker.data, names[:1])
    assert note_damage(broker.data, [names[1], "gone-7", "no log"])
    broker.restart()
    broker.until(lambda inside: not inside.logs.files.exists(f"{broker.data}/{DAMAGED_LOGS}"))
    assert list(broker.run(lambda inside: inside.scrubber.damaged)) == [(damaged.name, 0)]
    assert any("damage at rest" in line for line in complaints)


def test_no_note_is_left_where_no_broker_ever_ran(tmp_path: Path) -> None:
    assert not note_damage(tmp_path, ["orders-0"])
    assert list(tmp_path.iterdir()) == []
