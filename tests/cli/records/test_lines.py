"""Lines as columns are what they are one by one, whatever they hold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.failures import Failure
from ottla.cli.records.input_blocks import Block
from ottla.cli.records.json_columns import columns_of_json
from ottla.cli.records.lines import RecordLines
from ottla.cli.records.text import OutgoingRecord

TEXT = st.text(max_size=8)
OPTIONAL = st.none() | TEXT
HEADERS = (
    st.none()
    | st.lists(st.fixed_dictionaries({"key": TEXT}, optional={"value": OPTIONAL}), max_size=2)
    | st.sampled_from([{}, {"a": "b"}, [None], [{"key": None}], [{"value": "x"}], "no", [[]]])
)
NUMBERS = st.none() | st.integers(-1, 2**31) | st.sampled_from([2**63, 1.0, True, "1", 1e3])
ODD = st.sampled_from([1, 1.5, True, {"a": 1}, [1, 2], "\ud800", float("nan")])
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "key": OPTIONAL | ODD,
        "value": OPTIONAL | ODD,
        "headers": HEADERS,
        "partition": NUMBERS,
        "timestamp": NUMBERS,
        "offset": NUMBERS,
        "topic": OPTIONAL,
        "value_base64": st.none() | st.sampled_from(["YQ==", "?", 1]),
        "other": st.just(1),
    },
)
PLAIN_RECORDS = st.fixed_dictionaries(
    {"value": OPTIONAL},
    optional={
        "key": OPTIONAL,
        "headers": st.lists(
            st.fixed_dictionaries({"key": TEXT}, optional={"value": OPTIONAL}), max_size=2
        ),
        "partition": st.none() | st.integers(0, 3),
        "timestamp": st.none() | st.integers(0, 2**62),
    },
)


def as_json(record: dict[str, Any], ascii_only: bool) -> bytes:
    text = json.dumps(record, ensure_ascii=ascii_only)
    return text.encode("utf-8", "surrogatepass")


LINES = (
    st.builds(as_json, RECORDS, st.booleans())
    | st.sampled_from(
        [
            b"", b" ", b"{}", b"{", b"}", b"[]", b'{"value":"a"}{"value":"b"}', b'{"value":"a"} ',
            b'{"value":"\xff"}', b'{"value":"a","value":"b"}', b'{"value":"a\tb"}', b'{"value":"a}',
            b'{b"}', b'{"headers":[{}', b'{"key":"k"}', b'\xef\xbb\xbf{"value":"a"}', b"{}\r",
            b'{"value":"\\ud83d\\ude00"}', b'{"value":"\\u0000"}', b'{"value":"a\0b"}',
            b'{"partition":-0}', b'{"partition":01}', b'{"timestamp":1.0}', b'{"value":"a",}',
        ]
    )
)  # fmt: skip


def one_by_one(
    lines: RecordLines, first: int, pieces: list[bytes]
) -> tuple[list[OutgoingRecord], str | None]:
    records = []
    for number, piece in enumerate(pieces, start=first):
        try:
            record = lines.record(number, piece)
        except Failure as failure:
            return records, failure.message
        if record is not None:
            records.append(record)
    return records, None


def as_columns(
    lines: RecordLines, first: int, block: Block
) -> tuple[list[OutgoingRecord], str | None]:
    batch, failure = lines.columns(first, block)
    rows = [] if batch is None else batch.to_pylist()
    records = [
        OutgoingRecord(
            row.get("key"),
            row["value"],
            tuple((each["key"], each["value"]) for each in row.get("headers") or ()),
            row.get("partition"),
            row.get("timestamp"),
        )
        for row in rows
    ]
    return records, None if failure is None else failure.message


@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(
    pieces=st.lists(LINES, min_size=1, max_size=5)
    | st.lists(st.builds(as_json, PLAIN_RECORDS, st.booleans()), min_size=1, max_size=5),
    repartition=st.booleans(),
    headers=st.sampled_from([(), (("all", b"1"),)]),
    partition=st.none() | st.just(2),
)
def test_json(
    pieces: list[bytes],
    repartition: bool,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int | None,
) -> None:
    lines = RecordLines(json=True, repartition=repartition, headers=headers, partition=partition)
    block = Block(b"\n".join(pieces), b"\n")
    assert as_columns(lines, 7, block) == one_by_one(lines, 7, pieces)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(
    pieces=st.lists(st.text("ab:N\n ", max_size=6).map(str.encode), min_size=1, max_size=6),
    separator=st.sampled_from([None, b":", b"::", b"a"]),
    key=st.sampled_from([None, b"", b"k", b"N"]),
    marker=st.sampled_from([None, b"", b"N"]),
    delimiter=st.sampled_from([b"\n", b"::", b"\0"]),
)
def test_text(
    pieces: list[bytes],
    separator: bytes | None,
    key: bytes | None,
    marker: bytes | None,
    delimiter: bytes,
) -> None:
    lines = RecordLines(
        separator=separator,
        separator_shown=":",
        key=None if separator is not None else key,
        null_marker=marker,
        headers=(("h", None),),
        partition=1,
    )
    block = Block(delimiter.join(pieces), delimiter)
    assert block.count == len(block.pieces)
    assert as_columns(lines, 1, block) == one_by_one(lines, 1, block.pieces)


def test_what_consume_prints_is_read_at_once() -> None:
    """Else nothing would be wrong, but all of it slow."""
    line = (
        b'{"partition":0,"offset":7,"timestamp":1794733200000,"key":"a","value":"\xc3\xa4",'
        b'"headers":[{"key":"trace","value":"1"},{"key":"none","value":null}]}'
    )
    columns = columns_of_json(Block(b"\n".join([line, line]), b"\n"))
    assert columns is not None
    assert columns["value"].to_pylist() == ["ä".encode()] * 2
    assert columns["headers"].to_pylist()[1][0] == {"key": "trace", "value": b"1"}


@pytest.mark.parametrize("options", ["json=True", "separator=b':', null_marker=b'N'", "key=b'k'"])
def test_pandas_is_not_imported_for_it(options: str) -> None:
    """It takes as long as sending half a million lines."""
    code = f"""if True:
        import sys
        from ottla.cli.records.input_blocks import Block
        from ottla.cli.records.lines import RecordLines
        lines = RecordLines({options}, partition=0)
        batch, failure = lines.columns(1, Block(b'{{"value":"a"}}\\n' * 9 + b'{{"value":"b"}}', b'\\n'))
        assert (batch.num_rows, failure) == (10, None)
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
