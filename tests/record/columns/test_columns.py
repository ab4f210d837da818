"""Decoding and encoding of columns, by the kernels and by the plain path, against the record reader."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.record.batch import Record, build_batch, check_batch, records
from ottla.record.columns import (
    BufferPool,
    Decoded,
    Layout,
    buffer_size,
    decode,
    encode,
    encode_in_turn,
    sealing,
    set_producer,
)
from ottla.record.columns.kernels import readiness
from ottla.record.columns.layout import COLUMNS
from ottla.record.compression.codecs import Codec
from ottla.record.control import build_end_of_transaction
from ottla.record.errors import CorruptBatch, InvalidBatch, InvalidRecord, TooLarge
from ottla.record.legacy import build_message_set

NOW = 1_800_000_000_000
CODECS = list(Codec)


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    assert readiness.compile_kernels(), "numba is missing"
    module = readiness._readiness.kernels
    assert module is not None
    return module


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(
    request: pytest.FixtureRequest, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Every test runs on both paths."""
    chosen = kernels if request.param == "compiled" else None
    for module in ("decoding", "encoding"):
        monkeypatch.setattr(f"ottla.record.columns.{module}.kernels_for", lambda size: chosen)
    return str(request.param)


both_paths = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

texts = st.text(max_size=6)
blobs = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=200)
header_lists = st.lists(st.tuples(texts, blobs), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, base_offset: int = 0) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 3), min_size=1, max_size=30))
    offset = base_offset - 1
    found = []
    for gap in gaps:
        offset += gap
        timestamp = draw(st.sampled_from([NOW, NOW + 1, NOW - 10**6, 0, -1]))
        found.append(Record(offset, timestamp, draw(blobs), draw(blobs), draw(header_lists)))
    return found


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    """Rows back as records; a null timestamp is -1."""
    batch.validate(full=True)
    return [
        Record(
            row["offset"],
            -1 if row["timestamp"] is None else row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in _with_plain_times(batch).to_pylist()
    ]


def _with_plain_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))


def all_rows(results: Iterator[Decoded]) -> list[Record]:
    return [row for decoded in results for row in rows_of(decoded.rows)]


@both_paths
@given(
    first=record_lists(), second=record_lists(100), codecs=st.tuples(*[st.sampled_from(CODECS)] * 2)
)
def test_decodes_what_the_record_reader_reads(
    first: list[Record], second: list[Record], codecs: tuple[int, int]
) -> None:
    buffer = build_batch(first, codec=codecs[0]) + build_batch(
        second, base_offset=100, codec=codecs[1]
    )
    results = list(decode(buffer))
    assert all_rows(iter(results)) == first + second
    assert results[-1].next_offset == second[-1].offset + 1
    assert results[-1].consumed == len(buffer)


@both_paths
@given(
    found=record_lists(),
    rows=st.integers(1, 8),
    size=st.integers(1, 600),
    codec=st.sampled_from(CODECS),
)
def test_results_are_bounded_and_continue(
    found: list[Record], rows: int, size: int, codec: int
) -> None:
    results = list(decode(build_batch(found, codec=codec), max_rows=rows, max_bytes=size))
    assert all_rows(iter(results)) == found
    for decoded in results:
        assert decoded.rows.num_rows <= rows
        taken = rows_of(decoded.rows)
        contents = sum(len(row.key or b"") + len(row.value or b"") for row in taken)
        assert contents <= size or len(taken) == 1
        if taken:
            assert decoded.next_offset >= taken[-1].offset + 1


@both_paths
@given(found=record_lists(), start=st.integers(0, 60), end=st.integers(0, 60))
def test_records_between_two_offsets(found: list[Record], start: int, end: int) -> None:
    buffer = build_batch(found)
    results = list(decode(buffer, start_offset=start, end_offset=end))
    assert all_rows(iter(results)) == [record for record in found if start <= record.offset < end]
    last = found[-1].offset
    assert results[-1].next_offset >= min(max(end, start), last + 1)


def test_a_torn_batch_is_left() -> None:
    whole = build_batch([Record(0, NOW, None, b"first")])
    torn = build_batch([Record(1, NOW, None, b"second")], base_offset=1)
    for cut in range(len(torn)):
        (decoded,) = decode(whole + torn[:cut])
        assert decoded.consumed == len(whole)
        assert decoded.next_offset == 1
    (decoded,) = decode(torn[:-1], start_offset=1)
    assert (decoded.rows.num_rows, decoded.next_offset, decoded.consumed) == (0, 1, 0)


def test_layouts() -> None:
    record = Record(7, NOW, b"k", b"v", (("h", None),))
    buffer = build_batch([record, Record(8, -1, None, None)], base_offset=7)
    for name in COLUMNS:
        (decoded,) = decode(buffer, layout=Layout(columns=(name,)))
        assert decoded.rows.schema.names == [name]
        assert decoded.rows.num_rows == 2
        decoded.rows.validate(full=True)
    layout = Layout(("value", "timestamp", "timestamp_type"), "us", pa.int32())
    (decoded,) = decode(buffer, layout=layout)
    assert decoded.rows.schema == pa.schema(
        [
            ("value", pa.binary()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestamp_type", pa.int32()),
        ]
    )
    assert decoded.rows.column("timestamp").cast(pa.int64()).to_pylist() == [NOW * 1000, None]
    with pytest.raises(ValueError, match="columns are some of"):
        Layout(columns=("offset", "nothing"))


def test_log_append_time() -> None:
    buffer = build_batch(
        [Record(0, 5, None, b"a"), Record(1, 6, None, b"b")], timestamp_type=1, max_timestamp=NOW
    )
    (decoded,) = decode(buffer)
    assert decoded.rows.column("timestamp").cast(pa.int64()).to_pylist() == [NOW, NOW]
    assert decoded.rows.column("timestamp_type").to_pylist() == [1, 1]


def test_times_beyond_microseconds_are_the_last_there_are() -> None:
    buffer = build_batch([Record(0, 2**62, None, b""), Record(1, -(2**62), None, b"")])
    (decoded,) = decode(buffer, layout=Layout(("timestamp",), "us"))
    assert decoded.rows.column(0).cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63)]


def _transactional(offset: int, producer: int, value: bytes) -> bytes:
    return build_batch(
        [Record(offset, NOW, None, value)],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def _marker(offset: int, producer: int, *, committed: bool) -> bytes:
    return build_end_of_transaction(
        committed=committed,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=NOW,
        base_offset=offset,
    )


def test_aborted_transactions_and_control_batches_are_left_out() -> None:
    buffer = b"".join(
        [
            _transactional(0, 1, b"gone"),
            _transactional(1, 2, b"kept"),
            build_batch([Record(2, NOW, None, b"plain")], base_offset=2, codec=Codec.LZ4),
            _marker(3, 1, committed=False),
            _transactional(4, 1, b"kept too"),
            _marker(5, 2, committed=True),
            _marker(6, 1, committed=True),
        ]
    )
    for rows in (1, 100):
        results = list(decode(buffer, aborted=[(1, 0)], max_rows=rows))
        values = [row.value for row in all_rows(iter(results))]
        assert values == [b"kept", b"plain", b"kept too"]
        assert results[-1].next_offset == 7
        assert results[-1].consumed == len(buffer)
    assert all_rows(decode(buffer))[0].value == b"gone"
    (only_markers,) = decode(buffer[-len(_marker(6, 1, committed=True)) :], start_offset=6)
    assert (only_markers.rows.num_rows, only_markers.next_offset) == (0, 7)


def test_batches_emptied_by_compaction() -> None:
    buffer = build_batch([], base_offset=3, last_offset=9) + build_batch(
        [Record(12, NOW, b"k", b"v")], base_offset=10, last_offset=20, codec=Codec.ZSTD
    )
    results = list(decode(buffer, start_offset=3))
    assert [row.offset for row in all_rows(iter(results))] == [12]
    assert results[-1].next_offset == 21


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_older_formats_and_a_log_that_holds_both(magic: int, codec: int) -> None:
    old = [
        Record(offset, NOW + offset if magic else -1, None, b"%d" % offset) for offset in range(5)
    ]
    new = [Record(5, NOW, b"k", b"new")]
    buffer = build_message_set(old, magic, codec) + build_batch(new, base_offset=5)
    results = list(decode(buffer, start_offset=1, max_rows=2))
    assert all_rows(iter(results)) == old[1:] + new
    types = [number for decoded in results for number in decoded.rows[2].to_pylist()]
    assert types == [0 if magic else -1] * 4 + [0]
    assert results[-1].consumed == len(buffer)


def test_a_bad_batch_comes_after_what_is_before_it() -> None:
    good = build_batch([Record(0, NOW, None, b"good")])
    bad = bytearray(build_batch([Record(1, NOW, None, b"bad")], base_offset=1))
    bad[-1] ^= 1
    results = decode(good + bad)
    decoded = next(results)
    assert (decoded.next_offset, decoded.consumed) == (1, len(good))
    with pytest.raises(CorruptBatch, match="offset 1: the CRC32C"):
        next(results)
    # Broken records under a right checksum, in a batch of which some are good.
    broken = bytearray(
        build_batch([Record(1, NOW, None, b"x"), Record(2, NOW, None, b"y")], base_offset=1)
    )
    broken[-3] = 0x7F  # the length of the last value
    results = decode(good + broken, check_crc=False)
    decoded = next(results)
    assert (decoded.rows.num_rows, decoded.next_offset) == (1, 1)
    with pytest.raises(InvalidRecord, match="offset 1: "):
        next(results)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused(codec: int) -> None:
    buffer = build_batch([Record(0, NOW, None, bytes(200_000))], codec=codec)
    if codec == Codec.NONE:
        return
    with pytest.raises(TooLarge):
        list(decode(buffer, decompressed_limit=100_000))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_larger_than_the_scratch_space(codec: int) -> None:
    noise = np.random.default_rng(5).integers(0, 255, 5_000_000, np.uint8).tobytes()
    found = [Record(0, NOW, None, b"small"), Record(1, NOW, None, noise), Record(2, NOW, b"", None)]
    buffer = build_batch(found, codec=codec) + build_batch(
        [Record(3, NOW, None, b"next")], base_offset=3, codec=codec
    )
    assert [row.value for row in all_rows(decode(buffer))] == [b"small", noise, None, b"next"]


@pytest.mark.parametrize(
    ("field", "value"),
    [(57, 2**31 - 1), (57, -1), (23, -1), (57, 3)],
    ids=["huge count", "negative count", "negative delta", "one more than there are"],
)
def test_lying_headers(field: int, value: int) -> None:
    batch = bytearray(build_batch([Record(0, NOW, None, b"a"), Record(1, NOW, None, b"b")]))
    struct.pack_into(">i", batch, field, value)
    with pytest.raises(InvalidBatch):
        list(decode(batch, check_crc=False))


def test_header_keys_that_are_no_text() -> None:
    keys = ("caf\u00e9", "\udcff")
    buffer = build_batch([Record(0, NOW, None, b"", tuple((key, b"") for key in keys))])
    (decoded,) = decode(buffer)
    decoded.rows.validate(full=True)
    assert [header["key"] for header in decoded.rows.column("headers")[0].as_py()] == [
        "caf\u00e9",
        "\ufffd",
    ]


def test_a_mapped_segment(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    found = [Record(offset, NOW, b"k", b"v" * offset) for offset in range(50)]
    segment.write_bytes(build_batch(found))
    with segment.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            rows = all_rows(decode(view))
            del view
        assert rows == found


def _columns(found: list[Record]) -> dict[str, Any]:
    return {
        "keys": pa.array([record.key for record in found], pa.binary()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] for record in found],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        "timestamps": pa.array([record.timestamp for record in found], pa.int64()),
    }


@both_paths
@given(
    found=record_lists(),
    codec=st.sampled_from(CODECS),
    limit=st.integers(1, 2000),
    cut=st.integers(0, 5),
)
def test_encodes_as_the_batch_builder_does(
    found: list[Record], codec: int, limit: int, cut: int
) -> None:
    # A slice of longer columns, as a table's batches often are.
    values = pa.array([record.value for record in found], pa.binary())[cut:]
    columns = {name: column[cut:] for name, column in _columns(found).items()}
    expected = found[cut:]
    batches = encode(
        values, **columns, codec=codec, max_bytes=limit,
        producer_id=9, producer_epoch=2, base_sequence=2**31 - 3,
    )  # fmt: skip
    first = 0
    for batch in batches:
        assert batch.first_row == first
        rows = [
            record._replace(offset=index)
            for index, record in enumerate(expected[first : first + batch.row_count])
        ]
        assert bytes(batch.data) == build_batch(
            rows, codec=codec, producer_id=9, producer_epoch=2,
            base_sequence=(2**31 - 3 + first) % 2**31,
        )  # fmt: skip
        assert batch.max_timestamp == max(row.timestamp for row in rows)
        plain = build_batch(rows)
        assert len(plain) <= limit or batch.row_count == 1
        first += batch.row_count
    assert first == len(expected)


def test_chosen_rows_in_their_order() -> None:
    values = pa.array([b"a", None, b"c", b"d"])
    (batch,) = encode(values, rows=np.array([3, 1, 1, 0]), default_timestamp=NOW)
    assert [record.value for record in records(batch.data)] == [b"d", None, None, b"a"]
    assert encode(values, rows=np.array([], np.int64)) == []
    for wrong in ([4], [-1]):
        with pytest.raises(IndexError):
            encode(values, rows=np.array(wrong))


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.binary(2),
    ],
    ids=str,
)
def test_other_types_of_bytes(type_: pa.DataType) -> None:
    raw = [b"ab", None, b"cd"]
    column = (
        pa.array(raw, pa.binary()).cast(pa.string()).cast(type_)
        if type_ != pa.binary(2)
        else pa.array(raw, type_)
    )
    (batch,) = encode(pa.chunked_array([column[:1], column[1:]]))
    assert [record.value for record in records(batch.data)] == raw


def test_columns_that_cannot_be_encoded() -> None:
    with pytest.raises(TypeError, match="values are bytes or text, not list"):
        encode(pa.array([[1]]))
    with pytest.raises(ValueError, match="different lengths"):
        encode(pa.array([b"a"]), keys=pa.array([b"a", b"b"]))
    with pytest.raises(ValueError, match="key of a header is null"):
        encode(pa.array([b"a"]), headers=pa.array([[{"key": None, "value": b""}]]))
    offsets = pa.py_buffer(np.array([0, 1000, 3], np.int32))
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(ValueError, match="does not lie in its buffers"):
        encode(lying)


def test_timestamps_and_maps() -> None:
    times = pa.array([NOW * 1000 + 1, None], pa.timestamp("us", "UTC"))
    headers = pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary()))
    (batch,) = encode(None, timestamps=times, headers=headers, default_timestamp=NOW + 5)
    first, second = records(batch.data)
    assert (first.timestamp, second.timestamp) == (NOW, NOW + 5)
    assert (first.headers, second.headers) == ((("a", b"1"),), ())
    assert len(encode(None, count=3)) == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("size", [1, 60_000, 70_001, 400_000])
def test_a_producer_can_be_set_later(codec: Codec, size: int) -> None:
    """In large batches the checksum is changed, in small ones it is made anew."""
    values = pa.array([b"a", random.Random(size).randbytes(size)])
    (batch,) = encode(values, default_timestamp=NOW, codec=codec)
    for producer_id, epoch, sequence in ((2**62, 3, 2**31 - 1), (5, 1, 7)):
        set_producer(batch.data, producer_id, epoch, sequence, transactional=True)
        (expected,) = encode(
            values, default_timestamp=NOW, codec=codec,
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            transactional=True,
        )  # fmt: skip
        assert bytes(batch.data) == bytes(expected.data)


@pytest.mark.parametrize("lengths", [(70_001, 100_000), (65_600, 999_999), (1_500_000, 1 << 21)])
def test_a_changed_checksum_without_compiled_code(
    path: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "plain":
        monkeypatch.setattr(sealing, "compiled_product", None)
    sealing.power_of_bytes.cache_clear()
    for length in lengths:
        (batch,) = encode(pa.array([bytes(length)]), max_bytes=1 << 30)
        set_producer(batch.data, 7, 1, 5)
        changed = bytes(batch.data)
        sealing.seal(batch.data)
        assert bytes(batch.data) == changed


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("max_bytes", [1, 150, 20_000, 300_000, 1_000_000])
@pytest.mark.parametrize("pooled", [False, True])
def test_batches_in_turn_are_the_batches_at_once(
    codec: Codec, max_bytes: int, pooled: bool
) -> None:
    dice = random.Random(max_bytes)
    sizes = [dice.choice((0, 10, 100, 3000)) for _ in range(3000)]
    sizes[1000] = sizes[2999] = 1_100_000  # larger than batches and buffers
    values = pa.array([None if size == 10 else dice.randbytes(size) for size in sizes])
    keys = pa.array([b"%d" % number for number in range(len(sizes))])
    times = pa.array([NOW + dice.randrange(10**6) for _ in sizes])
    pool = BufferPool(buffer_size(max_bytes), 4) if pooled else None
    options = {"keys": keys, "timestamps": times, "codec": codec, "max_bytes": max_bytes}
    for rows in (None, np.array([dice.randrange(3000) for _ in range(500)])):
        at_once = encode(values, rows=rows, **options)
        in_turn = encode_in_turn(values, rows=rows, pool=pool, **options)
        found = [(bytes(each.data), *each[1:]) for some in in_turn for each in some]
        assert found == [(bytes(each.data), *each[1:]) for each in at_once]
        count = 0
        for each in at_once:
            header = check_batch(each.data)
            assert each.first_row == count
            assert header.record_count == each.row_count
            assert header.max_timestamp == each.max_timestamp
            assert each.row_count == 1 or codec or len(each.data) <= max_bytes
            count += each.row_count
        assert count == (3000 if rows is None else 500)
