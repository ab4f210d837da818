"""The messages of the protocol are those that Kafka's own definitions describe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from interop_kit import toolchain

PROGRAM = Path(__file__).resolve().parents[3] / "tools" / "message_declarations.py"
# The last release before Kafka dropped the oldest versions, which Ottla serves.
BEFORE = "3.9.2"


def definitions(version: str) -> str:
    clients = f"org.apache.kafka:kafka-clients:{version}"
    libraries = toolchain.jars(f"kafka-clients-{version}", [clients])
    return str(libraries / f"kafka-clients-{version}.jar")


@pytest.mark.long
def test_every_module_is_as_the_definitions_say() -> None:
    command = [sys.executable, PROGRAM, definitions(toolchain.KAFKA_VERSION)]
    done = subprocess.run(
        [*command, "--older", definitions(BEFORE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
