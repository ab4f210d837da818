"""Control records: the end of a transaction, written and read."""

from __future__ import annotations

import pytest

from ottla.record.batch import InvalidRecord, Record, check_batch, records
from ottla.record.control import (
    ABORT,
    COMMIT,
    EndOfTransaction,
    build_end_of_transaction,
    control_type,
    read_end_of_transaction,
)


@pytest.mark.parametrize(("committed", "kind"), [(True, COMMIT), (False, ABORT)])
def test_an_end_of_transaction(committed: bool, kind: int) -> None:
    batch = build_end_of_transaction(
        committed=committed,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=12,
        timestamp=1_700_000_000_000,
        base_offset=99,
        leader_epoch=4,
    )
    header = check_batch(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.base_offset, header.last_offset) == (99, 99)
    assert header.partition_leader_epoch == 4
    (record,) = records(batch)
    assert control_type(record) == kind
    assert read_end_of_transaction(record) == EndOfTransaction(committed, 12)


def test_types_of_others_are_told_but_not_read() -> None:
    record = Record(0, 0, b"\x00\x00\x70\x01", b"whatever")
    assert control_type(record) == 0x7001
    assert read_end_of_transaction(record) is None


def test_later_versions_may_have_more_fields() -> None:
    record = Record(0, 0, b"\x00\x01\x00\x01more", b"\x00\x01\x00\x00\x00\x05more")
    assert read_end_of_transaction(record) == EndOfTransaction(True, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00\x00\x00\x00\x00\x05"),
        (b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x05"),
        (b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x05"),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x05"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x05"),
    ],
)
def test_markers_that_are_none(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        read_end_of_transaction(Record(0, 0, key, value))
