"""The short way of an append: where it takes a batch, it does what the long way does; where it does not,
it has changed nothing."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from storage_kit.logs import NOW, AttentiveOwner, LogMaker, a_batch, a_marker, stored_batches
from storage_kit.memory import verify_log

from ottla.record.batch import (
    ATTRIBUTES_AT,
    BATCH_LENGTH,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    check_produced,
)
from ottla.record.compression.codecs import Codec
from ottla.record.errors import InvalidBatch, InvalidRecord
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline, StorageError
from ottla.storage.files import OS_FILES, Files
from ottla.storage.log.log import CLIENT, COORDINATOR, Log

SMALL = LogConfig(
    segment_bytes=3000,
    max_message_bytes=900,
    index_interval_bytes=200,
    segment_index_bytes=600,
    flush_messages=8,
)


def begun(log: Log) -> Log:
    """With two batches: the first makes the segment's file, the second asks how old it may get."""
    for _ in range(2):
        log.append(a_batch(b"before"), 0, NOW)
    return log


def a_log(folder: Path, config: LogConfig = SMALL, files: Files | None = None) -> Log:
    folder.mkdir(exist_ok=True)
    return LogMaker(str(folder), config, files or OS_FILES, owner=AttentiveOwner()).create()


def facts(log: Log) -> dict[str, object]:
    """All that an append may change."""
    assert isinstance(log.owner, AttentiveOwner)
    active = log.active
    return {
        "offsets": (log.log_start_offset, log.log_end_offset, log.high_watermark),
        "bytes": (log.appended_bytes, log.unflushed_since, log.size),
        "told": list(log.owner.told),
        "producers": repr(sorted(log.producers.producers.items())),
        "producers end": log.producers.map_end_offset,
        "open": list(log.producers.open_transactions()),
        "segments": [
            (each.base_offset, each.size, each.max_timestamp, each.offset_of_max_timestamp)
            for each in log.segments
        ],
        "tail": (active.tail_start, active.tail_last_offsets, active.tail_positions),
        "index": (active.bytes_since_index, active.index_full, list(active.offset_index.entries())),
        "times": (list(active.time_index.entries()), active.roll_after),
        "epoch": log.epochs.latest_epoch,
        "batches": list(stored_batches(log)),
    }


def long_way(log: Log, batch: bytearray, epoch: int, now: int) -> object:
    try:
        return log.append(batch, epoch, now, CLIENT).base_offset
    except (InvalidBatch, StorageError) as error:
        return type(error)


def either_way(log: Log, batch: bytearray, epoch: int, now: int) -> tuple[object, bool]:
    """As a partition does it; second, whether the short way was gone."""
    sent, before = bytes(batch), facts(log)
    try:
        fields = check_produced(batch)
        if fields[BATCH_LENGTH] + LENGTH_OVERHEAD != len(batch):
            raise InvalidRecord("more than one batch")
    except InvalidBatch as error:
        assert batch == sent
        return type(error), False
    offset = log.append_simple(memoryview(batch), fields, epoch, now)
    if offset >= 0:
        return offset, True
    assert batch == sent
    assert facts(log) == before
    try:
        return log.append(batch, epoch, now, CLIENT, fields).base_offset, False
    except (InvalidBatch, StorageError) as error:
        assert batch == sent, "a refused batch has been changed"
        return type(error), False


def short_way(log: Log, batch: bytearray) -> int:
    return log.append_simple(memoryview(batch), check_produced(batch), 0, NOW)


class Producers:
    """Batches that are mostly in order, and sometimes anything."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.next = dict.fromkeys(range(4), 0)

    def batch(self, now: int) -> bytearray:
        chance = self.chance
        producer = chance.randrange(-3, 4)
        count = chance.randint(1, 4)
        value = chance.randbytes(chance.choice((0, 10, 60, 200)))
        timestamp = now - chance.choice((0, 0, 0, 5, 700_000, 5_000_000, -10, now + 1))
        codec = chance.choice((Codec.NONE,) * 6 + (Codec.GZIP, Codec.LZ4))
        if producer < 0:
            return a_batch(value, count=count, timestamp=timestamp, codec=codec)
        sequence = self.next[producer] + chance.choice((0,) * 12 + (1, -count, -100))
        if sequence == self.next[producer]:
            self.next[producer] += count
        return a_batch(
            value,
            count=count,
            timestamp=timestamp,
            codec=codec,
            producer_id=producer,
            producer_epoch=chance.choice((0,) * 20 + (1,)),
            base_sequence=sequence,
            transactional=producer == 3,
        )

    def damaged(self, batch: bytearray) -> bytearray:
        """A byte of the header is another one; the checksum may have been made to fit."""
        at = self.chance.randrange(HEADER_SIZE + 1)
        batch[at] ^= 1 << self.chance.randrange(8)
        if self.chance.random() < 0.7:
            checksum = crc32c(bytes(batch[ATTRIBUTES_AT:]))
            batch[CRC_AT : CRC_AT + 4] = checksum.to_bytes(4, "big")
        return batch


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_lead_to_the_same(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    config = SMALL
    if seed % 4 == 3:
        config = replace(SMALL, message_timestamp_type="LogAppendTime")
    logs = a_log(tmp_path / "long", config), a_log(tmp_path / "either", config)
    producers = Producers(chance)
    now, epoch, short = NOW, 0, 0
    for step in range(400):
        now += chance.choice((0, 1, 50, 5_000))
        epoch += chance.random() < 0.01
        batch = producers.batch(now)
        if chance.random() < 0.15:
            batch = producers.damaged(batch)
        if chance.random() < 0.02:
            del batch[chance.randrange(1, len(batch)) :]
        expected = long_way(logs[0], bytearray(batch), epoch, now)
        found, shortly = either_way(logs[1], batch, epoch, now)
        assert found == expected, f"step {step}"
        short += shortly
        if chance.random() < 0.05:
            for log in logs:
                known = log.producers.producers.get(3)
                marker = a_marker(3, committed=True, epoch=known.epoch if known else 0, now=now)
                log.append(marker, epoch, now, COORDINATOR)
        for log in logs:
            log.advance_high_watermark(log.log_end_offset)
        assert facts(logs[1]) == facts(logs[0]), f"step {step}"
    assert list(verify_log(logs[1])) == []
    # It was no idle comparison.
    assert short > 30 if config is SMALL else not short


class FailingWrites(Files):
    """Writes of batches stop half-way, then fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if not self.failing:
            return super().pwrite(fd, data, position)
        super().pwrite(fd, data[: len(data) // 2], position)
        raise OSError(errno.EIO, "broken")


def test_a_failed_write_takes_the_log_offline(tmp_path: Path) -> None:
    files = FailingWrites()
    log = begun(a_log(tmp_path, files=files))
    assert short_way(log, a_batch(b"second")) == 2
    size = log.size
    files.failing = True
    with pytest.raises(LogOffline):
        short_way(log, a_batch(b"third"))
    assert (log.log_end_offset, log.size) == (3, size)
    assert Path(log.active.path).stat().st_size == size
    files.failing = False
    assert short_way(log, a_batch(b"fourth")) == -1
    with pytest.raises(LogOffline):
        log.append(a_batch(b"fourth"), 0, NOW)


class ShortWrites(Files):
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return super().pwrite(fd, data[:50], position)


def test_a_write_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    log = begun(a_log(tmp_path, files=ShortWrites()))
    batch = a_batch(b"second" * 30)
    assert short_way(log, batch) == 2
    assert [data for _, _, data in stored_batches(log)][2] == batch
    assert list(verify_log(log)) == []


def test_nothing_passes_an_append_that_is_on_its_way(tmp_path: Path) -> None:
    log = begun(a_log(tmp_path))
    append = log.prepare(a_batch(b"second"), 0, NOW)
    log.hand_out(append)
    assert short_way(log, a_batch(b"third")) == -1
    log.write(append)
    log.commit(append)
    assert short_way(log, a_batch(b"third")) == 3
