"""SCRAM with servers that are not what they claim to be."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.wire.sasl import RefusedByMechanism, Scram

SALT = b"some salt"


@dataclass
class Server:
    """The server's side of RFC 5802, with faults on demand."""

    password: str = "secret"
    iterations: int = 4096
    continues_nonce: bool = True
    final: str | None = None  # in place of the signature
    first: str = ""
    challenge: str = ""
    user: str = ""

    async def step(self, message: bytes) -> bytes:
        text = message.decode()
        if not self.challenge:
            self.first = text.removeprefix("n,,")
            self.user, nonce = (part[2:] for part in self.first.split(",")[:2])
            nonce = nonce + "-theirs" if self.continues_nonce else "theirs"
            salt = base64.b64encode(SALT).decode()
            self.challenge = f"r={nonce},s={salt},i={self.iterations}"
            return self.challenge.encode()
        final, _, proof = text.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), SALT, self.iterations)
        proven = f"{self.first},{self.challenge},{final}".encode()
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        signature = hmac.digest(stored, proven, "sha256")
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.sha256(key).digest() != stored:
            return self.final.encode() if self.final is not None else b"e=invalid-proof"
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        good = base64.b64encode(hmac.digest(server_key, proven, "sha256")).decode()
        return (self.final if self.final is not None else f"v={good}").encode()


async def talk(server: Server, user: str = "alice") -> None:
    await Scram(user, "secret", "sha256").converse(server.step)


async def test_both_know_the_password() -> None:
    server = Server()
    await talk(server, "a=b,c")
    assert server.user == "a=3Db=2Cc"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"password": "other"}, "invalid-proof"),
        ({"final": "v=" + base64.b64encode(bytes(32)).decode()}, "does not know the password"),
        ({"final": ""}, "does not know the password"),
        ({"iterations": 4095}, "4095 iterations"),
        ({"iterations": 10**9}, "1000000000 iterations"),
        ({"continues_nonce": False}, "does not continue ours"),
    ],
)
async def test_a_server_that_cannot_be_trusted(fault: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedByMechanism, match=sentence):
        await talk(Server(**fault))


async def test_a_challenge_that_makes_no_sense() -> None:
    async def step(_: bytes) -> bytes:
        return b"r=x,s=!!!,i=many"

    with pytest.raises(RefusedByMechanism, match="makes no sense"):
        await Scram("u", "p").converse(step)
