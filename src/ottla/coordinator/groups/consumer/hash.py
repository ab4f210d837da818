"""The hash by which a consumer group sees that its topics changed.

It is stored with the group's epoch. A topic's hash covers its id, its name, its number of partitions
and the racks that hold them; a group's hash covers the hashes of its topics, in the order of their
names. XXH3 with 64 bits, over the same bytes as in Kafka: a group that moves from one to the other
does not rebalance for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.coordinator.metadata_view import MetadataView

# The version of the scheme.
_MAGIC: Final = b"\0"
_pack_int = Struct("<i").pack
_pack_long = Struct("<q").pack


class TopicHashes:
    """Hashes of the topics that were asked for. Each is computed once for a version of the metadata."""

    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata
        self._version = -1
        self._hashes: dict[str, int | None] = {}

    def of_group(self, topics: Iterable[str]) -> int:
        """Topics that do not exist count for nothing; 0 if none does."""
        if self._metadata.version != self._version:
            self._version = self._metadata.version
            self._hashes.clear()
        # Kafka compares Java's strings, by their halves of UTF-16; names of topics are ASCII.
        found = [each for each in map(self._of_topic, sorted(topics)) if each is not None]
        return _hash(b"".join(map(_pack_long, found))) if found else 0

    def _of_topic(self, name: str) -> int | None:
        if name not in self._hashes:
            self._hashes[name] = topic_hash(self._metadata, name)
        return self._hashes[name]


def topic_hash(metadata: MetadataView, name: str) -> int | None:
    """The hash of a topic; None if there is no such topic."""
    topic_id = metadata.topic_id(name)
    if topic_id is None:
        return None
    count = metadata.partition_count(name)
    # The halves of the id as numbers, which are then written the other way round.
    parts = [_MAGIC, topic_id[7::-1], topic_id[:7:-1], _text(name), _pack_int(count)]
    for partition in range(count):
        parts.append(_pack_int(partition))
        for rack in sorted(metadata.racks(name, partition)):
            parts += (_pack_int(_length(rack)), _text(rack))
    return _hash(b"".join(parts))


def _length(text: str) -> int:
    """The length as Java counts it, in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(text: str) -> bytes:
    encoded = text.encode("utf-16-le", "surrogatepass")
    return encoded + _pack_int(len(encoded) // 2)


def _hash(data: bytes) -> int:
    # Imported on first use: a broker without such groups does without it.
    from xxhash import xxh3_64_intdigest

    value = xxh3_64_intdigest(data)
    return value - (1 << 64) if value >= 1 << 63 else value
