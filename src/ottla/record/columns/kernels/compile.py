"""Compile the kernels into a cache folder: `python -m ottla.record.columns.kernels.compile FOLDER`.

Programs that start together find the cache empty together. One of them compiles; the others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from ottla.record.columns.kernels.readiness import is_compiled, load


def main() -> None:
    os.nice(10)  # nobody waits for it
    folder = Path(sys.argv[1])
    with (folder / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_compiled(folder):
            load(folder)


if __name__ == "__main__":
    main()
