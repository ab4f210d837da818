"""What worker processes are asked to do: bytes in, bytes out.

Imported by the processes themselves, so it stays clear of the server's other modules.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.record.batch import check_batch, headers
from ottla.record.codecs import Codec
from ottla.record.legacy import downgrade, upgrade
from ottla.record.recompress import recompress, validate_records

__all__ = ["downgrade", "in_memory_file", "prepare_batch", "upgrade_messages"]


def in_memory_file(job: Callable[[bytes], bytes], path: str, size: int) -> int:
    """Do a job on what a file holds and leave the result there; how long that is."""
    with open(path, "r+b", buffering=0) as file:
        data = file.read(size)
        if len(data) != size:
            raise OSError(f"{path} holds {len(data)} of {size} bytes")
        result = memoryview(job(data))
        file.seek(0)
        written = 0
        while written < len(result):
            written += file.write(result[written:])
    return len(result)


def target_codec(compression_type: str, codec: int) -> int:
    """The codec a batch is stored with: its producer's, unless the topic names another."""
    if compression_type == "producer":
        return codec
    return Codec.NONE if compression_type == "uncompressed" else Codec[compression_type.upper()]


def prepare_batch(
    batch: bytes, codec: int, level: int | None, keyed: bool, not_before: int | None, limit: int
) -> bytes:
    """Check every record of a produced batch, and pack it with the codec that its topic asks for."""
    header = check_batch(batch)
    if keyed or not_before is not None:
        validate_records(batch, limit, keys_required=keyed, not_before=not_before)
    if header.codec == codec:
        return batch
    return recompress(batch, codec, level, limit)


def upgrade_messages(
    messages: bytes,
    compression_type: str,
    levels: dict[int, int | None],
    keyed: bool,
    not_before: int | None,
    limit: int,
) -> bytes:
    """A message set of an old client as batches of the current format, as their topic wants them."""
    batches = upgrade(messages, limit)
    if compression_type == "producer" and not keyed and not_before is None:
        return bytes(batches)
    prepared = []
    for at, header in headers(batches):
        codec = target_codec(compression_type, header.codec)
        batch = bytes(batches[at : at + header.size])
        prepared.append(prepare_batch(batch, codec, levels[codec], keyed, not_before, limit))
    return b"".join(prepared)
