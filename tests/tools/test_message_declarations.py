"""tools/message_declarations.py: modules of messages from Kafka's definitions."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "message_declarations.py"

REQUEST = """
// Comments stand on lines of their own.
{
  "apiKey": 3, "type": "request", "name": "ExampleRequest",
  "validVersions": "2-6", "flexibleVersions": "5+",
  "fields": [
    { "name": "TopicIds", "type": "[]uuid", "versions": "4+", "nullableVersions": "4+",
      "default": "null", "about": "What it is about." },
    // An array of parts, which came with version 3.
    { "name": "Topics", "type": "[]Topic", "versions": "3+", "fields": [
      { "name": "Name", "type": "string", "versions": "3+" },
      { "name": "Rack", "type": "string", "versions": "4+", "nullableVersions": "5+" },
      { "name": "Gone", "type": "int8", "versions": "1-2" }
    ]},
    { "name": "MaxBytes", "type": "int32", "versions": "2+", "default": "0x7fffffff" },
    { "name": "State", "type": "State", "versions": "5+", "taggedVersions": "5+", "tag": 1 },
    { "name": "Later", "type": "bool", "versions": "7+" }
  ],
  "commonStructs": [
    { "name": "State", "versions": "5+", "fields": [
      { "name": "Epoch", "type": "int64", "versions": "5+", "default": "-1" },
      { "name": "IsOpen", "type": "bool", "versions": "6+", "default": "true", "ignorable": true }
    ]}
  ]
}
"""
RESPONSE: dict[str, Any] = {
    "apiKey": 3,
    "type": "response",
    "name": "ExampleResponse",
    "validVersions": "2-6",
    "flexibleVersions": "5+",
    "fields": [
        {
            "name": "Topics",
            "type": "[]Topic",
            "versions": "0+",
            "fields": [{"name": "Records", "type": "records", "versions": "0+"}],
        },
        {"name": "Message", "type": "string", "versions": "2+", "nullableVersions": "2+"},
    ],
}

WRITTEN = '''\
"""Example."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    NEVER,
    Bool,
    Int32,
    Int64,
    Message,
    Part,
    Records,
    String,
    Uuid,
    field,
)


class TopicRequest(Part):
    name: String = ""
    rack: String | None = field(default="", since=4, nullable_since=5)


class State(Part):
    epoch: Int64 = -1
    is_open: Bool = field(default=True, since=6, ignorable=True)


class ExampleRequest(Message, api_key=ApiKey.EXAMPLE, versions=(2, 6), flexible_since=5):
    topic_ids: list[Uuid] | None = field(default=None, since=4)
    topics: list[TopicRequest] = field(default=EMPTY, since=3)
    max_bytes: Int32 = 2147483647
    state: State | None = field(default=None, since=5, nullable_since=NEVER, tag=1)


class TopicResponse(Part):
    records: Records = b""


class ExampleResponse(Message, api_key=ApiKey.EXAMPLE, versions=(2, 6), flexible_since=5):
    topics: list[TopicResponse] = EMPTY
    message: String | None = ""
'''


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("message_declarations", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "ExampleRequest.json").write_text(REQUEST)
    (folder / "ExampleResponse.json").write_text(json.dumps(RESPONSE))
    return folder


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "messages"
    folder.mkdir()
    return folder


def test_a_module_is_written(tool: ModuleType, definitions: Path, into: Path) -> None:
    assert tool.main([str(definitions), "example", "--write", "--into", str(into)]) == 0
    assert (into / "example.py").read_text() == WRITTEN


def test_from_a_jar(tool: ModuleType, definitions: Path, into: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "clients.jar", "w") as jar:
        for path in definitions.iterdir():
            jar.write(path, f"common/message/{path.name}")
        jar.writestr("META-INF/other.json", "no definition")
    jar_path = str(tmp_path / "clients.jar")
    assert tool.main([jar_path, "example", "--write", "--into", str(into)]) == 0
    assert (into / "example.py").read_text() == WRITTEN


def test_a_difference_is_shown_and_nothing_written(
    tool: ModuleType, definitions: Path, into: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = '"""Example: what it is for.\n\nIn two paragraphs.\n"""'
    older = WRITTEN.replace('"""Example."""', said).replace("max_bytes: Int32", "max_bytes: Int64")
    (into / "example.py").write_text(older)
    assert tool.main([str(definitions), "--into", str(into)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith(("+ ", "- "))] == [
        "-    max_bytes: Int64 = 2147483647",
        "+    max_bytes: Int32 = 2147483647",
    ]
    assert (into / "example.py").read_text() == older
    (into / "example.py").write_text(older.replace("max_bytes: Int64", "max_bytes: Int32"))
    assert tool.main([str(definitions), "--into", str(into)]) == 0


def test_what_an_older_release_had(
    tool: ModuleType, definitions: Path, into: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    before = json.loads(json.dumps(RESPONSE))
    before["validVersions"] = "0-4"
    before["fields"].insert(1, {"name": "OldName", "type": "int16", "versions": "0-1"})
    request = {**before, "name": "ExampleRequest", "type": "request", "fields": []}
    (older / "ExampleResponse.json").write_text(json.dumps(before))
    (older / "ExampleRequest.json").write_text(json.dumps(request))
    both = [str(definitions), "--older", str(older)]
    assert tool.main([*both, "example", "--write", "--into", str(into)]) == 0
    text = (into / "example.py").read_text()
    assert text.count("versions=(0, 6)") == 2
    assert (
        "    topics: list[TopicResponse] = EMPTY\n"
        "    old_name: Int16 = field(default=0, until=1)\n"
        '    message: String | None = field(default="", since=2)\n'
    ) in text
    # A release in which the API was not stable yet had no clients that count.
    request.update(validVersions="0", latestVersionUnstable=True)
    (older / "ExampleRequest.json").write_text(json.dumps(request))
    assert tool.main([*both, "example", "--write", "--into", str(into)]) == 0
    assert (into / "example.py").read_text() == WRITTEN


def test_an_api_that_nobody_knows(
    tool: ModuleType, definitions: Path, into: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(definitions), "nothing", "--into", str(into)]) == 2
    assert "has no nothing" in capsys.readouterr().err
