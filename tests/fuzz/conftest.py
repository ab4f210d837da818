"""The fuzz tests' broker: one for each worker of the test run, in the test's own thread."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# The kits are packages beside the tests; with pytest's importlib mode nothing else finds them.
for folder in (HERE, HERE.parent / "server"):
    sys.path.insert(0, str(folder))

from fuzz_kit.harness import Harness  # noqa: E402 - found only now


def scratch_folder() -> Path:
    """In memory where that can be had: what is tested here is not the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ottla-fuzz-", dir=memory if memory.is_dir() else None))


@pytest.fixture(scope="session")
def session_harness() -> Iterator[Harness]:
    folder = scratch_folder()
    try:
        harness = Harness(folder / "data").start()
        harness.pause()
        yield harness
        harness.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def harness(session_harness: Harness) -> Iterator[Harness]:
    """The worker's broker with all its topics; it must not have complained at the end. It listens during
    its own tests only: brokers of other tests, which complain on purpose, run in this process, too."""
    session_harness.listen()
    try:
        session_harness.loop.run_until_complete(session_harness.furnish())
        yield session_harness
        session_harness.hang_up()
    finally:
        session_harness.pause()
    session_harness.check_complaints()
