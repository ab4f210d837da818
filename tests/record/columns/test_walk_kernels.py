"""The compiled checksum and the compiled walk along batches, against the interpreter's."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c as reference
from numba import njit

from ottla.record.batch import Record, build_batch
from ottla.record.columns.kernels import readiness

SPECIAL = 0x07 | 0x20  # codecs and control batches


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    assert readiness.compile_kernels(), "numba is missing"
    module = readiness._readiness.kernels
    assert module is not None
    return module


@pytest.fixture(scope="module")
def walking(kernels: ModuleType) -> ModuleType:
    del kernels  # so that it is compiled into the right cache
    from ottla.record.columns.kernels import walking as walk_kernels

    return walk_kernels


def frozen(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, np.uint8)  # bytes cannot be written to


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 1535, 1536, 1537, 1544, 3072, 3079, 10_000])
def test_checksums_are_those_of_the_package(walking: ModuleType, size: int) -> None:
    generator = random.Random(size)
    data = generator.randbytes(size + 16)
    for start in (0, 1, 5, 16):
        assert int(walking.crc32c(frozen(data), start, start + size)) == reference(
            data[start : start + size]
        )


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (3, 2), (0, 11), (11, 11)])
def test_a_checksum_beyond_the_buffer_is_refused(walking: ModuleType, start: int, end: int) -> None:
    with pytest.raises(IndexError):
        walking.crc32c(frozen(bytes(10)), start, end)


def test_tables_give_what_the_instruction_gives(walking: ModuleType) -> None:
    by_tables = njit(walking.sum_by_tables)
    generator = random.Random(7)
    for _ in range(200):
        register, word = generator.getrandbits(32), generator.getrandbits(64)
        expected = reference(word.to_bytes(8, "little"), register ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
        assert int(by_tables(np.uint64(register), np.uint64(word))) == expected


class Walked:
    """What one call goes past."""

    def __init__(self, kernels: ModuleType, data: bytes, room: int = 10, **wanted: int) -> None:
        state = np.zeros(kernels.WALK_STATE_SIZE, np.int64)
        given = {
            "LIMIT": len(data),
            "END_OFFSET": 2**63 - 1,
            "MAX_RECORDS": 2**31,
            "SPECIAL": SPECIAL,
            "CHECKS": 1,
            **wanted,
        }
        for name, value in given.items():
            state[getattr(kernels, f"WALK_{name}")] = value
        plan = np.zeros((room, 3), np.int64)
        self.count = int(kernels.walk_plain(frozen(data), state, plan))
        self.places = plan[: self.count].tolist()
        self.position = int(state[kernels.WALK_POSITION])
        self.records = int(state[kernels.WALK_RECORDS])


def batch(offset: int, count: int = 3) -> bytes:
    records = [Record(offset + at, 1000, b"k", b"v" * 50) for at in range(count)]
    return bytes(build_batch(records, base_offset=offset))


def changed(data: bytes, at: int, to: int) -> bytes:
    copy = bytearray(data)
    copy[at] = to
    return bytes(copy)


def test_it_goes_past_whole_batches_and_plans_them(kernels: ModuleType) -> None:
    first, second = batch(5), batch(8, 20)
    walked = Walked(kernels, first + second + batch(28)[:-1])
    end = len(first)
    assert walked.places == [[0, 61, end], [end, end + 61, end + len(second)]]
    assert walked.position == end + len(second)
    assert walked.records == 23


@pytest.mark.parametrize(
    "wanted",
    [
        {"LIMIT": 1},
        {"MAX_RECORDS": 1},
        {"END_OFFSET": 8},
        {"room": 1},
    ],
)
def test_it_stops_at_every_limit(kernels: ModuleType, wanted: dict[str, int]) -> None:
    first = batch(5)
    walked = Walked(kernels, first + batch(8), **wanted)
    assert walked.count == 1
    assert walked.position == len(first)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(changed(batch(8), 16, 1), id="an older format"),
        pytest.param(changed(batch(8), 22, 0x20), id="a control batch"),
        pytest.param(changed(batch(8), 22, 0x04), id="a compressed batch"),
        pytest.param(changed(batch(8), -1, 0xFF), id="a wrong checksum"),
        pytest.param(changed(batch(8), 8, 0x80), id="a negative length"),
        pytest.param(changed(batch(8), 8, 0x7F), id="a length beyond the end"),
        pytest.param(changed(batch(8), 23, 0x80), id="a negative last offset"),
        pytest.param(changed(batch(8), 0, 0x80), id="a negative offset"),
        pytest.param(batch(8)[:60], id="part of a header"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_it_leaves_what_is_anything_else(kernels: ModuleType, second: bytes) -> None:
    first = batch(5)
    walked = Walked(kernels, first + second)
    assert walked.count == 1
    assert walked.position == len(first)


def test_a_start_inside_of_a_batch_is_not_for_it(kernels: ModuleType) -> None:
    assert Walked(kernels, batch(5), START_OFFSET=6).count == 0
    assert Walked(kernels, batch(5), START_OFFSET=5).count == 1


def test_checksums_are_not_looked_at_unless_asked_for(kernels: ModuleType) -> None:
    damaged = changed(batch(5), -1, 0xFF)
    assert Walked(kernels, damaged).count == 0
    assert Walked(kernels, damaged, CHECKS=0).count == 1
