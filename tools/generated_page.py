"""A page of docs/ that is written from the code: what the programs that write one have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(name: str, page: Callable[[], str], usage: str | None) -> int:
    """Writes docs/NAME, or says with --check whether it is up to date; the exit status."""
    path = DOCS / name
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        if path.exists() and path.read_text(encoding="utf-8") == page():
            return 0
        print(f"{name} is out of date; run python {sys.argv[0]}")
        return 1
    if arguments:
        print(usage)
        return 2
    path.write_text(page(), encoding="utf-8")
    return 0
