"""A hundred spoilt requests for each API and version, a thousand of each in `make test-long`.

The broker answers each with the protocol's own words or closes the connection that it came by. It does
not fail, hang, or store what is not a batch. A failure names the seed, the number of the input and
its bytes; FUZZ_SEED repeats a run, FUZZ_INPUTS makes it longer.
"""

from __future__ import annotations

import os
import zlib

import pytest
from fuzz_kit.harness import Harness, Misbehaviour
from fuzz_kit.mutations import mutate
from fuzz_kit.requests import Requests

from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import encode_request
from ottla.protocol.message import UnencodableMessage
from ottla.server import handlers
from ottla.server.api import DECLARED

FEW = int(os.environ.get("FUZZ_INPUTS", "100"))
MANY = int(os.environ.get("FUZZ_INPUTS", "1000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
# As many requests are made from the declarations; the inputs are these, spoilt.
TEMPLATES = 60

handlers.load()
CASES = [
    pytest.param(key, version, id=f"{key.name}-{version}")
    for key, declared in sorted(DECLARED.items())
    for version in range(declared.versions[0], declared.versions[1] + 1)
]


def templates(harness: Harness, key: ApiKey, version: int, seed: int) -> list[bytes]:
    """Requests as a client would send them."""
    made = Requests(harness.world, seed)
    frames: list[bytes] = []
    while len(frames) < TEMPLATES:
        message = made.message(DECLARED[key].request, version)
        client_id = made.dice.choice(("fuzz", "fuzz", "", None, "ä"))
        try:
            frames.append(encode_request(message, version, made.dice.getrandbits(31), client_id))
        except UnencodableMessage:
            continue  # a value that this version cannot carry
    return frames


@pytest.mark.parametrize(("key", "version"), CASES)
def test_spoilt_requests(harness: Harness, key: ApiKey, version: int) -> None:
    send_spoilt_requests(harness, key, version, FEW)


@pytest.mark.long
@pytest.mark.parametrize(("key", "version"), CASES)
def test_a_thousand_spoilt_requests(harness: Harness, key: ApiKey, version: int) -> None:
    send_spoilt_requests(harness, key, version, MANY)


def send_spoilt_requests(harness: Harness, key: ApiKey, version: int, inputs: int) -> None:
    seed = zlib.crc32(f"{key} {version} {SEED}".encode())
    dice = Requests(harness.world, seed).dice
    frames = templates(harness, key, version, seed)
    for number in range(inputs):
        frame = (
            frames[number] if number < len(frames) else mutate(dice, dice.choice(frames), frames)
        )
        try:
            harness.feed(frame)
            harness.check_complaints()
        except Exception as error:
            raise Misbehaviour(
                f"{key.name} v{version}, seed {seed}, input {number}: {error}\n{frame.hex()}"
            ) from error
    # The connection that comes after all of them is served.
    harness.hang_up()
    harness.loop.run_until_complete(harness.furnish())
    assert len(harness.feed(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff")) == 1
