"""When the compiled kernels are there, and how it comes to be there without anybody waiting.

A process starts without it and walks in plain Python. Once it has walked over enough records for
compiled code to pay (`WORTH_LOADING`), a background thread gets the machine code, six kilobytes of it:

- from the cache on disk, which takes some milliseconds;
- otherwise another process compiles it (`compile`) at low priority, which takes some seconds, and the
  cache has it from then on.

Where nothing can be compiled, or memory cannot be made executable, or with OTTLA_KERNELS=off, the plain
walk stays. A file in the cache begins with its SHA-256: a damaged one is compiled again.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.record.validation.machine_code import CompiledWalk

logger = logging.getLogger(__name__)

# Records that a process walks over in plain Python before it gets the compiled walk: a few milliseconds.
WORTH_LOADING = 2_000

_COMPILER_TIMEOUT = 120  # seconds
_DIGEST_SIZE = 32
_SOURCES = ("compile.py", "findings.py", "kernel.py")


class Readiness:
    """The compiled walk of this process."""

    def __init__(self) -> None:
        self.compiled: CompiledWalk | None = None
        self._walked = 0  # records, in plain Python
        self._is_asked_for = False
        self._lock = threading.Lock()  # held while loading, so that it is done once

    def walked(self, records: int) -> None:
        """Count records that were walked over in plain Python; after enough of them the compiled walk is
        loaded, in a thread."""
        self._walked += records
        if self._walked >= WORTH_LOADING and not self._is_asked_for:
            self._is_asked_for = True
            threading.Thread(target=self.load, name="ottla-walk", daemon=True).start()

    def load(self) -> CompiledWalk | None:
        """Get the compiled walk, however long it takes; None where there can be none."""
        with self._lock:
            self._is_asked_for = True
            if self.compiled is None and os.environ.get("OTTLA_KERNELS") != "off":
                try:
                    self.compiled = _load()
                except Exception as error:  # noqa: BLE001 - a broken compiler must not break a broker
                    logger.warning("records are checked without compiled code: %s", error)
            return self.compiled


def _load() -> CompiledWalk:
    from ottla.record.code_cache import code_cache
    from ottla.record.validation.machine_code import CompiledWalk, executables

    folder = code_cache("validation")
    file = None if folder is None else folder / f"kernels-{_version()}"
    code = None if file is None else _read(file)
    if code is None:
        code = _compile_elsewhere()
        if file is not None:
            _write(file, code)
    return CompiledWalk(*executables(code))


def _version() -> str:
    """What the machine code depends on. (That it was compiled by another numba makes no difference.)"""
    import hashlib
    import platform
    from pathlib import Path

    source = b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES)
    system = f"{platform.system()} {platform.machine()}".encode()
    return hashlib.sha256(system + source).hexdigest()[:16]


def _read(file: Path) -> bytes | None:
    """The code in a file of the cache; None if there is none, or a damaged one."""
    import hashlib

    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> None:
    import hashlib

    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(hashlib.sha256(code).digest() + code)
        partial.replace(file)
    except OSError as error:
        logger.debug("compiled code is not kept: %s", error)


def _compile_elsewhere() -> bytes:
    """Compile in another process: here it would hold the interpreter's lock for seconds, and its memory
    would never be given back."""
    import subprocess
    import sys

    result = subprocess.run(
        [sys.executable, "-m", "ottla.record.validation.compile"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COMPILER_TIMEOUT,
        check=False,
    )
    if result.returncode or not result.stdout:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(last or f"the compiler ended with {result.returncode}")
    return result.stdout


readiness = Readiness()
