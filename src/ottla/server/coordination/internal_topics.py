"""The topics in which coordinators keep their state: made when the first client needs one.

Their settings are Kafka's, so that its tools find what they expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.cluster.placement import machines
from ottla.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from ottla.server.broker import Broker
    from ottla.server.configuration.broker_config import BrokerConfig


async def ensure_internal_topic(broker: Broker, name: str) -> None:
    """Create the topic unless it is there. ProtocolError says why it could not be."""
    if name in broker.image.topics:
        return
    try:
        (result,) = await broker.changes.create_topics([_internal_topic(broker, name)])
    except ProtocolError as error:
        # Of the controller, which clients do not ask here.
        raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
    if result.error is not None and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.error.message)


def automatic_topic(broker: Broker, name: str) -> NewTopic:
    """A topic that is made because a client asked for its metadata. What a coordinator is going to keep
    its state in must not get the settings of any other topic, whoever asks for it first."""
    if name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        return _internal_topic(broker, name)
    return NewTopic(name)


def _internal_topic(broker: Broker, name: str) -> NewTopic:
    # A cluster's internal topics wait for as many brokers as they are to have replicas: one that
    # was made with fewer, because a broker came first, would stay so. Brokers that are away count, as
    # in Kafka: they get replicas, which are in sync once they are back.
    # Without a ZooKeeper there is one machine, and a second replica on it would protect from nothing.
    here = machines(broker.image.brokers.values())
    most = 1 << 15 if broker.config.zookeeper_connect else here
    return _describe(name, broker.config, most)


def _describe(name: str, config: BrokerConfig, brokers: int) -> NewTopic:
    if name == CONSUMER_OFFSETS:
        return NewTopic(
            name,
            config.offsets_topic_num_partitions,
            min(config.offsets_topic_replication_factor, brokers),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    assert name == TRANSACTION_STATE, name
    factor = min(config.transaction_state_log_replication_factor, brokers)
    return NewTopic(
        name,
        config.transaction_state_log_num_partitions,
        factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor)),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
