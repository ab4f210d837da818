"""A disk in memory that fails on purpose: the file layer under the storage room's crash tests.

`Disk` keeps for every file and folder what a real one would have on its platters and what is only in
the page cache. `FaultyFiles` is the file layer of one life of a process on that disk. A power loss
ends that life; `Disk.lose_power` then decides, by a seeded generator, what of the unsynced work is
there afterwards:

- of unsynced writes, any subset of 512-byte sectors, in any order, and any of the sizes that the file
  had in between; where a size lasted and data did not, there are zeros;
- of unsynced creations, renames and removals in a folder, either the first few or any subset;
- what was synced, always.

Beside that, the n-th call can be made to fail with an error of choice. A failed fsync of a `.log` file
behaves as on Linux: the data stays readable and never reaches the disk, and the next fsync succeeds.
(Of other files it is merely late: they can be made anew, and nobody who lost one was told otherwise.)
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.storage.files import Files, Reserve

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SECTOR = 512


class PowerLoss(Exception):
    """The process ends here: no OSError, so that nothing on the way handles it."""


class _File:
    """Content as a process sees it, and as the disk has it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        # Since the last fsync, in order: (position, bytes) of a write, (size, None) of a truncation.
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        # What a failed fsync dropped is not on the disk, though it is read.
        for position, data in self.pending:
            if data is not None:
                _put(self.durable, position, data)
            else:
                if len(self.durable) < position:
                    self.durable.extend(bytes(position - len(self.durable)))
                del self.durable[position:]
        self.pending.clear()

    def after_power_loss(self, chance: random.Random) -> bytearray:
        content = bytearray(self.durable)
        pending = self.pending
        # Sizes last in order, up to some point; sectors in any order, with some likelihood.
        lasting = chance.choice((0, len(pending), chance.randint(0, len(pending))))
        likelihood = chance.choice((0.0, 1.0, chance.random()))
        size = len(content)
        for number, (position, data) in enumerate(pending):
            if data is None:
                if number < lasting:
                    size = position
                    del content[size:]
                continue
            if number < lasting:
                size = max(size, position + len(data))
            at = 0
            while at < len(data):
                # Sectors are those of the file, not of the write.
                step = SECTOR - (position + at) % SECTOR
                if chance.random() < likelihood:
                    _put(content, position + at, data[at : at + step])
                at += step
        if len(content) < size:
            content.extend(bytes(size - len(content)))
        del content[size:]
        return content


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


class _Folder:
    """Entries as a process sees them, and as the disk has them."""

    def __init__(self) -> None:
        self.entries: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}
        # Since the last fsync, in order: names that go, and names that come.
        self.pending: list[tuple[tuple[str, ...], dict[str, _File | _Folder]]] = []

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def change(self, gone: tuple[str, ...], come: dict[str, _File | _Folder]) -> None:
        self.pending.append((gone, come))
        self._apply(self.entries, gone, come)

    @staticmethod
    def _apply(
        entries: dict[str, _File | _Folder],
        gone: tuple[str, ...],
        come: dict[str, _File | _Folder],
    ) -> None:
        for name in gone:
            entries.pop(name, None)
        entries.update(come)

    def after_power_loss(self, chance: random.Random, in_order: bool) -> dict[str, _File | _Folder]:
        entries = dict(self.durable)
        pending = self.pending
        if in_order or chance.random() < 0.5:
            kept = pending[: chance.randint(0, len(pending))]
        else:
            likelihood = chance.random()
            kept = [change for change in pending if chance.random() < likelihood]
        for gone, come in kept:
            self._apply(entries, gone, come)
        return entries


class Disk:
    """What outlives a process.

    `names_in_order`: what is changed later in a folder lasts only if what was changed earlier does, as
    with every journal of names (ext4, XFS, btrfs).
    """

    def __init__(self, *, names_in_order: bool = False) -> None:
        self._root = _Folder()
        self._names_in_order = names_in_order

    def sync(self) -> None:
        """Everything lasts."""
        folders = [self._root]
        while folders:
            folder = folders.pop()
            folder.sync()
            for entry in folder.entries.values():
                if isinstance(entry, _Folder):
                    folders.append(entry)
                else:
                    entry.sync()

    def lose_power(self, chance: random.Random) -> None:
        """From now on the disk holds what a power loss left of it, and nothing is pending."""
        self._root = self._survivor(self._root, chance, {})

    def _survivor(self, folder: _Folder, chance: random.Random, seen: dict[int, _File]) -> _Folder:
        survivor = _Folder()
        for name, entry in folder.after_power_loss(chance, self._names_in_order).items():
            kept: _File | _Folder
            if isinstance(entry, _Folder):
                kept = self._survivor(entry, chance, seen)
            else:
                kept = seen.get(id(entry)) or _File()
                if id(entry) not in seen:
                    kept.data = entry.after_power_loss(chance)
                    kept.durable = bytearray(kept.data)
                    seen[id(entry)] = kept
            survivor.entries[name] = survivor.durable[name] = kept
        return survivor

    def find(self, path: str) -> _File | _Folder | None:
        entry: _File | _Folder | None = self._root
        for part in path.strip("/").split("/"):
            if not isinstance(entry, _Folder):
                return None
            if part:
                entry = entry.entries.get(part)
        return entry

    def folder(self, path: str) -> tuple[_Folder, str]:
        """The folder that a path is in, and its name there."""
        parent, name = os.path.split(path.rstrip("/"))
        found = self.find(parent)
        if not isinstance(found, _Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found, name

    def make_durable_folder(self, path: str) -> None:
        """A folder that was there before the test."""
        folder = self._root
        for part in path.strip("/").split("/"):
            found = folder.entries.setdefault(part, _Folder())
            assert isinstance(found, _Folder)
            folder.durable[part] = found
            folder = found


class FaultyFiles(Files):
    """The file layer of one process on a `Disk`.

    Calls that change something, or sync, are counted. Before the `power_loss_at`-th the power goes;
    `faults` has errors for calls by their number, or `fault` decides. (Reads fail through `fault`
    too, with number 0: they are not counted, so that a scenario keeps its numbers.)
    """

    def __init__(
        self,
        disk: Disk,
        *,
        power_loss_at: int = 0,
        faults: dict[int, int] | None = None,
        fault: Callable[[str, str], int] | None = None,
        short_writes: random.Random | None = None,
    ) -> None:
        self.disk = disk
        self.calls = 0
        self.power_loss_at = power_loss_at
        self.faults = faults or {}
        self.fault = fault
        self.short_writes = short_writes
        self.lost_power = False
        self._descriptors: dict[int, tuple[_File, str]] = {}
        self._next_descriptor = 1000
        self._locks: dict[int, str] = {}

    # Faults

    def _call(self, kind: str, path: str) -> None:
        self._alive()
        self.calls += 1
        if self.calls == self.power_loss_at:
            self.lost_power = True
            raise PowerLoss
        number = self.faults.get(self.calls, 0)
        if not number and self.fault is not None:
            number = self.fault(kind, path)
        if number:
            if kind == "fsync":
                found = self.disk.find(path)
                if isinstance(found, _File) and path.endswith(".log"):
                    # Pages are dropped from the list of what is to be written; the size is not a page.
                    found.pending = [change for change in found.pending if change[1] is None]
            raise OSError(number, os.strerror(number), path)

    def _look(self, kind: str, path: str) -> None:
        self._alive()
        number = self.fault(kind, path) if self.fault is not None else 0
        if number:
            raise OSError(number, os.strerror(number), path)

    def _alive(self) -> None:
        if self.lost_power:
            raise PowerLoss

    @contextmanager
    def no_faults(self) -> Iterator[None]:
        kept = self.faults, self.fault, self.power_loss_at
        self.faults, self.fault, self.power_loss_at = {}, None, 0
        try:
            yield
        finally:
            self.faults, self.fault, self.power_loss_at = kept

    # Files

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        self._alive()
        folder, name = self.disk.folder(path)
        found = folder.entries.get(name)
        if isinstance(found, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if found is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._call("create", path)
            found = _File()
            folder.change((), {name: found})
        else:
            self._look("open", path)
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = found, path
        return self._next_descriptor

    def reserve(self, count: int) -> Reserve:
        return Reserve(0)

    def close(self, fd: int) -> None:
        self._locks.pop(fd, None)
        if self._descriptors.pop(fd, None) is None and not self.lost_power:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    @property
    def open_descriptors(self) -> int:
        return len(self._descriptors)

    def _of(self, fd: int) -> tuple[_File, str]:
        self._alive()
        found = self._descriptors.get(fd)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        file, path = self._of(fd)
        content = bytes(data)
        try:
            self._call("pwrite", path)
        except (PowerLoss, OSError):
            # Some of it may have reached the page cache.
            if self.short_writes is not None:
                self._write(file, content[: self.short_writes.randint(0, len(content))], position)
            raise
        if self.short_writes is not None and self.short_writes.random() < 0.1:
            content = content[: self.short_writes.randint(1, len(content))]
        self._write(file, content, position)
        return len(content)

    def _write(self, file: _File, content: bytes, position: int) -> None:
        if content:
            file.pending.append((position, content))
            _put(file.data, position, content)

    def disable_read_ahead(self, fd: int) -> None:
        self._of(fd)

    def tells_what_is_in_memory(self, fd: int) -> bool:
        return True

    def pread_in_memory(self, fd: int, size: int, position: int) -> bytes:
        return self.pread(fd, size, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        file, path = self._of(fd)
        self._look("pread", path)
        return bytes(file.data[position : position + size])

    def truncate(self, fd: int, size: int) -> None:
        file, path = self._of(fd)
        self._call("truncate", path)
        file.pending.append((size, None))
        if len(file.data) < size:
            file.data.extend(bytes(size - len(file.data)))
        del file.data[size:]

    def preallocate(self, fd: int, size: int) -> None:
        file, _ = self._of(fd)
        if len(file.data) < size:
            self.truncate(fd, size)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        file, path = self._of(fd)
        self._call("fsync", path)
        file.sync()

    def sync_file_system(self, fd: int) -> bool:
        try:
            self._call("syncfs", self._of(fd)[1])
        except OSError:
            return False
        self.disk.sync()
        return True

    def forget_cached(self, fd: int, position: int) -> None:
        file, _ = self._of(fd)
        content = bytearray(file.durable)
        for at, data in file.pending:
            if data is not None:
                _put(content, at, data)
            else:
                if len(content) < at:
                    content.extend(bytes(at - len(content)))
                del content[at:]
        # The size is not cached by page.
        content.extend(bytes(max(0, len(file.data) - len(content))))
        file.data[position:] = content[position : len(file.data)]

    def map(self, path: str) -> memoryview:
        self._look("map", path)
        return memoryview(self.read_file(path))

    def size_of(self, fd: int) -> int:
        return len(self._of(fd)[0].data)

    # Names

    def size(self, path: str) -> int:
        self._look("stat", path)
        found = self.disk.find(path)
        if not isinstance(found, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return len(found.data)

    def modified(self, path: str) -> float:
        self.size(path)
        return 0.0

    def set_modified(self, path: str, seconds: float) -> None:
        self._call("utime", path)
        self.size(path)

    def exists(self, path: str) -> bool:
        self._alive()
        return self.disk.find(path) is not None

    def identity(self, path: str) -> tuple[int, int]:
        return 0, id(self.disk.find(path))

    def is_folder(self, path: str) -> bool:
        self._alive()
        return isinstance(self.disk.find(path), _Folder)

    def _entries(self, path: str) -> dict[str, _File | _Folder]:
        self._look("list", path)
        found = self.disk.find(path)
        if not isinstance(found, _Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found.entries

    def names(self, folder: str) -> list[str]:
        return list(self._entries(folder))

    def folders(self, folder: str) -> list[str]:
        return [name for name, entry in self._entries(folder).items() if isinstance(entry, _Folder)]

    def mkdir(self, path: str) -> None:
        folder, name = self.disk.folder(path)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._call("mkdir", path)
        folder.change((), {name: _Folder()})

    def make_folders(self, path: str) -> None:
        self._alive()
        if self.disk.find(path) is None:
            self.make_folders(os.path.dirname(path.rstrip("/")))
            self.mkdir(path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        if self._entries(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._call("rmdir", path)
        folder, name = self.disk.folder(path)
        folder.change((name,), {})

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._alive()
        folder, name = self.disk.folder(path)
        if not isinstance(folder.entries.get(name), _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._call("unlink", path)
        folder.change((name,), {})

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._alive()
        folder, name = self.disk.folder(source)
        target_folder, target_name = self.disk.folder(target)
        assert folder is target_folder, "renames stay in one folder"
        entry = folder.entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._call("rename", target)
        folder.change((name,), {target_name: entry})

    def fsync_folder(self, path: str) -> None:
        self._entries(path)
        self._call("fsync", path)
        folder = self.disk.find(path)
        assert isinstance(folder, _Folder)
        folder.sync()

    def lock(self, path: str) -> int:
        if path in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        self._locks[fd] = path
        return fd
