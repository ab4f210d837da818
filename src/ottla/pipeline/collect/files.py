"""A file that is followed: knowing it again, reading on.

A file is its device and inode, not its name: renamed by a rotation it is read to its end, and what
appears under its name is another file. An open file can be read even when it is deleted.

Device and inode are used again after a file is deleted, and a file may be emptied and filled anew
(copytruncate). So the bytes before the position are remembered; where others stand in their place, the
file is another one.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import xxhash

from ottla.pipeline.collect.compressed import unpacked
from ottla.pipeline.collect.patterns import COMPRESSED
from ottla.pipeline.collect.positions import Place

COMPARED: Final = 256  # bytes of a file's beginning, and before its position


class Spot(NamedTuple):
    """A position in a file: after a newline, or after some parts of a line that was cut."""

    position: int = 0
    part: int = 0  # parts of the line at the position that lie before it
    beginning: bytes = b""  # the first bytes of the file, of those before the position
    before: bytes = b""  # the last bytes before the position

    def after(self, data: bytes, part: int) -> Spot:
        """The spot after `data`, which stands at this one."""
        last = data[-COMPARED:]
        return Spot(
            self.position + len(data),
            part,
            self.beginning + data[: COMPARED - len(self.beginning)],
            (self.before + last)[-COMPARED:],
        )


START: Final = Spot()


@dataclass(slots=True, eq=False)
class FollowedFile:
    """An open file and how far it was sent: `at` is what is committed."""

    path: str  # where it was found first; it stays the file's name when the file is renamed
    pattern: str  # what found it
    descriptor: int
    device: int
    inode: int
    packed: int | None = None  # the file itself, where `descriptor` is what it holds unpacked
    damage: str | None = None  # why it could not be unpacked to its end
    packed_state: tuple[int, int] = (0, 0)  # its size and time when it was unpacked
    at: Spot = START
    begin: Spot = START  # where to begin when no position was kept
    unsaved: bool = False  # its position is to be kept though nothing of it is sent
    at_end: bool = False  # there was nothing more to send when it was last looked at
    listed: bool = True  # a pattern finds it now
    follows: FollowedFile | None = None  # the file that had this path before, to be read first
    copies: FollowedFile | None = (
        None  # the file that this is a copy of: that one sends what both have
    )
    quiet_since: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def deleted(self) -> bool:
        itself = self.descriptor if self.packed is None else self.packed
        return os.fstat(itself).st_nlink == 0

    @property
    def untouched(self) -> bool:
        """Whether nothing of it was sent, and nothing says where to begin."""
        return self.at == self.begin == START

    @property
    def intact(self) -> bool:
        """Whether it still has before its position what it had."""
        return self.bytes_before(self.at.position) == self.at.before

    def read(self, size: int) -> bytes | None:
        """At most so many bytes from the position on; None: this is not the file it was."""
        before = self.at.before
        data = os.pread(self.descriptor, len(before) + size, self.at.position - len(before))
        return data[len(before) :] if data.startswith(before) else None

    def bytes_before(self, position: int) -> bytes:
        start = max(0, position - COMPARED)
        return os.pread(self.descriptor, position - start, start)

    def first_bytes(self, position: int) -> bytes:
        """The beginning of the first `position` bytes."""
        return os.pread(self.descriptor, min(position, COMPARED), 0)

    def spot(self, position: int, part: int = 0) -> Spot:
        return Spot(position, part, self.first_bytes(position), self.bytes_before(position))

    def place(self, at: Spot | None = None) -> Place:
        """What to keep of it when it is there (or where it is)."""
        spot = self.at if at is None else at
        return Place(
            self.path,
            self.pattern,
            self.device,
            self.inode,
            spot.position,
            spot.part,
            fingerprint(spot.beginning),
            fingerprint(spot.before),
        )

    def is_at(self, place: Place) -> bool:
        """Whether this is the file of a place that was kept."""
        return (
            self.size >= place.position
            and fingerprint(self.bytes_before(place.position)) == place.before
        )

    def unpack_again(self) -> None:
        """Unpack a damaged file that has changed once more: it may be whole by now."""
        assert self.packed is not None
        self.packed_state = _state(os.fstat(self.packed))
        contents = unpacked(self.packed)
        if contents is not None:
            os.close(self.descriptor)
            self.descriptor, self.damage = contents

    def is_changed(self, status: os.stat_result) -> bool:
        """Whether a file that could not be unpacked to its end is another by now."""
        return self.damage is not None and _state(status) != self.packed_state

    def close(self) -> None:
        os.close(self.descriptor)
        if self.packed is not None:
            os.close(self.packed)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def fingerprint(data: bytes) -> str:
    return f"{len(data)}:{xxhash.xxh3_128_hexdigest(data)}"


def _named_after(path: str, other: str) -> bool:
    """Whether a path is another with something after it, as access.log.1 of access.log."""
    return path != other and path.startswith(other)


def open_file(path: str, pattern: str) -> FollowedFile | None:
    """Open a file; None if it is gone, or no file. Raises OSError for anything else.

    What a compressed file holds is unpacked first.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    if path.endswith(COMPRESSED):
        try:
            contents = unpacked(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        if contents is not None:
            return FollowedFile(
                path,
                pattern,
                contents.descriptor,
                status.st_dev,
                status.st_ino,
                descriptor,
                contents.damage,
                _state(status),
            )
    return FollowedFile(path, pattern, descriptor, status.st_dev, status.st_ino)


def open_renamed(place: Place) -> FollowedFile | None:
    """The file of a place, which has another name now, in the folder where it was."""
    try:
        with os.scandir(os.path.dirname(place.path)) as entries:
            names = [entry.path for entry in entries if entry.inode() == place.inode]
    except OSError:
        return None
    for name in names:
        # Of a file of which nothing was sent nothing is known but its name.
        if name.endswith(COMPRESSED) or not (place.position or _named_after(name, place.path)):
            continue
        try:
            file = open_file(name, place.pattern)
        except OSError:
            continue
        if file is None:
            continue
        if file.inode == place.inode and file.is_at(place):
            file.path = place.path
            return file
        file.close()
    return None


def is_copy(copy: FollowedFile, original: FollowedFile) -> bool:
    """Whether one file is a copy of the other, or of its beginning, as far as that was sent."""
    size = copy.size
    position = min(size, original.at.position)
    return (
        position > 0
        and size <= original.size
        and copy.bytes_before(position) == original.bytes_before(position)
    )


def covered(copy: FollowedFile, past: Place) -> int | None:
    """How much of a file was sent from the file it is a copy of, which is another now.

    `past` is where that one was. None: it is no copy.
    """
    if not past.position or not _named_after(copy.path, past.path):
        return None
    size = copy.size
    if size >= past.position:
        same = fingerprint(copy.bytes_before(past.position)) == past.before
        return past.position if same else None
    # Lines that came between the copy and the truncation were sent, and are not in the copy.
    return size if size and fingerprint(copy.first_bytes(past.position)) == past.beginning else None
