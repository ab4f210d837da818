"""What is read from the log when a file beside it does not tell: batches of producers (a snapshot has
one of each), and aborted transactions (of which a damaged index tells nothing)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from storage_kit.logs import NOW, LogMaker, a_batch, a_marker, close_cleanly

from ottla.storage.config import LogConfig
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.recovery import replay

LARGE = b"x" * 100_000


def write(log: Log, producer: int, sequence: int, value: bytes = LARGE, count: int = 1) -> None:
    batch = a_batch(
        value,
        count=count,
        timestamp=NOW + sequence,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )
    log.append(batch, 0, NOW)


def remembered(log: Log) -> dict[int, list[tuple[int, int, int, int, int]]]:
    return {key: list(state.batches) for key, state in log.producers.producers.items()}


def test_the_last_five_batches_are_known_after_a_clean_stop(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    for sequence in range(8):
        write(log, 1, sequence * 2, count=2)
    for sequence in range(3):
        write(log, 2, sequence, b"small")
    before = remembered(log)
    assert [len(batches) for batches in before.values()] == [5, 3]
    end = close_cleanly(log)
    again = maker.load(clean=True, recovery_point=end, high_watermark=end)
    assert again.producers.snapshots == (end,), (
        "the snapshot must be at the log's end for this test"
    )
    assert remembered(again) == before


@pytest.mark.parametrize("how", ["clean stop", "stop with a snapshot", "kill"])
def test_a_producer_of_old_records_is_known_after_a_restart(tmp_path: Path, how: str) -> None:
    """A backfill: what it sent before the restart, and sends again, is stored once."""
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    days_ago = NOW - 3 * 86_400_000
    value = LARGE * 3 if how == "stop with a snapshot" else b"small"

    def send(log: Log, sequence: int, now: int) -> int:
        batch = a_batch(
            value, timestamp=days_ago, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        return log.append(batch, 0, now).base_offset

    for sequence in range(3):
        assert send(log, sequence, NOW) == sequence
    if how == "kill":
        log.close()
        later = NOW + 1000
        log = maker.load(recovery_point=0, now_ms=later)
    else:
        end = close_cleanly(log)
        # The broker was down for longer than producers are remembered.
        later = NOW + 2 * 86_400_000
        log = maker.load(clean=True, recovery_point=end, high_watermark=end, now_ms=later)
        assert bool(log.producers.snapshots) == (how == "stop with a snapshot")
    assert log.producers.expire(later + 1000) == 0
    assert [send(log, sequence, later + 1000) for sequence in (0, 1, 2, 3)] == [0, 1, 2, 3]
    assert log.log_end_offset == 4


def test_batches_in_earlier_segments_are_known(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path), LogConfig(segment_bytes=250_000))
    log = maker.create()
    for sequence in range(9):
        write(log, 1, sequence)
    before = remembered(log)
    end = close_cleanly(log)
    again = maker.load(clean=True, recovery_point=end, high_watermark=end)
    assert len(again.segments) > 3
    assert remembered(again) == before


def test_a_batch_before_a_marker_has_its_own_timestamp(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    for sequence in range(4):
        batch = a_batch(
            LARGE,
            timestamp=NOW + sequence,
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append(batch, 0, NOW)
    log.append(a_marker(1, committed=True, now=NOW + 500), 0, NOW, COORDINATOR)
    before = remembered(log)
    assert before[1][-1][4] == NOW + 3
    end = close_cleanly(log)
    assert remembered(maker.load(clean=True, recovery_point=end)) == before


def test_batches_of_an_earlier_epoch_are_not(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    for sequence in range(3):
        write(log, 1, sequence)
    batch = a_batch(LARGE, timestamp=NOW, producer_id=1, producer_epoch=1, base_sequence=0)
    log.append(batch, 0, NOW)
    before = remembered(log)
    assert [first for first, *_ in before[1]] == [0]
    end = close_cleanly(log)
    assert remembered(maker.load(clean=True, recovery_point=end)) == before


def test_only_so_much_of_the_log_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that has been silent for long is known by its last batch, as in Kafka."""
    monkeypatch.setattr(replay, "RECALLED_ENTRIES", 4)
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    for sequence in range(5):
        write(log, 1, sequence)
    for sequence in range(20):
        write(log, 2, sequence)
    before = remembered(log)
    end = close_cleanly(log)
    again = remembered(maker.load(clean=True, recovery_point=end))
    assert [batch[:4] for batch in again[1]] == [before[1][-1][:4]]
    assert again[2] == before[2]


def test_damage_where_nobody_reads_does_not_keep_the_log_from_loading(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path), LogConfig(segment_bytes=250_000))
    log = maker.create()
    for sequence in range(9):
        write(log, 1, sequence)
    end = close_cleanly(log)
    earlier = Path(maker.folder) / "00000000000000000004.log"
    earlier.write_bytes(bytes(earlier.stat().st_size))
    again = maker.load(clean=True, recovery_point=end)
    assert again.log_end_offset == end
    assert remembered(again)[1][-1][0] == 8


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def swap_entries(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[-34:] + data[34:-34] + data[:34])


def transactions(log: Log, first: int, count: int) -> None:
    """Each of two batches and an end, every second one aborted; two are always open at a time."""
    for number in range(first, first + count):
        for part in range(2):
            batch = a_batch(
                b"x" * 100,
                producer_id=number,
                producer_epoch=0,
                base_sequence=part,
                transactional=True,
            )
            log.append(batch, 0, NOW)
            if number > first and part == 0:
                log.append(a_marker(number - 1, committed=number % 2 == 0), 0, NOW, COORDINATOR)
    log.append(a_marker(first + count - 1, committed=False), 0, NOW, COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("snapshots", [True, False], ids=["snapshots", "no snapshots"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("damage", [cut, fill_with_zeros, swap_entries])
def test_a_damaged_transaction_index_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool, snapshots: bool
) -> None:
    maker = LogMaker(str(tmp_path), LogConfig(segment_bytes=3000))
    log = maker.create()
    transactions(log, 0, 40)
    end = log.log_end_offset
    aborted = log.aborted_transactions(0, end)
    assert len(aborted) == 21
    assert close_cleanly(log) == end
    files = sorted(Path(maker.folder).glob("*.txnindex"))
    assert len(files) == len(log.segments) > 3
    before = [path.read_bytes() for path in files]
    assert all(len(data) > 34 for data in before)
    for path in files:
        damage(path)
    if not snapshots:
        for path in Path(maker.folder).glob("*.snapshot"):
            path.unlink()

    again = maker.load(clean=clean, recovery_point=end, high_watermark=end)
    assert again.aborted_transactions(0, end) == aborted
    transactions(again, 100, 3)
    assert again.aborted_transactions(0, again.log_end_offset) == [
        *aborted,
        (100, end),
        (102, end + 5),
    ]
    close_cleanly(again)
    assert [path.read_bytes() for path in files[:-1]] == before[:-1]
    assert files[-1].read_bytes().startswith(before[-1])


@pytest.mark.parametrize("snapshots", [True, False], ids=["snapshots", "no snapshots"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_the_transaction_indexes_of_segments_that_have_lost_all_indexes_are_made_anew(
    tmp_path: Path, clean: bool, snapshots: bool
) -> None:
    maker = LogMaker(str(tmp_path), LogConfig(segment_bytes=3000))
    log = maker.create()
    transactions(log, 0, 40)
    end = log.log_end_offset
    aborted = log.aborted_transactions(0, end)
    sealed = [Path(segment.path).stem for segment in log.segments][:-1]
    assert close_cleanly(log) == end
    before = {}
    for path in Path(maker.folder).glob("*index"):
        if path.stem in sealed:
            before[path] = path.read_bytes()
            path.unlink()
    assert sum(path.suffix == ".txnindex" for path in before) == len(sealed)
    if not snapshots:
        for path in Path(maker.folder).glob("*.snapshot"):
            path.unlink()

    again = maker.load(clean=clean, recovery_point=end, high_watermark=end)
    assert again.aborted_transactions(0, end) == aborted
    assert all(path.read_bytes() == data for path, data in before.items() if "txn" in path.suffix)


def test_a_corrupt_index_of_a_segment_without_aborted_transactions_goes(tmp_path: Path) -> None:
    maker = LogMaker(str(tmp_path))
    log = maker.create()
    write(log, 1, 0)
    end = close_cleanly(log)
    index = Path(maker.folder) / "00000000000000000000.txnindex"
    index.write_bytes(b"nothing of that kind")
    again = maker.load(clean=True, recovery_point=end, high_watermark=end)
    assert again.aborted_transactions(0, end) == []
    assert not index.exists()
