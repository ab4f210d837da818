"""Has pytest rewrite the asserts of all tests, before the workers of a run each do so for themselves.

    python tools/rewrite_tests.py FOLDER

Rewriting takes 14 s of processor time for the tests of a fresh checkout. The workers of a run come to
the same files at the same time, and each of them rewrites all. Here each file is rewritten once, by as
many processes as there are cores; the workers then load what is cached beside the tests.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORTH_IT = 30  # files; fewer are rewritten sooner than a process starts


def not_rewritten(folder: Path) -> list[Path]:
    """The test files without a cached form of their present text."""
    return [file for file in sorted(folder.rglob("test_*.py")) if not _is_rewritten(file)]


def _is_rewritten(file: Path) -> bool:
    plain = Path(importlib.util.cache_from_source(str(file), optimization=""))
    cached = plain.with_name(f"{plain.stem}-pytest-{pytest.__version__}.pyc")
    return cached.exists() and cached.stat().st_mtime >= file.stat().st_mtime


def rewrite(files: list[Path]) -> None:
    """Have them collected, which is what rewrites them. What is wrong with one, the run itself tells."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    # Neighbours import the same.
    size = math.ceil(len(files) / (os.cpu_count() or 1))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "--collect-only", *map(str, share)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for share in (files[first : first + size] for first in range(0, len(files), size))
    ]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    found = not_rewritten(Path(sys.argv[1]))
    if len(found) >= WORTH_IT:
        rewrite(found)
