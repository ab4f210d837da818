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
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

READ_ONLY = os.O_RDONLY | os.O_CLOEXEC
# Records are nobody's business but the broker's.
OWN_FILE = 0o600
OWN_FOLDER = 0o700
READ_WRITE = os.O_RDWR | os.O_CLOEXEC
READ_WRITE_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

# Do without what Linux has beyond POSIX: elsewhere, and where tests ask for it.
PORTABLE = bool(os.environ.get("OTTLA_PORTABLE")) or not sys.platform.startswith("linux")
# A read that fails rather than wait for the disk; 0 where there is none.
_WITHOUT_WAITING: int = 0 if PORTABLE else getattr(os, "RWF_NOWAIT", 0)
_CANNOT_TELL = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_WARM_CHUNK = 512 << 10
# What the disk is asked for by one call. Each page is entered into the cache on the way: half a
# millisecond for four megabytes, in which some kernels let nobody else have the processor.
_ASKED_AT_ONCE = 256 << 10
# The kernel reads ahead at least this much at a time.
_PROBE_STRIDE = 128 << 10


@lru_cache(1)
def _nowhere() -> int:
    """A descriptor to which file ranges can be sent, and are gone; -1 where there is none."""
    return -1 if PORTABLE else os.open(os.devnull, os.O_WRONLY)


def _syncs_file_systems() -> bool:
    """Since 5.8 Linux tells of errors that happened since the file was opened."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return not PORTABLE and release is not None and (int(release[1]), int(release[2])) >= (5, 8)


_SYNCS_FILE_SYSTEMS = _syncs_file_systems()


class Reserve:
    """Descriptors that are kept back for what must not fail when the process has no other left: to
    flush, to store checkpoints, to begin a segment."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        # How many use them just now.
        self._users = 0
        self._lock = threading.Lock()
        self._hold()

    def use(self, work: Callable[[], T]) -> T:
        """Does the work; once more, with the descriptors that were kept back, if there is no other. So
        it must be something that can be begun again."""
        try:
            return work()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self.lent():
            return work()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The descriptors are free meanwhile: for what cannot be begun again if one is missing in the
        middle of it."""
        with self._lock:
            self._users += 1
            self.give_back()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._hold()

    def _hold(self) -> None:
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, READ_ONLY))
        except OSError:
            pass  # as many as there are; more the next time

    def give_back(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def __del__(self) -> None:
        self.give_back()


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

    def tells_what_is_in_memory(self, fd: int) -> bool:
        """Whether the file system of an open file knows what the page cache holds of it. (One that
        lives in memory does not say so.)"""
        if not _WITHOUT_WAITING:
            return False
        try:
            os.preadv(fd, [bytearray(1)], 0, _WITHOUT_WAITING)
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno not in _CANNOT_TELL
        return True

    def pread_in_memory(self, fd: int, size: int, position: int) -> bytes | None:
        """As `pread`, of what the page cache holds; None if (some of) it would come from the disk.
        Where the system cannot tell, everything counts as held."""
        if not _WITHOUT_WAITING:
            return self.pread(fd, size, position)
        buffer = bytearray(size)
        try:
            count = os.preadv(fd, [buffer], position, _WITHOUT_WAITING)
            if count == size:
                return bytes(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _CANNOT_TELL:
                raise
            return self.pread(fd, size, position)
        if position + count < self.size_of(fd):
            return None
        return bytes(buffer[:count])

    def seems_in_memory(self, fd: int, position: int, size: int) -> bool:
        """Whether samples of the range are in the page cache; what the kernel reads ahead just now may
        have gaps between them."""
        if _WITHOUT_WAITING:
            one = [bytearray(1)]
            last = position + size - 1
            try:
                for at in range(position, last, _PROBE_STRIDE):
                    os.preadv(fd, one, at, _WITHOUT_WAITING)
                os.preadv(fd, one, last, _WITHOUT_WAITING)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _CANNOT_TELL:
                    raise
        return True

    def disable_read_ahead(self, fd: int) -> None:
        """No read-ahead by the kernel for this descriptor. It would be done by whoever reads, in
        steps of many MiB on some disks: milliseconds of work for the event loop."""
        advise = getattr(os, "posix_fadvise", None)
        if advise is not None:
            advise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def bring_into_memory(self, fd: int, position: int, size: int) -> bool:
        """Reads a range so that the page cache holds it; whether the disk had to be asked. For
        threads."""
        waited = not self.seems_in_memory(fd, position, size)
        if waited:
            self._ask_for(fd, position, size)
        position, end = self._send_nowhere(fd, position, size), position + size
        if position == end:
            return waited
        # One small buffer for all of it: the bytes are not wanted, only that they were read.
        buffer = memoryview(bytearray(min(end - position, _WARM_CHUNK)))
        while position < end:
            got = os.preadv(fd, [buffer[: end - position]], position)
            if not got:
                break
            position += got
        return waited

    @staticmethod
    def _send_nowhere(fd: int, position: int, size: int) -> int:
        """The same without a copy: pages that are sent are read first. In one call, after which a
        thread needs the interpreter's lock once. Returns how far that went: nowhere, where only sockets
        can be sent to."""
        end = position + size
        try:
            nowhere = _nowhere()
        except OSError:
            return position  # no descriptor is left
        try:
            while nowhere >= 0 and position < end:
                sent = os.sendfile(nowhere, fd, position, end - position)
                if not sent:
                    return end  # of the file
                position += sent
        except OSError as error:
            if error.errno not in _CANNOT_TELL:
                raise
        return position

    @staticmethod
    def _ask_for(fd: int, position: int, size: int) -> None:
        advise = getattr(os, "posix_fadvise", None)
        if advise is not None:
            end = position + size
            for at in range(position, end, _ASKED_AT_ONCE):
                advise(fd, at, min(_ASKED_AT_ONCE, end - at), os.POSIX_FADV_WILLNEED)

    def read_ahead(self, fd: int, position: int, size: int) -> bool:
        """Asks the disk for a range without waiting for it; whether that was needed. For threads."""
        if self.seems_in_memory(fd, position, size):
            return False
        self._ask_for(fd, position, size)
        return True

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        return os.open(path, flags, OWN_FILE)

    def reserve(self, count: int) -> Reserve:
        """So many descriptors, kept back."""
        return Reserve(count)

    def write_all(self, fd: int, data: ReadableBuffer, position: int) -> None:
        """Writes everything or raises; what lies after `position` after an error is unknown."""
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

    def identity(self, path: str) -> tuple[int, int]:
        """What a folder is, whatever it is called: it keeps this when it is renamed, and another that
        gets its name has another."""
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def names(self, folder: str) -> list[str]:
        """Names in the folder, in no order."""
        return os.listdir(folder)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in the folder, in no order."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def mkdir(self, path: str) -> None:
        os.mkdir(path, OWN_FOLDER)

    def make_folders(self, path: str) -> None:
        """The folder with all its parents, if it is not there yet."""
        os.makedirs(path, OWN_FOLDER, exist_ok=True)

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

    def sync_file_system(self, fd: int) -> bool:
        """Makes everything last that is on the file system of this file, in one go. False if the
        system has no such call that tells of errors, or if there was one: then each file has to be
        synced by itself."""
        if not _SYNCS_FILE_SYSTEMS:
            return False
        import ctypes  # rarely needed

        return bool(ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0)

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

    def replace_file(self, path: str, *parts: ReadableBuffer) -> None:
        """Old content or new (all of these parts), never a mixture, also after a power loss: temporary
        file, fsync, rename, fsync of the folder."""
        temporary = path + ".tmp"
        fd = self.open(temporary, READ_WRITE_CREATE)
        try:
            self.truncate(fd, 0)
            position = 0
            for part in parts:
                self.write_all(fd, part, position)
                position += memoryview(part).nbytes
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
        never shrink any more: reading beyond the end of a mapped file kills the process."""
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


class FilesOfFolder(Files):
    """The files of one folder, by its descriptor: whatever becomes of the folder's name, nothing is
    found, made or removed in another folder that has the name then. Paths are as elsewhere, and all
    mean this folder. `close_folder` gives the descriptor back."""

    def __init__(self, folder: str, identity: tuple[int, int]) -> None:
        """FileNotFoundError if the folder of that name is another one."""
        self._folder = os.open(folder, READ_ONLY | os.O_DIRECTORY)
        found = os.fstat(self._folder)
        if (found.st_dev, found.st_ino) != identity:
            self.close_folder()
            raise FileNotFoundError(errno.ENOENT, "another folder has its name now", folder)

    def close_folder(self) -> None:
        os.close(self._folder)

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        return os.open(os.path.basename(path), flags, OWN_FILE, dir_fd=self._folder)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        os.unlink(os.path.basename(path), dir_fd=self._folder)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        os.replace(
            os.path.basename(source),
            os.path.basename(target),
            src_dir_fd=self._folder,
            dst_dir_fd=self._folder,
        )

    def _stat(self, path: str) -> os.stat_result:
        return os.stat(os.path.basename(path), dir_fd=self._folder)

    def size(self, path: str) -> int:
        return self._stat(path).st_size

    def modified(self, path: str) -> float:
        return self._stat(path).st_mtime

    def set_modified(self, path: str, seconds: float) -> None:
        os.utime(os.path.basename(path), (seconds, seconds), dir_fd=self._folder)

    def exists(self, path: str) -> bool:
        try:
            self._stat(path)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:  # noqa: ARG002 - there is but one
        return os.listdir(self._folder)

    def fsync_folder(self, path: str) -> None:  # noqa: ARG002
        os.fsync(self._folder)
