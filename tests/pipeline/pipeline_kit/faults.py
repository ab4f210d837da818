"""A source `ottla-faulty`: `ottla`, whose writers die at a named point.

    faults = Faults(folder, "after decision", rounds=5)
    ….writeStream.format("ottla-faulty").options(**faults.options)…

In each of the first `rounds` batches, whoever gets to the point first is killed: the process that is the
task or the driver's Python, or (`whole_driver`) Spark's JVM, too. When the batch is repeated it gets
through. The classes are pickled as they are, so that workers need not find this module.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_ottla import OttlaDataSource

cloudpickle.register_pickle_by_value(sys.modules[__name__])

# In place of a point: a task writes its rows twice, once as an attempt that lost a race and was left.
LOSER = "loser"
# In place of a point: a task does not end before Spark has begun a second attempt of it; in every other
# batch, not before that one has written its rows as well.
SLOW = "slow"
SLOW_PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Faults:
    """What is to happen, and (files in the folder) what has."""

    folder: Path
    point: str
    rounds: int = 1
    first: int = 0  # batch
    whole_driver: bool = False

    @property
    def options(self) -> dict[str, str]:
        said = (self.folder, self.point, self.rounds, self.first, int(self.whole_driver))
        return {"fault": "\n".join(map(str, said))}

    @classmethod
    def read(cls, option: str) -> Faults:
        folder, point, rounds, first, whole_driver = option.split("\n")
        return cls(Path(folder), point, int(rounds), int(first), whole_driver == "1")

    @property
    def struck(self) -> int:
        """In how many batches it has happened."""
        return len(list(self.folder.glob("struck-*")))

    @property
    def second_attempts(self) -> int:
        """In how many batches a task was tried a second time."""
        return len(list(self.folder.glob("second-*")))

    def mark(self, name: str) -> None:
        (self.folder / name).touch()

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + SLOW_PATIENCE
        while not (self.folder / name).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"there was no {name}")
            time.sleep(0.01)

    def take(self, point: str, batch: int) -> bool:
        """Whether it is to happen now; it does so once in a batch."""
        if point != self.point or not self.first <= batch < self.first + self.rounds:
            return False
        try:
            (self.folder / f"struck-{batch}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def install(self, batch: int) -> None:
        """In this process, from now on."""
        from pyspark_ottla.writing import committing, points

        def reached(point: str) -> None:
            if self.take(point, batch):
                if self.whole_driver:
                    os.kill(_parent_of(os.getppid()), signal.SIGKILL)  # it has started the daemon
                os.kill(os.getpid(), signal.SIGKILL)

        committing.ENDS_AT_ONCE = 1
        points.reached = reached


def _parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


class FaultySource(OttlaDataSource):
    """See the module."""

    def __init__(self, options: dict[str, str]) -> None:
        self._faults = Faults.read(options["fault"])
        super().__init__({name: value for name, value in options.items() if name != "fault"})

    @classmethod
    def name(cls) -> str:
        return "ottla-faulty"

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return FaultyWriter(super().streamWriter(schema, overwrite), self._faults)


class FaultyWriter(DataSourceStreamArrowWriter):
    """A writer that dies where it is told to."""

    def __init__(self, writer: Any, faults: Faults) -> None:
        self._writer = writer
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        self._faults.install(batch)
        rows = list(iterator)
        if rows and self._faults.take(LOSER, batch):
            self._write_as_loser(rows)
        if context.attemptNumber() > 0:
            self._faults.mark(f"second-{batch}")
        slow = context.partitionId() == 0 and self._faults.take(SLOW, batch)
        written: WriterCommitMessage = self._writer.write(iter(rows))
        if context.attemptNumber() > 0:
            self._faults.mark(f"written-{batch}")
        if slow:
            self._faults.wait_for(f"{'written' if batch % 2 else 'second'}-{batch}")
        return written

    def _write_as_loser(self, rows: list[pa.RecordBatch]) -> None:
        from pyspark_ottla.writing import sink

        task = sink._task
        sink._task = lambda: f"{task()}1"
        try:
            self._writer.write(iter(rows))
        finally:
            sink._task = task

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._faults.install(batchId)
        self._writer.commit(messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._faults.install(batchId)
        self._writer.abort(messages, batchId)
