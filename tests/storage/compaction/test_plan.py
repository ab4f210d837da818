"""What is dirty, what may be cleaned, which segments become one."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ottla.storage.compaction.plan import (
    LARGEST_GROUP,
    Dirt,
    SourceSegment,
    Weight,
    assess,
    group,
    wants_cleaning,
)
from ottla.storage.config import LogConfig

NOW = 1_000_000


class Sealed(NamedTuple):
    base_offset: int
    size: int = 100
    max_timestamp: int = 0
    first: int = 0

    def read_first_timestamp(self) -> int:
        return self.first


def compacting(**settings: int | float) -> LogConfig:
    return LogConfig(cleanup_policy=("compact",), **settings)  # type: ignore[arg-type]


def dirt(
    segments: list[Sealed],
    config: LogConfig | None = None,
    *,
    active: int = 100,
    checkpoint: int = 0,
    start: int = 0,
    end: int = 120,
    stable: int = 120,
) -> Dirt:
    return assess(
        segments,
        active,
        config or compacting(),
        checkpoint=checkpoint,
        log_start=start,
        log_end=end,
        stable_end=stable,
        now_ms=NOW,
    )


SEGMENTS = [Sealed(0), Sealed(30), Sealed(60)]


def test_all_sealed_segments_are_dirty_at_first() -> None:
    found = dirt(SEGMENTS)
    assert found == Dirt(0, 100, 0, 300, overdue=False)
    assert found.ratio == 1.0


def test_what_was_cleaned_is_clean() -> None:
    found = dirt(SEGMENTS, checkpoint=60)
    assert found == Dirt(60, 100, 200, 100, overdue=False)
    assert found.ratio == pytest.approx(1 / 3)
    assert dirt(SEGMENTS, checkpoint=100).dirty_bytes == 0


def test_a_segment_in_which_a_pass_stopped_counts_as_both() -> None:
    found = dirt(SEGMENTS, checkpoint=40)
    assert (found.clean_bytes, found.dirty_bytes) == (200, 200)


@pytest.mark.parametrize(
    ("stable", "uncleanable", "dirty"), [(120, 100, 300), (99, 60, 200), (60, 60, 200), (0, 0, 0)]
)
def test_a_segment_with_anything_unstable_stays(stable: int, uncleanable: int, dirty: int) -> None:
    found = dirt(SEGMENTS, stable=stable)
    assert (found.first_uncleanable, found.dirty_bytes) == (uncleanable, dirty)


def test_young_segments_stay_with_all_behind_them() -> None:
    segments = [
        Sealed(0, max_timestamp=NOW - 5000),
        Sealed(30, max_timestamp=NOW - 100),
        Sealed(60, max_timestamp=NOW - 5000),
    ]
    assert dirt(segments, compacting(min_compaction_lag_ms=1000)).first_uncleanable == 30
    assert dirt(segments, compacting(min_compaction_lag_ms=50)).first_uncleanable == 100
    # What was cleaned before may be rewritten, however young.
    found = dirt(segments, compacting(min_compaction_lag_ms=1000), checkpoint=60)
    assert (found.first_uncleanable, found.clean_bytes, found.dirty_bytes) == (100, 200, 100)


def test_a_checkpoint_outside_of_the_log_counts_for_nothing() -> None:
    assert dirt(SEGMENTS, checkpoint=121).first_dirty == 0
    assert dirt(SEGMENTS, checkpoint=10, start=35).first_dirty == 35


def test_when_a_pass_is_worth_it() -> None:
    config = compacting(min_cleanable_dirty_ratio=0.5)
    assert wants_cleaning(Dirt(0, 9, 49, 51, overdue=False), config)
    assert not wants_cleaning(Dirt(0, 9, 50, 50, overdue=False), config)
    assert wants_cleaning(Dirt(0, 9, 99, 1, overdue=True), config)
    assert not wants_cleaning(Dirt(0, 9, 99, 0, overdue=True), config)
    assert not wants_cleaning(Dirt(0, 9, 0, 51, overdue=True), LogConfig())


def test_a_record_may_not_wait_longer_than_the_largest_lag() -> None:
    segments = [Sealed(0, first=NOW - 9000), Sealed(30, first=NOW - 500), Sealed(60, first=-1)]
    config = compacting(max_compaction_lag_ms=1000)
    assert dirt(segments, config).overdue
    assert not dirt(segments, config, checkpoint=30).overdue
    assert not dirt(segments, compacting()).overdue


def groups_of(*sources: tuple[int, int, int, int], most: int = 100, index: int = 100) -> list[int]:
    """The number of sources in each group, from (base, end, size, index size)."""
    weighed = [
        (SourceSegment(base, end, size), Weight(size, index_size, index_size // 2))
        for base, end, size, index_size in sources
    ]
    return [len(sources) for sources in group(weighed, most, index)]


def test_neighbours_become_one_as_long_as_they_fit() -> None:
    assert groups_of((0, 10, 40, 0), (10, 20, 60, 0), (20, 30, 1, 0), (30, 40, 99, 0)) == [2, 2]
    assert groups_of((0, 10, 500, 0), (10, 20, 1, 0), (20, 30, 500, 0)) == [1, 1, 1]
    assert groups_of((0, 10, 1, 60), (10, 20, 1, 60), (20, 30, 1, 40)) == [1, 2]
    assert groups_of() == []


def test_not_too_many_become_one() -> None:
    count = LARGEST_GROUP + 10
    assert groups_of(*((base, base + 1, 0, 0) for base in range(count))) == [LARGEST_GROUP, 10]


def test_offsets_stay_within_32_bits_of_the_first() -> None:
    far = 2**31
    assert groups_of((0, 10, 1, 0), (10, far, 1, 0)) == [2]
    assert groups_of((0, 10, 1, 0), (10, far + 1, 1, 0), (far + 1, far + 2, 1, 0)) == [1, 2]
