"""A file layer whose syncs wait for a test."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from ottla.storage.files import Files

_PATIENCE = 30.0


class GatedFiles(Files):
    """Syncs stand still until the gate is opened; if `broken` is set by then, they fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.syncs = 0
        self.begun = threading.Semaphore(0)
        self.broken = False

    def fsync(self, fd: int) -> None:
        self.syncs += 1
        self.begun.release()
        assert self.gate.wait(_PATIENCE)
        if self.broken:
            raise OSError(errno.EIO, "broken")
        super().fsync(fd)


@pytest.fixture
def files() -> Iterator[GatedFiles]:
    """Files whose syncs wait; whatever still waits at the end of the test goes on."""
    gated = GatedFiles()
    yield gated
    gated.gate.set()
