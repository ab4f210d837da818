"""Transactions and producers: list, describe, abort, and find those that hang.

A transaction hangs in a partition when the partition waits for its outcome and no coordinator will
ever write one. Readers of committed records then stop before it for ever, and compaction, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import Coordinator, CoordinatorKind, LeaderOf, OneBroker
from ottla.client.errors import TransactionNotFound, Unsupported, broker_error, raise_for
from ottla.client.naming import Names, Partitions, names_of, partition_of, partitions_of, several_of
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Coordinators, Leaders, Verdict, by_topic, spread
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.connection import Connection

_DURATION_SINCE: Final = 1  # ListTransactions
_PATTERN_SINCE: Final = 2
# The broker's default for transaction.max.timeout.ms: an open transaction that is older than this
# should have been ended by its coordinator.
DEFAULT_LONGEST: Final = 15 * 60.0


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str  # Empty, Ongoing, PrepareCommit, …
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction, if one is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None  # milliseconds since 1970; None: none is open
    partitions: tuple[TopicPartition, ...]
    coordinator: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int | None
    coordinator_epoch: int | None
    transaction_start: int | None  # the first offset of its open transaction; None: none is open


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a partition considers open."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None  # None: no coordinator knows the producer


class TransactionsAdmin(AdminPart):
    """The calls about transactions and producers."""

    async def list_transactions(
        self,
        *,
        states: Names = (),
        producer_ids: int | Iterable[int] = (),
        running_for: float | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, or those in a state, of producers, open for so many seconds."""
        filters = ListTransactionsRequest(
            state_filters=names_of(states, "states"),
            producer_id_filters=several_of(producer_ids, int, "producer_ids: numbers (int)"),
            duration_filter=-1 if running_for is None else int(running_for * 1000),
            transactional_id_pattern=pattern,
        )

        def request(connection: Connection) -> ListTransactionsRequest:
            version = connection.version_of(ListTransactionsRequest)
            if (running_for is not None and version < _DURATION_SINCE) or (
                pattern is not None and version < _PATTERN_SINCE
            ):
                raise Unsupported(
                    f"{connection.address} cannot choose transactions by their duration "
                    "(Kafka 3.8) or by a pattern (Kafka 4.1)"
                )
            return filters

        async def ask(node: int) -> list[TransactionListing]:
            answer = await self.cluster.ask(
                request, ListTransactionsResponse, at=OneBroker(node), timeout=timeout
            )
            raise_for(answer.error_code, about="listing transactions")
            if answer.unknown_state_filters:
                raise ValueError(
                    f"no transaction is ever in state {', '.join(answer.unknown_state_filters)}"
                )
            return [
                TransactionListing(
                    each.transactional_id, each.producer_id, each.transaction_state, node
                )
                for each in answer.transaction_states
            ]

        listings = await self.cluster.of_every_broker(ask, timeout=timeout)
        return sorted(
            (each for some in listings for each in some), key=lambda each: each.transactional_id
        )

    async def describe_transactions(
        self, transactional_ids: Names, *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Transactional ids with their transactions; TransactionNotFound for unknown ones."""
        names = names_of(transactional_ids, "transactional_ids")
        coordinators: dict[str, int] = {}

        def read(
            answer: DescribeTransactionsResponse, _: list[str]
        ) -> Iterable[Verdict[str, TransactionDescription]]:
            for each in answer.transaction_states:
                description = TransactionDescription(
                    each.transactional_id,
                    each.transaction_state,
                    each.producer_id,
                    each.producer_epoch,
                    each.transaction_timeout_ms,
                    each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
                    tuple(
                        sorted(
                            TopicPartition(topic.topic, index)
                            for topic in each.topics
                            for index in topic.partitions
                        )
                    ),
                    coordinators[each.transactional_id],
                )
                yield Verdict(each.transactional_id, each.error_code, description)

        def build(_: Connection, some: list[str]) -> DescribeTransactionsRequest:
            for each in some:
                node = self.cluster.known_coordinator(CoordinatorKind.TRANSACTION, each)
                coordinators[each] = -1 if node is None else node.id
            return DescribeTransactionsRequest(transactional_ids=some)

        outcomes = await spread(
            self.cluster,
            names,
            Coordinators(self.cluster, CoordinatorKind.TRANSACTION),
            build=build,
            answer=DescribeTransactionsResponse,
            read=read,
            timeout=timeout,
        )
        return outcomes.all()

    async def describe_producers(
        self, partitions: Partitions, *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions remember, with their open transactions. TopicNotFound."""

        def build(_: Connection, some: list[TopicPartition]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(some).items()
                ]
            )

        def read(
            answer: DescribeProducersResponse, _: list[TopicPartition]
        ) -> Iterable[Verdict[TopicPartition, tuple[ProducerState, ...]]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    producers = tuple(
                        ProducerState(
                            one.producer_id,
                            one.producer_epoch,
                            one.last_sequence,
                            _known(one.last_timestamp),
                            _known(one.coordinator_epoch),
                            _known(one.current_txn_start_offset),
                        )
                        for one in each.active_producers
                    )
                    partition = TopicPartition(topic.name, each.partition_index)
                    yield Verdict(partition, each.error_code, producers, each.error_message)

        outcomes = await spread(
            self.cluster,
            partitions_of(partitions),
            Leaders(self.cluster),
            build=build,
            answer=DescribeProducersResponse,
            read=read,
            timeout=timeout,
        )
        return outcomes.all()

    async def find_hanging_transactions(
        self,
        partitions: Partitions | None = None,
        *,
        topics: Names | None = None,
        longest: float = DEFAULT_LONGEST,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """Transactions that partitions wait for and that no coordinator will end.

        Looked at are the partitions given, those of `topics`, or all there are. `longest` is the
        broker's transaction.max.timeout.ms in seconds: what has been open for less is no suspect.
        """
        chosen = await self._chosen_partitions(partitions, topics, timeout)
        described = await self.describe_producers(chosen, timeout=timeout)
        before = int((time.time() - longest) * 1000)
        suspects = [
            OpenTransaction(partition, producer, None)
            for partition, producers in sorted(described.items())
            for producer in producers
            if producer.transaction_start is not None
            and (producer.last_timestamp_ms is None or producer.last_timestamp_ms < before)
        ]
        if not suspects:
            return []
        listed = await self.list_transactions(
            producer_ids={each.producer.producer_id for each in suspects}, timeout=timeout
        )
        owners = {each.producer_id: each.transactional_id for each in listed}
        return [
            OpenTransaction(each.partition, each.producer, owners.get(each.producer.producer_id))
            for each in suspects
            if await self._hangs(each, owners.get(each.producer.producer_id), timeout)
        ]

    async def _hangs(
        self, suspect: OpenTransaction, owner: str | None, timeout: float | None
    ) -> bool:
        """Whether no coordinator has this partition in an open transaction of this producer."""
        if owner is None:
            return True
        try:
            known = (await self.describe_transactions(owner, timeout=timeout))[owner]
        except TransactionNotFound:
            return True
        return (
            known.producer_id != suspect.producer.producer_id
            or suspect.partition not in known.partitions
        )

    async def _chosen_partitions(
        self,
        partitions: Partitions | None,
        topics: Names | None,
        timeout: float | None,
    ) -> list[TopicPartition]:
        if partitions is not None:
            return partitions_of(partitions)
        if topics is None:
            await self.cluster.brokers(timeout=timeout)
            await self.cluster.refresh(None)
            names: Iterable[str] = list(self.cluster.metadata.topics)
        else:
            names = names_of(topics, "topics")
        infos = await self.cluster.topics(names, timeout=timeout)
        return [
            TopicPartition(name, index) for name, info in infos.items() for index in info.partitions
        ]

    async def abort_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None
    ) -> ProducerState:
        """End a hanging transaction in one partition: the one that starts at this offset there.

        Only for transactions that hang (`find_hanging_transactions`): of one that lives this would
        make a torn one. The result is the producer whose transaction was aborted. BrokerError
        (INVALID_TXN_STATE) if no transaction starts there.
        """
        partition = partition_of(partition)
        producers = (await self.describe_producers([partition], timeout=timeout))[partition]
        found = [each for each in producers if each.transaction_start == start_offset]
        about = f"{partition}"
        if not found:
            raise broker_error(
                ErrorCode.INVALID_TXN_STATE,
                f"no transaction is open that starts at offset {start_offset}",
                about,
            )
        producer = found[0]
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=max(producer.coordinator_epoch or 0, 0),
                    topics=[
                        WritableTxnMarkerTopic(
                            name=partition.topic, partition_indexes=[partition.partition]
                        )
                    ],
                )
            ]
        )

        def failing(answer: WriteTxnMarkersResponse) -> int:
            codes = (
                each.error_code
                for marker in answer.markers
                for topic in marker.topics
                for each in topic.partitions
            )
            return next(filter(None, codes), 0)

        answer = await self.cluster.ask(
            request,
            WriteTxnMarkersResponse,
            at=LeaderOf(*partition),
            timeout=timeout,
            failing=failing,
        )
        raise_for(failing(answer), about=about)
        return producer

    async def fence_producer(
        self, transactional_id: str, *, timeout: float | None = None
    ) -> tuple[int, int]:
        """Abort the id's open transaction, if any, and lock its producer out (it sees Fenced).

        The result is the producer's id and its new epoch.
        """
        answer = await self.cluster.ask(
            InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=self._timeout_ms
            ),
            InitProducerIdResponse,
            at=Coordinator.of_transaction(transactional_id),
            timeout=timeout,
        )
        raise_for(answer.error_code, about=f"transactional id '{transactional_id}'")
        return answer.producer_id, answer.producer_epoch

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        timeout: float | None = None,
    ) -> None:
        """Commit or abort a prepared transaction in the place of its producer.

        It may be said twice. Raises Fenced, or another BrokerError, if this transaction is not open
        and was not ended in this way.
        """
        # Here, because it brings the whole producer with it, and few need this.
        from ottla.client.producer.transactions import newest_end

        answer = await self.cluster.ask(
            EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=commit,
            ),
            EndTxnResponse,
            at=Coordinator.of_transaction(transactional_id),
            timeout=timeout,
            at_most=newest_end,
        )
        raise_for(answer.error_code, about=f"transactional id '{transactional_id}'")


def _known(number: int) -> int | None:
    return number if number >= 0 else None
