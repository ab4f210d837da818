"""Compressed files: their contents, unpacked into a file without a name.

A file that was compressed is over: it is unpacked once, when it is opened, to the disk that temporary
files are on, and read like any other from there. What kind it is, its first bytes say; its name must
say that it is compressed, too.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from typing import IO, Final, cast

_AT_ONCE: Final = 1 << 20  # bytes


class Damaged(OSError):
    """A compressed file cannot be unpacked; `strerror` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason)
        self.strerror = reason


def _by_arrow(codec: str) -> Callable[[IO[bytes]], IO[bytes]]:
    def opened(source: IO[bytes]) -> IO[bytes]:
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(source), codec))

    return opened


_KINDS: Final[dict[bytes, Callable[[IO[bytes]], IO[bytes]]]] = {
    b"\x1f\x8b": lambda source: cast(IO[bytes], gzip.GzipFile(fileobj=source)),
    b"BZh": lambda source: cast(IO[bytes], bz2.BZ2File(source)),
    b"\xfd7zXZ\x00": lambda source: cast(IO[bytes], lzma.LZMAFile(source)),  # noqa: SIM115
    b"\x28\xb5\x2f\xfd": _by_arrow("zstd"),
    b"\x04\x22\x4d\x18": _by_arrow("lz4"),
}
_ZIP: Final = b"PK\x03\x04"
_LONGEST: Final = 6


def unpacked(descriptor: int) -> int | None:
    """A descriptor of what a compressed file holds; None: it is not compressed. Raises Damaged."""
    begin = os.pread(descriptor, _LONGEST, 0)
    if begin.startswith(_ZIP):
        raise Damaged("it is a zip archive; unpack it first")
    opener = next((each for magic, each in _KINDS.items() if begin.startswith(magic)), None)
    if opener is None:
        return None
    with (
        open(os.dup(descriptor), "rb") as source,
        tempfile.TemporaryFile(prefix="ottla-collect-") as target,
    ):
        source.seek(0)
        try:
            shutil.copyfileobj(opener(source), target, _AT_ONCE)
        except (EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            raise Damaged(f"it cannot be unpacked: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise Damaged(f"it cannot be unpacked: {reason}") from error
        target.flush()
        return os.dup(target.fileno())
