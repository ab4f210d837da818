"""DeleteRecords: the log starts later, for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    delete_records,
    end_offset,
    fetch,
    fill,
    fresh_name,
    list_offset,
    offsets_of,
    produce,
    read_all,
    versions_of,
)
from server_kit.wire import Wire

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.logfiles.names import LOG_START_CHECKPOINT
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.storage.checkpoints import read_offsets
from ottla.storage.folders import CheckpointJob
from ottla.testing import BrokerProcess

VERSIONS = versions_of(DeleteRecordsRequest)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_log_starts_later(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, *(batch_of(b"%d" % each, b"%d" % each) for each in range(5)))
    answer = delete_records(wire, topic, 5, version=version)
    assert (answer.error_code, answer.low_watermark) == (0, 5)
    assert list_offset(wire, topic, -2).offset == 5
    assert list_offset(wire, topic, 0).offset == 5
    below = fetch(wire, topic, 4)
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    at = fetch(wire, topic, 5)
    assert at.log_start_offset == 5
    # The batch that the start lies in comes whole.
    assert offsets_of(at.records) == [4, 5, 6, 7, 8, 9]
    assert end_offset(wire, topic) == 10
    assert produce(wire, topic, batch_of(b"next")).log_start_offset == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_everything(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"))
    answer = delete_records(wire, topic, -1, version=version)
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    assert read_all(wire, topic, offset=2) == []
    assert list_offset(wire, topic, -2).offset == 2
    assert produce(wire, topic, batch_of(b"c")).base_offset == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_never_back(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, *(batch_of(b"x") for _ in range(5)))
    delete_records(wire, topic, 4, version=version)
    answer = delete_records(wire, topic, 2, version=version)
    assert (answer.error_code, answer.low_watermark) == (0, 4)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [3, 2**62, -2, -(2**63)])
def test_out_of_range(wire: Wire, topic: Topic, version: int, offset: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"))
    answer = delete_records(wire, topic, offset, version=version)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.low_watermark == -1
    assert list_offset(wire, topic, -2).offset == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown(wire: Wire, topic: Topic, version: int) -> None:
    missing = Topic(fresh_name("missing"), bytes(16))
    answer = delete_records(wire, missing, 0, version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = delete_records(wire, topic, 0, index=5, version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", VERSIONS)
def test_internal_topics_keep_their_records(
    start_broker: Callable[..., BrokerThread], version: int
) -> None:
    """Also if somebody has them deleted by age, too."""
    with start_broker().wire() as wire:
        topic = create_topic(wire, name=CONSUMER_OFFSETS, cleanup_policy="compact,delete")
        answer = delete_records(wire, topic, -1, version=version)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_compacted_topics_keep_their_records(wire: Wire) -> None:
    topic = create_topic(wire, cleanup_policy="compact")
    fill(wire, topic, batch_of(b"a"))
    assert delete_records(wire, topic, 1).error_code == ErrorCode.POLICY_VIOLATION
    both = create_topic(wire, cleanup_policy="compact,delete")
    fill(wire, both, batch_of(b"a"))
    assert delete_records(wire, both, 1).error_code == 0


def test_several_partitions(wire: Wire) -> None:
    topic = create_topic(wire, partitions=3)
    for index in range(3):
        fill(wire, topic, batch_of(b"a", b"b"), index=index)
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=offset)
                    for index, offset in ((0, 1), (1, 99), (2, -1))
                ],
            )
        ],
        timeout_ms=20_000,
    )
    response = wire.call(request, DeleteRecordsResponse, 2)
    told = {each.partition_index: each for each in response.topics[0].partitions}
    assert [(told[i].error_code, told[i].low_watermark) for i in range(3)] == [
        (ErrorCode.NONE, 1), (ErrorCode.OFFSET_OUT_OF_RANGE, -1), (ErrorCode.NONE, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_lasts(start_process: Callable[..., BrokerProcess], how: str) -> None:
    """What was answered is true after a crash right after it."""
    process = start_process()
    with Wire(process.host, process.port) as wire:
        topic, empty = create_topic(wire), create_topic(wire)
        fill(wire, topic, *(batch_of(b"%d" % each) for each in range(10)))
        fill(wire, empty, batch_of(b"gone"))
        assert delete_records(wire, topic, 7).low_watermark == 7
        assert delete_records(wire, empty, -1).low_watermark == 1
        getattr(process, how)()
    process.start()
    with Wire(process.host, process.port) as wire:
        assert list_offset(wire, topic, -2).offset == 7
        assert read_all(wire, topic, offset=7) == [b"7", b"8", b"9"]
        assert fetch(wire, topic, 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert list_offset(wire, empty, -2).offset == 1
        assert produce(wire, empty, batch_of(b"new")).base_offset == 1


def test_while_appends_go_on(inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]) -> None:
    """Batches that are written by a thread must not be in the way."""
    from server_kit.calls import produce_request

    from ottla.protocol.messages.produce import ProduceResponse
    from ottla.record.batch import Record, build_batch

    topic = create_topic(wire, compression_type="gzip")
    large = build_batch([Record(each, 1, b"k", b"v" * 20) for each in range(800)])
    fill(wire, topic, large)
    for _ in range(10):
        wire.send(produce_request(topic, (0, large)), 9)
    other = connect()
    for offset in range(100, 800, 100):
        answer = delete_records(other, topic, offset)
        assert (answer.error_code, answer.low_watermark) == (0, offset)
    for _ in range(10):
        assert wire.receive(ProduceResponse, 9).responses[0].partition_responses[0].error_code == 0


def test_the_start_is_stored_before_the_answer_whatever_happens_to_other_logs(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that was collected before another log was truncated or deleted comes to nothing."""
    broker = start_broker()
    outdated: list[CheckpointJob] = []
    run = CheckpointJob.run

    def once_outdated(job: CheckpointJob) -> None:
        if job.offsets.start_offsets and not outdated:
            outdated.append(job)
            job.folder.void_jobs()
        run(job)

    monkeypatch.setattr(CheckpointJob, "run", once_outdated)
    with broker.wire() as wire:
        topic = create_topic(wire)
        fill(wire, topic, batch_of(b"a", b"b", b"c"))
        assert delete_records(wire, topic, 2).error_code == 0
    assert outdated
    stored = read_offsets(str(broker.data / LOG_START_CHECKPOINT))
    assert stored == {(topic.name, 0): 2}
