"""Headers of batches, for what looks at nothing else."""

from __future__ import annotations

from ottla.record.batch import TRANSACTIONAL_BIT, BatchHeader


def batch(
    producer_id: int = 1,
    epoch: int = 0,
    sequence: int = 0,
    records: int = 1,
    *,
    transactional: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        last_offset_delta=records - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )
