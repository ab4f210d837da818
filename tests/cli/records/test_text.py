"""Records as JSON and back."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.failures import Failure, Misuse
from ottla.cli.records.text import IncomingRecord, record_from_json, record_to_json, unescape

_BYTES = (
    st.none()
    | st.binary(max_size=20)
    | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(deadline=None)
@given(_BYTES, _BYTES, st.lists(st.tuples(_NAMES, _BYTES), max_size=3), st.integers(0, 2**62))
def test_what_is_written_reads_the_same(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
) -> None:
    line = record_to_json(IncomingRecord(3, 99, timestamp, key, value, tuple(headers)))
    assert b"\n" not in line
    back = record_from_json(line, "line 1")
    assert (back.key, back.value, back.headers) == (key, value, tuple(headers))
    assert (back.partition, back.timestamp) == (3, timestamp)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "value", "headers", "partition", "timestamp", "value_base64"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(_JSON.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=30))
def test_bad_input_is_a_failure_and_nothing_else(line: bytes) -> None:
    with suppress(Failure):
        record_from_json(line, "line 5")


def test_deep_nesting_is_a_failure() -> None:
    with pytest.raises(Failure):
        record_from_json(b"[" * 200_000, "line 1")


def test_separators() -> None:
    assert unescape("a\\tb\\n\\0\\\\ü", "--x") == "a\tb\n\0\\ü".encode()
    for wrong in ("\\", "\\q"):
        with pytest.raises(Misuse):
            unescape(wrong, "--x")
