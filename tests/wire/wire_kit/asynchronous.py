"""Test functions that are coroutines: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest


def run_if_coroutine(item: pytest.Function) -> bool | None:
    """For `pytest_pyfunc_call`: run a coroutine function; leave the others to pytest."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    names = item._fixtureinfo.argnames
    asyncio.run(item.obj(**{name: item.funcargs[name] for name in names}))
    return True
