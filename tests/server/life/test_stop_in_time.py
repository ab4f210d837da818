"""A stop waits neither for a worker process nor for a disk that hangs, and says so to whoever waits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, produce_request, read_all
from server_kit.wire import Wire

from ottla.logfiles.names import CLEAN_SHUTDOWN
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.server import broker as broker_module
from ottla.server.disk.lanes import Lanes
from ottla.server.disk.workers import Workers
from ottla.storage.log.log import Log

VERSION = 9
StartBroker = Callable[..., BrokerThread]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "APPEND_SECONDS", 0.05)


def answers(wire: Wire, count: int) -> list[ErrorCode]:
    return [
        ErrorCode(
            wire.receive(ProduceResponse, VERSION).responses[0].partition_responses[0].error_code
        )
        for _ in range(count)
    ]


def send_three(wire: Wire, topic: Topic) -> None:
    for number in range(3):
        wire.send(produce_request(topic, (0, batch_of(b"%d" % number))), VERSION)


def test_a_worker_that_does_not_come_to_an_end(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: bytearray) -> bytearray:
        await asyncio.Event().wait()
        raise AssertionError

    running = start_broker()
    wire = running.wire()
    topic = create_topic(wire, **{"compression.type": "gzip"})
    monkeypatch.setattr(Workers, "repacking", lambda *_: never)
    send_three(wire, topic)
    running.until(lambda broker: len(broker.lanes.open) == 1)
    running.stop()
    assert answers(wire, 3) == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert running.broker.is_stuck
    assert (running.data / CLEAN_SHUTDOWN).exists(), "nothing was half written"
    monkeypatch.undo()
    running.start()
    assert read_all(running.wire(), topic) == []


@pytest.mark.complains
def test_a_disk_that_hangs(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    released, begun = threading.Event(), threading.Event()
    write = Log.write

    def hang(log: Log, append: object) -> None:
        begun.set()
        assert released.wait(60)
        write(log, append)  # type: ignore[arg-type]

    running = start_broker()
    wire = running.wire()
    topic = create_topic(wire)
    assert read_all(wire, topic) == []
    monkeypatch.setattr(Lanes, "is_slow", lambda *_: True)
    running.run(lambda broker: broker.lanes.slow.update(everything=0.0))
    monkeypatch.setattr(Log, "write", hang)
    send_three(wire, topic)
    assert begun.wait(30)
    try:
        running.stop()
        assert answers(wire, 3)[0] is ErrorCode.REQUEST_TIMED_OUT
        assert running.broker.is_stuck
        # What was written of it is for recovery to find out.
        assert not (running.data / CLEAN_SHUTDOWN).exists()
    finally:
        released.set()
    monkeypatch.undo()
    running.start()
    assert read_all(running.wire(), topic) in ([], [b"0"])


def test_a_stop_that_has_to_wait_for_nobody(start_broker: StartBroker) -> None:
    running = start_broker()
    wire = running.wire()
    topic = create_topic(wire, **{"compression.type": "gzip"})
    send_three(wire, topic)
    assert answers(wire, 3) == [ErrorCode.NONE] * 3
    running.stop()
    assert not running.broker.is_stuck


def test_worker_processes_do_not_import_the_program(tmp_path: Path) -> None:
    """The command line (or whatever a broker runs in) is none of their business, and not light."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, os, sys\n"
        "open(sys.argv[1], 'a').write('imported\\n')\n"
        "from ottla.server.disk.workers import Workers\n"
        "async def main():\n"
        "    workers = Workers(asyncio.get_running_loop(), 1)\n"
        "    print(os.getpid(), await workers.run(os.getpid))\n"
        "    workers.stop()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    told = tmp_path / "told"
    done = subprocess.run(
        [sys.executable, str(program), str(told)],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ},
    )  # fmt: skip
    ours, worker = done.stdout.split()
    assert ours != worker
    assert told.read_text() == "imported\n"
