"""Columns of a buffer that is still being filled: the same as of one that is whole from the start."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from types import ModuleType

import pytest

from ottla.record.batch import Record, build_batch
from ottla.record.columns import Decoded, IncrementalRecords, decode
from ottla.record.columns.kernels import readiness
from ottla.record.compression.codecs import Codec
from ottla.record.control import build_end_of_transaction
from ottla.record.errors import InvalidBatch
from ottla.record.legacy import build_message_set

NOW = 1_800_000_000_000


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    assert readiness.compile_kernels(), "numba is missing"
    module = readiness._readiness.kernels
    assert module is not None
    return module


def some_batch(dice: random.Random, offset: int) -> tuple[bytes, int]:
    """A batch of any kind from this offset on, and the offset after it."""
    kind = dice.choice(("plain",) * 8 + ("compressed", "transaction", "marker", "old", "broken"))
    if kind == "marker":
        marker = build_end_of_transaction(
            committed=dice.random() < 0.5,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW,
            base_offset=offset,
        )
        return marker, offset + 1
    count = dice.choice((1, 5, 40))
    value = dice.choice((b"", b"v" * 10, b"v" * 900))
    records = [Record(offset + at, NOW + at, b"key", value) for at in range(count)]
    if kind == "old":
        return bytes(build_message_set(records, magic=1)), offset + count
    batch = build_batch(
        records,
        base_offset=offset,
        codec=dice.choice((Codec.LZ4, Codec.ZSTD)) if kind == "compressed" else Codec.NONE,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=kind == "transaction",
    )
    if kind == "broken" and dice.random() < 0.3:
        damaged = bytearray(batch)
        damaged[dice.randrange(len(damaged) - 30, len(damaged))] ^= 1
        batch = bytes(damaged)
    return bytes(batch), offset + count


def taken(results: Iterable[Decoded]) -> tuple[list[dict[str, object]], list[tuple[int, int]], str]:
    """All rows, the last position, and what was wrong."""
    rows: list[dict[str, object]] = []
    reached: list[tuple[int, int]] = []
    try:
        for decoded in results:
            decoded.rows.validate(full=True)
            rows += decoded.rows.to_pylist()
            reached = [(decoded.next_offset, decoded.consumed)]
    except InvalidBatch as error:
        return rows, reached, str(error)
    return rows, reached, ""


@pytest.mark.parametrize("seeds", [100, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("compiled", [True, False])
def test_it_is_as_if_all_had_been_there(
    kernels: ModuleType, compiled: bool, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = kernels if compiled else None
    monkeypatch.setattr("ottla.record.columns.decoding.kernels_for", lambda size: chosen)
    for seed in range(seeds):
        dice = random.Random(seed)
        pieces, offset = [], 0
        for _ in range(dice.randrange(1, 20)):
            piece, offset = some_batch(dice, offset)
            pieces.append(piece)
        whole = b"".join(pieces)
        whole = whole[: len(whole) - dice.choice((0, 0, 1, 70))]
        options = {
            "start_offset": dice.choice((0, 0, dice.randrange(offset))),
            "end_offset": dice.choice((None, None, dice.randrange(offset + 1))),
            "aborted": dice.choice(([], [(7, 0)])),
            "max_rows": dice.choice((1, 7, 10_000)),
            "max_bytes": dice.choice((1, 2000, 1 << 20)),
        }
        buffer = bytearray(len(whole))
        incremental = IncrementalRecords(memoryview(buffer).toreadonly(), **options)
        at = 0
        for _ in range(dice.randrange(6)):
            more = min(at + dice.randrange(len(whole)), len(whole))
            buffer[at:more] = whole[at:more]
            # What lies after is of an answer before this one.
            buffer[more:] = dice.randbytes(len(whole) - more)
            at = more
            incremental.advance(at)
            at += received(dice, incremental, whole, at)
            assert 0 <= incremental.last_read <= len(whole) - incremental.left <= at
        buffer[at:] = whole[at:]
        assert taken(incremental) == taken(decode(whole, **options)), f"seed {seed}"


def received(dice: random.Random, incremental: IncrementalRecords, whole: bytes, at: int) -> int:
    """Have some of what comes after `at` received by who decodes it; how many bytes that are."""
    sent = whole[at : at + dice.randrange(5000)]
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        near.sendall(sent)
        most = dice.randrange(6000)
        count = incremental.receive(far.fileno(), at, most)
        assert 0 <= count <= min(len(sent), most)
        if count < len(sent):
            assert far.recv(1 << 20) == sent[count:], "nothing that is not counted was taken"
    return count


def test_a_socket_is_read_no_further_than_the_buffer_goes(kernels: ModuleType) -> None:
    del kernels
    batch = build_batch([Record(0, NOW, None, b"v" * 100)])
    buffer = bytearray(batch)
    incremental = IncrementalRecords(memoryview(buffer).toreadonly())
    incremental.advance(0)
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        assert incremental.receive(far.fileno(), 0, 1 << 20) == 0, "nothing has come"
        near.sendall(batch + b"the next answer")
        assert incremental.receive(far.fileno(), 0, 1 << 20) == len(batch)
        assert incremental.receive(far.fileno(), len(batch), 1 << 20) == 0
        assert far.recv(100) == b"the next answer"
        near.close()
        assert incremental.receive(far.fileno(), 0, 1 << 20) == 0, "who asks the socket is told why"
    assert incremental.receive(far.fileno(), 0, 1 << 20) == 0, "there is no such socket"
    (decoded,) = incremental
    assert decoded.rows.column("value").to_pylist() == [b"v" * 100]


def test_what_has_come_is_read_at_once(kernels: ModuleType) -> None:
    del kernels
    batch = build_batch([Record(0, NOW, None, b"v" * 100) for at in range(1)])
    batches = [bytearray(batch) for _ in range(10)]
    for number, each in enumerate(batches):
        struct.pack_into(">q", each, 0, number)
    whole = b"".join(batches)
    incremental = IncrementalRecords(whole)
    incremental.advance(len(batch) - 1)
    assert incremental.left == len(whole)
    incremental.advance(4 * len(batch) + 5)
    assert incremental.left == 6 * len(batch)
    assert incremental.last_read == 3 * len(batch)
    (decoded,) = incremental
    assert decoded.rows.column("offset").to_pylist() == list(range(10))
