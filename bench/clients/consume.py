"""What clients consume: Ottla's against confluent-kafka's `consume()`, on both brokers.

A topic of one partition, batches of about 16 kB without compression, read from its beginning: by
`Consumer.scan` into Arrow, and by `consume()`, with the settings at which it was fastest here: a long
queue, and few records at a time, whose objects then find memory that was in use a moment ago (with
100,000 at a time it took three to four times as long). And both into a polars frame: ours by the Arrow
stream, theirs from lists of values. Checksums are checked by both. Each client has a process of its
own. Clock: from the first call until the last record is there.

In the rows with a codec the records are JSON documents of about 1 kB, in batches of 64 kB before they
were compressed. Two rows are ceilings: see `client_ceiling`.

The column "Kafka" holds the other client's figures here; the broker is named after the row.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import confluent_kafka
import polars
import pyarrow as pa

from bench.clients.ceiling import receive, receive_and_check
from bench.clients.duel import Apart, duel, rows
from bench.harness.batch import Shape
from bench.harness.bench import Bench
from bench.harness.broker import Broker
from bench.harness.errors import BenchError
from bench.harness.load.produce import DEFAULTS
from bench.harness.results import KAFKA, OTTLA, Measurement, Target
from ottla import Consumer, Producer

_PATIENCE = 60.0
_PIECE = 300  # records that `consume` is asked for
_DOCUMENTS = 20_000  # different ones


class Case(NamedTuple):
    name: str
    claim: str
    shape: Shape
    size: int  # bytes in the topic
    others: float  # which part of them the other client reads in a round
    ours: Callable[[str, str, int], float]
    theirs: Callable[[str, str, int], float]
    target: Target | None
    codec: str = ""  # of JSON documents; empty: records of one letter, as they are


def _documents() -> list[bytes]:
    """Orders as a shop would send them, of about 1 kB; a third to a half of that when compressed."""
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(2000)]

    def line() -> dict[str, object]:
        return {
            "article": f"{dice.getrandbits(40):010x}",
            "title": " ".join(dice.choices(words, k=4)),
            "quantity": dice.randrange(1, 10),
            "price": dice.randrange(100, 100_000) / 100,
        }

    return [
        json.dumps(
            {
                "order": number,
                "customer": f"{dice.getrandbits(64):016x}",
                "placed": f"2026-11-{dice.randrange(1, 31):02}T{dice.randrange(24):02}:00:00Z",
                "address": " ".join(dice.choices(words, k=8)),
                "lines": [line() for _ in range(7)],
            }
        ).encode()
        for number in range(_DOCUMENTS)
    ]


def _fill_with_documents(bootstrap: str, topic: str, codec: str, size: int) -> int:
    """Put so many bytes of documents, before compression, into a topic; the number of records."""
    documents = pa.table({"value": pa.array(_documents(), pa.binary())})
    times: int = max(1, size // documents.nbytes)
    with Producer(bootstrap, compression_type=codec, batch_size=64_000) as producer:
        for _ in range(times):
            producer.write(topic, documents).result(_PATIENCE)
    return times * _DOCUMENTS


def _scan(bootstrap: str, topic: str, records: int) -> float:
    with Consumer(bootstrap) as consumer:
        begin = time.perf_counter()
        found = sum(rows.num_rows for rows in consumer.scan(topic, 0, records))
        taken = time.perf_counter() - begin
    if found != records:
        raise BenchError(f"{found} of {records} records were read")
    return taken


def _frame(bootstrap: str, topic: str, records: int) -> float:
    with Consumer(bootstrap) as consumer:
        begin = time.perf_counter()
        frame = polars.DataFrame(consumer.read(topic, 0, records))
        taken = time.perf_counter() - begin
    if len(frame) != records:
        raise BenchError(f"{len(frame)} of {records} records were read")
    return taken


def _theirs(bootstrap: str, topic: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": True,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
            "fetch.message.max.bytes": 8 << 20,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    return consumer


def _consume(bootstrap: str, topic: str, records: int) -> float:
    begin = time.perf_counter()
    consumer = _theirs(bootstrap, topic)
    found = 0
    while found < records:
        got = consumer.consume(min(_PIECE, records - found), _PATIENCE)
        if not got:
            raise BenchError(f"{found} of {records} records were read")
        found += len(got)
    taken = time.perf_counter() - begin
    consumer.close()
    return taken


def _consume_frame(bootstrap: str, topic: str, records: int) -> float:
    begin = time.perf_counter()
    consumer = _theirs(bootstrap, topic)
    columns: dict[str, list[object]] = {
        name: [] for name in ("topic", "partition", "offset", "timestamp", "key", "value")
    }
    found = 0
    while found < records:
        got = consumer.consume(min(_PIECE, records - found), _PATIENCE)
        if not got:
            raise BenchError(f"{found} of {records} records were read")
        found += len(got)
        columns["topic"] += [each.topic() for each in got]
        columns["partition"] += [each.partition() for each in got]
        columns["offset"] += [each.offset() for each in got]
        columns["timestamp"] += [each.timestamp()[1] for each in got]
        columns["key"] += [each.key() for each in got]
        columns["value"] += [each.value() for each in got]
    frame = polars.DataFrame(columns)
    taken = time.perf_counter() - begin
    consumer.close()
    assert len(frame) == records
    return taken


CASES = (
    Case(
        "client-consume-100B",
        "100 B records to Arrow, against confluent-kafka's consume",
        *(Shape(150, 100), 512 << 20, 1.0),
        *(_scan, _consume, Target(5.0, 15.0)),
    ),
    Case(
        "client-consume-1kB",
        "1 kB records to Arrow, against confluent-kafka's consume",
        *(Shape(16, 1000), 512 << 20, 1.0),
        *(_scan, _consume, Target(5.0, 15.0)),
    ),
    *(
        Case(
            f"client-consume-json-{codec}",
            f"JSON of 1 kB, {codec}, to Arrow, against confluent-kafka's consume",
            *(Shape(64, 1000), 512 << 20, 1.0),
            *(_scan, _consume, Target(5.0, 15.0)),
            codec=codec,
        )
        for codec in ("lz4", "zstd")
    ),
    Case(
        "client-consume-1kB-receive",
        "1 kB records to Arrow, against receiving and looking at nothing",
        *(Shape(16, 1000), 512 << 20, 1.0),
        *(_scan, receive, None),
    ),
    Case(
        "client-consume-1kB-check",
        "1 kB records to Arrow, against receiving and checking the CRC32C",
        *(Shape(16, 1000), 512 << 20, 1.0),
        *(_scan, receive_and_check, None),
    ),
    Case(
        "client-frame-100B",
        "100 B records to a polars frame, against confluent-kafka's consume",
        *(Shape(150, 100), 512 << 20, 0.2),
        *(_frame, _consume_frame, Target(5.0, 15.0)),
    ),
    Case(
        "client-frame-1kB",
        "1 kB records to a polars frame, against confluent-kafka's consume",
        *(Shape(16, 1000), 512 << 20, 0.5),
        *(_frame, _consume_frame, Target(5.0, 15.0)),
    ),
)


def _one_broker(bench: Bench, case: Case, broker: Broker) -> Measurement:
    size = case.size // (4 if bench.quick else 1)
    host, port = broker.address
    bootstrap = f"{host}:{port}"
    if case.codec:
        topic = bench.new_topic(broker)
        end = _fill_with_documents(bootstrap, topic, case.codec, size)
    else:
        filled = bench.filled_topic(broker, case.shape, DEFAULTS, size)
        topic, end = filled.topic, filled.end
    records = {OTTLA: end, KAFKA: int(end * case.others)}

    def round_of(client: str) -> float:
        read = case.ours if client == OTTLA else case.theirs
        with broker.blamed():
            return records[client] / apart.run(client, read, bootstrap, topic, records[client])

    with Apart() as apart:
        measured = duel(bench, case, broker, round_of)
    broker.forget(topic, wait=False)
    return measured


ROWS = rows(CASES, _one_broker)
