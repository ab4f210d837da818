"""Compaction of logs from which single records were deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from compaction_kit.logs import append, compact, compacting, kept, seal
from storage_kit.logs import NOW, LogMaker

from ottla.record.deletion import build_mark, read_mark
from ottla.storage.log.log import COORDINATOR, Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return LogMaker(str(tmp_path), compacting()).create()


def mark(log: Log, *ranges: tuple[int, int], committed: bool = True) -> int:
    done = log.append(bytearray(build_mark(ranges)), 0, NOW, COORDINATOR)
    if committed:
        log.advance_high_watermark(log.log_end_offset)
    return done.base_offset


@pytest.mark.parametrize("is_ahead", [True, False], ids=["compacted before", "not yet"])
def test_a_deleted_record_is_still_the_last_of_its_key(log: Log, is_ahead: bool) -> None:
    """One replica may have been compacted before the mark came, and lost what the deleted record had
    taken the place of; another one, compacted later, must come to the same."""
    append(log, [(b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4")])
    seal(log)
    if is_ahead:
        assert compact(log)
        assert kept(log) == [(3, b"b", b"3"), (4, b"a", b"4")]
    mark(log, (3, 5))
    append(log, [(b"c", b"6")])
    seal(log)
    assert compact(log)
    assert kept(log) == [(6, b"c", b"6")]


def test_it_does_not_go_before_its_key_was_collected(log: Log) -> None:
    """A pass whose map is full collects the keys of some records only, in the middle of a segment."""
    append(log, [(b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (b"c", b"3")])
    mark(log, (2, 3))
    seal(log)
    assert compact(log, map_bytes=1) > 1
    assert kept(log) == [(1, b"b", b"1"), (3, b"c", b"3")]


def test_it_is_not_erased_before_its_mark_is_committed(log: Log) -> None:
    append(log, [(b"a", b"0"), (b"b", b"1"), (b"a", b"2")])
    seal(log)
    append(log, [(b"c", b"3")])
    mark(log, (2, 3), committed=False)
    assert compact(log)
    assert (0, b"a", b"0") not in kept(log)
    assert (2, b"a", b"2") in kept(log)


def test_marks_stay(log: Log) -> None:
    append(log, [(b"a", b"0"), (b"b", b"1")])
    where = mark(log, (1, 2))
    append(log, [(b"a", b"3")])
    seal(log)
    assert compact(log)
    append(log, [(b"a", b"4")])
    seal(log)
    assert compact(log)
    assert kept(log) == [(4, b"a", b"4")]
    piece = log.read(where, 1, log.log_end_offset)
    assert piece is not None
    assert read_mark(piece.read()) == [(1, 2)]
    assert log.deletions is not None
    assert log.deletions.invisible.between(0, 3) == [(1, 3)]
