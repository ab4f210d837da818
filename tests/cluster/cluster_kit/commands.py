"""The command `ottla` as a user types it: a process of its own, which knows what it is told only."""

from __future__ import annotations

import subprocess
import sys


def ottla(*words: object, fails: bool = False) -> str:
    """Runs a command, which must succeed unless it `fails`; what it printed, or complained of."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout
