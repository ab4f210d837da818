"""The face that every client shows to the tests, whatever language it is written in.

A client says what it can do (`codecs`, `abilities`); the tests ask it for no more. What all of them
do: write records to given partitions, and read a number of records of one partition from a place.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from interop_kit.records import Headers, Record

ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_TIMEOUT = 30.0


class Ability(enum.Enum):
    CREATE = "creates topics through the admin API"
    HEADERS = "writes and reads headers"
    NULL_HEADERS = "tells a null header value from an empty one"
    REPEATED_HEADERS = "keeps headers of one name, in their places"
    TIMESTAMPS = "lets the writer choose the timestamp"
    NULL_VALUES = "writes and reads null values, apart from empty ones"
    NULL_KEYS = "writes and reads null keys, apart from empty ones"
    EMPTY_RECORDS = "writes records with neither key nor value"
    BINARY = "carries any bytes"
    OFFSETS = "tells the first and the next offset of a partition"
    TIME = "looks offsets up by time"
    IDEMPOTENCE = "has an idempotent producer"
    READ = "reads without a consumer group"
    GROUP_READ = "reads as a member of a consumer group only"


A = Ability
EVERYTHING = frozenset(A) - {A.GROUP_READ}


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: at the earliest record, at an offset, or at a time."""

    offset: int | None = None
    time: int | None = None

    def to_json(self) -> dict[str, int]:
        if self.offset is not None:
            return {"offset": self.offset}
        if self.time is not None:
            return {"time": self.time}
        return {}


EARLIEST = Start()


class Client(abc.ABC):
    # Set from the table in registry.py.
    name: str
    codecs: frozenset[str]
    abilities: frozenset[Ability]
    unreadable: frozenset[Ability]

    @abc.abstractmethod
    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None: ...

    @abc.abstractmethod
    def produce(
        self,
        topic: str,
        records: list[Record],
        codec: str = "none",
        *,
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Write the records, as few batches as the client can; the offset each of them got.

        With acks="0" no offset is known and -1 stands for each.
        """

    @abc.abstractmethod
    def consume(
        self, topic: str, partition: int, count: int, start: Start = EARLIEST
    ) -> list[Record]:
        """Up to `count` records from `start` on; fewer only when nothing more came in time."""

    @abc.abstractmethod
    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the next offset."""

    @abc.abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first offset whose record is not older; None (the end) when there is none."""

    @abc.abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    def close(self) -> None:  # noqa: B027  (most clients hold nothing open between two calls)
        """Let go of connections and processes."""

    def can(self, *abilities: Ability) -> bool:
        return self.abilities.issuperset(abilities)


def carried(records: list[Record], writer: Client) -> list[Record]:
    """The records reduced to what this client can write: kinds that it has no way to express are
    left out, timestamps that it cannot choose are None."""
    kept = []
    for record in records:
        if not record.value and not writer.can(A.NULL_VALUES):
            continue
        if not record.key and not writer.can(A.NULL_KEYS):
            continue
        if record.key is record.value is None and not writer.can(A.EMPTY_RECORDS):
            continue
        if record.headers and not writer.can(A.HEADERS):
            continue
        if any(value is None for _, value in record.headers) and not writer.can(A.NULL_HEADERS):
            continue
        names = [name for name, _ in record.headers]
        if len(set(names)) < len(names) and not writer.can(A.REPEATED_HEADERS):
            continue
        if not is_text(record) and not writer.can(A.BINARY):
            continue
        kept.append(record if writer.can(A.TIMESTAMPS) else replace(record, timestamp=None))
    return kept


def as_seen_by(records: list[Record], reader: Client) -> list[Record]:
    """The records without what this client does not show of them."""
    if A.HEADERS in reader.unreadable:
        records = [replace(record, headers=()) for record in records]
    if A.REPEATED_HEADERS in reader.unreadable:
        records = [replace(record, headers=gathered(record.headers)) for record in records]
    if A.TIMESTAMPS in reader.unreadable:
        records = [replace(record, timestamp=None) for record in records]
    return records


def gathered(headers: Headers) -> Headers:
    """Headers of one name side by side, where the first of them was."""
    names = dict.fromkeys(name for name, _ in headers)
    return tuple(header for name in names for header in headers if header[0] == name)


def is_text(record: Record) -> bool:
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    try:
        text = "".join(part.decode() for part in parts if part is not None)
    except UnicodeDecodeError:
        return False
    return text.isprintable()
