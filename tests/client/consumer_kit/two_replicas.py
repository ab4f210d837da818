"""One partition on two brokers that keep to the protocol's rules: leaders move, logs are cut off.

Each broker has a log, a list of the records' epochs: record 7 of the log [1, 1, 1, 1, 1, 2, 2, 2] was
written in epoch 2. `elect` makes a leader, and the other one takes over its log: what the new leader
did not have is lost. Offsets that groups commit are kept, sequence numbers of producers checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile

from wire_kit.scripted import Asked, serving

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.fetch import EpochEndOffset as DivergingEpoch
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.record.batch import Record, build_batch, read_header, records

TOPIC = "replicated"
TOPIC_ID = b"replicated-topic"
PLACE = (TOPIC, 0)
NEWEST_FETCH = 17
FETCH_OF_KAFKA_2_4 = 11
UNDEFINED = (-1, -1)
PRODUCER_ID = 4711
WAITS = 0.05  # seconds that a fetch without news waits


@dataclass(frozen=True)
class Fetched:
    """A partition of a Fetch request: at which broker, and what it said."""

    node: int
    rack: str
    wanted: FetchPartition


@dataclass
class TwoReplicas:
    """See the module. Brokers have the ids 1 and 2."""

    logs: dict[int, list[int]] = field(default_factory=lambda: {1: [], 2: []})
    leader: int = 1
    epoch: int = 1
    fetch_version: int = NEWEST_FETCH
    at_once: int = 1000  # records that a fetch brings
    compacted_from: int = (
        2**62
    )  # records from this offset on are gone, although the log reaches further
    closest: int | None = None  # the replica that consumers are sent to
    tells_leader: bool = False  # whether who is not the leader says who is (KIP-951)
    hidden: set[int] = field(default_factory=set)  # brokers that the metadata do not name
    silent: set[int] = field(default_factory=set)  # brokers that hang up when they are fetched from
    # What a fetch is refused with, if anything, before all else.
    refuse: Callable[[Fetched], ErrorCode | None] = lambda _: None
    throttle: Callable[[Fetched], bool] = lambda _: (
        False
    )  # whether a fetch is answered with nothing
    values: dict[int, bytes] = field(default_factory=dict)  # what producers wrote, by offset
    fetches: list[Fetched] = field(default_factory=list)
    validations: list[int] = field(default_factory=list)  # epochs that consumers asked about
    commits: dict[str, tuple[int, int]] = field(default_factory=dict)  # group -> offset, epoch
    ports: dict[int, int] = field(default_factory=dict)
    next_sequence: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def log(self) -> list[int]:
        return self.logs[self.leader]

    def append(self, count: int, *, replicated: bool = True) -> None:
        """Records of the present epoch; not replicated: only the leader has them."""
        for node, log in self.logs.items():
            if replicated or node == self.leader:
                log.extend([self.epoch] * count)
        self._changed.set()

    def elect(self, node: int) -> None:
        """This broker leads from now on. The other one's log becomes a copy of its own."""
        self.leader = node
        self.epoch += 1
        for other in self.logs:
            self.logs[other] = list(self.logs[node])
        self._changed.set()

    def end_of(self, node: int, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends."""
        log = self.logs[node]
        if epoch > self.epoch:
            return UNDEFINED
        if epoch == self.epoch:
            return epoch, len(log)
        end = len(list(takewhile(lambda each: each <= epoch, log)))
        return (log[end - 1] if end else epoch), end

    # Requests

    async def answer(self, node: int, asked: Asked) -> None:
        match asked.api_key:
            case ApiKey.METADATA:
                asked.answer(self._metadata())
            case ApiKey.FETCH:
                if node in self.silent:
                    asked.writer.close()
                    return
                asked.answer(await self._fetch(node, asked))
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                asked.answer(self._ends(node, asked))
            case ApiKey.LIST_OFFSETS:
                asked.answer(self._list_offsets(asked))
            case ApiKey.FIND_COORDINATOR:
                asked.answer(self._coordinators(asked))
            case ApiKey.OFFSET_COMMIT:
                asked.answer(self._commit(asked))
            case ApiKey.OFFSET_FETCH:
                asked.answer(self._committed(asked))
            case ApiKey.INIT_PRODUCER_ID:
                asked.answer(InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0))
            case ApiKey.PRODUCE:
                asked.answer(self._produce(node, asked))

    async def shake_hands(self, asked: Asked) -> None:
        offered = {
            ApiKey.API_VERSIONS: (0, 4),
            ApiKey.METADATA: (0, 12),
            ApiKey.FETCH: (4, self.fetch_version),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 3),
            ApiKey.LIST_OFFSETS: (1, 8),
            ApiKey.FIND_COORDINATOR: (0, 4),
            ApiKey.OFFSET_COMMIT: (2, 9),
            ApiKey.OFFSET_FETCH: (1, 9),
            ApiKey.INIT_PRODUCER_ID: (0, 4),
            ApiKey.PRODUCE: (3, 12),
        }
        asked.answer(
            ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=key, min_version=oldest, max_version=newest)
                    for key, (oldest, newest) in offered.items()
                ]
            )
        )

    def _metadata(self) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.epoch,
            replica_nodes=[1, 2],
            isr_nodes=[1, 2],
        )
        return MetadataResponse(
            controller_id=1,
            brokers=[
                MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
                for node, port in self.ports.items()
                if node not in self.hidden
            ],
            topics=[MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
        )

    async def _fetch(self, node: int, asked: Asked) -> FetchResponse:
        request, _ = FetchRequest.decode(asked.body, 0, asked.version)
        (wanted,) = request.topics[0].partitions
        fetched = Fetched(node, request.rack_id, wanted)
        self.fetches.append(fetched)
        if self.throttle(fetched):
            return FetchResponse(throttle_time_ms=1)
        data = self._found(fetched)
        if data == self._nothing(node):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAITS):
                    await self._changed.wait()
            data = self._found(fetched)
        topic = FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[data])
        response = FetchResponse(responses=[topic])
        if self.tells_leader and data.error_code:
            data.current_leader = LeaderIdAndEpoch(leader_id=self.leader, leader_epoch=self.epoch)
            port = self.ports[self.leader]
            response.node_endpoints = [
                NodeEndpoint(node_id=self.leader, host="127.0.0.1", port=port)
            ]
        return response

    def _nothing(self, node: int) -> PartitionData:
        end = len(self.logs[node])
        return PartitionData(high_watermark=end, last_stable_offset=end, records=b"")

    def _found(self, fetched: Fetched) -> PartitionData:
        node, wanted = fetched.node, fetched.wanted
        log = self.logs[node]
        data = self._nothing(node)
        refusal = self.refuse(fetched) or self._wrong_epoch(wanted.current_leader_epoch)
        if refusal is None and node not in (self.leader, self.closest):
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if refusal is not None:
            data.error_code = refusal
            return data
        if self.closest not in (None, node) and fetched.rack:
            assert self.closest is not None
            data.preferred_read_replica = self.closest
            return data
        if wanted.last_fetched_epoch >= 0:
            epoch, end = self.end_of(node, wanted.last_fetched_epoch)
            if epoch < 0:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return data
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                data.diverging_epoch = DivergingEpoch(epoch=epoch, end_offset=end)
                return data
        if wanted.fetch_offset > len(log):
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data
        stop = min(len(log), wanted.fetch_offset + self.at_once, self.compacted_from)
        data.records = b"".join(
            self._batch(offset, log[offset]) for offset in range(wanted.fetch_offset, stop)
        )
        return data

    def _batch(self, offset: int, epoch: int) -> bytes:
        value = self.values.get(offset, value_of(offset, epoch))
        record = Record(offset, 1_700_000_000_000, None, value)
        return build_batch([record], base_offset=offset, leader_epoch=epoch)

    def _wrong_epoch(self, told: int) -> ErrorCode | None:
        if told in (-1, self.epoch):
            return None
        return (
            ErrorCode.FENCED_LEADER_EPOCH if told < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        )

    def _ends(self, node: int, asked: Asked) -> OffsetForLeaderEpochResponse:
        request, _ = OffsetForLeaderEpochRequest.decode(asked.body, 0, asked.version)
        (wanted,) = request.topics[0].partitions
        assert request.replica_id == -1
        self.validations.append(wanted.leader_epoch)
        refusal = self._wrong_epoch(wanted.current_leader_epoch)
        epoch, end = self.end_of(node, wanted.leader_epoch)
        told = EpochEndOffset(leader_epoch=epoch, end_offset=end)
        if refusal is not None:
            told = EpochEndOffset(error_code=refusal)
        topic = OffsetForLeaderTopicResult(topic=TOPIC, partitions=[told])
        return OffsetForLeaderEpochResponse(topics=[topic])

    def _list_offsets(self, asked: Asked) -> ListOffsetsResponse:
        request, _ = ListOffsetsRequest.decode(asked.body, 0, asked.version)
        earliest = request.topics[0].partitions[0].timestamp == -2
        told = ListOffsetsPartitionResponse(offset=0 if earliest else len(self.log))
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[told])])

    def _coordinators(self, asked: Asked) -> FindCoordinatorResponse:
        request, _ = FindCoordinatorRequest.decode(asked.body, 0, asked.version)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=1, host="127.0.0.1", port=self.ports[1])
                for key in request.coordinator_keys
            ]
        )

    def _commit(self, asked: Asked) -> OffsetCommitResponse:
        request, _ = OffsetCommitRequest.decode(asked.body, 0, asked.version)
        (told,) = request.topics[0].partitions
        self.commits[request.group_id] = (told.committed_offset, told.committed_leader_epoch)
        partition = OffsetCommitResponsePartition(partition_index=0)
        return OffsetCommitResponse(
            topics=[OffsetCommitResponseTopic(name=TOPIC, partitions=[partition])]
        )

    def _committed(self, asked: Asked) -> OffsetFetchResponse:
        request, _ = OffsetFetchRequest.decode(asked.body, 0, asked.version)
        groups = []
        for group in request.groups:
            offset, epoch = self.commits.get(group.group_id, (-1, -1))
            partition = OffsetFetchResponsePartitions(
                committed_offset=offset, committed_leader_epoch=epoch
            )
            topic = OffsetFetchResponseTopics(name=TOPIC, partitions=[partition])
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=[topic]))
        return OffsetFetchResponse(groups=groups)

    def _produce(self, node: int, asked: Asked) -> ProduceResponse:
        request, _ = ProduceRequest.decode(asked.body, 0, asked.version)
        (data,) = request.topic_data[0].partition_data
        told = PartitionProduceResponse(index=0, base_offset=-1)
        header = read_header(data.records)
        if node != self.leader:
            told.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif header.base_sequence != self.next_sequence:
            told.error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            told.base_offset = len(self.log)
            for number, record in enumerate(records(data.records)):
                self.values[told.base_offset + number] = record.value or b""
            self.append(header.record_count)
            self.next_sequence += header.record_count
        topic = TopicProduceResponse(name=TOPIC, topic_id=TOPIC_ID, partition_responses=[told])
        return ProduceResponse(responses=[topic])


def value_of(offset: int, epoch: int) -> bytes:
    return f"{offset} in epoch {epoch}".encode()


@asynccontextmanager
async def two_replicas(**state: object) -> AsyncIterator[TwoReplicas]:
    """Both brokers, at ports of their own."""
    world = TwoReplicas(**state)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        for node in (1, 2):

            async def script(asked: Asked, node: int = node) -> None:
                await world.answer(node, asked)

            port, _ = await stack.enter_async_context(serving(script, handshake=world.shake_hands))
            world.ports[node] = port
        yield world
