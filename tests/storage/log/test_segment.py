"""One segment: finding batches through tail, index and scan; indexes made anew; old formats."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from storage_kit.logs import NOW, LogMaker, a_batch, close_cleanly
from storage_kit.memory import verify_log

from ottla.logfiles.walk import walk, walk_checked
from ottla.record.batch import Record
from ottla.record.compression.codecs import Codec
from ottla.record.errors import CorruptBatch, Truncated
from ottla.record.legacy import build_message_set
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptLog
from ottla.storage.files import OS_FILES
from ottla.storage.log.log import Log
from ottla.storage.segments.file import OpenFiles
from ottla.storage.segments.segment import TAIL_BATCHES, Segment


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), LogConfig(index_interval_bytes=500))


def filled(maker: LogMaker, count: int, seed: int = 1) -> tuple[Log, list[tuple[int, int]]]:
    """A log of one segment, and (last offset, position) of its batches."""
    chance = random.Random(seed)
    log = maker.create()
    batches = []
    for _ in range(count):
        position = log.active.size
        value = chance.randbytes(chance.choice((0, 10, 100, 3000)))
        append = log.append(a_batch(value, count=chance.randint(1, 4)), 0, NOW)
        batches.append((append.last_offset, position))
    return log, batches


def expected_position(batches: list[tuple[int, int]], offset: int) -> int:
    return next(position for last_offset, position in batches if last_offset >= offset)


def test_the_tail_forgets_and_the_index_takes_over(maker: LogMaker) -> None:
    log, batches = filled(maker, 3 * TAIL_BATCHES)
    segment = log.active
    assert TAIL_BATCHES // 2 <= len(segment.tail_positions) <= TAIL_BATCHES
    assert 0 < segment.tail_start < log.log_end_offset
    for offset in (0, 1, 700, segment.tail_start - 1, segment.tail_start, log.log_end_offset - 1):
        found = segment.locate(offset)
        assert found is not None
        assert found[0] == expected_position(batches, offset)
    assert segment.locate(log.log_end_offset) is None


def test_index_entries_are_where_kafka_puts_them(maker: LogMaker) -> None:
    """The first batch that begins more than the interval after the last entry's batch."""
    log, batches = filled(maker, 300)
    expected = []
    since = 0
    for number, (last_offset, position) in enumerate(batches):
        end = batches[number + 1][1] if number + 1 < len(batches) else log.active.size
        if since > 500:
            expected.append((last_offset, position))
            since = 0
        since += end - position
    assert list(log.active.offset_index.entries()) == expected


def test_a_missing_or_broken_index_is_made_anew(maker: LogMaker) -> None:
    log, batches = filled(maker, 300)
    end = close_cleanly(log)
    path = log.active.stem + ".index"
    for damage in (b"", b"\xff" * 80, b"\0" * 12, os.urandom(800)):
        Path(path).write_bytes(damage)
        again = maker.load(clean=True, recovery_point=end)
        for offset in range(0, end, 7):
            found = again.active.locate(offset)
            assert found is not None
            assert found[0] == expected_position(batches, offset)
    os.unlink(path)
    again = maker.load(clean=True, recovery_point=end)
    assert again.log_end_offset == end
    found = again.active.locate(end - 1)
    assert found is not None


def test_an_index_that_lies_is_noticed_in_the_log(maker: LogMaker) -> None:
    maker.config = LogConfig(segment_bytes=50_000, index_interval_bytes=500)
    log, batches = filled(maker, 300)
    close_cleanly(log)
    first = log.segments[0]
    index = Path(first.stem + ".index")
    entries = bytearray(index.read_bytes())
    for at in range(4, len(entries), 8):  # positions that are no batch's
        entries[at : at + 4] = (int.from_bytes(entries[at : at + 4], "big") + 3).to_bytes(4, "big")
    index.write_bytes(entries)
    again = maker.load(clean=True, recovery_point=log.log_end_offset)
    for offset in range(0, again.segments[1].base_offset, 5):
        found = again.segments[0].locate(offset)
        assert found is not None
        assert found[0] == expected_position(batches, offset)
    assert list(verify_log(again)) == []


def test_a_broken_log_is_said_to_be(maker: LogMaker) -> None:
    log, batches = filled(maker, 50)
    close_cleanly(log)
    with open(log.active.path, "r+b") as file:
        file.seek(batches[20][1] + 8)
        file.write(b"\xff\xff\xff\xff")
    segment = Segment(
        maker.folder, 0, OS_FILES, OpenFiles(OS_FILES), 1 << 20, size=log.active.size, sealed=True
    )
    with pytest.raises(CorruptLog):
        segment.rebuild_indexes()


@pytest.mark.parametrize("chunk", [61, 100, 4096, 1 << 20])
def test_walks_see_every_batch_whatever_the_size_of_a_read(maker: LogMaker, chunk: int) -> None:
    log, batches = filled(maker, 60)
    file, size = log.active.file(), log.active.size
    assert [at for at, _, _ in walk(file, 0, size, chunk)] == [at for _, at in batches]
    checked = list(walk_checked(file, 0, size, chunk))
    assert [at for at, _, _, _ in checked] == [at for _, at in batches]
    assert b"".join(batch for _, _, _, batch in checked) == Path(log.active.path).read_bytes()


def test_a_walk_ends_where_the_batches_do(maker: LogMaker) -> None:
    log, batches = filled(maker, 10)
    file, size = log.active.file(), log.active.size
    steps = walk(file, 0, size - 1)
    assert [next(steps)[0] for _ in range(9)] == [at for _, at in batches[:9]]
    with pytest.raises(Truncated):
        next(steps)
    torn = bytearray(Path(log.active.path).read_bytes())
    torn[batches[4][1] + 62] ^= 1
    Path(log.active.path).write_bytes(torn)
    checked = walk_checked(log.active.file(), 0, size)
    assert [next(checked)[0] for _ in range(4)] == [at for _, at in batches[:4]]
    with pytest.raises(CorruptBatch):
        next(checked)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_segments_in_the_old_formats(maker: LogMaker, magic: int, codec: Codec) -> None:
    """As a Kafka before 0.11 left them: served, searched, verified, and appended to."""
    os.mkdir(maker.folder)
    offset = 0
    chance = random.Random(3)
    content = b""
    sets = []
    while len(content) < 30_000:
        count = chance.randint(1, 5) if codec else 1
        records = [
            Record(
                offset + n,
                NOW + offset + n if magic else -1,
                None,
                chance.randbytes(chance.randint(0, 99)),
            )
            for n in range(count)
        ]
        encoded = bytes(build_message_set(records, magic=magic, codec=codec))
        sets.append((offset + count - 1, len(content)))
        content += encoded
        offset += count
    Path(maker.folder, "00000000000000000000.log").write_bytes(content)
    log = maker.load()
    assert log.log_end_offset == offset
    assert list(verify_log(log)) == []
    for wanted in range(0, offset, 3):
        part = log.read(wanted, 1, offset)
        assert part is not None
        assert part.position == expected_position(sets, wanted)
    if magic:
        assert log.offset_for_time(NOW + 17) == (NOW + 17, 17, -1)
        assert log.offset_of_max_timestamp() == (NOW + offset - 1, offset - 1, -1)
    # New batches go after old ones.
    assert log.append(a_batch(), 0, NOW).base_offset == offset
    end = close_cleanly(log)
    again = maker.load(clean=True, recovery_point=end)
    assert again.log_end_offset == offset + 1
    assert list(verify_log(again)) == []


def test_a_torn_end_in_the_old_formats(maker: LogMaker) -> None:
    os.mkdir(maker.folder)
    whole = b"".join(
        bytes(build_message_set([Record(n, NOW, b"k", b"v" * 50)], magic=1, codec=Codec.NONE))
        for n in range(10)
    )
    path = Path(maker.folder, "00000000000000000000.log")
    for cut in (1, 20, 33):
        path.write_bytes(whole[:-cut])
        assert maker.load().log_end_offset == 9
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert maker.load().log_end_offset == 9
    assert path.stat().st_size == len(whole) // 10 * 9
