"""SCRAM's mechanisms as the protocol numbers them, and how a password is salted for one (RFC 5802).

No I/O.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Final, Literal

ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
HashName = Literal["sha256", "sha512"]

# Numbers as on the wire.
SCRAM_NUMBERS: Final[Mapping[int, ScramMechanism]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
NUMBERS_OF_SCRAM: Final[Mapping[str, int]] = {name: each for each, name in SCRAM_NUMBERS.items()}
SCRAM_MECHANISMS: Final[tuple[ScramMechanism, ...]] = tuple(SCRAM_NUMBERS.values())
_HASHES: Final[Mapping[str, HashName]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# Of passwords that are set by us.
DEFAULT_ITERATIONS: Final = 8192
SALT_BYTES: Final = 24


def hash_name(mechanism: str) -> HashName:
    """What a mechanism's hash is called in `hashlib`."""
    return _HASHES[mechanism]


def new_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password. Slow on purpose."""
    return hashlib.pbkdf2_hmac(hash_name(mechanism), password.encode(), salt, iterations)
