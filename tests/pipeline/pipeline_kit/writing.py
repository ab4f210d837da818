"""Tasks and drivers of exactly-once writes without Spark, in this process; and what came of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ottla import Consumer
from ottla.client.admin.client import Admin
from pyspark_ottla.writing import committing, points
from pyspark_ottla.writing.attempts import PREFIX, Owner, Prepared, prepare
from pyspark_ottla.writing.options import SinkOptions, read_sink_options
from pyspark_ottla.writing.rows import RecordColumns

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


class Crash(Exception):
    """A test has stopped what was under way."""


@dataclass
class Query:
    """A streaming query, of which each run writes batches."""

    bootstrap: str
    topic: str
    options: dict[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def sink(self) -> SinkOptions:
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, **self.options}
        return read_sink_options(given, "streaming")

    def committed(self) -> list[str]:
        """The values that count, sorted."""
        self._wait_for_ends()
        with Consumer(self.bootstrap) as consumer:
            values = consumer.read(self.topic, columns=["value"])["value"].to_pylist()
        return sorted(value.decode() for value in values)

    def still_open(self) -> list[str]:
        """The ids of its open transactions, without what they all begin with."""
        return self._transactions("Ongoing")

    def _wait_for_ends(self) -> None:
        """Apache Kafka answers when an end is certain; its marks may come a moment later."""
        deadline = time.monotonic() + 20
        while ending := self._transactions("PrepareCommit", "PrepareAbort"):
            assert time.monotonic() < deadline, f"{ending} do not end"
            time.sleep(0.05)

    def _transactions(self, *states: str) -> list[str]:
        prefix = f"{PREFIX}{self.name}/"
        with Admin(self.bootstrap) as admin:
            listed = admin.list_transactions(states=states)
        names = [each.transactional_id for each in listed]
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def run(self) -> Run:
        return Run(self, Owner(self.name, uuid.uuid4().hex))


@dataclass
class Run:
    """One start of a query."""

    query: Query
    owner: Owner

    def task(self, values: Iterable[str], task: str = "0-0") -> Prepared:
        """A task that has written these values."""
        rows = pa.RecordBatch.from_pydict(
            {"key": list(values), "value": [value.encode() for value in values]},
            schema=pa.schema({"key": pa.string(), "value": pa.binary()}),
        )
        columns = RecordColumns(SCHEMA, self.query.sink)
        return prepare(iter([rows]), columns, self.query.sink, self.owner, task)

    def tasks(self, *values: str) -> list[Prepared]:
        """A task for each value."""
        return [self.task([value], f"{index}-0") for index, value in enumerate(values)]

    def commit(self, batch: int, told: list[Prepared]) -> None:
        committing.commit(batch, told, self.query.sink)

    def abort(self, batch: int, told: list[Prepared]) -> None:
        committing.abort(batch, told, self.query.sink)

    def crash(self, point: points.Point, batch: int, told: list[Prepared]) -> None:
        """commit, and what stops it at this point."""
        with crashing(point):
            try:
                self.commit(batch, told)
            except Crash:
                return
            raise AssertionError(f"the point '{point}' was not reached")


@contextmanager
def crashing(point: points.Point) -> Iterator[None]:
    awaited = point

    def reached(point: points.Point) -> None:
        if point == awaited:
            raise Crash

    before, at_once = points.reached, committing.ENDS_AT_ONCE
    points.reached, committing.ENDS_AT_ONCE = reached, 1
    try:
        yield
    finally:
        points.reached, committing.ENDS_AT_ONCE = before, at_once


def until(holds: Callable[[], bool], patience: float = 60) -> None:
    """Wait for something that a broker does by itself after a while."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
