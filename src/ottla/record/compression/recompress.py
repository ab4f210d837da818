"""Records in another codec: costs too much for the event loop, so a worker process does it."""

from __future__ import annotations

from ottla.record.batch import CODEC_MASK, Buffer, assemble, contents, one_header
from ottla.record.compression.codecs import DEFAULT_LIMIT, compress


def recompress(
    batch: Buffer, codec: int, level: int | None = None, limit: int = DEFAULT_LIMIT
) -> bytes:
    """The batch with its records in another codec and all else as it was; the records themselves are not
    looked at (`ottla.record.validation` has done that).

    A batch that has the codec already is packed anew only if a level is asked for.
    """
    view = memoryview(batch)
    header = one_header(view)
    data = contents(view, header, limit)
    if header.record_count == 0 or (codec == header.codec and level is None):
        return bytes(view)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, data, level))
