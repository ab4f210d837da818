"""Control records: what a broker writes into a log for other brokers and for consumers to obey.

A control batch has the control bit set and one record. Its key is a version (int16) and a type
(int16); the end of a transaction has as its value a version (int16) and the epoch of the
coordinator that decided it (int32). Readers skip types that they do not know, and later versions
may append fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.record.batch import Record, build_batch
from ottla.record.errors import InvalidRecord

ABORT = 0
COMMIT = 1

_KEY = struct.Struct(">hh")  # version, type
_END_OF_TRANSACTION = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0


class EndOfTransaction(NamedTuple):
    """The marker that commits or aborts what its producer has written since the last one."""

    committed: bool
    coordinator_epoch: int


def control_type(record: Record) -> int:
    """The type of a control record: ABORT, COMMIT, or a number that the reader may not know."""
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidRecord("the key of a control record is too short")
    version, kind = _KEY.unpack_from(record.key)
    if version < _VERSION:
        raise InvalidRecord(f"a control record of version {version}")
    return int(kind)


def read_end_of_transaction(record: Record) -> EndOfTransaction | None:
    """The marker in a control record; None if it is a record of another type."""
    kind = control_type(record)
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _END_OF_TRANSACTION.size:
        raise InvalidRecord("the value of a transaction marker is too short")
    version, coordinator_epoch = _END_OF_TRANSACTION.unpack_from(record.value)
    if version < _VERSION:
        raise InvalidRecord(f"a transaction marker of version {version}")
    return EndOfTransaction(kind == COMMIT, coordinator_epoch)


def build_end_of_transaction(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction; it has no sequence, so it is never a duplicate."""
    key = _KEY.pack(_VERSION, COMMIT if committed else ABORT)
    value = _END_OF_TRANSACTION.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )
