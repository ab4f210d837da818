# ruff: noqa: ARG002 - partitioners share signatures of which each uses a part
"""Which partition a record goes to.

    murmur2, murmur2_random   by the key, as the Java client does; without a key sticky (the default)
    consistent, consistent_random   by the key, as librdkafka does by default (CRC32)
    sticky                    without regard to keys: one partition until a batch is full, then another
    round_robin, random       record by record, without regard to keys
    a function                keys (an Arrow column), number of partitions -> partitions (a column)

A record that names its partition keeps it. Sticky is Java's uniform sticky (KIP-794): the partition
changes when as many bytes as a batch holds went to it, so that batches fill up and all partitions get
the same share; partitions without a leader are passed over.

Each works on columns; single records take a shortcut.
"""

from __future__ import annotations

import random
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.errors import ConfigurationError
from ottla.client.lazy import lazy
from ottla.client.producer.murmur2 import murmur2_column, partition_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from ottla.client.producer import tables

    Partitions = np.ndarray[Any, np.dtype[np.int32]]
    Function = Callable[[pa.Array, int], Any]
else:
    np = lazy("numpy")
    pa = lazy("pyarrow")
    pc = lazy("pyarrow.compute")
    tables = lazy("ottla.client.producer.tables")


class Partitioner(ABC):
    """One topic's partitioner. Safe to use from several threads."""

    #: Whether it has to be asked even if there is but one partition to choose.
    always_asked = False

    @abstractmethod
    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        """The partition of one record of `size` bytes, of `count` partitions."""

    @abstractmethod
    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        """The partitions of a column of records; `sizes` are their bytes."""


class Sticky(Partitioner):
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._current = -1
        self._used = 0  # bytes that went to the current partition

    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        with self._lock:
            partition = self._partition(count, usable)
            self._used += size
            return partition

    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        chosen = np.empty(len(sizes), np.int32)
        ends = np.cumsum(sizes)
        first = 0
        with self._lock:
            while first < len(sizes):
                partition = self._partition(count, usable)
                before = int(ends[first - 1]) if first else 0
                # The record that fills the batch still goes to it.
                last = int(np.searchsorted(ends, before + self._batch_size - self._used))
                last = min(max(last + 1, first + 1), len(sizes))
                chosen[first:last] = partition
                self._used += int(ends[last - 1]) - before
                first = last
        return chosen

    def _partition(self, count: int, usable: Sequence[int]) -> int:
        if self._current < 0 or self._used >= self._batch_size or self._current >= count:
            others = [each for each in usable if each != self._current] or list(usable)
            self._current = random.choice(others) if others else random.randrange(count)
            self._used = 0
        return self._current


class RoundRobin(Partitioner):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = random.randrange(1 << 16)

    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        return int(self.many(None, np.zeros(1), count, usable)[0])

    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        choice = np.array(usable or range(count), np.int32)
        with self._lock:
            first, self._next = self._next, (self._next + len(sizes)) % (1 << 31)
        return choice[(first + np.arange(len(sizes))) % len(choice)]


class Random(Partitioner):
    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        return random.choice(usable) if usable else random.randrange(count)

    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        choice = np.array(usable or range(count), np.int32)
        return choice[np.random.default_rng().integers(0, len(choice), len(sizes))]


class ByKey(Partitioner):
    """By a hash of the key; records without a key by another partitioner."""

    def __init__(
        self,
        one: Callable[[bytes, int], int],
        column: Callable[[pa.Array, int], Partitions],
        without_key: Partitioner,
    ) -> None:
        self._one = one
        self._column = column  # what it gives for null keys is not used
        self._without_key = without_key

    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        if key is None:
            return self._without_key.one(key, size, count, usable)
        return self._one(key, count)

    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        if keys is None or keys.null_count == len(keys):
            return self._without_key.many(None, sizes, count, usable)
        partitions = self._column(keys, count)
        if keys.null_count:
            rows = tables.true_rows(pc.is_null(keys))
            partitions[rows] = self._without_key.many(None, sizes[rows], count, usable)
        return partitions


def _murmur2_partitions(keys: pa.Array, count: int) -> Partitions:
    hashes = murmur2_column(keys) & np.uint32(0x7FFFFFFF)
    return (hashes % np.uint32(count)).astype(np.int32)


def _crc32_partition(key: bytes, count: int) -> int:
    # librdkafka takes the hash as it is, unsigned.
    return zlib.crc32(key) % count


def _crc32_partitions(keys: pa.Array, count: int) -> Partitions:
    return np.array([_crc32_partition(key or b"", count) for key in keys.to_pylist()], np.int32)


class ByFunction(Partitioner):
    """By a user's function over columns."""

    always_asked = True  # it may raise

    def __init__(self, function: Function) -> None:
        self._function = function

    def one(self, key: bytes | None, size: int, count: int, usable: Sequence[int]) -> int:
        return int(self.many(pa.array([key], pa.binary()), np.zeros(1), count, usable)[0])

    def many(
        self, keys: pa.Array | None, sizes: np.ndarray[Any, Any], count: int, usable: Sequence[int]
    ) -> Partitions:
        keys = pa.nulls(len(sizes), pa.binary()) if keys is None else keys
        return checked(self._function(keys, count), len(sizes), count)


def checked(partitions: Any, length: int, count: int) -> Partitions:
    """Partitions that a user computed, if there is one for each record and the topic has them."""
    if isinstance(partitions, pa.ChunkedArray | pa.Array):
        if partitions.null_count:
            raise ValueError("a partitioner gave null for some records")
        if pa.types.is_integer(partitions.type):
            partitions = tables.numbers(partitions)
        else:
            partitions = partitions.to_numpy(zero_copy_only=False) if len(partitions) else []
    found = np.asarray(partitions)
    if len(found) and not np.issubdtype(found.dtype, np.integer):
        raise TypeError(f"partitions are whole numbers, not {found.dtype}")
    if found.shape != (length,):
        raise ValueError(f"a partitioner gave {found.shape} partitions for {length} records")
    wrong = found[(found < 0) | (found >= count)]
    if len(wrong):
        raise ValueError(f"partition {int(wrong[0])} is not one of the topic's {count}")
    return found.astype(np.int32)


_NAMES = (
    "murmur2_random",
    "murmur2",
    "consistent_random",
    "consistent",
    "sticky",
    "round_robin",
    "random",
)


def partitioner_for(choice: str | Function, batch_size: int) -> Partitioner:
    """A new partitioner, for one topic."""
    if callable(choice):
        return ByFunction(choice)
    match choice.replace("-", "_"):
        case "murmur2_random" | "murmur2" | "default":
            return ByKey(partition_of, _murmur2_partitions, Sticky(batch_size))
        case "consistent_random" | "consistent":
            return ByKey(_crc32_partition, _crc32_partitions, Sticky(batch_size))
        case "sticky" | "uniform_sticky":
            return Sticky(batch_size)
        case "round_robin" | "roundrobin":
            return RoundRobin()
        case "random":
            return Random()
    raise ConfigurationError(f"partitioner takes {', '.join(_NAMES)} or a function, not {choice!r}")
