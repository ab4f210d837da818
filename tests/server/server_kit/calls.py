"""The requests that most tests need, in one line each."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
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
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Record, build_batch, headers
from ottla.record.batch import records as records_of
from server_kit.wire import Wire

FIRST_PRODUCE_WITH_IDS = 13
FIRST_FETCH_WITH_IDS = 13
EVERYTHING = 0x7FFFFFFF

_numbers = itertools.count()


class Topic(NamedTuple):
    name: str
    id: bytes


def fresh_name(kind: str = "topic") -> str:
    """A name that no other test uses, in this run or in another one against the same broker."""
    return f"{kind}.{os.getpid()}-{next(_numbers)}-{os.urandom(3).hex()}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create_topic(wire: Wire, partitions: int = 1, name: str | None = None, **configs: str) -> Topic:
    """A new topic; settings as keywords with `_` for `.`."""
    name = name or fresh_name()
    answer = wire.call(
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=20_000,
        ),
        CreateTopicsResponse,
        7,
    ).topics[0]
    assert answer.error_code == 0, (ErrorCode(answer.error_code), answer.error_message)
    topic = Topic(name, answer.topic_id)
    if wire.is_elsewhere:
        # Kafka answers before its broker knows of the topic.
        while any(
            list_offset(wire, topic, -1, index=each).error_code for each in range(partitions)
        ):
            time.sleep(0.01)
    return topic


def set_config(wire: Wire, topic: str, **configs: str) -> None:
    answer = wire.call(
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=2,
                    resource_name=topic,
                    configs=[
                        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
                        for key, value in configs.items()
                    ],
                )
            ]
        ),
        IncrementalAlterConfigsResponse,
        1,
    ).responses[0]
    assert answer.error_code == 0, (ErrorCode(answer.error_code), answer.error_message)
    if wire.is_elsewhere:
        time.sleep(0.3)  # Kafka answers before the change is in force


def batch_of(*values: bytes | None, timestamp: int | None = None, **fields: Any) -> bytes:
    """A batch with a record for each value, with keys k0, k1, … and the time of now."""
    at = now_ms() if timestamp is None else timestamp
    return build_batch(
        [
            Record(offset, at, f"k{offset}".encode(), value)
            for offset, value in enumerate(values or (b"value",))
        ],
        **fields,
    )


def produce_request(
    topic: Topic,
    *partitions: tuple[int, bytes | None],
    acks: int = 1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic.name,
                topic_id=topic.id,
                partition_data=[
                    PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ],
            )
        ],
    )


def produce(
    wire: Wire,
    topic: Topic,
    records: bytes | None,
    *,
    version: int = 9,
    acks: int = 1,
    index: int = 0,
    transactional_id: str | None = None,
) -> PartitionProduceResponse:
    """Produce to one partition; what the broker says of it."""
    response = wire.call(
        produce_request(topic, (index, records), acks=acks, transactional_id=transactional_id),
        ProduceResponse,
        version,
    )
    assert len(response.responses) == 1
    (answer,) = response.responses[0].partition_responses
    if version >= FIRST_PRODUCE_WITH_IDS:
        assert response.responses[0].topic_id == topic.id
    else:
        assert response.responses[0].name == topic.name
    assert answer.index == index
    return answer


def fill(wire: Wire, topic: Topic, *batches: bytes, index: int = 0) -> list[int]:
    """Produce batches that have to be taken; their base offsets."""
    offsets = []
    for batch in batches:
        answer = produce(wire, topic, batch, index=index)
        assert answer.error_code == 0, (ErrorCode(answer.error_code), answer.error_message)
        offsets.append(answer.base_offset)
    return offsets


def fetch_request(
    topic: Topic,
    *positions: tuple[int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = EVERYTHING,
    partition_max_bytes: int = EVERYTHING,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    """A fetch of (partition, offset) pairs; `session` is an id and an epoch."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=topic.name,
                topic_id=topic.id,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch,
                    )
                    for index, offset in positions
                ],
            )
        ]
        if positions
        else [],
    )


def fetch(
    wire: Wire, topic: Topic, offset: int, *, version: int = 12, index: int = 0, **options: Any
) -> PartitionData:
    """Fetch from one partition; what the broker says of it."""
    response = wire.call(fetch_request(topic, (index, offset), **options), FetchResponse, version)
    assert response.error_code == 0
    (answer,) = response.responses[0].partitions
    if version >= FIRST_FETCH_WITH_IDS:
        assert response.responses[0].topic_id == topic.id
    else:
        assert response.responses[0].topic == topic.name
    assert answer.partition_index == index
    return answer


def whole_batches(data: Any) -> list[bytes]:
    """The batches in fetched bytes that are there from end to end."""
    raw = bytes(data or b"")
    found = []
    at = 0
    while len(raw) - at >= 61:
        size = int.from_bytes(raw[at + 8 : at + 12], "big") + 12
        if at + size > len(raw):
            break
        found.append(raw[at : at + size])
        at += size
    return found


def values_of(data: Any) -> list[bytes | None]:
    """The values of all records in fetched bytes."""
    return [record.value for batch in whole_batches(data) for record in records_of(batch)]


def offsets_of(data: Any) -> list[int]:
    return [record.offset for batch in whole_batches(data) for record in records_of(batch)]


def all_batches(wire: Wire, topic: Topic, index: int = 0, offset: int = 0) -> list[bytes]:
    """All batches of a partition from an offset on, in as many fetches as it takes."""
    found: list[bytes] = []
    while True:
        answer = fetch(wire, topic, offset, index=index)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        batches = whole_batches(answer.records)
        if not batches:
            return found
        found += batches
        offset = next(headers(batches[-1]))[1].last_offset + 1


def read_all(wire: Wire, topic: Topic, index: int = 0, offset: int = 0) -> list[bytes | None]:
    """All values of a partition from an offset on."""
    return [
        record.value
        for batch in all_batches(wire, topic, index, offset)
        for record in records_of(batch)
        if record.offset >= offset
    ]


def list_offsets_request(
    topic: Topic,
    timestamp: int,
    *,
    index: int = 0,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    max_num_offsets: int = 1,
) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(
        partition_index=index,
        timestamp=timestamp,
        current_leader_epoch=current_leader_epoch,
        max_num_offsets=max_num_offsets,
    )
    return ListOffsetsRequest(
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic.name, partitions=[wanted])],
    )


def list_offset(
    wire: Wire, topic: Topic, timestamp: int, *, version: int = 6, **wanted: int
) -> ListOffsetsPartitionResponse:
    """As `list_offsets_request` asks it."""
    request = list_offsets_request(topic, timestamp, **wanted)
    response = wire.call(request, ListOffsetsResponse, version)
    (answer,) = response.topics[0].partitions
    return answer


def end_offset(wire: Wire, topic: Topic, index: int = 0) -> int:
    return list_offset(wire, topic, -1, index=index).offset


def delete_records(
    wire: Wire, topic: Topic, offset: int, *, index: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic.name,
                partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)],
            )
        ],
        timeout_ms=20_000,
    )
    response = wire.call(request, DeleteRecordsResponse, version)
    (answer,) = response.topics[0].partitions
    assert (response.topics[0].name, answer.partition_index) == (topic.name, index)
    return answer


def errors(answers: Iterable[Any]) -> list[ErrorCode]:
    return [ErrorCode(answer.error_code) for answer in answers]


def versions_of(request: type[Message], first: int = 0, last: int | None = None) -> Sequence[int]:
    """The versions of an API, for parametrizing."""
    low, high = request.versions
    return range(max(low, first), (high if last is None else last) + 1)
