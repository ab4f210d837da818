"""Work on the records inside batches that costs too much for the event loop.

Both functions take one batch and give plain values, and their errors can be pickled, so that the
server can run them in a worker process.
"""

from __future__ import annotations

from ottla.record.batch import (
    CODEC_MASK,
    BatchHeader,
    Buffer,
    assemble,
    contents,
    one_header,
    parse_records,
)
from ottla.record.codecs import DEFAULT_LIMIT, compress
from ottla.record.errors import InvalidRecord, TimestampOutOfRange

# Of a record whose producer gave it no time.
NO_TIMESTAMP = -1


def validate_records(
    batch: Buffer,
    limit: int = DEFAULT_LIMIT,
    *,
    keys_required: bool = False,
    not_before: int | None = None,
) -> None:
    """Read every record of the batch, and raise InvalidBatch if one is not as it should be.

    `keys_required` refuses records without a key: a compacted topic cannot hold them. `not_before`
    refuses timestamps earlier than that (a record without one has none to refuse).
    """
    view = memoryview(batch)
    header = one_header(view)
    _read_all(contents(view, header, limit), header, keys_required, not_before)


def recompress(
    batch: Buffer, codec: int, level: int | None = None, limit: int = DEFAULT_LIMIT
) -> bytes:
    """The batch with its records in another codec and all else as it was; records are validated.

    A batch that has the codec already is packed anew only if a level is asked for.
    """
    view = memoryview(batch)
    header = one_header(view)
    data = contents(view, header, limit)
    _read_all(data, header)
    if header.record_count == 0 or (codec == header.codec and level is None):
        return bytes(view)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, data, level))


def _read_all(
    data: bytes, header: BatchHeader, keys_required: bool = False, not_before: int | None = None
) -> None:
    for record in parse_records(data, header):
        if keys_required and record.key is None:
            raise InvalidRecord(f"the record at {record.offset - header.base_offset} has no key")
        if not_before is not None and NO_TIMESTAMP != record.timestamp < not_before:
            raise TimestampOutOfRange(
                f"the record at {record.offset - header.base_offset} has the timestamp "
                f"{record.timestamp}, and the earliest that is allowed is {not_before}"
            )
