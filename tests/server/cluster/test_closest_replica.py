"""Consumers read from the replica in their rack (KIP-392): what a leader and a follower answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fetch_request, fill, offsets_of, produce
from server_kit.wire import Wire

from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import ClusterImage, RegisteredBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchResponse, PartitionData, ReplicaState
from ottla.replication.partition import Partition
from ottla.server.broker import Broker

OWN_RACK = "a"
# The brokers with the other replicas, and where they stand.
RACKS = {77: "b", 78: "b", 79: "c"}
EPOCH = 5
FIRST_FROM_FOLLOWERS = 11


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {
        "broker.rack": OWN_RACK,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with BrokerThread(tmp_path_factory.mktemp("racks") / "data", settings=settings) as running:
        yield running


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Which of the other brokers are alive: all, at first."""
    numbers = set(RACKS)

    def image(membership: Membership) -> ClusterImage:
        known = membership.follower.image
        others = {
            each: RegisteredBroker(id=each, epoch=1, rack=RACKS[each], endpoints=())
            for each in numbers
        }
        return replace(known, brokers={**known.brokers, **others})

    monkeypatch.setattr(Membership, "image", property(image))
    return numbers


def partition_of(broker: Broker, topic: Topic) -> Partition:
    return broker.partitions.by_name[topic.name][0]


def set_state(
    broker: Broker, topic: Topic, *, isr: tuple[int, ...], leader: int, epoch: int = EPOCH
) -> None:
    state = broker.image.topics[topic.name].partitions[0]
    partition = partition_of(broker, topic)
    newer = replace(
        state,
        replicas=(broker.id, *RACKS),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition.partition_epoch + 1,
    )
    partition.update(newer, 0)


@pytest.fixture
def topic(inside: BrokerThread, wire: Wire, alive: set[int]) -> Topic:
    """Six records, led here; the followers in rack b have five and four of them, the one in c all."""
    made = create_topic(wire)
    fill(wire, made, *(batch_of(b"%d" % each) for each in range(4)))

    def fetched(broker: Broker) -> None:
        for follower, end in ((77, 5), (78, 4), (79, 6)):
            partition_of(broker, made).fetched(follower, end, 1, 0)

    inside.run(lambda broker: set_state(broker, made, isr=(broker.id, *RACKS), leader=broker.id))
    for value in (b"4", b"5"):
        assert produce(wire, made, batch_of(value), acks=1).error_code == 0
    inside.run(fetched)
    return made


def fetch(
    wire: Wire, topic: Topic, offset: int, rack: str, *, version: int = 17, replica: int = -1
) -> PartitionData:
    request = fetch_request(topic, (0, offset), current_leader_epoch=EPOCH)
    request.rack_id = rack
    if replica >= 0:
        request.replica_state = ReplicaState(replica_id=replica, replica_epoch=1)
    (answer,) = wire.call(request, FetchResponse, version).responses[0].partitions
    return answer


# At the leader ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [FIRST_FROM_FOLLOWERS, 12, 17])
def test_a_consumer_is_sent_to_the_replica_in_its_rack(
    wire: Wire, topic: Topic, version: int
) -> None:
    found = fetch(wire, topic, 2, "b", version=version)
    assert (found.error_code, found.preferred_read_replica) == (0, 77), (
        "of two the one that has more"
    )
    assert not found.records, "it is to read there, not here"
    assert fetch(wire, topic, 2, "c", version=version).preferred_read_replica == 79


@pytest.mark.parametrize("rack", [OWN_RACK, "elsewhere", ""])
def test_a_consumer_without_a_closer_replica_reads_from_the_leader(
    wire: Wire, topic: Topic, rack: str
) -> None:
    found = fetch(wire, topic, 2, rack)
    assert (found.error_code, found.preferred_read_replica) == (0, -1)
    assert offsets_of(found.records) == [2, 3]


def test_a_follower_that_is_behind_is_no_place_to_read(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    assert fetch(wire, topic, 5, "b").preferred_read_replica == 77
    # Neither of the two has offset 5 yet, which comes next.
    found = fetch(wire, topic, 6, "b")
    assert (found.error_code, found.preferred_read_replica) == (0, -1)
    inside.run(lambda broker: partition_of(broker, topic).fetched(78, 6, 1, 0))
    assert fetch(wire, topic, 6, "b").preferred_read_replica == 78
    assert fetch(wire, topic, 7, "b").error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_that_has_deleted_more_is_no_place_to_read(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    """Replicas delete old segments each by its own clock."""
    inside.run(lambda broker: partition_of(broker, topic).fetched(77, 5, 1, 0, start_offset=3))
    assert fetch(wire, topic, 2, "b").preferred_read_replica == 78
    assert fetch(wire, topic, 3, "b").preferred_read_replica == 77


def test_a_follower_out_of_sync_is_no_place_to_read(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    def leave(broker: Broker) -> None:
        set_state(broker, topic, isr=(broker.id, 78, 79), leader=broker.id)

    inside.run(leave)
    assert fetch(wire, topic, 2, "b").preferred_read_replica == 78


def test_a_follower_that_is_away_is_no_place_to_read(
    wire: Wire, topic: Topic, alive: set[int]
) -> None:
    """The others know that its broker is gone before the leader knows that it is out of sync."""
    alive.remove(77)
    assert fetch(wire, topic, 2, "b").preferred_read_replica == 78
    alive.remove(78)
    found = fetch(wire, topic, 2, "b")
    assert (found.preferred_read_replica, offsets_of(found.records)) == (-1, [2, 3])


def test_replicas_and_older_consumers_are_sent_nowhere(wire: Wire, topic: Topic) -> None:
    found = fetch(wire, topic, 2, "b", replica=79)
    assert (found.preferred_read_replica, offsets_of(found.records)) == (-1, [2, 3, 4, 5])
    old = fetch(wire, topic, 2, "b", version=FIRST_FROM_FOLLOWERS - 1)
    assert (old.preferred_read_replica, offsets_of(old.records)) == (-1, [2, 3])


def test_nobody_is_sent_anywhere_unless_that_is_configured(
    start_broker: Callable[..., BrokerThread], alive: set[int]
) -> None:
    plain = start_broker(settings={"broker.rack": OWN_RACK})
    with plain.wire() as wire:
        made = create_topic(wire)
        fill(wire, made, batch_of(b"0"))

        def lead(broker: Broker) -> None:
            set_state(broker, made, isr=(broker.id, *RACKS), leader=broker.id)
            partition_of(broker, made).fetched(77, 1, 1, 0)

        plain.run(lead)
        found = fetch(wire, made, 0, "b")
        assert (found.preferred_read_replica, offsets_of(found.records)) == (-1, [0])


# At a follower ---------------------------------------------------------------------------------------


@pytest.fixture
def followed(inside: BrokerThread, topic: Topic) -> Topic:
    """The same partition, led by another broker, its high watermark at 4."""
    inside.run(
        lambda broker: set_state(broker, topic, isr=(broker.id, *RACKS), leader=79, epoch=EPOCH + 1)
    )
    return topic


def fetch_of_follower(wire: Wire, topic: Topic, offset: int, **options: int) -> PartitionData:
    """As a consumer that knows of the leader's term."""
    request = fetch_request(topic, (0, offset), current_leader_epoch=EPOCH + 1)
    request.rack_id = OWN_RACK
    replica = options.get("replica", -1)
    if replica >= 0:
        request.replica_state = ReplicaState(replica_id=replica, replica_epoch=1)
    version = options.get("version", 17)
    (answer,) = wire.call(request, FetchResponse, version).responses[0].partitions
    return answer


@pytest.mark.parametrize("version", [FIRST_FROM_FOLLOWERS, 17])
def test_a_follower_serves_consumers_what_is_committed(
    wire: Wire, followed: Topic, version: int
) -> None:
    found = fetch_of_follower(wire, followed, 2, version=version)
    assert (found.error_code, found.high_watermark) == (0, 4)
    assert offsets_of(found.records) == [2, 3]
    assert found.preferred_read_replica == -1
    # Beyond what it knows to be committed, and within what it has: nothing yet, and no error.
    found = fetch_of_follower(wire, followed, 5, version=version)
    assert (found.error_code, len(found.records or b"")) == (0, 0)


def test_a_follower_refuses_replicas_and_older_consumers(wire: Wire, followed: Topic) -> None:
    for options in ({"replica": 77}, {"version": FIRST_FROM_FOLLOWERS - 1}):
        refused = fetch_of_follower(wire, followed, 2, **options)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_consumer_beyond_a_followers_log_is_told_so(wire: Wire, followed: Topic) -> None:
    """It goes back to the leader, as it does after every error."""
    assert fetch_of_follower(wire, followed, 7).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
