"""Looking through a topic for the records with one key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from ottla.client.consumer.asynchronous import AsyncConsumer


async def find_key(
    consumer: AsyncConsumer,
    topic: str,
    key: bytes,
    seen: Callable[[int], object] | None = None,
) -> dict[int, OffsetSet]:
    """The offsets of a topic's records with this key, by partition: all are looked at, for somebody may
    have put such a record anywhere. `seen` is told how many records were looked at each time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[int, OffsetSet] = {}
    columns = ("partition", "offset", "key")
    async with await consumer.scan(topic, columns=columns) as scan:
        async for rows in scan:
            keys = rows.column("key")
            hits = rows.filter(pc.equal(keys, pa.scalar(key, keys.type)))
            places = (hits.column(name).to_pylist() for name in columns[:2])
            for partition, offset in zip(*places, strict=True):
                found.setdefault(partition, OffsetSet()).add(offset, offset + 1)
            if seen is not None:
                seen(rows.num_rows)
    return found
