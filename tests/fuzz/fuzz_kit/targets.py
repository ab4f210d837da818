"""What the coverage-guided fuzzers call: one function for each kind of input, and its first corpus.

Kept apart from atheris, so that these can be called, and a finding be repeated, without it:

    python tests/fuzz/atheris_requests.py FILE      (a crash file that atheris left)
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz_kit.batches import any_records, good_batch, message_set
from fuzz_kit.harness import Harness
from fuzz_kit.requests import Requests, World
from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import encode_request
from ottla.protocol.message import UnencodableMessage
from ottla.record.batch import Codec, check_batch, check_produced, headers, records
from ottla.record.compression.recompress import recompress
from ottla.record.errors import InvalidBatch
from ottla.record.legacy import downgrade, messages, upgrade
from ottla.record.validation.findings import Rules
from ottla.server import handlers
from ottla.server.api import DECLARED
from ottla.server.disk import worker_jobs as jobs

Target = Callable[[bytes], None]

LIMIT = 1 << 20


class Fed:
    """A broker for a fuzzer that runs until it is killed; its topics are made anew now and then."""

    def __init__(self) -> None:
        # Whoever starts a fuzzer may say where, and clean up: libFuzzer's exit leaves no chance to.
        self._folder = Path(tempfile.mkdtemp(prefix="broker-", dir=os.environ.get("SOAK_DATA")))
        self._inputs = 0
        self.harness = Harness(self._folder / "data").start()

    def feed(self, *pieces: bytes) -> None:
        self.harness.feed(*pieces)
        self.harness.check_complaints()
        self._inputs += 1
        if self._inputs % 1000 == 0:
            self.harness.verify_logs()
        if self._inputs % 5000 == 0:
            # So that the disk does not fill, and start and stop have their turn too.
            self.harness.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            self.harness = Harness(self._folder / "data").start()


def cases() -> list[tuple[ApiKey, int]]:
    """The APIs and versions, in the order in which the first byte of an input counts them."""
    handlers.load()
    return [
        (key, version)
        for key, declared in sorted(DECLARED.items())
        for version in range(declared.versions[0], declared.versions[1] + 1)
    ]


def requests_target() -> Target:
    """Two bytes choose an API and a version, the rest is the body."""
    fed = Fed()
    known = cases()

    def one(data: bytes) -> None:
        if len(data) < 2:
            return
        key, version = known[int.from_bytes(data[:2], "big") % len(known)]
        tags = b"\0" if version >= DECLARED[key].request.flexible_since else b""
        body = tags + data[2:]
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
        fed.feed((len(header) + len(body)).to_bytes(4, "big") + header + body)

    return one


def frames_target() -> Target:
    """Any stream, in two pieces: the first byte says where it is cut."""
    fed = Fed()

    def one(data: bytes) -> None:
        if data:
            cut = 1 + data[0] * len(data) // 256
            fed.feed(data[1:cut], data[cut:])
            fed.harness.hang_up()

    return one


def batches_target() -> Target:
    """Everything that looks into batches and message sets of clients."""

    def one(data: bytes) -> None:
        for read in (
            check_batch,
            check_produced,
            lambda given: list(headers(given)),
            lambda given: list(records(given, LIMIT)),
            lambda given: jobs.check_produced_batch(given, Rules(True, True), 0, LIMIT),
            lambda given: recompress(given, Codec.ZSTD, None, LIMIT),
            lambda given: list(messages(given, LIMIT)),
            lambda given: upgrade(given, LIMIT),
            lambda given: downgrade(given, 0, 0, LIMIT),
            lambda given: downgrade(given, 1, 0, LIMIT),
        ):
            try:
                read(data)
            except InvalidBatch:
                pass

    return one


def _request_frames(count: int) -> Iterator[tuple[int, bytes]]:
    """Frames of every API and version, each with its number among the cases."""
    world = World(1)
    world.topics = {name: bytes([number]) * 16 for number, name in enumerate(("plain", "packed"))}
    world.victims = ["victim-0"]
    for number, (key, version) in enumerate(cases()):
        made = Requests(world, number)
        for _ in range(count):
            try:
                message = made.message(DECLARED[key].request, version)
                yield number, encode_request(message, version, 1, None)
            except UnencodableMessage:
                continue


def requests_corpus() -> Iterator[bytes]:
    for number, frame in _request_frames(4):
        key, version = cases()[number]
        header = 15 if version >= DECLARED[key].request.flexible_since else 14
        yield number.to_bytes(2, "big") + frame[header:]


def frames_corpus() -> Iterator[bytes]:
    for number, frame in _request_frames(1):
        yield bytes([number % 256]) + frame


def batches_corpus() -> Iterator[bytes]:
    dice = random.Random(1)
    for make in (good_batch, message_set, any_records):
        for _ in range(60):
            made = make(dice)
            if made:
                yield made


TARGETS: dict[str, tuple[Callable[[], Target], Callable[[], Iterator[bytes]]]] = {
    "requests": (requests_target, requests_corpus),
    "frames": (frames_target, frames_corpus),
    "batches": (batches_target, batches_corpus),
}
