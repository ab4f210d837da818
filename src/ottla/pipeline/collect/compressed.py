"""Compressed files: their contents, unpacked into a file without a name.

A file that was compressed is over: it is unpacked once, when it is opened, to the disk that temporary
files are on, and read like any other from there. What kind it is, its first bytes say; its name must
say that it is compressed, too. Of a file that is damaged, or was cut off, what lies before the damage
is there.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable
from typing import IO, Final, NamedTuple, cast

_AT_ONCE: Final = 64 * 1024  # bytes
_DAMAGE: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)


class NotUnpacked(OSError):
    """A compressed file of a kind that is not unpacked here; `strerror` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason)
        self.strerror = reason


Opener = Callable[[IO[bytes]], IO[bytes]]


def _by_arrow(codec: str) -> Opener:
    def opened(source: IO[bytes]) -> IO[bytes]:
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(source), codec))

    return opened


_KINDS: Final[dict[bytes, Opener]] = {
    b"\x1f\x8b": lambda source: cast(IO[bytes], gzip.GzipFile(fileobj=source)),
    b"BZh": lambda source: cast(IO[bytes], bz2.BZ2File(source)),
    b"\xfd7zXZ\x00": lambda source: cast(IO[bytes], lzma.LZMAFile(source)),  # noqa: SIM115
    b"\x28\xb5\x2f\xfd": _by_arrow("zstd"),
    b"\x04\x22\x4d\x18": _by_arrow("lz4"),
}
_ZIP: Final = b"PK\x03\x04"
_LONGEST: Final = 6


class Contents(NamedTuple):
    """What a compressed file holds, as far as it can be unpacked."""

    descriptor: int
    damage: str | None  # why there is no more; None: it is whole


def unpacked(descriptor: int) -> Contents | None:
    """What a compressed file holds; None: it is not compressed. Raises NotUnpacked."""
    begin = os.pread(descriptor, _LONGEST, 0)
    if begin.startswith(_ZIP):
        raise NotUnpacked("it is a zip archive; unpack it first")
    opener = next((each for magic, each in _KINDS.items() if begin.startswith(magic)), None)
    if opener is None:
        return None
    with (
        open(os.dup(descriptor), "rb") as source,
        tempfile.TemporaryFile(prefix="ottla-collect-") as target,
    ):
        damage = _copy(opener, source, target)
        target.flush()
        return Contents(os.dup(target.fileno()), damage)


def _copy(opener: Opener, source: IO[bytes], target: IO[bytes]) -> str | None:
    """Unpack as much as there is; what is wrong with the rest, if something is."""
    source.seek(0)
    stream = opener(source)
    while True:
        try:
            block = stream.read(_AT_ONCE)
        except _DAMAGE as error:
            _copy_rest(opener, source, target)
            return f"it cannot be unpacked: {_reason(error)}"
        if not block:
            return None
        target.write(block)


def _copy_rest(opener: Opener, source: IO[bytes], target: IO[bytes]) -> None:
    """Unpack what is readable of a damaged block, byte by byte: codecs hold back the whole block."""
    source.seek(0)
    stream = opener(source)
    left = target.tell()
    while left:
        left -= len(stream.read(min(left, _AT_ONCE)))
    try:
        while byte := stream.read(1):
            target.write(byte)
    except _DAMAGE:
        return


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
