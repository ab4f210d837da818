"""Bytes cut into lines: all of them, none twice, and always at the same places."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.collect.lines import END_HEADER, PART_HEADER, cut, table, unfinished

TEXT = st.lists(st.sampled_from([b"\n", b"a", b"\xff\x00", b"bcdefgh", b"\r"]), max_size=40)


def pieces(data: bytes, limit: int, steps: list[int]) -> list[tuple[bytes, int]]:
    """What is sent of a file that grows by `steps`."""
    sent: list[tuple[bytes, int]] = []
    at = part = end = 0
    for step in [*steps, len(data)]:
        end = min(len(data), end + step)
        lines = cut(data[at:end], limit, part)
        parts = [0] * len(lines.values) if lines.parts is None else lines.parts.tolist()
        sent += zip(lines.values.to_pylist(), parts, strict=True)
        at, part = at + lines.size, lines.part
    return sent


@settings(deadline=None)
@given(TEXT, st.integers(1, 12), st.lists(st.integers(0, 9), max_size=12))
def test_every_line_once_whenever_its_bytes_come(
    text: list[bytes], limit: int, steps: list[int]
) -> None:
    data = b"".join(text)
    sent = pieces(data, limit, steps)
    assert sent == pieces(data, limit, [])
    assert all(len(value) <= limit for value, _ in sent)
    whole: list[bytes] = []
    begun = b""
    for value, part in sent:
        begun += value
        if part <= 0:
            whole.append(begun)
            begun = b""
    lines = data.split(b"\n")
    assert whole == lines[:-1]
    assert lines[-1].startswith(begun)
    assert len(lines[-1]) - len(begun) <= limit


def test_parts_of_a_line_say_so() -> None:
    lines = cut(b"short\n" + b"x" * 25 + b"\n", 10)
    rows = table(lines, b"key", [("file", b"a.log")]).to_pylist()
    marks = [{pair["key"]: pair["value"] for pair in row["headers"]} for row in rows]
    assert [row["value"] for row in rows] == [b"short", b"x" * 10, b"x" * 10, b"x" * 5]
    assert marks == [
        {"file": b"a.log"},
        {"file": b"a.log", PART_HEADER: b"1"},
        {"file": b"a.log", PART_HEADER: b"2"},
        {"file": b"a.log", PART_HEADER: b"3", END_HEADER: b"true"},
    ]


def test_a_table_has_what_is_wanted() -> None:
    lines = cut(b"one\n\ntwo\nrest", 100)
    assert lines.size == len(b"one\n\ntwo\n")
    assert table(lines, None, []).to_pylist() == [{"value": each} for each in (b"one", b"", b"two")]
    keyed = table(lines, b"host", []).to_pylist()
    assert [row["key"] for row in keyed] == [b"host"] * 3
    rest = unfinished(b"rest", 0)
    assert (rest.values.to_pylist(), rest.size) == ([b"rest"], 4)
