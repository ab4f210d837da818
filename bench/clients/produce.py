"""What clients produce: Ottla's against confluent-kafka, kafka-python and aiokafka, on both brokers.

A table of records from memory to one topic of one partition, acknowledged by all replicas, idempotent,
without compression: `Producer.write` against a loop over confluent-kafka's `produce` with the settings
at which it was fastest here. And single records, in as many calls: `send` and its asynchronous twin
against kafka-python's and aiokafka's. Clock: from the first call until everything is acknowledged.
The row of requests that are encoded beforehand is a ceiling: see `client_ceiling`.

The column "Kafka" holds the other client's figures here; the broker is named after the row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka
import numpy as np
import pyarrow as pa

from bench.clients.ceiling import send_encoded
from bench.clients.duel import duel, rows
from bench.harness.bench import Bench
from bench.harness.broker import Broker
from bench.harness.results import OTTLA, Measurement, Target
from ottla import AsyncProducer, Producer

_BATCH = 1_000_000
_LINGER_MS = 5
_PATIENCE = 120.0


class Case(NamedTuple):
    name: str
    claim: str
    size: int
    records: int  # that Ottla's client writes in a round
    others: int  # that the other client writes in a round
    ours: Callable[[str, str, pa.Array], float]
    theirs: Callable[[str, str, pa.Array], float]
    target: Target | None


def _values(size: int, count: int) -> pa.Array:
    letters = np.random.default_rng(1).integers(97, 123, size * count, dtype=np.uint8)
    offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
    )


def _write(bootstrap: str, topic: str, values: pa.Array) -> float:
    table = pa.table({"value": values})
    with Producer(bootstrap, linger_ms=_LINGER_MS) as producer:
        producer.send(topic, b"connected").result(_PATIENCE)
        begin = time.perf_counter()
        producer.write(topic, table).result(_PATIENCE)
        return time.perf_counter() - begin


def _confluent(bootstrap: str, topic: str, values: pa.Array) -> float:
    rows = values.to_pylist()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": _BATCH,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"connected")
    producer.flush(_PATIENCE)
    begin = time.perf_counter()
    for row in rows:
        producer.produce(topic, row)
    left = producer.flush(_PATIENCE)
    taken = time.perf_counter() - begin
    assert not left, f"{left} records were not delivered"
    return taken


def _send(bootstrap: str, topic: str, values: pa.Array) -> float:
    rows = values.to_pylist()
    with Producer(bootstrap, linger_ms=_LINGER_MS) as producer:
        producer.send(topic, b"connected").result(_PATIENCE)
        begin = time.perf_counter()
        for row in rows:
            producer.send(topic, row)
        producer.flush()
        return time.perf_counter() - begin


def _kafka_python(bootstrap: str, topic: str, values: pa.Array) -> float:
    rows = values.to_pylist()
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=_LINGER_MS, batch_size=_BATCH
    )
    producer.send(topic, b"connected").get(_PATIENCE)
    begin = time.perf_counter()
    for row in rows:
        producer.send(topic, row)
    producer.flush()
    taken = time.perf_counter() - begin
    producer.close()
    return taken


async def _send_async(bootstrap: str, topic: str, rows: list[bytes]) -> float:
    async with AsyncProducer(bootstrap, linger_ms=_LINGER_MS) as producer:
        await (await producer.send(topic, b"connected"))
        begin = time.perf_counter()
        for row in rows:
            await producer.send(topic, row)
        await producer.flush()
        return time.perf_counter() - begin


async def _aiokafka(bootstrap: str, topic: str, rows: list[bytes]) -> float:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        linger_ms=_LINGER_MS,
        max_batch_size=_BATCH,
        max_request_size=2 * _BATCH,
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"connected")
        begin = time.perf_counter()
        for row in rows:
            await producer.send(topic, row)
        await producer.flush()
        return time.perf_counter() - begin
    finally:
        await producer.stop()


def _in_a_loop(
    run: Callable[[str, str, list[bytes]], Awaitable[float]],
) -> Callable[[str, str, pa.Array], float]:
    async def awaited(bootstrap: str, topic: str, values: pa.Array) -> float:
        return await run(bootstrap, topic, values.to_pylist())

    return lambda bootstrap, topic, values: asyncio.run(awaited(bootstrap, topic, values))


CASES = (
    Case(
        "client-produce-100B",
        "a table of 100 B records, against confluent-kafka's produce",
        *(100, 2_000_000, 400_000),
        *(_write, _confluent, Target(3.0, 10.0)),
    ),
    Case(
        "client-produce-1kB",
        "a table of 1 kB records, against confluent-kafka's produce",
        *(1000, 300_000, 150_000),
        *(_write, _confluent, Target(3.0, 10.0)),
    ),
    Case(
        "client-produce-1kB-encoded",
        "a table of 1 kB records, against requests encoded beforehand",
        *(1000, 300_000, 300_000),
        *(_write, send_encoded, None),
    ),
    Case(
        "client-send",
        "single 100 B records, against kafka-python's send",
        *(100, 100_000, 50_000),
        *(_send, _kafka_python, Target(1.0, 2.0)),
    ),
    Case(
        "client-send-async",
        "single 100 B records, against aiokafka's send",
        *(100, 100_000, 50_000),
        *(_in_a_loop(_send_async), _in_a_loop(_aiokafka), Target(1.0, 2.0)),
    ),
)


def _one_broker(bench: Bench, case: Case, broker: Broker) -> Measurement:
    share = 4 if bench.quick else 1
    ours = _values(case.size, case.records // share)
    theirs = _values(case.size, case.others // share)
    host, port = broker.address
    bootstrap = f"{host}:{port}"

    def round_of(client: str) -> float:
        run, values = (case.ours, ours) if client == OTTLA else (case.theirs, theirs)
        with bench.topic(broker, 1) as topic, broker.blamed():
            return len(values) / run(bootstrap, topic, values)

    return duel(bench, case, broker, round_of)


ROWS = rows(CASES, _one_broker)
