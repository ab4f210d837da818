"""The Python processes in which Spark runs tasks, one after the other."""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_modules_at_freeze = 0


def keep_modules_out_of_collections() -> None:
    """Call this at the end of a task: it makes what comes after the next ones cheap.

    Spark's worker collects garbage after every task. With all modules loaded that takes 50 ms, during
    which the next task waits; a micro-batch takes not much longer. So what is alive when modules
    have been loaded is taken out of later collections. Nothing happens outside of tasks.
    """
    global _modules_at_freeze
    if TaskContext.get() is not None and len(sys.modules) > _modules_at_freeze:
        _modules_at_freeze = len(sys.modules)
        gc.collect()
        gc.freeze()
