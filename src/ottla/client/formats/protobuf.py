"""Protobuf: one message per value, to a struct column and back.

The messages' type is given as a generated class, a descriptor, or a file descriptor set (what
`protoc --include_imports --descriptor_set_out` writes) with the message's full name. ptars, which is
compiled, turns the wire format into columns without a message object per value; google's own package
reads the descriptors.

Columns are as ptars maps them: scalars that a message always has are not null, `optional` fields,
messages and wrapper types may be, enums are their names, timestamps are timestamp[ns, UTC], repeated
fields lists. Unknown fields are ignored, as Protobuf asks (and a little more laxly than google's package
does: impossible field numbers and groups that end wrongly are passed over, not rejected). A message
type that contains itself has no Arrow type and is refused.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.base import (
    Decoded,
    Format,
    binary_column,
    decode_rows,
    required,
    struct_column,
)
from ottla.client.formats.confluent import FramedFormat, assemble
from ottla.client.formats.errors import SchemaMismatch
from ottla.client.formats.framing import (
    decode_indexes,
    encode_indexes,
    split_by_schema,
    with_header,
    without_header,
    without_prefix,
)
from ottla.client.formats.registry import SchemaRegistry

# Enough for the message indexes of any sane schema, so that only this much of a value is looked at.
_INDEXES_AT_MOST = 64


class ProtobufFormat(Format):
    """Messages of one type.

    `message` is a generated class or its descriptor. Or give `descriptor_set` (bytes) and the full
    name of the message in it.
    """

    name = "protobuf"

    def __init__(
        self,
        message: Any = None,
        *,
        descriptor_set: bytes | None = None,
        message_name: str | None = None,
    ) -> None:
        ptars = required("ptars", "protobuf")
        if descriptor_set is not None:
            self.descriptor = _found(descriptor_set, message_name)
        elif message is not None:
            self.descriptor = getattr(message, "DESCRIPTOR", message)
        else:
            raise SchemaMismatch("Protobuf needs a message class, or a descriptor set and a name")
        _refuse_recursion(self.descriptor, ())
        pool = ptars.HandlerPool(
            [self.descriptor.file],
            ptars.PtarsConfig(enum_repr="string", list_value_name="item"),
        )
        self._handler = pool.get_for_message(self.descriptor)
        #: The columns' schema, as decoding gives them and encoding takes them.
        self.schema: pa.Schema = self._handler.schema()
        self._type = pa.struct(list(self.schema))

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        return decode_rows(binary_column(values), self._decode_all, self._type)

    def _decode_all(self, messages: pa.Array) -> pa.Array:
        return self._handler.array_to_record_batch(messages).to_struct_array()

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        """Messages of a struct column, by field names; a null field is left unset."""
        array = struct_column(column)
        if not pa.types.is_struct(array.type):
            raise SchemaMismatch(f"Protobuf messages are made of a struct column, not {array.type}")
        unknown = sorted({field.name for field in array.type} - set(self.schema.names))
        if unknown:
            raise SchemaMismatch(
                f"{self.descriptor.full_name} has no field {', '.join(map(repr, unknown))}"
            )
        columns = []
        for field in self.schema:
            at = array.type.get_field_index(field.name)
            child = array.field(at) if at >= 0 else pa.nulls(len(array), field.type)
            try:
                columns.append(child.cast(_nullable(field.type)))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise SchemaMismatch(
                    f"field {field.name!r}: {child.type} does not fit {field.type}: {error}"
                ) from error
        names = self.schema.names
        encoded = self._handler.record_batch_to_array(pa.RecordBatch.from_arrays(columns, names))
        if not array.null_count:
            return encoded
        return pc.if_else(pc.is_valid(array), encoded, pa.scalar(None, pa.binary()))


class ConfluentProtobufFormat(FramedFormat):
    """Protobuf after a schema id and message indexes.

    The registry keeps Protobuf schemas as source text, which only protoc reads, so the message type is
    given as for ProtobufFormat, and values whose indexes name another message are rejected. When
    encoding, the schema is registered in its compiled form, which registries take too.
    """

    name = "confluent-protobuf"
    kind = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry | str,
        message: Any = None,
        *,
        descriptor_set: bytes | None = None,
        message_name: str | None = None,
        subject: str | None = None,
        register: bool = True,
    ) -> None:
        super().__init__(registry, subject=subject, register=register)
        self._messages = ProtobufFormat(
            message, descriptor_set=descriptor_set, message_name=message_name
        )
        self._indexes = _indexes_of(self._messages.descriptor)
        self._prefix = encode_indexes(self._indexes)

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        array = binary_column(values)
        framed = split_by_schema(array)
        reasons = dict(framed.reasons)
        if not framed.positions:
            return assemble(len(array), [], reasons)
        positions = np.sort(np.concatenate(list(framed.positions.values())))
        data = without_header(array.take(pa.array(positions)))
        ours = pc.starts_with(data, self._prefix).to_numpy(zero_copy_only=False)
        pieces = []
        # The list [0] has a second spelling, so values that begin otherwise are looked at closely.
        for at, value in zip(
            positions[~ours], data.filter(pa.array(~ours)).to_pylist(), strict=True
        ):
            reason, message = self._message_after_indexes(value)
            if reason:
                reasons[int(at)] = reason
            else:
                pieces.append((np.array([at]), self._messages.decode(pa.array([message]))))
        if ours.any():
            good = without_prefix(data.filter(pa.array(ours)), len(self._prefix))
            pieces.append((positions[ours], self._messages.decode(good)))
        return assemble(len(array), pieces, reasons)

    def _message_after_indexes(self, value: bytes) -> tuple[str, bytes]:
        try:
            indexes, size = decode_indexes(value[:_INDEXES_AT_MOST])
        except ValueError as error:
            return str(error), b""
        if indexes != self._indexes:
            return f"another message of the schema: indexes {list(indexes)}", b""
        return "", value[size:]

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        compiled = base64.b64encode(self._messages.descriptor.file.serialized_pb).decode()
        schema_id = self._schema_id(compiled)
        return with_header(schema_id, self._messages.encode(column), self._prefix)


def _found(descriptor_set: bytes, message_name: str | None) -> Any:
    """The descriptor of a message in a file descriptor set."""
    descriptor_pb2 = required("google.protobuf.descriptor_pb2", "protobuf")
    descriptor_pool = required("google.protobuf.descriptor_pool", "protobuf")
    if message_name is None:
        raise SchemaMismatch("name the message in the descriptor set: message_name='orders.Order'")
    message = required("google.protobuf.message", "protobuf")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message_name)
    except KeyError as error:
        raise SchemaMismatch(f"the descriptor set has no message {message_name!r}") from error
    except (message.DecodeError, TypeError) as error:
        raise SchemaMismatch(f"not a usable file descriptor set: {error}") from error


def _refuse_recursion(descriptor: Any, above: tuple[str, ...]) -> None:
    if descriptor.full_name in above:
        raise SchemaMismatch(
            f"the Protobuf message {descriptor.full_name} contains itself; a column cannot"
        )
    for field in descriptor.fields:
        if field.message_type is not None:
            _refuse_recursion(field.message_type, (*above, descriptor.full_name))


def _indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The path to a message among its file's messages, from the outside in."""
    outer = descriptor.containing_type
    if outer is None:
        return (_position(descriptor, descriptor.file.message_types_by_name.values()),)
    return (*_indexes_of(outer), _position(descriptor, outer.nested_types))


def _position(descriptor: Any, siblings: Any) -> int:
    return [each.full_name for each in siblings].index(descriptor.full_name)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with every field nullable: a user's column has nulls where a message has defaults."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind
