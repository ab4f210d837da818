"""A broker in the test's own process, over a file layer that fails where it is told to."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ottla.server import broker as broker_module
from ottla.server.broker import Broker
from ottla.server.configuration.broker_config import load
from ottla.server.upkeep import periodic as periodic
from ottla.storage.files import READ_ONLY, Files
from ottla.storage.logs import Logs

PATIENCE = 30.0


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


class InnerBroker:
    """A broker on an event loop in a thread."""

    def __init__(
        self, folders: Sequence[Path], files: Files, patch: pytest.MonkeyPatch, **settings: str
    ) -> None:
        self.folders = folders
        self.settings = settings
        self.bootstrap = ""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        patch.setattr(broker_module, "Logs", functools.partial(Logs, files=files))
        # A clock that runs faster, for what is done by the clock.
        self.settings.setdefault("log_flush_offset_checkpoint_interval_ms", "0")
        patch.setattr(periodic, "TICK_SECONDS", 0.05)

    def start(self) -> Self:
        self._ready.clear()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the broker did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        config = load(
            environment={},
            listen="127.0.0.1:0",
            data=",".join(str(folder) for folder in self.folders),
            assignments=[f"{n.replace('_', '.')}={v}" for n, v in self.settings.items()],
        )
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        broker = Broker(config)
        await broker.start()
        self.bootstrap = f"127.0.0.1:{broker.bound[0].port}"
        self._ready.set()
        await self._stopping.wait()
        await broker.stop()

    def stop(self) -> None:
        """As on SIGTERM."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the broker did not stop"
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
