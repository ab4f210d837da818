"""The folder of an archive: where its files are, what they are called, how they get there.

    DIR/orders/date=2026-11-15/orders-0-00000000000000000000-00000000000000000999.parquet
    DIR/_ottla/orders/          Ottla's own: Spark's checkpoint, files under way, locks
    .DIR.orders.merging/        for seconds, while small files are merged (see archive_merging)

A file is named by its topic, its partition, and the offsets of its first and its last row. The invariant
on which everything stands: **it holds every row of its partition and date between these two offsets.**
So names alone tell which rows are there, and a row that is there is never written again: not by a
micro-batch that runs once more after a crash, not with other limits, not with a new checkpoint.

A crash leaves some of the files of a micro-batch, each of them whole: files are written and synced
under `_ottla`, by names that no reader takes for Parquet, and renamed into their place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Self

from ottla.pipeline.durable_files import held, make_folder, moved, shared, write_whole

SUFFIX: Final = ".parquet"
UNFINISHED: Final = ".unfinished"
DATE: Final = "date="
OWN: Final = "_ottla"
_NAME: Final = re.compile(r"(.+)-(\d+)-(\d{20})-(\d{20})\.parquet")
_LONGEST_NAME: Final = 255  # bytes, on all common file systems


class ArchiveError(RuntimeError):
    """The archive cannot be written; the message says why and what to do."""


class Name(NamedTuple):
    """What the name of a file says: the rows of a partition between two offsets, both included."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.first:020}-{self.last:020}{SUFFIX}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        found = _NAME.fullmatch(text)
        return found and cls(found[1], int(found[2]), int(found[3]), int(found[4]))


class ArchivedFile(NamedTuple):
    """A file of the archive."""

    date: str  # as in 2026-11-15
    name: Name
    size: int  # bytes

    @property
    def place(self) -> str:
        return f"{DATE}{self.date}/{self.name}"


class StagedFile(NamedTuple):
    """A file that is written and synced, and not in its place yet."""

    path: str
    date: str
    name: Name
    rows: int
    size: int  # bytes

    @property
    def archived(self) -> ArchivedFile:
        return ArchivedFile(self.date, self.name, self.size)


def passed(files: Iterable[StagedFile]) -> dict[int, int]:
    """For each partition that files of a batch are of, an offset that the batch has reached."""
    reached: dict[int, int] = {}
    for file in files:
        partition = file.name.partition
        reached[partition] = max(reached.get(partition, -1), file.name.last)
    return reached


@dataclass(frozen=True)
class Description:
    """What an archive is. It stays what it was at first."""

    kind: str  # parquet, delta or iceberg
    schema: str  # of its rows, as Spark writes schemas
    topic_id: str | None  # None: a broker that is older than these


_PROBLEMS: Final = {
    "kind": "is of another format",
    "schema": "holds rows of another schema (values were decoded in another way)",
    "topic_id": "is that of an earlier topic of this name, whose offsets mean other records",
}


@dataclass(frozen=True)
class ArchiveFolder:
    """The archive of one topic in a folder."""

    root: Path
    topic: str

    @cached_property
    def rows(self) -> Path:
        """What readers read. Spark passes over folders that begin with _ or a dot."""
        return self.root / (f"+{self.topic}" if self.topic[0] in "_." else self.topic)

    @cached_property
    def own(self) -> Path:
        return self.root / OWN / self.rows.name

    @property
    def checkpoint(self) -> Path:
        return self.own / "checkpoint"

    @property
    def staging(self) -> Path:
        return self.own / "staging"

    @cached_property
    def merging(self) -> Path:
        """The folder for date folders that are about to take the place of others, or have lost it.

        Their files have the names of rows to be read, so this lies beside the archive, where no
        pattern such as DIR/**/*.parquet gets at it. Where that is another file system, or nothing
        can be made there, it has to lie inside.
        """
        beside = self.root.resolve().with_name(
            f".{self.root.resolve().name}.{self.rows.name}.merging"
        )
        above = beside.parent
        if os.access(above, os.W_OK) and above.stat().st_dev == self.root.stat().st_dev:
            return beside
        return self.own / "merging"

    # Opening

    @contextmanager
    def opened(self, description: Description) -> Iterator[None]:
        """The one job that writes to this archive. What a crash left unfinished is removed."""
        longest = Name(self.topic, 2**31 - 1, 0, 0)
        if len(str(longest)) > _LONGEST_NAME:
            raise ArchiveError(f"the name of topic '{self.topic}' is too long for names of files")
        make_folder(self.rows)
        make_folder(self.own)
        with held(self.own / "lock") as mine:
            if not mine:
                raise ArchiveError(f"another job is writing the archive {self.rows}; stop it first")
            self._check(description)
            for unfinished in (self.staging, self.merging):
                shutil.rmtree(unfinished, ignore_errors=True)
            make_folder(self.staging)
            yield

    def _check(self, description: Description) -> None:
        kept = self.own / "archive.json"
        if not kept.exists():
            write_whole(kept, json.dumps(asdict(description)))
        was = Description(**json.loads(kept.read_text(encoding="utf-8")))
        for name, problem in _PROBLEMS.items():
            if getattr(was, name) != getattr(description, name):
                raise ArchiveError(f"the archive {self.rows} {problem}; name another folder")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep files from being merged away during the block, in which somebody reads.

        Not needed to see the right rows: see docs/pipelines.md for whom it serves.
        """
        with shared(self.own / "readers"):
            yield

    @contextmanager
    def unread(self) -> Iterator[bool]:
        """Whether nobody is `reading`; nobody begins to until this ends."""
        with held(self.own / "readers") as mine:
            yield mine

    # Files

    def folder_of(self, date: str) -> Path:
        return self.rows / f"{DATE}{date}"

    def dates(self) -> list[str]:
        folders = self.rows.glob(f"{DATE}*") if self.rows.exists() else ()
        return sorted(folder.name.removeprefix(DATE) for folder in folders)

    def files(self, date: str) -> list[ArchivedFile]:
        """The files of a date, by partition and offset."""
        found = []
        folder = self.folder_of(date)
        for entry in folder.iterdir() if folder.exists() else ():
            name = Name.read(entry.name)
            if name is not None and name.topic == self.topic:
                found.append(ArchivedFile(date, name, entry.stat().st_size))
        return sorted(found, key=lambda file: file.name)

    def publish(self, staged: Iterable[StagedFile]) -> None:
        """Put files in their places, one after the other."""
        moved((Path(file.path), self.rows / file.archived.place) for file in staged)


# Which rows are there already. Tasks ask this, so these are pickled.


@dataclass
class CoveredByNames:
    """What the names of an archive's files say."""

    folder: ArchiveFolder
    _known: dict[tuple[int, str], Spans] = field(default_factory=dict)

    def spans(self, partition: int, date: str) -> Spans:
        if (partition, date) not in self._known:
            names = (file.name for file in self.folder.files(date))
            own = [(name.first, name.last) for name in names if name.partition == partition]
            self._known[partition, date] = Spans(own)
        return self._known[partition, date]


@dataclass(frozen=True)
class CoveredUpTo:
    """What a table's own log says: for each partition, the last offset of which it holds the row."""

    last: dict[int, int]

    def spans(self, partition: int, date: str) -> Spans:  # noqa: ARG002 - the same for all dates
        return Spans([(0, self.last[partition])] if partition in self.last else [])


Covered = CoveredByNames | CoveredUpTo


class Spans:
    """Spans of offsets, ends included, that do not overlap, in order."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self.firsts = [first for first, _ in ordered]
        self.lasts = [last for _, last in ordered]

    def __contains__(self, offset: int) -> bool:
        number = bisect_right(self.firsts, offset)
        return number > 0 and offset <= self.lasts[number - 1]
