"""The process that Spark's Python workers are forked from, with all that they need loaded already.

    spark.python.daemon.module = pyspark_ottla.daemon        # ottla.pipeline.session() sets it

Spark starts workers whenever it needs more of them, and again for those that a LIMIT cut off. Without
this, each loads Arrow and the compiled kernels for itself, which takes a second and more: on two
cores that second is the next query's.

There is one such process for each kind of worker. Only those that run tasks see records, so only theirs
has the kernels; what has never been compiled here is left to the workers, who do not wait for it.
"""

from __future__ import annotations

import gc
import sys

from pyspark.daemon import manager

from ottla.record.columns.kernels.readiness import load_compiled
from pyspark_ottla.streaming import reader as streaming  # noqa: F401 - for the workers
from pyspark_ottla.writing import sink  # noqa: F401

_RUNS_TASKS = "pyspark.worker"


def prepare(worker_module: str) -> None:
    """Load what such workers need, and keep it out of their garbage collections."""
    if worker_module == _RUNS_TASKS:
        load_compiled()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare(sys.argv[1] if len(sys.argv) > 1 else _RUNS_TASKS)
    manager()
