"""Kafka's own dump tool, as a judge of the files that Ottla writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

DUMP = "org.apache.kafka.tools.DumpLogSegments"
TIMEOUT = 120
# What the tool prints when something is wrong; it ends with status 0 all the same.
COMPLAINTS = ("ismatch", "is followed by", "Exception", "invalid", "isValid: false")
# It takes every log that does not start at offset 0 for one with a gap before its first record.
NO_COMPLAINT = "-1 is followed by"


def kafka_jars() -> Path:
    """A folder with Kafka's jars, as the interop tests fetch and keep them. Skips without Java."""
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    interop = str(Path(__file__).resolve().parents[2] / "interop")
    if interop not in sys.path:
        sys.path.insert(0, interop)
    from interop_kit import toolchain

    return Path(toolchain.kafka_tools()[-1].removesuffix("/*"))


def dump(jars: Path, files: Sequence[Path], *options: str) -> str:
    """Runs the tool over files and returns what it said; fails if it complained."""
    names = ",".join(str(file) for file in files)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{jars}/*", DUMP, *options, "--files", names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    complaints = [
        line
        for line in said.splitlines()
        if any(word in line for word in COMPLAINTS) and NO_COMPLAINT not in line
    ]
    assert not complaints, "\n".join(complaints[:20])
    return said
