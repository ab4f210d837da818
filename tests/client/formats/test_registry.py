"""The registry client and the framed formats, against a server that answers as Confluent documents.

With TEST_REGISTRY set to the address of a real registry (Confluent, Karapace, Apicurio's
/apis/ccompat/v7) the tests of formats run against that one as well.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import wrappers_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from formats_kit.registry import Registry, running_registry

from ottla.client.formats import (
    ConfluentAvroFormat,
    ConfluentJsonFormat,
    ConfluentProtobufFormat,
    RegistryError,
    SchemaMismatch,
    SchemaRegistry,
)

OLD = {"type": "record", "name": "Row", "fields": [{"name": "a", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture
def server() -> Iterator[Registry]:
    with running_registry() as registry:
        yield registry


@pytest.fixture(params=["documented", "real"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "documented":
        return str(request.getfixturevalue("server").url)
    if not os.environ.get("TEST_REGISTRY"):
        pytest.skip("TEST_REGISTRY names no registry")
    return os.environ["TEST_REGISTRY"]


@pytest.fixture
def subject() -> str:
    return f"orders/{uuid.uuid4().hex}-value"


def test_register_and_find(url: str, subject: str) -> None:
    registry = SchemaRegistry(url)
    text = json.dumps(OLD)
    schema_id = registry.register(subject, text)
    assert registry.lookup(subject, text) == schema_id
    found = SchemaRegistry(url).schema(schema_id)
    assert json.loads(found.text) == OLD
    assert found.kind == "AVRO"
    newest = registry.latest(subject)
    assert (newest.subject, newest.version, newest.id) == (subject, 1, schema_id)
    assert registry.versions(subject) == [1]
    assert subject in registry.subjects()
    assert registry.compatible(subject, json.dumps(NEW))


def test_what_a_registry_refuses(url: str, subject: str) -> None:
    registry = SchemaRegistry(url)
    with pytest.raises(RegistryError, match="HTTP 404") as missing:
        registry.latest(subject)
    assert (missing.value.status, missing.value.code) == (404, 40401)
    with pytest.raises(RegistryError) as unknown:
        registry.schema(2**31 - 1)
    assert (unknown.value.status, unknown.value.code) == (404, 40403)
    with pytest.raises(RegistryError) as invalid:
        registry.register(subject, "bad")
    assert (invalid.value.status, invalid.value.code) == (422, 42201)


def test_ids_are_asked_for_once(server: Registry) -> None:
    registry = SchemaRegistry(server.url)
    for _ in range(3):
        registry.schema(registry.register("s", json.dumps(OLD)))
    assert server.requests == [("POST", "/subjects/s/versions"), ("GET", "/schemas/ids/1")]


def test_credentials(server: Registry) -> None:
    server.authorization = "Basic " + base64.b64encode(b"me:secret").decode()
    assert SchemaRegistry(server.url, username="me", password="secret").subjects() == []
    assert SchemaRegistry(server.url.replace("//", "//me:secret@")).subjects() == []
    with pytest.raises(RegistryError, match="401") as refused:
        SchemaRegistry(server.url, username="me", password="wrong").subjects()
    assert "wrong" not in str(refused.value)
    server.authorization = "Bearer token"
    assert SchemaRegistry(server.url, bearer_token="token").subjects() == []


def test_tls(server: Registry, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    name = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *name, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    assert SchemaRegistry(url, ca_location=str(certificate)).subjects() == []
    with pytest.raises(RegistryError, match="certificate"):
        SchemaRegistry(url).subjects()


def test_the_next_address_is_asked_when_one_does_not_answer(server: Registry) -> None:
    assert SchemaRegistry(f"http://127.0.0.1:9, {server.url}").subjects() == []
    with pytest.raises(RegistryError, match="no answer from"):
        SchemaRegistry("http://127.0.0.1:9").subjects()
    with pytest.raises(RegistryError, match="not the address"):
        SchemaRegistry("localhost:8081")


@pytest.mark.parametrize("broken", [b"<html>", b"[]", b"{}"])
def test_something_else_than_a_registry(server: Registry, broken: bytes) -> None:
    server.broken = broken
    with pytest.raises(RegistryError, match="registry"):
        SchemaRegistry(server.url).schema(1)


def test_framed_avro_of_several_schemas(url: str, subject: str) -> None:
    registry = SchemaRegistry(url)
    old = ConfluentAvroFormat(registry, schema=OLD, subject=subject)
    new = ConfluentAvroFormat(registry, schema=NEW, subject=subject)
    first = old.encode(pa.table({"a": [1, 2]})).to_pylist()
    second = new.encode(pa.table({"a": [3, 4], "b": ["x", None]})).to_pylist()
    (old_id,) = struct.unpack(">I", first[0][1:5])
    assert first[0][:1] == b"\x00"
    assert json.loads(registry.schema(old_id).text) == OLD
    bad = [b"", b"\x00\x00", b"\x01" + second[0][1:], b"\x00\x7f\xff\xff\xff\x02"]
    values = [first[0], None, second[0], *bad, second[1][:5], first[1], second[1]]
    column = pa.array([b"neighbour", *values], pa.binary()).slice(1)
    decoded = ConfluentAvroFormat(SchemaRegistry(url)).decode(column)
    rows = [{"a": 1, "b": None}, None, {"a": 3, "b": "x"}]
    rows += [None] * 5 + [{"a": 2, "b": None}, {"a": 4, "b": None}]
    assert decoded.array.to_pylist() == rows
    assert decoded.array.type.field("a").type == pa.int64()
    reasons = decoded.rejected.to_pylist()
    assert [reason is not None for reason in reasons] == [False] * 3 + [True] * 5 + [False] * 2
    assert "knows no schema" in reasons[6]
    assert "first byte is 1" in reasons[5]

    with_reader = ConfluentAvroFormat(SchemaRegistry(url), reader_schema=OLD)
    assert with_reader.decode(column).array.type == pa.struct([("a", pa.int32())])


def test_a_registry_that_fails_is_no_reason_to_reject(server: Registry) -> None:
    value = b"\x00\x00\x00\x00\x01\x02"
    unreachable = ConfluentAvroFormat("http://127.0.0.1:9")
    with pytest.raises(RegistryError, match="no answer"):
        unreachable.decode(pa.array([value]))


def test_encoding_needs_a_subject_and_may_not_register(url: str, subject: str) -> None:
    table = pa.table({"a": [1]})
    with pytest.raises(SchemaMismatch, match="subject"):
        ConfluentAvroFormat(url, schema=OLD).encode(table)
    with pytest.raises(RegistryError, match="404"):
        ConfluentAvroFormat(url, schema=OLD, subject=subject, register=False).encode(table)


def test_an_avro_schema_that_imports_another(server: Registry) -> None:
    inner = {
        "type": "record",
        "name": "In",
        "namespace": "n",
        "fields": [{"name": "x", "type": "int"}],
    }
    outer = {
        "type": "record",
        "name": "Out",
        "namespace": "n",
        "fields": [{"name": "one", "type": "n.In"}, {"name": "two", "type": ["null", "In"]}],
    }
    server.answer("POST", "/subjects/in/versions", {"schema": json.dumps(inner)})
    reference = {"name": "n.In", "subject": "in", "version": 1}
    server.answer(
        "POST",
        "/subjects/out/versions",
        {"schema": json.dumps(outer), "references": [reference]},
    )
    decoded = ConfluentAvroFormat(server.url).decode(
        pa.array([b"\x00\x00\x00\x00\x02\x02\x02\x04"])
    )
    assert decoded.array.to_pylist() == [{"one": {"x": 1}, "two": {"x": 2}}]


def test_framed_json(url: str, subject: str) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    json_format = ConfluentJsonFormat(url, json_schema=schema, subject=subject)
    encoded = json_format.encode(pa.table({"a": [1, 2]})).to_pylist()
    decoded = json_format.decode(pa.array([encoded[0], b"{}", None, encoded[1], encoded[1][:6]]))
    assert decoded.array.to_pylist() == [{"a": 1}, None, None, {"a": 2}, None]
    assert decoded.rejected_mask.to_pylist() == [False, True, False, False, True]


def test_framed_protobuf(url: str, subject: str) -> None:
    # The fourth message of its file: its index is on the wire.
    message = wrappers_pb2.UInt64Value
    index = [each.name for each in message.DESCRIPTOR.file.message_types_by_name.values()].index(
        "UInt64Value"
    )
    protobuf = ConfluentProtobufFormat(url, message, subject=subject)
    encoded = protobuf.encode(pa.table({"value": [7, 8]})).to_pylist()
    assert encoded[0][5:7] == bytes([2, index << 1])
    assert message.FromString(encoded[0][7:]).value == 7
    other = encoded[0][:5] + bytes([2, 0]) + encoded[0][7:]
    cut = encoded[0][:5] + b"\xff"
    decoded = protobuf.decode(pa.array([encoded[0], other, None, cut, encoded[1]]))
    assert decoded.array.to_pylist() == [{"value": 7}, None, None, None, {"value": 8}]
    assert decoded.rejected_mask.to_pylist() == [False, True, False, True, False]


def test_both_spellings_of_the_first_message(server: Registry) -> None:
    protobuf = ConfluentProtobufFormat(server.url, wrappers_pb2.DoubleValue, subject="s")
    (short,) = protobuf.encode(pa.table({"value": [1.5]})).to_pylist()
    assert short[5:6] == b"\x00"
    long = short[:5] + b"\x02\x00" + short[6:]
    decoded = protobuf.decode(pa.array([short, long]))
    assert decoded.array.to_pylist() == [{"value": 1.5}] * 2
