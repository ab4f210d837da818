"""Transactions over sockets. With TEST_BOOTSTRAP these run against another broker (Apache Kafka),
which is how their expectations were found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerElsewhere, BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch_request,
    produce,
    produce_request,
    values_of,
    versions_of,
)
from server_kit.wire import Wire
from transactions_kit.calls import (
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

from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@pytest.fixture(scope="module", autouse=True)
def ready(broker: BrokerThread | BrokerElsewhere) -> None:
    make_ready(broker)


@pytest.fixture
def topic(wire: Wire) -> Topic:
    return create_topic(wire, partitions=2)


# Identities


@pytest.mark.parametrize("version", versions_of(InitProducerIdRequest))
def test_each_producer_of_an_id_gets_the_next_epoch(wire: Wire, version: int) -> None:
    name = fresh_id()
    first = begin(wire, name, version=version)
    assert first.epoch == 0
    assert begin(wire, name, version=version) == Identity(first.producer_id, 1)


@pytest.mark.parametrize("version", versions_of(InitProducerIdRequest))
def test_without_an_id_each_gets_a_producer_id_of_its_own(wire: Wire, version: int) -> None:
    first = init(wire, None, version=version)
    second = init(wire, None, version=version)
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id


def test_bad_requests_for_an_identity(wire: Wire) -> None:
    refused = [
        init(wire, ""),
        init(wire, fresh_id(), timeout_ms=0),
        init(wire, fresh_id(), timeout_ms=900_001),
        init(wire, fresh_id(), expected=Identity(5, -1)),
    ]
    assert [ErrorCode(each.error_code) for each in refused] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    ]
    assert {each.producer_id for each in refused} == {-1}


@pytest.mark.parametrize("version", versions_of(InitProducerIdRequest, first=3))
def test_a_fenced_producer_cannot_take_its_id_back(wire: Wire, version: int) -> None:
    name = fresh_id()
    first = begin(wire, name)
    begin(wire, name)
    answer = init(wire, name, version=version, expected=first)
    assert answer.error_code == (
        ErrorCode.INVALID_PRODUCER_EPOCH if version < 4 else ErrorCode.PRODUCER_FENCED
    )


def test_a_retry_with_the_old_identity_gets_the_same_answer(wire: Wire) -> None:
    name = fresh_id()
    first = begin(wire, name)
    second = begin(wire, name, expected=first)
    assert second == Identity(first.producer_id, 1)
    assert begin(wire, name, expected=first) == second


def test_the_feature_is_finalized(wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = wire.call(request, ApiVersionsResponse, 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels["transaction.version"] == 2


# Commit and abort


@pytest.mark.parametrize("version", versions_of(EndTxnRequest, last=4))
@pytest.mark.parametrize("committed", [True, False])
def test_the_first_protocol(wire: Wire, topic: Topic, version: int, committed: bool) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    code = add(wire, name, producer, (topic, 0), (topic, 1), version=min(version, 3))
    assert code == [ErrorCode.NONE] * 2
    sent(wire, topic, name, producer, b"one", b"two")
    sent(wire, topic, name, producer, b"three", index=1)
    assert committed_values(wire, topic) == []
    assert values(wire, topic) == [b"one", b"two"]
    assert stable_end(wire, topic) == 0
    assert end(wire, name, producer, committed, version=version).error_code == 0
    # Once more, as after a lost answer.
    assert end(wire, name, producer, committed, version=version).error_code == 0
    assert end(wire, name, producer, not committed, version=version).error_code == (
        ErrorCode.INVALID_TXN_STATE
    )
    until_complete(wire, name)
    assert committed_values(wire, topic) == ([b"one", b"two"] if committed else [])
    assert committed_values(wire, topic, 1) == ([b"three"] if committed else [])
    assert values(wire, topic) == [b"one", b"two"]
    assert stable_end(wire, topic) == 3
    # The epoch is the same, so the sequence goes on.
    assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
    sent(wire, topic, name, producer, b"four", sequence=2)
    finish(wire, name, producer, True)
    assert committed_values(wire, topic) == ([b"one", b"two"] if committed else []) + [b"four"]


@pytest.mark.parametrize("version", [12, 13])
def test_the_second_protocol(wire: Wire, topic: Topic, version: int) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    expected: list[bytes | None] = []
    for number in range(6):
        value = b"%d" % number
        sent(wire, topic, name, producer, value, version=version)
        sent(wire, topic, name, producer, value, version=version, sequence=1)
        answer = end(wire, name, producer, number % 2 == 0, version=5)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        following = Identity(answer.producer_id, answer.producer_epoch)
        assert following == Identity(producer.producer_id, producer.epoch + 1)
        # A retry is told the same.
        again = end(wire, name, producer, number % 2 == 0, version=5)
        assert (again.error_code, again.producer_epoch) == (0, following.epoch)
        producer = following
        if number % 2 == 0:
            expected += [value, value]
    until_complete(wire, name)
    assert committed_values(wire, topic) == expected
    assert len(values(wire, topic)) == 12


def test_an_abort_of_nothing_takes_the_next_epoch(wire: Wire) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    assert end(wire, name, producer, True, version=5).error_code == ErrorCode.INVALID_TXN_STATE
    answer = end(wire, name, producer, False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    assert end(wire, name, producer, False, version=4).error_code == ErrorCode.PRODUCER_FENCED


def test_a_new_producer_aborts_what_the_old_one_left_open(wire: Wire, topic: Topic) -> None:
    name = fresh_id()
    old = begin(wire, name)
    sent(wire, topic, name, old, b"left open", version=12)
    impatient = init(wire, name, patient=False)
    assert impatient.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    new = begin(wire, name)
    assert new == Identity(old.producer_id, old.epoch + 2)
    sent(wire, topic, name, new, b"new", version=12)
    refused = send(wire, topic, name, old, b"zombie", sequence=1, version=12)
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(wire, name, old, True, version=5).error_code == ErrorCode.PRODUCER_FENCED
    assert end(wire, name, old, True, version=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(wire, name, new, True, version=5).error_code == 0
    until_complete(wire, name)
    assert committed_values(wire, topic) == [b"new"]


def test_committed_and_aborted_transactions_side_by_side(wire: Wire, topic: Topic) -> None:
    names = [fresh_id() for _ in range(4)]
    producers = {name: begin(wire, name) for name in names}
    for turn in range(5):
        for name in names:
            sent(wire, topic, name, producers[name], name.encode(), sequence=turn, version=12)
    end(wire, names[1], producers[names[1]], True, version=5)
    # The first one holds everybody back.
    assert committed_values(wire, topic) == []
    end(wire, names[0], producers[names[0]], False, version=5)
    end(wire, names[3], producers[names[3]], True, version=5)
    end(wire, names[2], producers[names[2]], False, version=5)
    for name in names:
        until_complete(wire, name)
    assert committed_values(wire, topic) == [
        name.encode() for _ in range(5) for name in (names[1], names[3])
    ]


@pytest.mark.parametrize("committed", [True, False])
def test_readers_of_committed_records_wait_for_the_end(
    wire: Wire, connect: Callable[[], Wire], topic: Topic, committed: bool
) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    sent(wire, topic, name, producer, b"decided", version=12)
    reader = connect()
    # It would wait longer than this test's connections do.
    request = fetch_request(topic, (0, 0), max_wait_ms=60_000, isolation_level=1)
    reader.send(request, 12)
    following = end(wire, name, producer, committed, version=5)
    (answer,) = reader.receive(FetchResponse, 12).responses[0].partitions
    assert values_of(answer.records)[0] == b"decided"
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    assert aborted == ([] if committed else [(producer.producer_id, 0)])
    assert (answer.last_stable_offset, following.error_code) == (2, 0)


# Verification


@pytest.mark.parametrize("version", [3, 8, 9, 10, 11])
def test_a_batch_outside_of_the_transaction_is_refused(
    wire: Wire, topic: Topic, version: int
) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    assert send(wire, topic, name, producer, b"x", version=version).error_code == expected
    assert add(wire, name, producer, (topic, 1)) == [ErrorCode.NONE]
    assert send(wire, topic, name, producer, b"x", version=version).error_code == expected
    assert send(wire, topic, name, producer, b"x", version=version, index=1).error_code == 0
    finish(wire, name, producer, True)
    # The transaction is over, and a late batch would open one that nobody ends.
    late = send(wire, topic, name, producer, b"x", version=version, index=1, sequence=1)
    assert late.error_code == expected
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [9, 12])
def test_partitions_of_one_request_are_judged_alone(wire: Wire, topic: Topic, version: int) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    assert add(wire, name, producer, (topic, 0)) == [ErrorCode.NONE]
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    batch = batch_of(b"x", base_sequence=0, transactional=True, **fields)
    plain = batch_of(b"plain")
    request = produce_request(
        topic, (0, batch), (1, batch), (7, batch), acks=-1, transactional_id=name
    )
    answer = wire.call(request, ProduceResponse, version)
    found = {each.index: each.error_code for each in answer.responses[0].partition_responses}
    other = ErrorCode.INVALID_TXN_STATE if version < 12 else ErrorCode.NONE
    assert found == {0: 0, 1: other, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    # Batches outside of the transaction take no part in it.
    assert produce(wire, topic, plain, version=version).error_code == 0
    finish(wire, name, producer, False)
    assert committed_values(wire, topic) == [b"plain"]
    assert committed_values(wire, topic, 1) == []


def test_a_producer_in_a_transaction_writes_nothing_beside_it(wire: Wire, topic: Topic) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    sent(wire, topic, name, producer, b"x", version=12)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    beside = batch_of(b"beside", base_sequence=1, **fields)
    assert produce(wire, topic, beside, version=12).error_code == ErrorCode.INVALID_TXN_STATE
    gap = send(wire, topic, name, producer, b"gap", sequence=7, version=12)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = send(wire, topic, name, producer, b"x", sequence=0, version=12)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert end(wire, name, producer, True, version=5).error_code == 0
    until_complete(wire, name)
    assert committed_values(wire, topic) == [b"x"]


@pytest.mark.parametrize("version", [9, 12])
def test_batches_of_strangers_are_refused(wire: Wire, topic: Topic, version: int) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    stranger = Identity(producer.producer_id + 100_000, 0)
    answers = [
        send(wire, topic, name, stranger, b"x", version=version),
        send(wire, topic, fresh_id(), producer, b"x", version=version),
        send(wire, topic, name, Identity(producer.producer_id, 7), b"x", version=version),
        send(wire, topic, None, producer, b"x", version=version),
    ]
    assert [ErrorCode(each.error_code) for each in answers] == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ]
    assert end_offset(wire, topic) == 0


def test_partitions_that_do_not_exist(wire: Wire, topic: Topic) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    assert add(wire, name, producer, (topic, 0), (topic, 9)) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert describe(wire, name).transaction_state == "Empty"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_who_may_not_add_partitions(wire: Wire, topic: Topic, version: int) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    later = Identity(producer.producer_id, 5)
    other = Identity(producer.producer_id + 100_000, 0)
    assert add(wire, name, later, (topic, 0), version=version) == [fenced]
    assert add(wire, name, other, (topic, 0), version=version) == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ]
    assert add(wire, fresh_id(), producer, (topic, 0), version=version) == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ]
    assert add(wire, "", producer, (topic, 0), version=version) == [ErrorCode.INVALID_REQUEST]
    assert add_offsets(wire, name, later, "group", version=version) == fenced
    assert add_offsets(wire, "", later, "group", version=version) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_several_transactions_at_once(
    wire: Wire, topic: Topic, version: int
) -> None:
    names = [fresh_id() for _ in range(3)]
    producers = [begin(wire, name) for name in names]
    assert add(wire, names[0], producers[0], (topic, 0), version=version) == [ErrorCode.NONE]

    def ask(*verify_only: bool) -> list[list[ErrorCode]]:
        answer = wire.call(
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=name,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        verify_only=only,
                        topics=[AddPartitionsToTxnTopic(name=topic.name, partitions=[0, 1])],
                    )
                    for name, producer, only in zip(names, producers, verify_only, strict=True)
                ]
            ),
            AddPartitionsToTxnResponse,
            version,
        )
        found = {
            each.transactional_id: [
                ErrorCode(result.partition_error_code)
                for result in sorted(
                    each.topic_results[0].results_by_partition,
                    key=lambda result: result.partition_index,
                )
            ]
            for each in answer.results_by_transaction
        }
        return [found[name] for name in names]

    none, missing = ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE
    assert ask(True, True, False) == [[none, missing], [missing, missing], [none, none]]
    assert [describe(wire, name).transaction_state for name in names] == [
        "Ongoing",
        "Empty",
        "Ongoing",
    ]


# Offsets


@pytest.mark.parametrize("version", versions_of(TxnOffsetCommitRequest))
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_count_when_their_transaction_commits(
    wire: Wire, topic: Topic, version: int, committed: bool
) -> None:
    name, group = fresh_id(), fresh_id()
    producer = begin(wire, name)
    if version < 5:
        missing = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
        assert commit_offset(wire, name, producer, group, topic, 7, version) == missing
        assert add_offsets(wire, name, producer, group) == ErrorCode.NONE
    assert commit_offset(wire, name, producer, group, topic, 7, version) == ErrorCode.NONE
    assert commit_offset(wire, name, producer, group, topic, 8, version) == ErrorCode.NONE
    assert describe(wire, name).topics[0].topic == "__consumer_offsets"
    assert fetch_offset(wire, group, topic) == (-1, ErrorCode.NONE)
    assert fetch_offset(wire, group, topic, stable=True) == (
        -1,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
    assert end(wire, name, producer, committed, version=5).error_code == 0
    until_complete(wire, name)
    expected = 8 if committed else -1
    assert fetch_offset(wire, group, topic, stable=True) == (expected, ErrorCode.NONE)


@pytest.mark.parametrize("version", versions_of(TxnOffsetCommitRequest))
def test_offsets_of_strangers_are_refused(wire: Wire, topic: Topic, version: int) -> None:
    name, group = fresh_id(), fresh_id()
    producer = begin(wire, name)
    fenced = Identity(producer.producer_id, 5)
    stranger = Identity(producer.producer_id + 100_000, 0)
    assert commit_offset(wire, name, fenced, group, topic, 7, version) == (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert commit_offset(wire, name, stranger, group, topic, 7, version) == (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    assert commit_offset(wire, fresh_id(), producer, group, topic, 7, version) == (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


# Markers by request


def test_markers_that_somebody_else_writes(wire: Wire, topic: Topic) -> None:
    name = fresh_id()
    producer = begin(wire, name)
    sent(wire, topic, name, producer, b"hanging", version=12)

    def mark(epoch: int, coordinator_epoch: int, name: str = topic.name) -> ErrorCode:
        answer = wire.call(
            WriteTxnMarkersRequest(
                markers=[
                    WritableTxnMarker(
                        producer_id=producer.producer_id,
                        producer_epoch=epoch,
                        transaction_result=False,
                        coordinator_epoch=coordinator_epoch,
                        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[0])],
                    )
                ]
            ),
            WriteTxnMarkersResponse,
            1,
        )
        assert answer.markers[0].producer_id == producer.producer_id
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    assert mark(0, 5, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe_producers(wire, topic).active_producers[0].current_txn_start_offset == 0
    assert mark(1, 5) == ErrorCode.NONE
    (found,) = describe_producers(wire, topic).active_producers
    assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 5)
    assert stable_end(wire, topic) == 2
    assert mark(0, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(1, 4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


# Questions


def describe_producers(wire: Wire, topic: Topic, index: int = 0) -> PartitionResponse:
    answer = wire.call(
        DescribeProducersRequest(topics=[TopicRequest(name=topic.name, partition_indexes=[index])]),
        DescribeProducersResponse,
        0,
    )
    return answer.topics[0].partitions[0]


def test_producers_are_described(wire: Wire, topic: Topic) -> None:
    assert describe_producers(wire, topic).active_producers == []
    assert describe_producers(wire, topic, 9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    name = fresh_id()
    producer = begin(wire, name)
    sent(wire, topic, name, producer, b"a", b"b", version=12)
    (found,) = describe_producers(wire, topic).active_producers
    assert (found.producer_id, found.producer_epoch) == producer
    assert (found.last_sequence, found.coordinator_epoch, found.current_txn_start_offset) == (
        1,
        -1,
        0,
    )
    end(wire, name, producer, True, version=5)
    until_complete(wire, name)
    (found,) = describe_producers(wire, topic).active_producers
    assert (found.producer_epoch, found.current_txn_start_offset) == (1, -1)
    assert found.coordinator_epoch >= 0


def test_transactions_are_described(wire: Wire, topic: Topic) -> None:
    name = fresh_id()
    assert describe(wire, name).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(wire, "").error_code == ErrorCode.INVALID_REQUEST
    producer = begin(wire, name, timeout_ms=12_345)
    found = describe(wire, name)
    assert (found.transaction_state, found.transaction_start_time_ms) == ("Empty", -1)
    assert (found.producer_id, found.producer_epoch) == producer
    add(wire, name, producer, (topic, 1), (topic, 0))
    found = describe(wire, name)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 12_345)
    assert [(each.topic, sorted(each.partitions)) for each in found.topics] == [
        (topic.name, [0, 1])
    ]
    assert found.transaction_start_time_ms > 0
    end(wire, name, producer, False)
    found = until_complete(wire, name)
    assert (found.transaction_state, found.topics) == ("CompleteAbort", [])


def test_transactions_are_listed(wire: Wire, topic: Topic) -> None:
    names = sorted(fresh_id() for _ in range(3))
    producers = {name: begin(wire, name) for name in names}
    add(wire, names[0], producers[names[0]], (topic, 0))
    add(wire, names[1], producers[names[1]], (topic, 0))
    end(wire, names[1], producers[names[1]], True)
    until_complete(wire, names[1])

    def listed(version: int = 1, **filters: object) -> dict[str, str]:
        answer = wire.call(ListTransactionsRequest(**filters), ListTransactionsResponse, version)
        assert answer.error_code == 0
        return {
            each.transactional_id: each.transaction_state
            for each in answer.transaction_states
            if each.transactional_id in names
        }

    everything = {names[0]: "Ongoing", names[1]: "CompleteCommit", names[2]: "Empty"}
    assert listed(version=0) == everything
    assert listed() == everything
    assert listed(state_filters=["Ongoing", "Empty"]) == {
        names[0]: "Ongoing",
        names[2]: "Empty",
    }
    assert listed(producer_id_filters=[producers[names[2]].producer_id]) == {names[2]: "Empty"}
    assert names[0] not in listed(duration_filter=3_600_000)
    assert names[0] in listed(duration_filter=-1)
    answer = wire.call(
        ListTransactionsRequest(state_filters=["Ongoing", "Asleep"]), ListTransactionsResponse, 1
    )
    assert answer.unknown_state_filters == ["Asleep"]
    assert names[0] in {each.transactional_id for each in answer.transaction_states}
