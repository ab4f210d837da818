"""Runs a query of the source without Spark: plan, then read every piece, in this process."""

from __future__ import annotations

from typing import Any

from ottla import Producer
from pyspark_ottla import OttlaDataSource

Row = dict[str, Any]


def pieces(**options: Any) -> list[list[Row]]:
    """The rows of each of Spark's partitions. In names of options, __ stands for a dot."""
    given = {name.replace("__", ".").lower(): str(value) for name, value in options.items()}
    source = OttlaDataSource(given)
    reader = source.reader(source.schema())
    return [
        [row for batch in reader.read(piece) for row in batch.to_pylist()]
        for piece in reader.partitions()
    ]


def rows(**options: Any) -> list[Row]:
    return [row for piece in pieces(**options) for row in piece]


def values(**options: Any) -> list[bytes]:
    return [row["value"] for row in rows(**options)]


def write_transactions(bootstrap: str, topic: str) -> list[bytes]:
    """Committed, aborted, committed, aborted: the log ends in an abort marker. Gives what counts."""
    committed = []
    with Producer(bootstrap, transactional_id=f"{topic}-writer") as producer:
        producer.init_transactions()
        for number, good in enumerate((True, False, True, False)):
            producer.begin_transaction()
            for index in range(10):
                value = b"%d-%d" % (number, index)
                producer.send(topic, value, partition=0)
                if good:
                    committed.append(value)
            producer.flush()
            if good:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    return committed
