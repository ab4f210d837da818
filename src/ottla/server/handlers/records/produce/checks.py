"""What must hold before a partition's records go to its log, in this order for every request.

0. The client may write to the topic, and there is such a partition (`Produce.append`).
1. The partition is led here, surely so where this broker is to acknowledge alone, and clients may write
   to it (`check_open`); the request asks for an acknowledgement that there is, and enough replicas are
   in sync.
2. The records are one batch of the version's format, small enough, undamaged, and a producer's
   (`check_produced`: the header and the CRC32C).
3. The codec is one that the version knows; a transactional batch belongs to a transaction.
4. What is inside the batch: every record (`record_checks`).
5. The log's own: the producer's epoch and sequence (`Log.prepare`).

Nothing has been changed in the log until all of it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BATCH_LENGTH,
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    check_produced,
)
from ottla.record.compression.codecs import Codec
from ottla.record.errors import (
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    Truncated,
    UnsupportedMagic,
)
from ottla.server.handlers.records.produce.request import FIRST_FORMAT_2
from ottla.storage.errors import RecordTooLarge

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields
    from ottla.replication.partition import Partition
    from ottla.server.handlers.records.produce.transactions import Verification

NO_ACKS, LEADER_ACKS, ALL_ACKS = 0, 1, -1
FIRST_ZSTD = 7
# The client that Kafka lets write to internal topics: its own administration tools.
ADMIN_CLIENT_ID = "__admin_client"

_ACKS = (LEADER_ACKS, ALL_ACKS, NO_ACKS)
ZSTD = int(Codec.ZSTD)


def check_open(target: Partition, broker_id: int, client_id: str) -> None:
    """Whether a client may write to the partition here at all."""
    if target.leader != broker_id:
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if target.internal and client_id != ADMIN_CLIENT_ID:
        raise ProtocolError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics are the broker's own"
        )


def check(
    target: Partition,
    records: memoryview,
    version: int,
    acks: int,
    verification: Verification | None,
) -> HeaderFields | None:
    """The header of the batch, which may be appended as far as can be said before its inside is
    looked at; None for a message set of an old format. ProtocolError, InvalidBatch, AppendRefused.

    `verification`: of the request's transaction; None if it names none.
    """
    if acks not in _ACKS:
        raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS)
    if target.under_min_isr and acks == ALL_ACKS:
        raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS)
    size = len(records)
    if version < FIRST_FORMAT_2:
        if not size:
            raise InvalidRecord("the request has no messages")
        if size > MAGIC_AT and records[MAGIC_AT] > 1:
            raise InvalidRecord(f"format {records[MAGIC_AT]} in Produce v{version}")
        return None
    if size < HEADER_SIZE:
        raise InvalidRecord("the request has no batch")
    if size > target.config.max_message_bytes:
        # Also of batches that would be smaller once they are recompressed.
        raise RecordTooLarge(size, target.config.max_message_bytes)
    try:
        fields = check_produced(records)
    except InvalidBatch as error:
        raise _refusal(error, records, version, verification) from None
    if fields[BATCH_LENGTH] + LENGTH_OVERHEAD != size:
        raise InvalidRecord("more than one batch for a partition")
    attributes = fields[ATTRIBUTES]
    if attributes:
        if attributes & CODEC_MASK == ZSTD and version < FIRST_ZSTD:
            raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if attributes & TRANSACTIONAL_BIT:
            if verification is None:
                raise ProtocolError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            verification.check(target, fields[PRODUCER_ID])
    return fields


def _refusal(
    error: InvalidBatch, records: memoryview, version: int, verification: Verification | None
) -> Exception:
    """Why a batch is refused whose header or checksum is wrong, in Kafka's words."""
    magic = records[MAGIC_AT]
    if isinstance(error, UnsupportedMagic):
        known = f"format {magic} in Produce v{version}"
        return InvalidRecord(known) if magic < MAGIC else CorruptBatch(known)
    if isinstance(error, Truncated):
        # Kafka finds no batch at all then.
        return InvalidRecord(error.reason)
    is_transactional = records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT
    if is_transactional and verification is None and isinstance(error, InvalidRecord):
        return ProtocolError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return error
