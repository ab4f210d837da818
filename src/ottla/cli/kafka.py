"""The one place where the command line talks to a broker.

It stands on confluent-kafka until Ottla's own client exists; nothing of that library is visible
outside this module, so it can be replaced behind the same few names: `Cluster` (topics, settings,
offsets), `RecordWriter` and `RecordReader`. Every failure leaves as a `Failure` whose message is
one sentence that says what to do.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, cast

import confluent_kafka.admin
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)

from ottla.cli.failures import Failure, Misuse
from ottla.cli.positions import Kind, Position

DEFAULT_PORT = 9092
CONNECT_TIMEOUT = 3.0  # seconds for one TCP connection
REQUEST_TIMEOUT = 15.0  # seconds for one answer
LOST_AFTER = 10.0  # seconds without any broker after which reading is given up
LARGEST_RECORD = 1_000_000_000  # the library's own limit: the broker judges, not the client

admin = cast(Any, confluent_kafka.admin)  # its types are incomplete

Headers = tuple[tuple[str, bytes | None], ...]
_Result = TypeVar("_Result")


class Record(NamedTuple):
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970; -1 where the record has none
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TopicSummary(NamedTuple):
    name: str
    partitions: int
    replication_factor: int
    internal: bool


class PartitionDescription(NamedTuple):
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class TopicDescription(NamedTuple):
    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]


class SettingValue(NamedTuple):
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    changed: bool  # set for this topic or broker itself, not inherited


class FoundOffset(NamedTuple):
    offset: int  # -1: no record fits
    timestamp: int


_SOURCES = {
    admin.ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    admin.ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    admin.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    admin.ConfigSource.STATIC_BROKER_CONFIG: "file",
    admin.ConfigSource.DEFAULT_CONFIG: "default",
}
_NO_ANSWER = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


def parse_servers(text: str) -> list[tuple[str, int]]:
    """`HOST[:PORT],…`; an IPv6 address stands in brackets."""
    servers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, port = part, str(DEFAULT_PORT)
        if not part.endswith("]") and ":" in part:
            host, _, port = part.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise Misuse(f"--server takes HOST:PORT, not '{part}'")
        servers.append((host.strip("[]"), int(port)))
    if not servers:
        raise Misuse("--server takes HOST:PORT, and it is empty")
    return servers


def _reachable(servers: list[tuple[str, int]]) -> bool:
    for address in servers:
        try:
            socket.create_connection(address, CONNECT_TIMEOUT).close()
        except OSError:
            continue
        return True
    return False


def _text(error: KafkaError) -> str:
    return error.str().removeprefix("Broker: ").removeprefix("Local: ").rstrip(". ")


def no_such_topic(topic: str) -> Failure:
    return Failure(
        f"there is no topic '{topic}'; `ottla topic list` shows those there are, "
        f"`ottla topic create {topic}` makes it"
    )


class Connection:
    """What all three have in common: the address, and how errors become sentences."""

    def __init__(self, servers: str) -> None:
        addresses = parse_servers(servers)
        self.servers = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses
        )
        # The library goes on trying for ever; a wrong address should be told at once.
        if not _reachable(addresses):
            raise Failure(
                f"nothing answers at {self.servers}; start one with `ottla serve`, "
                "or name another with --server HOST:PORT"
            )

    def settings(self, **more: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": "ottla-cli",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 5000,
        }
        return settings | {name.replace("_", "."): value for name, value in more.items()}

    def failure(self, error: KafkaError, topic: str | None = None) -> Failure:
        code = error.code()
        if code in _NO_ANSWER:
            return Failure(
                f"{self.servers} takes connections but does not answer ({_text(error)}); "
                "is it a Kafka listener, and is the address it advertises reachable from here?"
            )
        if topic is not None:
            if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                return no_such_topic(topic)
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return Failure(
                    f"topic '{topic}' exists already; change it with `ottla topic alter {topic}`"
                )
            if code == KafkaError.INVALID_CONFIG:
                return Failure(
                    f"{_text(error)}; settings and their values are listed by "
                    f"`ottla config describe topic NAME --all`"
                )
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            return Failure(
                "a record is larger than the topic allows; raise its limit with "
                f"`ottla config set topic {topic} max.message.bytes=…`"
            )
        return Failure(f"the broker refused: {_text(error)}")

    def _wait(self, future: Future[_Result], topic: str | None = None) -> _Result:
        try:
            return future.result()
        except KafkaException as problem:
            raise self.failure(problem.args[0], topic) from None


class Cluster(Connection):
    """Topics, settings and offsets."""

    def __init__(self, servers: str, timeout: float = REQUEST_TIMEOUT) -> None:
        super().__init__(servers)
        self._timeout = timeout
        self._admin: Any = admin.AdminClient(self.settings())

    def _metadata(self) -> Any:
        try:
            # Never with a topic's name: that would create it where brokers create on first use.
            return self._admin.list_topics(timeout=self._timeout)
        except KafkaException as problem:
            raise self.failure(problem.args[0]) from None

    def topics(self) -> list[TopicSummary]:
        return sorted(
            TopicSummary(
                topic.topic,
                len(topic.partitions),
                max(
                    (len(partition.replicas) for partition in topic.partitions.values()), default=0
                ),
                topic.topic.startswith("__"),
            )
            for topic in self._metadata().topics.values()
        )

    def brokers(self) -> list[int]:
        return sorted(self._metadata().brokers)

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        futures = self._admin.describe_topics(
            TopicCollection(list(dict.fromkeys(names))), request_timeout=self._timeout
        )
        described = []
        for name in dict.fromkeys(names):
            topic = self._wait(futures[name], name)
            partitions = tuple(
                PartitionDescription(
                    partition.id,
                    None
                    if partition.leader is None or partition.leader.id < 0
                    else partition.leader.id,
                    tuple(node.id for node in partition.replicas),
                    tuple(node.id for node in partition.isr),
                )
                for partition in topic.partitions
            )
            # Kafka prints its ids in the alphabet that is safe in addresses.
            topic_id = str(topic.topic_id).replace("+", "-").replace("/", "_")
            described.append(TopicDescription(topic.name, topic_id, topic.is_internal, partitions))
        return described

    def create_topic(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        settings: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> None:
        topic = admin.NewTopic(
            name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=dict(settings),
        )
        futures = self._admin.create_topics(
            [topic], validate_only=dry_run, request_timeout=self._timeout
        )
        self._wait(futures[name], name)

    def delete_topic(self, name: str) -> None:
        futures = self._admin.delete_topics([name], request_timeout=self._timeout)
        self._wait(futures[name], name)

    def add_partitions(self, topic: str, total: int) -> None:
        futures = self._admin.create_partitions(
            [admin.NewPartitions(topic, total)], request_timeout=self._timeout
        )
        self._wait(futures[topic], topic)

    def settings_of(self, kind: str, name: str) -> list[SettingValue]:
        """`kind` is "topic" or "broker"."""
        resource = admin.ConfigResource(kind, name)
        futures = self._admin.describe_configs([resource], request_timeout=self._timeout)
        entries = self._wait(futures[resource], name if kind == "topic" else None)
        own = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG if kind == "topic" else None
        values = []
        for entry in entries.values():
            source = admin.ConfigSource(entry.source)
            changed = source is own if own else source is not admin.ConfigSource.DEFAULT_CONFIG
            values.append(
                SettingValue(
                    entry.name,
                    entry.value,
                    _SOURCES.get(source, source.name.lower()),
                    entry.is_read_only,
                    entry.is_sensitive,
                    changed,
                )
            )
        return sorted(values)

    def alter_settings(
        self, kind: str, name: str, assign: Mapping[str, str], unset: Iterable[str]
    ) -> None:
        changes = [
            admin.ConfigEntry(setting, value, incremental_operation=admin.AlterConfigOpType.SET)
            for setting, value in assign.items()
        ] + [
            admin.ConfigEntry(setting, None, incremental_operation=admin.AlterConfigOpType.DELETE)
            for setting in unset
        ]
        resource = admin.ConfigResource(kind, name, incremental_configs=changes)
        futures = self._admin.incremental_alter_configs([resource], request_timeout=self._timeout)
        self._wait(futures[resource], name if kind == "topic" else None)

    def offsets(
        self, topic: str, partitions: Iterable[int], spec: Position | None
    ) -> dict[int, FoundOffset]:
        """The offset of each partition at `spec`; None asks for that of the largest timestamp.

        The end is the last stable offset: what a reader of committed records can reach.
        """
        if spec is None:
            wanted = admin.OffsetSpec.max_timestamp()
        elif spec.kind is Kind.TIME:
            wanted = admin.OffsetSpec.for_timestamp(spec.number)
        else:
            wanted = (
                admin.OffsetSpec.earliest()
                if spec.kind is Kind.EARLIEST
                else admin.OffsetSpec.latest()
            )
        request = {TopicPartition(topic, partition): wanted for partition in partitions}
        if not request:
            return {}
        futures = self._admin.list_offsets(
            request,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout,
        )
        found = {}
        for place, future in futures.items():
            result = self._wait(future, topic)
            found[place.partition] = FoundOffset(result.offset, result.timestamp)
        return found


class RecordWriter(Connection):
    """Sends records to one topic; the first failure stops everything.

    Keys choose partitions as they do in Kafka's Java client (murmur2), so that records of the
    same key written by either land in the same partition.
    """

    def __init__(self, servers: str, topic: str, *, acks: str, codec: str) -> None:
        super().__init__(servers)
        self._topic = topic
        self._failure: Failure | None = None
        self.delivered = 0
        self._unacknowledged = acks == "0"
        self.on_delivered: Callable[[int, int | None, int], None] | None = None
        settings = self.settings(
            acks=acks,
            compression_codec=codec,
            partitioner="murmur2_random",
            linger_ms=5,
            message_timeout_ms=30_000,
            message_max_bytes=LARGEST_RECORD,
            topic_metadata_propagation_max_ms=3_000,
            enable_idempotence=acks == "all",
        )
        self._producer = Producer(settings)
        try:
            # Connected first, the library gets its producer id at once; else it waits half a second.
            self._producer.list_topics(timeout=REQUEST_TIMEOUT)
        except KafkaException as problem:
            raise self.failure(problem.args[0]) from None

    def _on_report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self._failure is None:
                self._failure = self._describe(error, message.partition())
            return
        self.delivered += 1
        if self.on_delivered is not None:
            # Without acknowledgement nobody knows the offset.
            offset = message.offset()
            self.on_delivered(
                message.partition() or 0,
                None if self._unacknowledged or offset is None or offset < 0 else offset,
                message.timestamp()[1],
            )

    def _describe(self, error: KafkaError, partition: int | None) -> Failure:
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return Failure(
                f"topic '{self._topic}' has no partition {partition}; "
                f"`ottla topic describe {self._topic}` shows those it has"
            )
        return self.failure(error, self._topic)

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        more: dict[str, Any] = {}
        if partition is not None:
            more["partition"] = partition
        if timestamp is not None:
            more["timestamp"] = timestamp
        if headers:
            more["headers"] = list(headers)
        while True:
            self._raise_failure()
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._on_report, **more)
            except BufferError:
                # The library's queue is full: wait until some of it is delivered.
                self._producer.poll(0.1)
                continue
            except KafkaException as problem:
                raise self._describe(problem.args[0], partition) from None
            self._producer.poll(0)
            return

    def flush(self) -> None:
        while self._producer.flush(0.2):
            self._raise_failure()
        self._raise_failure()

    def abandon(self) -> None:
        """Drop what is not yet sent, so that ending does not wait for it."""
        self._producer.purge()
        self._producer.flush(0.2)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class RecordReader(Connection):
    """Reads given ranges of a topic's partitions, without a group: nothing is committed."""

    def __init__(self, servers: str, topic: str, *, waits: bool) -> None:
        super().__init__(servers)
        self._topic = topic
        self._waits = waits
        self._lost_at: float | None = None
        settings = self.settings(
            # The library insists on a group's name; no group is ever joined.
            group_id=f"ottla-cli-{os.getpid()}",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level="read_committed",
            check_crcs=True,
            fetch_wait_max_ms=500 if waits else 100,
            fetch_message_max_bytes=4 * 1024 * 1024,
            fetch_queue_backoff_ms=20,
        )
        self._consumer: Any = Consumer(settings | {"error_cb": self._on_error})

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._lost_at is None:
            self._lost_at = time.monotonic()

    def read(self, ranges: Mapping[int, tuple[int, int | None]]) -> Iterator[list[Record]]:
        """Lists of records in the order in which they arrive.

        `ranges` gives for each partition the first offset and the one to stop before; without
        the latter reading goes on for ever. An empty list is yielded now and then while nothing
        comes, so that the caller can look after other things.
        """
        ends = {
            partition: end
            for partition, (start, end) in ranges.items()
            if end is None or start < end
        }
        if not ends:
            return
        self._consumer.assign(
            [TopicPartition(self._topic, partition, ranges[partition][0]) for partition in ends]
        )
        while ends:
            first = self._consumer.poll(0.5)
            if first is None:
                self._check_lost()
                yield []
                continue
            messages = [first, *self._consumer.consume(1000, 0)]
            records = []
            for message in messages:
                partition: int = message.partition()
                error = message.error()
                if error is not None:
                    # Those of no partition are about the group, which is none of our business.
                    if message.topic() is not None:
                        self._handle(error, partition, ends)
                    continue
                self._lost_at = None
                if partition not in ends:
                    continue  # its end was reached before
                end = ends[partition]
                offset: int = message.offset()
                if end is None or offset < end:
                    records.append(_record(message, partition, offset))
                if end is not None and offset + 1 >= end:
                    self._finish(partition, ends)
            yield records

    def _handle(self, error: KafkaError, partition: int, ends: dict[int, int | None]) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # Nothing readable is left below the end: what is there are markers or gaps.
            if ends.get(partition) is not None:
                self._finish(partition, ends)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            raise Failure(
                f"the records asked for in partition {partition} of '{self._topic}' are gone "
                "(retention or deletion); read again with --from earliest"
            )
        elif not error.retriable() and code not in _NO_ANSWER:
            raise self.failure(error, self._topic)

    def _finish(self, partition: int, ends: dict[int, int | None]) -> None:
        del ends[partition]
        self._consumer.pause([TopicPartition(self._topic, partition)])

    def _check_lost(self) -> None:
        if self._waits or self._lost_at is None:
            return
        if time.monotonic() - self._lost_at > LOST_AFTER:
            raise Failure(f"the broker at {self.servers} went away while reading; start it again")

    def close(self) -> None:
        self._consumer.close()


def _record(message: Any, partition: int, offset: int) -> Record:
    _, timestamp = message.timestamp()
    headers = message.headers()
    return Record(
        partition,
        offset,
        timestamp,
        message.key(),
        message.value(),
        () if headers is None else tuple(headers),
    )
