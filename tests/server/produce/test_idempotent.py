"""Idempotent producers: duplicates are answered with their first offset, gaps are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, end_offset, fill, produce, read_all
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.record.batch import BASE_SEQUENCE_AT

VERSIONS = [3, 7, 8, 9, 13]


@pytest.fixture
def producer(wire: Wire) -> int:
    answer = wire.call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        InitProducerIdResponse,
        4,
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return answer.producer_id


def numbered(producer: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.differs("Kafka tells the original batch's timestamp as append time")
@pytest.mark.parametrize("version", VERSIONS)
def test_duplicates_get_their_first_offset(
    wire: Wire, topic: Topic, producer: int, version: int
) -> None:
    fill(wire, topic, batch_of(b"somebody else's"))
    batches = [numbered(producer, 2 * each, b"%d" % each, b"%d" % each) for each in range(5)]
    for number, batch in enumerate(batches):
        assert produce(wire, topic, batch, version=version).base_offset == 1 + 2 * number
    for number, batch in enumerate(batches):
        again = produce(wire, topic, batch, version=version)
        assert (again.error_code, again.base_offset) == (0, 1 + 2 * number)
        assert again.log_append_time_ms == -1
        if version >= 5:
            assert again.log_start_offset == 0
    assert end_offset(wire, topic) == 11
    assert produce(wire, topic, numbered(producer, 10, b"next")).base_offset == 11


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_duplicate_than_is_remembered(
    wire: Wire, topic: Topic, producer: int, version: int
) -> None:
    batches = [numbered(producer, each, b"%d" % each) for each in range(6)]
    fill(wire, topic, *batches)
    again = produce(wire, topic, batches[0], version=version)
    assert again.error_code in (
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
    assert end_offset(wire, topic) == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_gaps_are_refused(wire: Wire, topic: Topic, producer: int, version: int) -> None:
    fill(wire, topic, numbered(producer, 0, b"a"))
    for sequence in (2, 5, 2**31 - 1):
        answer = produce(wire, topic, numbered(producer, sequence, b"gap"), version=version)
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert answer.base_offset == -1
    assert produce(wire, topic, numbered(producer, 1, b"b"), version=version).base_offset == 1
    assert read_all(wire, topic) == [b"a", b"b"]


def test_an_unknown_producer_may_begin_anywhere(wire: Wire, topic: Topic, producer: int) -> None:
    assert produce(wire, topic, numbered(producer, 1000, b"a")).base_offset == 0
    assert produce(wire, topic, numbered(producer, 1001, b"b")).base_offset == 1


def test_epochs(wire: Wire, topic: Topic, producer: int) -> None:
    fill(wire, topic, numbered(producer, 0, b"a", epoch=0), numbered(producer, 1, b"b", epoch=0))
    # A new epoch starts at 0.
    answer = produce(wire, topic, numbered(producer, 7, b"x", epoch=1))
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, topic, numbered(producer, 0, b"c", epoch=1)).base_offset == 2
    # The old one is fenced.
    answer = produce(wire, topic, numbered(producer, 2, b"x", epoch=0))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert read_all(wire, topic) == [b"a", b"b", b"c"]


def test_sequences_wrap(wire: Wire, topic: Topic, producer: int) -> None:
    last = 2**31 - 1
    fill(wire, topic, numbered(producer, last - 1, b"a", b"b"), numbered(producer, 0, b"c"))
    assert end_offset(wire, topic) == 3
    again = produce(wire, topic, numbered(producer, last - 1, b"a", b"b"))
    assert (again.error_code, again.base_offset) == (0, 0)


def test_a_batch_across_the_wrap(wire: Wire, topic: Topic, producer: int) -> None:
    fill(wire, topic, numbered(producer, 2**31 - 2, b"a", b"b", b"c"))
    assert produce(wire, topic, numbered(producer, 1, b"d")).base_offset == 3
    again = produce(wire, topic, numbered(producer, 2**31 - 2, b"a", b"b", b"c"))
    assert (again.error_code, again.base_offset) == (0, 0)


def test_partitions_count_for_themselves(wire: Wire, producer: int) -> None:
    topic = create_topic(wire, partitions=2)
    for index in (0, 1):
        fill(wire, topic, numbered(producer, 0, b"a"), numbered(producer, 1, b"b"), index=index)
    answer = produce(wire, topic, numbered(producer, 3, b"x"), index=1)
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_id_without_a_sequence(wire: Wire, topic: Topic, producer: int) -> None:
    batch = numbered(producer, -1, b"a")
    assert batch[BASE_SEQUENCE_AT : BASE_SEQUENCE_AT + 4] == b"\xff" * 4
    assert produce(wire, topic, batch).error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0


def test_recompressed_duplicates(wire: Wire, producer: int) -> None:
    topic = create_topic(wire, compression_type="zstd")
    batches = [numbered(producer, each, b"%d" % each * 50) for each in range(3)]
    fill(wire, topic, *batches)
    again = produce(wire, topic, batches[1])
    assert (again.error_code, again.base_offset) == (0, 1)
    gap = produce(wire, topic, numbered(producer, 9, b"x"))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert end_offset(wire, topic) == 3


def test_duplicates_with_log_append_time(wire: Wire, producer: int) -> None:
    topic = create_topic(wire, message_timestamp_type="LogAppendTime")
    batch = numbered(producer, 0, b"a")
    first = produce(wire, topic, batch)
    again = produce(wire, topic, batch)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert again.log_append_time_ms == first.log_append_time_ms


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_duplicates_are_known_after_a_restart(
    start_process: Callable[..., object], how: str
) -> None:
    from ottla.testing import BrokerProcess

    process = start_process()
    assert isinstance(process, BrokerProcess)
    with Wire(process.host, process.port) as wire:
        topic = create_topic(wire)
        batches = [numbered(4_000_000, each, b"%d" % each) for each in range(5)]
        fill(wire, topic, *batches)
    getattr(process, how)()
    process.start()
    with Wire(process.host, process.port) as wire:
        for number, batch in enumerate(batches):
            again = produce(wire, topic, batch)
            assert (again.error_code, again.base_offset) == (0, number)
        gap = produce(wire, topic, numbered(4_000_000, 6, b"x"))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(wire, topic, numbered(4_000_000, 5, b"5")).base_offset == 5


def test_pipelined_batches_of_one_producer(
    inside: BrokerThread, wire: Wire, topic: Topic, producer: int
) -> None:
    """Five in flight, one of them sent twice: all in order, each once."""
    from server_kit.calls import produce_request

    from ottla.protocol.messages.produce import ProduceResponse

    batches = [numbered(producer, each, b"%d" % each) for each in range(5)]
    sent = [*batches[:3], batches[2], *batches[3:]]
    wire.send_raw(b"".join(wire.encode(produce_request(topic, (0, each)), 9) for each in sent))
    offsets = [
        wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].base_offset
        for _ in sent
    ]
    assert offsets == [0, 1, 2, 2, 3, 4]
    assert read_all(wire, topic) == [b"%d" % each for each in range(5)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_refusals_say_what_is_wrong_whoever_gives_the_time(
    wire: Wire, producer: int, version: int, kind: str
) -> None:
    """Where the broker stamps its own time into a batch, a refused one has not been stamped."""
    topic = create_topic(wire, message_timestamp_type=kind)
    fill(wire, topic, numbered(producer, 0, b"a", epoch=1))
    gap = produce(wire, topic, numbered(producer, 7, b"gap", epoch=1), version=version)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    fenced = produce(wire, topic, numbered(producer, 1, b"zombie", epoch=0), version=version)
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (
        produce(wire, topic, numbered(producer, 1, b"b", epoch=1), version=version).base_offset == 1
    )
    assert end_offset(wire, topic) == 2
