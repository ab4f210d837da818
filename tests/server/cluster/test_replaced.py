"""A broker in whose place another process stands, with the same number."""

from __future__ import annotations

from dataclasses import replace

from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fill, produce
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.replication.partition import Role
from ottla.server.broker import Broker


def elect_its_number(broker: Broker, topic: Topic) -> None:
    """The cluster elects the broker with this number, alone, in the next term."""
    image = broker.image
    known = image.topics[topic.name]
    (state,) = known.partitions
    newer = replace(
        state, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
    )
    elected = replace(known, partitions=(newer,))
    broker.membership.follower.publish(
        replace(
            image,
            topics={**image.topics, topic.name: elected},
            topics_by_id={**image.topics_by_id, topic.id: elected},
        )
    )


def test_what_the_other_was_elected_for_is_led_by_nobody_here(
    inside: BrokerThread, wire: Wire
) -> None:
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"before"))
    epoch = inside.run(lambda broker: broker.membership.epoch)

    def role(broker: Broker) -> Role:
        return broker.partitions.by_name[topic.name][0].role

    def lose_session(broker: Broker) -> None:
        broker.membership.epoch = -1
        elect_its_number(broker, topic)

    def register(broker: Broker) -> None:
        broker.membership.epoch = epoch
        broker.membership.on_registered()

    inside.run(lose_session)
    assert inside.run(role) is Role.FOLLOWER
    refused = produce(wire, topic, batch_of(b"late"), acks=-1)
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # It was this broker itself that had registered again.
    inside.run(register)
    assert inside.run(role) is Role.LEADER
    assert fill(wire, topic, batch_of(b"in time")) == [1]
    # The number is registered by somebody else, and this broker finds out by the image only.
    inside.run(lambda broker: setattr(broker.membership, "epoch", epoch - 1))
    inside.run(lambda broker: broker._follow_or_not())
    assert inside.run(role) is Role.FOLLOWER
    inside.run(register)
    assert inside.run(role) is Role.LEADER
