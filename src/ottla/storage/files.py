"""The file layer: every system call that storage makes goes through a `Files`.

The default is as thin as it can be: its hot calls *are* the functions of `os`, so that the layer
costs one attribute lookup. Tests put a `Files` in its place that keeps everything in memory and
loses, tears and reorders what was not synced, or that fails the n-th call.

Rules that the callers keep, and that the fault-injecting layer checks by breaking them:

- data is safe once `fsync(fd)` returned; a new, renamed or removed name once `fsync_folder` did;
- after a failed `fsync` nothing about the file's unsynced data is known, and a second `fsync` that
  succeeds proves nothing: the caller gives the file up;
- `pwrite` may write less than it was asked to; `write_all` goes on until all is written.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READ_ONLY = os.O_RDONLY | os.O_CLOEXEC
READ_WRITE = os.O_RDWR | os.O_CLOEXEC
READ_WRITE_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Files:
    """System calls on files and folders. Paths are strings, files are descriptors.

    Errors are `OSError`, as the system gives them.
    """

    pwrite = staticmethod(os.pwrite)
    pread = staticmethod(os.pread)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    unlink = staticmethod(os.unlink)
    # Replaces the target, and needs an fsync of the folder to last.
    rename = staticmethod(os.replace)
    rmdir = staticmethod(os.rmdir)

    if sys.platform == "darwin":

        def fsync(self, fd: int) -> None:
            # fsync(2) on macOS stops at the drive's cache.
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        # fdatasync also makes the file's size last, and spares the journal the timestamps.
        fsync = staticmethod(os.fdatasync)

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        return os.open(path, flags, 0o644)

    def write_all(self, fd: int, data: ReadableBuffer, position: int) -> None:
        """Writes everything or raises; what lies behind `position` after an error is unknown."""
        size = memoryview(data).nbytes
        written = self.pwrite(fd, data, position)
        while written < size:
            with memoryview(data) as view, view.cast("B")[written:] as rest:
                step = self.pwrite(fd, rest, position + written)
            if step <= 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            written += step

    def size(self, path: str) -> int:
        """The file's size; `FileNotFoundError` if there is none."""
        return os.stat(path).st_size

    def size_of(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def modified(self, path: str) -> float:
        """Seconds since 1970 at which the file was last written."""
        return os.stat(path).st_mtime

    def set_modified(self, path: str, seconds: float) -> None:
        os.utime(path, (seconds, seconds))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, folder: str) -> list[str]:
        """Names in the folder, in no order."""
        return os.listdir(folder)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in the folder, in no order."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def make_folders(self, path: str) -> None:
        """The folder with all its parents, if it is not there yet."""
        os.makedirs(path, 0o755, exist_ok=True)

    def fsync_folder(self, path: str) -> None:
        """Makes creations, renames and removals in the folder last."""
        fd = os.open(path, READ_ONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def forget_cached(self, fd: int, position: int) -> None:
        """Lets the next reads from `position` on come from the disk, where the cache holds no newer
        data. After a failed fsync the kernel takes pages for clean that never got there."""
        advise = getattr(os, "posix_fadvise", None)
        if advise is not None:
            advise(fd, position, 0, os.POSIX_FADV_DONTNEED)

    def sync_all(self) -> None:
        """Writes back everything that is dirty, in one go; tells of no errors. A head start for many
        fsyncs, no replacement."""
        os.sync()

    def read_file(self, path: str) -> bytes:
        fd = self.open(path)
        try:
            size = self.size_of(fd)
            parts = []
            position = 0
            while position < size:
                part = self.pread(fd, size - position, position)
                if not part:
                    break
                parts.append(part)
                position += len(part)
            return b"".join(parts)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: bytes) -> None:
        """Old content or new, never a mixture, also after a power loss: temporary file, fsync,
        rename, fsync of the folder."""
        temporary = path + ".tmp"
        fd = self.open(temporary, READ_WRITE_CREATE)
        try:
            self.truncate(fd, 0)
            self.write_all(fd, data, 0)
            self.fsync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.fsync_folder(os.path.dirname(path))

    def preallocate(self, fd: int, size: int) -> None:
        """Reserves blocks (and sets the size, as Kafka's preallocation does); a no-op at worst."""
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            os.ftruncate(fd, size)
        else:
            allocate(fd, 0, size)

    def map(self, path: str) -> memoryview:
        """The file mapped read-only; unmapped when the last view of it is gone. Only for files that
        never shrink any more: reading behind the end of a mapped file kills the process."""
        fd = self.open(path)
        try:
            if self.size_of(fd) == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        finally:
            self.close(fd)

    def lock(self, path: str) -> int:
        """Creates and locks the file; `BlockingIOError` if another holds it. Closing it again,
        or the end of the process, gives the lock back."""
        fd = self.open(path, READ_WRITE_CREATE)
        try:
            # flock keeps two openers in one process apart; the POSIX lock is the one Java takes,
            # so that a Kafka broker and Ottla never share a folder.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close(fd)
            raise
        return fd

    def remove_tree(self, path: str) -> None:
        """Removes a folder of plain files (a log's folder holds nothing else)."""
        for name in self.names(path):
            self.unlink(os.path.join(path, name))
        self.rmdir(path)


OS_FILES = Files()
