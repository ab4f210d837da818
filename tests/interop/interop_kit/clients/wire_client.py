"""The client against which the others are held: a socket, struct, and aiokafka's record parser.

It writes exactly one batch for each call and partition, and reads the log as it lies there, so that
a test knows what is on the other side; and it answers in milliseconds where a full client looks for
its coordinator first. Nothing of Ottla is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from interop_kit.clients.client import (
    ALL_CODECS,
    EARLIEST,
    EVERYTHING,
    READ_TIMEOUT,
    Ability,
    Client,
    Start,
)
from interop_kit.message_sets import CODEC_NUMBERS
from interop_kit.records import Record
from interop_kit.wire import EARLIEST as EARLIEST_TIME
from interop_kit.wire import LATEST as LATEST_TIME
from interop_kit.wire import RawConnection

ACKS = {"0": 0, "1": 1, "all": -1}


class WireClient(Client):
    name = "wire"
    codecs = frozenset(ALL_CODECS)
    abilities = EVERYTHING - {Ability.IDEMPOTENCE}
    unreadable = frozenset[Ability]()

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        # Held: letting go of it cancels what it was asked.
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        from confluent_kafka.admin import NewTopic

        new = NewTopic(topic, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([new])[topic].result(30)
        self.await_topic(topic)

    def await_topic(self, topic: str) -> None:
        """Kafka's answer may come a little before the topic has leaders, and they know of it."""
        deadline = time.monotonic() + READ_TIMEOUT
        with RawConnection(self.bootstrap) as connection:
            while True:
                error, partitions = connection.metadata(topic)[1][topic]
                asked = (one.partition for one in partitions)
                if error == 0 and all(
                    connection.offset_for_time(topic, partition, LATEST_TIME)[0] == 0
                    for partition in asked
                ):
                    return
                assert time.monotonic() < deadline, f"{topic} has no leaders"
                time.sleep(0.01)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)

    def topic_names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=20).topics)

    def topic_config(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(20)
        return {name: entry.value for name, entry in entries.items()}

    def alter_config(self, resource: Any, settings: Mapping[str, str]) -> None:
        """Change these settings and leave the others as they are."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

        for name, value in settings.items():
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            resource.add_incremental_config(entry)
        self._admin.incremental_alter_configs([resource])[resource].result(20)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        answer = self._admin.delete_records([TopicPartition(topic, partition, offset)])
        for future in answer.values():
            future.result(20)

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        assert not idempotent
        offsets = {}
        with RawConnection(self.bootstrap) as connection:
            by_partition = sorted(enumerate(records), key=lambda pair: pair[1].partition)
            for partition, pairs in groupby(by_partition, key=lambda pair: pair[1].partition):
                run = list(pairs)
                batch = record_batch([record for _, record in run], codec)
                answer = connection.produce(7, topic, partition, batch, acks=ACKS[acks])
                assert answer is None or answer.error == 0, answer
                for at, (number, _) in enumerate(run):
                    offsets[number] = -1 if answer is None else answer.base_offset + at
        return [offsets[number] for number in range(len(records))]

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        with RawConnection(self.bootstrap) as connection:
            if start.offset is not None:
                offset = start.offset
            else:
                asked = EARLIEST_TIME if start.time is None else start.time
                error, _, offset = connection.offset_for_time(topic, partition, asked)
                assert error == 0, error
            found: list[Record] = []
            deadline = time.monotonic() + READ_TIMEOUT
            while len(found) < count and time.monotonic() < deadline:
                answer = connection.fetch(10, topic, partition, offset, wait_ms=500)
                assert answer.error == 0, answer.error
                new = [
                    record
                    for record in read_batches(answer.data, partition)
                    if record.offset >= offset
                ]
                if new:
                    offset = new[-1].offset + 1
                found += new
            return found[:count]

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        with RawConnection(self.bootstrap) as connection:
            first = connection.offset_for_time(topic, partition, EARLIEST_TIME)
            following = connection.offset_for_time(topic, partition, LATEST_TIME)
        assert first[0] == following[0] == 0
        return first[2], following[2]

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        with RawConnection(self.bootstrap) as connection:
            error, _, offset = connection.offset_for_time(topic, partition, timestamp)
        assert error == 0, error
        return None if offset < 0 else offset


def record_batch(records: list[Record], codec: str) -> bytes:
    """One record batch v2 of a producer without an id."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder: Any = DefaultRecordBatchBuilder(2, CODEC_NUMBERS[codec], 0, -1, -1, -1, 1 << 24)
    for number, record in enumerate(records):
        accepted = builder.append(
            number, record.timestamp, record.key, record.value, headers=list(record.headers)
        )
        assert accepted is not None, "the batch is full"
    return bytes(builder.build())


def read_batches(data: bytes, partition: int) -> list[Any]:
    """The records of the whole batches in fetched bytes; checksums are checked."""
    from aiokafka.record.memory_records import MemoryRecords

    found = []
    remaining = MemoryRecords(data)
    while remaining.has_next():
        batch: Any = remaining.next_batch()
        if batch is None:
            break
        assert batch.validate_crc(), f"the checksum of the batch at {batch.base_offset} is wrong"
        found += [
            Record(
                value=record.value,
                key=record.key,
                headers=tuple(record.headers),
                timestamp=record.timestamp,
                partition=partition,
                offset=record.offset,
            )
            for record in batch
        ]
    return found
