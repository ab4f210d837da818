"""What is left of one batch, rule by rule."""

from __future__ import annotations

import pytest
from compaction_kit.logs import Pair, pairs_batch
from storage_kit.logs import NOW

from ottla.logfiles.walk import fields_at
from ottla.record.batch import BatchHeader, Record, check_batch, read_header, records
from ottla.record.compression.codecs import Codec
from ottla.record.control import build_end_of_transaction
from ottla.record.errors import InvalidRecord
from ottla.record.legacy import downgrade
from ottla.record.spans import record_spans
from ottla.storage.compaction.filter import BatchFilter, LastOfProducer
from ottla.storage.compaction.offset_map import OffsetMap
from ottla.storage.compaction.transactions import WalkedTransactions
from ottla.storage.index.transaction_index import AbortedTransaction

DAY = 86_400_000


class Filtering:
    """A filter, and the map that it goes by."""

    def __init__(
        self,
        latest: dict[bytes, int] | None = None,
        *,
        end: int = 1000,
        now: int = NOW,
        aborted: tuple[AbortedTransaction, ...] = (),
        producers: dict[int, LastOfProducer] | None = None,
    ) -> None:
        offsets = OffsetMap(1 << 20)
        for key, offset in (latest or {}).items():
            offsets.put(key, offset)
        transactions = WalkedTransactions(aborted)
        self.filter = BatchFilter(offsets, end, transactions, producers or {}, now, DAY)

    def leave(self, batch: bytes | bytearray, last: bool = False) -> bytes | None:
        view = memoryview(batch)
        left = self.filter.leave(view, fields_at(view, 0), last)
        if left is not None and view[16] == 2:
            check_batch(left)
        return None if left is None else bytes(left)


def offsets(batch: bytes | None) -> list[int]:
    return [] if batch is None else [record.offset for record in records(batch)]


ABC: list[Pair] = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_the_latest_of_each_key_stays() -> None:
    batch = pairs_batch(ABC, base_offset=10)
    left = Filtering({b"a": 10, b"b": 50, b"c": 12}).leave(batch)
    assert offsets(left) == [10, 12]


def test_a_batch_that_keeps_all_is_the_same() -> None:
    batch = pairs_batch(ABC, base_offset=10, codec=Codec.GZIP)
    view = memoryview(batch)
    left = Filtering({b"a": 10}).filter.leave(view, fields_at(view, 0), is_last=False)
    assert left is view


def test_a_batch_that_keeps_none_goes() -> None:
    gone = dict.fromkeys((b"a", b"b", b"c"), 99)
    assert Filtering(gone).leave(pairs_batch(ABC, base_offset=10)) is None


def test_records_behind_the_map_stay() -> None:
    pairs: list[Pair] = [(b"a", b"1"), (b"a", b"2"), (None, b"3"), (b"b", None)]
    left = Filtering({b"a": 10}, end=11).leave(pairs_batch(pairs, base_offset=10))
    assert offsets(left) == [10, 11, 12, 13]


def test_records_without_a_key_go() -> None:
    left = Filtering().leave(pairs_batch([(None, b"1"), (b"b", b"2"), (None, None)]))
    assert offsets(left) == [1]


@pytest.mark.parametrize("codec", list(Codec))
def test_all_but_the_records_is_kept(codec: Codec) -> None:
    batch = pairs_batch(
        ABC,
        base_offset=10,
        codec=codec,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        leader_epoch=5,
        transactional=True,
    )
    left = Filtering({b"a": 99, b"c": 99}).leave(batch)
    assert left is not None
    assert list(records(left)) == [Record(11, NOW, b"b", b"2")]
    before, after = read_header(batch), read_header(left)
    changed = {"batch_length", "crc", "record_count"}
    for name in set(BatchHeader._fields) - changed:
        assert getattr(after, name) == getattr(before, name), name
    assert after.last_sequence == 42
    assert after.record_count == 1


def test_headers_and_timestamps_stay() -> None:
    from ottla.record.batch import build_batch

    every = [
        Record(10, 500, b"a", b"1", (("h", b"x"), ("i", None))),
        Record(11, 900, b"b", b"2"),
        Record(12, 100, b"c", b"3", (("j", b""),)),
    ]
    left = Filtering({b"b": 99}).leave(build_batch(every, base_offset=10))
    assert left is not None
    assert list(records(left)) == [every[0], every[2]]
    assert read_header(left).max_timestamp == 500


# Tombstones


def test_a_tombstone_gets_a_horizon_and_goes_behind_it() -> None:
    batch = pairs_batch([(b"a", b"1"), (b"b", None)], base_offset=10, codec=Codec.LZ4)
    left = Filtering().leave(batch)
    assert left is not None
    header = read_header(left)
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW + DAY
    assert header.codec == Codec.LZ4
    assert list(records(left)) == list(records(bytes(batch)))
    # Set once; until then nothing changes.
    assert Filtering(now=NOW + DAY - 1).leave(left) == left
    later = Filtering(now=NOW + DAY).leave(left)
    assert later is not None
    assert list(records(later)) == [Record(10, NOW, b"a", b"1")]
    assert read_header(later).has_delete_horizon
    # What else is in the batch may go before.
    assert offsets(Filtering({b"a": 99}, now=NOW + 1).leave(left)) == [11]


def test_a_tombstone_that_is_not_the_latest_goes_at_once() -> None:
    assert Filtering({b"b": 99}).leave(pairs_batch([(b"b", None)])) is None


def test_an_empty_value_is_no_tombstone() -> None:
    batch = pairs_batch([(b"a", b"")])
    assert Filtering().leave(batch) == batch


def test_log_append_time_outlives_a_horizon() -> None:
    from ottla.record.batch import set_log_append_time

    batch = pairs_batch([(b"a", None), (b"b", b"1")], base_offset=4)
    set_log_append_time(batch, 0, NOW + 77)
    left = Filtering({b"b": 9}).leave(batch)
    assert left is not None
    assert list(records(left)) == [Record(4, NOW + 77, b"a", None)]
    assert read_header(left).max_timestamp == NOW + 77


# Producers


def test_the_last_batch_of_a_producer_stays_if_only_its_header() -> None:
    batch = pairs_batch(
        ABC, base_offset=10, codec=Codec.ZSTD, producer_id=7, producer_epoch=1, base_sequence=3
    )
    gone = dict.fromkeys((b"a", b"b", b"c"), 99)
    left = Filtering(gone, producers={7: LastOfProducer(12, 1)}).leave(batch)
    assert left is not None
    header = read_header(left)
    assert (header.record_count, len(left), header.codec) == (0, 61, Codec.NONE)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (10, 12, NOW)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 1, 5)
    # Kept as it is, until the producer has written more.
    assert Filtering(gone, producers={7: LastOfProducer(12, 1)}).leave(left) == left
    assert Filtering(gone, producers={7: LastOfProducer(30, 1)}).leave(left) is None
    assert Filtering(gone, producers={8: LastOfProducer(12, 1)}).leave(batch) is None


def test_the_last_batch_of_a_segment_stays_if_only_its_header() -> None:
    gone = dict.fromkeys((b"a", b"b", b"c"), 99)
    left = Filtering(gone).leave(pairs_batch(ABC, base_offset=10), last=True)
    assert left is not None
    assert (read_header(left).record_count, read_header(left).last_offset) == (0, 12)


# Transactions


def marker(offset: int, producer_id: int, *, committed: bool, epoch: int = 0) -> bytes:
    return build_end_of_transaction(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=3,
        timestamp=NOW,
        base_offset=offset,
    )


def data(offset: int, producer_id: int, *pairs: Pair) -> bytearray:
    return pairs_batch(
        pairs or ABC,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def test_aborted_records_go_and_their_marker_stays_as_long() -> None:
    entry = AbortedTransaction(7, 10, 20, 21)
    first = Filtering(aborted=(entry,))
    assert first.leave(data(10, 7)) is None
    assert offsets(first.leave(data(13, 8))) == [13, 14, 15]
    abort = marker(20, 7, committed=False)
    assert first.leave(abort) == abort
    assert first.filter.transactions.take_kept() == [entry]
    # The next pass finds no batch: the marker gets its horizon, and goes once that has passed.
    second = Filtering()
    left = second.leave(abort)
    assert left is not None
    assert read_header(left).base_timestamp == NOW + DAY
    assert read_header(left).is_control
    assert list(records(left)) == list(records(abort))
    assert second.filter.transactions.take_kept() == []
    assert Filtering(now=NOW + DAY - 1).leave(left) == left
    assert Filtering(now=NOW + DAY).leave(left) is None


def test_a_producer_goes_on_after_an_abort() -> None:
    filtering = Filtering(
        aborted=(AbortedTransaction(7, 10, 13, 14), AbortedTransaction(7, 30, 33, 34))
    )
    assert filtering.leave(data(10, 7)) is None
    assert filtering.leave(marker(13, 7, committed=False)) is not None
    assert offsets(filtering.leave(data(20, 7))) == [20, 21, 22]
    commit = marker(23, 7, committed=True)
    assert filtering.leave(commit) == commit
    assert filtering.leave(data(30, 7)) is None


def test_a_commit_marker_stays_while_a_batch_of_it_does() -> None:
    gone = dict.fromkeys((b"a", b"b", b"c"), 99)
    commit = marker(20, 7, committed=True)
    filtering = Filtering(gone)
    assert filtering.leave(data(10, 7)) is None
    # Its records went in this very pass.
    assert filtering.leave(commit) == commit
    later = Filtering(gone).leave(commit)
    assert later is not None
    assert read_header(later).has_delete_horizon
    # An emptied batch of it counts, too.
    kept = Filtering(gone, producers={7: LastOfProducer(12, 0)})
    assert kept.leave(data(10, 7)) is not None
    assert kept.leave(commit) == commit


def test_a_marker_that_is_all_that_is_known_of_a_producer_stays_as_a_header() -> None:
    left = Filtering().leave(marker(20, 7, committed=True, epoch=4))
    assert left is not None
    producers = {7: LastOfProducer(-1, 4)}
    emptied = Filtering(now=NOW + DAY, producers=producers).leave(left)
    assert emptied is not None
    header = read_header(emptied)
    assert (header.record_count, header.is_control, header.producer_epoch) == (0, True, 4)
    assert Filtering(now=NOW + DAY, producers=producers).leave(emptied) == emptied
    assert Filtering(now=NOW + DAY).leave(emptied) is None


def test_control_batches_of_an_unknown_kind_stay() -> None:
    from ottla.record.batch import build_batch

    mark = build_batch([Record(0, NOW, b"\0\0\x7f\xff", b"")], control=True)
    assert Filtering().leave(mark) == mark


# Old formats


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_message_sets(magic: int, codec: Codec) -> None:
    entry = downgrade(bytes(pairs_batch(ABC, base_offset=10, codec=codec)), magic, 0)
    if codec is Codec.NONE:
        size = len(entry) // 3
        filtering = Filtering({b"b": 99})
        left = [filtering.leave(entry[at : at + size]) for at in range(0, len(entry), size)]
        assert left == [entry[:size], None, entry[2 * size :]]
        return
    assert Filtering().leave(entry) == entry
    some = Filtering({b"b": 99}).leave(entry)
    timestamp = NOW if magic else -1
    assert some is not None
    assert list(records(some)) == [
        Record(10, timestamp, b"a", b"1"),
        Record(12, timestamp, b"c", b"3"),
    ]
    gone = dict.fromkeys((b"a", b"b", b"c"), 99)
    assert Filtering(gone).leave(entry) is None
    assert offsets(Filtering(gone).leave(entry, last=True)) == []


def test_old_tombstones_go_by_the_age_of_their_segment() -> None:
    entry = downgrade(bytes(pairs_batch([(b"a", None)])), 1, 0)
    filtering = Filtering()
    assert filtering.leave(entry) == entry
    filtering.filter.keeps_old_tombstones = False
    assert filtering.leave(entry) is None


# Damage


def test_lengths_that_lie_are_noticed() -> None:
    good = bytes(pairs_batch(ABC))[61:]
    assert len(list(record_spans(good, 3))) == 3
    for data_, count in (
        (good, 2),
        (good, 4),
        (good[:-1], 3),
        (good + b"\0", 3),
        (b"\xff" * 20, 1),
        (b"\x06\0\0\0\x7f", 1),
    ):
        with pytest.raises(InvalidRecord):
            list(record_spans(data_, count))
