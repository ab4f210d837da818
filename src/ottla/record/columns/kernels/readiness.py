"""When the compiled kernels are there, and how they come to be there without anybody waiting.

Compiling takes seconds, loading what was compiled before takes half a second, and the plain path
needs neither. So a process starts on the plain path. Once it has seen enough bytes for kernels to
pay (`WORTH_LOADING`), a background thread gets them, while the plain path goes on:

- what the cache on disk has is loaded;
- otherwise another process compiles it into the cache first, at low priority: compiling holds the
  interpreter's lock, and in a thread would slow down everything else here for seconds; of several
  that find the cache empty one compiles;
- where no folder can be written, or no other process started, this thread compiles in memory.

Without numba, or with OTTLA_KERNELS=off, the plain path stays. `compile_kernels` does it all at once
and waits: for an installer, or a program that wants full speed from its first record.

The cache is in OTTLA_CACHE_DIR, or in `ottla` in the user's cache folder; a folder per version of
the code, of Python and of numba, and per place where Ottla is installed. numba itself keeps apart
what was compiled for different processors. A cache that cannot be used is no error: the kernels are
compiled again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from ottla.record.code_cache import code_cache

logger = logging.getLogger(__name__)

# Bytes of batches that a process has to see before kernels are fetched: a tenth of a second of the
# plain path at 100 bytes a record.
WORTH_LOADING = 4 * 1024 * 1024

_COMPILER_TIMEOUT = 120  # seconds
_KERNELS = "ottla.record.columns.kernels.decoding"
_SOURCES = (
    "arrays.py",
    "copying.py",
    "decoding.py",
    "encoding.py",
    "receiving.py",
    "walking.py",
)
_READY = "ready"


class _Stage(Enum):
    IDLE = "idle"
    FETCHING = "fetching"
    READY = "ready"
    UNAVAILABLE = "unavailable"


class _Readiness:
    """The kernels of this process."""

    def __init__(self) -> None:
        self.kernels: ModuleType | None = None
        self._stage = _Stage.IDLE
        self._seen = 0  # bytes on the plain path
        self._lock = threading.Lock()  # held while loading, so that it is done once

    def after(self, size: int) -> ModuleType | None:
        """The kernels, if they are there; counts `size` bytes towards fetching them if not."""
        if self.kernels is not None or self._stage is not _Stage.IDLE:
            return self.kernels
        self._seen += size
        if self._seen >= WORTH_LOADING:
            self._stage = _Stage.FETCHING
            threading.Thread(target=self.fetch, name="ottla-kernels", daemon=True).start()
        return None

    def fetch(self) -> ModuleType | None:
        """Get the kernels, however long it takes; None where there can be none."""
        with self._lock:
            if self._stage in (_Stage.READY, _Stage.UNAVAILABLE):
                return self.kernels
            if os.environ.get("OTTLA_KERNELS") == "off":
                self._stage = _Stage.UNAVAILABLE
                return None
            folder = cache_folder()
            if folder is not None and not is_compiled(folder):
                _compile_elsewhere(folder)
            try:
                self.kernels = load(folder)
            except Exception as error:  # noqa: BLE001  a broken numba must not break the client
                logger.warning("records are read without compiled code: %s", error)
                self._stage = _Stage.UNAVAILABLE
            else:
                self._stage = _Stage.READY
            return self.kernels


_readiness = _Readiness()


def kernels_for(size: int) -> ModuleType | None:
    """The module of kernels for an input of `size` bytes, or None for the plain path."""
    return _readiness.after(size)


def compile_kernels() -> bool:
    """Have the kernels ready, from the cache or compiled now; False where there can be none.

    Takes some seconds the first time, and then about half a second in each process. Nobody has to
    call this: a process that reads much gets the kernels in the background.
    """
    return _readiness.fetch() is not None


def load_compiled() -> bool:
    """Have the kernels ready if the cache on disk has them; False, at once, if it does not.

    For a process that others are forked from: what is loaded here is loaded for all of them.
    """
    folder = cache_folder()
    return folder is not None and is_compiled(folder) and compile_kernels()


def cache_folder() -> Path | None:
    """The folder for what numba compiles, made if need be; None if nothing can be written."""
    try:
        return code_cache(f"kernels-{_version()}")
    except (OSError, importlib.metadata.PackageNotFoundError):
        return None


def is_compiled(folder: Path) -> bool:
    """Whether all kernels were compiled into this folder."""
    return (folder / _READY).exists()


def _version() -> str:
    source = b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES)
    parts = (
        platform.machine(),
        sys.version,
        importlib.metadata.version("numba"),
        importlib.metadata.version("numpy"),
        os.path.dirname(__file__),  # numba finds nothing that was compiled from a file elsewhere
    )
    return hashlib.sha256("\n".join(parts).encode() + source).hexdigest()[:16]


def load(folder: Path | None) -> ModuleType:
    """Import the kernels, with numba's cache in this folder; compiles what is not there."""
    if folder is None:
        return importlib.import_module(_KERNELS)
    import numba

    config: Any = numba.config
    before = config.CACHE_DIR
    # Read when a function is decorated. Others who use numba in this process keep their own.
    config.CACHE_DIR = str(folder)
    try:
        kernels = importlib.import_module(_KERNELS)
    finally:
        config.CACHE_DIR = before
    (folder / _READY).touch()
    return kernels


def _compile_elsewhere(folder: Path) -> None:
    """Fill the cache by another process; whatever goes wrong there, loading will compile."""
    try:
        subprocess.run(
            [sys.executable, "-m", "ottla.record.columns.kernels.compile", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_COMPILER_TIMEOUT,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.debug("no process to compile the kernels: %s", error)
