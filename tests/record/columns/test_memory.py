"""Memory that is used again once nobody sees it any more."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ottla.record.columns.pool import Memory

MIB = 1 << 20


def test_a_buffer_comes_back_when_its_last_view_is_gone() -> None:
    memory = Memory(limit=10 * MIB)
    buffer = memory.take(3 * MIB)
    place = buffer.ctypes.data
    column = pa.py_buffer(buffer[:100].view(np.int32))
    del buffer
    assert memory.kept == 0, "an Arrow buffer has it"
    another = memory.take(3 * MIB)
    assert another.ctypes.data != place
    del column
    assert memory.kept == 3 * MIB
    assert memory.take(3 * MIB - 5).ctypes.data == place, "somewhat smaller is good enough"


def test_much_smaller_and_larger_ones_are_others() -> None:
    memory = Memory(limit=10 * MIB)
    memory.take(4 * MIB)
    assert memory.kept == 4 * MIB
    small, large = memory.take(MIB), memory.take(4 * MIB + 1)
    assert memory.kept == 4 * MIB
    assert (len(small), len(large)) == (MIB, 4 * MIB + 1)


def test_no_more_is_kept_than_the_limit() -> None:
    memory = Memory(limit=10 * MIB)
    taken = [memory.take(3 * MIB) for _ in range(5)]
    taken.clear()
    assert memory.kept == 9 * MIB
    memory.take(11 * MIB)
    assert memory.kept == 0, "what is too large takes the place of all, and goes itself"
