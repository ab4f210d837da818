"""A client for these tests: one request at a time over one socket, error codes handed to the test.

It hides nothing. There are no retries in it, so that a test sees what the broker answered, and when.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import server_kit.wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import HEADER_SIZE, Record, build_batch, check_batch, records

PRODUCE_VERSION = 9
FETCH_VERSION = 12
LATEST, EARLIEST = -1, -2
TOPIC_RESOURCE, SET = 2, 0
FETCH_BYTES = 4 << 20


class Refused(AssertionError):
    """The broker answered with an error that the test did not expect."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{what}: {ErrorCode(code).name} {message or ''}")
        self.code = ErrorCode(code)


class Stored(NamedTuple):
    """A batch as it was fetched."""

    base_offset: int
    last_offset: int
    data: bytes


class Wire(server_kit.wire.Wire):
    def __init__(self, bootstrap: str, timeout: float = 20.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        super().__init__(host, int(port), timeout)

    def exactly(self, size: int) -> bytes:
        try:
            return super().exactly(size)
        except EOFError as error:
            raise ConnectionError(str(error)) from error

    # Topics

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        configs = [CreatableTopicConfig(name=n, value=v) for n, v in (config or {}).items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        answer = self.call(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics[0]
        if answer.error_code:
            raise Refused(f"create {name}", answer.error_code, answer.error_message)

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        answer = self.call(request, DeleteTopicsResponse, 5).responses[0]
        if answer.error_code:
            raise Refused(f"delete {name}", answer.error_code, answer.error_message)

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        changes = [
            AlterableConfig(name=n, config_operation=SET, value=v) for n, v in config.items()
        ]
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = self.call(request, IncrementalAlterConfigsResponse, 1).responses[0]
        if answer.error_code:
            raise Refused(f"alter {name}", answer.error_code, answer.error_message)

    def metadata(self, name: str) -> MetadataResponseTopic:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        return self.call(request, MetadataResponse, 10).topics[0]

    def topic_names(self) -> set[str | None]:
        answer = self.call(MetadataRequest(topics=None), MetadataResponse, 10)
        return {topic.name for topic in answer.topics}

    def log_folders(self) -> dict[str, DescribeLogDirsResult]:
        answer = self.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
        return {result.log_dir: result for result in answer.results}

    # Records

    def producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = self.call(request, InitProducerIdResponse, 4)
        if answer.error_code:
            raise Refused("producer id", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    def send_batch(self, topic: str, partition: int, batch: bytes) -> int:
        return self.send(produce_request(topic, partition, batch), PRODUCE_VERSION)

    def receive_produced(self, correlation_id: int) -> PartitionProduceResponse:
        answer = self.receive(ProduceResponse, PRODUCE_VERSION)
        assert self.answered == correlation_id
        return answer.responses[0].partition_responses[0]

    def produce_batch(self, topic: str, partition: int, batch: bytes) -> PartitionProduceResponse:
        return self.receive_produced(self.send_batch(topic, partition, batch))

    def produce(self, topic: str, partition: int, values: Iterable[bytes]) -> int:
        """One batch; its base offset."""
        answer = self.produce_batch(topic, partition, a_batch(values))
        if answer.error_code:
            what = f"produce to {topic}-{partition}"
            raise Refused(what, answer.error_code, answer.error_message)
        return answer.base_offset

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        part = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
        )
        answer = self.call(request, ListOffsetsResponse, 7).topics[0].partitions[0]
        if answer.error_code:
            raise Refused(f"offsets of {topic}-{partition}", answer.error_code)
        return answer.offset

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Where the log starts and ends."""
        return self.offset(topic, partition, EARLIEST), self.offset(topic, partition, LATEST)

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES
    ) -> PartitionData:
        part = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=[part])],
        )
        answer = self.call(request, FetchResponse, FETCH_VERSION)
        if answer.error_code:
            raise Refused("fetch", answer.error_code)
        return answer.responses[0].partitions[0]

    def batches(self, topic: str, partition: int, offset: int | None = None) -> list[Stored]:
        """All batches from `offset` (or the log's start) to the high watermark, in their order."""
        if offset is None:
            offset = self.offset(topic, partition, EARLIEST)
        found: list[Stored] = []
        while True:
            answer = self.fetch(topic, partition, offset)
            if answer.error_code:
                raise Refused(f"fetch {topic}-{partition} at {offset}", answer.error_code)
            if offset >= answer.high_watermark:
                return found
            new = whole_batches(bytes(answer.records or b""))
            assert new, f"no whole batch at {offset}, though the end is {answer.high_watermark}"
            assert new[-1].last_offset >= offset
            found += new
            offset = new[-1].last_offset + 1

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Values of all records; their offsets must follow on each other without a gap."""
        found: list[bytes | None] = []
        expected = None
        for batch in self.batches(topic, partition):
            for record in records(batch.data):
                assert expected is None or record.offset == expected, "a gap between offsets"
                expected = record.offset + 1
                found.append(record.value)
        return found


def produce_request(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    part = PartitionProduceData(index=partition, records=memoryview(batch))
    data = TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def a_batch(values: Iterable[bytes], timestamp: int | None = None, **header: int) -> bytes:
    now = int(time.time() * 1000) if timestamp is None else timestamp
    entries = [Record(number, now, None, value) for number, value in enumerate(values)]
    return build_batch(entries, **header)  # type: ignore[arg-type]


def whole_batches(data: bytes) -> list[Stored]:
    """The batches that lie in fetched bytes as a whole, checksums checked; the last one may be cut,
    as Kafka allows."""
    found = []
    view = memoryview(data)
    at = 0
    while len(data) - at >= HEADER_SIZE:
        size = int.from_bytes(view[at + 8 : at + 12], "big") + 12
        if at + size > len(data):
            break
        header = check_batch(view[at : at + size])
        found.append(Stored(header.base_offset, header.last_offset, bytes(view[at : at + size])))
        at += size
    return found
