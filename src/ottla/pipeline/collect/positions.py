"""How far each file was read: records of a compacted topic, written with the lines themselves.

A position counts if and only if the lines before it do, because both are part of one transaction. So
a collector that comes back, after a crash of its own or of a broker, finds exactly where to go on.

    key    NAME/TOPIC                    who collects: {"instance": …}, new for each start
           NAME/TOPIC/DEVICE:INODE       a file: a Place as JSON; nothing (null): forgotten

Why a topic, and not the offsets of a consumer group, which a transaction may carry as well: offsets
belong to partitions of topics that exist, and they expire when a group has been silent for a week. The
position of a file that is quiet for longer must not.

The topic is everybody's. Its last stable offset may be held back for a moment by the transaction of
another collector, and with it what this one committed last; so readers wait until all that was written
before they came is decided.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow.compute as pc

from ottla.client.admin.client import Admin
from ottla.client.consumer.blocking import Consumer
from ottla.client.errors import TimedOut, TopicExists, TopicNotFound
from ottla.client.offset_lookup import Isolation
from ottla.client.positions import TopicPartition

TOPIC: Final = "__ottla_collect"
PARTITION: Final = 0  # the only one: its order is that of the positions
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # A start reads all that was not compacted yet.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_LOOK_EVERY = 0.1  # seconds, while another's transaction is open


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file, and what shows that it is the same file still."""

    path: str  # where it was found first
    pattern: str  # what of the command line found it
    device: int
    inode: int
    position: int  # bytes that were sent
    part: int  # parts of the line at this position that were sent
    beginning: str  # a fingerprint of the first bytes
    before: str  # and of the last ones before the position

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode


class Positions:
    """The positions of one collector (`name`) in what it collects for one topic."""

    def __init__(self, name: str, topic: str) -> None:
        self._own = f"{name}/{topic}".encode()

    @property
    def owner_key(self) -> bytes:
        return self._own

    def key(self, place: tuple[int, int]) -> bytes:
        return b"%s/%d:%d" % (self._own, *place)

    def read(
        self, admin: Admin, options: Mapping[str, object], timeout: float
    ) -> tuple[str | None, dict[tuple[int, int], Place]]:
        """The instance that collected last, if any did, and the places of its files."""
        found = dict(self._committed(admin, options, timeout))  # the last of each key
        owner = found.pop(self._own, None)
        places = [Place(**json.loads(value)) for value in found.values() if value is not None]
        instance = None if owner is None else str(json.loads(owner)["instance"])
        return instance, {place.key: place for place in places}

    def _committed(
        self, admin: Admin, options: Mapping[str, object], timeout: float
    ) -> Iterator[tuple[bytes, bytes | None]]:
        end = _end(admin, "read_uncommitted")
        deadline = time.monotonic() + timeout
        while _end(admin, "read_committed") < end:
            if time.monotonic() > deadline:
                raise TimedOut(f"a transaction in {TOPIC}, of another collector, does not end")
            time.sleep(_LOOK_EVERY)
        with (
            Consumer(dict(options)) as consumer,
            consumer.scan(TOPIC, end={PARTITION: end}, columns=["key", "value"]) as batches,
        ):
            for batch in batches:
                own = batch.filter(pc.starts_with(batch.column("key"), self._own))
                for key, value in zip(*(column.to_pylist() for column in own.columns), strict=True):
                    if key == self._own or key.startswith(self._own + b"/"):
                        yield key, value


def written(place: Place) -> bytes:
    return json.dumps(asdict(place), separators=(",", ":")).encode()


def _end(admin: Admin, isolation: Isolation) -> int:
    where = TopicPartition(TOPIC, PARTITION)
    return admin.list_offsets({where: "latest"}, isolation=isolation)[where].offset or 0


def ensure_topic(admin: Admin) -> None:
    """Make the topic of the positions if it is not there."""
    try:
        admin.describe_topics(TOPIC)
    except TopicNotFound:
        with suppress(TopicExists):  # another collector was faster
            admin.create_topic(TOPIC, partitions=1, settings=_SETTINGS)
