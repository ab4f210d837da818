"""Coverage-guided fuzzing for an hour: only in `make soak`, and only where atheris is installed.

SOAK_SECONDS is the time for each of the three targets (20 minutes). A crash leaves its input in
a file, and the message says how to repeat it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SECONDS = int(os.environ.get("SOAK_SECONDS", "1200"))
HERE = Path(__file__).resolve().parent


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("name", ["requests", "frames", "batches"])
def test_guided(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install atheris)")
    from fuzz_kit.targets import TARGETS

    # Not in pytest's own folder: another run clears that away, and this one takes long.
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{name}-soak-"))
    corpus, findings = folder / "corpus", folder / "findings"
    for each in (corpus, findings):
        each.mkdir()
    for number, seed in enumerate(TARGETS[name][1]()):
        (corpus / f"seed-{number:05}").write_bytes(seed)
    # The broker's files in memory, where that can be had.
    memory = Path("/dev/shm")
    data = Path(tempfile.mkdtemp(prefix="ottla-soak-", dir=memory if memory.is_dir() else None))
    program = HERE / f"atheris_{name}.py"
    done = subprocess.run(
        [
            sys.executable, str(program), str(corpus),
            f"-max_total_time={SECONDS}", "-max_len=4096", "-rss_limit_mb=3000", "-timeout=60",
            f"-artifact_prefix={findings}/", "-print_final_stats=1",
        ],
        env={**os.environ, "SOAK_DATA": str(data)},
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    shutil.rmtree(data)
    # What an uncaught exception says stands at the end of the one, what libFuzzer says in the other.
    tail = "\n".join([*done.stdout.splitlines()[-60:], *done.stderr.splitlines()[-60:]])
    print(tail)
    assert done.returncode == 0, f"repeat with: python {program} {findings}/*\n{tail}"
    shutil.rmtree(folder)
