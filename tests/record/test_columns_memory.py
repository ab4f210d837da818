"""Memory that is used again once nobody sees it any more."""

from __future__ import annotations

import random
import threading

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


def test_nobody_gets_what_another_thread_has() -> None:
    memory = Memory(limit=64 * MIB)
    wrong: list[int] = []

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(300):
            held = [memory.take(dice.choice((MIB, MIB + 10))) for _ in range(dice.randrange(1, 4))]
            for at, buffer in enumerate(held):
                buffer[:: MIB // 8] = (number * 8 + at) % 251
            for at, buffer in enumerate(held):
                if (buffer[:: MIB // 8] != (number * 8 + at) % 251).any():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
