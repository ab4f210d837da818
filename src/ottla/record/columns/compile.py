"""Compile the kernels into a cache folder: `python -m ottla.record.columns.compile FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ottla.record.columns.readiness import load


def main() -> None:
    os.nice(10)  # nobody waits for it
    load(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
