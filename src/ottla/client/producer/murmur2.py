"""Kafka's murmur2: the hash by which keys choose partitions, as the Java client computes it.

`murmur2` hashes one key, `murmur2_column` a whole Arrow column with numpy: it goes over all keys at
once, four bytes at a time, so that Python's part of the cost is per step of the longest key.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ottla.client.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np = lazy("numpy")

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
# Keys of a column are hashed in blocks, so that the numbers in work stay in the cache.
_BLOCK = 16_384


@lru_cache(maxsize=16_384)
def murmur2(key: bytes) -> int:
    """The hash as an unsigned 32-bit number. Keys repeat, so the last ones are remembered."""
    length = len(key)
    hashed = _SEED ^ length
    whole = length & ~3
    for word in memoryview(key[:whole]).cast("I") if _LITTLE else _words(key, whole):
        word = word * _M & _MASK
        word ^= word >> _R
        hashed = (hashed * _M & _MASK) ^ (word * _M & _MASK)
    rest = length - whole
    if rest:
        hashed ^= int.from_bytes(key[whole:], "little")
        hashed = hashed * _M & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _M & _MASK
    return hashed ^ (hashed >> 15)


_LITTLE = sys.byteorder == "little"


def _words(key: bytes, whole: int) -> list[int]:
    return [int.from_bytes(key[at : at + 4], "little") for at in range(0, whole, 4)]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that the Java client picks for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2_column(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The hash of every key; what stands at null keys means nothing."""
    hashes = np.zeros(len(keys), np.uint32)
    _, offsets, data = keys.buffers()
    if offsets is None or data is None or not len(keys):
        # Only nulls and empty keys.
        hashes[:] = murmur2(b"")
        return hashes
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    values = np.frombuffer(data, np.uint8)
    starts, lengths = bounds[:-1].astype(np.int64), np.diff(bounds)
    for first in range(0, len(keys), _BLOCK):
        block = slice(first, first + _BLOCK)
        hashes[block] = _hash_block(values, starts[block], lengths[block])
    return hashes


def _hash_block(
    data: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    m = np.uint32(_M)
    hashed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    longest, shortest = int(lengths.max()), int(lengths.min())
    for at in range(0, longest & ~3, 4):
        # Most often all keys are as long; only then is there nothing to choose.
        rows = slice(None) if shortest >= at + 4 else np.flatnonzero(lengths >= at + 4)
        position = starts[rows] + at
        word = data[position].astype(np.uint32)
        for byte in (1, 2, 3):
            word |= data[position + byte].astype(np.uint32) << np.uint32(8 * byte)
        word *= m
        word ^= word >> np.uint32(_R)
        word *= m
        hashed[rows] = (hashed[rows] * m) ^ word
    rest = lengths & 3
    for byte in (2, 1, 0):
        rows = np.flatnonzero(rest > byte)
        if len(rows):
            position = starts[rows] + (lengths[rows] & ~3) + byte
            hashed[rows] ^= data[position].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(rest)
    if len(rows):
        hashed[rows] *= m
    hashed ^= hashed >> np.uint32(13)
    hashed *= m
    hashed ^= hashed >> np.uint32(15)
    return hashed
