"""Decisions and transactions of exactly-once writes, without Spark: all in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.errors import Fenced
from ottla.client.loop import background_loop
from ottla.testing import BrokerProcess
from pyspark_ottla.writing import committing
from pyspark_ottla.writing.attempts import Attempt, Owner, Prepared
from pyspark_ottla.writing.decisions import TOPIC, Decision, Ledger, ledger_partition
from pyspark_ottla.writing.errors import AttemptLost, BatchTorn, WrongLedger
from pyspark_ottla.writing.points import Point

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.writing import Query, Run, until


@pytest.fixture
def query(broker: BrokerProcess, admin: Admin, topic: str) -> Query:
    admin.create_topic(topic, 3)
    return Query(broker.bootstrap, topic)


@pytest.fixture(params=["broker", "apache"])
def either(request: pytest.FixtureRequest, topic: str) -> Query:
    """On Ottla with two-phase commit, on Apache Kafka without."""
    bootstrap = request.getfixturevalue(request.param).bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, 3)
    return Query(bootstrap, topic)


def test_a_batch_counts_when_it_is_committed(either: Query) -> None:
    run = either.run()
    told = run.tasks("a", "b", "c")
    assert either.committed() == []
    run.commit(0, told)
    assert either.committed() == ["a", "b", "c"]
    assert either.still_open() == []


def test_batches_of_a_run_use_the_same_ids(either: Query) -> None:
    run = either.run()
    ids = []
    for batch in range(3):
        told = run.tasks(f"{batch}-x", f"{batch}-y")
        ids.append([each.attempt.transactional_id for each in told if each.attempt])
        run.commit(batch, told)
    assert len(either.committed()) == 6
    assert ids[0] == ids[1] == ids[2]


def test_tasks_without_rows_open_no_transaction(query: Query, admin: Admin) -> None:
    run = query.run()
    told = [run.task([]), run.task([], "1-0")]
    assert told == [Prepared(run.owner), Prepared(run.owner)]
    run.commit(0, told)
    run.commit(1, told)
    listed = [each.transactional_id for each in admin.list_transactions()]
    assert not [each for each in listed if each.startswith(run.owner.run_prefix)]


@pytest.mark.parametrize("point", ["before decision", "after decision", "between ends"])
def test_a_batch_is_repeated_after_a_crash(either: Query, point: Point) -> None:
    first = either.run()
    first.commit(0, first.tasks("0-a", "0-b"))
    first.crash(point, 1, first.tasks("1-a", "1-b"))
    second = either.run()
    second.commit(1, second.tasks("1-a", "1-b"))
    second.commit(2, second.tasks("2-a", "2-b"))
    assert either.committed() == ["0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]
    assert either.still_open() == []


def test_spark_calls_abort_when_commit_failed(either: Query) -> None:
    run = either.run()
    told = run.tasks("a", "b")
    run.crash("between ends", 0, told)
    run.abort(0, told)
    assert len(either.still_open()) == 1, "what is decided stays"
    run.commit(0, [])  # Spark would not; nothing comes of it
    assert len(either.still_open()) == 1
    again = either.run()
    again.commit(0, [Prepared(again.owner)])  # also if the batch has no rows this time
    assert either.committed() == ["a", "b"]


def test_abort_before_a_decision(either: Query) -> None:
    run = either.run()
    told = [*run.tasks("a", "b"), run.task(["dead"], "1-1")]
    run.abort(0, told[:1])
    assert either.still_open() == []
    again = either.run()
    again.commit(0, again.tasks("a", "b"))
    assert either.committed() == ["a", "b"]


def test_dead_attempts_of_any_run_are_aborted(either: Query) -> None:
    killed = either.run()
    killed.tasks("a", "b")
    run = either.run()
    told = run.tasks("a", "b")
    run.task(["b"], "1-1")  # lost a race
    run.commit(0, told)
    assert either.still_open() == []
    assert either.committed() == ["a", "b"]


def test_dead_attempts_are_aborted_after_a_crash_too(either: Query) -> None:
    first = either.run()
    told = first.tasks("a")
    first.task(["a"], "0-1")
    first.crash("after decision", 0, told)
    second = either.run()
    second.task(["a"], "0-1")
    second.commit(0, second.tasks("a"))
    assert either.still_open() == []
    assert either.committed() == ["a"]


def test_other_queries_are_left_alone(query: Query) -> None:
    other = Query(query.bootstrap, query.topic, name=query.name + "-other")
    waiting = other.run()
    theirs = waiting.tasks("x")
    run = query.run()
    run.commit(0, run.tasks("a"))
    assert len(other.still_open()) == 1
    waiting.commit(0, theirs)
    assert query.committed() == ["a", "x"]


def test_a_stage_that_is_repeated_counts_attempts_anew(query: Query) -> None:
    run = query.run()
    told = [run.task(["a"], "0-0"), run.task(["a"], "0-0")]
    names = [each.attempt.transactional_id for each in told if each.attempt]
    assert [name.rpartition("/")[2] for name in names] == ["0-0-0", "0-0-1"]
    run.commit(0, told[:1])
    assert query.committed() == ["a"]


def test_an_older_batch_is_not_written_again(either: Query) -> None:
    run = either.run()
    for batch in range(3):
        run.commit(batch, run.tasks(str(batch)))
    again = either.run()
    again.commit(1, again.tasks("1"))
    assert either.committed() == ["0", "1", "2"]
    assert either.still_open() == []


def test_a_batch_whose_ids_were_used_again_is_not_torn(either: Query) -> None:
    first, late = either.run(), either.run()
    first.commit(0, first.tasks("0"))
    following = first.tasks("1")
    late.commit(0, late.tasks("0"))
    first.commit(1, following)
    assert either.committed() == ["0", "1"]


def opened(run: Run) -> Ledger:
    """A ledger that finds no decision."""

    async def open_it() -> Ledger:
        ledger = Ledger(run.query.sink, run.owner)
        assert await ledger.open() is None
        return ledger

    return background_loop().run(open_it())


def decide(ledger: Ledger, told: list[Prepared]) -> None:
    async def decide_it() -> None:
        try:
            attempts = tuple(each.attempt for each in told if each.attempt is not None)
            await ledger.decide(Decision(0, attempts))
        finally:
            await ledger.close()

    background_loop().run(decide_it())


def test_a_driver_that_was_overtaken_cannot_decide(either: Query) -> None:
    zombie, run = either.run(), either.run()
    told = zombie.tasks("a")
    ledger = opened(zombie)
    run.commit(0, run.tasks("a"))
    with pytest.raises(Fenced):
        decide(ledger, told)
    zombie.commit(0, told)  # would be a retry: it finds the decision
    assert either.committed() == ["a"]


def test_decisions_behind_an_open_transaction_are_waited_for(query: Query) -> None:
    """Owners share the partitions of the topic, and one takes its time to decide."""
    first, second = query.run(), query.run()
    ledger = opened(first)
    told = second.tasks("a")
    name = first.owner.driver_id
    with (
        Admin(query.bootstrap) as admin,
        Producer(query.bootstrap, transactional_id=f"{query.topic}-slow") as slow,
        ThreadPoolExecutor(1) as threads,
    ):
        slow.init_transactions()
        slow.begin_transaction()
        slow.send(TOPIC, b"", key="other", partition=ledger_partition(query.name)).result()
        decided = first.tasks("a")
        decide(ledger, decided)
        attempt = decided[0].attempt
        assert attempt is not None
        admin.end_transaction(
            attempt.transactional_id, attempt.producer_id, attempt.epoch, commit=True
        )

        def epoch() -> int:
            return admin.describe_transactions(name)[name].producer_epoch

        before = epoch()
        waiting = threads.submit(second.commit, 0, told)
        until(lambda: epoch() > before)
        slow.abort_transaction()
        waiting.result()
    assert query.committed() == ["a"]


def test_a_transaction_that_was_ended_by_others_cannot_be_decided(
    query: Query, admin: Admin
) -> None:
    run = query.run()
    told = run.tasks("a", "b")
    attempt = told[1].attempt
    assert attempt is not None
    admin.fence_producer(attempt.transactional_id)
    with pytest.raises(AttemptLost, match=r"/1-0-0' was ended before batch 0 was decided"):
        run.commit(0, told)
    run.abort(0, told)
    assert query.still_open() == []
    again = query.run()
    again.commit(0, again.tasks("a", "b"))
    assert query.committed() == ["a", "b"]


# Time


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without two-phase commit, which looks for what is overdue all the time."""
    settings = {
        "transaction.two.phase.commit.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    }
    with BrokerProcess(tmp_path_factory.mktemp("hasty") / "data", settings=settings) as process:
        yield process


def test_without_two_phases_the_longest_timeout_is_used(hasty: BrokerProcess, topic: str) -> None:
    with Admin(hasty.bootstrap) as admin:
        admin.create_topic(topic)
        query = Query(hasty.bootstrap, topic)
        run = query.run()
        told = run.tasks("a")
        attempt = told[0].attempt
        assert attempt is not None
        assert attempt.timeout == 900_000
        described = admin.describe_transactions(attempt.transactional_id)
        assert described[attempt.transactional_id].timeout_ms == 900_000
        run.commit(0, told)
    assert query.committed() == ["a"]


def test_transactions_that_time_out(hasty: BrokerProcess, topic: str) -> None:
    with Admin(hasty.bootstrap) as admin:
        admin.create_topic(topic)
        query = Query(hasty.bootstrap, topic, {"kafka.transaction.timeout.ms": "1000"})

        def over() -> bool:
            return query.still_open() == []

        first = query.run()
        told = first.tasks("a", "b")
        until(over)
        with pytest.raises(AttemptLost, match=r"its time was over \(1 s\)"):
            first.commit(0, told)
        second = query.run()
        second.crash("between ends", 0, second.tasks("a", "b"))
        assert query.committed() in (["a"], ["b"])
        until(over)
        third = query.run()
        with pytest.raises(BatchTorn, match=r"was decided to count, as part of batch 0, and was"):
            third.commit(0, third.tasks("a", "b"))
        assert query.committed() in (["a"], ["b"]), "no guesses"


def test_a_timeout_instead_of_two_phases(query: Query) -> None:
    options = {
        "kafka.transaction.two.phase.commit.enable": "false",
        "kafka.transaction.timeout.ms": "70000",
    }
    timed = Query(query.bootstrap, query.topic, options)
    run = timed.run()
    told = run.tasks("a", "b")
    assert [each.attempt.timeout for each in told if each.attempt] == [70_000, 70_000]
    run.commit(0, told)
    assert timed.committed() == ["a", "b"]
    [attempt] = [each.attempt for each in query.run().tasks("c") if each.attempt]
    assert attempt.timeout == 0


def test_two_phases_outlive_timeouts(tmp_path: Path, topic: str) -> None:
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
        "transaction.max.timeout.ms": "10000",
    }
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        Admin(broker.bootstrap) as admin,
    ):
        admin.create_topic(topic)
        query = Query(broker.bootstrap, topic, {"kafka.transaction.timeout.ms": "1000"})
        first = query.run()
        first.crash("after decision", 0, first.tasks("a", "b"))
        # Others, which began later and time out, show that time has passed.
        other = Query(broker.bootstrap, topic, query.options)
        witness = other.run()
        witness.crash("before decision", 0, witness.tasks("x"))
        until(lambda: "driver" not in other.still_open())
        broker.restart()
        again = query.run()
        again.commit(0, again.tasks("a", "b"))
        last = other.run()
        last.commit(0, last.tasks("x"))
        assert query.committed() == ["a", "b", "x"]


# The topic of decisions


def test_decisions_are_kept_in_a_compacted_topic(query: Query, admin: Admin) -> None:
    from ottla.client.admin.configs import Resource

    run = query.run()
    run.commit(0, run.tasks("a"))
    described = admin.describe_configs(Resource.topic(TOPIC))[Resource.topic(TOPIC)]
    assert described["cleanup.policy"].value == "compact"
    assert committing.is_decided(0, run.owner, query.sink)
    assert not committing.is_decided(1, run.owner, query.sink)


def test_decisions_are_read_as_they_are_written() -> None:
    owner = Owner("q", "r")
    attempts = tuple(Attempt(f"{owner.run_prefix}{n}-0-0", 5 + n, n, 0) for n in range(3))
    decision = Decision(7, attempts[:2], attempts[2:])
    written = decision.written(owner)
    assert written.startswith(b'{"version":1,"batch":7,"commit":[["r/0-0-0",5,0,0],')
    assert Decision.read(written, owner) == decision


@pytest.mark.parametrize("value", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "batch": "x"}'])
def test_other_records_are_no_decisions(value: bytes) -> None:
    with pytest.raises(WrongLedger, match="not one that this version of Ottla can read"):
        Decision.read(value, Owner("q", "r"))


def test_a_topic_of_decisions_that_somebody_made(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic(topic)
        admin.create_topic(TOPIC, 3)
        run = Query(broker.bootstrap, topic).run()
        with pytest.raises(WrongLedger, match="has 3 partitions, and needs 16"):
            run.commit(0, run.tasks("a"))
