"""Values as columns: from bytes to Spark's types by the client's formats.

With `valueFormat` the column `value` has the type that `valueSchema` says (or the registry), and a
column `_corrupt` the bytes of those values that are no such thing; `value` is null there. The type is
known at load(). What load() has looked up, in a registry or a file, goes with the schema of the
DataFrame, in the metadata of the column: all tasks of a query decode to the same type, however long
it runs.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from ottla.client.formats.errors import FormatError, RegistryError
from pyspark_ottla.errors import OptionError
from pyspark_ottla.values.options import ValueOptions
from pyspark_ottla.values.schema import nullable, struct_of

if TYPE_CHECKING:
    from ottla.client.formats.base import Format
    from ottla.client.formats.registry import SchemaRegistry

CORRUPT: Final = "_corrupt"
_NOT_ASKED: Final = "http://registry.invalid"  # by formats whose schema valueSchema has
_FOUND: Final = "ottla.valueSchema"  # in the metadata of the column `value`


def settled(options: ValueOptions, field: StructField | None = None) -> ValueOptions:
    """The options with what is to be looked up: taken from the DataFrame's column, or found now."""
    if field is not None and _FOUND in field.metadata:
        return replace(options, found=str(field.metadata[_FOUND]))
    try:
        if options.format == "confluent-avro" and options.schema is None:
            assert options.subject is not None
            latest = _registry(options).latest(options.subject)
            if latest.kind != "AVRO":
                raise OptionError(f"valueSubject {options.subject} is {latest.kind}, not AVRO")
            return replace(options, found=latest.text)
        if options.format.endswith("protobuf"):
            data = Path(options.schema or "").expanduser().read_bytes()
            return replace(options, found=base64.b64encode(data).decode())
    except RegistryError as error:
        raise OptionError(f"schema.registry.url: {error}") from None
    except OSError as error:
        raise OptionError(f"valueSchema: {error}") from None
    return options


def value_field(options: ValueOptions) -> StructField:
    """The column `value` for options that are settled."""
    metadata = {} if options.found is None else {_FOUND: options.found}
    return StructField("value", _decoder(options).spark_type, metadata=metadata)


def corrupt_field() -> StructField:
    return StructField(CORRUPT, BinaryType())


class ValueDecoder:
    """Decodes columns of bytes to `spark_type`."""

    def __init__(self, format_: Format, spark_type: DataType) -> None:
        self.spark_type = spark_type
        self._format = format_
        self._type = to_arrow_type(spark_type, timezone="UTC")

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The typed column, and the bytes of those values that could not be decoded."""
        decoded = self._format.decode(values)
        array = decoded.array
        if array.type != self._type:
            array = fitted(array, self._type)
        if not decoded.rejected_count:
            return array, pa.nulls(len(values), pa.binary())
        nothing = pa.scalar(None, pa.binary())
        return array, pc.if_else(decoded.rejected_mask, values, nothing)


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in Spark's types: what is finer than a microsecond is cut off."""
    if array.type.equals(kind):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    return array.cast(kind, safe=False)


def decoder(options: ValueOptions) -> ValueDecoder:
    """The decoder of settled options; one for all tasks of a process that have the same ones."""
    return _decoder(options)


@lru_cache(64)
def _decoder(options: ValueOptions) -> ValueDecoder:
    try:
        match options.format:
            case "json" | "confluent-json":
                return _json(options)
            case "arrow":
                return _arrow(options)
            case "protobuf" | "confluent-protobuf":
                return _protobuf(options)
            case _:
                return _avro(options)
    except RegistryError as error:
        raise OptionError(f"schema.registry.url: {error}") from None
    except FormatError as error:
        raise OptionError(f"{_source_of_schema(options)}: {error}") from None


def _source_of_schema(options: ValueOptions) -> str:
    """The option that a schema came from, for messages."""
    if options.schema is not None:
        return "valueSchema"
    return f"the newest schema of {options.subject} (valueSubject)"


def _given(options: ValueOptions) -> StructType:
    try:
        given = struct_of(options.schema or "")
    except ValueError as error:
        raise OptionError(f"valueSchema: {error}") from None
    if not given.fields:
        raise OptionError("valueSchema has no fields")
    return given


def _json(options: ValueOptions) -> ValueDecoder:
    from ottla.client.formats import ConfluentJsonFormat, JsonFormat

    given = _given(options)
    refused = _first(given, "value", (BinaryType, MapType))
    if refused is not None:
        path, kind = refused
        instead = "STRING, and unbase64(…)" if isinstance(kind, BinaryType) else "a STRUCT"
        raise OptionError(
            f"valueSchema: {path} cannot be {kind.simpleString()} in JSON; take {instead}"
        )
    schema = _arrow_schema(given)
    if options.format == "json":
        return ValueDecoder(JsonFormat(schema), given)
    return ValueDecoder(ConfluentJsonFormat(_NOT_ASKED, schema=schema), given)


def _arrow(options: ValueOptions) -> ValueDecoder:
    from ottla.client.formats import ArrowFormat

    given = _given(options)
    return ValueDecoder(ArrowFormat(_arrow_schema(given), cast=True), ArrayType(given))


def _avro(options: ValueOptions) -> ValueDecoder:
    from ottla.client.formats import AvroFormat, ConfluentAvroFormat
    from ottla.client.formats.avro.schema import load_schema, resolve

    text = options.found if options.schema is None else options.schema
    assert text is not None
    kind = _spark_type(resolve(load_schema(text)).logical, options)
    if options.format == "avro":
        return ValueDecoder(AvroFormat(text), kind)
    return ValueDecoder(ConfluentAvroFormat(_registry(options), reader_schema=text), kind)


def _protobuf(options: ValueOptions) -> ValueDecoder:
    from ottla.client.formats import ConfluentProtobufFormat, ProtobufFormat

    assert options.found is not None
    described = base64.b64decode(options.found)
    bare = ProtobufFormat(descriptor_set=described, message_name=options.message)
    kind = _spark_type(pa.struct(list(bare.schema)), options)
    if options.format == "protobuf":
        return ValueDecoder(bare, kind)
    framed = ConfluentProtobufFormat(
        _NOT_ASKED, descriptor_set=described, message_name=options.message
    )
    return ValueDecoder(framed, kind)


def _arrow_schema(given: StructType) -> pa.Schema:
    return pa.schema(list(to_arrow_type(given, timezone="UTC")))


def _spark_type(kind: pa.DataType, options: ValueOptions) -> DataType:
    """Spark's type for a column of a format's."""
    try:
        return nullable(from_arrow_type(_representable(kind)))
    except (PySparkException, TypeError, ValueError) as error:
        raise OptionError(
            f"{_source_of_schema(options)} has a type that Spark lacks: {error}"
        ) from None


def _representable(kind: pa.DataType) -> pa.DataType:
    """The nearest type that Spark has, where it lacks the very one."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, _representable(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_representable(kind.key_type), _representable(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_representable(kind.value_type))
    if types.is_dictionary(kind):
        return _representable(kind.value_type)
    if types.is_uint8(kind):
        return pa.int16()
    if types.is_uint16(kind):
        return pa.int32()
    if types.is_uint32(kind):
        return pa.int64()
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_null(kind):
        return pa.string()
    return kind


def _first(
    kind: DataType, path: str, wanted: tuple[type[DataType], ...]
) -> tuple[str, DataType] | None:
    """The first part of a type that is one of these, and where it is."""
    if isinstance(kind, wanted):
        return path, kind
    if isinstance(kind, ArrayType):
        return _first(kind.elementType, path, wanted)
    if isinstance(kind, StructType):
        for each in kind:
            found = _first(each.dataType, f"{path}.{each.name}", wanted)
            if found is not None:
                return found
    return None


def _registry(options: ValueOptions) -> SchemaRegistry:
    from ottla.client.formats.registry import SchemaRegistry

    given = dict(options.registry)
    user, colon, password = given.get("user_info", "").partition(":")
    try:
        return SchemaRegistry(
            given["url"],
            username=user if colon else None,
            password=password if colon else None,
            bearer_token=given.get("bearer_token"),
            ca_location=given.get("ca_location"),
            certificate_location=given.get("certificate_location"),
            key_location=given.get("key_location"),
            key_password=given.get("key_password"),
        )
    except OSError as error:
        raise OptionError(f"schema.registry.ssl.*: {error}") from None
