"""The map of keys: last offsets, long keys, and its bound."""

from __future__ import annotations

import sys

from ottla.storage.compaction.offset_map import LONGEST_PLAIN_KEY, OffsetMap


def test_a_key_has_its_last_offset() -> None:
    keys = OffsetMap(1 << 20)
    assert keys.put(b"a", 1)
    assert keys.put(b"b", 2)
    assert keys.put(b"a", 3)
    assert (keys.last_offset(b"a"), keys.last_offset(b"b"), keys.last_offset(b"c")) == (3, 2, -1)
    assert len(keys) == 2


def test_long_keys_differ_in_any_byte_and_are_no_short_ones() -> None:
    keys = OffsetMap(1 << 20)
    long = [b"x" * 100 + bytes((number,)) for number in range(50)]
    short = [b"x" * length for length in range(LONGEST_PLAIN_KEY + 1)]
    for offset, key in enumerate(long + short):
        assert keys.put(key, offset)
    assert [keys.last_offset(key) for key in long + short] == list(range(50 + len(short)))


def test_a_full_map_takes_no_new_key_but_later_offsets_of_known_ones() -> None:
    keys = OffsetMap(10_000)
    count = 0
    while keys.put(b"%d" % count, count):
        count += 1
    assert 30 < count < 300
    assert keys.last_offset(b"%d" % count) == -1
    assert keys.put(b"0", 1000)
    assert keys.last_offset(b"0") == 1000
    # At least one goes into any.
    assert OffsetMap(0).put(b"key", 0)


def test_the_bound_is_about_what_python_takes() -> None:
    keys = OffsetMap(1 << 40)
    for number in range(20_000):
        keys.put(b"%016d" % number, number + 1_000_000)
    table = keys._offsets
    real = sys.getsizeof(table) + sum(
        sys.getsizeof(key) + sys.getsizeof(offset) for key, offset in table.items()
    )
    assert 0.8 * real < keys.used < 2 * real
