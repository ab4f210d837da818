"""The cluster itself: brokers, features, data folders, elections, moves of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import CONTROLLER, OneBroker
from ottla.client.errors import broker_error, raise_for
from ottla.client.metadata import Node
from ottla.client.naming import Partitions, by_partition, partitions_of, several_of
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Outcomes, Verdict, by_topic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.version import __version__
from ottla.wire.connection import SOFTWARE_NAME, Connection

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_UPGRADE_TYPES: Final = {
    "upgrade": _UPGRADE,
    "safe-downgrade": _SAFE_DOWNGRADE,
    "unsafe-downgrade": _UNSAFE_DOWNGRADE,
}


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster and its brokers, by number."""

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Node, ...]
    # Registered, and not there now; none where a cluster older than Kafka 4.0 does not tell.
    away: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the cluster (KIP-584): the level agreed on, and those that all brokers support."""

    name: str
    level: int | None  # None: not in use
    lowest: int | None  # None: one of the brokers knows the feature not at all, or no common level
    highest: int | None


@dataclass(frozen=True, slots=True)
class ReplicaInFolder:
    """A replica in a data folder."""

    partition: TopicPartition
    size: int  # bytes
    lag: int  # records behind the high watermark
    is_future: bool  # it is being moved here from another folder


@dataclass(frozen=True, slots=True)
class LogFolder:
    """A data folder of a broker."""

    broker: int
    path: str
    replicas: tuple[ReplicaInFolder, ...]
    total_bytes: int | None  # of the disk; None: it failed, or the broker is older than Kafka 3.3
    usable_bytes: int | None
    is_offline: bool = False  # its disk failed: what lies in it is not known

    @property
    def size(self) -> int:
        """Bytes of all replicas in it."""
        return sum(each.size for each in self.replicas)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is being moved."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ClusterAdmin(AdminPart):
    """The calls about the cluster."""

    async def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id, its controller and its brokers."""
        connection = await self._any(timeout)
        metadata = self.cluster.metadata
        nodes: list[Node] = []
        away: list[Node] = []
        if connection.versions.offers(DescribeClusterRequest):
            answer = await self.cluster.ask(
                # Older versions cannot ask for those that are away.
                lambda to: DescribeClusterRequest(
                    include_fenced_brokers=to.version_of(DescribeClusterRequest) >= 2
                ),
                DescribeClusterResponse,
                timeout=timeout,
            )
            raise_for(answer.error_code, answer.error_message, "describing the cluster")
            for each in answer.brokers:
                found = away if each.is_fenced else nodes
                found.append(Node(each.broker_id, each.host, each.port, each.rack))
            cluster_id, controller = answer.cluster_id, answer.controller_id
        else:
            nodes += (await self.cluster.brokers(timeout=timeout)).values()
            cluster_id, controller = metadata.cluster_id or "", metadata.controller_id
        return ClusterDescription(
            cluster_id or None,
            controller if controller >= 0 else None,
            tuple(sorted(nodes, key=lambda node: node.id)),
            tuple(sorted(away, key=lambda node: node.id)),
        )

    async def describe_features(self, *, timeout: float | None = None) -> dict[str, Feature]:
        """The features of the cluster, by name, with the levels that all of its brokers support."""

        async def ask(node: int) -> ApiVersionsResponse:
            # Anew: what a connection was told when it was opened may have changed.
            return await self.cluster.ask(
                ApiVersionsRequest(
                    client_software_name=SOFTWARE_NAME, client_software_version=__version__
                ),
                ApiVersionsResponse,
                at=OneBroker(node),
                timeout=timeout,
            )

        answers = await self.cluster.of_every_broker(ask, timeout=timeout)
        newest = max(answers, key=lambda each: each.finalized_features_epoch)
        levels = {each.name: each.max_version_level for each in newest.finalized_features}
        ranges = [
            {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
            for answer in answers
        ]
        names = sorted({*levels, *(name for supported in ranges for name in supported)})
        return {
            name: Feature(name, levels.get(name), *_common([each.get(name) for each in ranges]))
            for name in names
        }

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        kind: Literal["upgrade", "safe-downgrade", "unsafe-downgrade"] = "upgrade",
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise (or lower) the levels of features; level 0 takes one out of use."""
        answer = await self.cluster.ask(
            UpdateFeaturesRequest(
                timeout_ms=self._timeout_ms,
                feature_updates=[
                    FeatureUpdateKey(
                        feature=name, max_version_level=level, upgrade_type=_UPGRADE_TYPES[kind]
                    )
                    for name, level in levels.items()
                ],
                validate_only=validate_only,
            ),
            UpdateFeaturesResponse,
            at=CONTROLLER,
            timeout=timeout,
        )
        raise_for(answer.error_code, answer.error_message, "updating features")
        for each in answer.results:
            raise_for(each.error_code, each.error_message, f"feature '{each.feature}'")

    async def describe_log_folders(
        self, brokers: int | Iterable[int] | None = None, *, timeout: float | None = None
    ) -> list[LogFolder]:
        """The data folders of brokers (all, unless some are named) and what lies in them."""

        async def ask(node: int) -> list[LogFolder]:
            answer = await self.cluster.ask(
                DescribeLogDirsRequest(topics=None),
                DescribeLogDirsResponse,
                at=OneBroker(node),
                timeout=timeout,
            )
            raise_for(answer.error_code, about=f"broker {node}")
            folders = []
            for each in answer.results:
                if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    folders.append(LogFolder(node, each.log_dir, (), None, None, is_offline=True))
                    continue
                raise_for(each.error_code, about=f"{each.log_dir} of broker {node}")
                replicas = tuple(
                    ReplicaInFolder(
                        TopicPartition(topic.name, one.partition_index),
                        one.partition_size,
                        one.offset_lag,
                        one.is_future_key,
                    )
                    for topic in each.topics
                    for one in topic.partitions
                )
                folders.append(
                    LogFolder(
                        node,
                        each.log_dir,
                        replicas,
                        each.total_bytes if each.total_bytes >= 0 else None,
                        each.usable_bytes if each.usable_bytes >= 0 else None,
                    )
                )
            return folders

        if brokers is None:
            found = await self.cluster.of_every_broker(ask, timeout=timeout)
        else:
            numbers = several_of(brokers, int, "brokers: numbers (int)")
            found = list(await asyncio.gather(*map(ask, set(numbers))))
        return sorted((each for some in found for each in some), key=lambda folder: folder.broker)

    async def elect_leaders(
        self,
        partitions: Partitions | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> list[TopicPartition]:
        """Have the preferred leaders of partitions (None: of all) elected.

        `unclean` elects a replica that is not in sync where no other is left: records may be lost.
        The result are the partitions whose leader changed.
        """
        topics = (
            None
            if partitions is None
            else [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions_of(partitions)).items()
            ]
        )
        answer = await self.cluster.ask(
            ElectLeadersRequest(
                election_type=int(unclean), topic_partitions=topics, timeout_ms=self._timeout_ms
            ),
            ElectLeadersResponse,
            at=CONTROLLER,
            timeout=timeout,
        )
        raise_for(answer.error_code, about="electing leaders")
        outcomes: Outcomes[TopicPartition, None] = Outcomes()
        for topic in answer.replica_election_results:
            for each in topic.partition_result:
                partition = TopicPartition(topic.topic, each.partition_id)
                if each.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                if each.error_code:
                    outcomes.errors[partition] = broker_error(
                        each.error_code, each.error_message, str(partition)
                    )
                else:
                    outcomes.results[partition] = None
        return sorted(outcomes.all())

    async def list_reassignments(self, *, timeout: float | None = None) -> list[Reassignment]:
        """The partitions that are being moved."""
        answer = await self.cluster.ask(
            ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms),
            ListPartitionReassignmentsResponse,
            at=CONTROLLER,
            timeout=timeout,
        )
        raise_for(answer.error_code, answer.error_message, "listing moves of partitions")
        return [
            Reassignment(
                TopicPartition(topic.name, each.partition_index),
                tuple(each.replicas),
                tuple(each.adding_replicas),
                tuple(each.removing_replicas),
            )
            for topic in answer.topics
            for each in topic.partitions
        ]

    async def alter_reassignments(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to these brokers; None stops a move that is under way."""
        wanted = by_partition(replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index,
                            replicas=_listed(wanted[TopicPartition(topic, index)]),
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(wanted).items()
            ],
        )

        def read(
            answer: AlterPartitionReassignmentsResponse,
        ) -> Iterable[Verdict[TopicPartition, None]]:
            for topic in answer.responses:
                for each in topic.partitions:
                    yield Verdict(
                        TopicPartition(topic.name, each.partition_index),
                        each.error_code or answer.error_code,
                        None,
                        each.error_message or answer.error_message,
                    )

        altered = await self._ask(
            request,
            AlterPartitionReassignmentsResponse,
            read=read,
            about=str,
            at=CONTROLLER,
            timeout=timeout,
        )
        altered.all()

    async def unregister_broker(self, broker: int, *, timeout: float | None = None) -> None:
        """Have the cluster forget a broker that was stopped for good."""
        answer = await self.cluster.ask(
            UnregisterBrokerRequest(broker_id=broker),
            UnregisterBrokerResponse,
            at=CONTROLLER,
            timeout=timeout,
        )
        raise_for(answer.error_code, answer.error_message, f"broker {broker}")

    async def _any(self, timeout: float | None) -> Connection:
        await self.cluster.brokers(timeout=timeout)
        return await self.cluster.any_connection()


def _common(ranges: Sequence[tuple[int, int] | None]) -> tuple[int | None, int | None]:
    """The levels that are in all of these ranges."""
    known = [each for each in ranges if each is not None]
    lowest, highest = (
        max((each[0] for each in known), default=0),
        min((each[1] for each in known), default=-1),
    )
    return (lowest, highest) if len(known) == len(ranges) and lowest <= highest else (None, None)


def _listed(brokers: Sequence[int] | None) -> list[int] | None:
    return None if brokers is None else list(brokers)
