"""A consumer in a process of its own, to be killed and stopped: it prints what it owns and reads.

    python consumer_process.py BOOTSTRAP GROUP TOPIC

Each line is `owns 0,1,2` (after a rebalance) or `read VALUE`.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, TopicPartition


def main() -> None:
    bootstrap, group, topic = sys.argv[1:]
    owned: set[int] = set()

    def tell() -> None:
        print("owns", ",".join(str(each) for each in sorted(owned)), flush=True)

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        owned.update(each.partition for each in partitions)
        tell()

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        owned.difference_update(each.partition for each in partitions)
        tell()

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 100,
        }
    )
    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
    while True:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            print("read", message.value().decode(), flush=True)


if __name__ == "__main__":
    main()
