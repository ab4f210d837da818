"""Consumers of confluent-kafka in threads of their own, which tell what they own and what they read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

# Of all consumers together: a test may wait for what two of them own.
CHANGED = threading.Condition()


class Member:
    """Polls until it is stopped; `owned` and `read` may be looked at any time."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        commit: bool = True,
        **settings: Any,
    ) -> None:
        self.owned: set[int] = set()
        self.read: list[bytes] = []
        self.rebalances = 0
        self._commit = commit
        self._ending: str | None = None
        wanted = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.ms": 20,
            "topic.metadata.refresh.interval.ms": 1000,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        if wanted.get("group.protocol") == "consumer":
            # These are the broker's to tell.
            del wanted["session.timeout.ms"], wanted["heartbeat.interval.ms"]
        self._consumer = Consumer(wanted)
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with CHANGED:
            self.owned |= {each.partition for each in partitions}
            self.rebalances += 1
            CHANGED.notify_all()

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with CHANGED:
            self.owned -= {each.partition for each in partitions}
            CHANGED.notify_all()

    def _poll(self) -> None:
        while self._ending is None:
            message = self._consumer.poll(0.05)
            if message is None or message.error():
                continue
            if self._commit:
                self._consumer.commit(message, asynchronous=False)
            with CHANGED:
                self.read.append(message.value())
                CHANGED.notify_all()
        if self._ending == "leave":
            self._consumer.close()

    def wait(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        with CHANGED:
            assert CHANGED.wait_for(condition, timeout), (self.owned, len(self.read))

    def leave(self) -> None:
        self._end("leave")

    def _end(self, how: str) -> None:
        self._ending = how
        self._thread.join(30)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ending is None:
            self.leave()


def produce(bootstrap: str, topic: str, values: dict[int, list[bytes]]) -> None:
    """Values for partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(20) == 0
