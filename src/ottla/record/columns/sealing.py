"""What is put into an encoded batch in the end: its producer, and the checksum over it all."""

from __future__ import annotations

from crc32c import crc32c

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL_BIT,
)


def set_producer(
    batch: memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Give an encoded batch its producer, when this is known only as it is sent."""
    attributes = int.from_bytes(batch[ATTRIBUTES_AT : ATTRIBUTES_AT + 2]) & CODEC_MASK
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    batch[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2)
    batch[PRODUCER_ID_AT : PRODUCER_ID_AT + 14] = (
        producer_id.to_bytes(8, signed=True)
        + producer_epoch.to_bytes(2, signed=True)
        + base_sequence.to_bytes(4, signed=True)
    )
    seal(batch)


def seal(batch: memoryview) -> None:
    """Write the checksum of what stands behind it."""
    batch[CRC_AT : CRC_AT + 4] = crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4)
