"""Hostile bytes for the kernels, compiled with bounds checks and with guards around every output.

What the kernels make of damaged batches is what the plain reader makes of them: the same rows, or
an error from both. An access out of range is an IndexError here, or a guard that has changed.
"""

from __future__ import annotations

import importlib.util
import random
import struct
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pyarrow as pa
import pytest

from ottla.record.batch import RECORDS_AT, Record, build_batch
from ottla.record.columns import IncrementalRecords, Layout, buffers, decode, encode
from ottla.record.columns.kernels import readiness
from ottla.record.compression.codecs import Codec
from ottla.record.errors import InvalidBatch
from ottla.record.varint import encode_varint

# The kernels are compiled once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("checked-kernels")]

ROUNDS = 3000
GUARD = 64
GUARD_BYTE = 0xA5


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The kernels once more, with numba's bounds checks."""
    before = numba.config.BOUNDSCHECK, numba.config.CACHE_DIR
    numba.config.BOUNDSCHECK = 1
    # Not to be mixed up with the ones that are compiled without.
    numba.config.CACHE_DIR = str(tmp_path_factory.mktemp("checked"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Each imports some of those before it.
            for name in ("walking", "copying", "encoding", "decoding"):
                module = _anew(name)
                patch.setitem(sys.modules, f"ottla.record.columns.kernels.{name}", module)
    finally:
        numba.config.BOUNDSCHECK, numba.config.CACHE_DIR = before
    return module


def _anew(name: str) -> ModuleType:
    source = Path(readiness.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"checked_{name}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checks_are_on(checked: ModuleType) -> None:
    data = np.frombuffer(build_batch([Record(0, 1, None, b"v")]), np.uint8)
    state = np.zeros(checked.STATE_SIZE, np.int64)
    state[[checked.END_OFFSET, checked.MAX_ROWS, checked.MAX_BYTES, checked.SCALE]] = (9, 9, 9, 1)
    state[checked.POSITION] = -1
    plan = np.array([[0, RECORDS_AT, len(data)]], np.int64)
    columns = buffers.ColumnBuffers(Layout(("offset",)), checked, 9)
    columns.reserve(1, 10, state)
    arrays = list(columns.arguments())
    arrays[1] = np.empty(0, np.int64)  # no room for the timestamp
    with pytest.raises(IndexError):
        checked.decode_records(data, data, plan, state, *arrays)


class Guarded:
    """Makes buffers between two guards, and says whether all of these are as they were."""

    def __init__(self) -> None:
        self.guards: list[np.ndarray] = []

    def resized(self, array: np.ndarray, size: int, used: int) -> np.ndarray:
        width = array.itemsize
        whole = np.full(size * width + 2 * GUARD, GUARD_BYTE, np.uint8)
        self.guards += (whole[:GUARD], whole[len(whole) - GUARD :])
        inner = whole[GUARD : len(whole) - GUARD].view(array.dtype)
        inner[:used] = array[:used]
        return inner

    def intact(self) -> bool:
        return all(bool((guard == GUARD_BYTE).all()) for guard in self.guards)


def some_bytes(dice: random.Random) -> bytes | None:
    if dice.random() < 0.2:
        return None
    return dice.randbytes(dice.choice((0, 1, 3, 20, 63, 64, 65, 150)))


def some_records(dice: random.Random) -> list[Record]:
    found = []
    offset = -1
    for _ in range(dice.randrange(1, 12)):
        offset += dice.choice((1, 1, 1, 2, 100))
        headers = tuple(
            (dice.choice(("", "h", "name" * 20)), some_bytes(dice))
            for _ in range(dice.choice((0, 0, 1, 5)))
        )
        timestamp = dice.choice((0, -1, 1_700_000_000_000, 2**62))
        found.append(Record(offset, timestamp, some_bytes(dice), some_bytes(dice), headers))
    return found


LIES = [
    encode_varint(number)
    for number in (-(2**31), -2, -1, 0, 1, 63, 64, 2**14, 2**28, 2**31 - 1, 2**63 - 1, -(2**63))
] + [b"\x80" * 11, b"\xff" * 10, b"\xff\xff\xff\xff\x7f"]


def damaged(dice: random.Random, batch: bytes) -> bytes:
    """The batch with some lies in its records or in the fields of its header that matter."""
    data = bytearray(batch)
    for _ in range(dice.randrange(1, 4)):
        kind = dice.random()
        if kind < 0.15:
            field, form = dice.choice(((23, ">i"), (57, ">i"), (27, ">q"), (35, ">q"), (0, ">q")))
            number = dice.choice((-1, 0, 1, 5, 2**31 - 1, -(2**31)))
            struct.pack_into(form, data, field, number)
        elif kind < 0.6:
            lie = dice.choice(LIES)
            at = dice.randrange(RECORDS_AT, len(data))
            data[at : at + len(lie)] = lie
        elif kind < 0.8:
            data[dice.randrange(RECORDS_AT, len(data))] = dice.randrange(256)
        elif kind < 0.9:
            del data[dice.randrange(RECORDS_AT, len(data)) :]
        else:
            data += dice.randbytes(dice.randrange(1, 20))
        if len(data) <= RECORDS_AT:
            data += b"\x00"
    struct.pack_into(">i", data, 8, len(data) - 12)
    return bytes(data)


def outcome(
    data: memoryview,
    chosen: ModuleType | None,
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[int, ...] = (),
    **options: int,
) -> tuple[list[dict[str, object]], bool]:
    """The rows that are given, and whether an error follows; `parts` are looked at beforehand."""
    monkeypatch.setattr("ottla.record.columns.decoding.kernels_for", lambda size: chosen)
    rows: list[dict[str, object]] = []
    incremental = IncrementalRecords(data, check_crc=False, **options)
    for part in parts:
        incremental.advance(part)
    try:
        for decoded in incremental if parts else decode(data, check_crc=False, **options):
            decoded.rows.validate(full=True)
            at = decoded.rows.schema.get_field_index("timestamp")
            times = decoded.rows.column(at).cast(pa.int64())
            rows += decoded.rows.set_column(at, "timestamp", times).to_pylist()
    except InvalidBatch:
        return rows, True
    return rows, False


@pytest.mark.parametrize("seed", range(4))
def test_damaged_batches(seed: int, checked: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for number in range(ROUNDS // 4):
        dice = random.Random(f"{seed}/{number}")
        guarded = Guarded()
        monkeypatch.setattr(buffers, "resized", guarded.resized)
        codec = dice.choice((Codec.NONE, Codec.NONE, Codec.LZ4, Codec.SNAPPY))
        good = build_batch(some_records(dice), codec=codec)
        bad = damaged(dice, build_batch(some_records(dice), codec=dice.choice((codec, 0))))
        around = dice.randbytes(GUARD)
        whole = memoryview(around + good + bad + good + around)
        data = whole[GUARD : len(whole) - GUARD]
        options = {"max_rows": dice.choice((1, 3, 1000)), "max_bytes": dice.choice((1, 200, 10**6))}
        parts = tuple(sorted(dice.randrange(len(data)) for _ in range(dice.choice((0, 0, 1, 4)))))
        compiled = outcome(data, checked, monkeypatch, parts, **options)
        assert guarded.intact(), f"seed {seed}/{number}"
        plain = outcome(data, None, monkeypatch, **options)
        # Where a batch comes in several results, rows before the damage may be out already.
        if options == {"max_rows": 1000, "max_bytes": 10**6}:
            assert compiled == plain, f"seed {seed}/{number}"
        assert compiled[1] == plain[1], f"seed {seed}/{number}"
        refused += plain[1]
    assert refused > ROUNDS // 12  # the damage is real


@pytest.mark.parametrize("seed", range(2))
def test_encoding_into_guarded_buffers(
    seed: int, checked: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.record.columns.encoding.kernels_for", lambda size: checked)
    for number in range(300):
        dice = random.Random(f"{seed}/{number}")
        guarded = Guarded()
        monkeypatch.setattr("ottla.record.columns.encoding.resized", guarded.resized)
        found = some_records(dice)
        offsets = np.array([0, 1, dice.choice((1, 2, -5, 2**31 - 1, 40)), 30], np.int32)
        arrays = [None, pa.py_buffer(offsets), pa.py_buffer(bytes(30))]
        suspicious = pa.Array.from_buffers(pa.binary(), 3, arrays)
        try:
            encode(suspicious, keys=pa.nulls(3, pa.binary()), max_bytes=dice.choice((1, 100)))
        except ValueError:
            assert not 1 <= offsets[2] <= 30
        headers = [[{"key": key, "value": value} for key, value in row.headers] for row in found]
        batches = encode(
            pa.array([row.value for row in found], pa.binary()),
            keys=pa.array([row.key for row in found], pa.binary()),
            headers=pa.array(headers, buffers.HEADERS_TYPE),
            rows=np.array([dice.randrange(len(found)) for _ in range(20)]),
            max_bytes=dice.choice((1, 300, 10**6)),
        )
        assert sum(batch.row_count for batch in batches) == 20
        assert guarded.intact(), f"seed {seed}/{number}"


def test_nothing_is_allocated_because_a_field_says_so(
    checked: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = bytearray(build_batch([Record(0, 1, b"k", b"v", (("h", b"v"),))]))
    struct.pack_into(">ii", batch, 57 - 4, 0, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    huge_headers = bytearray(build_batch([Record(0, 1, b"k", b"v")]))
    huge_headers[-1:] = encode_varint(2**31 - 1)
    huge_headers[RECORDS_AT] += 8  # the record's length: four bytes more, zigzag
    struct.pack_into(">i", huge_headers, 8, len(huge_headers) - 12)
    for data in (batch, huge_headers):
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        rows, failed = outcome(memoryview(data), checked, monkeypatch)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (rows, failed) == ([], True)
        assert peak < 1_000_000 + 4 * 1024 * 1024  # and the scratch array
        assert pa.total_allocated_bytes() - before < 1_000_000
