"""Load for the tests of consumers: numbered records at a steady pace, each written once."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

PATIENCE = 60.0


class Feeder:
    """Writes `partition/number` to all partitions in turn, from `start` until `stop`, over crashes."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]  # for each partition
        self._topic = topic
        self._pace = 1.0 / rate
        self._problems: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "message.timeout.ms": int(PATIENCE * 1000),
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._enough.clear()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Afterwards all that was sent is in the log."""
        if self._thread is None:
            return
        self._enough.set()
        self._thread.join()
        self._thread = None
        left = self._producer.flush(PATIENCE)
        assert not left, f"{left} records were not written"
        assert not self._problems, self._problems[:3]

    @property
    def total(self) -> int:
        return sum(map(len, self.sent))

    def _write(self) -> None:
        while not self._enough.is_set():
            for partition, sent in enumerate(self.sent):
                value = b"%d/%d" % (partition, len(sent))
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._delivered
                )
                sent.append(value)
            self._producer.poll(0)
            # A pace for the load; nothing is concluded from it.
            self._enough.wait(self._pace * len(self.sent))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._problems.append(str(error))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self._enough.set()
