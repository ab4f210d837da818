"""Topics: create, delete, list, describe, add partitions, delete records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import ANY, CONTROLLER, Route
from ottla.client.errors import OttlaError, broker_error
from ottla.client.metadata import TopicInfo
from ottla.client.naming import Names, by_partition, names_of, several_of
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Leaders, Outcomes, Verdict, by_topic, spread
from ottla.protocol.message import ZERO_UUID, uuid_text
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.wire.connection import Connection

_DELETE_BY_STATE_SINCE = 6  # DeleteTopics
_UP_TO_THE_END = -1  # DeleteRecords: the high watermark


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; what is None is the broker's to choose."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    # Partition -> the brokers that hold it, the preferred leader first; in place of the numbers.
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created, or (validate_only) could be."""

    name: str
    topic_id: str | None  # None: the broker is older than Kafka 2.8
    partitions: int | None  # None: the broker is older than Kafka 2.4
    replication_factor: int | None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition and who holds it; `leader` is None while there is none."""

    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    name: str
    topic_id: str | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        """Of the partition that has the most replicas: they may differ while they are moved."""
        return max((len(each.replicas) for each in self.partitions), default=0)


class TopicsAdmin(AdminPart):
    """The calls about topics."""

    async def list_topics(
        self,
        *,
        internal: bool = False,
        from_controller: bool = False,
        timeout: float | None = None,
    ) -> list[TopicDescription]:
        """All topics, by name; those that brokers keep for themselves only if asked for.

        Brokers hear of changes one after the other, from the controller: with `from_controller` it is
        the one that is asked.
        """
        if from_controller:
            await self.cluster.brokers(timeout=timeout)  # another one may be the controller by now
        listed = await self._describe(None, timeout, CONTROLLER if from_controller else ANY)
        return [topic for topic in listed.all().values() if internal or not topic.internal]

    async def describe_topics(
        self, topics: Names, *, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """Topics with their partitions. TopicNotFound, and none is created by asking for it."""
        return (await self._describe(names_of(topics, "topics"), timeout)).all()

    async def _describe(
        self, names: list[str] | None, timeout: float | None, at: Route = ANY
    ) -> Outcomes[str, TopicDescription]:
        # Straight from a broker: the client's cache may be minutes old.
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = await self.cluster.ask(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False),
            MetadataResponse,
            at=at,
            timeout=timeout,
        )
        self.cluster.metadata.learn(answer, names, asyncio.get_running_loop().time())
        results: dict[str, TopicDescription] = {}
        errors: dict[str, OttlaError] = {}
        for topic in sorted(answer.topics, key=lambda each: each.name or ""):
            name = topic.name or ""
            if topic.error_code:
                errors[name] = broker_error(topic.error_code, about=f"topic '{name}'")
                continue
            results[name] = TopicDescription(
                name,
                _shown_id(topic.topic_id),
                topic.is_internal or name.startswith("__"),
                tuple(
                    PartitionDescription(
                        each.partition_index,
                        each.leader_id if each.leader_id >= 0 else None,
                        each.leader_epoch if each.leader_epoch >= 0 else None,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        tuple(each.offline_replicas),
                    )
                    for each in sorted(topic.partitions, key=lambda each: each.partition_index)
                ),
            )
        return Outcomes(results, errors)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        """Create a topic, and wait until the brokers know it.

        With `validate_only` the broker checks whether it could be created. TopicExists, InvalidTopic,
        InvalidPartitions, InvalidReplication, InvalidSetting, PolicyViolation.
        """
        topic = NewTopic(name, partitions, replication_factor, settings or {})
        created = await self.create_topics([topic], validate_only=validate_only, timeout=timeout)
        return created[name]

    async def create_topics(
        self,
        topics: NewTopic | str | Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create several topics; see `create_topic`."""
        given: list[NewTopic | str] = several_of(
            topics, (NewTopic, str), "topics: names (str) or NewTopic"
        )
        new = [NewTopic(each) if isinstance(each, str) else each for each in given]
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in new],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        def read(answer: CreateTopicsResponse) -> Iterable[Verdict[str, CreatedTopic]]:
            for each in answer.topics:
                created = CreatedTopic(
                    each.name,
                    _shown_id(each.topic_id),
                    each.num_partitions if each.num_partitions >= 0 else None,
                    each.replication_factor if each.replication_factor >= 0 else None,
                )
                yield Verdict(each.name, each.error_code, created, each.error_message)

        created = await self._ask(
            request,
            CreateTopicsResponse,
            read=read,
            about=_topic_name,
            at=CONTROLLER,
            timeout=timeout,
        )
        if not validate_only:
            await self._await_topics(created.results, timeout)
        return created.all()

    async def _await_topics(self, names: Iterable[str], timeout: float | None) -> None:
        """Brokers learn of new topics one after the other; use of one at once should not fail."""
        infos: Mapping[str, TopicInfo] = await self.cluster.topics(
            names, timeout=timeout, wait=True
        )
        for info in infos.values():
            if any(each.leader < 0 for each in info.partitions.values()):
                self.cluster.request_refresh(info.name)

    async def delete_topics(self, topics: Names, *, timeout: float | None = None) -> None:
        """Delete topics with all their records. TopicNotFound for those that are not there."""
        names = names_of(topics, "topics")

        def request(connection: Connection) -> DeleteTopicsRequest:
            if connection.version_of(DeleteTopicsRequest) >= _DELETE_BY_STATE_SINCE:
                states = [DeleteTopicState(name=name) for name in names]
                return DeleteTopicsRequest(topics=states, timeout_ms=self._timeout_ms)
            return DeleteTopicsRequest(topic_names=names, timeout_ms=self._timeout_ms)

        def read(answer: DeleteTopicsResponse) -> Iterable[Verdict[str, None]]:
            for each in answer.responses:
                yield Verdict(each.name or "", each.error_code, None, each.error_message)

        deleted = await self._ask(
            request,
            DeleteTopicsResponse,
            read=read,
            about=_topic_name,
            at=CONTROLLER,
            timeout=timeout,
        )
        for name in deleted.results:
            self.cluster.metadata.forget(name)
        deleted.all()

    async def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Give a topic more partitions, `total` in the end.

        Records with keys will go to other partitions than before. `assignments` names the brokers
        of each new partition. TopicNotFound; InvalidPartitions if it has as many already.
        """
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=topic,
                    count=total,
                    assignments=None
                    if assignments is None
                    else [CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments],
                )
            ],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        def read(answer: CreatePartitionsResponse) -> Iterable[Verdict[str, None]]:
            for each in answer.results:
                yield Verdict(each.name, each.error_code, None, each.error_message)

        done = await self._ask(
            request,
            CreatePartitionsResponse,
            read=read,
            about=_topic_name,
            at=CONTROLLER,
            timeout=timeout,
        )
        self.cluster.request_refresh(topic)
        done.all()

    async def delete_records(
        self,
        before: Mapping[TopicPartition, int | None],
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset (None: all there are now) of each partition.

        The result is each partition's new first offset. TopicNotFound; OffsetOutOfRange beyond the end.
        """
        offsets = by_partition(before)

        def build(_: Connection, partitions: list[TopicPartition]) -> DeleteRecordsRequest:
            return DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(
                                partition_index=index,
                                offset=_or_end(offsets[TopicPartition(topic, index)]),
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(partitions).items()
                ],
                timeout_ms=self._timeout_ms,
            )

        def read(
            answer: DeleteRecordsResponse, _: list[TopicPartition]
        ) -> Iterable[Verdict[TopicPartition, int]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    yield Verdict(partition, each.error_code, each.low_watermark)

        outcomes = await spread(
            self.cluster,
            offsets,
            Leaders(self.cluster),
            build=build,
            answer=DeleteRecordsResponse,
            read=read,
            timeout=timeout,
        )
        return outcomes.all()


def _or_end(offset: int | None) -> int:
    return _UP_TO_THE_END if offset is None else offset


def _topic_name(name: str) -> str:
    return f"topic '{name}'"


def _shown_id(topic_id: bytes) -> str | None:
    return None if topic_id == ZERO_UUID else uuid_text(topic_id)


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = topic.assignments or {}
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.partitions is None or assignments else topic.partitions,
        replication_factor=-1
        if topic.replication_factor is None or assignments
        else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in assignments.items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.settings.items()
        ],
    )
