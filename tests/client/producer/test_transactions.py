# ruff: noqa: PT012 - a transaction is a block, and it is the block that fails
"""Transactions, by both protocols: Ottla and Kafka 4 have the new one, the older broker has not."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import wire_kit.kafka
from producer_kit.meddler import Fate, Meddler
from producer_kit.reading import read_all
from wire_kit.certificates import Certificates
from wire_kit.kafka import running_kafka

from ottla import Admin, AsyncProducer, Producer
from ottla.client.errors import BrokerError, ConfigurationError, Fenced, NotAuthorized, Unsupported
from ottla.client.producer import (
    GroupMember,
    InvalidTransactionState,
    PreparedTransaction,
    TransactionFailed,
)
from ottla.protocol.errors import ErrorCode
from ottla.testing import BrokerProcess


@pytest.fixture
def made_topic(admin: Admin, topic: str) -> str:
    admin.create_topic(topic, partitions=2)
    return topic


@pytest.fixture
def transactional_id() -> str:
    return f"transactions-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def producer(bootstrap: str, transactional_id: str) -> Iterator[Producer]:
    with Producer(bootstrap, transactional_id=transactional_id) as made:
        made.init_transactions()
        yield made


def values(bootstrap: str, topic: str, *, committed: bool = True) -> list[bytes | None]:
    return sorted(
        (each.value for each in read_all(bootstrap, topic, committed=committed)),
        key=lambda value: value or b"",
    )


def test_committed_records_are_seen_and_aborted_ones_are_not(
    producer: Producer, bootstrap: str, made_topic: str
) -> None:
    for number in range(3):
        with producer.transaction():
            producer.send(made_topic, b"%d-sent" % number, partition=number % 2)
            producer.write(made_topic, pa.table({"value": [f"{number}-written"] * 2}))
        with pytest.raises(KeyError), producer.transaction():
            producer.send(made_topic, b"aborted", partition=number % 2)
            producer.flush()
            raise KeyError
    expected = [b"%d-sent" % n for n in range(3)] + [b"%d-written" % n for n in range(3)] * 2
    assert values(bootstrap, made_topic) == sorted(expected)
    assert values(bootstrap, made_topic, committed=False) == sorted(expected + [b"aborted"] * 3)


def test_transactions_without_records(producer: Producer) -> None:
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()


async def test_async_transactions(bootstrap: str, made_topic: str, transactional_id: str) -> None:
    async with AsyncProducer(bootstrap, transactional_id=transactional_id) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(made_topic, b"x", partition=0)
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send(made_topic, b"y", partition=0)
                raise KeyError
    found = await asyncio.to_thread(values, bootstrap, made_topic)
    assert found == [b"x"]


@pytest.mark.parametrize("again", ["commit", "abort"])
async def test_a_commit_that_is_given_up_while_records_are_sent(
    meddled: tuple[Meddler, BrokerProcess], topic: str, transactional_id: str, again: str
) -> None:
    """Whoever loses patience may commit again, or abort."""
    meddler = meddled[0]
    is_held = threading.Event()
    go_on = threading.Event()

    def hold(_: object) -> Fate:
        is_held.set()
        go_on.wait(30)
        return Fate.FORWARD

    with Admin(meddler.address) as admin:
        admin.create_topic(topic, partitions=1)
    async with AsyncProducer(meddler.address, transactional_id=transactional_id) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        meddler.begin(hold)
        await producer.send(topic, b"x")
        committing = asyncio.create_task(producer.commit_transaction())
        assert await asyncio.to_thread(is_held.wait, 30)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        go_on.set()
        if again == "commit":
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        producer.begin_transaction()
        await producer.send(topic, b"y")
        await producer.commit_transaction()
    found = await asyncio.to_thread(values, meddler.address, topic)
    assert found == ([b"x", b"y"] if again == "commit" else [b"y"])


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_an_end_that_is_given_up_may_be_asked_for_again(
    bootstrap: str,
    made_topic: str,
    transactional_id: str,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncProducer(bootstrap, transactional_id=transactional_id) as producer:
        finish = producer.commit_transaction if end == "commit" else producer.abort_transaction
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send(made_topic, b"x", partition=0)
        await producer.flush()
        asked = asyncio.Event()

        async def never(*_: object, **__: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(producer._core.cluster, "ask", never)
            ending = asyncio.create_task(finish())
            await asked.wait()
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
        await finish()
        producer.begin_transaction()
        await producer.send(made_topic, b"y", partition=0)
        await producer.commit_transaction()
    found = await asyncio.to_thread(values, bootstrap, made_topic)
    assert found == ([b"x", b"y"] if end == "commit" else [b"y"])


def test_offsets_are_committed_with_the_transaction(
    producer: Producer, admin: Admin, made_topic: str, group: str
) -> None:
    with producer.transaction():
        producer.send(made_topic, b"x")
        producer.send_offsets_to_transaction({(made_topic, 0): 5, (made_topic, 1): 7}, group)
    with pytest.raises(KeyError), producer.transaction():
        producer.send_offsets_to_transaction({(made_topic, 0): 99}, GroupMember(group))
        raise KeyError
    committed = admin.committed_offsets(group)
    assert {place.partition: each.offset for place, each in committed.items()} == {0: 5, 1: 7}


def test_an_older_instance_is_fenced(
    producer: Producer, bootstrap: str, made_topic: str, transactional_id: str
) -> None:
    producer.begin_transaction()
    producer.send(made_topic, b"old").result(30)
    with Producer(bootstrap, transactional_id=transactional_id) as newer:
        newer.init_transactions()
        with pytest.raises((Fenced, TransactionFailed)):
            producer.send(made_topic, b"old again").result(30)
            producer.commit_transaction()
        with pytest.raises(Fenced):
            producer.abort_transaction()
        with pytest.raises(Fenced):
            producer.begin_transaction()
        with newer.transaction():
            newer.send(made_topic, b"new")
    assert values(bootstrap, made_topic) == [b"new"]


def test_what_an_older_instance_left_open_is_aborted(
    bootstrap: str, made_topic: str, transactional_id: str
) -> None:
    crashed = Producer(bootstrap, transactional_id=transactional_id)
    crashed.init_transactions()
    crashed.begin_transaction()
    crashed.send(made_topic, b"open").result(30)
    # As a crash leaves it: the connections end, and no word is said.
    crashed._loop.run(crashed._core.cluster.close())
    with Producer(bootstrap, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(made_topic, b"done")
    assert values(bootstrap, made_topic) == [b"done"]


def test_close_aborts_what_is_open(
    bootstrap: str, admin: Admin, made_topic: str, transactional_id: str
) -> None:
    producer = Producer(bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    waiting = producer.send(made_topic, b"open", partition=0)
    waiting.result(30)
    producer.close()
    with Producer(bootstrap) as other:
        other.send(made_topic, b"after", partition=0).result(30)
    # A transaction that stayed open would hide what comes after it.
    assert values(bootstrap, made_topic) == [b"after"]


def test_calls_in_the_wrong_state(bootstrap: str, made_topic: str, transactional_id: str) -> None:
    with Producer(bootstrap, transactional_id=transactional_id) as producer:
        with pytest.raises(InvalidTransactionState, match="not initialised"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(InvalidTransactionState, match="ready to begin"):
            producer.send(made_topic, b"x")
        with pytest.raises(InvalidTransactionState, match="ready to begin"):
            producer.write(made_topic, pa.table({"value": ["x"]}))
        with pytest.raises(InvalidTransactionState, match="cannot commit"):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(InvalidTransactionState, match="open"):
            producer.begin_transaction()
        with pytest.raises(ConfigurationError, match="two"):
            producer.prepare_transaction()
        producer.abort_transaction()


def test_a_failed_record_breaks_its_transaction_and_the_next_one_works(
    producer: Producer, bootstrap: str, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, settings={"max.message.bytes": "2000"})
    producer.begin_transaction()
    producer.send(topic, b"fine")
    producer.send(topic, b"x" * 3000)
    with pytest.raises(TransactionFailed, match="MESSAGE_TOO_LARGE"):
        producer.commit_transaction()
    with pytest.raises(TransactionFailed):
        producer.send(topic, b"more")
    producer.abort_transaction()
    for number in range(2):
        with producer.transaction():
            producer.send(topic, b"%d" % number)
    assert values(bootstrap, topic) == [b"0", b"1"]


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meddler, BrokerProcess]]:
    data = tmp_path_factory.mktemp("meddled") / "data"
    with Meddler() as meddler:
        settings = {
            "advertised.listeners": f"PLAINTEXT://{meddler.address}",
        }
        with BrokerProcess(data, settings=settings) as process:
            meddler.forward_to(process.port)
            yield meddler, process


@pytest.mark.parametrize(
    "decision",
    [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH],
    ids=lambda each: each.name,
)
def test_lost_numbers_end_the_transaction_but_not_the_producer(
    meddled: tuple[Meddler, BrokerProcess], topic: str, transactional_id: str, decision: ErrorCode
) -> None:
    meddler = meddled[0]
    meddler.begin(lambda _: Fate.FORWARD)
    with Admin(meddler.address) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(meddler.address, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"one")
        meddler.begin(lambda sent: decision if sent.number == 0 else Fate.FORWARD)
        producer.begin_transaction()
        with pytest.raises(BrokerError):
            producer.send(topic, b"two").result(30)
        with pytest.raises((TransactionFailed, InvalidTransactionState)):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"three")
    assert values(meddler.address, topic) == [b"one", b"three"]


def test_answers_that_are_lost_within_a_transaction(
    meddled: tuple[Meddler, BrokerProcess], topic: str, transactional_id: str
) -> None:
    meddler = meddled[0]
    meddler.begin(lambda sent: Fate.LOSE_ANSWER if sent.number % 3 == 1 else Fate.FORWARD)
    with Admin(meddler.address) as admin:
        admin.create_topic(topic, partitions=1)
    options = {"batch_size": 100, "linger_ms": 0, "retry_backoff_ms": 5}
    with Producer(meddler.address, transactional_id=transactional_id, **options) as producer:
        producer.init_transactions()
        for round_number in range(3):
            with producer.transaction():
                for number in range(20):
                    producer.send(topic, b"%02d-%02d" % (round_number, number))
    meddler.begin(lambda _: Fate.FORWARD)
    expected = [b"%02d-%02d" % (a, b) for a in range(3) for b in range(20)]
    assert [each.value for each in read_all(meddler.address, topic)] == expected


@pytest.fixture(scope="module")
def two_phase_broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[str]:
    """Apache Kafka with what it calls unstable: two-phase commit is not yet released."""
    plain = wire_kit.kafka._properties

    def with_two_phases(*arguments: Any) -> str:
        more = ["unstable.api.versions.enable=true", "transaction.two.phase.commit.enable=true"]
        return plain(*arguments) + "\n".join(more) + "\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_kit.kafka, "_properties", with_two_phases)
        with running_kafka(tmp_path_factory.mktemp("two-phases"), certificates) as kafka:
            yield kafka.bootstrap


@pytest.mark.parametrize("decided", ["commit", "abort"])
def test_two_phases_across_a_crash(
    tmp_path: Path, topic: str, transactional_id: str, decided: str
) -> None:
    settings = {"transaction.two.phase.commit.enable": "true"}
    options = {
        "transactional_id": transactional_id,
        "transaction_two_phase_commit_enable": True,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        first = Producer(broker.bootstrap, **options)
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"prepared")
        prepared = PreparedTransaction.parse(str(first.prepare_transaction()))
        first.close()
        with Producer(broker.bootstrap, **options) as second:
            assert second.init_transactions(keep_prepared=True) == prepared
            known = prepared if decided == "commit" else PreparedTransaction(1, 1)
            assert second.complete_transaction(known) is (decided == "commit")
            with second.transaction():
                second.send(topic, b"next")
        with Producer(broker.bootstrap, **options) as third:
            assert third.init_transactions(keep_prepared=True) is None
            assert third.complete_transaction(prepared) is False
        expected = [b"next", b"prepared"] if decided == "commit" else [b"next"]
        assert values(broker.bootstrap, topic) == expected


@pytest.mark.interop
@pytest.mark.parametrize("decided", ["commit", "abort"])
@pytest.mark.long
def test_two_phases(two_phase_broker: str, topic: str, transactional_id: str, decided: str) -> None:
    with Admin(two_phase_broker) as admin:
        admin.create_topic(topic, partitions=1)
    options = {
        "transactional_id": transactional_id,
        "transaction_two_phase_commit_enable": True,
    }
    with Producer(two_phase_broker, **options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"prepared")
        prepared = PreparedTransaction.parse(str(producer.prepare_transaction()))
        with pytest.raises(InvalidTransactionState, match="prepared"):
            producer.send(topic, b"too late")
        known = prepared if decided == "commit" else PreparedTransaction(1, 1)
        assert producer.complete_transaction(known) is (decided == "commit")
        with producer.transaction():
            producer.send(topic, b"next")
    expected = [b"next", b"prepared"] if decided == "commit" else [b"next"]
    assert values(two_phase_broker, topic) == expected
    # Kafka 4.3 has the first half of KIP-939 only: it cannot keep what another instance prepared.
    with (
        Producer(two_phase_broker, **options) as another,
        pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"),
    ):
        another.init_transactions(keep_prepared=True)


def test_two_phases_where_the_broker_has_only_one(
    producer: Producer, bootstrap: str, transactional_id: str
) -> None:
    other = Producer(
        bootstrap, transactional_id=transactional_id, transaction_two_phase_commit_enable=True
    )
    # Too old for it, or not told to take part.
    with pytest.raises((Unsupported, NotAuthorized)):
        other.init_transactions()
    other.close()
    with producer.transaction():
        pass


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_prepared_transaction_is_ended_by_somebody_else(
    admin: Admin, bootstrap: str, made_topic: str, transactional_id: str, commit: bool
) -> None:
    with Producer(bootstrap, transactional_id=transactional_id) as first:
        first.init_transactions()
        first.begin_transaction()
        first.send(made_topic, b"prepared")
        with pytest.raises(ConfigurationError, match="two\\.phase"):
            first.prepare_transaction()
        prepared = first.prepare_transaction(may_time_out=True)
    identity = (transactional_id, prepared.producer_id, prepared.epoch)
    assert values(bootstrap, made_topic) == []
    admin.end_transaction(*identity, commit=commit)
    admin.end_transaction(*identity, commit=commit)  # as if the answer had been lost
    with pytest.raises(BrokerError):
        admin.end_transaction(*identity, commit=not commit)
    assert values(bootstrap, made_topic) == ([b"prepared"] if commit else [])
