"""Small files of an archive become larger ones, while others read.

Nobody may see a row twice or not at all, and there is no way to replace several files by one at one
stroke. Folders can trade places, though. So the folder of a date is built anew beside the old one, with
the merged files and with links to the files that stay, and the two are exchanged. Who has listed the old
folder and opens a file that was merged away finds it gone: an error, not a wrong answer.

The old folder stays for a moment: a reader may be in the middle of listing it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from ottla.pipeline.archive.folder import ArchivedFile, ArchiveFolder, StagedFile
from ottla.pipeline.archive.rows import Merge
from ottla.pipeline.durable_files import ExchangeNotOffered, exchange, make_folder, sync

logger = logging.getLogger(__name__)

FEWEST: Final = 8  # files that are worth a merge
LISTING: Final = 2.0  # seconds that a reader may take to list a folder


def worthwhile(
    files: Iterable[ArchivedFile], file_size: int, fewest: int = FEWEST
) -> Iterator[Merge]:
    """The merges that a date's files, sorted, are worth.

    Of each partition the longest run of neighbours that together are no larger than `file_size`, if
    they are enough and none of them has more than half of the bytes. So with every merge the file that
    a row is in grows to at least twice its size: rows are written anew a few times, not for ever.
    """
    for _, own in groupby(files, key=lambda file: file.name.partition):
        neighbours = list(own)
        runs = (
            neighbours[start:end]
            for start in range(len(neighbours))
            for end in (_end(neighbours, start, file_size),)
        )
        found = [run for run in runs if len(run) >= fewest and _even(run)]
        if found:
            longest: list[ArchivedFile] = max(found, key=len)
            yield Merge(tuple(longest))


def _end(files: list[ArchivedFile], start: int, file_size: int) -> int:
    total = 0
    for number in range(start, len(files)):
        total += files[number].size
        if total > file_size:
            return number
    return len(files)


def _even(files: list[ArchivedFile]) -> bool:
    sizes = [file.size for file in files]
    return 2 * max(sizes) <= sum(sizes)


@dataclass
class Exchanges:
    """Puts merged files in the place of what they were made of."""

    folder: ArchiveFolder
    _retired: list[tuple[float, Path]] = field(default_factory=list)  # since when, monotonic
    _number: int = 0
    _offered: bool = True

    @property
    def possible(self) -> bool:
        """Whether the file system lets folders trade places, as far as we know."""
        return self._offered

    def replace(self, date: str, merges: Iterable[Merge], merged: Iterable[StagedFile]) -> bool:
        """One date's merges at one stroke; whether it was done."""
        gone = {str(file.name) for merge in merges for file in merge.files}
        current = self.folder.folder_of(date)
        self._number += 1
        new = self.folder.merging / str(self._number)
        make_folder(new)
        for entry in os.scandir(current):
            if entry.name not in gone:
                os.link(entry.path, new / entry.name)
        for file in merged:
            Path(file.path).rename(new / str(file.name))
        sync(new)
        try:
            exchange(new, current)
        except ExchangeNotOffered as error:
            logger.warning("small files are not merged: %s", error)
            self._offered = False
            shutil.rmtree(new)
            return False
        self._retired.append((time.monotonic(), new))
        return True

    def sweep(self) -> None:
        """Remove the folders that nobody can be listing any more."""
        while self._retired and time.monotonic() - self._retired[0][0] >= LISTING:
            shutil.rmtree(self._retired.pop(0)[1])
        if not self._retired and self.folder.merging.exists():
            self.folder.merging.rmdir()

    def finish(self) -> None:
        """Remove all retired files, each once no listing can hold it any more."""
        while self._retired:
            time.sleep(max(0.0, self._retired[0][0] + LISTING - time.monotonic()))
            self.sweep()
