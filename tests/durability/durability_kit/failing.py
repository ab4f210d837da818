"""A broker in the test's own process, over a file layer that fails where it is told to."""

from __future__ import annotations

import errno
import functools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread

from ottla.server import broker as broker_module
from ottla.server.upkeep import periodic as periodic
from ottla.storage.files import READ_ONLY, Files
from ottla.storage.logs import Logs


class FailingFiles(Files):
    """The files of the system, but for calls on paths that begin with one of `broken[call]`."""

    def __init__(self) -> None:
        # Call ("fsync", "pwrite", "pread") → beginnings of paths.
        self.broken: dict[str, tuple[str, ...]] = {}
        # Call → how often it was made on each path.
        self.calls: dict[str, Counter[str]] = {
            "fsync": Counter(), "pwrite": Counter(), "pread": Counter()
        }  # fmt: skip
        self._paths: dict[int, str] = {}

    def fail(self, call: str, *paths: Path | str) -> None:
        """From now on. `folder/.` is the sync of the folder itself."""
        self.broken[call] = tuple(str(path) for path in paths)

    def mend(self) -> None:
        self.broken = {}

    def _look(self, call: str, path: str) -> None:
        self.calls[call][path] += 1
        if path.startswith(self.broken.get(call, ())):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._look("fsync", self._paths[fd])
        os.fdatasync(fd)

    def fsync_folder(self, path: str) -> None:
        self._look("fsync", path + "/.")
        super().fsync_folder(path)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        self._look("pwrite", self._paths[fd])
        return os.pwrite(fd, data, position)

    def pread_in_memory(self, fd: int, size: int, position: int) -> bytes | None:
        self._look("pread", self._paths[fd])
        return super().pread_in_memory(fd, size, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._look("pread", self._paths[fd])
        return os.pread(fd, size, position)


class InnerBroker(BrokerThread):
    """A broker on an event loop in a thread, over these files and several data folders."""

    def __init__(
        self, folders: Sequence[Path], files: Files, patch: pytest.MonkeyPatch, **settings: str
    ) -> None:
        # A clock that runs faster, for what is done by the clock.
        settings.setdefault("log_flush_offset_checkpoint_interval_ms", "0")
        named = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(folders[0], settings=named)
        self._folders = folders
        patch.setattr(broker_module, "Logs", functools.partial(Logs, files=files))
        patch.setattr(periodic, "TICK_SECONDS", 0.05)

    def folders(self) -> str:
        return ",".join(str(folder) for folder in self._folders)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"
