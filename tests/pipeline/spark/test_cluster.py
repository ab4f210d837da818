"""Jobs on a standalone Spark cluster whose nodes have an environment of their own.

A master and two workers on loopback; the program that asks for the session runs in the environment of
the tests, and the tasks in another one: installed on the nodes, or sent along as an archive. The nodes
have no home folder, and nowhere to keep compiled kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit import environments
from pipeline_kit.reading import values
from pipeline_kit.remote_job import Job
from pipeline_kit.standalone import SHORT_LIVED, running_cluster

# A job starts three JVMs.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300, func_only=True)]

PARTITIONS = 3
RECORDS = 300


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed on the nodes."""
    folder = tmp_path_factory.mktemp("nodes")
    wheel = environments.build_wheel(folder)
    environment = environments.make_environment(folder / "environment", wheel)
    environments.forbid_kernel_cache(environment)
    return environment


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Not even root can make a folder in there.
    nodes = {"HOME": "/dev/null", "XDG_CACHE_HOME": ""}
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2, nodes) as address:
        yield address


RunJob = Callable[..., dict[str, Any]]


@pytest.fixture
def run(cluster: str, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path) -> RunJob:
    """Runs the job with these settings and this Python for its tasks; gives what it saw, and checks what
    it wrote."""

    def run(python: str, *, with_kernels: bool = False, **settings: str) -> dict[str, Any]:
        copies = f"{topic}-batch", f"{topic}-stream"
        for name in (topic, *copies):
            admin.create_topic(name, PARTITIONS)
        with Producer(broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        common = {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            # No task before both executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        checkpoint = str(tmp_path / "checkpoint")
        places = [cluster, broker.bootstrap, topic, *copies, checkpoint]
        job = Job(*places, settings=common | settings, with_kernels=with_kernels)
        seen = job.run(tmp_path, {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"})
        assert seen["rows"] == [
            [partition, offset, str(offset * PARTITIONS + partition)]
            for partition in range(PARTITIONS)
            for offset in range(RECORDS // PARTITIONS)
        ]
        for copy in copies:
            found = values(kafka__bootstrap__servers=broker.bootstrap, subscribe=copy)
            assert sorted(found, key=int) == [b"%d" % number for number in range(RECORDS)]
        return seen

    return run


def test_installed_on_every_node(run: RunJob, environment: Path) -> None:
    seen = run(str(environments.python_of(environment)), with_kernels=True)
    here, there = seen["places"]
    assert here["folder"] != there["folder"], "both tasks ran on one node"
    for place in (here, there):
        assert place["environment"] == str(environment)
        assert Path(place["ottla"]).is_relative_to(environment)
        assert Path(place["source"]).is_relative_to(environment)
    # There is nowhere to keep what is compiled; it is compiled all the same.
    assert seen["kernels"] == {"cache": None, "compiled": True, "rows": 1000}


def test_sent_along_as_an_archive(run: RunJob, environment: Path, tmp_path: Path) -> None:
    archive = environments.pack(environment, tmp_path / "environment.tar.gz")
    seen = run("./environment/bin/python", **{"spark.archives": f"{archive}#environment"})
    here, there = seen["places"]
    assert here["folder"] != there["folder"], "both tasks ran on one node"
    for place in (here, there):
        assert Path(place["ottla"]).resolve().is_relative_to(Path(place["folder"]).parents[1])
        assert place["environment"] == str(Path(place["folder"]) / "environment")
