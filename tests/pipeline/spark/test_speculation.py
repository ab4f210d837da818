"""Speculation: Spark runs a slow task a second time, on another host, and takes who comes first.

A standalone cluster of two workers whose hosts have different names, for Spark has no second attempt run
where the first one runs. Both attempts write; one of them counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit import query_program
from pipeline_kit.faults import SLOW, Faults
from pipeline_kit.reading import values
from pipeline_kit.standalone import SHORT_LIVED, running_cluster
from pipeline_kit.streams import ROWS

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",  # of the tasks have ended before one of the others is slow
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
}
SMALL = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    # No task before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(5, marks=pytest.mark.long), pytest.param(30, marks=pytest.mark.soak)],
)
def test_two_attempts_of_a_task(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, rounds: int
) -> None:
    admin.create_topic(topic, 2)
    faults = Faults(tmp_path, SLOW, rounds)
    with running_cluster(tmp_path, 2, {}, hosts=2) as master:
        settings = {**SPECULATION, **SMALL, "spark.master": master}
        program = [sys.executable, query_program.__file__, broker.bootstrap, topic]
        ended = subprocess.run(
            [*program, str(tmp_path / "checkpoint"), str(rounds), faults.options["fault"]],
            env={**os.environ, "SETTINGS": json.dumps(settings), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    # On a busy machine Spark begins a second attempt of other tasks, too.
    assert faults.struck == rounds <= faults.second_attempts
    written = values(kafka__bootstrap__servers=broker.bootstrap, subscribe=topic)
    assert len(written) >= (rounds + 1) * ROWS
    assert sorted(map(int, written)) == list(range(len(written)))
