"""`ottla produce` and `ottla consume` against a broker."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ottla.cli.commands.records import produce
from ottla.cli.records import input_blocks

Run = Callable[..., Result]

NOW = time.time_ns() // 1_000_000


@pytest.fixture(params=["one by one", "as columns"])
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which lines are sent: few, and many at once."""
    if request.param == "as columns":
        monkeypatch.setattr(produce, "COLUMNS_FROM", 0)
        monkeypatch.setattr(produce, "COLUMNS_OF_AT_LEAST", 1)


both_ways = pytest.mark.usefixtures("sent")


def _consumed(ottla: Run, *words: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ottla("consume", *words, "--json").stdout.splitlines()]


def _values(ottla: Run, *words: Any) -> list[str]:
    return [record["value"] for record in _consumed(ottla, *words)]


@both_ways
def test_lines(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin=b"one\n\nthree\xc3\xa4\nno newline")
    assert ottla("consume", topic).stdout_bytes == b"one\n\nthree\xc3\xa4\nno newline\n"


def test_a_topic_is_created_on_first_use(ottla: Run, topic: str) -> None:
    ottla("produce", topic, stdin="hello\n")
    assert ottla("consume", topic).stdout == "hello\n"


@both_ways
def test_keys_headers_and_partition(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 2)
    ottla(
        "produce", topic, "-K", ":", "-H", "a=1", "-H", "a=2", "-H", "empty=", "-p", 1,
        stdin="k1:v:1\n:v2\n",
    )  # fmt: skip
    first, second = _consumed(ottla, topic)
    assert first["timestamp"] >= NOW
    assert first == {
        "partition": 1,
        "offset": 0,
        "timestamp": first["timestamp"],
        "key": "k1",
        "value": "v:1",
        "headers": [
            {"key": "a", "value": "1"},
            {"key": "a", "value": "2"},
            {"key": "empty", "value": ""},
        ],
    }
    assert (second["key"], second["value"], second["offset"]) == ("", "v2", 1)
    assert ottla("consume", topic, "-K", "\\t").stdout == "k1\tv:1\n\tv2\n"
    meta = ottla("consume", topic, "--meta", "-n", 1).stdout.split("\t")
    assert meta[:2] == ["1", "0"]
    assert meta[3:] == ["a=1,a=2,empty=", "v:1\n"]


@both_ways
def test_one_key_for_all(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 8)
    ottla("produce", topic, "--key", "same", stdin="1\n2\n3\n")
    records = _consumed(ottla, topic)
    assert {record["key"] for record in records} == {"same"}
    assert len({record["partition"] for record in records}) == 1


@both_ways
def test_keys_choose_partitions_as_in_java(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 10)
    ottla("produce", topic, "-K", ":", stdin="21:x\nfoobar:x\n")
    placed = {record["key"]: record["partition"] for record in _consumed(ottla, topic)}
    assert placed == {"21": _murmur2(b"21") % 10, "foobar": _murmur2(b"foobar") % 10}


def _murmur2(data: bytes) -> int:
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


@both_ways
def test_nulls_and_delimiters(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, "-K", "=", "--null-marker", "NIL", "-D", ";", stdin="a=NIL;NIL=b;")
    assert [(record["key"], record["value"]) for record in _consumed(ottla, topic)] == [
        ("a", None),
        (None, "b"),
    ]
    shown = ottla("consume", topic, "-K", "=", "--null-marker", "-", "-D", "\\0")
    assert shown.stdout == "a=-\0-=b\0"


def test_the_whole_input_as_one_record(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    data = bytes(range(256)) * 20
    ottla("produce", topic, "--delimiter", "", stdin=data)
    assert ottla("consume", topic, "--delimiter", "").stdout_bytes == data


@both_ways
def test_json_there_and_back(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 3)
    lines = [
        {"key": "a", "value": "text ü", "headers": [{"key": "h", "value": None}], "partition": 2},
        {"key_base64": "/w==", "value_base64": "/v8=", "timestamp": NOW - 5000, "partition": 0},
        {"value": {"nested": [1, 2]}, "headers": {"x": "1"}, "partition": 1},
        {"key": None, "value": None, "partition": 1},
    ]
    ottla("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)) + "\n\n")
    first = ottla("consume", topic, "--json").stdout
    by_place = {
        (record["partition"], record["offset"]): record
        for record in map(json.loads, first.splitlines())
    }
    assert by_place[2, 0]["value"] == "text ü"
    assert by_place[2, 0]["headers"] == [{"key": "h", "value": None}]
    assert by_place[0, 0]["value_base64"] == base64.b64encode(b"\xfe\xff").decode()
    assert by_place[0, 0]["timestamp"] == NOW - 5000
    assert "value" not in by_place[0, 0]
    assert by_place[1, 0]["value"] == '{"nested":[1,2]}'
    assert by_place[1, 0]["headers"] == [{"key": "x", "value": "1"}]
    assert by_place[1, 1]["value"] is None

    copy = topic + "-copy"
    ottla("topic", "create", copy, "-p", 3)
    ottla("produce", copy, "--json", stdin=first)
    assert sorted(ottla("consume", copy, "--json").stdout.splitlines()) == sorted(
        first.splitlines()
    )
    single = topic + "-single"
    ottla("topic", "create", single)
    refused = ottla("produce", single, "--json", stdin=first, fails=1)
    assert f"topic '{single}' has no partition" in refused.stderr
    ottla("produce", single, "--json", "--repartition", stdin=first)
    assert len(_consumed(ottla, single, "-p", 0)) >= 4


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(ottla: Run, topic: str, codec: str) -> None:
    ottla("topic", "create", topic)
    lines = "".join(f"{codec} line {number}\n" for number in range(500))
    ottla("produce", topic, "--codec", codec, stdin=lines)
    assert ottla("consume", topic).stdout == lines


def test_codecs_are_on_disk_and_the_files_are_sound(
    ottla: Run, topic: str, broker_data: Path
) -> None:
    ottla("topic", "create", topic)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        ottla("produce", topic, "--codec", codec, stdin="compress me " * 100 + "\n")
    folder = broker_data / f"{topic}-0"
    batches = ottla("log", "dump", folder, "--json").stdout.splitlines()
    assert [json.loads(batch)["codec"] for batch in batches] == codecs
    assert len(ottla("log", "dump", folder, "--records", "--json").stdout.splitlines()) == 5
    assert f"{topic}-0: sound, offsets 0-4" in ottla("log", "verify", folder, "--deep").stdout


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks_and_reports(ottla: Run, topic: str, acks: str) -> None:
    ottla("topic", "create", topic)
    reports = ottla("produce", topic, "--acks", acks, "--report", stdin="a\nb\n").stdout
    offsets = [json.loads(line)["offset"] for line in reports.splitlines()]
    assert offsets == ([None, None] if acks == "0" else [0, 1])
    assert ottla("consume", topic, "--follow", "--count", 2).stdout == "a\nb\n"


def test_from_until_count(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    lines = "".join(
        json.dumps({"value": str(number), "timestamp": NOW - 10_000 + number * 1000}) + "\n"
        for number in range(10)
    )
    ottla("produce", topic, "--json", stdin=lines)
    all_of_them = [str(number) for number in range(10)]
    assert _values(ottla, topic) == all_of_them
    assert _values(ottla, topic, "--from", "earliest") == all_of_them
    assert _values(ottla, topic, "--from", "latest") == []
    assert _values(ottla, topic, "--from", 7) == ["7", "8", "9"]
    assert _values(ottla, topic, "--from", 10) == []
    assert _values(ottla, topic, "--from", "-2") == ["8", "9"]
    assert _values(ottla, topic, "--from", "-200") == all_of_them
    assert _values(ottla, topic, "--from", 2, "--until", 5) == ["2", "3", "4"]
    assert _values(ottla, topic, "--until", "-8") == ["0", "1"]
    assert _values(ottla, topic, "--until", 99) == all_of_them
    assert _values(ottla, topic, "--count", 3) == ["0", "1", "2"]
    assert _values(ottla, topic, "--from", f"@{NOW - 3000}") == ["7", "8", "9"]
    assert _values(ottla, topic, "--from", f"@{NOW - 3500}", "--until", f"@{NOW - 1500}") == [
        "7",
        "8",
    ]
    assert _values(ottla, topic, "--from", "-1h") == all_of_them
    assert _values(ottla, topic, "--until", "2020-01-01") == []
    assert _values(ottla, topic, "--from", "-0s") == []


def test_in_the_middle_of_a_batch(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, "--codec", "zstd", stdin="".join(f"{n}\n" for n in range(100)))
    assert _values(ottla, topic, "--from", 55, "--until", 57) == ["55", "56"]


def test_follow_waits_for_what_is_asked(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin="a\nb\n")
    assert ottla("consume", topic, "--follow", "--count", 2).stdout == "a\nb\n"


def test_one_partition_of_several(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-p", 3)
    for partition in range(3):
        ottla("produce", topic, "-p", partition, stdin=f"of {partition}\n")
    assert ottla("consume", topic, "-p", 1).stdout == "of 1\n"
    assert sorted(_values(ottla, topic, "-p", 0, "-p", 2)) == ["of 0", "of 2"]
    result = ottla("consume", topic, "-p", 3, fails=1)
    assert "has no partition 3" in result.stderr
    result = ottla("produce", topic, "-p", 3, stdin="x\n", fails=1)
    assert "has no partition 3" in result.stderr


def test_an_offset_outside(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic)
    ottla("produce", topic, stdin="a\nb\n")
    result = ottla("consume", topic, "--from", 3, fails=1)
    assert result.stderr == (
        f"ottla: --from 3 is outside: partition 0 of '{topic}' reaches from 0 to 2\n"
    )


@both_ways
def test_a_record_that_is_too_large(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-c", "max.message.bytes=1000")
    result = ottla("produce", topic, stdin="small\n" + "x" * 5000 + "\n", fails=1)
    assert "max.message.bytes" in result.stderr
    assert result.stderr.count("\n") == 1


@both_ways
def test_a_record_of_several_megabytes(ottla: Run, topic: str) -> None:
    ottla("topic", "create", topic, "-c", "max.message.bytes=10000000")
    line = "y" * 5_000_000 + "\n"
    ottla("produce", topic, stdin=line)
    assert ottla("consume", topic).stdout == line


@pytest.mark.parametrize(
    ("words", "stdin", "sentence"),
    [
        (("--json",), "{}\nnot json\n", "line 2 is not JSON"),
        (("--json",), "[1]\n", "line 1 is not a JSON object"),
        (("--json",), '{"valeu": "x"}\n', "a field 'valeu'"),
        (("--json",), '{"value_base64": "%"}\n', "value_base64 is not base64"),
        (("--json",), '{"partition": "one"}\n', "partition is not a whole number"),
        (("--json",), '{"timestamp": -5}\n', "timestamp is not a whole number"),
        (("--json",), '{"headers": [1]}\n', "headers are a list"),
        (("--json",), '{"value": "\\ud800"}\n', "half a surrogate pair"),
        (("-K", ":"), "a:1\nb\n", "line 2 has no key separator ':'"),
    ],
)
@both_ways
def test_bad_input(
    ottla: Run, topic: str, words: tuple[str, ...], stdin: str, sentence: str
) -> None:
    ottla("topic", "create", topic)
    result = ottla("produce", topic, *words, stdin=stdin, fails=1)
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@both_ways
@pytest.mark.parametrize(
    ("words", "good", "bad", "sentence"),
    [
        (("-K", ":"), "k:{}", "no key", "line 901 has no key separator ':'"),
        (("--json",), '{{"value": "{}"}}', "no json", "line 901 is not JSON"),
        (("--json",), '{{"value": "{}"}}', '{"partition": 7}', "has no partition 7"),
    ],
)
def test_what_is_before_a_bad_line_is_sent(
    ottla: Run, topic: str, words: tuple[str, ...], good: str, bad: str, sentence: str
) -> None:
    ottla("topic", "create", topic)
    before = [good.format(number) for number in range(900)]
    result = ottla("produce", topic, *words, stdin="\n".join([*before, bad, *before]), fails=1)
    assert sentence in result.stderr
    assert "(900 records before it were sent)" in result.stderr
    assert _values(ottla, topic) == [str(number) for number in range(900)]


def test_records_keep_their_order_when_there_are_many(
    ottla: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "COLUMNS_FROM", 3000)
    monkeypatch.setattr(input_blocks, "READ_SIZE", 10_000)
    monkeypatch.setattr(input_blocks, "BLOCK_SIZE", 20_000)
    ottla("topic", "create", topic)
    lines = "".join(f"line {number}\n" for number in range(20_000)) + "the rest"
    ottla("produce", topic, stdin=lines)
    assert ottla("consume", topic).stdout == lines + "\n"


def test_a_large_file(ottla: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of such the kernels are waited for, if they are in the cache."""
    monkeypatch.setattr(produce, "input_size", lambda: produce.KERNELS_FROM_BYTES)
    ottla("topic", "create", topic)
    lines = "".join(f'{{"value":"line {number}"}}\n' for number in range(500))
    ottla("produce", topic, "--json", stdin=lines)
    assert _values(ottla, topic) == [f"line {number}" for number in range(500)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("produce", "not a name"), "'not a name' cannot be a topic's name"),
        (("produce", "x", "--codec", "brotli"), "--codec"),
        (("produce", "x", "--acks", "2"), "--acks"),
        (("produce", "x", "--partition", "-1"), "--partition"),
        (("produce", "x", "-k", "a", "-K", ":"), "--key and --key-separator exclude"),
        (("produce", "x", "--json", "-k", "a"), "with --json"),
        (("produce", "x", "-K", "\\x"), "--key-separator: '\\x' means nothing"),
        (("produce", "x", "-K", ""), "--key-separator cannot be empty"),
        (("produce", "x", "-H", "novalue"), "--header takes NAME=VALUE"),
        (("consume", "x", "--from", "yesterday"), "--from takes earliest, latest"),
        (("consume", "x", "--from", "99999999999999999999"), "larger than any offset"),
        (("consume", "x", "--until", "soon"), "--until takes earliest, latest"),
        (("consume", "x", "--count", "0"), "--count"),
        (("consume", "x", "--count", "some"), "--count"),
        (("consume", "x", "--follow", "--until", "latest"), "--follow never ends"),
        (("consume", "x", "--json", "--meta"), "--json prints"),
    ],
)
def test_mistakes_on_the_command_line(offline: Run, words: tuple[str, ...], sentence: str) -> None:
    result = offline(*words, stdin="x\n")
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
