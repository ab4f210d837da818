"""More brokers die than `min.insync.replicas` allows: writes are refused, reads go on, and nothing that
was acknowledged is lost, in whichever order the brokers come back (eligible leaders, KIP-966)."""

from __future__ import annotations

import pytest
from cluster_kit.history import Outcome
from cluster_kit.scene import PARTITIONS, TOPIC, Scene, expect_no_anomaly, wait_until
from cluster_kit.workload import Workload
from cluster_kit.writer import Writers
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from ottla.protocol.errors import ErrorCode

ACKNOWLEDGED = {ErrorCode.NONE}
REFUSED = {ErrorCode.NOT_ENOUGH_REPLICAS}


def kill(scene: Scene, broker: int, alive: list[int]) -> None:
    """Until the others know that it is not in sync any more."""
    scene.cluster.kill(broker)

    def is_out() -> bool:
        view = scene.view(scene.address(*alive))
        return view is not None and all(
            broker not in each.in_sync and each.leader != -1 for each in view.partitions.values()
        )

    wait_until(f"broker {broker} is out of sync", is_out)


def leaders(scene: Scene, alone: int) -> set[int]:
    """Who leads the partitions, as the one broker that runs knows it, once it has missed the others."""
    found: set[int] = set()

    def look() -> bool:
        view = scene.view(scene.address(alone))
        if view is None or len(view.partitions) < PARTITIONS:
            return False
        found.clear()
        found.update(each.leader for each in view.partitions.values())
        return view.controller == alone and found <= {-1, alone}

    wait_until(f"broker {alone} knows that it is alone", look)
    return found


Offsets = set[tuple[int, int]]


def acknowledged(workload: Workload) -> Offsets:
    """Partition and offset of each record that is a promise by now."""
    with workload.history.lock:
        return {
            (each.partition, each.offset)
            for each in workload.history.writes
            if each.durable and each.outcome is Outcome.ACKNOWLEDGED and each.offset is not None
        }


def expect_readable(scene: Scene, offsets: Offsets) -> None:
    """A new reader finds these."""
    missing = set(offsets)
    consumer = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "new", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])

    def read() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                missing.discard((message.partition(), message.offset()))
        return not missing

    try:
        wait_until("all that was acknowledged is read", read)
    finally:
        consumer.close()


def die_and_return(
    scene: Scene, workload: Workload, victims: tuple[int, int, int], returning: tuple[int, int, int]
) -> None:
    """Brokers are killed in one order, so that each is missed before the next one dies, and started in
    another."""
    first, second, last = victims
    kill(scene, first, [second, last])
    workload.wait_for_progress()
    before = acknowledged(workload)
    together = Writers(scene, workload, f"together-{victims}", acks=-1)
    # With a later record comes the news that what was before it is committed.
    assert together.write() == ACKNOWLEDGED
    kill(scene, second, [last])

    # One of three, where two are asked for.
    together.look()
    assert together.write() == REFUSED
    expect_readable(scene, before)
    # acks=1 is taken, and promises nothing: no reader is shown it before others have it.
    alone = Writers(scene, workload, f"alone-{victims}", acks=1)
    committed = alone.high_watermarks()
    assert alone.write(durable=False) == ACKNOWLEDGED
    assert alone.high_watermarks() == committed

    scene.cluster.kill(last)
    scene.cluster.start([returning[0]])
    if returning[0] == first:
        # It left before the others did, and lacks what they acknowledged without it.
        assert leaders(scene, first) == {-1}
    else:
        wait_until("it leads", lambda: leaders(scene, returning[0]) == {returning[0]})
        together.look()
        assert together.write() == REFUSED
    for broker in returning[1:]:
        scene.cluster.start([broker])
    workload.wait_for_progress()
    scene.wait_until_in_sync()
    together.look()
    assert together.write() == ACKNOWLEDGED


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_after_another_dies_and_they_return_in_any_order(scene: Scene) -> None:
    one, two, three = scene.numbers
    with scene.workload() as workload:
        workload.wait_for_progress()
        # Who died first returns first: nobody may lead before one of the others is back.
        die_and_return(scene, workload, (one, two, three), (one, two, three))
        # Who led alone returns first.
        die_and_return(scene, workload, (two, three, one), (one, two, three))
        # Who died second: what the last one took alone was acknowledged with acks=1 at most.
        die_and_return(scene, workload, (three, one, two), (one, three, two))
    expect_no_anomaly(workload)
