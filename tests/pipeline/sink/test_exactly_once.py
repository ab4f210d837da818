"""Exactly-once writes of a real streaming query, whose processes are killed at named points."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit import query_program
from pipeline_kit.faults import LOSER, Faults, FaultySource
from pipeline_kit.streams import Numbers, wait_for
from pipeline_kit.writing import until

POINTS = [
    pytest.param("before flush", marks=pytest.mark.long),
    "prepared",
    pytest.param("before decision", marks=pytest.mark.long),
    pytest.param("after decision", marks=pytest.mark.long),
    pytest.param("between ends", marks=pytest.mark.long),
]
ROUNDS = [
    1,
    pytest.param(5, marks=pytest.mark.long),
    pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
]


@pytest.fixture
def numbers(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> Numbers:
    admin.create_topic(topic, 2)
    spark.dataSource.register(FaultySource)
    return Numbers(spark, broker.bootstrap, topic, tmp_path / "checkpoint")


def open_transactions(admin: Admin, numbers: Numbers) -> list[str]:
    """Those that have something to do with the topic."""
    found = admin.list_transactions(states=["Ongoing"])
    described = admin.describe_transactions(each.transactional_id for each in found)
    return [
        name
        for name, each in described.items()
        if any(partition.topic == numbers.topic for partition in each.partitions)
    ]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("point", POINTS)
def test_killed(numbers: Numbers, admin: Admin, tmp_path: Path, point: str, rounds: int) -> None:
    faults = Faults(tmp_path, point, rounds)
    failures = numbers.run_until(rounds, faults.options)
    assert failures == faults.struck == rounds
    numbers.check(rounds + 1)


@pytest.mark.long
@pytest.mark.parametrize("rounds", ROUNDS)
def test_attempts_that_lose_a_race(
    numbers: Numbers, admin: Admin, tmp_path: Path, rounds: int
) -> None:
    faults = Faults(tmp_path, LOSER, rounds)
    assert numbers.run_until(rounds, faults.options) == 0
    assert faults.struck == rounds
    numbers.check(rounds + 1)


@pytest.mark.long
def test_a_query_that_was_stopped_and_goes_on(numbers: Numbers, admin: Admin) -> None:
    query = numbers.start()
    wait_for(query, 2)
    query.stop()
    numbers.finish()
    numbers.check(4)
    assert open_transactions(admin, numbers) == []


@pytest.mark.long
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(
    "point", ["prepared", pytest.param("after decision", marks=pytest.mark.long)]
)
def test_started_again_after_the_timeout(
    spark: SparkSession,
    impatient: BrokerProcess,
    topic: str,
    tmp_path: Path,
    point: str,
    rounds: int,
) -> None:
    """Transactions have a second, and those that are decided all the time there is."""
    spark.dataSource.register(FaultySource)
    numbers = Numbers(
        spark,
        impatient.bootstrap,
        topic,
        tmp_path / "checkpoint",
        {"kafka.transaction.timeout.ms": "1000"},
    )
    with Admin(impatient.bootstrap) as admin:
        admin.create_topic(topic, 2)
        for number in range(rounds):
            faults = Faults(tmp_path, point, rounds=1, first=number)
            query = numbers.start(faults.options)
            with pytest.raises(StreamingQueryException):
                wait_for(query, number)
            assert faults.struck == number + 1
            pass_time(admin, topic)
    numbers.run_until(rounds)
    numbers.check(rounds + 1)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that looks for transactions whose time is over all the time."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    folder = tmp_path_factory.mktemp("impatient") / "data"
    with BrokerProcess(folder, settings=settings) as process:
        yield process


def pass_time(admin: Admin, topic: str) -> None:
    """Wait until a transaction that begins now has timed out: those before it had their time, too."""
    from ottla import Producer

    servers = admin._admin.cluster.settings.bootstrap
    name = f"{topic}-clock"
    with Producer(servers, transactional_id=name, transaction_timeout_ms=1000) as clock:
        clock.init_transactions()
        clock.begin_transaction()
        clock.send(topic, b"0").result()

        def is_over() -> bool:
            return admin.describe_transactions(name)[name].state != "Ongoing"

        until(is_over)


@pytest.mark.long
def test_the_whole_driver_is_killed(numbers: Numbers, admin: Admin, tmp_path: Path) -> None:
    """Tasks of batch 0 are killed and tried again by Spark; then the driver dies in batch 1."""
    tried_again = Faults(tmp_path / "tasks", "prepared")
    killed = Faults(tmp_path / "driver", "between ends", first=1, whole_driver=True)
    for each in (tried_again, killed):
        each.folder.mkdir()
    program = Path(query_program.__file__)
    arguments = [numbers.bootstrap, numbers.topic, str(numbers.checkpoint)]
    ended = subprocess.run(
        [sys.executable, str(program), *arguments, "0", tried_again.options["fault"],
         killed.options["fault"]],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert tried_again.struck == 1
    assert killed.struck == 1, ended.stderr
    assert ended.returncode != 0
    numbers.finish()
    numbers.check(2)
    assert open_transactions(admin, numbers) == []
