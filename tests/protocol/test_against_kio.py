"""Every API and version that kio has: the same layout, and the same bytes both ways."""

from __future__ import annotations

import dataclasses
import io
import zlib
from collections.abc import Iterator
from pkgutil import iter_modules
from typing import Any, get_args, get_origin

import pytest
from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from ottla.protocol import messages
from ottla.protocol.apis import ApiKey
from ottla.protocol.message import Message, Part
from ottla.protocol.messages import message_classes
from ottla.protocol.schema import slots_of

SAMPLES = 3
# Tags far above Kafka's are Ottla's own.
_OWN_TAGS_FROM = 10_000
_APIS = sorted(set(api_key_map) & {int(key) for key in ApiKey})
_LOADERS = (load_request_schema, load_response_schema)

# kio turns some integers into types that hold less than the wire does.
_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}

# Where kio is not what Kafka's own definitions say (tests/interop/kafka/test_message_definitions.py): a
# list of folders that may be null.
_KIO_DIFFERS = {("BrokerHeartbeatRequest", 2)}


def _narrow(name: str, code: str) -> tuple[int, int] | None:
    if name.endswith("error_code"):
        return -1, 133
    if code == "q" and ("timestamp" in name or name.endswith("_ms")):
        return 0, 10**12
    return None


def _pairs(api_key: int) -> Iterator[tuple[type[Message], int, Any]]:
    """Our class, version and kio's class of everything that both have."""
    for cls, load in zip(message_classes(api_key), _LOADERS, strict=True):
        first, last = cls.versions
        for version in range(first, last + 1):
            if (cls.__name__, version) in _KIO_DIFFERS:
                continue
            try:
                yield cls, version, load(api_key, version)
            except KioIndexError:
                continue


def _client_facing(api_key: int) -> bool:
    try:
        message_classes(api_key)
    except LookupError:
        return False
    return True


_BOTH = [pytest.param(key, id=ApiKey(key).name) for key in _APIS if _client_facing(key)]


def test_kio_covers_nearly_all_of_it() -> None:
    # Guards the tests below: an empty list of APIs would pass them all.
    own = {"delete_records_at", "list_clients"}  # Ottla's, which Kafka does not have
    modules = [each.name for each in iter_modules(messages.__path__) if each.name not in own]
    assert len(modules) >= 70
    assert len(_BOTH) == len(modules)


@pytest.mark.parametrize("api_key", _BOTH)
def test_layouts_agree(api_key: int) -> None:
    compared = 0
    for cls, version, entity in _pairs(api_key):
        assert (version >= cls.flexible_since) == entity.__flexible__
        assert _our_layout(cls, version) == _kio_layout(entity), f"{cls.__name__} v{version}"
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("api_key", _BOTH)
def test_bytes_agree(api_key: int, make_sampler: Any) -> None:
    for cls, version, entity in _pairs(api_key):
        read, write = entity_reader(entity), entity_writer(entity)
        for sample in range(SAMPLES):
            seed = zlib.crc32(f"{cls.__name__} {version} {sample}".encode())
            message = make_sampler(seed, _narrow).message(cls, version)
            _leave_own_tags(message)
            ours = message.encode(version)
            value, size = read(ours, 0)
            assert size == len(ours), f"{cls.__name__} v{version}"
            theirs = io.BytesIO()
            write(theirs, value)
            assert theirs.getvalue() == ours, f"{cls.__name__} v{version}"
            assert cls.decode(ours, 0, version) == (message, len(ours))


def _leave_own_tags(part: Part) -> None:
    """Fields of Ottla's own are left away: kio cannot know them."""
    for slot in slots_of(type(part)):
        if (slot.field.tag or 0) >= _OWN_TAGS_FROM:
            setattr(part, slot.name, slot.field.default)
            continue
        value = getattr(part, slot.name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Part):
                _leave_own_tags(each)


def _our_layout(part: type[Part], version: int) -> tuple[list[Any], dict[int, Any]]:
    """The layouts of a part's plain fields in order, and of its tagged fields by tag."""
    plain: list[Any] = []
    tagged: dict[int, Any] = {}
    for slot in slots_of(part):
        if not slot.present(version):
            continue
        kind = slot.kind.element or slot.kind
        layout: Any = _our_layout(kind.part, version) if kind.part else kind.code or kind.name
        nullable = slot.null_allowed(version)
        entry = (slot.kind.name == "array", nullable, layout)
        if slot.tagged(version):
            assert slot.field.tag is not None
            if slot.field.tag < _OWN_TAGS_FROM:
                tagged[slot.field.tag] = entry
        else:
            plain.append(entry)
    return plain, tagged


def _kio_layout(entity: Any) -> tuple[list[Any], dict[int, Any]]:
    plain: list[Any] = []
    tagged: dict[int, Any] = {}
    for each in dataclasses.fields(entity):
        bare = [a for a in get_args(each.type) if a is not type(None)]
        nullable = type(None) in get_args(each.type) and get_origin(each.type) is not tuple
        inner = bare[0] if nullable and len(bare) == 1 else each.type
        is_array = get_origin(inner) is tuple
        if is_array:
            inner = get_args(inner)[0]
        # kio writes an identifier of zeros as None, which is no null on the wire.
        name = each.metadata.get("kafka_type")
        if name == "uuid" or name in ("datetime_i64", "timedelta_i32", "timedelta_i64"):
            nullable = False
        layout: Any = _kio_layout(inner) if name is None else _CODES.get(name, name)
        entry = (is_array, nullable, layout)
        if "tag" in each.metadata:
            tagged[each.metadata["tag"]] = entry
        else:
            plain.append(entry)
    return plain, tagged
