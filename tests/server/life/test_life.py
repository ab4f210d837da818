"""A broker's life as a process: what it loads, how it stops, what it finds again."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch_request,
    fill,
    list_offset,
    produce,
    produce_request,
    read_all,
)
from server_kit.wire import Wire

from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import Codec
from ottla.testing import BrokerProcess

StartProcess = Callable[..., BrokerProcess]

# Much longer than a stop takes: a broker that needs it hangs.
STOP_TIMEOUT = 30.0


# What it loads ----------------------------------------------------------------------------------

HEAVY = [
    "kio",
    "numba",
    "llvmlite",
    "numpy",
    "pyarrow",
    "confluent_kafka",
    "typer",
    "rich",
    "click",
    "pandas",
    "pyspark",
    "kazoo",
    "cramjam",
    "multiprocessing",
    "concurrent.futures.process",
    "http",
    "urllib.request",
    "xml",
    "unittest",
    "pytest",
    "ottla.cli.app",
    "ottla.coordinator.groups.shard",
    "ottla.coordinator.transactions.shard",
    "ottla.record.legacy",
    "ottla.record.compression.recompress",
    "ottla.record.validation.machine_code",
    "ottla.server.disk.worker_jobs",
    "ottla.testing",
    "scramp",
    "jwt",
    "ottla.cluster.security.acls",
    "ottla.cluster.security.credentials",
    "ottla.server.network.tls",
    "ottla.server.security.authorizer",
    "ottla.server.security.guards",
    "ottla.server.security.sasl",
]

_PROGRAM = """
import asyncio, json, sys
sys.argv = ["ottla", "serve", "--listen", "127.0.0.1:0", "--data", sys.argv[1]]
from ottla.server import run
real = run.Broker.start
async def start(self):
    await real(self)
    asyncio.get_running_loop().call_later(0.05, report)
def report():
    print(json.dumps(sorted(sys.modules)), flush=True)
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
run.Broker.start = start
from ottla.cli.main import main
main()
"""


def test_nothing_heavy_is_loaded_at_the_start(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, f"{tmp_path}/data"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[0]))
    assert "ottla.server.handlers.records.fetch" in loaded
    found = [name for name in HEAVY if name in loaded]
    assert found == []


# How it stops -----------------------------------------------------------------------------------


class Producers:
    """Threads that produce until the broker goes; they keep what was acknowledged."""

    def __init__(self, process: BrokerProcess, topic: Topic, count: int) -> None:
        self.process = process
        self.topic = topic
        self.acknowledged: list[tuple[int, bytes]] = []
        self.busy = threading.Event()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        assert self.busy.wait(30)

    def _run(self) -> None:
        try:
            with Wire(self.process.host, self.process.port) as wire:
                while True:
                    values = [b"%d" % next(self._numbers) for _ in range(5)]
                    for value in values:
                        wire.send(produce_request(self.topic, (0, batch_of(value))), 9)
                    for value in values:
                        answer = wire.receive(ProduceResponse, 9)
                        part = answer.responses[0].partition_responses[0]
                        assert part.error_code == 0
                        with self._lock:
                            self.acknowledged.append((part.base_offset, value))
                    if len(self.acknowledged) > 200:
                        self.busy.set()
        except (OSError, EOFError):
            pass

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_under_load(start_process: StartProcess, number: signal.Signals) -> None:
    """It ends by itself, with status 0, and keeps all that it acknowledged."""
    process = start_process()
    with Wire(process.host, process.port) as wire:
        topic = create_topic(wire)
    producers = Producers(process, topic, 4)
    producers.start()
    process.signal(number)
    assert process.process is not None
    assert process.process.wait(STOP_TIMEOUT) == 0
    producers.join()
    process.start()
    with Wire(process.host, process.port) as wire:
        values = read_all(wire, topic)
        for offset, value in producers.acknowledged:
            assert values[offset] == value
    assert "Traceback" not in process.log_text()


def test_stop_answers_what_waits(start_process: StartProcess) -> None:
    """A waiting fetch is answered with what is there, and its connection closed in order."""
    process = start_process()
    with Wire(process.host, process.port) as wire, Wire(process.host, process.port) as other:
        topic = create_topic(wire)
        wire.send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
        # Served in order on one loop: when this is answered, the fetch waits.
        other.call(MetadataRequest(topics=[]), MetadataResponse, 9)
        process.signal(signal.SIGTERM)
        (answer,) = wire.receive(FetchResponse, 12).responses[0].partitions
        assert (answer.error_code, bytes(answer.records or b"")) == (0, b"")
        assert wire.is_closed()
        assert process.process is not None
        assert process.process.wait(STOP_TIMEOUT) == 0


def test_stop_with_a_peer_that_does_not_read(start_process: StartProcess) -> None:
    process = start_process()
    with Wire(process.host, process.port) as wire, Wire(process.host, process.port) as deaf:
        topic = create_topic(wire)
        for _ in range(8):
            fill(wire, topic, batch_of(b"x" * 900_000))
        deaf.sock.settimeout(0.3)
        deaf.flood(deaf.encode(fetch_request(topic, (0, 0)), 12))
        half = Wire(process.host, process.port)
        half.send_raw(b"\0\0\1\0half")
        process.signal(signal.SIGTERM)
        assert process.process is not None
        assert process.process.wait(STOP_TIMEOUT) == 0


def test_stop_while_batches_are_recompressed(start_process: StartProcess) -> None:
    """What is acknowledged on the way out is there; no worker process is left behind."""
    process = start_process()
    wire = Wire(process.host, process.port)
    topic = create_topic(wire, compression_type="zstd")
    values = [b"%04d" % each * 50 for each in range(1500)]
    fill(wire, topic, batch_of(*values, codec=Codec.GZIP))
    for _ in range(5):
        wire.send(produce_request(topic, (0, batch_of(*values, codec=Codec.GZIP))), 9)
    process.signal(signal.SIGTERM)
    acknowledged = 1
    try:
        for _ in range(5):
            answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
            acknowledged += not answer.error_code
    except (EOFError, OSError):
        pass
    assert process.process is not None
    assert process.process.wait(STOP_TIMEOUT) == 0
    children = subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "pid="],
        capture_output=True,
        text=True,
        check=False,
    )
    assert children.stdout.split() == []
    process.start()
    with Wire(process.host, process.port) as wire:
        assert end_offset(wire, topic) >= acknowledged * len(values)


# What it finds again ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_keeps_everything(start_process: StartProcess, how: str) -> None:
    process = start_process()
    with Wire(process.host, process.port) as wire:
        topics = [create_topic(wire, partitions=2) for _ in range(3)]
        for number, topic in enumerate(topics):
            fill(wire, topic, *(batch_of(b"%d" % each) for each in range(number + 1)), index=1)
    for _ in range(2):
        getattr(process, how)()
        process.start()
    with Wire(process.host, process.port) as wire:
        for number, topic in enumerate(topics):
            assert read_all(wire, topic, index=1) == [b"%d" % each for each in range(number + 1)]
            assert list_offset(wire, topic, -1, index=0).offset == 0
            # By id: it is the same topic.
            answer = produce(wire, topic, batch_of(b"more"), index=1, version=13)
            assert (answer.error_code, answer.base_offset) == (0, number + 1)


def test_a_second_broker_on_the_same_folder(start_process: StartProcess) -> None:
    from ottla.testing import BrokerDied

    first = start_process()
    second = BrokerProcess(first.data, log_path=first.data.parent / "second.log")
    with pytest.raises(BrokerDied) as died:
        second.start()
    assert "another process" in str(died.value) or "in use" in str(died.value)
    assert "Traceback" not in str(died.value)
    with Wire(first.host, first.port) as wire:
        assert wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


def test_a_port_that_is_taken(start_process: StartProcess) -> None:
    first = start_process()
    second = BrokerProcess(first.data.parent / "other", port=first.port)
    second.spawn()
    assert second.process is not None
    assert second.process.wait(30) == 1
    assert "cannot listen" in second.log_text()
    assert "Traceback" not in second.log_text()


def test_stop_in_a_thread_with_everything_open(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """No task, timer or descriptor of the broker is left when it has stopped."""
    import asyncio

    broker = start_broker()
    wires = [broker.wire() for _ in range(5)]
    topic = create_topic(wires[0])
    wires[1].send(fetch_request(topic, (0, 0), max_wait_ms=600_000), 12)
    wires[2].send_raw(b"\0\0\0")
    fill(wires[3], topic, batch_of(b"a"))
    broker.until(lambda b: len(b.reactor.connections) == 5)
    inner = broker.broker
    broker.stop()
    assert not inner.reactor.connections
    assert not inner.waiting_fetches
    assert not inner._tasks or all(task.done() for task in inner._tasks)
    assert inner.loop.is_closed()
    assert isinstance(inner.loop, asyncio.AbstractEventLoop)
    for wire in wires:
        wire.close()
