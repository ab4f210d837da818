"""Which offset holds the last record of each key, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b

# Longer keys are known by their digest, which is longer than any key that is kept as it is: the two
# never meet. At 136 bits, that two keys of one log share a digest is not to be expected.
LONGEST_PLAIN_KEY = 16
_DIGEST_SIZE = LONGEST_PLAIN_KEY + 1

# What an entry costs beside its key: the head of the key's object (rounded up as the allocator does),
# the number, and a slot of the hash table, which is between one and two thirds full.
_KEY_HEAD = 33
_ALIGNMENT = 16
_NUMBER_AND_SLOT = 32 + 64


class OffsetMap:
    """Keys with the offset of their last record, as far as the memory goes.

    Offsets are put in increasing order. Once a key was refused, the caller stops: a later record of
    a known key would fit, but then the map would not tell the truth about the refused one.
    """

    __slots__ = ("_limit", "_offsets", "_used")

    def __init__(self, memory: int) -> None:
        """Holds at least one key, whatever the memory."""
        self._limit = memory
        self._used = 0
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def used(self) -> int:
        """An estimate of the bytes that the map takes."""
        return self._used

    def put(self, key: bytes, offset: int) -> bool:
        """Whether there was room for it."""
        if len(key) > LONGEST_PLAIN_KEY:
            key = blake2b(key, digest_size=_DIGEST_SIZE).digest()
        offsets = self._offsets
        if key not in offsets:
            if self._used >= self._limit and offsets:
                return False
            cost = _KEY_HEAD + len(key)
            self._used += cost + -cost % _ALIGNMENT + _NUMBER_AND_SLOT
        offsets[key] = offset
        return True

    def last_offset(self, key: bytes) -> int:
        """The offset of the key's last record; -1 if the map has none."""
        if len(key) > LONGEST_PLAIN_KEY:
            key = blake2b(key, digest_size=_DIGEST_SIZE).digest()
        return self._offsets.get(key, -1)
