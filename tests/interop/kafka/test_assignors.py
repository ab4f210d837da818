"""Kafka's own assignors still give the answers that the tests of ours compare with.

    RECORD=1 .venv/bin/python -m pytest tests/interop/kafka/test_assignors.py

writes the file anew, with new groups.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_kit import toolchain
from interop_kit.clients.driver import DriverProcess

GROUPS = Path(__file__).resolve().parents[2] / "coordinator" / "groups"
SEED = 848

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def ask_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    command = toolchain.java_program(
        "assignor-peer",
        [toolchain.INTEROP / "java" / name for name in ("Lines.java", "AssignorPeer.java")],
        "AssignorPeer",
        [f"org.apache.kafka:kafka-group-coordinator:{toolchain.KAFKA_VERSION}", toolchain.GSON],
    )
    driver = DriverProcess(command, tmp_path_factory.mktemp("java") / "assignors.log")
    yield lambda group: driver.request(command="assign", **group)
    driver.close()


@pytest.mark.long
def test_kafka_answers_as_recorded(ask_kafka: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(GROUPS)])
    from groups_kit.assignments import BY_KAFKA, lives

    if os.environ.get("RECORD") == "1":
        cases = [group.to_json() for group in lives(SEED, histories=24, length=12)]
        with BY_KAFKA.open("w") as lines:
            for case in cases:
                lines.write(json.dumps(case | ask_kafka(case), separators=(",", ":")) + "\n")
    with BY_KAFKA.open() as lines:
        for line in lines:
            fields = json.loads(line)
            group = {name: fields[name] for name in ("topics", "members")}
            assert ask_kafka(group) == {name: fields[name] for name in ("uniform", "range")}
