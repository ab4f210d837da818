"""Folders that a command writes to or reads: of this machine, and told at once where they cannot be."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from ottla.cli.failures import Failure, Misuse

# A Path has one slash where the address had two.
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_folder(given: Path, option: str) -> Path:
    """The folder, absolute; Misuse for an address of some other file system (s3a://…, hdfs://…)."""
    text = str(given)
    address = _ADDRESS.match(text)
    if address is None:
        return given.absolute()
    if address[1].lower() == "file":
        return Path(unquote(urlsplit(text).path)).absolute()
    raise Misuse(
        f"{option} takes a folder of this machine, and '{address[1]}:' is another file system; "
        "mount it, or copy the folder there"
    )


def writable_folder(given: Path, option: str) -> Path:
    """A folder that is there, or can be made, and written to; Failure if not."""
    folder = local_folder(given, option)
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise Failure(f"{option}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Failure(f"{option}: {there} may not be written to by this user")
    return folder
