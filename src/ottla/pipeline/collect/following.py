"""The files of a collector: which there are, where each is, what became of those that were rotated.

Rotation by renaming needs nothing: the file stays open, and what appears under its name is a new one,
which is read when the old one has been. A file that was renamed while no collector ran is looked for in
its folder. It is let go when it is deleted and has been quiet for a while.

Rotation by copying (copytruncate) makes a new file whose beginning was sent already, and empties the
old one. A new file that is named after one that is followed, and begins with what that one has sent, is
taken for a copy: it is left alone until its original has shrunk, and then read from where that one was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ottla.pipeline.collect.files import (
    START,
    FollowedFile,
    Spot,
    covered,
    is_copy,
    open_file,
    open_renamed,
)
from ottla.pipeline.collect.patterns import Patterns
from ottla.pipeline.collect.positions import Place

FIND_EVERY: Final = 1.0  # seconds between looks for new files
LET_GO_AFTER: Final = 10.0  # seconds for which a deleted file must have been quiet
_BACKWARDS: Final = 64 * 1024  # bytes at a time, in search of the end of the last line

Places = Mapping[tuple[int, int], Place]


class Following:
    """All files that are followed, in the order in which they were found."""

    def __init__(self, patterns: Patterns, note: Callable[[str], None]) -> None:
        self._patterns = patterns
        self._note = note
        self._files: dict[tuple[int, int], FollowedFile] = {}
        self._left_out: set[str] = set()  # paths whose trouble was told
        self._find_next = 0.0  # monotonic

    def __iter__(self) -> Iterator[FollowedFile]:
        return iter(list(self._files.values()))

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # Finding

    def restore(self, places: Places, *, from_end: bool) -> tuple[list[Place], list[Place]]:
        """Put every file where the positions say; `from_end` is for those that have no place.

        The answer: the places whose files are gone, and those whose files are on another device now.
        """
        pasts: list[Place] = []
        moved: list[Place] = []
        for file in self:
            place = places.get(file.key)
            file.unsaved = place is None
            pasts += self._put(file, place)
        for file in self._open_new():
            place = places.get(file.key) or _of_other_device(file, places)
            pasts += self._put(file, place)
            if place is not None and file.at is not START:
                file.path = place.path
                file.unsaved = place != file.place()  # found by another pattern, on another device
                if place.key != file.key:
                    moved.append(place)
            elif from_end:
                self._begin_at(file, file.spot(_end_of_last_line(file)))
        gone = self._find_renamed(
            place for place in places.values() if place not in moved and place not in pasts
        )
        for past in pasts:
            self.release_copies(past)
            if self._files[past.key].path == past.path:
                self._note(f"{past.path} is not the file it was; it is read from its start")
            elif past.pattern in self._patterns.patterns:
                gone.append(past)  # its inode is another's now
        self._hold_copies()
        return gone, moved

    @staticmethod
    def _put(file: FollowedFile, place: Place | None) -> Iterator[Place]:
        if place is None:
            file.at = file.begin
        elif file.is_at(place):
            file.at = file.spot(place.position, place.part)
        else:
            file.at = START
            yield place

    def find(self) -> None:
        """Look for new files, if it is time to."""
        if time.monotonic() >= self._find_next:
            self._open_new()
            self._hold_copies()

    def _open_new(self) -> list[FollowedFile]:
        self._find_next = time.monotonic() + FIND_EVERY
        listed = set()
        new = []
        for found in self._patterns.find():
            key = (found.status.st_dev, found.status.st_ino)
            if key in self._files:
                self._look_again(self._files[key], found.status)
            else:
                file = self._open(found.path, found.pattern)
                if file is None:
                    continue
                key = file.key
                if key not in self._files:
                    earlier = [other for other in self if other.path == file.path]
                    file.follows = earlier[-1] if earlier else None
                    file.unsaved = (
                        True  # so that it is looked for if it is renamed before it is read
                    )
                    self._files[key] = file
                    new.append(file)
                else:
                    file.close()  # it was renamed just now
            listed.add(key)
        for key, file in self._files.items():
            file.listed = key in listed
        return new

    def _open(self, path: str, pattern: str) -> FollowedFile | None:
        try:
            file = open_file(path, pattern)
        except OSError as problem:
            if path not in self._left_out:
                self._left_out.add(path)
                self._note(f"{path} is left out: {problem.strerror}")
            return None
        if file is not None:
            self._left_out.discard(path)
            self._tell_damage(file)
        return file

    def _look_again(self, file: FollowedFile, status: os.stat_result) -> None:
        """Unpack a compressed file again if it has changed: it may have been found while it was
        written."""
        if file.is_changed(status):
            try:
                file.unpack_again()
            except OSError as problem:
                file.damage = problem.strerror
            self._tell_damage(file)

    def _tell_damage(self, file: FollowedFile) -> None:
        if file.damage is not None:
            self._note(f"{file.path} is damaged: {file.damage}; what is before that is sent")

    @property
    def incomplete(self) -> set[str]:
        """The paths of files of which not all could be read."""
        return self._left_out | {file.path for file in self if file.damage is not None}

    def _find_renamed(self, places: Iterable[Place]) -> list[Place]:
        gone = []
        renamed: dict[tuple[int, int], FollowedFile] = {}
        known = set(self._files)
        # By their names: the last ones, and the last ones that were not read to their ends. Only what
        # is to be read makes a chain: there may be thousands of files that are not.
        last: dict[str, FollowedFile] = {}
        unread: dict[str, FollowedFile] = {}
        for place in places:
            if place.key in known or place.pattern not in self._patterns.patterns:
                continue
            file = open_renamed(place)
            if file is None or file.key in known:
                gone.append(place)
                continue
            file.listed = False
            file.unsaved = file.key != place.key
            file.at = file.spot(place.position, place.part)
            file.follows = unread.get(file.path)
            if file.size > file.at.position:
                unread[file.path] = file
            renamed[file.key] = last[file.path] = file
            known.add(file.key)
        for other in self:
            other.follows = other.follows or last.get(other.path)
        # Before those that have their names now, which the next ones of these names are to follow.
        self._files = renamed | self._files
        return gone

    # Files that are emptied, copied, deleted

    @staticmethod
    def _begin_at(file: FollowedFile, spot: Spot) -> None:
        file.at = file.begin = spot
        file.unsaved = True

    def begin_anew(self, file: FollowedFile) -> None:
        """Read a file from its start, because it is not what it was, and its copy from where it was."""
        self._note(f"{file.path} was emptied or written anew; it is read from its start")
        past = file.place()
        self._open_new()
        file.at = file.begin = START
        file.at_end = False
        self.release_copies(past, file)

    def _hold_copies(self) -> None:
        by_path: dict[str, list[FollowedFile]] = {}
        for file in self:
            by_path.setdefault(file.path, []).append(file)
        for file in self:
            if not file.untouched or not file.size:
                continue
            shortest = len(os.path.dirname(file.path)) + 2
            originals = [
                other
                for length in range(shortest, len(file.path))
                for other in by_path.get(file.path[:length], ())
            ]
            for other in originals:
                if not other.intact:
                    self.begin_anew(other)
            if file.untouched:
                file.copies = next((other for other in originals if is_copy(file, other)), None)

    def release_copies(self, past: Place, original: FollowedFile | None = None) -> None:
        """Let the copies of a file that is read no further go on from `past`, where it was."""
        for file in self:
            if not file.untouched:
                continue
            if original is not None and file.copies is original:
                position: int | None = min(file.size, past.position)
            else:
                position = covered(file, past)
            if position is not None:
                part = past.part if position == past.position else 0
                self._begin_at(file, file.spot(position, part))
                file.copies = None

    def to_let_go(self) -> list[FollowedFile]:
        """Deleted files that nobody has written to for a while."""
        latest = time.monotonic() - LET_GO_AFTER
        return [
            file
            for file in self
            if not file.listed and file.at_end and file.quiet_since < latest and file.deleted
        ]

    def let_go(self, file: FollowedFile) -> None:
        """Close a file that is over and whose position was deleted."""
        del self._files[file.key]
        for other in self:
            if other.follows is file:
                other.follows = None
        file.close()


def _of_other_device(file: FollowedFile, places: Places) -> Place | None:
    """The place of a file with the same inode and name on a device of another number: devices may be
    numbered anew when a machine starts."""
    alike = (
        place for place in places.values() if place.inode == file.inode and place.path == file.path
    )
    return next((place for place in alike if file.is_at(place)), None)


def _end_of_last_line(file: FollowedFile) -> int:
    end = file.size
    while end > 0:
        start = max(0, end - _BACKWARDS)
        newline = os.pread(file.descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
