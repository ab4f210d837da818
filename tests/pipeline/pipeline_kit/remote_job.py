"""A job as a user writes it for a cluster: `python remote_job.py JSON`, of the fields of `Job`.

A program of its own, since a process has one Spark session. It reads a topic as a batch, writes it to
a second one as a batch and to a third one as a stream, and prints what it saw as JSON in its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    master: str
    bootstrap: str
    topic: str
    batch_copy: str
    stream_copy: str
    checkpoint: str
    settings: dict[str, str] = field(default_factory=dict)
    with_kernels: bool = False

    def run(self, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What the job saw; it runs in this folder."""
        done = subprocess.run(
            [sys.executable, __file__, json.dumps(asdict(self))],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return seen


def place(_: int) -> dict[str, str]:
    """Where a task runs, and with which Ottla."""
    import ottla
    import pyspark_ottla

    return {
        "folder": os.getcwd(),
        "environment": sys.prefix,
        "ottla": ottla.__file__,
        "source": pyspark_ottla.__file__,
    }


def kernels(_: int) -> dict[str, Any]:
    """Whether a task can read by compiled code, and where it could keep that."""
    from ottla.record.batch import Record, build_batch
    from ottla.record.columns import compile_kernels, decode
    from ottla.record.columns.kernels import readiness

    batch = build_batch([Record(number, 0, None, b"v") for number in range(1000)])
    return {
        "cache": None if readiness.cache_folder() is None else str(readiness.cache_folder()),
        "compiled": compile_kernels(),
        "rows": sum(decoded.rows.num_rows for decoded in decode(batch)),
    }


def main(job: Job) -> None:
    from ottla.pipeline import session

    spark = session(job.master, name="remote-job", settings=job.settings)
    servers = {"kafka.bootstrap.servers": job.bootstrap}
    try:
        frame = spark.read.format("ottla").options(**servers, subscribe=job.topic).load()
        rows = frame.select("partition", "offset", frame.value.cast("string")).collect()
        seen: dict[str, Any] = {"rows": sorted(map(list, rows))}
        values = frame.select("value")
        values.write.format("ottla").options(**servers, topic=job.batch_copy).mode("append").save()
        stream = spark.readStream.format("ottla").options(**servers, subscribe=job.topic)
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("ottla")
            .options(**servers, topic=job.stream_copy, checkpointLocation=job.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if not job.master.startswith("sc://"):
            # One task for each of two executors.
            seen["places"] = spark.sparkContext.parallelize(range(2), 2).map(place).collect()
        if job.with_kernels:
            seen["kernels"] = spark.sparkContext.parallelize(range(1), 1).map(kernels).first()
    finally:
        spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
