"""The Python clients: confluent-kafka (librdkafka), kafka-python and aiokafka, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from interop_kit.clients.client import EARLIEST, READ_TIMEOUT, Client, Start
from interop_kit.records import Record

# Long enough that everything handed over in one call leaves in one batch for each partition.
LINGER_MS = 50
BATCH_BYTES = 900_000
T = TypeVar("T")


# The broker went away; librdkafka goes on trying.
AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class ConfluentClient(Client):
    def __init__(self, bootstrap: str, overrides: Mapping[str, Any] | None = None) -> None:
        self.bootstrap = bootstrap
        self.overrides = dict(overrides or {})
        self._kept: Any = None

    def _settings(self, **settings: Any) -> dict[str, Any]:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.bootstrap, **self.overrides, **named}

    def _consumer(self) -> Any:
        """One for all calls: a new one takes half a second until its first record."""
        from confluent_kafka import Consumer

        if self._kept is None:
            self._kept = Consumer(
                self._settings(
                    group_id="interop-assigned",
                    enable_auto_commit=False,
                    auto_offset_reset="error",
                    fetch_wait_max_ms=100,
                )
            )
        return self._kept

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        new = NewTopic(topic, partitions, 1, config=dict(config or {}))
        admin = AdminClient(self._settings())  # held: letting go of it cancels what it was asked
        admin.create_topics([new])[topic].result(30)

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        from confluent_kafka import Producer

        producer = Producer(
            self._settings(
                compression_type=codec,
                acks=acks,
                enable_idempotence=idempotent,
                linger_ms=LINGER_MS,
                batch_size=BATCH_BYTES,
                message_timeout_ms=30_000,
            )
        )
        offsets = [-1] * len(records)
        problems = []

        def delivered(number: int) -> Any:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    problems.append(error)
                elif acks != "0":
                    offsets[number] = message.offset()

            return report

        for number, record in enumerate(records):
            optional: dict[str, Any] = {}
            if record.timestamp is not None:
                optional["timestamp"] = record.timestamp
            if record.headers:
                optional["headers"] = list(record.headers)
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                on_delivery=delivered(number),
                **optional,
            )
        assert producer.flush(40) == 0, "records were left in the queue"
        assert not problems, problems[:3]
        return offsets

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._consumer()
        try:
            if start.time is not None:
                place = self._at_time(topic, partition, start.time)
            elif start.offset is not None:
                place = TopicPartition(topic, partition, start.offset)
            else:
                place = TopicPartition(topic, partition, OFFSET_BEGINNING)
            consumer.assign([place])
            found: list[Record] = []
            deadline = time.monotonic() + READ_TIMEOUT
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), timeout=1.0):
                    if message.error() is not None:
                        assert message.error().code() in AWAY, message.error()
                        continue
                    found.append(
                        Record(
                            value=message.value(),
                            key=message.key(),
                            headers=tuple(message.headers() or ()),
                            timestamp=message.timestamp()[1],
                            partition=message.partition(),
                            offset=message.offset(),
                        )
                    )
            return found
        finally:
            consumer.unassign()

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        from confluent_kafka import TopicPartition

        first, following = self._consumer().get_watermark_offsets(
            TopicPartition(topic, partition), timeout=30
        )
        return first, following

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        offset: int = self._at_time(topic, partition, timestamp).offset
        return None if offset < 0 else offset

    def _at_time(self, topic: str, partition: int, timestamp: int) -> Any:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(topic, partition, timestamp)]
        (place,) = self._consumer().offsets_for_times(asked, timeout=30)
        if place.error is not None:
            raise KafkaException(place.error)
        return place

    def delete_topic(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self._settings())
        admin.delete_topics([topic])[topic].result(30)


class KafkaPythonClient(Client):
    """kafka-python; with `api_version` it speaks as it would to a broker of that age."""

    def __init__(self, bootstrap: str, api_version: tuple[int, ...] | None = None) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap}
        if api_version is not None:
            self.common["api_version"] = api_version

    def _consumer(self) -> Any:
        from kafka import KafkaConsumer

        return KafkaConsumer(
            **self.common,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
        )

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(**self.common)
        try:
            wanted = {
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": dict(config or {}),
            }
            admin.create_topics({topic: wanted})
        finally:
            admin.close()

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        from kafka import KafkaProducer
        from kafka.errors import KafkaTimeoutError

        producer = KafkaProducer(
            **self.common,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers) or None,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(30)
            sent = [future.get(30) for future in futures]
            return [-1 if acks == "0" else metadata.offset for metadata in sent]
        finally:
            try:
                producer.close(5)
            except KafkaTimeoutError:
                # The test has failed by now. Or else its __del__ would wait and raise once more, in
                # the middle of whatever the garbage collector interrupts (pytest does not survive).
                producer._closed = True

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        from kafka import TopicPartition

        consumer = self._consumer()
        try:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            if start.time is not None:
                answer = consumer.offsets_for_times({place: start.time})[place]
                consumer.seek(place, answer.offset)
            elif start.offset is not None:
                consumer.seek(place, start.offset)
            else:
                consumer.seek_to_beginning(place)
            found: list[Record] = []
            deadline = time.monotonic() + READ_TIMEOUT
            while len(found) < count and time.monotonic() < deadline:
                polled = consumer.poll(timeout_ms=1000, max_records=count - len(found))
                found += [python_record(message) for message in polled.get(place, [])]
            return found
        finally:
            consumer.close()

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        from kafka import TopicPartition

        consumer = self._consumer()
        try:
            place = TopicPartition(topic, partition)
            first, following = consumer.beginning_offsets([place]), consumer.end_offsets([place])
            return first[place], following[place]
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        from kafka import TopicPartition

        consumer = self._consumer()
        try:
            place = TopicPartition(topic, partition)
            answer = consumer.offsets_for_times({place: timestamp})[place]
            return None if answer is None else answer.offset
        finally:
            consumer.close()

    def delete_topic(self, topic: str) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(**self.common)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()


def python_record(message: Any) -> Record:
    """From kafka-python's and aiokafka's ConsumerRecord, which are alike."""
    return Record(
        value=message.value,
        key=message.key,
        headers=tuple((name, value) for name, value in message.headers or ()),
        timestamp=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


class AiokafkaClient(Client):
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def _consumer(self) -> Any:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        return consumer

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        async def create() -> None:
            from aiokafka.admin import AIOKafkaAdminClient, NewTopic

            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                new = NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
                answer = await admin.create_topics([new])
                assert all(error[1] == 0 for error in answer.topic_errors), answer
            finally:
                await admin.close()

        self._run(create())

    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        async def send() -> list[int]:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=LINGER_MS,
                max_batch_size=BATCH_BYTES,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers) or None,
                        partition=record.partition,
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                sent = await asyncio.wait_for(asyncio.gather(*futures), 30)
                return [-1 if acks == "0" else metadata.offset for metadata in sent]
            finally:
                await producer.stop()

        return self._run(send())

    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        async def read() -> list[Record]:
            from aiokafka import TopicPartition

            consumer = await self._consumer()
            try:
                place = TopicPartition(topic, partition)
                consumer.assign([place])
                if start.time is not None:
                    answer = (await consumer.offsets_for_times({place: start.time}))[place]
                    consumer.seek(place, answer.offset)
                elif start.offset is not None:
                    consumer.seek(place, start.offset)
                else:
                    await consumer.seek_to_beginning(place)
                found: list[Record] = []
                deadline = time.monotonic() + READ_TIMEOUT
                while len(found) < count and time.monotonic() < deadline:
                    wanted = count - len(found)
                    fetched = await consumer.getmany(place, timeout_ms=1000, max_records=wanted)
                    found += [python_record(message) for message in fetched.get(place, [])]
                return found
            finally:
                await consumer.stop()

        return self._run(read())

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        async def ask() -> tuple[int, int]:
            from aiokafka import TopicPartition

            consumer = await self._consumer()
            try:
                place = TopicPartition(topic, partition)
                first = await consumer.beginning_offsets([place])
                following = await consumer.end_offsets([place])
                return first[place], following[place]
            finally:
                await consumer.stop()

        return self._run(ask())

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        async def ask() -> int | None:
            from aiokafka import TopicPartition

            consumer = await self._consumer()
            try:
                place = TopicPartition(topic, partition)
                answer = (await consumer.offsets_for_times({place: timestamp}))[place]
                return None if answer is None else answer.offset
            finally:
                await consumer.stop()

        return self._run(ask())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            from aiokafka.admin import AIOKafkaAdminClient

            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                answer = await admin.delete_topics([topic])
                assert all(code == 0 for _, code in answer.topic_error_codes), answer
            finally:
                await admin.close()

        self._run(delete())
