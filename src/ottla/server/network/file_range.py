"""A piece of a file on its way to a socket."""

from __future__ import annotations

from typing import Protocol


class OpenFile(Protocol):
    """A file that stays open as long as somebody holds it (a segment may be deleted meanwhile)."""

    fd: int

    def seems_in_memory(self, position: int, size: int) -> bool: ...

    def bring_into_memory(self, position: int, size: int) -> bool: ...


class FileRange:
    __slots__ = ("file", "is_from_disk", "length", "position")

    def __init__(
        self, file: OpenFile, position: int, length: int, is_from_disk: bool = False
    ) -> None:
        """`is_from_disk`: of somebody who goes through old data."""
        self.file = file
        self.position = position
        self.length = length
        self.is_from_disk = is_from_disk

    def __len__(self) -> int:
        return self.length

    def is_held(self, most: int) -> bool:
        """Whether memory seems to have the range, or so much of it."""
        return self.file.seems_in_memory(self.position, min(self.length, most))
