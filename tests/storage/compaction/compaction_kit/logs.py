"""A log that is appended to, compacted and looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from storage_kit.logs import NOW, a_marker, stored_batches

from ottla.record.batch import Record, build_batch, read_header, records
from ottla.storage.compaction.plan import wants_cleaning
from ottla.storage.compaction.rewrite import Outcome, run_over
from ottla.storage.compaction.swap import Compaction, dirt_of
from ottla.storage.config import LogConfig
from ottla.storage.log.log import COORDINATOR, Log

# Key and value.
Pair = tuple[bytes | None, bytes | None]

MAP_BYTES = 1 << 20
FAST = 1e308


def compacting(**settings: Any) -> LogConfig:
    """Small segments, and anything dirty is worth a pass."""
    given = {
        "cleanup_policy": ("compact",),
        "segment_bytes": 8000,
        "index_interval_bytes": 100,
        "segment_index_bytes": 4000,
        "min_cleanable_dirty_ratio": 0.0,
        "file_delete_delay_ms": 0,
    }
    return LogConfig(**(given | settings))


def pairs_batch(
    pairs: Sequence[Pair], timestamp: int = NOW, *, base_offset: int = 0, **header: Any
) -> bytearray:
    every = [
        Record(base_offset + number, timestamp, key, value)
        for number, (key, value) in enumerate(pairs)
    ]
    return bytearray(build_batch(every, base_offset=base_offset, **header))


def append(log: Log, pairs: Sequence[Pair], now_ms: int = NOW, **header: Any) -> int:
    """Appends one batch and makes it visible; its base offset."""
    done = log.append(pairs_batch(pairs, now_ms, **header), 0, now_ms, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    return done.base_offset


def end_transaction(log: Log, producer_id: int, *, committed: bool, epoch: int = 0) -> int:
    done = log.append(a_marker(producer_id, committed=committed, epoch=epoch), 0, NOW, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    return done.base_offset


def seal(log: Log, now_ms: int = NOW) -> None:
    """Everything that was appended can be compacted."""
    log.roll(now_ms)
    log.flush(now_ms)


def begin(log: Log, now_ms: int = NOW, map_bytes: int = MAP_BYTES) -> Compaction | None:
    """What the server does, as long as there is something to do."""
    dirt = dirt_of(log, log.recovery_point, now_ms)
    if not wants_cleaning(dirt, log.config):
        return None
    return Compaction(log, dirt, now_ms, map_bytes, FAST)


def put_in_place(compaction: Compaction, outcome: Outcome) -> bool:
    complete = True
    for replacement in outcome.replacements:
        swap = compaction.swap(replacement)
        if swap is None:
            complete = False
            continue
        swap.run()
        complete = complete and compaction.log.offline is None
        if swap.retired is not None and compaction.log.offline is None:
            swap.retired.remove()
    compaction.finish(outcome if complete else None)
    return complete


def compact(log: Log, now_ms: int = NOW, map_bytes: int = MAP_BYTES) -> int:
    """Passes until nothing is dirty; their number."""
    passes = 0
    while (compaction := begin(log, now_ms, map_bytes)) is not None:
        assert put_in_place(compaction, run_over(compaction.job, log.files))
        passes += 1
        assert passes < 1000, "no end to it"
    return passes


def records_of(log: Log, *, control: bool = False) -> Iterator[Record]:
    """All records that a reader of everything sees."""
    for _, _, batch in stored_batches(log):
        if control or not read_header(batch).is_control:
            yield from records(batch)


def kept(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(log)]


def headers_of(log: Log) -> list[Any]:
    return [read_header(batch) for _, _, batch in stored_batches(log)]


def latest(
    appended: Iterable[tuple[int, bytes | None, bytes | None]], below: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """The naive model: of each key that occurs below an offset, the last record; all from there on."""
    every = list(appended)
    last = {key: offset for offset, key, _ in every if offset < below}
    return [
        (offset, key, value)
        for offset, key, value in every
        if offset >= below or (key is not None and last[key] == offset)
    ]
