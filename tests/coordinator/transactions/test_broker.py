"""Transactions in a whole broker: what happens around a restart, a slow disk, a deleted topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, produce_request
from server_kit.wire import Wire
from transactions_kit.calls import (
    PATIENCE,
    TRANSACTIONS,
    add,
    add_offsets,
    begin,
    commit_offset,
    committed_values,
    describe,
    end,
    fetch_offset,
    finish,
    fresh_id,
    init,
    make_ready,
    send,
    sent,
    stable_end,
    until_complete,
    values,
)

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.transactions.ending import Ending
from ottla.coordinator.transactions.transaction import Identity, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.replication.partition import Partition
from ottla.server.broker import Broker
from ottla.server.coordination import markers, verification
from ottla.server.disk.lanes import Batches
from ottla.server.handlers.records.produce import handler as produce_handler
from ottla.server.handlers.records.produce import long
from ottla.server.handlers.records.produce import request as request_layout
from ottla.server.handlers.records.produce import transactions as produce_transactions
from ottla.server.handlers.records.produce.request import Parts, read
from ottla.storage.errors import StorageError

StartBroker = Callable[..., BrokerThread]


@pytest.fixture
def ready(start_broker: StartBroker) -> BrokerThread:
    running = start_broker()
    make_ready(running)
    return running


def hold_markers(running: BrokerThread) -> list[Ending]:
    """Markers are asked for, and nobody writes them."""
    held: list[Ending] = []

    def hold(broker: Broker) -> None:
        broker.markers.write = lambda _, ending: held.append(ending)  # type: ignore[method-assign]
        for index in range(len(broker.partitions.by_name[TRANSACTIONS])):
            # Shards that are there know the old way.
            broker.transactions.unload(index)

    running.run(hold)
    return held


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_decided_is_ended_by_the_next_start(ready: BrokerThread, committed: bool) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        sent(wire, topic, name, producer, b"decided", version=12)
        held = hold_markers(ready)
        answer = end(wire, name, producer, committed, version=5)
        assert answer.error_code == 0
        assert len(held) == 1
        assert stable_end(wire, topic) == 0
        # Nobody begins before it has ended.
        following = Identity(answer.producer_id, answer.producer_epoch)
        early = send(wire, topic, name, following, b"early", version=12, patient=False)
        assert early.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert init(wire, name, patient=False).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    ready.restart()
    with ready.wire() as wire:
        state = until_complete(wire, name).transaction_state
        assert state == ("CompleteCommit" if committed else "CompleteAbort")
        assert committed_values(wire, topic) == ([b"decided"] if committed else [])
        sent(wire, topic, name, following, b"next", version=12)


def test_an_open_transaction_outlives_a_restart(ready: BrokerThread) -> None:
    names = [fresh_id(), fresh_id()]
    with ready.wire() as wire:
        topic = create_topic(wire)
        producers = [begin(wire, name) for name in names]
        for name, producer in zip(names, producers, strict=True):
            sent(wire, topic, name, producer, b"before", version=12)
    ready.restart()
    with ready.wire() as wire:
        for name, producer in zip(names, producers, strict=True):
            sent(wire, topic, name, producer, b"after", version=12, sequence=1)
        assert committed_values(wire, topic) == []
        assert end(wire, names[0], producers[0], False, version=5).error_code == 0
        assert end(wire, names[1], producers[1], True, version=5).error_code == 0
        until_complete(wire, names[1])
        assert committed_values(wire, topic) == [b"before", b"after"]
        assert len(values(wire, topic)) == 4
        # The old identity gives its place to the next one.
        assert begin(wire, names[0]).epoch == producers[0].epoch + 2


def test_a_transaction_past_its_timeout_is_aborted(start_broker: StartBroker) -> None:
    running = start_broker(transaction_abort_timed_out_transaction_cleanup_interval_ms="20")
    make_ready(running)
    with running.wire() as wire:
        topic = create_topic(wire)
        patient, late = fresh_id(), fresh_id()
        kept = begin(wire, patient, version=6, enable2_pc=True)
        sent(wire, topic, patient, kept, b"prepared", version=12)
        producer = begin(wire, late, timeout_ms=50)
        sent(wire, topic, late, producer, b"late", version=12)
        assert until_complete(wire, late).transaction_state == "CompleteAbort"
        assert end(wire, late, producer, True, version=5).error_code == ErrorCode.INVALID_TXN_STATE
        # One that is prepared has no timeout.
        assert describe(wire, patient).transaction_state == "Ongoing"
        end(wire, patient, kept, True, version=5)
        until_complete(wire, patient)
        assert committed_values(wire, topic) == [b"prepared"]


def test_ids_expire(start_broker: StartBroker) -> None:
    running = start_broker(
        transaction_remove_expired_transaction_cleanup_interval_ms="20",
        transactional_id_expiration_ms="1",
    )
    make_ready(running)
    with running.wire() as wire:
        names = [fresh_id() for _ in range(20)]
        first = begin(wire, names[0])
        for name in names[1:]:
            begin(wire, name)
        running.until(
            lambda broker: (
                not any(shard.transactions for shard in broker.transactions.serving_shards())
            )
        )
        assert describe(wire, names[0]).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert add(wire, names[0], first, (create_topic(wire), 0)) == [
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        ]
        answer = wire.call(ListTransactionsRequest(), ListTransactionsResponse, 1)
        assert answer.transaction_states == []
    running.restart()
    with running.wire() as wire:
        assert begin(wire, names[0]).producer_id != first.producer_id


def test_two_phase_commit_over_a_restart_of_everything(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        first = begin(wire, name, version=6, enable2_pc=True)
        sent(wire, topic, name, first, b"prepared", version=12)
    ready.restart()
    with ready.wire() as wire:
        answer = init(wire, name, version=6, enable2_pc=True, keep_prepared_txn=True)
        assert answer.error_code == 0
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == first
        second = Identity(answer.producer_id, answer.producer_epoch)
        assert second == Identity(first.producer_id, first.epoch + 1)
        assert end(wire, name, first, False, version=5).error_code == ErrorCode.PRODUCER_FENCED
        ended = end(wire, name, second, True, version=5)
        assert (ended.error_code, ended.producer_epoch) == (0, second.epoch + 1)
        until_complete(wire, name)
        assert committed_values(wire, topic) == [b"prepared"]
        third = Identity(ended.producer_id, ended.producer_epoch)
        sent(wire, topic, name, third, b"more", version=12)
        assert end(wire, name, third, True, version=5).error_code == 0
        until_complete(wire, name)
        assert committed_values(wire, topic) == [b"prepared", b"more"]


def test_two_phase_commit_has_to_be_switched_on(start_broker: StartBroker) -> None:
    running = start_broker(transaction_two_phase_commit_enable="false")
    make_ready(running)
    with running.wire() as wire:
        answer = init(wire, fresh_id(), version=6, enable2_pc=True)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_markers_queue_behind_appends_to_a_slow_disk(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire, partitions=3)

        def slow(broker: Broker) -> None:
            for partition in broker.partitions.by_name[topic.name]:
                broker.lanes.mark_slow(partition.log.folder, 1.0)

        ready.run(slow)
        producer = begin(wire, name)
        expected: list[bytes | None] = []
        for number in range(10):
            value = b"%d" % number
            for index in range(3):
                sent(wire, topic, name, producer, value, version=12, index=index)
            answer = end(wire, name, producer, number % 3 != 0, version=5)
            assert answer.error_code == 0
            producer = Identity(answer.producer_id, answer.producer_epoch)
            if number % 3 != 0:
                expected.append(value)
        until_complete(wire, name)
        for index in range(3):
            assert committed_values(wire, topic, index) == expected


def test_a_batch_does_not_queue_up_behind_the_end_of_its_transaction(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other:
        topic = create_topic(wire)
        producer = begin(wire, name)
        add(wire, name, producer, (topic, 0))
        sent(wire, topic, name, producer, b"in time")
        gate = asyncio.Event()

        async def wait(batch: bytearray) -> bytearray:
            await gate.wait()
            return batch

        def block(broker: Broker) -> None:
            target = broker.partitions.by_name[topic.name][0]
            broker.lanes.append(target, bytearray(batch_of(b"slow")), lambda _: None, wait)

        ready.run(block)
        assert end(wire, name, producer, True).error_code == 0
        late = send(other, topic, name, producer, b"late", sequence=1)
        assert late.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert describe(wire, name).transaction_state == "PrepareCommit"
        ready.run(lambda _: gate.set())
        until_complete(wire, name)
        assert committed_values(wire, topic) == [b"in time", b"slow"]
        assert stable_end(wire, topic) == 3


def test_a_transaction_over_many_partitions(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire, partitions=250)
        producer = begin(wire, name)
        partitions = [(topic, index) for index in range(250)]
        assert set(add(wire, name, producer, *partitions)) == {ErrorCode.NONE}
        for index in (0, 99, 100, 249):
            sent(wire, topic, name, producer, b"x", index=index)
        finish(wire, name, producer, True)
        for index in (0, 99, 100, 249):
            assert committed_values(wire, topic, index) == [b"x"]


def test_a_marker_that_cannot_be_written_is_tried_again(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire, partitions=2)
        producer = begin(wire, name)
        for index in range(2):
            sent(wire, topic, name, producer, b"x", version=12, index=index)
        refusals = [StorageError("not now"), StorageError("nor now")]

        def refuse(broker: Broker) -> None:
            target = broker.partitions.by_name[topic.name][1]
            log = target.log
            whole = log.producers.check_marker

            def check(*arguments: Any) -> None:
                if refusals:
                    raise refusals.pop()
                whole(*arguments)

            log.producers.check_marker = check  # type: ignore[method-assign]

        ready.run(refuse)
        assert end(wire, name, producer, True, version=5).error_code == 0
        assert committed_values(wire, topic) == [b"x"]
        until_complete(wire, name)
        assert not refusals
        assert committed_values(wire, topic, 1) == [b"x"]


def test_a_topic_that_was_deleted_holds_nobody_back(ready: BrokerThread) -> None:
    name = fresh_id()
    with ready.wire() as wire:
        topic, other = create_topic(wire), create_topic(wire)
        producer = begin(wire, name)
        sent(wire, topic, name, producer, b"gone", version=12)
        sent(wire, other, name, producer, b"there", version=12)
        wire.call(
            DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=10_000),
            DeleteTopicsResponse,
            5,
        )
        assert end(wire, name, producer, True, version=5).error_code == 0
        assert until_complete(wire, name).transaction_state == "CompleteCommit"
        assert committed_values(wire, other) == [b"there"]


def test_without_its_topic_there_is_no_coordinator(start_broker: StartBroker) -> None:
    running = start_broker()
    running.run_async(running.broker.internal_topic(CONSUMER_OFFSETS))
    with running.wire() as wire:
        topic = create_topic(wire)
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        producer = Identity(1, 0)
        assert init(wire, "t", patient=False).error_code == code
        assert end(wire, "t", producer, True, patient=False).error_code == code
        assert describe(wire, "t").error_code == code
        for version in (9, 11, 12):
            refused = send(wire, topic, "t", producer, b"x", version=version, patient=False)
            assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        for version in (3, 4, 5):
            assert commit_offset(wire, "t", producer, "group", topic, 7, version) == code


def test_a_leader_may_hear_of_the_coordinators_after_the_first_batch(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their topic is made for the first transactional id, and the coordinator serves it at once. A batch
    that is refused for good meanwhile is given up by librdkafka, whose next transaction then begins with
    the sequence after it: OUT_OF_ORDER_SEQUENCE_NUMBER."""
    refused: list[Topic] = []

    def has_not_heard(broker: Broker, *arguments: Any) -> None:
        coordinators = broker.partitions.by_name[TRANSACTIONS]
        if not refused:
            refused.append(topic)
            del broker.partitions.by_name[TRANSACTIONS]
        verification.verify(broker, *arguments)
        broker.partitions.by_name[TRANSACTIONS] = coordinators

    with ready.wire() as wire:
        topic = create_topic(wire)
        monkeypatch.setattr(produce_transactions, "verify", has_not_heard)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": f"{ready.host}:{ready.port}",
                "transactional.id": fresh_id(),
                "log_level": 0,
            }
        )
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.produce(topic.name, b"aborted", partition=0)
        assert producer.flush(PATIENCE) == 0
        producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        producer.produce(topic.name, b"committed", partition=0)
        producer.commit_transaction(PATIENCE)
        assert refused
        assert values(wire, topic) == [b"aborted", b"committed"]
        assert committed_values(wire, topic) == [b"committed"]


@pytest.mark.parametrize("version", [9, 12])
def test_a_batch_does_not_take_the_place_of_one_before_it_that_is_to_be_sent_again(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Both were on their way when the first was refused; the coordinator can be asked for the second.
    (A producer that is new to the partition may begin with any sequence.)"""

    def loading(
        _: Broker,
        name: str,
        producer: Identity,
        partitions: Sequence[TopicPartition],
        client: object,
    ) -> Message:
        codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[verification.result_of(name, codes)]
        )

    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        if version < 12:
            assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
        monkeypatch.setattr(verification, "_ask", loading)
        refused = send(wire, topic, name, producer, b"first", version=version, patient=False)
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        monkeypatch.undo()
        early = send(wire, topic, name, producer, b"second", version=version, sequence=1)
        assert early.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence, value in enumerate((b"first", b"second")):
            sent(wire, topic, name, producer, value, version=version, sequence=sequence)
        finish(wire, name, producer, True)
        assert committed_values(wire, topic) == [b"first", b"second"]


def test_verification_can_be_switched_off(start_broker: StartBroker) -> None:
    running = start_broker(transaction_partition_verification_enable="false")
    make_ready(running)
    name = fresh_id()
    with running.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        sent(wire, topic, name, producer, b"not announced", version=9)
        # With the second protocol there is nothing to switch off.
        refused = send(wire, topic, name, Identity(producer.producer_id, 5), b"x", version=12)
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_patterns_of_ids(ready: BrokerThread) -> None:
    with ready.wire() as wire:
        begin(wire, "orders-1")
        begin(wire, "orders-2")

        def listed(pattern: str) -> tuple[ErrorCode, set[str]]:
            answer = wire.call(
                ListTransactionsRequest(transactional_id_pattern=pattern),
                ListTransactionsResponse,
                2,
            )
            return ErrorCode(answer.error_code), {
                each.transactional_id for each in answer.transaction_states
            }

        assert listed("") == (ErrorCode.NONE, {"orders-1", "orders-2"})
        assert listed("orders-[") == (ErrorCode.INVALID_REGULAR_EXPRESSION, set())
        pytest.importorskip("re2")
        assert listed("orders-.") == (ErrorCode.NONE, {"orders-1", "orders-2"})
        assert listed(".*2") == (ErrorCode.NONE, {"orders-2"})
        assert listed("orders") == (ErrorCode.NONE, set())


def test_a_transaction_costs_four_records(ready: BrokerThread) -> None:
    """One for the identity, one for all partitions of a request, two for the end."""
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire, partitions=3)
        producer = begin(wire, name)
        fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        batch = batch_of(b"x", base_sequence=0, transactional=True, **fields)
        request = produce_request(
            topic, (0, batch), (1, batch), (2, batch), acks=-1, transactional_id=name
        )
        answer = wire.call(request, ProduceResponse, 12)
        assert {each.error_code for each in answer.responses[0].partition_responses} == {0}
        end(wire, name, producer, True, version=5)
        until_complete(wire, name)
    ends = ready.run(
        lambda broker: sorted(
            each.log.log_end_offset for each in broker.partitions.by_name[TRANSACTIONS]
        )
    )
    assert ends == [0, 4]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_request_is_read_once_whenever_its_coordinator_answers(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    ask = verification._ask
    came: list[bytes] = []

    def answered_later(*arguments: Any) -> asyncio.Future[Message]:
        answer = ask(*arguments)
        assert isinstance(answer, Message)
        loop = asyncio.get_running_loop()
        later: asyncio.Future[Message] = loop.create_future()
        loop.call_soon(later.set_result, answer)
        return later

    def reading(body: memoryview, version: int) -> Parts:
        came.append(bytes(body))
        return read(body, version)

    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        monkeypatch.setattr(produce_handler, "read", reading)
        if is_late:
            monkeypatch.setattr(verification, "_ask", answered_later)
        for sequence, value in enumerate((b"first", b"second")):
            sent(wire, topic, name, producer, value, sequence=sequence, version=12)
        assert len(came) == len(set(came)) == 2
        finish(wire, name, producer, committed=True)
        assert committed_values(wire, topic) == [b"first", b"second"]


def test_a_permission_that_the_marker_overtook_counts_no_more(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's answer was under way while the transaction ended."""
    permissions: list[tuple[asyncio.Future[Message], Message]] = []
    ask = verification._ask

    def held_back(*arguments: Any) -> asyncio.Future[Message]:
        answer = ask(*arguments)
        assert isinstance(answer, Message)
        later: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        permissions.append((later, answer))
        return later

    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire)
        producer = begin(wire, name)
        assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
        monkeypatch.setattr(verification, "_ask", held_back)
        late = beside.submit(send, other, topic, name, producer, b"late", version=11, patient=False)
        ready.until(lambda _: bool(permissions))
        # The producer lost patience.
        finish(wire, name, producer, committed=False)
        ((later, permission),) = permissions
        monkeypatch.undo()
        ready.run(lambda _: later.set_result(permission))
        assert late.result().error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        # Nothing is open that nobody would end, and asking again tells that it is too late.
        again = send(wire, topic, name, producer, b"late", version=11)
        assert again.error_code == ErrorCode.TRANSACTION_ABORTABLE
        assert values(wire, topic) == []
        assert stable_end(wire, topic) == 1


def test_a_permission_counts_no_more_when_another_led_meanwhile(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker was written while the coordinator's answer was under way, and is not remembered: the
    log was cut, and its state loaded from a snapshot."""
    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire)
        producer = begin(wire, name)
        assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
        answers = hold_answers(monkeypatch)
        late = beside.submit(send, other, topic, name, producer, b"late", version=11, patient=False)
        ready.until(lambda _: bool(answers))
        finish(wire, name, producer, committed=False)

        def lead_anew(broker: Broker) -> None:
            target = broker.partitions.by_name[topic.name][0]
            state = broker.image.topics[topic.name].partitions[0]
            for term, leader in enumerate((broker.id + 1, broker.id), start=1):
                epoch = state.leader_epoch + term
                target.update(replace(state, leader=leader, leader_epoch=epoch), 0)
            target.log.producers.producers[producer.producer_id].last_marker_offset = -1

        ready.run(lead_anew)
        ready.run(lambda _: answers.pop()())
        assert late.result().error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert values(wire, topic) == []
        assert stable_end(wire, topic) == 1


def test_a_partition_of_which_the_coordinator_has_not_heard_yet_gets_its_marker(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just become the coordinator may have heard of that before it hears of a topic
    which was made earlier: what it reads of one node is newer than the news that led to it."""
    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        sent(wire, topic, name, producer, b"decided", version=12)
        known = ready.broker.partitions.by_name[topic.name]

        def be_behind(broker: Broker) -> None:
            follower = broker.membership.follower
            caught_up = follower.caught_up

            async def hear() -> None:
                await caught_up()
                broker.partitions.by_name[topic.name] = known

            del broker.partitions.by_name[topic.name]
            monkeypatch.setattr(follower, "caught_up", hear)

        ready.run(be_behind)
        finish(wire, name, producer, committed=True)
        ready.run(lambda broker: broker.partitions.by_name.setdefault(topic.name, known))
        assert stable_end(wire, topic) == 2
        assert committed_values(wire, topic) == [b"decided"]


def hold_answers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Answers of the coordinator are on their way from now on; a call, on the loop, delivers one."""
    held: list[Callable[[], None]] = []
    ask = verification._ask

    def hold(*arguments: Any) -> asyncio.Future[Message]:
        answer = ask(*arguments)
        assert isinstance(answer, Message)
        later: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        held.append(lambda: later.set_result(answer))
        return later

    monkeypatch.setattr(verification, "_ask", hold)
    return held


def two_batches(
    wire: Wire, topic: Topic, name: str, producer: Identity, *sequences: int
) -> list[ErrorCode]:
    """The errors of a request of the first protocol with a batch for each of two partitions."""
    parts = [
        (
            index,
            batch_of(
                b"late",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                transactional=True,
            ),
        )
        for index, sequence in enumerate(sequences)
    ]
    request = produce_request(topic, *parts, transactional_id=name, acks=-1)
    (answer,) = wire.call(request, ProduceResponse, 11).responses
    return [ErrorCode(each.error_code) for each in answer.partition_responses]


def test_a_batch_that_waited_for_the_word_on_another_is_not_appended_after_the_marker(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the request came, the transaction was open in one of its partitions, and in the other not."""
    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire, partitions=2)
        producer = begin(wire, name)
        assert add(wire, name, producer, (topic, 0), (topic, 1)) == [ErrorCode.NONE] * 2
        sent(wire, topic, name, producer, b"in time", version=11)
        answers = hold_answers(monkeypatch)
        late = beside.submit(two_batches, other, topic, name, producer, 1, 0)
        ready.until(lambda _: bool(answers))
        finish(wire, name, producer, committed=True)
        ready.run(lambda _: answers.pop()())
        assert late.result() == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        assert [stable_end(wire, topic, index) for index in (0, 1)] == [2, 1]


def test_a_batch_with_a_permission_is_not_appended_after_a_marker_in_the_queue(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker waits in the lane of the partition when the coordinator's answer comes."""
    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire)
        producer = begin(wire, name)
        assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
        answers = hold_answers(monkeypatch)
        late = beside.submit(send, other, topic, name, producer, b"late", version=11, patient=False)
        ready.until(lambda _: bool(answers))
        gate = asyncio.Event()

        async def wait(batch: bytearray) -> bytearray:
            await gate.wait()
            return batch

        def block(broker: Broker) -> None:
            target = broker.partitions.by_name[topic.name][0]
            broker.lanes.append(target, bytearray(batch_of(b"slow")), lambda _: None, wait)

        ready.run(block)
        assert end(wire, name, producer, True).error_code == 0
        ready.run(lambda _: answers.pop()())
        ready.run(lambda _: gate.set())
        assert late.result().error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        until_complete(wire, name)
        assert committed_values(wire, topic) == [b"slow"]
        assert stable_end(wire, topic) == 2


@pytest.mark.parametrize("is_open", [False, True])
def test_a_long_request_is_not_appended_after_the_marker(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The transaction ends between two of its steps. `is_open`: the partition that comes last has
    batches of it already, so that nobody was asked."""
    monkeypatch.setattr(request_layout, "MANY", 0)
    monkeypatch.setattr(long, "_PARTITIONS_IN_A_STEP", 1)
    appended = long.LongProduce._appended
    halfway, may_go_on = threading.Event(), threading.Event()

    def held_halfway(*arguments: Any) -> Iterator[None]:
        steps = appended(*arguments)
        next(steps)
        halfway.set()
        while not may_go_on.is_set():
            yield
        yield from steps

    name = fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire, partitions=2)
        producer = begin(wire, name)
        assert add(wire, name, producer, (topic, 0), (topic, 1)) == [ErrorCode.NONE] * 2
        if is_open:
            sent(wire, topic, name, producer, b"in time", index=1, version=11)
        monkeypatch.setattr(long.LongProduce, "_appended", held_halfway)
        late = beside.submit(two_batches, other, topic, name, producer, 0, int(is_open))
        assert halfway.wait(PATIENCE)
        finish(wire, name, producer, committed=True)
        may_go_on.set()
        assert late.result() == [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS]
        assert [stable_end(wire, topic, index) for index in (0, 1)] == [2, 1 + is_open]


def offsets_partition(running: BrokerThread, group: str) -> Partition:
    """Where the offsets of a group are."""

    def find(broker: Broker) -> Partition:
        index = broker.groups.partition_for(group)
        assert index is not None
        return broker.partitions.by_name[CONSUMER_OFFSETS][index]

    return running.run(find)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("is_queue", [False, True])
def test_offsets_with_a_permission_that_the_marker_overtook_are_refused(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, version: int, is_queue: bool
) -> None:
    """They would open a transaction that nobody ends, and pend for ever. `is_queue`: the partition of
    the offsets has a lane. Neither they nor the marker wait in it."""
    name, group = fresh_id(), fresh_id()
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire)
        producer = begin(wire, name)
        if version < 5:
            assert add_offsets(wire, name, producer, group) == ErrorCode.NONE
        answers = hold_answers(monkeypatch)
        late = beside.submit(commit_offset, other, name, producer, group, topic, 7, version)
        ready.until(lambda _: bool(answers))
        target = offsets_partition(ready, group)
        gate = asyncio.Event()

        async def wait(_: Batches) -> Batches:
            await gate.wait()
            raise StorageError("nothing is to be appended")

        if is_queue:
            ready.run(lambda broker: broker.lanes.append(target, bytearray(), lambda _: None, wait))
        assert end(wire, name, producer, True, version=5 if version == 5 else 3).error_code == 0
        until_complete(wire, name)
        ready.run(lambda _: answers.pop()())
        assert late.result() == (
            ErrorCode.CONCURRENT_TRANSACTIONS
            if version == 5
            else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        ready.run(lambda _: gate.set())
        assert fetch_offset(wire, group, topic, stable=True) == (-1, ErrorCode.NONE)
        assert ready.run(lambda _: target.log.producers.first_unstable_offset) is None


@pytest.mark.parametrize("version", [4, 5])
def test_offsets_are_appended_before_a_marker_that_comes_right_after_the_permission(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Between the coordinator's answer and their append the loop has no turn."""
    name, group = fresh_id(), fresh_id()
    write_markers: list[Callable[[], None]] = []

    def hold(broker: Broker) -> None:
        write = broker.markers.write
        broker.markers.write = lambda shard, ending: write_markers.append(  # type: ignore[method-assign]
            lambda: write(shard, ending)
        )
        for index in range(len(broker.partitions.by_name[TRANSACTIONS])):
            # Shards that are there know the old way.
            broker.transactions.unload(index)

    def deliver(broker: Broker) -> None:
        answers.pop()()
        broker.loop.call_soon(write_markers.pop())

    ready.run(hold)
    with ready.wire() as wire, ready.wire() as other, ThreadPoolExecutor(1) as beside:
        topic = create_topic(wire)
        producer = begin(wire, name)
        if version < 5:
            assert add_offsets(wire, name, producer, group) == ErrorCode.NONE
        answers = hold_answers(monkeypatch)
        late = beside.submit(commit_offset, other, name, producer, group, topic, 7, version)
        ready.until(lambda _: bool(answers))
        assert end(wire, name, producer, True, version=5 if version == 5 else 3).error_code == 0
        ready.run(deliver)
        assert late.result() == ErrorCode.NONE
        until_complete(wire, name)
        assert fetch_offset(wire, group, topic, stable=True) == (7, ErrorCode.NONE)


def test_who_leads_no_more_writes_no_markers(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwilling(*arguments: Any) -> None:
        arguments[-1](StorageError("not now"))

    name = fresh_id()
    with ready.wire() as wire:
        topic = create_topic(wire)
        producer = begin(wire, name)
        sent(wire, topic, name, producer, b"decided", version=12)
        monkeypatch.setattr(markers, "append_marker", unwilling)
        assert end(wire, name, producer, True, version=5).error_code == 0
        assert ready.run(lambda broker: broker.markers.under_way) == 1
        index = ready.run(lambda broker: broker.transactions.partition_for(name))
        assert index is not None
        ready.run(lambda broker: broker.transactions.unload(index))
        assert ready.run(lambda broker: broker.markers.under_way) == 0
        # Who leads next does it.
        monkeypatch.undo()
        assert until_complete(wire, name).transaction_state == "CompleteCommit"
        assert committed_values(wire, topic) == [b"decided"]
