"""What becomes of the records of producers that nobody closes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla import Admin, Consumer
from ottla.testing import BrokerProcess

TIMEOUT = 60


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.fixture
def made_topic(broker: BrokerProcess, topic: str) -> str:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    return topic


def values(broker: BrokerProcess, topic: str) -> set[bytes]:
    with Consumer(broker.bootstrap) as consumer:
        return set(consumer.read(topic, columns=["value"])["value"].to_pylist())


def test_records_are_sent_when_the_program_ends(broker: BrokerProcess, made_topic: str) -> None:
    program = """
import sys
import pyarrow as pa
from ottla import Producer
producer = Producer(sys.argv[1], linger_ms=60_000)
for number in range(100):
    producer.send(sys.argv[2], b"%d" % number)
producer.write(sys.argv[2], pa.table({"value": ["table"]}))
Producer(sys.argv[1], linger_ms=60_000).send(sys.argv[2], b"of nobody")
"""
    # A name, which is looked up in a thread: so late there are none to be had any more.
    done = run(program, f"localhost:{broker.port}", made_topic)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {b"table", b"of nobody", *(b"%d" % number for number in range(100))}
    assert values(broker, made_topic) == expected


def test_records_of_threads_that_outlive_the_main_one(
    broker: BrokerProcess, made_topic: str
) -> None:
    program = """
import sys, threading
from ottla import Producer
producer = Producer(sys.argv[1], linger_ms=60_000)
main = threading.current_thread()
def work():
    producer.send(sys.argv[2], b"early")
    begun.set()
    main.join()
    producer.send(sys.argv[2], b"late")
begun = threading.Event()
threading.Thread(target=work).start()
begun.wait()
"""
    done = run(program, broker.bootstrap, made_topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(broker, made_topic) == {b"early", b"late"}


def test_what_cannot_be_sent_is_told_with_its_number(
    broker: BrokerProcess, made_topic: str
) -> None:
    program = """
import asyncio, sys
from ottla import Producer
producer = Producer(sys.argv[1], linger_ms=60_000, delivery_timeout_ms=500)
for number in range(7):
    producer.send(sys.argv[2], b"lost", partition=0)
# Nobody can be reached from now on.
async def refused(*_):
    from ottla.wire.errors import ConnectFailed
    raise ConnectFailed("it", "does not answer")
cluster = producer._core.cluster
cluster.connection = cluster.any_connection = refused
"""
    done = run(program, broker.bootstrap, made_topic)
    assert "7 records of a producer that was not closed were not acknowledged" in done.stderr
    assert "within 0.5 s" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert values(broker, made_topic) == set()


def test_records_of_an_event_loop_that_is_gone_are_told(
    broker: BrokerProcess, made_topic: str
) -> None:
    program = """
import asyncio, sys
from ottla import AsyncProducer
async def main():
    producer = AsyncProducer(sys.argv[1], linger_ms=60_000)
    for number in range(3):
        await producer.send(sys.argv[2], b"x")
asyncio.run(main())
"""
    done = run(program, broker.bootstrap, made_topic)
    assert "3 records of a producer that was not closed were not acknowledged" in done.stderr


def test_failures_that_nobody_looked_at_are_told(broker: BrokerProcess, topic: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, settings={"max.message.bytes": "2000"})
    program = """
import sys
from ottla import Producer
Producer(sys.argv[1]).send(sys.argv[2], b"x" * 3000)
"""
    done = run(program, broker.bootstrap, topic)
    assert "1 record of a producer that was not closed was not acknowledged" in done.stderr
    assert "MESSAGE_TOO_LARGE" in done.stderr


def test_what_a_program_has_dealt_with_is_not_told(broker: BrokerProcess, made_topic: str) -> None:
    program = """
import os, sys
from ottla import Producer
closed = Producer(sys.argv[1])
closed.send(sys.argv[2], b"closed")
closed.close()
open_ = Producer(sys.argv[1], transactional_id=sys.argv[2])
open_.init_transactions()
open_.begin_transaction()
open_.send(sys.argv[2], b"not committed")
parents = Producer(sys.argv[1], linger_ms=60_000)
parents.send(sys.argv[2], b"of the parent")
if not os.fork():
    sys.exit(0)
os.wait()
"""
    done = run(program, broker.bootstrap, made_topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(broker, made_topic) == {b"closed", b"of the parent"}
