"""The loop behind the blocking classes: threads, interrupts, forks, and the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.errors import ClientForked
from ottla.client.loop import background_loop, run
from ottla.testing import BrokerProcess

TIMEOUT = 60


async def _double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_results_and_exceptions_come_back() -> None:
    assert run(_double(21)) == 42

    async def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        run(fail())


def test_many_threads_share_it() -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(run(_double(n)))) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(20)]


def test_it_cannot_wait_for_itself() -> None:
    async def inside() -> None:
        run(_double(1))

    with pytest.raises(RuntimeError, match="use the asynchronous class"):
        run(inside())


def test_an_interrupt_cancels_what_runs() -> None:
    program = """
import asyncio, os, signal, threading
from ottla.client.loop import run
cancelled = threading.Event()
async def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        cancelled.set()
        raise
try:
    run(work())
except KeyboardInterrupt:
    print(cancelled.wait(10))
"""
    assert _python(program) == "True\n"


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    mine = background_loop()
    assert run(_double(1)) == 2
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            good = run(_double(2)) == 4 and background_loop() is not mine
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert run(_double(3)) == 6
    assert background_loop() is mine


def test_clients_stay_behind_when_the_process_forks(broker: BrokerProcess, topic: str) -> None:
    """In the child each call says so, rather than to wait for a thread that is not there."""
    place = (topic, 0)
    with (
        Admin(broker.bootstrap) as admin,
        Producer(broker.bootstrap, linger_ms=60_000) as producer,
        Consumer(broker.bootstrap) as consumer,
    ):
        admin.create_topic(topic)
        consumer.assign({place: 0})
        kept = producer.send(topic, b"of the parent")  # is in the buffer when the process forks
        calls: list[Callable[[], object]] = [
            lambda: producer.send(topic, b"of the child"),
            lambda: producer.write(topic, pa.table({"value": ["of the child"]})),
            producer.flush,
            producer.init_transactions,
            producer.begin_transaction,
            consumer.next_batch,
            lambda: consumer.read(topic),
            consumer.pause,
            admin.list_topics,
        ]
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                for call in calls:
                    with pytest.raises(ClientForked, match="make another one in the child"):
                        call()
                producer.close()
                consumer.close()
                admin.close()
                with Producer(broker.bootstrap) as own:
                    own.send(topic, b"of the child").result(15)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        producer.flush()
        assert kept.result().offset == 1
        assert consumer.read(topic).column("value").to_pylist() == [
            b"of the child",
            b"of the parent",
        ]


def test_the_interpreter_ends_with_connections_open() -> None:
    program = """
import asyncio
from ottla.client.loop import background_loop
async def forever():
    try:
        await asyncio.Event().wait()
    finally:
        print("ended", flush=True)
background_loop().submit(forever())
import time; time.sleep(0.1)
"""
    assert _python(program) == "ended\n"


def test_the_broker_needs_none_of_it() -> None:
    assert _python("import sys, ottla; print('asyncio' in sys.modules)") == "False\n"
    shown = _python("import ottla; ottla.Admin; print(ottla.Admin is ottla.Admin, dir(ottla))")
    assert shown.startswith("True")
    assert "AsyncConsumer" in shown
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        __import__("ottla").Nothing  # noqa: B018


def _python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
