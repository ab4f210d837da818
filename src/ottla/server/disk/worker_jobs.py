"""What worker processes are asked to do: bytes in, bytes out.

Imported by the processes themselves, so it stays clear of the server's other modules.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.record.batch import check_produced, headers
from ottla.record.compression.codecs import Codec
from ottla.record.compression.recompress import recompress
from ottla.record.legacy import downgrade, upgrade
from ottla.record.validation.checking import Rules, check_and_correct

__all__ = ["check_produced_batch", "downgrade", "in_memory_file", "repack", "upgrade_messages"]


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


def repack(batch: bytes, codec: int, level: int | None, limit: int) -> bytes:
    """A batch whose records have been checked, with the codec that its topic asks for."""
    return recompress(batch, codec, level, limit)


def check_produced_batch(batch: bytes, rules: Rules, now_ms: int, limit: int) -> bytes:
    """Check every record of a produced batch; the batch, with its header corrected."""
    buffer = memoryview(bytearray(batch))
    check_and_correct(buffer, check_produced(buffer), rules, now_ms, limit)
    return bytes(buffer)


def upgrade_messages(
    messages: bytes,
    compression_type: str,
    levels: dict[int, int | None],
    rules: Rules,
    now_ms: int,
    limit: int,
) -> bytes:
    """A message set of an old client as batches of the current format, as their topic wants them."""
    batches = upgrade(messages, limit)
    prepared = []
    for at, header in headers(batches):
        batch = check_produced_batch(bytes(batches[at : at + header.size]), rules, now_ms, limit)
        codec = target_codec(compression_type, header.codec)
        if codec != header.codec:
            batch = repack(batch, codec, levels[codec], limit)
        prepared.append(batch)
    return b"".join(prepared)
