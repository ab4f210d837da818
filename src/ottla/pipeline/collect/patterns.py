"""The paths of a command line: files, folders and globs, and the files they find."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

COMPRESSED: Final = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip")


class Unreadable(Exception):
    """A path that was named cannot be collected; the message says why."""


class MatchedFile(NamedTuple):
    path: str
    pattern: str  # what found it
    status: os.stat_result


class Patterns:
    """Files by their names, all files of a folder, or a glob (`**` stands for folders at any depth).

    Of folders and globs, compressed files are left out, and hidden ones unless the glob names them.
    """

    def __init__(self, patterns: Iterable[str], exclude: Iterable[str] = ()) -> None:
        self.patterns = [os.path.abspath(os.path.expanduser(pattern)) for pattern in patterns]
        self._exclude = list(exclude)

    def check(self, *, must_exist: bool) -> list[str]:
        """Raise Unreadable for what can never be collected; the patterns that find nothing yet."""
        empty = []
        for pattern in self.patterns:
            try:
                kind = os.stat(pattern).st_mode
            except FileNotFoundError:
                if glob.has_magic(pattern) and any(self._expand(pattern)):
                    continue
                if must_exist:
                    raise Unreadable(f"there is no file {pattern}") from None
                empty.append(pattern)
                continue
            except OSError as problem:
                raise Unreadable(f"{pattern}: {problem.strerror}") from None
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise Unreadable(
                    f"{pattern} is neither a file nor a folder; `ottla produce` reads pipes"
                )
            if not os.access(pattern, os.R_OK):
                raise Unreadable(f"{pattern} may not be read by this user")
        return empty

    def find(self) -> Iterator[MatchedFile]:
        """The files there are now, each once, the oldest first."""
        seen: dict[tuple[int, int], MatchedFile] = {}
        for pattern in self.patterns:
            for path in self._expand(pattern):
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # it vanished, or its folder did
                if stat.S_ISREG(status.st_mode):
                    found = MatchedFile(path, pattern, status)
                    seen.setdefault((status.st_dev, status.st_ino), found)
        yield from sorted(seen.values(), key=lambda found: found.status.st_mtime_ns)

    def _expand(self, pattern: str) -> Iterator[str]:
        if os.path.isdir(pattern):
            pattern = os.path.join(glob.escape(pattern), "*")
        elif not glob.has_magic(pattern) or os.path.exists(pattern):
            yield pattern  # a file that was named counts, whatever its name ends in
            return
        for path in glob.iglob(pattern, recursive=True):
            # A pattern that leaves files out is compared with as many of the last names as it has.
            if not path.endswith(COMPRESSED) and not any(
                Path(path).match(exclude) for exclude in self._exclude
            ):
                yield path
