"""Records of a few hundred numbers: written for certain, and read back."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from cluster_kit.asking import ask
from cluster_kit.scene import PARTITIONS, TOPIC, Scene, wait_until


def write(scene: Scene, numbers: range) -> None:
    """One record for each number, acknowledged by all in sync."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": scene.bootstrap, "acks": "all", "log_level": 0})
    for number in numbers:
        producer.produce(
            TOPIC,
            str(number),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failures == []


def read(scene: Scene, count: int) -> list[int]:
    """The records of all partitions, from their beginning."""
    consumer = Consumer(
        {"bootstrap.servers": scene.bootstrap, "group.id": "nobody's", "log_level": 0}
    )
    found: list[int] = []
    consumer.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])

    def all_there() -> bool:
        messages = consumer.consume(count, 0.5)
        found.extend(int(each.value()) for each in messages if each.error() is None)
        return len(found) >= count

    try:
        wait_until(f"{count} records", all_there)
    finally:
        consumer.close()
    return sorted(found)


def leave_alone_in_sync(scene: Scene, broker: int) -> None:
    """Kills the others: in the end one is the only one in sync, and leads everything. The others are
    eligible (KIP-966) if the topic wants more than one in sync."""
    for other in scene.numbers:
        if other != broker:
            scene.cluster.kill(other)

    def leads_alone() -> bool:
        view = ask(scene.address(broker), TOPIC)
        return view is not None and all(
            each.in_sync == {broker} and each.leader == broker for each in view.partitions.values()
        )

    wait_until(f"broker {broker} is the only one in sync", leads_alone)
