"""A broker with few descriptors or little memory: connections and requests are refused, logs are not
harmed, and everything works again once there is enough."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from durability_kit.disk import assert_sound, await_that
from durability_kit.wire import Wire, a_batch

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.testing import BrokerDied, BrokerProcess

MIB = 1 << 20
DESCRIPTORS = 1024
# A request that no broker in these tests has memory for.
LARGE = 400 * MIB


class LimitedBroker(BrokerProcess):
    """A broker under a limit that it cannot raise, in the words of the shell's `ulimit`."""

    limit = ""

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit {self.limit} && exec "$@"', "sh", *super().command()]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[[str], LimitedBroker]]:
    made: list[LimitedBroker] = []

    def make(limit: str) -> LimitedBroker:
        broker = LimitedBroker(
            tmp_path / f"data-{len(made)}",
            settings={
                "log.flush.interval.ms": "1000",
                "log.flush.offset.checkpoint.interval.ms": "500",
                "socket.request.max.bytes": str(LARGE),
                # A connection that finds the backlog full is tried again only after a second.
                "socket.listen.backlog.size": "4096",
            },
            log_path=tmp_path / f"{len(made)}.log",
        )
        broker.limit = limit
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()


def open_descriptors(broker: BrokerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{broker.pid}/fd").iterdir())


def checkpointed(broker: BrokerProcess) -> int:
    """Logs whose recovery point was stored."""
    try:
        lines = (broker.data / "recovery-point-offset-checkpoint").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(int(line.split()[-1]) > 0 for line in lines[2:])


def complaints(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log_text().splitlines() if re.search(" ERROR |offline", line)]


@pytest.mark.parametrize("partitions", [300, pytest.param(1_500, marks=pytest.mark.long)])
def test_few_descriptors(limited: Callable[[str], LimitedBroker], partitions: int) -> None:
    """Writers of more partitions than there are descriptors, and a flood of connections."""
    broker = limited(f"-n {DESCRIPTORS}").start()
    with Wire(broker.bootstrap) as wire, contextlib.ExitStack() as flood:
        wire.create_topic("many", partitions)
        for round_number in range(3):
            for index in range(partitions):
                answer = wire.produce_batch("many", index, a_batch([b"%d" % round_number]))
                assert (answer.error_code, answer.base_offset) == (0, round_number), index
            if round_number == 0:
                # It takes none of the descriptors that writing needs.
                for _ in range(DESCRIPTORS + 100):
                    flood.enter_context(socket.create_connection((broker.host, broker.port), 20))
        assert open_descriptors(broker) < DESCRIPTORS - 64
        await_that(lambda: checkpointed(broker) == partitions, "not all logs were checkpointed")
        assert [each.error_code for each in wire.log_folders().values()] == [0]
        # Once they are gone, others are let in again.
        flood.close()
        await_that(lambda: is_let_in(broker), "nobody is let in again")
    assert complaints(broker) == []
    refusals = [line for line in broker.log_text().splitlines() if "no descriptors" in line]
    assert 0 < len(refusals) < DESCRIPTORS // 2
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        for index in range(0, partitions, 50):
            assert wire.values("many", index) == [b"0", b"1", b"2"]
    assert broker.stop() == 0
    assert_sound(broker.data)


@pytest.mark.long
def test_answers_that_nobody_takes(limited: Callable[[str], LimitedBroker]) -> None:
    """They are sent from files, which they keep open: not so many that others get none."""
    broker = limited("-n 512").start()
    # More than is copied, so that it is sent from the file.
    value = b"x" * 20_000
    partitions = 600
    with Wire(broker.bootstrap) as wire:
        wire.create_topic("many", partitions)
        for first in range(0, partitions, 150):
            for index in range(first, first + 150):
                wire.produce("many", index, [value])
            # Flushed, so that none of them has to stay open for that.
            await_that(lambda: checkpointed(broker) == first + 150, "not flushed")  # noqa: B023
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=50 * MIB,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic="many",
                    partitions=[
                        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=MIB)
                        for index in range(partitions)
                    ],
                )
            ],
        )
        with contextlib.ExitStack() as stalled:
            for _ in range(20):
                stalled.enter_context(Wire(broker.bootstrap)).send(request, 12)
            # Whoever reads gets something, and no errors.
            response = wire.call(request, FetchResponse, 12)
            answers = response.responses[0].partitions
            assert {each.error_code for each in answers} == {0}
            assert any(each.records for each in answers)
            assert open_descriptors(broker) < 512 - 32
            for index in range(0, partitions, 10):
                assert wire.produce("many", index, [b"y"]) == 1
    assert complaints(broker) == []


def is_let_in(broker: BrokerProcess) -> bool:
    try:
        with Wire(broker.bootstrap) as wire:
            return bool(wire.topic_names())
    except (OSError, EOFError):
        return False


# Memory -----------------------------------------------------------------------------------------


def warm_up(wire: Wire) -> None:
    """What makes a broker take the memory that it needs for its usual work."""
    wire.create_topic("topic", 1)
    for _ in range(20):
        wire.produce("topic", 0, [b"x" * 700_000])
    assert len(wire.values("topic", 0)) == 20


def address_space(broker: BrokerProcess) -> int:
    """The most that it ever had, in bytes."""
    found = re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def is_refused(broker: BrokerProcess) -> bool:
    """Send a large request; whether the broker closes the connection before it has all of it."""
    piece = bytes(MIB)
    with socket.create_connection((broker.host, broker.port), 60) as sock:
        try:
            sock.sendall(struct.pack(">ihhih", LARGE, 0, 9, 1, -1))
            for _ in range(LARGE // MIB - 1):
                sock.sendall(piece)
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False


def has_room(broker: BrokerProcess) -> bool:
    """Whether a large batch is taken; where it is not, the connection is closed."""
    try:
        with Wire(broker.bootstrap) as wire:
            wire.produce("topic", 0, [b"y" * 900_000])
    except (OSError, EOFError):
        return False
    return True


def test_little_memory(limited: Callable[[str], LimitedBroker]) -> None:
    """With 64 MiB more than it needs for its usual work."""
    plenty = limited("-v unlimited").start()
    with Wire(plenty.bootstrap) as wire:
        warm_up(wire)
    need = address_space(plenty)
    plenty.kill()
    broker = limited(f"-v {(need + 64 * MIB) // 1024}").start()
    with Wire(broker.bootstrap) as wire:
        warm_up(wire)
        refused: list[bool] = []
        senders = [
            threading.Thread(target=lambda: refused.append(is_refused(broker)), daemon=True)
            for _ in range(4)
        ]
        for sender in senders:
            sender.start()
        number = 20
        while any(sender.is_alive() for sender in senders):
            assert wire.produce("topic", 0, [b"beside them"]) == number
            number += 1
        assert refused == [True] * 4
        # Nor for all of these at once, of which each would fit.
        with contextlib.ExitStack() as opened:
            for _ in range(300):
                sock = opened.enter_context(
                    socket.create_connection((broker.host, broker.port), 60)
                )
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    sock.send(struct.pack(">ihhih", 8 * MIB, 0, 9, 1, -1) + bytes(MIB))
                assert wire.produce("topic", 0, [b"beside them"]) == number
                number += 1
        # Once the broker has seen that they are gone, there is room again.
        await_that(lambda: has_room(broker), "there is no room again")
        assert [each.error_code for each in wire.log_folders().values()] == [0]
    assert broker.running
    assert complaints(broker) == []
    assert "no memory for a request" in broker.log_text()
    assert broker.stop() == 0
    assert_sound(broker.data)


def test_a_broker_that_may_open_too_few_files_does_not_start(
    limited: Callable[[str], LimitedBroker],
) -> None:
    """With 64 it would take 4 connections, which three brokers of a cluster take from each other."""
    broker = limited("-n 64")
    with pytest.raises(BrokerDied):
        broker.start()
    (line,) = broker.log_text().splitlines()
    assert line == (
        "ottla: this process may have 64 files and connections open at a time (ulimit -n), and a broker "
        "needs 128 at least, better 1024 or more"
    )
    assert not list(broker.data.glob("*"))


@pytest.mark.parametrize("descriptors", [128, 256])
def test_the_fewest_descriptors(
    limited: Callable[[str], LimitedBroker],
    connect: Callable[[BrokerProcess], Wire],
    descriptors: int,
) -> None:
    """More partitions than files may be open, and more connections than there may be."""
    broker = limited(f"-n {descriptors}")
    wire = connect(broker.start())
    partitions = descriptors
    wire.create_topic("orders", partitions)
    for index in range(partitions):
        wire.produce("orders", index, [b"first %d" % index])
    with contextlib.ExitStack() as flood:
        for _ in range(descriptors):
            flood.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        await_that(
            lambda: "no descriptors for more connections" in broker.log_text(),
            "no connection is refused",
        )
        for index in range(partitions):
            wire.produce("orders", index, [b"second %d" % index])
    assert f"WARNING ottla ulimit -n is {descriptors}: no more than" in broker.log_text()
    assert complaints(broker) == []
    broker.kill()
    wire = connect(broker.start())
    for index in range(partitions):
        assert wire.values("orders", index) == [b"first %d" % index, b"second %d" % index]


def test_descriptors_that_run_out_later(
    limited: Callable[[str], LimitedBroker], connect: Callable[[BrokerProcess], Wire]
) -> None:
    """Somebody lowers the limit of the running process: a batch that needs a file is refused, is not
    there, and the broker's log says so once. With the limit back everything goes on."""
    broker = limited("-n 1024")
    wire = connect(broker.start())
    wire.create_topic("orders", 20)
    wire.produce("orders", 0, [b"first"])
    assert broker.pid is not None
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (4, before[1]))
    answers = [wire.produce_batch("orders", index, a_batch([b"x"])) for index in range(20)]
    refused = [index for index, answer in enumerate(answers) if answer.error_code]
    assert refused
    for index in refused:
        code = ErrorCode(answers[index].error_code)
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "Too many open files" in (answers[index].error_message or "")
    told = [line for line in complaints(broker) if "appends are refused" in line]
    assert len(told) == 1
    assert f"folder={broker.data} Too many open files" in told[0]
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
    for index in range(20):
        wire.produce("orders", index, [b"last"])
    expected = {
        index: [b"first"] * (index == 0) + [b"x"] * (index not in refused) + [b"last"]
        for index in range(20)
    }
    assert {index: wire.values("orders", index) for index in range(20)} == expected
    broker.kill()
    wire = connect(broker.start())
    assert {index: wire.values("orders", index) for index in range(20)} == expected
