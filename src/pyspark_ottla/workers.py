"""The Python processes in which Spark plans, and runs tasks one after the other."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from pyspark import TaskContext

from ottla.client.errors import OttlaError

_modules_at_freeze = 0
_WITHOUT_STACK: Final = (
    "SPARK_HIDE_TRACEBACK"  # what Spark's workers look for when something is raised
)
_OF_SPARK: Final = ("pyspark.", "pyspark_ottla.")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def plain_errors(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a method that Spark calls: users see our exceptions as a sentence, without a stack.

    The message says what is wrong and what to do; the dozens of lines of Python's stack that Spark puts
    before it are of no use to them. Other exceptions keep theirs. (The worker ends with the exception,
    so that what is set here concerns nobody else.)
    """
    if inspect.isgeneratorfunction(method):
        generator: Any = method

        @functools.wraps(method)
        def iterate(*given: _Parameters.args, **named: _Parameters.kwargs) -> Any:
            try:
                yield from generator(*given, **named)
            except OttlaError:
                _hide_stack()
                raise

        return iterate

    @functools.wraps(method)
    def call(*given: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        try:
            return method(*given, **named)
        except OttlaError:
            _hide_stack()
            raise

    return call


def _hide_stack() -> None:
    begun = getattr(sys.modules["__main__"], "__spec__", None)
    if begun is not None and begun.name.startswith(_OF_SPARK):
        os.environ[_WITHOUT_STACK] = "1"


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
