"""The protocol's error codes for what storage and the checks of a batch raise."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record import errors as record
from ottla.storage import errors as storage

# The first class that fits wins, so a subclass stands before its parent.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (record.UnsupportedMagic, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (record.TooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (record.WrongTimestampType, ErrorCode.INVALID_TIMESTAMP),
    (record.InvalidTimestamps, ErrorCode.INVALID_TIMESTAMP),
    (record.InvalidRecord, ErrorCode.INVALID_RECORD),
    (record.InvalidBatch, ErrorCode.CORRUPT_MESSAGE),
    (storage.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (storage.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (storage.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    # Clients send such a batch again, after the one that they have to send again anyhow.
    (storage.EarlierBatchAwaited, ErrorCode.NOT_ENOUGH_REPLICAS),
    (storage.DuplicateSequence, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    (storage.InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (storage.InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (storage.CoordinatorFenced, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (storage.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (storage.UndeletableOffset, ErrorCode.INVALID_REQUEST),
    (storage.UnknownLog, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (storage.TopicIdMismatch, ErrorCode.INCONSISTENT_TOPIC_ID),
    (storage.StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    (MemoryError, ErrorCode.KAFKA_STORAGE_ERROR),
)


# Clients send names of up to 32 KiB, which come back in what is said about them; a string on the wire
# holds no more than that.
LONGEST_MESSAGE = 1000


def error_message(error: Exception | None) -> str | None:
    """What a response says of an error beside its code."""
    if error is None:
        return None
    text = error.message if isinstance(error, ProtocolError) else str(error)
    return shortened(text) or None


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def let_go_of_frames(error: BaseException) -> None:
    """Cut an error off from where it was raised. Its traceback holds the frames that it passed, these
    hold the batch that was refused, and if one of them holds the error too, all of it stays until the
    garbage collector comes by."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        following = linked.__cause__ or linked.__context__
        linked.__cause__ = linked.__context__ = None
        linked = following


def error_code(error: Exception) -> ErrorCode:
    """The protocol's code for an exception that a log or a batch check raised."""
    if isinstance(error, ProtocolError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def record_errors(error: Exception) -> Sequence[tuple[int, str]]:
    """The records of a batch that are at fault, where the error names some: place and reason."""
    return error.records if isinstance(error, record.InvalidRecords) else ()
