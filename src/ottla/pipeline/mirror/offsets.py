"""Which offset of the target an offset of the source became.

Records get new offsets when they are mirrored. After every batch a *boundary* is kept for each
partition: all records of the source before `source` are records of the target before `target`, and all
the others come after it. The boundaries are records of a compacted topic of the target cluster, with
places (keys) for the last `KEPT` of a partition and one for its first, so the topic stays small.

An offset is translated to that of the last boundary at or before it. So a group that goes on there
misses nothing, and reads again what it had of the batch it was in.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right, insort
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.admin.client import Admin
from ottla.client.consumer import Consumer
from ottla.client.errors import TopicExists
from ottla.client.positions import TopicPartition
from ottla.client.producer import Producer

TOPIC: Final = "ottla-mirror-offsets"
KEPT: Final = 4096  # boundaries of a partition
_SETTINGS: Final = {"cleanup.policy": "compact"}


class Boundary(NamedTuple):
    """An offset of the source, and the one of the target that it corresponds to.

    Both grow from one boundary to the next.
    """

    source: int
    target: int


class Boundaries:
    """The boundaries of what comes from one cluster, in memory and in the target's topic."""

    def __init__(self, cluster: str, target: Mapping[str, str]) -> None:
        """`cluster` is the id of the source cluster, `target` the client's options for the target."""
        self._cluster = cluster
        self._target = dict(target)
        self._known: dict[TopicPartition, list[Boundary]] = {}
        self._added: dict[TopicPartition, int] = {}  # how many were ever added, by partition
        self._lock = threading.Lock()  # of what is known: groups are translated by another thread

    def load(self) -> None:
        """Make the topic if there is none, and read it."""
        with Admin(self._target) as admin:
            try:
                admin.create_topic(TOPIC, 1, settings=_SETTINGS)
            except TopicExists:
                pass
        with Consumer(self._target) as consumer:
            table = consumer.read(TOPIC, columns=["key", "value"])
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            cluster, topic, partition, _ = json.loads(key)
            if cluster == self._cluster and value is not None:
                kept = json.loads(value)
                place = TopicPartition(topic, partition)
                self._keep(place, Boundary(kept["source"], kept["target"]))
                self._added[place] = max(self._added.get(place, 0), kept["number"] + 1)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._known

    def reached(self, partition: TopicPartition) -> int | None:
        """The offset of the source up to which the target has all; None: nothing was mirrored."""
        known = self._known.get(partition)
        return known[-1].source if known else None

    def add(self, boundaries: Mapping[TopicPartition, Boundary]) -> None:
        """Keep boundaries; they are written when this returns. What is known is not written again."""
        new = {
            partition: boundary
            for partition, boundary in boundaries.items()
            if boundary not in self._known.get(partition, ())
        }
        if not new:
            return
        with Producer(self._target) as producer:
            for partition, boundary in new.items():
                number = self._added.get(partition, 0)
                # The first has a place of its own, so that it is never lost.
                place = number % KEPT if number else -1
                key = json.dumps([self._cluster, *partition, place])
                value = json.dumps({**boundary._asdict(), "number": number})
                producer.send(TOPIC, value.encode(), key=key.encode())
                self._added[partition] = number + 1
        for partition, boundary in new.items():
            self._keep(partition, boundary)

    def _keep(self, partition: TopicPartition, boundary: Boundary) -> None:
        with self._lock:
            known = self._known.setdefault(partition, [])
            if boundary not in known:
                insort(known, boundary)
            del known[1 : max(1, len(known) - KEPT)]

    def translate(self, partition: TopicPartition, offset: int) -> int | None:
        """Where a reader of the source that is at this offset goes on; None: nothing is known."""
        with self._lock:
            known = self._known.get(partition, [])
            number = bisect_right(known, offset, key=lambda each: each.source)
            return known[number - 1].target if number else None
