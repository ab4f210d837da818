"""Replicas of brokers that stay away: who gets them, and when."""

from __future__ import annotations

from dataclasses import replace

from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.decisions.replacements import replacements
from ottla.cluster.metadata import ClusterImage, Endpoint, Partition, RegisteredBroker, Topic
from ottla.server.replication.replacing import brokers_away

ENDPOINT = Endpoint("PLAINTEXT", "host", 1, "PLAINTEXT")


def a_broker(broker_id: int, rack: str | None = None, *, leaving: bool = False) -> RegisteredBroker:
    return RegisteredBroker(broker_id, 10 * broker_id, rack, (ENDPOINT,), leaving=leaving)


def image_of(*partitions: Partition, brokers: tuple[RegisteredBroker, ...]) -> ClusterImage:
    topic = Topic("t", b"t" * 16, partitions)
    return ClusterImage(
        "cluster", 1, topics={"t": topic}, brokers={each.id: each for each in brokers}
    )


def a_partition(
    index: int, *replicas: int, leader: int = 1, adding: tuple[int, ...] = ()
) -> Partition:
    isr = tuple(each for each in replicas if each != 3)
    return Partition(index, replicas, isr, leader, adding=adding)


def test_a_replica_is_replaced_in_its_place_by_the_broker_with_the_fewest() -> None:
    image = image_of(
        a_partition(0, 3, 1, 2),
        a_partition(1, 1, 2, 4),
        a_partition(2, 1, 3, 2),
        brokers=tuple(a_broker(each) for each in (1, 2, 4, 5)),
    )
    assert replacements(image, {3}, 10) == [
        WantedMove("t", 0, (5, 1, 2)),
        WantedMove("t", 2, (1, 4, 2)),
    ]
    assert replacements(image, {3}, 1) == [WantedMove("t", 0, (5, 1, 2))]
    assert replacements(image, set(), 10) == []


def test_racks_come_before_numbers() -> None:
    brokers = (a_broker(1, "a"), a_broker(2, "b"), a_broker(4, "a"), a_broker(5, "c"))
    others = [a_partition(index, 5, 1) for index in range(1, 4)]
    image = image_of(a_partition(0, 1, 2, 3), *others, brokers=brokers)
    assert replacements(image, {3}, 10) == [WantedMove("t", 0, (1, 2, 5))]


def test_machines_come_before_numbers() -> None:
    """Brokers of one machine are lost together."""
    brokers = tuple(
        replace(a_broker(each), machine=machine)
        for each, machine in ((1, "a"), (2, "b"), (4, "a"), (5, "c"))
    )
    others = [a_partition(index, 5, 1) for index in range(1, 4)]
    image = image_of(a_partition(0, 1, 2, 3), *others, brokers=brokers)
    assert replacements(image, {3}, 10) == [WantedMove("t", 0, (1, 2, 5))]


def test_what_cannot_be_replaced_is_left() -> None:
    nobody_else = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2)))
    assert replacements(nobody_else, {3}, 10) == []
    brokers = (a_broker(1), a_broker(2), a_broker(4, leaving=True))
    assert replacements(image_of(a_partition(0, 1, 2, 3), brokers=brokers), {3}, 10) == []
    brokers = (a_broker(1), a_broker(2), a_broker(4))
    leaderless = image_of(a_partition(0, 1, 2, 3, leader=-1), brokers=brokers)
    assert replacements(leaderless, {3}, 10) == []
    moving = image_of(a_partition(0, 1, 2, 3, adding=(2,)), brokers=brokers)
    assert replacements(moving, {3}, 10) == []


def test_moves_under_way_count() -> None:
    brokers = tuple(a_broker(each) for each in (1, 2, 4))
    image = image_of(a_partition(0, 1, 2, 4, adding=(4,)), a_partition(1, 1, 2, 3), brokers=brokers)
    assert replacements(image, {3}, 1) == []
    assert len(replacements(image, {3}, 2)) == 1


def test_a_broker_has_its_time_and_has_it_again_after_it_was_back() -> None:
    without = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2)))
    with_all = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2), a_broker(3)))
    missed: dict[int, float] = {}
    assert brokers_away(without, missed, 100.0, 5.0) == set()
    assert brokers_away(without, missed, 104.9, 5.0) == set()
    assert brokers_away(with_all, missed, 104.95, 5.0) == set()
    assert brokers_away(without, missed, 106.0, 5.0) == set()
    assert brokers_away(without, missed, 111.0, 5.0) == {3}
