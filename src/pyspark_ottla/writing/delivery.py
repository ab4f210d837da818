"""Rows to a producer: what a task does with its batches, whatever the guarantee.

A Python process of Spark's serves many tasks, one after the other. A producer without transactions is
kept between them, by what the client's options are.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from ottla.client.errors import OttlaError
from ottla.client.producer import Producer
from pyspark_ottla.option_names import ClientKey, client_key
from pyspark_ottla.writing.options import SinkOptions
from pyspark_ottla.writing.rows import RecordColumns

_producers: dict[ClientKey, Producer] = {}


def write_rows(
    producer: Producer,
    batches: Iterable[pa.RecordBatch],
    columns: RecordColumns,
    *,
    before_flush: Callable[[], None] = lambda: None,
) -> int:
    """Give all rows to the producer and wait until they are acknowledged; how many there were."""
    rows = 0
    unfinished: deque[concurrent.futures.Future[Any]] = deque()
    for batch in batches:
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        unfinished.append(producer.write(columns.topic, columns.records(batch)))
        while unfinished and unfinished[0].done():
            unfinished.popleft().result()
    before_flush()
    producer.flush()
    for each in unfinished:
        each.result()
    return rows


def deliver(batches: Iterable[pa.RecordBatch], columns: RecordColumns, options: SinkOptions) -> int:
    """Write rows at least once; how many there were."""
    key = client_key(options.client)
    producer = _producers.get(key)
    if producer is None:
        producer = _producers[key] = Producer(options.client)
    try:
        return write_rows(producer, batches, columns)
    except BaseException:
        # What it still has belongs to a task that failed: the next one begins with another.
        del _producers[key]
        with contextlib.suppress(OttlaError):  # that it still has something
            producer.close(timeout=0)
        raise
