"""Files and folders that a crash leaves whole: what is synced, and what changes at one stroke.

A rename is atomic for those who look, and survives a power cut once the folder is synced. Two folders
can trade places at one stroke, too (Linux: renameat2, macOS: renamex_np); not every file system does it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_NOT_OFFERED: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)


class ExchangeNotOffered(OSError):
    """The system or the file system cannot let two folders trade places."""


def sync(*paths: Path) -> None:
    """Put files, or the names in folders, on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; each that is new is on the disk."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_whole(path: Path, text: str) -> None:
    """A small file, which is there with all of its text or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Lets two folders trade places: either name leads to the one or the other folder at any time."""
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        code = library.renamex_np(os.fsencode(one), os.fsencode(other), _EXCHANGE)
    elif hasattr(library, "renameat2"):
        code = library.renameat2(
            _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE
        )
    else:
        raise ExchangeNotOffered(errno.ENOSYS, "this system cannot exchange folders")
    if code:
        number = ctypes.get_errno()
        kind = ExchangeNotOffered if number in _NOT_OFFERED else OSError
        raise kind(number, os.strerror(number), str(one))
    sync(*{one.parent, other.parent})


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock of a file for a while, if nobody else does; tells whether it is held.

    The lock ends with the process, however that ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold the lock of a file together with others who share it; waits for one who does not."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def moved(files: Iterable[tuple[Path, Path]]) -> None:
    """Rename files that are synced already; when it returns, the new names are on the disk."""
    folders = set()
    for source, target in files:
        make_folder(target.parent)
        source.rename(target)
        folders.add(target.parent)
    sync(*sorted(folders))
