"""Fixtures of the connection's tests: brokers to connect to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The kit is a package beside the tests; with pytest's importlib mode nothing else puts it on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from wire_kit.asynchronous import run_if_coroutine

from ottla.testing import BrokerProcess


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_coroutine(pyfuncitem)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests of a worker."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process
